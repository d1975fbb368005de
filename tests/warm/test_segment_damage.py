"""Sealed segment files: every flipped bit and every cut is found, and nothing else is ever read."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.support.segments import read, values_of, write_segment
from tiered.errors import CorruptionError
from tiered.format.codec import Codec
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.reencode import rewrite_segment
from tiered.warm.segment_reader import SegmentFile

VALUES = [b"one", b"two", b"three", b"four"]


@pytest.fixture(params=list(Codec), ids=lambda codec: codec.name)
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small sealed segment, with a later one: two blocks as written, or one re-encoded."""
    path = write_segment(tmp_path / "0", [VALUES[:2], VALUES[2:]], seal=True)
    write_segment(tmp_path / "0", [[b"later"]], seal=False, base_offset=104)
    if request.param is Codec.NONE:
        return path
    rewrite_segment(OsFileSystem(), path, request.param, 3)
    return path.with_name(path.name.replace("-0.", "-1."))


def positions(path: Path) -> tuple[set[int], int]:
    """Bytes of which every bit is tried (headers, directories, index, trailer), and the size."""
    segment = SegmentFile.open(path, use_mmap=False)
    size = path.stat().st_size
    index = segment.index
    every = set(range(128)) | set(range(size - 32, size))
    for start in index.positions:
        every |= set(range(start, start + 128 + 24))
    end = index.positions[-1] + index.lengths[-1]
    every |= set(range(end, end + 16 + 48 * len(index)))
    return every, size


@pytest.mark.extended
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found(sealed: Path, stride: int) -> None:
    """Every bit of what steers decoding, one bit of every byte of what is decoded; of each fifth byte, where slow is out.

    Without the magic of its trailer a file that was never re-encoded counts as never sealed; its records
    are whole, and a reader refuses it wherever a later segment exists.
    """
    every, size = positions(sealed)
    data = sealed.read_bytes()
    for place in range(0, size, stride):
        for bit in range(8) if place in every else [place % 8]:
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            sealed.write_bytes(spoilt)
            try:
                segment = SegmentFile.open(sealed, use_mmap=False)
                found = values_of(segment)
            except CorruptionError as error:
                damage = error
                assert damage.where == str(sealed)
                assert damage.position is not None
                assert 0 <= damage.position <= size
            else:
                assert place >= size - 4, f"bit {bit} of byte {place} was not noticed"
                assert (segment.header.generation, segment.facts, found) == (0, None, VALUES)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_cut_is_found(sealed: Path, stride: int) -> None:
    """No shorter file is a sealed one, and none yields anything but a beginning of the records."""
    data = sealed.read_bytes()
    for length in range(0, len(data), stride):
        sealed.write_bytes(data[:length])
        try:
            segment = SegmentFile.open(sealed, use_mmap=False)
            found = values_of(segment)
        except CorruptionError as error:
            damage = error
            assert damage.where == str(sealed)
        else:
            assert (segment.header.generation, segment.facts) == (0, None), f"cut at {length}, yet sealed"
            assert found == VALUES[: len(found)]


def test_bytes_after_the_trailer_are_no_part_of_a_segment(sealed: Path) -> None:
    """A file that grew is not taken for the sealed one either."""
    with sealed.open("ab") as file:
        file.write(bytes(64))
    if "-1." in sealed.name:
        with pytest.raises(CorruptionError, match="no footer"):
            SegmentFile.open(sealed, use_mmap=False)
    else:
        segment = SegmentFile.open(sealed, use_mmap=False)
        assert (segment.facts, values_of(segment)) == (None, VALUES)


def test_blocks_of_another_file_are_refused(tmp_path: Path) -> None:
    """Every block bears its segment's id, so that blocks in the wrong place are not read as data."""
    mine = write_segment(tmp_path / "0", [VALUES[:2], VALUES[2:]], seal=True)
    other = write_segment(tmp_path / "1", [VALUES[:2], VALUES[2:]], seal=True, segment_id=UUID(int=9))
    start, end = SegmentFile.open(mine).index.positions[0], SegmentFile.open(mine).index.positions[1]
    spoilt = bytearray(mine.read_bytes())
    spoilt[start:end] = other.read_bytes()[start:end]
    mine.write_bytes(spoilt)
    with pytest.raises(CorruptionError, match="not the one in the index"):
        read(mine)


def test_blocks_in_another_order_are_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", [[b"aa"], [b"bb"]], seal=True)
    segment = SegmentFile.open(path)
    (first, second), length = segment.index.positions, segment.index.lengths[0]
    data = bytearray(path.read_bytes())
    data[first : first + length], data[second : second + length] = (
        data[second : second + length],
        data[first : first + length],
    )
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="not the one in the index"):
        read(path)


def test_a_footer_of_another_segment_is_refused(tmp_path: Path) -> None:
    mine = write_segment(tmp_path / "0", [VALUES], seal=True)
    other = write_segment(tmp_path / "1", [VALUES], seal=True, segment_id=UUID(int=9))
    position = SegmentFile.open(mine).index.positions[0] + SegmentFile.open(mine).index.lengths[0]
    mine.write_bytes(mine.read_bytes()[:position] + other.read_bytes()[position:])
    with pytest.raises(CorruptionError, match="footer of another segment"):
        SegmentFile.open(mine)


@pytest.mark.parametrize(
    "content", [b"", b"T", b"PAR1" * 100, bytes(4096)], ids=["empty", "1 byte", "Parquet", "zeros"]
)
def test_files_that_are_no_segments_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}-0.log"
    path.write_bytes(content)
    for use_mmap in (True, False):
        with pytest.raises(CorruptionError, match=str(path)):
            SegmentFile.open(path, use_mmap=use_mmap)


def test_an_open_segment_survives_its_deletion(tmp_path: Path) -> None:
    """A reader goes on with what it has opened, mapped or not."""
    for use_mmap in (True, False):
        path = write_segment(tmp_path / "0", [VALUES], seal=True)
        segment = SegmentFile.open(path, use_mmap=use_mmap)
        path.unlink()
        assert values_of(segment) == VALUES
