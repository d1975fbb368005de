"""Tests of `open_file`: no file of a store becomes a standard stream, and files that are not regular are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiered
from tests.support.paths import ROOT
from tiered.warm.open_file import open_file, open_regular

# A library in C that prints an error writes to descriptor 2, whatever file that is.
_NOISY = """
import os, sys, tiered
with tiered.open(sys.argv[1]) as store:
    topic = store.create_topic("orders")
    topic.append(b"before", sync=True)
    for descriptor in (0, 1, 2):
        try:
            os.write(descriptor, b"E0000 a warning of a library")
        except OSError:
            pass
    topic.append(b"after", sync=True)
"""
_DOCUMENTS = ("store.json", "topics/orders/topic.json", "topics/orders/0/start.json")


@pytest.mark.extended
def test_a_program_without_standard_streams_cannot_print_into_a_segment(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _NOISY, str(tmp_path / "data")],
        preexec_fn=lambda: os.closerange(0, 3),
        cwd=ROOT,
        check=True,
    )
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert [record.value for record in store.topic("orders").read()] == [b"before", b"after"]
        assert store.verify(deep=True).problems == ()


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY])
def test_open_file_never_returns_a_standard_stream(tmp_path: Path, flags: int) -> None:
    path = tmp_path / "file"
    path.touch()
    kept = os.dup(0)
    os.close(0)
    try:
        fd = open_file(path, flags)
        assert fd > 2
        assert not os.get_inheritable(fd)
        os.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_open_regular_refuses_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link"):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


@pytest.mark.parametrize("name", [*_DOCUMENTS, "topics/orders/0/00000000000000000000-7.log"])
def test_a_fifo_in_a_store_is_an_error_and_no_wait(tmp_path: Path, name: str) -> None:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("orders").append(b"one", sync=True)
    path = tmp_path / "data" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with (
        pytest.raises(tiered.FileUnreadable, match="no regular file"),
        tiered.open(path.parents[name.count("/")]) as store,
    ):
        store.topic("orders").scan().to_arrow()


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_verify_reports_a_fifo(tmp_path: Path, name: str) -> None:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("orders").append(b"one", sync=True)
    with tiered.open(tmp_path / "data", read_only=True) as store:
        path = tmp_path / "data" / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        report = store.verify()
    assert any("no regular file" in str(item) for item in (*report.problems, *report.unknown))
