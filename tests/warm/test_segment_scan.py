"""The active segment after a crash: a torn tail is cut off by the writer alone; damage to synced bytes is corruption."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.support import fork_server
from tests.support.crafted_blocks import crafted
from tests.support.disks import BrokenDisk, FailingDisk, ForgetfulDisk, FullDisk, Killed, MortalDisk
from tests.support.interrupts import Interrupted
from tests.support.paths import ROOT
from tests.support.segments import APPENDING, BODY, append, body_of, header_of, read, values_of, write_segment
from tiered.errors import CorruptionError, DiskFull, UnsupportedFormat
from tiered.format.block import HEADER_BYTES, MARK, Numbers, encode_header
from tiered.warm.filesystem import FileSystem, OsFileSystem
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

FS = OsFileSystem()


def resume(path: Path, fs: FileSystem = FS) -> SegmentWriter:
    """What the next holder of the lock does."""
    segment = SegmentFile.open(path, use_mmap=False)
    assert segment.scan is not None
    return SegmentWriter.resume(fs, path, segment.header, segment.scan)


def block_bytes(offset: int, *values: bytes, epoch: int = 1, synced: int = 0, segment: int = 3) -> bytes:
    """A block as some writer left it."""
    body = body_of(values)
    header = encode_header(body, segment_id=UUID(int=segment).bytes, schema_id=0, base_offset=offset, append_us=1,
                           writer_epoch=epoch, synced_through=synced)  # fmt: skip
    return b"".join(bytes(memoryview(part)) for part in (header, *body.parts))


# -- torn tails ----------------------------------------------------------------------------------


def test_every_torn_tail_ends_the_log_at_the_last_whole_block(tmp_path: Path) -> None:
    """Exhaustive: wherever the last write stopped, the blocks before it are there and appends go on."""
    whole = write_segment(tmp_path / "0", [[b"a"], [b"b"]], seal=False)
    data, end = whole.read_bytes(), whole.stat().st_size
    tail = block_bytes(102, b"c", synced=end)
    for length in range(len(tail)):
        whole.write_bytes(data + tail[:length])
        segment = SegmentFile.open(whole, use_mmap=False)
        assert values_of(segment) == [b"a", b"b"]
        assert segment.scan is not None
        assert (segment.scan.damage is None) == (length == 0)
        assert segment.scan.end_position == end
    writer = resume(whole)
    append(writer, b"d")
    writer.sync()
    writer.close()
    assert read(whole) == [b"a", b"b", b"d"]


@pytest.mark.parametrize(
    "tail",
    [bytes(64), bytes(4096), b"TBLK" * 64, os.urandom(1000), b"\xff" * 128],
    ids=["64 zeros", "4096 zeros", "magic", "random", "ones"],
)
def test_junk_after_the_last_block_is_a_torn_tail(tail: bytes, tmp_path: Path) -> None:
    """File systems leave zeros or old bytes where a write was lost; none of it was ever acknowledged."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    with path.open("ab") as file:
        file.write(tail)
    assert read(path) == [b"a"]
    resume(path).close()
    assert SegmentFile.open(path).scan.damage is None  # type: ignore[union-attr]


def test_opening_for_reading_changes_nothing(tmp_path: Path) -> None:
    """Only the writer, under its lock, cuts a tail off: it may just be being written."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    torn = path.read_bytes() + b"TBLK torn"
    path.write_bytes(torn)
    assert read(path) == read(path, use_mmap=True) == [b"a"]
    assert path.read_bytes() == torn


def test_the_cut_is_durable_before_anything_is_appended(tmp_path: Path) -> None:
    """Otherwise a power cut could bring the old tail back behind new blocks."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    with path.open("ab") as file:
        file.write(b"torn")
    disk = FailingDisk()
    resume(path, disk).close()
    assert disk.calls == ["open", "truncate", "sync"]


