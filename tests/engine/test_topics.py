"""Topics: where records go, what typed ones accept, how they grow, and what is read on and deleted of them."""

from __future__ import annotations

import threading
import time
import zlib
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    OFFLOAD_US,
    committer_of,
    evict_all,
    in_threads,
    local_segments,
    offsets_by_partition,
    open_store,
    stepwise,
    tier,
    values,
)
from tiered.engine import read as reads
from tiered.engine.host import Host
from tiered.format.schema import HEADERS_TYPE
from tiered.warm.filesystem import OsFileSystem

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("city", pa.string()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)


# -- placing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", [b"k", "k", "Zürich", b"\xff\x00", 0, 7, -12, 2**70, bytearray(b"ba"), "0"], ids=repr
)
def test_a_key_is_placed_by_crc32(store: tiered.Store, key: Any) -> None:
    """As librdkafka does: str by its UTF-8, an int by its decimal text. By every way in, and found by it."""
    raw = key.encode() if isinstance(key, str) else str(key).encode() if isinstance(key, int) else bytes(key)
    topic = store.create_topic("t", partitions=5)
    expected = zlib.crc32(raw) % 5
    assert topic.append(b"1", key=key) == (expected, 0)
    assert topic.append_many([{"value": b"2", "key": key}, tiered.Record(b"3", key=key)]) == [
        (expected, 1, 3)
    ]
    assert topic.append_batch(pa.table({"key": [raw], "value": [b"4"]})) == [(expected, 3, 4)]
    assert values(topic.scan(key=key)) == [b"1", b"2", b"3", b"4"]
    assert {record.key for record in topic.read(expected)} == {raw}


def test_an_explicit_partition_wins_over_the_key(store: tiered.Store) -> None:
    """So a key filter looks at every partition."""
    topic = store.create_topic("t", partitions=4)
    for partition in range(4):
        assert topic.append(b"%d" % partition, key=b"k", partition=partition) == (partition, 0)
    assert values(topic.scan(key=b"k")) == [b"0", b"1", b"2", b"3"]


def test_records_without_a_key_stick_to_a_partition_until_its_block_is_full(
    tmp_path: Path, clock: Clock
) -> None:
    """Then the next: full blocks, and all partitions get the same share."""
    with open_store(tmp_path / "data", None, clock, settings=stepwise({"block_bytes": 2000})) as store:
        topic = store.create_topic("t", partitions=3)
        places = [topic.append(b"x" * 76, key=(None, b"", "")[i % 3]).partition for i in range(300)]
        changes = sum(a != b for a, b in pairwise(places))
        assert 10 <= changes <= 20
        assert all(80 <= places.count(partition) <= 120 for partition in range(3))
        assert offsets_by_partition(topic.scan().to_arrow()) == {
            partition: list(range(places.count(partition))) for partition in range(3)
        }


def test_rows_of_a_typed_topic_are_placed_by_their_key_column(store: tiered.Store) -> None:
    topic = store.create_topic("t", partitions=4, schema=SCHEMA, key="city")
    cities = ["Bern", "Oslo", "Zürich", "Rom"]
    for city in cities:
        assert topic.append({"city": city}).partition == zlib.crc32(city.encode()) % 4
    topic.append_batch(pa.table({"city": cities}))
    table = topic.scan().to_arrow()
    for city, partition in zip(table["city"].to_pylist(), table["partition"].to_pylist(), strict=True):
        assert partition == zlib.crc32(city.encode()) % 4
    assert topic.scan(key="Oslo").to_arrow()["city"].to_pylist() == ["Oslo", "Oslo"]


def test_a_topic_that_exists_is_accepted_if_it_is_the_one_that_was_meant(store: tiered.Store) -> None:
    """A program that makes its topics when it starts still does once they have grown."""
    store.create_topic("t", partitions=2, schema=SCHEMA, timestamp="at", key="city")

    def again(**asked: Any) -> tiered.Topic:
        return store.create_topic("t", exist_ok=True, **asked)

    assert again().partitions == again(schema=SCHEMA, timestamp="at", key="city").partitions == 2
    store.topic("t").add_columns(pa.schema([("note", pa.string())]))
    assert again(schema=SCHEMA, timestamp="at", key="city").schema.names == [*SCHEMA.names, "note"]
    for asked, message in (
        ({"key": "city"}, "exists with timestamp='at', not None"),
        ({"timestamp": "at"}, "exists with key='city', not None"),
    ):
        with pytest.raises(tiered.TopicExists, match=message):
            again(schema=SCHEMA, **asked)


