"""The power goes while a segment is sealed: footer and trailer reach the disk in any order, or in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.writers import read_partition, writing
from tests.warm.segments import values_of, write_segment
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
