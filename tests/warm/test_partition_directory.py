"""A partition's directory and the store's documents: the files are the truth, and half of one is never seen."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrow_values import plain_types, schemas
from tests.support.disks import FailingDisk, ForgetfulDisk, Killed, MortalDisk
from tests.support.segments import write_segment
from tiered.errors import (
    Backpressure,
    ConfigError,
    CorruptionError,
    SchemaMismatch,
    TopicNotFound,
    UnsupportedFormat,
)
from tiered.format.document import decode_document, encode_document
from tiered.format.schema import RECORD_SCHEMA, normalize_schema
from tiered.format.topic_meta import PARTITIONS_MAX, TopicMeta
from tiered.warm.bucket_binding import BucketBinding, read_binding, write_binding
from tiered.warm.catalog import Catalog, deletions
from tiered.warm.filesystem import OsFileSystem, write_atomically
from tiered.warm.partition_directory import (
    START_FILE,
    SWEEP_FILE,
    SegmentName,
    list_segments,
    read_fence,
    read_lineage,
    read_marks,
    read_start_offset,
    remove_half_written,
    write_fence,
    write_lineage,
    write_start_offset,
)

FS = OsFileSystem()


def test_a_file_that_is_to_be_changed_is_not_looked_for_behind_a_link(tmp_path: Path) -> None:
    """Links above it are followed, as a store may be reached through one; its own files are files."""
    (tmp_path / "real").mkdir()
    (tmp_path / "above").symlink_to("real")
    FS.close(FS.create(tmp_path / "above" / "file"))
    FS.close(FS.open(tmp_path / "above" / "file"))
    (tmp_path / "link").symlink_to("real/file")
    with pytest.raises(OSError, match="symbolic links"):
        FS.open(tmp_path / "link")


TOPIC = TopicMeta("orders", UUID(int=5), 2, (RECORD_SCHEMA,), None, None, 1_000)


# -- segments ------------------------------------------------------------------------------------


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**9 - 1))
def test_segment_names_come_back(base_offset: int, generation: int) -> None:
    name = SegmentName(base_offset, generation)
    assert SegmentName.parse(str(name)) == name


@given(st.lists(st.tuples(st.integers(0, 10**20 - 1), st.integers(0, 10**9 - 1)), min_size=2, unique=True))
def test_names_sort_as_their_offsets_do(pairs: list[tuple[int, int]]) -> None:
    names = [SegmentName(*pair) for pair in pairs]
    assert [name.base_offset for name in sorted(names)] == sorted(base for base, _ in pairs)


@pytest.mark.parametrize(
    "name",
    ["", "0-0.log", f"{0:020}.log", f"{0:020}-0.log.tmp", f".{0:020}-1.log.tmp", f"{0:020}-.log", f"{0:020}--1.log",
     f"{0:021}-0.log", f"{0:020}-0.log\n", f"x{0:020}-0.log", f"{0:020}-0.LOG", "\N{ARABIC-INDIC DIGIT ZERO}" * 20 + "-0.log", "writer.lock", "start.json"],
)  # fmt: skip
def test_other_files_are_no_segments(name: str) -> None:
    assert SegmentName.parse(name) is None


def test_the_highest_generation_is_the_segment(tmp_path: Path) -> None:
    """Lower ones are leftovers; files of other names are left alone; an absent directory is empty."""
    names = [
        SegmentName(0, 0),
        SegmentName(0, 2),
        SegmentName(0, 10),
        SegmentName(5, 0),
        SegmentName(10**19, 1),
    ]
    for name in names:
        (tmp_path / str(name)).touch()
    for other in ("start.json", f".{0:020}-11.log.tmp", "notes.txt"):
        (tmp_path / other).touch()
    listing = list_segments(tmp_path)
    assert listing.segments == (names[2], names[3], names[4])
    assert listing.leftovers == (names[0], names[1])
    assert list_segments(tmp_path / "none").segments == ()


def test_half_written_files_of_a_rewrite_go_and_the_writers_stay(tmp_path: Path) -> None:
    """The writer may be making its next segment (generation 0) right now."""
    mine, theirs = (
        tmp_path / f".{7:020}-0.log.tmp",
        [tmp_path / f".{0:020}-{number}.log.tmp" for number in (1, 10, 100)],
    )
    segment = write_segment(tmp_path, [[b"a"]], seal=True)
    theirs += [tmp_path / ".asked.json.tmp", tmp_path / ".sweep.json.tmp"]
    for path in (mine, *theirs):
        path.touch()
    remove_half_written(FS, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, segment])


# -- start offset and fence ------------------------------------------------------------------------


def test_the_start_offset_is_zero_until_it_is_moved(tmp_path: Path) -> None:
    assert read_start_offset(tmp_path) == 0
    write_start_offset(FS, tmp_path, 4711)
    write_start_offset(FS, tmp_path, 4712)
    assert read_start_offset(tmp_path) == 4712


@pytest.mark.parametrize("value", [None, -1, "5", 1.5, [1]])
def test_a_start_offset_that_is_none_is_corruption(value: object, tmp_path: Path) -> None:
    """Taking it for 0 would bring deleted records back."""
    (tmp_path / "start.json").write_bytes(encode_document({"start_offset": value}))
    with pytest.raises(CorruptionError, match="start offset"):
        read_start_offset(tmp_path)


def test_an_unreadable_start_offset_is_not_an_absent_one(tmp_path: Path) -> None:
    write_start_offset(FS, tmp_path, 4711)
    path = tmp_path / "start.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"4711", b"4710"))
    with pytest.raises(CorruptionError, match=str(path)):
        read_start_offset(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(CorruptionError):
        read_start_offset(tmp_path)


def test_a_fence_stays(tmp_path: Path) -> None:
    assert read_fence(tmp_path) is None
    write_fence(FS, tmp_path, "epoch 7 began at offset 100")
    assert read_fence(tmp_path) == "epoch 7 began at offset 100"


def test_the_lineage_is_remembered(tmp_path: Path) -> None:
    """None before the first claim; a number that is none is corruption, not a first claim."""
    assert read_lineage(tmp_path) is None
    write_lineage(FS, tmp_path, 3)
    assert read_lineage(tmp_path) == 3
    for wrong in (0, -1, None, "3"):
        (tmp_path / "lineage.json").write_bytes(encode_document({"epoch": wrong}))
        with pytest.raises(CorruptionError, match="lineage"):
            read_lineage(tmp_path)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_document_is_the_old_or_the_new_wherever_its_writer_dies(power: bool, tmp_path: Path) -> None:
    """And once the write has returned, the new one."""
    step = 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        path = directory / "start.json"
        write_atomically(FS, path, encode_document({"start_offset": 1}))
        disk = ForgetfulDisk(directory, step) if power else MortalDisk(step)
        died = False
        try:
            write_atomically(disk, path, encode_document({"start_offset": 2}))
        except Killed:
            died = True
        if isinstance(disk, ForgetfulDisk):
            disk.cut_power()
        found = read_start_offset(directory)
        assert found in ((1, 2) if died else (2,))
        write_start_offset(FS, directory, 3)
        assert read_start_offset(directory) == 3
        if not died:
            break
        step += 1
    assert step == 6


# -- topics and stores -----------------------------------------------------------------------------


@given(st.lists(schemas(plain_types), min_size=1, max_size=3), st.integers(1, PARTITIONS_MAX))
def test_topics_come_back_from_their_document(versions: list[pa.Schema], partitions: int) -> None:
    """Every version of the schema, with its metadata-free Arrow types."""
    schemas = tuple(normalize_schema(item) for item in versions)
    meta = TopicMeta("t", UUID(int=1), partitions, schemas, schemas[0].names[0], schemas[0].names[-1], -5)
    data = encode_document(meta.to_json())
    assert TopicMeta.from_json(decode_document(data, where="t"), where="t") == meta


@pytest.mark.parametrize(
    "changes",
    [{"id": 5}, {"id": "x"}, {"partitions": 0}, {"partitions": PARTITIONS_MAX + 1}, {"partitions": None}, {"schemas": []},
     {"schemas": 5}, {"schemas": [5]}, {"schemas": [{}]}, {"schemas": [{"arrow": "!"}]}, {"created_us": "x"},
     {"name": "../t"}, {"name": "/t"}, {"name": ".."}, {"name": ""}, {"name": 5}, {"name": "a\nb"}, {"name": "\x1b[2J"},
     {"timestamp": "no column"}, {"key": 5}],
    ids=str,
)  # fmt: skip
def test_topics_that_lie_are_refused(changes: dict[str, object]) -> None:
    """Under a checksum that is right."""
    with pytest.raises((CorruptionError, UnsupportedFormat)):
        TopicMeta.from_json({**TOPIC.to_json(), **changes}, where="topic.json")


def test_a_store_is_created_once(tmp_path: Path) -> None:
    """Its id stays; without it, topics that are there are not adopted by a new one."""
    catalog = Catalog(FS, tmp_path / "store")
    catalog.root.mkdir()
    with pytest.raises(ConfigError, match="no store"):
        catalog.open_store(create=False)
    store_id = catalog.open_store(create=True)
    assert catalog.open_store(create=True) == catalog.open_store(create=False) == store_id
    catalog.write_topic(TOPIC)
    (catalog.root / "store.json").unlink()
    with pytest.raises(CorruptionError, match=r"store\.json is missing"):
        catalog.open_store(create=True)
    (catalog.root / "store.json").write_bytes(encode_document({"id": 5}))
    with pytest.raises(CorruptionError, match="no id"):
        catalog.open_store(create=True)


def test_topics_are_listed_once_they_are_whole(tmp_path: Path) -> None:
    """The document comes last; directories without one are no topics, and their segments are not lost sight of."""
    catalog = Catalog(FS, tmp_path)
    catalog.open_store(create=True)
    assert catalog.topics() == []
    catalog.write_topic(TOPIC)
    (tmp_path / "topics" / "half" / "0").mkdir(parents=True)
    assert catalog.topics() == ["orders"]
    assert catalog.read_topic("orders") == TOPIC
    assert [catalog.partition_directory("orders", number).is_dir() for number in range(3)] == [
        True,
        True,
        False,
    ]
    with pytest.raises(TopicNotFound, match="half"):
        catalog.read_topic("half")
    catalog.check_vacant("half")
    write_segment(tmp_path / "topics" / "half" / "0", [[b"a"]], seal=True)
    with pytest.raises(CorruptionError, match=r"topic\.json is missing"):
        catalog.check_vacant("half")


@pytest.mark.parametrize("operation", ["create", "delete"])
def test_topics_are_whole_or_absent_wherever_their_writer_dies(operation: str, tmp_path: Path) -> None:
    """A deletion that was cut short is finished by the next open."""
    step = 0
    while True:
        root = tmp_path / str(step)
        root.mkdir()
        Catalog(FS, root).open_store(create=True)
        if operation == "delete":
            Catalog(FS, root).write_topic(TOPIC)
            write_segment(root / "topics" / "orders" / "0", [[b"a"]], seal=True)
        disk = MortalDisk(step)
        died = False
        try:
            catalog = Catalog(disk, root)
            if operation == "create":
                catalog.write_topic(TOPIC)
            else:
                catalog.begin_deletion("orders")
                for deletion in deletions(root):
                    catalog.end_deletion(deletion)
        except Killed:
            died = True
        after = Catalog(FS, root)
        assert after.topics() in ([], ["orders"])
        for deletion in deletions(root):
            assert deletion.meta == TOPIC
            after.end_deletion(deletion)
        after.remove_deleted()
        if after.topics():
            assert after.read_topic("orders") == TOPIC
        else:
            after.check_vacant("orders")
            after.write_topic(TOPIC)
        assert not list((root / "topics").glob(".*"))
        if not died:
            break
        step += 1
    assert step >= 5


def test_a_schema_grows_by_a_version(tmp_path: Path) -> None:
    typed = TopicMeta("t", UUID(int=1), 1, (pa.schema([("a", pa.int8())]),), None, None, 0)
    grown = typed.with_columns(pa.schema([("b", pa.string())]))
    assert (grown.schema_id, grown.schema.names, grown.schemas[0]) == (1, ["a", "b"], typed.schema)
    with pytest.raises(SchemaMismatch, match="exists"):
        grown.with_columns(pa.schema([("a", pa.int8())]))


def test_the_place_of_the_cold_tier_is_remembered(tmp_path: Path) -> None:
    assert read_binding(tmp_path) == BucketBinding()
    place = BucketBinding("s3://bucket/prefix", "http://127.0.0.1:9000", "eu-central-1")
    write_binding(FS, tmp_path, place)
    assert read_binding(tmp_path) == place


@pytest.mark.parametrize("value", [7, ["/a"], "/a\0b"])
def test_a_binding_of_other_values_is_damaged(value: object, tmp_path: Path) -> None:
    data = encode_document({"url": "memory://b", "home": value})
    write_atomically(FS, tmp_path / "cold.json", data)
    with pytest.raises(CorruptionError, match="no valid binding"):
        read_binding(tmp_path)


def test_directories_are_durable_when_they_are_made(tmp_path: Path) -> None:
    """Each new one is synced into its parent; those that are there cost nothing."""
    disk = FailingDisk()
    disk.make_directory(tmp_path / "a" / "b")
    assert disk.calls == ["sync_directory", "sync_directory"]
    disk.make_directory(tmp_path / "a" / "b")
    assert len(disk.calls) == 2


def test_writes_of_many_buffers_arrive_in_order(tmp_path: Path) -> None:
    """More than the system takes at a time, empty ones and views of other item sizes among them."""
    fd = FS.create(tmp_path / "file")
    buffers = [b"", *(b"%d" % number for number in range(3000)), memoryview(bytes(16)).cast("q"), b""]
    wanted = b"".join(bytes(item) for item in buffers)
    assert FS.write(fd, 5, buffers) == len(wanted)
    FS.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(5) + wanted


def test_a_directory_that_cannot_be_listed_for_lack_of_descriptors_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch, pytest.raises(Backpressure):
        patch.setattr("tiered.warm.partition_directory.os.listdir", refuse)
        list_segments(tmp_path)


@pytest.mark.parametrize(
    ("value", "sound"),
    [
        (0, True),
        ((1 << 63) - 1, True),
        (-1, False),
        (1 << 63, False),
        (True, False),
        ("1", False),
        (None, False),
    ],
)
def test_a_start_offset_is_an_offset(value: object, sound: bool, tmp_path: Path) -> None:
    write_atomically(OsFileSystem(), tmp_path / START_FILE, encode_document({"start_offset": value}))
    if sound:
        assert read_start_offset(tmp_path) == value
    else:
        with pytest.raises(CorruptionError):
            read_start_offset(tmp_path)


@pytest.mark.parametrize(
    ("marks", "sound"),
    [
        ({"a": 1}, True),
        ({}, True),
        ({"a": 10**400}, False),
        ({"a": "x"}, False),
        (["a"], False),
        (None, False),
    ],
)
def test_marks_of_a_sweep_are_times(marks: object, sound: bool, tmp_path: Path) -> None:
    """Else a damaged file would end the sweep by an error that no caller expects."""
    write_atomically(OsFileSystem(), tmp_path / SWEEP_FILE, encode_document({"unnamed": marks}))
    if sound:
        assert read_marks(tmp_path) == marks
    else:
        with pytest.raises(CorruptionError):
            read_marks(tmp_path)
