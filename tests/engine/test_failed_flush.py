"""Rows that a flush cannot write, for a reason that nobody thought of: what is said, and that none of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.stores import stepwise
from tiered.hot.row_buffer import RecordBuffer, RowBuffer

SCHEMA = pa.schema([("n", pa.int64())])
SAID = r"offsets 1 to 3 of partition 1 of topic 't' could not be written \(\w+: by the test\)"


@pytest.fixture(params=[RecordBuffer, RowBuffer], ids=["plain", "typed"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiered.Topic]:
    """A topic with a durable record and two that wait in memory, all in partition 1."""
    typed = request.param is RowBuffer
    with tiered.open(tmp_path / "data", settings=stepwise()) as store:
        topic = store.create_topic("t", schema=SCHEMA if typed else None, partitions=2)
        value = {"n": 1} if typed else b"x"
        topic.append(value, partition=1, sync=True)
        for _ in range(2):
            topic.append(value, partition=1)
        yield topic


CALLS: dict[str, Callable[[tiered.Topic], Any]] = {
    "flush": lambda topic: topic.flush(),
    "flush of the store": lambda topic: topic.store.flush(),
    "append": lambda topic: topic.append({"n": 1} if topic.opened.typed else b"x", partition=1, sync=True),
    "batch": lambda topic: topic.append_batch(
        pa.table({"n": [1]} if topic.opened.typed else {"value": [b"x"]}), partition=1
    ),
    "producer": lambda topic: topic.producer("p"),
    "scan": lambda topic: topic.scan(),
    "read": lambda topic: list(topic.read(1)),
    "offsets": lambda topic: topic.offsets(),
    "delete": lambda topic: topic.delete_before(1, 1),
    "roll": lambda topic: topic.roll(),
    "close": lambda topic: topic.store.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_named_and_the_next_flush_writes_them(
    topic: tiered.Topic, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(topic.opened.writer(1).pending.buffer)
    for error, seen in ((ValueError, tiered.TieredError), (MemoryError, tiered.Backpressure)):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "to_batch", lambda *_, error=error: _fail(error))
            with pytest.raises(seen, match=SAID.replace("to 3", "to [345]")):
                CALLS[name](topic)
    topic.flush()
    end = topic.offsets()[1].end
    assert end == (5 if name == "append" else 3)
    assert topic.scan().to_arrow().num_rows == end


def test_behind_a_server_too(topic: tiered.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(topic.opened.writer(1).pending.buffer)
    with topic.store.serve("127.0.0.1:0") as server, tiered.open(server.location) as client:
        there = client.topic("t")
        with monkeypatch.context() as patch:
            patch.setattr(kind, "to_batch", lambda *_: _fail(ValueError))
            with pytest.raises(tiered.TieredError, match=SAID):
                there.offsets()
        assert there.offsets()[1].end == 3


def _fail(error: type[Exception]) -> Any:
    raise error("by the test")
