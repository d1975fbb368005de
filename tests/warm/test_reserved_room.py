"""The zeros that a writer keeps ahead of its blocks, and readers that go on from where they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.segments import append, header_of, read, values_of, write_segment
from tiered.errors import Backpressure, CorruptionError
from tiered.format.block import HEADER_BYTES
from tiered.format.segment import BlockIndex
from tiered.warm import file_map, segment_reader, segment_scan
from tiered.warm.filesystem import OsFileSystem, sync_data
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

LARGE = bytes(50_000)


def writer_with_room(directory: Path) -> SegmentWriter:
    """A writer whose file is longer than its blocks, also where the disk cannot allocate ahead."""
    directory.mkdir(exist_ok=True)
    writer = SegmentWriter.create(OsFileSystem(), directory, header_of())
    for value in (LARGE, LARGE, b"last"):
        append(writer, value)
    writer.sync()
    os.truncate(writer.path, max(writer.path.stat().st_size, writer.position + 30_000))
    return writer


def reopened(path: Path) -> SegmentWriter:
    """The next writer of a file, as after a crash."""
    segment = SegmentFile.open(path)
    assert segment.scan is not None
    return SegmentWriter.resume(OsFileSystem(), path, segment.header, segment.scan)


def test_room_is_neither_damage_nor_data(tmp_path: Path) -> None:
    """A reader beside the writer sees the blocks, their size, and nothing wrong."""
    writer = writer_with_room(tmp_path / "0")
    segment = SegmentFile.open(writer.path)
    assert segment.scan is not None
    assert segment.scan.damage is None
    assert segment.bytes == segment.scan.end_position == writer.position < segment.scan.file_bytes
    assert values_of(segment) == [LARGE, LARGE, b"last"]


@pytest.mark.parametrize("end", ["clean close", "seal", "crash"])
def test_room_is_given_back(tmp_path: Path, end: str) -> None:
    """By a clean close, by sealing, or by the writer after a crash."""
    writer = writer_with_room(tmp_path / "0")
    if end == "clean close":
        writer.mark_clean()
    elif end == "seal":
        writer.seal(start_offset=0)
    writer.close()
    if end == "crash":
        writer = reopened(writer.path)
    segment = SegmentFile.open(writer.path)
    if end == "seal":
        assert segment.facts is not None
        assert segment.bytes < writer.position + 5_000
    else:
        assert writer.path.stat().st_size == writer.position
    assert values_of(segment) == [LARGE, LARGE, b"last"]


def test_a_reader_survives_room_that_goes_while_it_reads(tmp_path: Path) -> None:
    """It maps blocks alone: touching a mapped page that is gone would kill its process."""
    writer = writer_with_room(tmp_path / "0")
    segment = SegmentFile.open(writer.path, use_mmap=True)
    writer.mark_clean()
    assert values_of(segment) == [LARGE, LARGE, b"last"]
    assert segment._mapped.size == segment.bytes


def test_the_writers_own_view_maps_blocks_alone(tmp_path: Path) -> None:
    """Its file is mapped when it is first read, while a roll may give the room back at that very moment."""
    writer = writer_with_room(tmp_path / "0")
    view = SegmentFile.of_writer(writer.path, writer.header, writer.index.frozen(), writer.end_offset)
    assert values_of(view) == [LARGE, LARGE, b"last"]
    assert view._mapped.size == writer.position
    assert SegmentFile.of_writer(writer.path, writer.header, BlockIndex(), writer.end_offset).bytes == 0


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_file_that_is_not_what_its_writer_wrote_is_not_read(tmp_path: Path, use_mmap: bool) -> None:
    """It is looked at when it is first read: cut by somebody, another segment, or gone."""
    writer = writer_with_room(tmp_path / "0")

    def look() -> list[bytes]:
        return values_of(
            SegmentFile.of_writer(
                writer.path, writer.header, writer.index.frozen(), writer.end_offset, use_mmap=use_mmap
            )
        )

    assert look() == [LARGE, LARGE, b"last"]
    os.truncate(writer.path, writer.position - 1)
    with pytest.raises(CorruptionError, match=r"shorter|past the end"):
        look()
    other = write_segment(tmp_path / "1", [[b"another"]], seal=False, segment_id=UUID(int=9))
    other.replace(writer.path)
    with pytest.raises(FileNotFoundError, match="another segment"):
        look()
    writer.path.unlink()
    with pytest.raises(FileNotFoundError):
        look()


def test_zeros_in_front_of_a_synced_block_are_corruption(tmp_path: Path) -> None:
    """Room ends the log only where nothing follows it."""
    writer = writer_with_room(tmp_path / "0")
    place = writer.index.positions[1]
    append(writer, b"proves that the blocks before it were durable")
    writer.sync()
    with writer.path.open("r+b") as file:
        file.seek(place)
        file.write(bytes(writer.index.lengths[1]))
    with pytest.raises(CorruptionError) as caught:
        SegmentFile.open(writer.path)
    assert caught.value.position == place


def test_what_is_written_while_a_reader_looks_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that was not there yet is looked at again, once a later one says that it was synced."""
    writer = writer_with_room(tmp_path / "0")
    end, read_bytes = writer.position, segment_scan.FileWindow._read
    monkeypatch.setattr(segment_scan, "_WINDOW_BYTES", HEADER_BYTES)

    def read_slowly(window: segment_scan.FileWindow, position: int, stop: int) -> bytes:
        found = read_bytes(window, position, stop)
        if position == end == writer.position:
            append(writer, b"synced meanwhile")
            writer.sync()
            append(writer, b"says so")
        return found

    monkeypatch.setattr(segment_scan.FileWindow, "_read", read_slowly)
    assert values_of(SegmentFile.open(writer.path))[3:] == [b"synced meanwhile", b"says so"]


