"""A narrow range of time, given as options, reads the blocks that it touches, and of each object one footer."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tiered

pytest.importorskip("pyspark")
from tests.spark.stores import ORIGIN_MS
from tests.support.row_groups import small_row_groups
from tests.support.spark_read import direct
from tiered.cold.fetch.object_reader import SMALL_OBJECT_BYTES
from tiered.cold.object_store.file_store import FileStore
from tiered.reader.splits import ColdSource
from tiered.warm.segment_reader import SegmentFile

RECORDS, SEGMENT = 20_000, 5_000
LOW, HIGH = 9_900, 10_100  # milliseconds after the first record, which are offsets: 1 %, in two segments
RANGE = {"fromTimestamp": ORIGIN_MS + LOW, "toTimestamp": ORIGIN_MS + HIGH}
WANTED = list(range(LOW, HIGH))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four segments, here and in the bucket, a record a millisecond, blocks and row groups of a hundred or so."""
    place, draw = tmp_path_factory.mktemp("narrow"), random.Random(7)
    rules = {"offload": {"after": "0s"}, "local_retention": {"age": "365d"}, "compress": "off"}
    settings = tiered.Settings.model_validate(
        {"policies": {"default": rules}, "store": {"block_bytes": "32KiB"}}
    )
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch, 32_000)
        with tiered.open(place / "data", cold=f"file://{place}/bucket", settings=settings) as store:
            topic = store.create_topic("t")
            for at in range(0, RECORDS, SEGMENT):
                topic.append_many(
                    [
                        {"value": draw.randbytes(300), "timestamp": ORIGIN_MS + n}
                        for n in range(at, at + SEGMENT)
                    ]
                )
                topic.roll()
            assert not store.tier(now=datetime.now(UTC) + timedelta(days=1)).failed
    return place


def test_of_the_bucket(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of data objects are those of the row groups and footers; a request for each footer, one for what is beside."""
    bucket = f"file://{place}/bucket"
    with tiered.open(bucket) as store:
        splits = store.topic("t").scan().splits()
    entries = [split.source.entry for split in splits if isinstance(split.source, ColdSource)]
    assert len(entries) == RECORDS // SEGMENT
    assert min(entry.bytes for entry in entries) > SMALL_OBJECT_BYTES  # such a one is read in one piece
    touched = [
        (entry, group)
        for entry in entries
        for group in entry.row_groups
        if group.end_offset > LOW and group.base_offset < HIGH
    ]
    objects = {entry.name: entry for entry, _ in touched}
    assert len(objects) == 2
    assert len(touched) < 8 < len(entries[0].row_groups)
    read: list[int] = []
    get_ranges = FileStore.get_ranges

    def noted(self: Any, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        wanted = list(ranges)
        read.extend(length for _, length in wanted if key.endswith(".parquet"))
        return get_ranges(self, key, wanted)

    monkeypatch.setattr(FileStore, "get_ranges", noted)
    assert direct(bucket, topic="t", **RANGE)["offset"].to_pylist() == WANTED
    footers = sum(entry.bytes - entry.tail_position for entry in objects.values())
    assert 0 < sum(read) <= sum(group.length for _, group in touched) + footers
    assert len(read) <= 2 * len(objects)


def test_of_local_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks that hold none of the rows, no body is read."""
    decoded: list[tuple[int, int]] = []
    decode = SegmentFile.decode

    def noted(self: SegmentFile, block: Any, columns: Any = None) -> Any:
        decoded.append((block.header.base_offset, block.header.end_offset))
        return decode(self, block, columns)

    monkeypatch.setattr(SegmentFile, "decode", noted)
    assert direct(str(place / "data"), topic="t", **RANGE)["offset"].to_pylist() == WANTED
    assert 2 <= len(decoded) < 8
    assert all(end > LOW and base < HIGH for base, end in decoded)
