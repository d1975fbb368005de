"""Writes at the end of a segment: nobody sees a part of one, and of one that failed nobody ever sees anything."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.disks import BrokenDisk, FailingDisk
from tests.support.segments import append, body_of, header_of, read, values_of, write_segment
from tiered.errors import DiskFull
from tiered.format.block import HEADER_BYTES
from tiered.warm import file_end, segment_reader, segment_scan
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

PIECE = 160  # so that headers of 128 bytes come in two
BEFORE = [b"before"]
SIZES = {"one block": [700], "three blocks": [200, 1, 300]}


class CreepingDisk(OsFileSystem):
    """Writes a few bytes at a time.

    Attributes
    ----------
    between : callable or None
        Called before the first bytes of each write, after the last, and in between; what it raises is the failure.
    reserves
        Whether room can be had ahead, as on Linux; else the write itself finds out what there is.
    """

    def __init__(self, *, reserves: bool = True) -> None:
        self.between: Callable[[], None] | None = None
        self.reserves = reserves

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        data = b"".join(bytes(memoryview(item)) for item in buffers)
        if self.between is None:
            return super().write(fd, position, [data])
        for at in range(0, len(data), PIECE):
            self.between()
            os.pwrite(fd, data[at : at + PIECE], position + at)
        self.between()
        return len(data)

    def reserve(self, fd: int, position: int, length: int) -> None:
        if self.reserves:
            os.ftruncate(fd, max(os.fstat(fd).st_size, position + length))


class Onlooker:
    """A reader of another process: it looks afresh, and goes on from its last look, and remembers what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[list[bytes]] = []
        self._last = SegmentFile.open(path)

    def look(self) -> None:
        self._last = SegmentFile.open(self.path, earlier=self._last)
        fresh = SegmentFile.open(self.path)
        assert values_of(self._last) == values_of(fresh)
        self.seen.append(values_of(fresh))