def test_a_block_written_while_one_read_passes_it_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read has the place as it was, and behind it a block that says that the place was synced: read it anew."""
    writer = writer_with_room(tmp_path / "0")
    end, read_bytes = writer.position, segment_scan.FileWindow._read

    def read_torn(window: segment_scan.FileWindow, position: int, stop: int) -> bytes:
        before = read_bytes(window, position, stop)
        if writer.position != end:
            return before
        append(writer, b"synced meanwhile")
        passed = writer.position
        writer.sync()
        append(writer, b"says so")
        after = read_bytes(window, position, stop)
        return before[: passed - position] + after[passed - position :]

    monkeypatch.setattr(segment_scan.FileWindow, "_read", read_torn)
    assert values_of(SegmentFile.open(writer.path))[3:] == [b"synced meanwhile", b"says so"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["append", "sync", "look", "crash", "torn", "replace"]), max_size=25))
def test_going_on_from_an_earlier_look_finds_what_a_fresh_one_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Whatever happened to the file in between: more blocks, a crash, a torn write, another file of the same name."""
    directory = tmp_path_factory.mktemp("partition")
    writer = SegmentWriter.create(OsFileSystem(), directory, header_of())
    looks = [SegmentFile.open(writer.path)]
    for number, step in enumerate(steps):
        if step == "append":
            append(writer, b"%d" % number, LARGE)
        elif step == "sync":
            writer.sync()
        elif step == "crash":
            writer.close()
            writer = reopened(writer.path)
        elif step == "torn":
            os.pwrite(writer._fd, os.urandom(500), writer.position)
            writer.close()
            writer = reopened(writer.path)
        elif step == "replace":
            writer.close()
            with writer.path.open("r+b") as file:
                file.truncate(0)
                file.write(_another(directory))
            writer = reopened(writer.path)
        looks.append(SegmentFile.open(writer.path, earlier=looks[-1]))
        fresh = SegmentFile.open(writer.path)
        assert values_of(looks[-1]) == values_of(fresh) == read(writer.path)
        assert looks[-1].end_offset == fresh.end_offset == writer.end_offset


def _another(directory: Path) -> bytes:
    other = directory / "other"
    other.mkdir(exist_ok=True)
    writer = SegmentWriter.create(OsFileSystem(), other, header_of())
    append(writer, b"of another segment", LARGE)
    writer.sync()
    writer.close()
    data = writer.path.read_bytes()
    writer.path.unlink()
    return data


def test_nothing_is_shown_that_was_written_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer goes on meanwhile; a sync in front of the scan would not cover what the scan then finds."""
    writer = writer_with_room(tmp_path / "0")

    def sync(fd: int) -> None:
        sync_data(fd)
        append(writer, b"after the sync")

    monkeypatch.setattr(segment_reader, "sync_data", sync)
    assert values_of(SegmentFile.open(writer.path)) == [LARGE, LARGE, b"last"]


def test_no_map_left_is_backpressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system limits the maps of a process."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    writer = writer_with_room(tmp_path / "0")
    view = SegmentFile.of_writer(writer.path, writer.header, writer.index.frozen(), writer.end_offset)
    monkeypatch.setattr(file_map, "_Mapping", refuse)
    for look in (lambda: SegmentFile.open(writer.path), lambda: values_of(view)):
        with pytest.raises(Backpressure, match="max_map_count"):
            look()


def test_an_open_segment_holds_no_descriptor(tmp_path: Path) -> None:
    """A scan opens all segments of its range; the usual limit is 1,024 files."""
    writer = writer_with_room(tmp_path / "0")
    before = len(list(Path("/dev/fd").iterdir()))
    segments = [SegmentFile.open(writer.path, use_mmap=True) for _ in range(50)]
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert {tuple(values_of(segment)) for segment in segments} == {(LARGE, LARGE, b"last")}


def test_a_map_lives_as_long_as_what_points_into_it(tmp_path: Path) -> None:
    """Arrays outlive the segment that they were read from, and its file; nothing else does."""
    writer = writer_with_room(tmp_path / "0")
    segment = SegmentFile.open(writer.path, use_mmap=True)
    values = next(segment.decode(block)[2] for block in segment.blocks(0, 1 << 60))
    writer.path.unlink()
    del segment
    assert values.to_pylist() == [LARGE]
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(writer.path) in maps.read_text()
        del values
        assert str(writer.path) not in maps.read_text()
