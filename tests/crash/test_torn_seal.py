"""The power goes while a segment is sealed: footer and trailer reach the disk in any order, or in part."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import LAST
from tests.support.partition_writers import read_partition, writing
from tests.support.recorder import Recorder
from tests.support.segments import values_of, write_segment
from tests.support.stores import stepwise, values
from tiered.engine.host import Host
from tiered.errors import CorruptionError
from tiered.warm.segment_reader import SegmentFile

VALUES = [b"one", b"two", b"three"]


def torn_seals(path: Path) -> list[bytes]:
    """The sealed file with each 16 bytes of its footer and trailer, and each part in front of the trailer, lost."""
    data = path.read_bytes()
    segment = SegmentFile.open(path, use_mmap=False)
    start = segment.index.positions[-1] + segment.index.lengths[-1]
    pieces = [(at, min(at + 16, len(data))) for at in range(start, len(data), 16)]
    pieces += [(start, at) for at in range(start + 16, len(data), 16)]
    return [data[:low] + bytes(high - low) + data[high:] for low, high in pieces]


def test_the_newest_segment_counts_as_unsealed(tmp_path: Path) -> None:
    """Its records are whole, for readers and for the next writer, which goes on in the same file."""
    path = write_segment(tmp_path / "made", [VALUES[:2], VALUES[2:]], seal=True, base_offset=0, schema_id=0)
    for number, torn in enumerate(torn_seals(path)):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / path.name).write_bytes(torn)
        segment = SegmentFile.open(directory / path.name, use_mmap=False)
        assert (segment.facts, values_of(segment)) == (None, VALUES)
        with writing(directory) as writer:
            assert writer.end_offset == 3
        assert list(read_partition(directory).values()) == VALUES


def test_a_segment_with_a_successor_is_damaged(tmp_path: Path) -> None:
    """The next file is made only after the footer was synced: what does not verify then is no torn seal."""
    path = write_segment(tmp_path / "0", [VALUES], seal=True)
    write_segment(tmp_path / "0", [[b"later"]], seal=False, base_offset=103)
    magic = path.read_bytes()[-4:]
    for torn in torn_seals(path):
        path.write_bytes(torn)
        if torn.endswith(magic):
            with pytest.raises(CorruptionError, match=path.name):
                SegmentFile.open(path, use_mmap=False)
        else:
            assert SegmentFile.open(path, use_mmap=False).facts is None


def test_a_footer_does_not_outlive_the_blocks_in_front_of_it(tmp_path: Path) -> None:
    """Blocks that nobody had synced yet, a roll by size, and of each file the last write alone survives."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder) as store:
        topic = store.create_topic("t")
        for number in range(4):
            topic.append_batch(pa.table({"value": [b"%d" % number * 900]}), sync=False)
    for index, _, image in recorder.crashes(lambda _: [LAST]):
        folder = tmp_path / str(index)
        folder.mkdir()
        with opened(Recorder(folder, image)) as store:
            if "t" in store.topics():
                found = values(store.topic("t"))
                assert found == [b"%d" % number * 900 for number in range(len(found))]


def opened(recorder: Recorder) -> tiered.Store:
    settings = stepwise(roll={"bytes": "2KiB", "age": "off"}, offload="off")
    host = Host(clock=Clock(), fs=recorder)
    return tiered.open(recorder.root / "data", settings=settings, host=host)