# -- typed topics ----------------------------------------------------------------------------------


def test_a_timestamp_column_is_the_record_timestamp(store: tiered.Store, clock: Clock) -> None:
    """Where it is null, and in topics without one, it is the time of the append."""
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    now = datetime.fromtimestamp(clock() / 1e6, UTC)
    topic = store.create_topic("t", schema=SCHEMA, timestamp="at")
    topic.append({"at": moment})
    topic.append({"city": "Bern"})
    topic.append_batch(pa.table({"at": pa.array([moment, None], pa.timestamp("ns", "UTC"))}))
    table = topic.scan().to_arrow()
    assert table["timestamp"].to_pylist() == [moment, now, moment, now]
    assert table["at"].to_pylist() == [moment, None, moment, None]
    assert topic.scan(end_timestamp=now).to_arrow()["offset"].to_pylist() == [0, 2]


def test_missing_columns_are_null_by_every_way_in(store: tiered.Store) -> None:
    topic = store.create_topic("t", schema=SCHEMA)
    topic.append({})
    topic.append({"city": "Bern"})
    topic.append_many([{"tags": ["a", None]}, {"amount": 1}])
    topic.append_batch(pa.table({"city": ["Rom"]}))
    rows = topic.scan(columns=SCHEMA.names).to_arrow().to_pylist()
    empty = dict.fromkeys(SCHEMA.names)
    assert rows == [
        empty, {**empty, "city": "Bern"}, {**empty, "tags": ["a", None]}, {**empty, "amount": 1.0}, {**empty, "city": "Rom"},
    ]  # fmt: skip


def test_data_of_other_libraries_is_appended_as_it_is(store: tiered.Store) -> None:
    """Polars exports views, pandas and Arrow dictionaries: all become the topic's plain types."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    topic = store.create_topic("t", schema=SCHEMA)
    columns = {"city": ["Bern", None], "amount": [1.5, 2.5]}
    topic.append_batch(polars.DataFrame(columns))
    topic.append_batch(polars.DataFrame(columns).with_columns(polars.col("city").cast(polars.Categorical)))
    topic.append_batch(
        pa.table({"city": pa.array(columns["city"]).dictionary_encode(), "amount": columns["amount"]})
    )
    topic.append_batch(pandas.DataFrame(columns).convert_dtypes())
    topic.append_batch(pa.RecordBatchReader.from_batches(pa.schema([("amount", pa.float32())]), []))
    rows = topic.scan(columns=["city", "amount"]).to_arrow().to_pylist()
    assert rows == [{"city": "Bern", "amount": 1.5}, {"city": None, "amount": 2.5}] * 4


def test_a_null_in_the_place_of_a_header_is_no_header(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions took one from Arrow data; it must not end every read that comes to it."""
    monkeypatch.setattr("tiered.format.schema._check_headers", lambda headers: None)
    topic = store.create_topic("orders")
    headers = pa.array([[None, {"key": "h", "value": b"v"}]], HEADERS_TYPE)
    topic.append_batch(pa.table({"value": [b"v"], "headers": headers}))
    assert [record.headers for record in topic.read()] == [(("h", b"v"),)]


def test_what_was_appended_does_not_change_with_the_callers_objects(store: tiered.Store) -> None:
    """An append copies: a list that is changed afterwards changes nothing, and can break nothing."""
    topic = store.create_topic("t", schema=SCHEMA)
    tags: list[Any] = ["a"]
    topic.append({"tags": tags})
    tags.append("later")
    assert topic.scan().to_arrow()["tags"].to_pylist() == [["a"]]


# -- growing ---------------------------------------------------------------------------------------


