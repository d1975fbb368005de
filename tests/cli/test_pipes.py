"""Files that are none, as ``<(…)`` of a shell gives them: what can be read is, and else the message is ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import one_error

Run = Callable[..., Any]


@pytest.fixture
def store(data: Path) -> Iterator[tiered.Store]:
    with tiered.open(data) as store:
        store.create_topic("orders")
    with tiered.open(data, read_only=True) as store:
        yield store


@contextmanager
def pipe_of(content: bytes) -> Iterator[str]:
    """The name of a pipe that holds this."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def test_a_schema_in_json_comes_from_a_pipe(tiered_: Run, store: tiered.Store) -> None:
    with pipe_of(b'{"n": "int64", "name": "string"}') as pipe:
        assert tiered_("create", "typed", "--schema", pipe).exit_code == 0
    assert store.topic("typed").schema.names == ["n", "name"]


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (("create", "t", "--schema"), b"PAR1...", "Parquet is read from its end, which a pipe does not have"),
        (("create", "t", "--schema"), b"\xff", "is not JSON"),
        (("create", "t", "--schema"), b"[" * 50_000, "is not JSON"),
        (("create", "t", "--schema"), b"", "is not JSON"),
        (("append", "orders", "--format", "parquet"), b"PAR1", "Parquet is read from its end"),
        (("inspect",), b"TSEG", "no regular file, and a pipe has no end to read from"),
        (("append", "orders", "--format", "csv"), b"caf\xe9,b\n1,2\n", "the header line is no UTF-8 text"),
    ],
    ids=["parquet", "bytes", "deep", "empty", "append parquet", "inspect", "header"],
)
def test_what_a_pipe_cannot_give_is_said(
    tiered_: Run, store: tiered.Store, arguments: tuple[str, ...], content: bytes, said: str
) -> None:
    with pipe_of(content) as pipe:
        error = one_error(tiered_(*arguments, pipe))
    assert said in error
    assert "seek" not in error


@pytest.mark.parametrize("command", [("create", "t", "--schema"), ("inspect",)])
def test_a_device_is_no_file_either(tiered_: Run, store: tiered.Store, command: tuple[str, ...]) -> None:
    assert "Errno" not in one_error(tiered_(*command, Path("/dev/null")))