def test_every_writer_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    """Each open raises it, also where the last one wrote nothing but its mark."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    epochs = []
    for _ in range(3):
        writer = resume(path)
        epochs.append(writer.writer_epoch)
        append(writer, b"x")
        writer.close()
    assert epochs == [2, 3, 4]


# -- damage against torn tails ---------------------------------------------------------------------


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.extended
def test_damage_in_front_of_synced_bytes_is_corruption(tmp_path: Path) -> None:
    """Exhaustive: a later block says that the file was durable up to itself, so the damage is no torn write."""
    path = write_segment(tmp_path / "0", [[b"a"], [b"b"], [b"c"]], seal=False)
    data, segment = path.read_bytes(), SegmentFile.open(path)
    first, _, last = segment.index.positions
    for place in range(first, last):
        path.write_bytes(flipped(data, place))
        with pytest.raises(CorruptionError, match="bytes that had been synced") as found:
            SegmentFile.open(path, use_mmap=False)
        assert found.value.where == str(path)
        assert found.value.position is not None
        assert first <= found.value.position <= place
        assert found.value.offsets is not None
        assert found.value.offsets[0] in (100, 101)
    for place in range(last, len(data)):
        path.write_bytes(flipped(data, place))
        assert read(path) == [b"a", b"b"], "nothing after it proves that the last block was durable"


def test_a_proof_far_behind_the_damage_is_found_with_little_memory(tmp_path: Path) -> None:
    """Also one whose header lies across two windows of the search."""
    path = write_segment(tmp_path / "0", [[b"a"], [b"b"]], seal=False)
    data, damaged = path.read_bytes(), SegmentFile.open(path).index.positions[1]
    for distance in (4 << 20, (4 << 20) - 64, (4 << 20) + 64, 64 << 20):
        with path.open("wb") as file:
            file.write(flipped(data, damaged + 70))
            file.seek(damaged + distance)
            file.write(block_bytes(200, b"c", synced=len(data)))
        tracemalloc.start()
        try:
            with pytest.raises(CorruptionError, match="bytes that had been synced") as found:
                SegmentFile.open(path, use_mmap=False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found.value.position == damaged
        assert peak < 24 << 20


def test_a_clean_close_proves_the_last_block_too(tmp_path: Path) -> None:
    """The mark that close() writes says that all before it is durable."""
    path = write_segment(tmp_path / "0", [[b"a"], [b"b"]], seal=False)
    writer = resume(path)
    writer.mark_clean()
    writer.close()
    data, mark = path.read_bytes(), path.stat().st_size - HEADER_BYTES
    assert read(path) == [b"a", b"b"]
    for place in range(SegmentFile.open(path).index.positions[0], mark):
        path.write_bytes(flipped(data, place))
        with pytest.raises(CorruptionError, match="synced"):
            SegmentFile.open(path, use_mmap=False)
    for place in range(mark, len(data)):
        path.write_bytes(flipped(data, place))
        assert read(path) == [b"a", b"b"]


def test_a_block_that_was_not_synced_proves_nothing(tmp_path: Path) -> None:
    """Of two blocks written without a sync between them, the disk may have kept the second alone."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    end = path.stat().st_size
    lost, kept = block_bytes(101, b"b", synced=end), block_bytes(102, b"c", synced=end)
    path.write_bytes(path.read_bytes() + flipped(lost, 70) + kept)
    assert read(path) == [b"a"]
    writer = resume(path)
    assert (writer.position, writer.end_offset) == (end, 101)
    writer.close()


def test_the_same_damage_is_corruption_once_a_later_block_was_synced_beyond_it(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    end = path.stat().st_size
    damaged = block_bytes(101, b"b", synced=end)
    for synced, corrupt in ((end, False), (end + 1, True), (end + len(damaged), True)):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes() + flipped(damaged, 70) + block_bytes(102, b"c", synced=synced))
        if corrupt:
            with pytest.raises(CorruptionError, match="synced"):
                read(copy)
        else:
            assert read(copy) == [b"a"]


def test_a_stale_block_of_an_earlier_writer_is_the_end(tmp_path: Path) -> None:
    """Blocks that an earlier writer's crash left behind are not part of the log, though they are valid."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    writer = resume(path)
    append(writer, b"b")
    writer.sync()
    writer.close()
    end = path.stat().st_size
    stale = block_bytes(102, b"stale", epoch=1, synced=end + 4096)
    path.write_bytes(path.read_bytes() + stale)
    segment = SegmentFile.open(path, use_mmap=False)
    assert values_of(segment) == [b"a", b"b"]
    assert segment.scan is not None
    assert segment.scan.damage is not None
    assert "stale" in segment.scan.damage.reason


def test_a_stale_block_proves_nothing_either(tmp_path: Path) -> None:
    """Its writer knew another file: what was durable then was cut off since."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    resume(path).close()
    writer = resume(path)
    append(writer, b"b")
    writer.close()
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(64) + block_bytes(103, b"stale", epoch=1, synced=end + 4096))
    assert read(path) == [b"a", b"b"]