def test_who_looked_a_topic_up_before_it_grew_can_still_publish(store: tiered.Store, clock: Clock) -> None:
    """Another thread has told the bucket of the new columns by then: that is no newer lineage."""
    topic = store.create_topic("t", schema=SCHEMA)
    topic.append({"city": "Bern"})
    before = topic.opened.meta
    topic.add_columns(pa.schema([("more", pa.int64())]))
    tier(store, clock, OFFLOAD_US)
    assert committer_of(store, before, 0).known_head.end_offset == 1


def test_a_schema_that_no_segment_can_hold_is_refused_at_once(store: tiered.Store) -> None:
    """Not by the first append, when the topic is there already, nor by one after it grew."""
    wide = pa.struct([(f"{'n' * 200}{i:05}", pa.int8()) for i in range(20_000)])
    with pytest.raises(tiered.SchemaMismatch, match="over the limit of 4194304"):
        store.create_topic("wide", schema=pa.schema([("c", wide)]))
    assert store.topics() == []
    topic = store.create_topic("t", schema=SCHEMA)
    with pytest.raises(tiered.SchemaMismatch, match="over the limit of 4194304"):
        topic.add_columns(pa.schema([("c", wide)]))
    topic.append({"city": "Bern"}, sync=True)
    assert topic.scan().to_arrow()["city"].to_pylist() == ["Bern"]


def test_columns_are_added_with_rows_pending_and_others_being_appended(store: tiered.Store) -> None:
    """Pending rows and those of the old schema read as null; nothing is lost or reordered."""
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]), partitions=2)
    stop = threading.Event()
    counts = [0, 0]

    def append_rows() -> None:
        while not stop.is_set():
            topic.append({"n": counts[0]}, partition=0)
            counts[0] += 1

    def append_batches() -> None:
        while not stop.is_set():
            topic.append_batch(pa.table({"n": [counts[1], counts[1] + 1]}), partition=1)
            counts[1] += 2

    def grow() -> None:
        try:
            for i in range(5):
                time.sleep(0.01)
                topic.add_columns(pa.schema([(f"c{i}", pa.string())]))
                topic.append({"n": -1, f"c{i}": f"new {i}"}, partition=0)
        finally:
            stop.set()

    in_threads(append_rows, append_batches, grow)
    table = topic.scan().to_arrow()
    assert table.schema.names[4:] == ["n", "c0", "c1", "c2", "c3", "c4"]
    rows = table.to_pylist()
    for partition in (0, 1):
        mine = [row["n"] for row in rows if row["partition"] == partition and row["n"] != -1]
        assert mine == list(range(counts[partition]))
    for i in range(5):
        assert [row[f"c{i}"] for row in rows if row[f"c{i}"] is not None] == [f"new {i}"]


@pytest.mark.extended
def test_adding_columns_to_many_partitions_on_a_slow_disk_breaks_no_append(
    tmp_path: Path, clock: Clock
) -> None:
    class SlowDisk(OsFileSystem):
        slow = False

        def sync(self, fd: int) -> None:
            if self.slow:
                time.sleep(0.03)
            super().sync(fd)

    disk = SlowDisk()
    with tiered.open(tmp_path / "data", settings=stepwise(), host=Host(clock, disk)) as store:
        topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]), partitions=16)
        for partition in range(16):
            topic.append({"n": 0}, partition=partition)
        disk.slow = True
        growing = threading.Thread(target=topic.add_columns, args=(pa.schema([("more", pa.int64())]),))
        growing.start()
        try:
            while growing.is_alive():
                topic.append_batch(pa.table({"n": [1]}), partition=0)
        except RecursionError as error:
            pytest.fail(str(error))  # without its thousand frames
        finally:
            growing.join()
            disk.slow = False


