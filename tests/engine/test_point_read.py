"""Short reads: what they return is what a scan returns, whatever happens to the log, and what the cache holds is bounded."""

from __future__ import annotations

import gc
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tiered.engine import point_read
from tiered.engine.host import Host
from tiered.warm.file_value_cache import SETTLED_NS
from tiered.warm.partition_directory import read_lineage

HOUR_US = 3_600_000_000
ROLLS = {"roll": {"bytes": "256MiB", "age": "off"}, "offload": "off", "local_retention": "off"}


def rules(**more: Any) -> tiered.Settings:
    store = {"sync_interval": "1h", "block_bytes": "4KiB", "hot_bytes": "1MiB"}
    return tiered.Settings.model_validate(
        {"store": store, "policies": {"default": {**ROLLS, "compress": "off", **more}}}
    )


def opened(path: Path, clock: Clock, **options: Any) -> tiered.Store:
    options.setdefault("settings", rules())
    return tiered.open(path, host=Host(clock=clock), **options)


def by_snapshot(topic: tiered.Topic, **arguments: Any) -> list[tiered.Record]:
    """The same read with the short way closed."""
    with patch("tiered.store.local_topic.read_local", lambda *_: None):
        return list(topic.read(**arguments))


def short(topic: tiered.Topic, **arguments: Any) -> list[tiered.Record]:
    """A read that must have taken the short way: a snapshot would raise."""
    with patch("tiered.store.local_topic.records", side_effect=AssertionError("took a snapshot")):
        return list(topic.read(**arguments))


@pytest.fixture
def path(tmp_path: Path, clock: Clock) -> Path:
    """Two sealed segments of 300 records each, 0 to 599, and 100 records in the active one."""
    with opened(tmp_path / "data", clock) as store:
        topic = store.create_topic("t")
        for start in (0, 300):
            topic.append_many([b"%050d" % i for i in range(start, start + 300)])
            topic.roll()
        topic.append_many([b"%050d" % i for i in range(600, 700)])
    return tmp_path / "data"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("codec", ["off", "lz4", "zstd"])
