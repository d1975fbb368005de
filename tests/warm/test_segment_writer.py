"""What a segment says of its own content when it is sealed, and what becomes of a file that could not be synced."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.disks import BrokenDisk, FailingDisk
from tests.support.segments import body_of, header_of, write_segment
from tiered.format.block import HEADER_BYTES, Numbers, encode_header
from tiered.format.codec import Codec
from tiered.format.producers import PRODUCER_AGE_US
from tiered.format.segment import ContentHash
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.reencode import rewrite_segment
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

FS = OsFileSystem()
BLOCKS = [[b"a", b"b"], [b"c"]]


def hash_of_blocks(path: Path) -> str:
    content = ContentHash()
    for block in SegmentFile.open(path).blocks(0, 1 << 60):
        content.add(block.data.slice(0, HEADER_BYTES).to_pybytes())
    return content.hexdigest()


def test_the_hash_of_a_sealed_segment_is_that_of_its_blocks(tmp_path: Path) -> None:
    """By it two copies of a disk are told apart: the ids of their segments are equal."""
    path = write_segment(tmp_path, BLOCKS, seal=True)
    facts = SegmentFile.open(path).facts
    assert facts is not None
    assert facts.content_hash == facts.origin_hash == hash_of_blocks(path)
    other = write_segment(tmp_path / "other", [[b"a", b"b"], [b"d"]], seal=True)
    assert hash_of_blocks(other) != hash_of_blocks(path)

    rewritten = rewrite_segment(FS, path, Codec.ZSTD, 3)

    [copy] = tmp_path.glob("*.log")
    assert rewritten.content_hash == hash_of_blocks(copy)
    assert rewritten.origin_hash == facts.origin_hash


@pytest.mark.parametrize("producer", [0, 1, (1 << 63) - 1])
def test_the_producers_of_a_sealed_segment_are_those_of_its_blocks(tmp_path: Path, producer: int) -> None:
    """Whoever goes on after it recognises repeats by them."""
    writer = SegmentWriter.create(FS, tmp_path, header_of())
    writer.append(
        [body_of([b"a", b"b"]), body_of([b"c"])], 7_000, [Numbers(producer, 3, 0), Numbers(producer, 3, 2)]
    )
    facts = writer.seal(0)
    writer.close()
    [state] = facts.producers
    assert (state.producer_id, state.epoch, state.last_sequence, state.last_offset) == (producer, 3, 2, 102)


@pytest.mark.parametrize(("seen_us", "known"), [(PRODUCER_AGE_US, [1, 2]), (PRODUCER_AGE_US + 8_000, [2])])
def test_a_seal_forgets_the_producers_that_were_not_heard_of_for_long(
    tmp_path: Path, seen_us: int, known: list[int]
) -> None:
    writer = SegmentWriter.create(FS, tmp_path, header_of())
    writer.append([body_of([b"a"])], 7_000, [Numbers(1, 0, 0)])
    writer.append([body_of([b"b"])], seen_us, [Numbers(2, 0, 0)])
    assert [state.producer_id for state in writer.seal(0).producers] == known
    writer.close()


def test_no_sync_succeeds_after_one_that_failed(tmp_path: Path) -> None:
    """The system tells once that pages were lost, and says afterwards that all is well."""
    disk = BrokenDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    writer.append([body_of([b"a"])], 7_000)
    disk.broken = {"sync"}
    with pytest.raises(OSError, match="injected"):
        writer.sync()
    disk.broken = set()
    for call in (writer.sync, writer.mark_clean, lambda: writer.seal(0)):
        with pytest.raises(OSError, match="an earlier sync of this file failed"):
            call()
    assert writer.synced_through <= SegmentFile.open(writer.path).index.positions[0]
    assert SegmentFile.open(writer.path).facts is None


def test_of_two_threads_that_sync_at_once_the_second_hears_of_the_failure_too(tmp_path: Path) -> None:
    """A roll and a commit may come at the same time; the system tells one of them."""
    heard: list[object] = []
    first = [True]

    def sync() -> None:
        try:
            writer.sync()
        except OSError as error:
            heard.append(error)
        else:
            heard.append("durable")

    def before(name: str, path: Path) -> None:
        if name == "sync" and first[0]:
            first[0] = False
            second.start()
            second.join(0.05)
            raise OSError(5, "Input/output error (injected)")

    disk = FailingDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    writer.append([body_of([b"a"])], 7_000)
    second = threading.Thread(target=sync)
    disk.before = before
    sync()
    second.join(60)
    assert [type(item) for item in heard] == [OSError, OSError]


@pytest.mark.parametrize("name", ["close", "abandon"])
def test_a_writer_lets_go_of_its_file_once(tmp_path: Path, name: str) -> None:
    disk = FailingDisk()
    writer = SegmentWriter.create(disk, tmp_path, header_of())
    assert len(disk.open_files) == 1
    for _ in range(2):
        getattr(writer, name)()
        assert disk.open_files == {}


@pytest.mark.parametrize("name", ["sync", "truncate"])
def test_a_writer_that_cannot_go_on_lets_go_of_the_file(tmp_path: Path, name: str) -> None:
    path = write_segment(tmp_path, BLOCKS, seal=False)
    with path.open("ab") as file:
        file.write(b"torn")
    disk = FailingDisk()

    def fail(what: str, _: Path) -> None:
        if what == name:
            raise OSError(5, "Input/output error (injected)")

    disk.before = fail
    segment = SegmentFile.open(path)
    assert segment.scan is not None
    with pytest.raises(OSError, match="injected"):
        SegmentWriter.resume(disk, path, segment.header, segment.scan)
    assert disk.open_files == {}


def test_a_writer_that_goes_on_knows_when_the_first_record_came(tmp_path: Path) -> None:
    """The age of a segment is that of its first record."""
    writer = SegmentWriter.create(FS, tmp_path, header_of())
    for now_us in (7_000, 8_000):
        writer.append([body_of([b"a"])], now_us)
    writer.close()
    segment = SegmentFile.open(writer.path)
    assert segment.scan is not None
    again = SegmentWriter.resume(FS, writer.path, segment.header, segment.scan)
    assert again.append_us == (7_000, 8_000)
    again.close()


@pytest.mark.extended
@pytest.mark.parametrize("wrong", ["epoch", "offset", "content"])
def test_a_scan_ends_before_a_block_that_does_not_follow(tmp_path: Path, wrong: str) -> None:
    """Of an earlier writer, whose bytes a power cut brought back; for other offsets; or torn in its chunks."""
    writer = SegmentWriter.create(FS, tmp_path, header_of(writer_epoch=4))
    writer.append([body_of([b"a"])], 7_000)
    writer.close()
    body = body_of([b"b" * 100])
    header = encode_header(
        body,
        segment_id=writer.header.segment_id.bytes,
        schema_id=0,
        base_offset=writer.end_offset + (wrong == "offset"),
        append_us=8_000,
        writer_epoch=3 if wrong == "epoch" else 4,
        synced_through=0,
    )
    data = bytearray(b"".join([header, *map(bytes, body.parts)]))
    if wrong == "content":
        data[-60] ^= 1
    with writer.path.open("ab") as file:
        file.write(data)
    segment = SegmentFile.open(writer.path)
    assert (segment.end_offset, len(segment.index)) == (101, 1)