def test_old_rows_read_null_in_added_columns_from_every_tier(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """Also after the store was opened again, and from the bucket alone."""
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
    topic.append({"n": 1})
    topic.roll()
    evict_all(store, clock)
    topic.append({"n": 2})
    topic.add_columns(pa.schema([("city", pa.large_string())]))
    topic.append({"n": 3, "city": "Bern"})
    expected = [(1, None), (2, None), (3, "Bern")]

    def found(topic: tiered.Topic) -> list[tuple[Any, ...]]:
        return [(row["n"], row["city"]) for row in topic.scan().to_arrow().to_pylist()]

    assert found(topic) == expected
    topic.roll()
    evict_all(store, clock)
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        assert found(store.topic("t")) == expected
        assert store.topic("t").scan(columns=["city"]).to_arrow()["city"].to_pylist() == [None, None, "Bern"]
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert found(bucket.topic("t")) == expected


def test_more_partitions_take_keys_at_once_and_are_remembered(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    topic = store.create_topic("t", partitions=1)
    topic.append(b"old", key=b"a")
    topic.add_partitions(3)
    assert topic.append(b"new", key=b"a").partition == zlib.crc32(b"a") % 3
    assert set(topic.offsets()) == {0, 1, 2}
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        assert store.topic("t").partitions == 3
        assert sorted(values(store.topic("t").scan(key=b"a"))) == [b"new", b"old"]


def test_a_reader_beside_the_writer_sees_columns_and_partitions_as_they_are_added(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    """By the handle that it has: records of a partition that it did not know would be missing."""
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
    topic.append({"n": 1}, sync=True)
    with open_store(tmp_path / "data", None, clock, read_only=True) as beside:
        handle = beside.topic("t")
        following = handle.read(0, follow=True)
        assert next(following).value == {"n": 1}
        topic.add_columns(pa.schema([("city", pa.string())]))
        topic.add_partitions(2)
        for partition in (0, 1):
            topic.append({"n": 2, "city": "Bern"}, partition=partition, sync=True)
        assert next(following).value == {"n": 2, "city": "Bern"}
        assert handle.scan().to_arrow()["city"].to_pylist() == [None, "Bern", "Bern"]
        assert handle.offsets()[1].end == handle.offset_at(clock() // 1000 + 1, partition=1) == 1
        assert handle.partitions == 2


def test_a_topic_of_a_bucket_is_opened_whatever_became_of_another(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    for name in ("sound", "damaged"):
        store.create_topic(name).append(b"1")
        store.topic(name).roll()
    tier(store, clock, OFFLOAD_US)
    (document,) = (tmp_path / "bucket" / "damaged").glob("*/topic.json")
    document.write_bytes(b"?")
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert bucket.topics() == ["damaged", "sound"]
        assert values(bucket.topic("sound")) == [b"1"]
        with pytest.raises(tiered.CorruptionError, match=r"damaged/.*topic\.json"):
            bucket.topic("damaged")
        damaged, sound = bucket.status()
        assert "topic.json" in damaged.problem
        assert (sound.problem, sound.end_offset) == ("", 1)


# -- reading on and deleting -------------------------------------------------------------------------


def test_follow_yields_what_is_appended_meanwhile(tmp_path: Path) -> None:
    """Durable records only, in order, until the limit; a flush is not forced by it."""
    with tiered.open(tmp_path / "data", settings=stepwise({"sync_interval": "5ms"})) as store:
        topic = store.create_topic("t")
        topic.append(b"0")

        def append() -> None:
            for i in range(1, 50):
                topic.append(b"%d" % i)
                time.sleep(0.002)

        thread = threading.Thread(target=append)
        thread.start()
        found = [record.value for record in topic.read(offset=0, limit=50, follow=True)]
        thread.join()
        assert found == [b"%d" % i for i in range(50)]


def test_follow_beside_the_writer_yields_what_it_makes_durable(tmp_path: Path) -> None:
    with (
        tiered.open(tmp_path / "data", settings=stepwise()) as store,
        tiered.open(tmp_path / "data", read_only=True) as reader,
    ):
        topic = store.create_topic("t")
        thread = threading.Thread(target=lambda: [topic.append(b"%d" % i, sync=True) for i in range(30)])
        thread.start()
        found = [record.value for record in reader.topic("t").read(limit=30, follow=True)]
        thread.join()
        assert found == [b"%d" % i for i in range(30)]


def test_follow_does_not_show_what_is_not_durable(store: tiered.Store) -> None:
    """It waits until somebody flushes; closing the store ends the wait with an error."""
    topic = store.create_topic("t")
    topic.append(b"durable", sync=True)
    topic.append(b"pending")
    found: list[bytes] = []
    ended: list[BaseException] = []

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(0.005)

    def follow() -> None:
        try:
            for record in topic.read(follow=True):
                found.append(record.value)  # noqa: PERF401 - one by one, so that the test sees each
        except tiered.StoreClosed as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    wait_for(1)
    time.sleep(0.15)  # longer than it waits between two looks
    assert found == [b"durable"]
    topic.flush()
    wait_for(2)
    assert found == [b"durable", b"pending"]
    store.close()
    thread.join(30)
    assert len(ended) == 1


def test_follow_rests_between_looks_where_the_writer_failed(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fenced one wakes whoever waits for it at once, for ever."""
    topic = store.create_topic("t")
    topic.append(b"durable", sync=True)
    done: list[str] = []
    look = reads.snapshot_partition

    def looked(*given: Any, **options: Any) -> Any:
        done.append("look")
        if len(done) > 4:
            raise InterruptedError
        return look(*given, **options)

    monkeypatch.setattr(reads, "snapshot_partition", looked)
    monkeypatch.setattr(store.lifecycle, "pause", lambda _: done.append("rest"))
    records = topic.read(follow=True)
    assert next(records).value == b"durable"
    topic.opened.writer(0).fence("restored elsewhere")
    with pytest.raises(InterruptedError):
        next(records)
    assert done == ["look", "rest", "look", "rest", "look"]


def test_delete_before_hides_at_once_and_frees_files_at_the_next_pass(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """It survives a restart, and reaches the bucket."""
    topic = store.create_topic("t")
    for i in range(3):
        topic.append(b"%d" % i)
        topic.roll()
    tier(store, clock, OFFLOAD_US)
    topic.delete_before(2)
    assert values(topic) == [b"2"]
    assert topic.offsets()[0] == (0, 2, 3)
    assert len(local_segments(tmp_path / "data", "t")) == 4
    tier(store, clock, 0)
    assert len(local_segments(tmp_path / "data", "t")) == 2
    topic.delete_before(1)
    assert topic.offsets()[0].start == 2
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        assert values(store.topic("t")) == [b"2"]
        store.topic("t").delete_before(3)
        assert store.topic("t").append(b"3").offset == 3
        assert values(store.topic("t")) == [b"3"]
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert bucket.topic("t").offsets()[0].start == 2


@pytest.mark.parametrize("sealed", [False, True], ids=["tail", "sealed"])
def test_rows_deleted_before_they_were_published_do_not_stop_what_follows(
    tmp_path: Path, clock: Clock, sealed: bool
) -> None:
    """The bucket's log goes on where the log begins now, in the middle of a segment as well."""
    url = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"0", b"1", b"2"])
        store.flush()
        tier(store, clock, 0)
        if sealed:
            topic.roll()
        topic.append_many([b"3", b"4", b"5", b"6"])
        topic.delete_before(5)
        if sealed:
            topic.roll()
            topic.append(b"7")
            store.flush()
        clock.advance(60)
        tier(store, clock, 0)
        tier(store, clock, OFFLOAD_US)
        expected = [b"5", b"6", b"7"][: 3 if sealed else 2]
        assert values(topic) == expected
        with tiered.open(url) as bucket:
            scan = bucket.topic("t").scan()
            assert scan.offsets[0] == (5, 5 + len(expected))
            assert values(scan) == expected


def test_a_lost_folder_of_topics_is_no_store_without_topics(tmp_path: Path, clock: Clock) -> None:
    """Else a program that creates its topics at its start would begin them anew, beside their data in the bucket."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        assert store.topics() == []
        store.create_topic("t").append(b"v")
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
    (tmp_path / "data" / "topics").rename(tmp_path / "lost")
    with open_store(tmp_path / "data", None, clock) as store:
        for look in (store.topics, lambda: store.create_topic("t", exist_ok=True)):
            with pytest.raises(tiered.CorruptionError, match="topics/ is missing"):
                look()
        assert store.tierer.lags() == []  # what a daemon asks at each tick, which must not end it
    (tmp_path / "lost").rename(tmp_path / "data" / "topics")
    with open_store(tmp_path / "data", None, clock) as store:
        assert values(store.topic("t")) == [b"v"]
