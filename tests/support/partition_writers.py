"""Partition writers for tests, opened as a store opens them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from tests.support.segments import values_of
from tiered.format.block import encode_body
from tiered.format.schema import RECORD_SCHEMA, TIMESTAMP, body_schema
from tiered.format.topic_meta import TopicMeta
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.pending_rows import FULL
from tiered.hot.recent_blocks import HotMemory
from tiered.hot.recovery import WriterOptions
from tiered.hot.row_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile

TOPIC = TopicMeta("orders", UUID(int=2), 1, (RECORD_SCHEMA,), None, None, 0)
TYPED = TopicMeta(
    "flights", UUID(int=2), 1, (pa.schema([("a", pa.int64()), ("b", pa.string())]),), None, None, 0
)


def options_of(**changes: Any) -> WriterOptions:
    values: dict[str, Any] = {
        "fs": OsFileSystem(), "clock": lambda: 1_000, "store_id": UUID(int=1), "memory": HotMemory(1 << 24),
        "block_bytes": 1 << 16, "rows_max": 1 << 16, "roll_bytes": 1 << 30, "roll_age_us": None, **changes,
    }  # fmt: skip
    return WriterOptions(**values)


def open_writer(directory: Path, meta: TopicMeta = TOPIC, **changes: Any) -> PartitionWriter:
    """A writer of partition 0 in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    return PartitionWriter.open(options_of(**changes), directory, meta, 0)


@contextmanager
def writing(directory: Path, meta: TopicMeta = TOPIC, **changes: Any) -> Iterator[PartitionWriter]:
    """A writer that is closed at the end."""
    writer = open_writer(directory, meta, **changes)
    try:
        yield writer
    finally:
        writer.close()


def syncs_of(writer: PartitionWriter) -> int:
    """How often the writer has synced, by the store's own count."""
    return sum(writer._options.counters.syncs.distribution.counts)


def append(writer: PartitionWriter, value: bytes, key: bytes | None = None) -> int:
    """Append one record as `Topic.append` does; return its offset."""
    while True:
        offset = writer.append_record(key, value, None, len(value), len(value) + RECORD_OVERHEAD_BYTES)
        if offset != FULL:
            return offset
        writer.make_room()


def append_row(writer: PartitionWriter, *values: object) -> int:
    """Append one row of a typed topic."""
    while True:
        offset = writer.append_row(values, 7, 16)
        if offset != FULL:
            return offset
        writer.make_room()


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    """A body batch of the record schema, with each value as its own key."""
    stamps = pa.array([len(value) for value in values], pa.int64()).cast(TIMESTAMP)
    column = pa.array(values, pa.binary())
    headers = pa.nulls(len(values), RECORD_SCHEMA.field("headers").type)
    return pa.RecordBatch.from_arrays([stamps, column, column, headers], schema=body_schema(RECORD_SCHEMA))


def rows_of(*values: bytes) -> RecordBuffer:
    """Records without keys, as an append of several takes them."""
    rows = RecordBuffer(0)
    for value in values:
        rows.add((None, value, None), len(value) + RECORD_OVERHEAD_BYTES)
        rows.timestamps_us.append(len(value))
    return rows


def append_batch(writer: PartitionWriter, *batches: list[bytes]) -> tuple[int, int]:
    """Append batches, a block each."""
    bodies = [encode_body(batch_of(values)) for values in batches]
    return writer.append_bodies(bodies, 4, keep=len(bodies) == 1)


def read_partition(directory: Path) -> dict[int, bytes]:
    """Every record on disk by offset; segments must lie end to end, all but the newest sealed."""
    found: dict[int, bytes] = {}
    names = list_segments(directory).segments
    end = names[0].base_offset if names else 0
    for name in names:
        segment = SegmentFile.open(directory / str(name), use_mmap=False)
        assert segment.header.base_offset == end
        assert segment.facts is not None or name == names[-1]
        values = values_of(segment)
        found.update(enumerate(values, start=end))
        end = segment.end_offset
    return found


def blocks_of(directory: Path) -> list[int]:
    """Record counts of the blocks on disk, in order."""
    segments = [
        SegmentFile.open(directory / str(name), use_mmap=False) for name in list_segments(directory).segments
    ]
    return [count for segment in segments for count in segment.index.record_counts]


def in_threads(*work: Callable[[], None]) -> None:
    """Run each in a thread; raise what any of them ran into."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
