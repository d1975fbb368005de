"""The rows of a batch come to a partition by several writes, over several segments: a reader has all of them there, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.stores import let_go, stepwise
from tests.transactions.batch_life import QUERY
from tiered.errors import DiskFull
from tiered.hot.held_partition import HeldPartition
from tiered.transactions import staging

ROWS = 40
"""Of the batch, in one partition: 2 kB each, in blocks of 4 KiB and segments of some blocks."""
BEFORE = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be a record of the log, and so a write."""
    monkeypatch.setattr(staging, "RECORD_BYTES", 4096)


def opened(root: Path, *, cold: str | None = None, sync: str = "interval") -> Any:
    offload: Any = {"after": "4h", "tail_interval": "1s"} if cold else "off"
    settings = stepwise(
        {"block_bytes": "4KiB", "sync": sync}, roll={"bytes": "16KiB", "age": "off"}, offload=offload
    )
    return tiered.open(root, cold=cold, settings=settings)


def filled(store: Any) -> Any:
    topic = store.create_topic("t")
    topic.append_many([b"%d" % number for number in range(BEFORE)])
    with store.transaction() as transaction:  # another partition, so that scans of several look at both
        transaction.append(store.create_topic("u"), b"u")
    store.flush()
    return topic


def stage(store: Any) -> Any:
    values = [b"%d" % number * 1000 for number in range(10, 10 + ROWS)]
    rows = pa.RecordBatch.from_pydict({"topic": ["t"] * ROWS + ["u"], "value": [*values, b"last"]})
    return store.staging.stage(None, QUERY, uuid4().hex, [rows])


def commit(store: Any) -> None:
    store.staging.commit(None, QUERY, 1, [stage(store)])


def counts(store: Any) -> dict[str, int]:
    """How many records of `t` each way of reading sees."""
    topic = store.topic("t")
    with topic.consumer(f"c{uuid4().hex}") as consumer:
        polled = sum(batch.num_rows for batch in consumer.poll(timeout=0))
        lag = consumer.lag()[0]
    with topic.consumer(f"c{uuid4().hex}", start="latest") as consumer:
        latest = consumer.position()[0]
    return {
        "scan": topic.scan().to_arrow().num_rows,
        "snapshot": store.snapshot(["t", "u"]).ends["t"][0],
        "offsets": topic.offsets()[0].end,
        "read": sum(1 for _ in topic.read()),
        "read of a few": read_of_a_few(topic),
        "poll": polled,
        "poll and lag": polled + lag,
        "latest": latest,
    }


def read_of_a_few(topic: Any) -> int:
    """How far reads of two records come."""
    end = 0
    try:
        while rows := list(topic.read(offset=end, limit=2)):
            end = rows[-1].offset + 1
    except tiered.OffsetOutOfRange:
        pass
    return end


def all_or_none(found: dict[str, int]) -> bool:
    return set(found.values()) <= {BEFORE, BEFORE + ROWS}


