"""Readers of a directory find the writer that serves it, and nobody else."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tiered
from tiered.flight.notice import SERVING_FILE, find_server, post_notice, read_notice
from tiered.warm.filesystem import OsFileSystem

from .conftest import SERVER


def test_a_served_directory_says_where_and_a_closed_server_takes_it_back(
    store: tiered.Store, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(store.url)
    first, second = store.serve("127.0.0.1:0"), store.serve("127.0.0.1:0")
    first.close()
    found = find_server(root, tiered.Settings())
    assert found is not None
    assert (found.url, found.store_id, found.read_only) == (second.location, store.store_id, True)
    found.close()
    second.close()
    assert not (root / SERVING_FILE).exists()
    with tiered.open(root, read_only=True) as beside, beside.serve("127.0.0.1:0"):
        assert read_notice(root) is None
    assert find_server(root, tiered.Settings()) is None
    assert not caplog.records


def test_a_writer_that_was_killed_is_not_waited_for(
    tmp_path: Path, python: Callable[..., subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    process = python(SERVER, tmp_path, "127.0.0.1:0")
    assert process.stdout is not None
    location = process.stdout.readline().strip()
    process.kill()
    process.wait()
    notice = read_notice(tmp_path)
    assert notice is not None
    assert notice.location == location
    assert find_server(tmp_path, tiered.Settings()) is None
    assert "ends with what is durable" in caplog.text
    with tiered.open(tmp_path) as store, store.serve("127.0.0.1:0") as server:
        notice = read_notice(tmp_path)
        assert notice is not None
        assert notice.location == server.location
    assert read_notice(tmp_path) is None


@pytest.mark.parametrize("how", ["copied", "another store", "another directory", "damaged", "token"])
def test_who_serves_something_else_is_not_asked(
    store: tiered.Store, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tiered.flight")
    root = Path(store.url)
    server = store.serve("127.0.0.1:0", token="a-token-of-a-test" if how == "token" else None)
    if how == "copied":
        root = Path(shutil.copytree(root, tmp_path / "copy"))
    elif how == "another store":
        post_notice(OsFileSystem(), root, uuid4(), server.location)
    elif how == "another directory":
        # Its own notice, and a server that took over the address.
        root = Path(shutil.copytree(root, tmp_path / "copy"))
        post_notice(OsFileSystem(), root, store.store_id, server.location)
    elif how == "damaged":
        (root / SERVING_FILE).write_bytes((root / SERVING_FILE).read_bytes().replace(b"127", b"128"))
    assert find_server(root, tiered.Settings()) is None
    (record,) = caplog.records
    assert "a-token-of-a-test" not in record.getMessage()


def test_a_notice_that_cannot_be_read_keeps_nobody_from_reading(
    store: tiered.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders")
    (tmp_path / "data" / SERVING_FILE).mkdir()
    assert find_server(tmp_path / "data", tiered.Settings()) is None
    assert "its server is not used" in caplog.text


def test_a_disk_without_room_keeps_nobody_from_serving(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise tiered.DiskFull("no room")

    monkeypatch.setattr(store._host.fs, "create", full)
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        assert remote.topics() == []
    assert "will not find its server" in caplog.text
