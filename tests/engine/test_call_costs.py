"""What a call costs does not grow with what else there is, and what is over is given back; calls are counted."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.stores import evict_all, local_segments, open_store, stepwise
from tiered.engine.writers import BackgroundFlush
from tiered.format import segment
from tiered.hot.recent_blocks import HotMemory, RecentBlock, RecentBlocks
from tiered.warm.catalog import Catalog


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Return the arguments of each call from now on."""
    calls: list[Any] = []
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("ask", [lambda topic: list(topic.read(0, 150, 1)), lambda topic: topic.offsets()])
def test_a_short_read_looks_at_no_block_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    with tiered.open(tmp_path / "data") as store:
        topic = store.create_topic("t")
        for _ in range(200):
            topic.append(b"v")
            topic.opened.writers[0].write_pending()
        store.flush()
        sizes: list[RecentBlock] = []
        monkeypatch.setattr(
            RecentBlock, "bytes", property(lambda block: sizes.append(block) or block.chunk.size)
        )
        ask(topic)
        monkeypatch.undo()
    assert len(sizes) <= 1


def test_passes_list_a_partition_as_often_whatever_they_have_to_do(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = []
    for segments in (3, 9):
        path = tmp_path / str(segments)
        with open_store(path / "data", f"file://{path}/bucket", clock) as store:
            topic = store.create_topic("t")
            for _ in range(segments):
                topic.append(b"v")
                topic.roll()
            with monkeypatch.context() as patch:
                calls = counted(patch, os, "listdir")
                evict_all(store, clock)
            assert len(local_segments(path / "data", "t")) == 1
            listings.append(sum("topics/t/0" in str(arguments[0]) for arguments in calls))
    assert listings[0] == listings[1] > 0


def test_a_new_topic_looks_at_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiered.open(tmp_path / "data") as store:
        for number in range(5):
            store.create_topic(f"t{number}")
        looks = counted(monkeypatch, Catalog, "_has_document")
        store.create_topic("more")
        assert len(looks) <= 1


def test_a_partition_that_leaves_memory_costs_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store closes thousands of partitions, one after the other."""
    memory = HotMemory(1 << 30)
    schema = pa.schema([("n", pa.int64())])
    owners = [RecentBlocks(memory) for _ in range(50)]
    for offset in range(3):
        for owner in owners:
            owner.add(RecentBlock(offset, offset + 1, pa.py_buffer(b"x" * 8), schema))
    looks: list[int] = []
    monkeypatch.setattr(RecentBlock, "bytes", property(lambda _: looks.append(1) or 8))
    owners[7].clear()
    assert (len(looks), memory.bytes) == (3, 49 * 3 * 8)


def test_a_batch_of_one_row_takes_the_room_of_one(tmp_path: Path) -> None:
    """A scan of thousands of partitions holds as many of them until they make a batch."""
    with tiered.open(tmp_path / "data") as store:
        topic = store.create_topic("t")
        topic.append(b"v")
        (batch,) = topic.scan().to_batches()
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
        assert sum(buffer.size for buffer in buffers) < 1024


def test_segments_of_one_topic_share_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To decode and check one of hundreds of columns takes longer than all else that opening a segment does."""
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(50)])
    with tiered.open(tmp_path / "data") as store:
        topic = store.create_topic("t", schema=schema)
        for i in range(5):
            topic.append({"c1": i})
            topic.roll()
        checks = counted(monkeypatch, segment, "check_body_schema")
        assert topic.scan(columns=["c1"]).to_arrow().num_rows == 5
        assert len(checks) == 1


def removed_and_open() -> set[tuple[int, int]]:
    """Device and inode of the files that have no name any more, and keep their room on the disk."""
    found = set()
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            status = os.fstat(int(path.name))
            if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return found


def test_an_evicted_segment_of_an_idle_partition_gives_its_room_back(tmp_path: Path, clock: Clock) -> None:
    """Its writer closes it without a commit, which an idle partition has none of."""
    others = removed_and_open()
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        topic = store.create_topic("t")
        topic.append(b"v", sync=True)
        topic.roll()
        evict_all(store, clock)
        BackgroundFlush(store.context, store.open_topics.writers).run()
        assert removed_and_open() <= others


@given(st.lists(st.integers(0, 40), max_size=30), st.booleans())
@example([40] * 30, False)
def test_a_table_of_small_chunks_makes_as_many_blocks_as_one_of_large_ones(
    sizes: list[int], stamped: bool
) -> None:
    """And its rows stay in their order, with their times."""
    with (
        tempfile.TemporaryDirectory() as name,
        tiered.open(name, settings=stepwise({"block_bytes": 4096})) as store,
    ):
        topic = store.create_topic("t")
        chunks = [pa.array([b"%04d" % (start + i) * 8 for i in range(size)], pa.binary())
                  for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)]  # fmt: skip
        values = pa.chunked_array(chunks, pa.binary())
        table = pa.table({"value": values})
        if stamped:
            stamps = pa.chunked_array([pa.array(range(len(chunk)), pa.timestamp("ms", "UTC")) for chunk in chunks],
                                      pa.timestamp("ms", "UTC"))  # fmt: skip
            table = table.append_column("timestamp", stamps)
        topic.append_batch(table)
        found = topic.scan().to_arrow()
        assert found["value"].to_pylist() == values.to_pylist()
        if stamped:
            assert found["timestamp"].cast(pa.timestamp("ms", "UTC")).to_pylist() == stamps.to_pylist()
        blocks = len(topic.opened.writer(0).active.segment.index)
        stored = found.drop_columns(["topic", "partition", "offset"]).nbytes
        assert blocks <= 1 + 2 * stored // 4096