@pytest.fixture
def at_each_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Calls a function after each write of rows of a batch into a partition."""

    def begin(look: Callable[[], None]) -> None:
        append = HeldPartition.append

        def watched(held: HeldPartition, *arguments: Any, **named: Any) -> None:
            append(held, *arguments, **named)
            if held.meta.name in "tu":
                look()

        monkeypatch.setattr(HeldPartition, "append", watched)

    return begin


@pytest.mark.parametrize("sync", ["interval", "always", "never"])
def test_the_process_that_commits_sees_all_rows_or_none(tmp_path: Path, sync: str) -> None:
    """Also before the rows are durable, while each roll has made those before it durable."""
    with opened(tmp_path / "data", sync=sync) as store:
        topic = filled(store)
        with topic.consumer("early") as early:
            early.poll(timeout=0)
            commit(store)
            rows = sum(batch.num_rows for batch in early.poll(timeout=0))
            assert rows in (0, ROWS)
            assert len(list((tmp_path / "data/topics/t/0").glob("*.log"))) > 3
            assert early.lag()[0] == (0 if rows or sync != "never" else ROWS)
            store.flush()
            rows += sum(batch.num_rows for batch in early.poll(timeout=0))
            assert rows == ROWS
        assert set(counts(store).values()) == {BEFORE + ROWS}


def test_another_process_sees_all_rows_or_none(
    tmp_path: Path, at_each_write: Callable[[Callable[[], None]], None]
) -> None:
    seen: list[dict[str, int]] = []

    def look() -> None:
        with tiered.open(tmp_path / "data", read_only=True) as reader:
            seen.append(counts(reader))

    with opened(tmp_path / "data") as store:
        filled(store)
        at_each_write(look)
        commit(store)
        assert len(seen) > 10
        store.flush()
        look()
    assert [found for found in seen if not all_or_none(found)] == []
    assert set(seen[0].values()) == {BEFORE}
    assert set(seen[-1].values()) == {BEFORE + ROWS}


@pytest.mark.extended
@pytest.mark.parametrize("writes", [1, 5, 9])
def test_a_batch_that_waits_for_room_is_seen_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """In this process, in others and in the bucket; once there is room, everywhere."""
    bucket = (tmp_path / "bucket").as_uri()
    append, left = HeldPartition.append, [writes]

    def full(held: HeldPartition, *arguments: Any, **named: Any) -> None:
        if held.meta.name == "t":
            left[0] -= 1
            if left[0] < 0:
                raise DiskFull("no room (injected)")
        append(held, *arguments, **named)

    def looks() -> list[dict[str, int]]:
        store.tierer.tail_pass()
        with tiered.open(tmp_path / "data", read_only=True) as beside, tiered.open(bucket) as above:
            return [counts(store), counts(beside), counts(above)]

    with opened(tmp_path / "data", cold=bucket) as store:
        filled(store)
        store.tierer.tail_pass()
        monkeypatch.setattr(HeldPartition, "append", full)
        with pytest.raises(tiered.PartitionPoisoned, match="the transaction is committed"):
            commit(store)
        assert [set(found.values()) for found in looks()] == [{BEFORE}] * 3
        monkeypatch.undo()
        store.flush()
        assert [set(found.values()) for found in looks()] == [{BEFORE + ROWS}] * 3


@pytest.mark.parametrize("writes", [1, 5, 9])
def test_a_batch_of_a_killed_writer_is_seen_once_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    append, left = HeldPartition.append, [writes]

    def fails(held: HeldPartition, *arguments: Any, **named: Any) -> None:
        if held.meta.name == "t":
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "Input/output error (injected)")
        append(held, *arguments, **named)

    store = opened(tmp_path / "data")
    filled(store)
    monkeypatch.setattr(HeldPartition, "append", fails)
    with pytest.raises(tiered.PartitionPoisoned, match="the transaction is committed"):
        commit(store)
    let_go(store)
    monkeypatch.undo()
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        assert set(counts(reader).values()) == {BEFORE}
        with opened(tmp_path / "data") as store:
            assert set(counts(store).values()) == {BEFORE + ROWS}
        assert set(counts(reader).values()) == {BEFORE + ROWS}


def test_a_power_cut_that_keeps_the_first_blocks_shows_none_of_them(tmp_path: Path) -> None:
    """The rows of a transaction are one write, of which a power cut may keep a part, until the store is opened for writing."""
    store = opened(tmp_path / "data")
    filled(store)
    values = [b"%d" % number * 1000 for number in range(10, 10 + ROWS)]
    with store.transaction() as transaction:
        transaction.append_many("t", values)
    segment = store.topic("t").opened.writer(0).active.segment
    kept = segment.index.positions[-3]
    path = segment.path
    store.abandon()
    with path.open("r+b") as file:
        file.truncate(kept)
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        assert set(counts(reader).values()) == {BEFORE}
        with opened(tmp_path / "data") as store:
            assert set(counts(store).values()) == {BEFORE + ROWS}
        assert set(counts(reader).values()) == {BEFORE + ROWS}