def test_reads_of_sealed_segments_need_no_snapshot(
    path: Path, clock: Clock, read_only: bool, codec: str
) -> None:
    if codec != "off":
        with opened(path, clock, settings=rules(compress={"codec": codec, "after": "1h"})) as store:
            assert len(store.tier((clock() + 2 * HOUR_US) // 1000).done) == 2
    with opened(path, clock, read_only=read_only) as store:
        topic = store.topic("t")
        list(topic.read(offset=0))  # the first read lists the directory
        for _ in range(3):
            for offset, limit in ((0, 1), (299, 1), (300, 1), (17, 200), (300, 300)):
                found = short(topic, offset=offset, limit=limit)
                assert found == by_snapshot(topic, offset=offset, limit=limit)
                assert [item.offset for item in found] == list(range(offset, offset + limit))
                assert found[0].value == b"%050d" % offset


def test_reads_of_the_active_segment_need_no_snapshot(path: Path, clock: Clock) -> None:
    with opened(path, clock) as store:
        topic = store.topic("t")
        topic.append(b"opens the writer", sync=True)
        for grown in range(3):
            for offset, limit in ((600, 1), (699, 2 + grown), (600, 101 + grown)):
                found = short(topic, offset=offset, limit=limit)
                assert found == by_snapshot(topic, offset=offset, limit=limit)
                assert [item.offset for item in found] == list(range(offset, offset + limit))
            topic.append(b"more", sync=True)
        topic.append(b"pending")
        with pytest.raises(AssertionError, match="took a snapshot"):
            short(topic, offset=704, limit=1)  # a snapshot flushes it first
        topic.roll()
        list(topic.read(offset=0))  # lists the directory again
        assert short(topic, offset=600, limit=3)[0].value == b"%050d" % 600
        topic.append(b"in the next segment", sync=True)
        assert short(topic, offset=705, limit=1)[0].value == b"in the next segment"


def test_a_block_of_the_active_segment_is_verified_each_time_it_comes_from_the_disk(
    path: Path, clock: Clock
) -> None:
    with opened(path, clock) as store:
        topic = store.topic("t")
        topic.append(b"opens the writer", sync=True)
        before = short(topic, offset=600, limit=1)
        flip(path, clock, 600)
        with pytest.raises(tiered.CorruptionError):
            list(topic.read(offset=600, limit=1))
        flip(path, clock, 600, back=True)
        assert [short(topic, offset=600, limit=1) for _ in range(3)] == [before] * 3
        flip(path, clock, 600)
        assert short(topic, offset=600, limit=1) == before, "from memory"


def test_reads_of_a_segment_that_another_process_writes_need_no_snapshot(path: Path, clock: Clock) -> None:
    """But the first one of new records, which syncs them."""
    with opened(path, clock) as store, opened(path, clock, read_only=True) as other:
        topic, beside = store.topic("t"), other.topic("t")
        for grown in range(3):
            topic.append(b"more", sync=True)
            with pytest.raises(AssertionError, match="took a snapshot"):
                short(beside, offset=700 + grown, limit=1)
            assert by_snapshot(beside, offset=700 + grown, limit=1) == by_snapshot(
                topic, offset=700 + grown, limit=1
            )
            for offset, limit in ((600, 1), (699, 2 + grown), (600, 101 + grown)):
                assert short(beside, offset=offset, limit=limit) == by_snapshot(
                    topic, offset=offset, limit=limit
                )
        topic.roll()
        assert short(beside, offset=600, limit=3)[0].value == b"%050d" % 600
        topic.append(b"in the next segment", sync=True)
        list(beside.read(offset=703, limit=1))
        assert short(beside, offset=703, limit=1)[0].value == b"in the next segment"
        topic.delete_before(701)
        assert outcome(list, beside, 600, 1) == outcome(by_list, beside, 600, 1)
        store.delete_topic("t")
        store.create_topic("t").append_many([b"another log"] * 800)
        store.flush()
        with pytest.raises(tiered.TopicNotFound):
            list(beside.read(offset=702, limit=1))
        assert next(other.topic("t").read(offset=702, limit=1)).value == b"another log"


def test_a_segment_of_another_process_in_the_place_of_another_is_read_anew(path: Path, clock: Clock) -> None:
    """A copy of the directory that went on by itself, as after a restore."""
    shutil.copytree(path, path.parent / "copy")
    with opened(path, clock) as store:
        store.topic("t").append(b"lost", sync=True)
    with opened(path, clock, read_only=True) as beside:
        topic = beside.topic("t")
        assert [next(iter(topic.read(offset=700, limit=1))).value for _ in range(3)] == [b"lost"] * 3
        shutil.rmtree(path)
        (path.parent / "copy").rename(path)
        with opened(path, clock) as store:
            store.topic("t").append_many([b"kept"] * 100)
        assert next(topic.read(offset=700, limit=1)).value == b"kept"


@pytest.mark.parametrize("left", [0, 100, 4096])
def test_a_segment_of_another_process_that_became_shorter_is_read_anew(
    path: Path, clock: Clock, left: int
) -> None:
    """Its map would end this process."""
    with opened(path, clock, read_only=True) as beside:
        topic = beside.topic("t")
        list(topic.read(offset=699, limit=1))
        assert short(topic, offset=699, limit=1)
        os.truncate(path / "topics" / "t" / "0" / f"{600:020}-0.log", left)
        assert outcome(list, topic, 699, 1) == outcome(by_list, topic, 699, 1)


def test_a_block_of_another_process_is_verified_each_time_it_comes_from_the_disk(
    path: Path, clock: Clock
) -> None:
    with opened(path, clock, read_only=True) as beside:
        topic = beside.topic("t")
        before = by_snapshot(topic, offset=600, limit=1)
        flip(path, clock, 600)
        with pytest.raises(tiered.CorruptionError):
            short(topic, offset=600, limit=1)
        flip(path, clock, 600, back=True)
        assert [short(topic, offset=600, limit=1) for _ in range(3)] == [before] * 3
        flip(path, clock, 600)
        assert short(topic, offset=600, limit=1) == before, "from memory"


def test_the_file_of_a_segment_that_was_active_is_let_go(path: Path, clock: Clock) -> None:
    """Removed and mapped, it would take room on the disk."""
    with opened(path, clock) as store:
        topic = store.topic("t")
        topic.append(b"opens the writer", sync=True)
        for _ in range(3):
            assert short(topic, offset=600, limit=1)
        topic.roll()
        assert f"{600:020}-0.log" in maps()
        topic.delete_before(701)
        topic.append(b"more", sync=True)
        store.tier()
        list(topic.read(offset=701))
        assert not (path / "topics" / "t" / "0" / f"{600:020}-0.log").exists()
        assert f"{600:020}-0.log" not in maps()
        assert store.context.blocks.bytes == 0


def maps() -> str:
    gc.collect()
    return Path("/proc/self/maps").read_text()


def test_without_the_file_of_the_active_segment_the_error_is_that_of_a_snapshot(
    path: Path, clock: Clock
) -> None:
    with opened(path, clock) as store:
        topic = store.topic("t")
        topic.append(b"opens the writer", sync=True)
        (path / "topics" / "t" / "0" / f"{600:020}-0.log").unlink()
        assert outcome(list, topic, 600, 1) == outcome(by_list, topic, 600, 1)


SCHEMA = pa.schema([("s", pa.string()), ("n", pa.int64()), ("l", pa.list_(pa.int32()))])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "s": st.none() | st.text(max_size=5),
            "n": st.none() | st.integers(-5, 5),
            "l": st.none() | st.lists(st.integers(0, 3), max_size=3),
        }
    ),
    min_size=1,
    max_size=60,
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.none() | st.binary(max_size=200),
            "key": st.none() | st.binary(max_size=3),
            "headers": st.none()
            | st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2))),
            "timestamp": st.none() | st.integers(-1 << 40, 1 << 40),
        }
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.extended
@settings(max_examples=25)
@given(data=st.data(), typed=st.booleans(), codec=st.sampled_from(["off", "lz4"]))
def test_short_reads_are_reads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, typed: bool, codec: str
) -> None:
    """Of any rows, with columns that came later, over rolls, re-encodings and moved start offsets."""
    path = tmp_path_factory.mktemp("store") / "data"
    clock = Clock()
    policy = rules() if codec == "off" else rules(compress={"codec": codec, "after": "1h"})
    with opened(path, clock, settings=policy) as store:
        topic = store.create_topic("t", schema=SCHEMA, key="s") if typed else store.create_topic("t")
        end = 0
        for _ in range(data.draw(st.integers(1, 3))):
            rows = data.draw(ROWS if typed else RECORDS)
            topic.append_many(rows)
            end += len(rows)
            if data.draw(st.booleans()):
                topic.roll()
            else:
                topic.flush()
            if typed and data.draw(st.booleans()) and "more" not in topic.schema.names:
                topic.add_columns(pa.schema([("more", pa.string())]))
        if codec != "off":
            store.tier((clock() + 2 * HOUR_US) // 1000)
        start = data.draw(st.integers(0, end))
        topic.delete_before(start)
        with opened(path, clock, read_only=True) as other:
            for reader in (topic, other.topic("t")):
                for _ in range(8):
                    offset, limit = data.draw(st.integers(-1, end + 1)), data.draw(st.integers(0, 70))
                    assert outcome(list, reader, offset, limit) == outcome(by_list, reader, offset, limit)
    shutil.rmtree(path.parent)


def by_list(reader: Any) -> list[tiered.Record]:
    return list(reader)


def outcome(how: Any, topic: tiered.Topic, offset: int, limit: int) -> Any:
    try:
        if how is list:
            return list(topic.read(offset=offset, limit=limit))
        return by_snapshot(topic, offset=offset, limit=limit)
    except tiered.TieredError as error:
        return type(error), str(error)


def test_what_retention_takes_is_gone_at_once_in_every_process(path: Path, clock: Clock) -> None:
    with opened(path, clock) as store, opened(path, clock, read_only=True) as other:
        topic, beside = store.topic("t"), other.topic("t")
        topic.append(b"opens the writer")
        for reader in (topic, beside):
            list(reader.read(offset=0))
            for _ in range(3):
                assert short(reader, offset=10, limit=1)[0].offset == 10
        topic.delete_before(11)
        for reader in (topic, beside):
            with pytest.raises(tiered.OffsetOutOfRange):
                list(reader.read(offset=10, limit=1))
            assert short(reader, offset=11, limit=1)[0].offset == 11


def test_the_lineage_is_read_again_after_a_restore_and_not_at_each_read(tmp_path: Path, clock: Clock) -> None:
    """What was whole of the lost log says nothing of the one that is in its place."""
    path, bucket = tmp_path / "data", f"file://{tmp_path}/bucket"
    shipped = rules(offload={"after": "1h", "tail_interval": "10s"})
    with opened(path, clock, settings=shipped, cold=bucket) as store:
        topic = store.create_topic("t")
        with store.transaction() as transaction:
            transaction.append_many(topic, [b"old"] * 50)
        topic.roll()
        store.tierer.tail_pass()
    settled = time.time_ns() - 2 * SETTLED_NS
    os.utime(path / "topics/t/0/lineage.json", ns=(settled, settled))
    with opened(path, clock, read_only=True) as other:
        beside, reads = other.topic("t"), []
        list(beside.read(offset=0))
        with patch("tiered.engine.point_read.read_lineage", lambda at: reads.append(at) or read_lineage(at)):
            for offset in range(10):
                assert short(beside, offset=offset, limit=1)[0].value == b"old"
            assert len(reads) == 1
            tiered.restore(bucket, tmp_path / "back", settings=shipped, host=Host(clock=clock)).close()
            shutil.rmtree(path)
            (tmp_path / "back").rename(path)
            assert [record.value for record in beside.read(offset=10, limit=1)] == [b"old"]
            assert len(reads) == 2
            assert beside.opened.whole_ends[0][0] == 2


def test_a_topic_that_was_created_again_has_nothing_of_the_old_one(path: Path, clock: Clock) -> None:
    with opened(path, clock) as store, opened(path, clock, read_only=True) as other:
        beside = other.topic("t")
        list(beside.read(offset=0))
        for _ in range(3):
            assert short(beside, offset=10, limit=1)
        old = store.topic("t")
        store.delete_topic("t")
        with pytest.raises(tiered.TopicNotFound):
            list(beside.read(offset=10, limit=1))
        topic = store.create_topic("t")
        topic.append_many([b"new"] * 50)
        topic.roll()
        with pytest.raises(tiered.TopicNotFound):
            list(beside.read(offset=10, limit=1))
        with pytest.raises(tiered.TopicNotFound):
            list(old.read(offset=10, limit=1))
        assert next(other.topic("t").read(offset=10, limit=1)).value == b"new"


def test_a_closed_store_reads_nothing(path: Path, clock: Clock) -> None:
    store = opened(path, clock, read_only=True)
    topic = store.topic("t")
    list(topic.read(offset=0))
    started = topic.read(offset=0, limit=300)
    next(started)
    store.close()
    with pytest.raises(tiered.StoreClosed):
        list(topic.read(offset=0, limit=1))
    with pytest.raises(tiered.StoreClosed):
        list(started)


def flip(path: Path, clock: Clock, record: int = 10, *, back: bool = False) -> None:
    """Change a byte of a record on the disk, or change it back, and leave the file's time of change as it was."""
    base = f"{record // 300 * 300:020}"
    (segment,) = [item for item in (path / "topics" / "t" / "0").iterdir() if item.name.startswith(base)]
    data, status = segment.read_bytes(), segment.stat()
    value = b"%050d" % record
    at = data.index(b"9" + value[1:] if back else value)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"0" if back else b"9")
    os.utime(segment, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_block_is_verified_each_time_it_comes_from_the_disk(path: Path, clock: Clock) -> None:
    """A mapped page can be read again from a rotten disk; what was copied into memory cannot change."""
    with opened(path, clock, read_only=True) as store:
        topic = store.topic("t")
        list(topic.read(offset=0))
        assert short(topic, offset=10, limit=1)
        assert len(store.context.blocks) == 0, "a block that was read once is not kept"
        flip(path, clock)
        with pytest.raises(tiered.CorruptionError):
            list(topic.read(offset=10, limit=1))


def test_a_copied_block_is_right_though_the_disk_is_not(path: Path, clock: Clock) -> None:
    with opened(path, clock, read_only=True) as store:
        topic = store.topic("t")
        list(topic.read(offset=0))
        before = [short(topic, offset=10, limit=1) for _ in range(3)]
        assert len(store.context.blocks) == 1
        flip(path, clock)
        assert short(topic, offset=10, limit=1) == before[0]


def test_a_file_in_the_place_of_another_is_read_anew(path: Path, clock: Clock) -> None:
    """Though it has the same segment id and generation, as a file that a repair or an operator puts there."""
    with opened(path, clock, read_only=True) as store:
        topic = store.topic("t")
        list(topic.read(offset=0))
        for _ in range(3):
            assert short(topic, offset=10, limit=1)
        assert len(store.context.blocks) == 1
        segment = path / "topics" / "t" / "0" / f"{0:020}-0.log"
        other = segment.with_suffix(".other")
        other.write_bytes(segment.read_bytes().replace(b"%050d" % 10, b"%050d" % 99))
        other.replace(segment)
        with pytest.raises(tiered.CorruptionError):
            list(topic.read(offset=10, limit=1))
        assert len(store.context.blocks) == 0


def test_blocks_of_a_file_that_is_gone_are_let_go(path: Path, clock: Clock) -> None:
    with opened(path, clock) as store:
        topic = store.topic("t")
        topic.append(b"opens the writer", sync=True)
        list(topic.read(offset=0))
        for _ in range(3):
            assert short(topic, offset=10, limit=1)
        assert store.context.blocks.bytes > 0
        with opened(path, clock, read_only=True):
            pass
        for name in (path / "topics" / "t" / "0").glob(f"{0:020}-*.log"):
            name.unlink()
        store.context.tiers.release_removed()
        assert store.context.blocks.bytes == 0


@pytest.mark.extended
def test_the_cache_stays_within_its_share_of_memory(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%0500d" % i for i in range(8000)])
        topic.roll()
        list(topic.read(offset=0))
        blocks, limit = store.context.blocks, store.context.memory.bytes_max
        for _ in range(3):
            for offset in range(0, 8000, 5):
                assert short(topic, offset=offset, limit=1)[0].value == b"%0500d" % offset
                assert blocks.bytes <= limit // 4
        assert blocks.bytes > limit // 8
        assert store.context.memory.bytes + blocks.bytes <= limit


def test_long_reads_take_a_snapshot(path: Path, clock: Clock) -> None:
    with opened(path, clock) as store, patch.object(point_read, "ROWS_MAX", 100):
        topic = store.topic("t")
        list(topic.read(offset=0))
        assert len(short(topic, offset=0, limit=100)) == 100
        with pytest.raises(AssertionError, match="took a snapshot"):
            short(topic, offset=0, limit=101)
