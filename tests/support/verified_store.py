"""A small store with a file of every kind, what is in it, and the parts of each file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, evict_all, open_store, tier
from tiered.errors import TieredError
from tiered.format import manifest_changes
from tiered.format.block import _ENTRY, HEADER_BYTES, padding
from tiered.verify.report import VerifyReport
from tiered.warm.bucket_binding import BucketBinding, write_binding
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import write_fence, write_marks
from tiered.warm.segment_reader import SegmentFile

PARTITIONS = 2
PER_SEGMENT = 12
EVICTED, IN_BOTH, LOCAL = 4, 2, 2
START = 5
"""Where partition 0 begins; partition 1 begins at 0."""

Truth = dict[int, list[bytes]]


@dataclass(frozen=True)
class Place:
    """Where one store lies; `truth` is every value by partition, from offset 0 on."""

    root: Path
    truth: Truth

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    def open(self) -> tiered.Store:
        return tiered.open(self.data, read_only=True)

    def verify(self, deep: bool = True) -> VerifyReport:
        with self.open() as store:
            return store.verify(deep=deep)

    def partition(self, number: int = 0) -> Path:
        return self.data / "topics" / "orders" / str(number)

    def cold(self, number: int = 0) -> Path:
        return next(self.bucket.glob(f"orders/*/{number}"))

    def segments(self, number: int = 0) -> list[Path]:
        """Segment files: `IN_BOTH` of them also in the bucket, then `LOCAL`, then the active one."""
        return sorted(self.partition(number).glob("*.log"))

    def objects(self, number: int = 0) -> list[Path]:
        return sorted((self.cold(number) / "data").glob("*.parquet"))

    def copy(self, target: Path) -> Place:
        """Return a copy; the bucket's URL in it is that of the copy."""
        shutil.copytree(self.root, target)
        twin = Place(target, self.truth)
        write_binding(OsFileSystem(), twin.data, BucketBinding(f"file://{twin.bucket}", claimed=True))
        return twin


def build(root: Path) -> Place:
    """Make a store of two partitions: evicted segments, some in both tiers, some local, an active one; manifest pages."""
    clock = Clock()
    truth: Truth = {number: [] for number in range(PARTITIONS)}
    store = open_store(root / "data", f"file://{root / 'bucket'}", clock)
    topic = store.create_topic("orders", partitions=PARTITIONS)
    with patch.object(manifest_changes, "INLINE_ENTRIES_MAX", 1):
        for number in range(EVICTED + IN_BOTH + LOCAL):
            _fill(topic, truth)
            if number == EVICTED + IN_BOTH:
                # A clean close leaves a mark, here in the middle of a segment that is sealed later.
                store.close()
                store = open_store(root / "data", None, clock)
                topic = store.topic("orders")
            _fill(topic, truth)
            topic.roll()
            if number + 1 == EVICTED:
                evict_all(store, clock)
                topic.delete_before(START)
            if number + 1 == EVICTED + IN_BOTH:
                tier(store, clock, OFFLOAD_US)
    _fill(topic, truth)
    _fill(topic, truth)
    store.close()
    place = Place(root, truth)
    fs = OsFileSystem()
    write_fence(fs, place.partition(1), "for the tests")
    write_marks(fs, place.partition(0), {"some/key": 1.0})
    return place


def _fill(topic: tiered.Topic, truth: Truth) -> None:
    """Append one block to each partition: half a segment."""
    for number, values in truth.items():
        fresh = [b"%d-%d" % (number, len(values) + i) for i in range(PER_SEGMENT // 2)]
        for value in fresh:
            topic.append(value, key=b"key", partition=number)
        values += fresh
    topic.flush()


def ranges() -> Iterator[tuple[int, int]]:
    """Offsets of each segment, those before the start left out."""
    for base in range(0, PER_SEGMENT * (EVICTED + IN_BOTH + LOCAL + 1), PER_SEGMENT):
        yield max(base, START), base + PER_SEGMENT


def read(place: Place) -> dict[tuple[int, int, int], list[bytes] | TieredError]:
    """Read the range of every segment; where it cannot be read, the error."""
    found: dict[tuple[int, int, int], list[bytes] | TieredError] = {}
    with place.open() as store:
        topic = store.topic("orders")
        for partition in range(PARTITIONS):
            for start, end in ranges():
                try:
                    scan = topic.scan(partitions=partition, start_offset=start, end_offset=end)
                    found[partition, start, end] = scan.to_arrow().column("value").to_pylist()
                except TieredError as error:
                    found[partition, start, end] = error
    return found


def segment_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Every part of a segment file: name to ``[start, end)``."""
    segment = SegmentFile.open(path, use_mmap=False)
    data = path.read_bytes()
    header = segment.header
    parts = {"header": (0, 128), "schema": (128, header.length)}
    end = header.length
    for number, block in enumerate(segment.blocks(header.base_offset, segment.end_offset)):
        start = block.position
        if end < start:
            parts[f"mark before block {number}"] = (end, start)
        parts[f"block {number} header"] = (start, start + HEADER_BYTES)
        count = block.header.chunk_count
        first = start + HEADER_BYTES
        used = first + count * _ENTRY.size
        parts[f"block {number} directory"] = (first, used)
        if padding(used - start):
            parts[f"block {number} directory padding"] = (used, used + padding(used - start))
        for chunk, entry in enumerate(_ENTRY.iter_unpack(data[first:used])):
            at, size = start + entry[0], entry[1]
            parts[f"block {number} chunk {chunk}"] = (at, at + size)
            if padding(size):
                parts[f"block {number} chunk {chunk} padding"] = (at + size, at + size + padding(size))
        end = start + block.header.length
    if segment.facts is None:
        if end < len(data):
            parts["mark"] = (end, len(data))
        return parts
    parts["footer"] = (end, end + 16)
    index_end = end + 16 + 48 * len(segment.index)
    parts["index"] = (end + 16, index_end)
    parts["facts"] = (index_end, len(data) - 32)
    parts["trailer"] = (len(data) - 32, len(data))
    return parts


def object_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Every part of a Parquet object: name to ``[start, end)``."""
    size = path.stat().st_size
    metadata = pq.read_metadata(path)
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    parts = {"magic": (0, 4)}
    group = metadata.row_group(0)
    end = 4
    for index in range(group.num_columns):
        chunk = group.column(index)
        start = min(x for x in (chunk.dictionary_page_offset, chunk.data_page_offset) if x is not None)
        end = start + chunk.total_compressed_size
        parts[f"{chunk.path_in_schema} page header"] = (start, start + 8)
        parts[f"{chunk.path_in_schema} pages"] = (start + 8, end)
    parts["page index"] = (end, size - 8 - footer)
    parts["metadata"] = (size - 8 - footer, size - 8)
    parts["length and magic"] = (size - 8, size)
    return parts


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A sound store; tests that damage it put everything back."""
    return build(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def place(sound: Place, tmp_path: Path) -> Place:
    """A copy of it, to be damaged and repaired."""
    return sound.copy(tmp_path / "copy")
