"""Re-encoding a sealed segment: the same records, whatever kills it and wherever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.arrow_values import bodies, plain_types, schemas
from tests.support.disks import BrokenDisk, FailingDisk, ForgetfulDisk, FullDisk, Killed, MortalDisk
from tests.support.segments import body_of, header_of, read, read_directory, write_segment
from tiered.errors import CorruptionError, DiskFull, RecordTooLarge
from tiered.format.block import Numbers, encode_body
from tiered.format.codec import Codec
from tiered.format.compare import same_records
from tiered.format.schema import body_schema, normalize_schema
from tiered.format.segment import BlockIndex, encode_footer, read_footer
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import SegmentName, list_segments, remove_half_written
from tiered.warm.reencode import _compare, merged_batches, remove_leftover, rewrite_segment
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

FS = OsFileSystem()
VALUES = [b"value %d" % number for number in range(50)]
BLOCKS = [VALUES[start : start + 5] for start in range(0, 50, 5)]


def next_generation(path: Path) -> Path:
    name = SegmentName.parse(path.name)
    assert name is not None
    return path.with_name(str(SegmentName(name.base_offset, name.generation + 1)))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_records_stay_and_the_old_file_goes(codec: Codec, tmp_path: Path) -> None:
    """Small blocks become one; identity, ages and the origin hash are kept, the content hash is new."""
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    before = SegmentFile.open(path).facts
    facts = rewrite_segment(FS, path, codec, 3)
    target = next_generation(path)
    segment = SegmentFile.open(target)
    assert sorted(item.name for item in path.parent.iterdir()) == [target.name]
    assert read(target) == VALUES
    assert len(segment.index) == 1
    assert before is not None
    assert facts == segment.facts == before.evolve(generation=1, content_hash=facts.content_hash)
    assert facts.content_hash != before.content_hash == facts.origin_hash
    assert (segment.header.generation, segment.header.segment_id) == (1, before.segment_id)


def test_the_last_append_and_the_producers_are_kept(tmp_path: Path) -> None:
    """Ages in policies count from them, and a repeated sequence number is recognised by them."""
    writer = SegmentWriter.create(FS, tmp_path, header_of())
    writer.append([body_of([b"a"])], 7_000, [Numbers(5, 1, 0)])
    writer.append([body_of([b"b"])], 9_000, [Numbers(5, 1, 1)])
    producers = writer.seal(0).producers
    assert [item.producer_id for item in producers] == [5]
    writer.close()
    facts = rewrite_segment(FS, writer.path, Codec.ZSTD, 3)
    assert (facts.last_append_us, facts.producers) == (9_000, producers)
    [block] = SegmentFile.open(next_generation(writer.path)).blocks(0, 1 << 60)
    assert block.header.append_us == 9_000


@pytest.mark.extended
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.data(), st.sampled_from(list(Codec)))
def test_any_records_of_any_schema_survive(tmp_path: Path, data: st.DataObject, codec: Codec) -> None:
    """Through a segment, a re-encoding and another one, without a bit changed."""
    schema = normalize_schema(data.draw(schemas(plain_types)))
    batches = data.draw(st.lists(bodies(schema), min_size=1, max_size=4))
    directory = tmp_path / os.urandom(8).hex()
    directory.mkdir()
    writer = SegmentWriter.create(FS, directory, header_of(batches[0].schema))
    for batch in batches:
        writer.append([encode_body(batch)], 1)
    writer.seal(0)
    writer.close()
    wanted = pa.concat_batches(batches)
    path = writer.path
    for use in (codec, Codec.NONE):
        rewrite_segment(FS, path, use, 1)
        path = next_generation(path)
        found = pa.concat_batches([batch for batch, _ in merged_batches(SegmentFile.open(path))])
        found.validate(full=True)
        assert found.equals(wanted)


def test_a_block_that_is_too_large_with_a_chunk_a_column_becomes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk of many columns takes less than many chunks: earlier releases filled blocks up to the limit."""
    monkeypatch.setattr("tiered.format.block.RAW_BYTES_MAX", 64 << 10)
    schema = body_schema(pa.schema([(f"c{i}", pa.int64()) for i in range(200)]))
    columns = [pa.array(range(25), field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    writer = SegmentWriter.create(FS, tmp_path, header_of(schema))
    for _ in range(2):
        writer.append([encode_body(batch)], 1)
    writer.seal(0)
    writer.close()
    with pytest.raises(RecordTooLarge):
        encode_body(batch, Codec.ZSTD)
    rewrite_segment(FS, writer.path, Codec.ZSTD, 1)
    found = [rows for rows, _ in merged_batches(SegmentFile.open(next_generation(writer.path)), 0)]
    assert len(found) > 2
    assert pa.concat_batches(found).equals(pa.concat_batches([batch, batch]))


def test_a_copy_that_lacks_records_or_has_others_is_refused(tmp_path: Path) -> None:
    """What is compared is every record, wherever the blocks of the copy begin and end."""
    for number, values in enumerate([VALUES[:-1], [*VALUES[:-1], b"other"], [*VALUES, b"more"]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        old = SegmentFile.open(write_segment(folder / "old", BLOCKS, seal=True))
        blocks = [part for part in (values[:50], values[50:]) if part]
        new = SegmentFile.open(write_segment(folder / "new", blocks, seal=True))
        with pytest.raises(CorruptionError, match="differs"):
            _compare(old, new, 1 << 20)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_death_at_every_step_loses_nothing(power: bool, tmp_path: Path) -> None:
    """Wherever it is killed, the directory resolves to the same records; what is left over can be cleared away."""
    step = 0
    while True:
        directory = tmp_path / str(step)
        path = write_segment(directory, BLOCKS, seal=True)
        write_segment(directory, [[b"next"]], seal=False, base_offset=150)
        disk = ForgetfulDisk(directory, step) if power else MortalDisk(step)
        died = False
        try:
            rewrite_segment(disk, path, Codec.ZSTD, 3)
        except Killed:
            died = True
        if isinstance(disk, ForgetfulDisk):
            disk.cut_power()
        assert read_directory(directory) == [*VALUES, b"next"]
        remove_half_written(FS, directory)
        for name in list_segments(directory).leftovers:
            remove_leftover(FS, directory, name)
        assert read_directory(directory) == [*VALUES, b"next"]
        assert len(list(directory.iterdir())) == 2
        survivor = directory / str(list_segments(directory).segments[0])
        rewrite_segment(FS, survivor, Codec.LZ4, 3)
        assert read_directory(directory) == [*VALUES, b"next"]
        if not died:
            break
        step += 1
    assert step >= 8


def test_the_new_file_is_durable_before_the_old_one_goes(tmp_path: Path) -> None:
    """File, name, directory, and only then the unlink."""
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    disk = FailingDisk()
    rewrite_segment(disk, path, Codec.ZSTD, 3)
    assert disk.calls[-4:] == ["sync", "rename", "sync_directory", "unlink"]
    assert disk.calls.count("unlink") == 2


def test_no_room_for_the_copy_changes_nothing(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    disk = FullDisk()
    disk.full = True
    with pytest.raises(DiskFull):
        rewrite_segment(disk, path, Codec.ZSTD, 3)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    disk.full = False
    rewrite_segment(disk, path, Codec.ZSTD, 3)
    assert read_directory(path.parent) == VALUES


@pytest.mark.parametrize("operation", ["sync", "rename", "sync_directory"])
def test_a_device_that_fails_changes_nothing(operation: str, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)

    def fail(name: str, path: Path) -> None:
        if name == operation:
            raise OSError(5, "Input/output error (injected)")

    with pytest.raises(OSError, match="injected"):
        rewrite_segment(FailingDisk(fail), path, Codec.ZSTD, 3)
    assert path.exists()
    assert read_directory(path.parent) == VALUES


def test_a_damaged_source_stays_and_is_named(tmp_path: Path) -> None:
    """Damage is never re-encoded into something that verifies."""
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    data = bytearray(path.read_bytes())
    place = SegmentFile.open(path).index.positions[7] + 300
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as found:
        rewrite_segment(FS, path, Codec.ZSTD, 3)
    assert found.value.where == str(path)
    assert found.value.offsets == (135, 140)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == data


def test_a_source_with_a_hole_is_refused_and_its_records_get_no_other_offsets(tmp_path: Path) -> None:
    """A footer may name fewer blocks than there are offsets; a copy would move up what lies behind the hole."""
    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    old = SegmentFile.open(path, use_mmap=False)
    data = path.read_bytes()
    footer = read_footer(len(data), lambda at, length: pa.py_buffer(data[at : at + length]))
    assert footer is not None
    index = BlockIndex()
    for block in old.blocks(0, 1 << 60):
        if block.header.base_offset != 115:
            head = block.header
            index.append_row(
                head.base_offset, block.position, head.length, head.record_count, head.min_timestamp_us,
                head.max_timestamp_us,
            )  # fmt: skip
    facts = footer.facts.evolve(record_count=45)
    holed = data[: footer.position] + encode_footer(index, facts, footer.position)
    path.write_bytes(holed)
    with pytest.raises(CorruptionError, match="lacks records") as found:
        rewrite_segment(FS, path, Codec.ZSTD, 3)
    assert found.value.where == str(path)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == holed


def test_files_change_place_while_the_topic_is_kept(tmp_path: Path) -> None:
    """A topic that is deleted meanwhile has no directory for the copy."""
    disk, steps = FailingDisk(), []

    @contextmanager
    def kept() -> Iterator[None]:
        steps.append("kept")
        yield
        steps.append("free")

    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    disk.before = lambda name, _: steps.append(name)
    rewrite_segment(disk, path, Codec.ZSTD, 3, replacing=kept)
    assert steps[steps.index("kept") :] == ["kept", "rename", "sync_directory", "unlink", "free"]
    assert "rename" not in steps[: steps.index("kept")]


def test_a_copy_that_came_out_wrong_is_thrown_away(tmp_path: Path) -> None:
    """What was written is read back and compared before the old file goes."""

    class LyingDisk(OsFileSystem):
        """Flips a bit of every block, as bad memory would, and says that all is well."""

        def write(self, fd: int, position: int, buffers: object) -> int:
            data = bytearray(b"".join(bytes(memoryview(item)) for item in buffers))  # type: ignore[attr-defined]
            if data[:4] == b"TBLK":
                data[-70] ^= 1
            return super().write(fd, position, [data])

    path = write_segment(tmp_path / "0", BLOCKS, seal=True)
    with pytest.raises(CorruptionError):
        rewrite_segment(LyingDisk(), path, Codec.NONE, 3)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert read(path) == VALUES


def test_a_segment_that_is_not_sealed_is_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", BLOCKS, seal=False)
    with pytest.raises(CorruptionError, match="not sealed"):
        rewrite_segment(FS, path, Codec.ZSTD, 3)


def test_large_blocks_are_not_merged_beyond_the_target(tmp_path: Path) -> None:
    """Blocks of about 1 MiB: neither one for the whole segment, nor one for each small one."""
    path = write_segment(tmp_path / "0", [[os.urandom(200_000)] for _ in range(20)], seal=True)
    before = read(path)
    rewrite_segment(FS, path, Codec.LZ4, 3)
    segment = SegmentFile.open(next_generation(path))
    assert 3 <= len(segment.index) <= 5
    assert max(segment.index.lengths) <= 1.3 * (1 << 20)
    assert read(next_generation(path)) == before


NAN = float("nan")
ALIKE = [
    (pa.array([1.5, NAN]), pa.array([1.5, NAN]), True),
    (pa.array([NAN], pa.float32()), pa.array([1.0], pa.float32()), False),
    (pa.array([[1.0, NAN], None]), pa.array([[1.0, NAN], None]), True),
    (pa.array([[1.0, 2.0]]), pa.array([[1.0, 3.0]]), False),
    (pa.array([{"a": "x"}]), pa.array([{"a": "y"}]), False),
    (pa.array(["x"]), pa.array(["y"]), False),
    (pa.array([1], pa.int64()), pa.array([1], pa.int32()), False),
    (pa.array([1, 2]), pa.array([1]), False),
]


@pytest.mark.parametrize(("left", "right", "same"), ALIKE)
def test_records_are_compared_whole_where_they_are_nested_or_no_number(
    left: pa.Array, right: pa.Array, same: bool
) -> None:
    """What a copy is compared by: a difference that it misses is data lost."""
    first, second = (pa.record_batch([column], names=["a"]) for column in (left, right))
    assert same_records(first, second) is same


def test_an_old_generation_stays_where_the_new_one_is_not_known_to_be_durable(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "0", [[b"a"]], seal=True)
    name = SegmentName.parse(path.name)
    assert name is not None
    disk = BrokenDisk()
    disk.broken = {"sync_directory"}
    with pytest.raises(OSError, match="injected"):
        remove_leftover(disk, path.parent, name)
    assert path.exists()