@pytest.fixture(params=[True, False], ids=["room ahead", "no room ahead"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CreepingDisk:
    monkeypatch.setattr(file_end, "_AHEAD_BYTES_MIN", 1024)
    monkeypatch.setattr(segment_reader, "sync_data", lambda fd: None)  # what is seen, not what is durable
    return CreepingDisk(reserves=request.param)


def began(disk: OsFileSystem, directory: Path) -> SegmentWriter:
    writer = SegmentWriter.create(disk, directory, header_of())
    append(writer, *BEFORE)
    writer.sync()
    return writer


def append_blocks(writer: SegmentWriter, sizes: Sequence[int], mark: bytes) -> list[bytes]:
    """Append blocks of one record each, by one call; return the records."""
    values = [mark * size for size in sizes]
    writer.append([body_of([value]) for value in values], 3_000)
    return values


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_who_looks_on_sees_all_of_a_write_or_nothing(
    disk: CreepingDisk, sizes: list[int], tmp_path: Path
) -> None:
    """Exhaustive over the places in the write at which somebody looks."""
    writer = began(disk, tmp_path)
    onlooker = Onlooker(writer.path)
    disk.between = onlooker.look
    values = append_blocks(writer, sizes, b"x")
    shown = onlooker.seen.index([*BEFORE, *values])
    assert len(onlooker.seen) > len(sizes) + 1
    assert all(seen == BEFORE for seen in onlooker.seen[:shown])
    assert all(seen == [*BEFORE, *values] for seen in onlooker.seen[shown:])


ERRORS = {
    "no room": DiskFull("no room (injected)"),
    "a device error": OSError(errno.EIO, "device (injected)"),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.extended
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_of_a_write_that_fails_nobody_sees_anything(
    disk: CreepingDisk, sizes: list[int], error: BaseException, tmp_path: Path
) -> None:
    """Exhaustive over the places at which it fails: the file is as before, or, where all was there, it stays."""
    point, fails = 0, True
    while fails:
        directory = tmp_path / str(point)
        directory.mkdir()
        writer = began(disk, directory)
        before, onlooker, left = writer.path.read_bytes()[: writer.position], Onlooker(writer.path), point

        def between(onlooker: Onlooker = onlooker) -> None:
            nonlocal left
            onlooker.look()
            left -= 1
            if left == -1:
                raise error

        disk.between = between
        refused = False
        try:
            append_blocks(writer, sizes, b"x")
        except type(error):
            refused = True
        disk.between, fails = None, left < 0
        kept = [b"x" * size for size in sizes] if writer.end_offset > 101 else []
        if kept:
            assert not (refused and isinstance(error, DiskFull)), "refused, and there all the same"
        else:
            assert refused
            assert writer.path.read_bytes() == before
            assert all(seen == BEFORE for seen in onlooker.seen)
            kept = append_blocks(writer, sizes[:1], b"y")
        onlooker.look()
        append(writer, b"after")
        onlooker.look()
        assert onlooker.seen[-2:] == [[*BEFORE, *kept], [*BEFORE, *kept, b"after"]]
        assert all(seen in (BEFORE, *onlooker.seen[-2:]) for seen in onlooker.seen)
        writer.seal(0)
        writer.close()
        assert read(writer.path) == onlooker.seen[-1]
        point += 1
    assert point > len(sizes) + 1


def test_a_block_that_lacks_but_zeros_is_there(disk: CreepingDisk, tmp_path: Path) -> None:
    """Its last bytes found no room, and are zeros, as the room ahead is: readers have it, so it stays."""
    writer = began(disk, tmp_path)
    onlooker = Onlooker(writer.path)

    def fail_late() -> None:
        onlooker.look()
        if onlooker.seen[-1] != BEFORE:
            raise DiskFull("no room (injected)")

    disk.between = fail_late
    append(writer, bytes(900))
    disk.between = None
    assert writer.end_offset == 102
    assert read(writer.path) == [*BEFORE, bytes(900)]


def test_blocks_of_a_failed_write_that_come_back_are_no_records(tmp_path: Path) -> None:
    """A power cut may undo the cut and keep what was written later: one block, as long as the first one was."""
    disk = CreepingDisk(reserves=False)
    writer = began(disk, tmp_path)
    position, length, lost = writer.position, body_of([b"x" * 10]).length, b""

    def fail_late() -> None:
        nonlocal lost
        behind = writer.path.read_bytes()[position + length :]
        if len(behind) == body_of([b"x" * 20]).length:
            lost = behind
            raise DiskFull("no room (injected)")

    disk.between = fail_late
    with pytest.raises(DiskFull):
        append_blocks(writer, [10, 20], b"x")
    disk.between = None
    append_blocks(writer, [10], b"y")
    writer.close()
    assert writer.path.stat().st_size == position + length
    with writer.path.open("ab") as file:
        file.write(lost)
    assert read(writer.path) == [*BEFORE, b"y" * 10]


def test_a_power_cut_that_keeps_all_but_the_first_header_leaves_a_torn_tail(tmp_path: Path) -> None:
    """No damage, whatever the later blocks say; and the next writer's blocks do not bring them back."""
    path = write_segment(tmp_path / "0", [BEFORE, [b"x" * 10], [b"x" * 20], [b"x" * 30]], seal=False)
    first = SegmentFile.open(path).index.positions[1]
    cut = write_segment(tmp_path / "1", [BEFORE], seal=False)
    writer = SegmentWriter.resume(OsFileSystem(), cut, *_scanned(cut))
    append_blocks(writer, [10, 20, 30], b"x")
    writer.close()
    data = bytearray(cut.read_bytes())
    data[first : first + HEADER_BYTES] = bytes(HEADER_BYTES)
    cut.write_bytes(data)
    assert read(cut) == BEFORE
    writer = SegmentWriter.resume(OsFileSystem(), cut, *_scanned(cut))
    assert cut.stat().st_size == first
    append_blocks(writer, [10], b"y")
    assert read(cut) == [*BEFORE, b"y" * 10]


def _scanned(path: Path) -> tuple[Any, Any]:
    segment = SegmentFile.open(path)
    return segment.header, segment.scan


@pytest.mark.parametrize("operation", ["append", "seal"])
def test_a_cut_that_fails_is_the_end(operation: str, tmp_path: Path) -> None:
    """What it left behind would be taken for what comes later; nothing more is written to the file."""
    disk = BrokenDisk()
    writer = began(disk, tmp_path)
    disk.broken = {"write", "truncate"}
    with pytest.raises(OSError, match="injected"):
        append_blocks(writer, [10, 20], b"x") if operation == "append" else writer.seal(0)
    disk.broken = set()
    left = writer.path.read_bytes()
    for call in (lambda: append(writer, b"later"), lambda: writer.seal(0), writer.mark_clean):
        with pytest.raises(OSError, match="could not be cut off"):
            call()
    writer.close()
    assert writer.path.read_bytes() == left
    assert read(writer.path) == BEFORE


def test_who_polls_does_not_read_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the header is zeros, a second look reads no more than that; of an empty segment, too."""
    for blocks in ([], [BEFORE]):
        path = write_segment(tmp_path / str(len(blocks)), blocks, seal=False)
        earlier = SegmentFile.open(path)
        with path.open("ab") as file:
            file.write(bytes(HEADER_BYTES) + b"TBLK" * 1000)
        with monkeypatch.context() as patched:
            patched.setattr(segment_scan.FileWindow, "_read", None)
            assert SegmentFile.open(path, earlier=earlier) is earlier
        assert values_of(SegmentFile.open(path)) == [value for block in blocks for value in block]


class TightDisk(FailingDisk):
    """Has a limit to the length of a file, for room ahead as for writes."""

    limit = 1 << 40

    def reserve(self, fd: int, position: int, length: int) -> None:
        self._step("reserve", fd)
        if position + length > self.limit:
            os.ftruncate(fd, self.limit)  # as ext4 does: what there was is taken
            raise DiskFull("no room (injected)")
        os.ftruncate(fd, position + length)


def test_room_for_the_write_itself_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the room ahead does not fit, just the write's is asked for; where that does not, nothing is written."""
    monkeypatch.setattr(file_end, "_AHEAD_BYTES_MIN", 4096)
    disk = TightDisk()
    writer = began(disk, tmp_path)
    body = body_of([b"x" * 5000])
    disk.limit = writer.position + body.length
    writer.append([body], 1)
    assert (disk.calls.count("reserve"), writer.path.stat().st_size) == (2, disk.limit)
    disk.calls.clear()
    with pytest.raises(DiskFull):
        append(writer, b"y")
    assert (disk.calls, writer.path.stat().st_size) == (["reserve", "truncate"] * 2, writer.position)
    disk.limit += 1000
    append(writer, b"z")
    writer.close()
    assert read(writer.path) == [*BEFORE, b"x" * 5000, b"z"]


def test_the_first_bytes_of_a_file_have_the_room_that_they_were_promised(tmp_path: Path) -> None:
    """They have none else, and nothing is asked for twice."""
    disk = TightDisk()
    writer = began(disk, tmp_path)
    body = body_of([b"x" * 5000])
    disk.limit = writer.position + body.length
    for _ in range(2):
        writer.make_room(body.length)
    writer.append([body], 1)
    assert (disk.calls.count("reserve"), writer.path.stat().st_size) == (1, disk.limit)
    writer.close()
    assert read(writer.path) == [*BEFORE, b"x" * 5000]


def test_a_promise_that_cannot_be_kept_is_refused_and_takes_no_room(tmp_path: Path) -> None:
    disk = TightDisk()
    writer = began(disk, tmp_path)
    disk.limit = writer.position + 999
    with pytest.raises(DiskFull):
        writer.make_room(1000)
    assert writer.path.stat().st_size == writer.position


def test_nothing_is_promised_behind_the_rest_of_a_write_that_could_not_be_cut_off(tmp_path: Path) -> None:
    disk = BrokenDisk()
    writer = began(disk, tmp_path)
    disk.broken = {"write", "truncate"}
    with pytest.raises(OSError, match="injected"):
        append_blocks(writer, [10], b"x")
    disk.broken = set()
    with pytest.raises(OSError, match="could not be cut off"):
        writer.make_room(10)


def test_after_a_cut_room_is_asked_for_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut off is no longer the writer's; before the next write it finds out early whether there is room."""
    monkeypatch.setattr(file_end, "_AHEAD_BYTES_MIN", 1024)
    disk = BrokenDisk()
    writer = began(disk, tmp_path)
    append_blocks(writer, [2000], b"x")
    disk.broken = {"write"}
    with pytest.raises(OSError, match="injected"):
        append_blocks(writer, [10], b"x")
    disk.broken = set()

    def refuse(fd: int, position: int, length: int) -> None:
        raise DiskFull("no room (injected)")

    monkeypatch.setattr(disk, "reserve", refuse)
    writes = disk.calls.count("write")
    with pytest.raises(DiskFull):
        append_blocks(writer, [10], b"x")
    assert disk.calls.count("write") == writes


def test_a_sealed_segment_is_not_marked_and_an_empty_one_neither(tmp_path: Path) -> None:
    """A block behind the footer would hide the trailer; one in an empty segment would make it longer at each close."""
    for blocks in ([], [BEFORE]):
        directory = tmp_path / str(len(blocks))
        directory.mkdir()
        writer = SegmentWriter.create(OsFileSystem(), directory, header_of())
        for block in blocks:
            append(writer, *block)
            writer.seal(0)
        before = writer.path.read_bytes()
        writer.mark_clean()
        writer.close()
        assert writer.path.read_bytes() == before