@pytest.mark.parametrize(
    "block",
    [block_bytes(105, b"x"), block_bytes(0, b"x"), block_bytes(101, b"x", segment=4)],
    ids=["a gap in the offsets", "offsets again", "another segment"],
)
def test_valid_blocks_that_do_not_continue_the_log_are_its_end(block: bytes, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    path.write_bytes(path.read_bytes() + block)
    assert read(path) == [b"a"]


def test_a_block_of_a_newer_version_is_not_cut_off(tmp_path: Path) -> None:
    """It was written by a newer release: refusing is right, truncating would lose its records."""
    path = write_segment(tmp_path / "0", [[b"a"]], seal=False)
    newer = crafted(pa.ipc.read_record_batch(body_of([b"x", b"y", b"z"]).parts[1], BODY))
    newer.header |= {"version": 2, "segment_id": UUID(int=3).bytes, "base_offset": 101}
    path.write_bytes(path.read_bytes() + newer.to_bytes())
    with pytest.raises(UnsupportedFormat, match="block format 2"):
        read(path)


# -- what the writer does on failures --------------------------------------------------------------


def test_a_write_that_finds_no_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """Half a block is cut off again; appends go on in the same place when there is room."""
    disk = FullDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    append(writer, b"a")
    before = (writer.position, writer.end_offset, len(writer.index), writer._content.hexdigest())
    disk.full = True
    for _ in range(3):
        with pytest.raises(DiskFull):
            append(writer, b"lost" * 100)
        with pytest.raises(DiskFull):
            writer.seal(0)
        assert writer.path.stat().st_size == writer.position
        assert (writer.position, writer.end_offset, len(writer.index), writer._content.hexdigest()) == before
    disk.full = False
    append(writer, b"b")
    writer.seal(0)
    writer.close()
    assert read(writer.path) == [b"a", b"b"]


def test_room_that_runs_out_for_real_is_disk_full(tmp_path: Path) -> None:
    """The operating system's own limit on file sizes stops the write half way."""
    code = """
import resource, signal, sys
from pathlib import Path
from tests.support.segments import append, header_of, read
from tiered.errors import DiskFull
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.segment_writer import SegmentWriter
writer = SegmentWriter.create(OsFileSystem(), Path(sys.argv[1]), header_of())
append(writer, b"a")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (writer.position + 300, resource.RLIM_INFINITY))
try:
    append(writer, b"x" * 1000)
except DiskFull as error:
    print(error)
assert writer.path.stat().st_size == writer.position
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(writer, b"b")
writer.sync()
print(read(writer.path))
"""
    done = fork_server.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[0].startswith("no room on the local disk")
    assert done.stdout.splitlines()[1] == "[b'a', b'b']"


@pytest.mark.parametrize("where", ["sync", "write"])
def test_an_interrupt_leaves_the_segment_as_it_was(where: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle of an append or of a seal: the next one goes on as if neither had been tried."""

    def interrupt(name: str, path: Path) -> None:
        if armed and name == where:
            raise KeyboardInterrupt

    armed = False
    writer = SegmentWriter.create(FailingDisk(interrupt), tmp_path, header_of())
    append(writer, b"a" * 1000)
    armed = True
    with pytest.raises(KeyboardInterrupt):
        writer.seal(0)
    if where == "write":
        with pytest.raises(KeyboardInterrupt):
            append(writer, b"lost" * 1000)
    armed = False
    assert writer.path.stat().st_size == writer.position
    append(writer, b"b")
    assert writer.seal(0).record_count == 2
    writer.close()
    assert read(writer.path) == [b"a" * 1000, b"b"]


@contextmanager
def interrupting(line: int, begun: Callable[[], bool] = lambda: True) -> Iterator[list[int]]:
    """Interrupt an append at a line of it, counted from 0 from when it has `begun`; gives what is left to count, then none."""
    code = {method.__code__ for method in APPENDING}
    left = [line]

    def trace(frame: object, event: str, argument: object) -> object:
        if frame.f_code not in code:  # type: ignore[attr-defined]
            return None
        if event == "line" and begun():
            if left[0] == 0:
                left.clear()
                raise Interrupted  # which ends the tracing
            left[0] -= 1
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        with suppress(Interrupted):
            yield left
    finally:
        sys.settrace(previous)


def go_on(writer: SegmentWriter, values: list[bytes]) -> list[bytes]:
    """Check that all or none of `values` were appended behind one record, and append; return those that were."""
    kept = values if writer.end_offset == 101 + len(values) else []
    append(writer, b"other")  # as long as the first one: what a cut left behind it would go on with it
    assert writer.index.base_offsets == list(range(100, 102 + len(kept)))
    assert read(writer.path) == [b"a", *kept, b"other"]
    writer.seal(0)
    writer.close()
    assert read(writer.path) == [b"a", *kept, b"other"]
    return kept


@pytest.mark.parametrize("values", [[b"maybe"], [b"maybe", b"too"]], ids=["a block", "blocks"])
def test_an_interrupt_at_any_line_of_an_append_keeps_or_drops_the_block(
    tmp_path: Path, values: list[bytes]
) -> None:
    """Exhaustive over the lines of the writer: offsets, index, hash and file agree afterwards."""
    for line in itertools.count():
        directory = tmp_path / str(line)
        directory.mkdir()
        writer = SegmentWriter.create(FS, directory, header_of())
        append(writer, b"a")
        bodies = [body_of([value], 101 + number) for number, value in enumerate(values)]
        with interrupting(line) as left:
            writer.append(bodies, 5)
        kept = go_on(writer, values)
        if left:
            assert kept
            break
    assert line > 5


class InterruptedDisk(OsFileSystem):
    """Interrupts the last of so many writes, once it is done."""

    left = 0

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        count = super().write(fd, position, buffers)
        self.left -= 1
        if self.interrupted():
            raise Interrupted
        return count

    def interrupted(self) -> bool:
        return self.left == 0


@pytest.mark.parametrize(("writes", "whole"), [(1, False), (2, True)])
def test_an_interrupt_at_any_line_after_another_changes_nothing(
    tmp_path: Path, writes: int, whole: bool
) -> None:
    """Ctrl-C once more, while what the first one broke off is settled: by whether its first header, the last write, is there."""
    values = [b"maybe", b"too"]
    for line in itertools.count():
        directory = tmp_path / str(line)
        directory.mkdir()
        disk = InterruptedDisk()
        writer = SegmentWriter.create(disk, directory, header_of())
        append(writer, b"a")
        disk.left = writes
        with interrupting(line, disk.interrupted) as left:
            writer.append([body_of([value], 101 + number) for number, value in enumerate(values)], 5)
        assert go_on(writer, values) == (values if whole else [])
        if left:
            break
    assert line > 5


def test_a_cut_that_fails_once_is_made_again(tmp_path: Path) -> None:
    """What a failed write left behind is cut off after all, and the segment goes on."""

    class Twice(BrokenDisk):
        def truncate(self, fd: int, length: int) -> None:
            self.broken.discard("write")
            try:
                super().truncate(fd, length)
            finally:
                self.broken.discard("truncate")

    disk = Twice()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    append(writer, b"a")
    disk.broken = {"write", "truncate"}
    with pytest.raises(OSError, match="injected"):
        append(writer, b"lost")
    append(writer, b"b")
    writer.close()
    assert read(writer.path) == [b"a", b"b"]


def test_a_failed_sync_is_no_lack_of_room(tmp_path: Path) -> None:
    """What it lost is unknown, so it is an OSError: the partition is poisoned, and nobody tries again."""
    disk = BrokenDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    append(writer, b"a")
    disk.broken = {"sync"}
    with pytest.raises(OSError, match="injected"):
        writer.sync()
    # The system told of it once: the next success would mean nothing.
    disk.broken = set()
    for call in (writer.sync, lambda: writer.seal(0)):
        with pytest.raises(OSError, match="an earlier sync of this file failed"):
            call()
    assert writer.synced_through < writer.position


# -- power cuts and kills --------------------------------------------------------------------------


def _life(fs: FileSystem, directory: Path, acknowledged: list[bytes]) -> None:
    """Create a segment, append with syncs, seal; `acknowledged` gets what a caller was promised."""
    writer = SegmentWriter.create(fs, directory, header_of())
    for value in (b"a", b"b" * 300, b"c"):
        append(writer, value)
        writer.sync()
        acknowledged.append(value)
    writer.seal(0)
    writer.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_segment_survives_death_at_every_step(power: bool, tmp_path: Path) -> None:
    """Wherever its writer dies, the directory has a segment with all that was acknowledged, or none."""
    step = 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        disk = ForgetfulDisk(directory, step) if power else MortalDisk(step)
        acknowledged: list[bytes] = []
        died = False
        try:
            _life(disk, directory, acknowledged)
        except Killed:
            died = True
        if isinstance(disk, ForgetfulDisk):
            disk.cut_power()
        files = list(directory.glob("*.log"))
        found = read(files[0]) if files else []
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
        if not died:
            assert SegmentFile.open(files[0]).facts is not None
            break
        if files and SegmentFile.open(files[0]).facts is None:
            writer = resume(files[0])
            append(writer, b"next")
            writer.seal(0)
            writer.close()
            assert read(files[0]) == [*found, b"next"]
        step += 1
    assert step >= 12


def test_acknowledged_records_survive_sigkill(tmp_path: Path) -> None:
    """A real process, killed in the middle of its appends: whatever it had synced and said so is there."""
    code = """
import sys
from pathlib import Path
from tests.support.segments import append, header_of
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.segment_writer import SegmentWriter
writer = SegmentWriter.create(OsFileSystem(), Path(sys.argv[1]), header_of())
number = 0
while True:
    append(writer, *(b"%d" % (number + i) for i in range(7)))
    number += 7
    if number % 3 == 0:
        writer.sync()
        print(number, flush=True)
"""
    child = fork_server.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) > 300:
            break
    child.send_signal(signal.SIGKILL)
    said = [int(line) for line in child.stdout.read().split("\n")[:-1] if line]
    assert child.wait() == -signal.SIGKILL
    acknowledged = max(said, default=300)
    [path] = tmp_path.glob("*.log")
    writer = resume(path)
    writer.close()
    found = read(path)
    assert len(found) >= acknowledged
    assert found == [b"%d" % number for number in range(len(found))]


@pytest.mark.extended
def test_blocks_of_nobody_leave_no_producer(tmp_path: Path) -> None:
    writer = SegmentWriter.create(OsFileSystem(), tmp_path, header_of())
    append(writer, b"of nobody")
    assert writer.producers.snapshot() == ()
    assert writer.seal(0).producers == ()
    writer.close()


def test_a_producer_is_known_by_any_number(tmp_path: Path) -> None:
    """It is a hash of the name; 0 is one."""
    writer = SegmentWriter.create(OsFileSystem(), tmp_path, header_of())
    writer.append([MARK], 1_500, [Numbers(0, 2, 7)])
    assert [(state.producer_id, state.last_sequence) for state in writer.seal(0).producers] == [(0, 6)]
    writer.close()


def test_a_clean_close_adds_nothing_to_a_segment_that_is_sealed_or_empty(tmp_path: Path) -> None:
    """A block behind the trailer would make the file unreadable."""
    for number, values in enumerate(([], [b"a"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        writer = SegmentWriter.create(OsFileSystem(), folder, header_of())
        for value in values:
            append(writer, value)
            writer.seal(0)
        before = writer.path.read_bytes()
        writer.mark_clean()
        writer.close()
        assert writer.path.read_bytes() == before


def test_a_segment_that_cannot_be_made_gives_its_descriptor_back(tmp_path: Path) -> None:
    class Counting(BrokenDisk):
        closed = 0

        def close(self, fd: int) -> None:
            self.closed += 1
            super().close(fd)

    for operation in ("write", "sync", "rename", "sync_directory"):
        disk = Counting()
        disk.broken = {operation}
        with pytest.raises(OSError, match="injected"):
            SegmentWriter.create(disk, tmp_path, header_of())
        assert disk.closed == 1


@pytest.mark.parametrize("operation", ["seal", "mark_clean"])
def test_nothing_vouches_for_blocks_that_are_not_durable(operation: str, tmp_path: Path) -> None:
    """A sync that fails fails the seal, before there is a footer, and a clean close."""
    disk = BrokenDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    append(writer, b"not durable")
    disk.broken = {"sync"}
    writes = disk.calls.count("write")
    with pytest.raises(OSError, match="injected"):
        writer.seal(0) if operation == "seal" else writer.mark_clean()
    assert operation != "seal" or disk.calls.count("write") == writes
    writer.close()


def test_the_age_of_a_segment_is_that_of_its_first_record(tmp_path: Path) -> None:
    writer = SegmentWriter.create(OsFileSystem(), tmp_path, header_of())
    writer.append([MARK], 1_500)
    assert writer.append_us is None
    append(writer, b"first", now_us=2_000)
    append(writer, b"second", now_us=3_000)
    assert writer.append_us == (2_000, 3_000)
    writer.close()
    scan = SegmentFile.open(writer.path).scan
    assert scan is not None
    assert scan.append_us == (2_000, 3_000)
