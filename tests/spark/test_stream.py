"""A stream hands out every record once, in order, the same at every replay, wherever the records lie by then."""

from __future__ import annotations

import gc
import json
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tiered.errors import ConfigError, OffsetOutOfRange, TopicNotFound

pytest.importorskip("pyspark.sql.streaming.datasource")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tests.spark.stores import HOUR, ORIGIN_MS, Place, assert_same, expected
from tests.support.clock import Clock as WallClock
from tiered.engine.host import Host
from tiered.flight.client.connection import Connection
from tiered.recovery import bucket_check
from tiered.recovery.point_in_time import rewind_head
from tiered.spark.options import parse_options
from tiered.spark.source import TieredDataSource
from tiered.spark.stream.offsets import ration
from tiered.spark.stream.stream import TieredStreamReader


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """A query as Spark runs it, without Spark: offsets go through text, readers and tasks through pickles."""

    def __init__(self, path: str, topic: str, **options: Any) -> None:
        given = {"path": path, "topic": topic, **{name: str(value) for name, value in options.items()}}
        source = TieredDataSource(given)
        self.clock = Clock()
        parsed = parse_options(source.options, "stream")
        self.reader = TieredStreamReader(parsed, source.schema(), self.clock)
        assert type(source.streamReader(schema=source.schema())) is TieredStreamReader
        self.executor = pickle.loads(pickle.dumps(self.reader))
        self.limit = self.reader.getDefaultReadLimit()

    def initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def latest(self, start: str, limit: Any = None) -> str:
        """Return the end of the next micro-batch, after a pause long enough for the reader to look anew."""
        self.clock.now += 10
        return json.dumps(self.reader.latestOffset(json.loads(start), limit or self.limit))

    def rows(self, start: str, end: str) -> pa.Table:
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        found = [batch for task in tasks for batch in self.executor.read(pickle.loads(pickle.dumps(task)))]
        return pa.Table.from_batches(found) if found else pa.table({"offset": pa.array([], pa.int64())})

    def batches(self, start: str) -> Iterator[tuple[str, str]]:
        """Yield start and end of micro-batches until there is nothing more."""
        while (end := self.latest(start)) != start:
            yield start, end
            start = end


def offsets(**partitions: int) -> str:
    """Return offsets in Kafka's form, which no topic's id pins."""
    return json.dumps({"t": {name[1:]: value for name, value in partitions.items()}})


def bare(text: str) -> str:
    """Return offsets without the id of their topic."""
    document = json.loads(text)
    assert UUID(document.pop("@topicId"))
    assert document.pop("@lineages") == {}
    return json.dumps(document)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[tiered.Store, str]]:
    """A topic `t` of two partitions with 10 and 30 records."""
    with tiered.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=2)
        fill(store, 10, 30)
        yield store, str(tmp_path / "store")


def fill(store: tiered.Store, *counts: int) -> None:
    topic = store.topic("t")
    for partition, count in enumerate(counts):
        topic.append_many([{"value": b"%d" % i, "partition": partition} for i in range(count)])
    store.flush()


@pytest.mark.parametrize("topic", ["records", "flights"])
def test_micro_batches_are_the_scan_cut_in_pieces(place: Place, topic: str) -> None:
    """Over cold, compressed, sealed and active segments, on files and S3; each piece again as it was."""
    stream = Stream(place.path, topic, startingOffsets="earliest", maxOffsetsPerTrigger=3000)
    found = [(start, end, stream.rows(start, end)) for start, end in stream.batches(stream.initial())]
    assert [table.num_rows for _, _, table in found] == [3000, 3000, 2500]
    whole = pa.concat_tables(table for _, _, table in found)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert_same(whole.sort_by(order), expected(place.topic(topic).scan()))
    again = Stream(place.path, topic)
    for start, end, table in reversed(found):
        assert again.rows(start, end).equals(table)


def test_a_bucket_alone_streams_what_was_offloaded(on_s3: Place) -> None:
    stream = Stream(on_s3.bucket, "records", startingOffsets="earliest")
    ((start, end),) = stream.batches(stream.initial())
    assert stream.rows(start, end).num_rows == 4000


def test_a_served_store_is_streamed_with_what_its_writer_still_holds(own: Place) -> None:
    """Planned at the server, which flushes; read from bucket, files and server; replayed from whatever has it by then."""
    topic = own.topic("records")
    with own.store.serve("127.0.0.1:0") as server:
        stream = Stream(server.location, "records", startingOffsets="earliest", maxOffsetsPerTrigger=6000)
        topic.append_many([{"value": b"late", "partition": 1}] * 50)
        found = [(start, end, stream.rows(start, end)) for start, end in stream.batches(stream.initial())]
        assert [table.num_rows for _, _, table in found] == [6000, 2550]
        whole = pa.concat_tables(table for _, _, table in found)
        order = [("partition", "ascending"), ("offset", "ascending")]
        assert_same(whole.sort_by(order), expected(topic.scan()))
        topic.roll()
        own.clock.advance(24 * HOUR)
        for _ in range(2):
            assert not own.store.tier().failed
        again = Stream(server.location, "records")
        for start, end, table in found:
            assert again.rows(start, end).sort_by(order).equals(table.sort_by(order))
        topic.delete_before(100, partition=0)
        with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
            again.rows(*found[0][:2])
        again.reader.stop()
        stream.reader.stop()


def test_a_bucket_is_asked_every_two_seconds_however_often_spark_asks(on_s3: Place) -> None:
    stream = Stream(on_s3.bucket, "records", startingOffsets="latest")
    start = stream.initial()
    stream.latest(start)
    store = stream.reader._store
    assert store is not None
    asked = store.context.tiers.bucket_counts
    for _ in range(100):
        stream.clock.now += 0.01
        assert stream.reader.latestOffset(json.loads(start), stream.limit) == json.loads(start)
    assert store.context.tiers.bucket_counts == asked
    stream.clock.now += 1.1
    stream.reader.latestOffset(json.loads(start), stream.limit)
    assert store.context.tiers.bucket_counts != asked


def test_a_replay_finds_what_moved_to_the_bucket_meanwhile(own: Place) -> None:
    """Planned in warm files, replayed by a new process after they were re-encoded, offloaded and evicted."""
    stream = Stream(own.path, "records", startingOffsets='{"records":{"0":1000,"1":2000,"2":3}}')
    start = stream.initial()
    end = stream.latest(start)
    before = stream.rows(start, end)
    planned = stream.reader.partitions(json.loads(start), json.loads(end))
    assert any(split.tier == "warm" for task in planned for split in task.splits)  # type: ignore[attr-defined]
    own.topic("records").append_many([{"value": b"more", "partition": 0}] * 100)
    own.topic("records").roll()
    own.clock.advance(24 * HOUR)
    for _ in range(2):
        assert not own.store.tier().failed
    restarted = Stream(own.path, "records")
    tasks = restarted.reader.partitions(json.loads(start), json.loads(end))
    assert {split.tier for task in tasks for split in task.splits} >= {"cold"}  # type: ignore[attr-defined]
    assert restarted.rows(start, end).equals(before)
    assert stream.rows(start, end).equals(before)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_a_stream_that_lives_on_holds_no_file_that_is_gone(
    small: tuple[tiered.Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk space of what was evicted since would never come free."""
    monkeypatch.setattr("tiered.reader.tiers.REMOVED_SECONDS", 0.0)
    store, path = small
    stream = Stream(path, "t", startingOffsets="earliest")
    start = stream.initial()
    stream.rows(start, stream.latest(start))
    store.topic("t").delete_before(10, partition=0)
    store.topic("t").delete_before(30, partition=1)
    store.topic("t").roll()
    fill(store, 1, 1)
    store.tier()
    store.close()
    stream.latest(offsets(p0=10, p1=30))
    gc.collect()
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{path}/topics" in line]
    assert not [line for line in held if line.endswith("(deleted)")]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, offsets(p0=10, p1=30)),
        ({"startingOffsets": "latest"}, offsets(p0=10, p1=30)),
        ({"startingOffsets": "earliest"}, offsets(p0=2, p1=0)),
        ({"startingOffsets": '{"t":{"1":-1,"0":7}}'}, offsets(p0=7, p1=30)),
        ({"startingOffsets": "earliest", "partitions": "1"}, offsets(p1=0)),
        ({"startingTimestamp": 1}, offsets(p0=2, p1=0)),
        ({"startingOffsets": '{"t":{"0":0,"1":31}}', "failOnDataLoss": "false"}, offsets(p0=2, p1=30)),
    ],
    ids=str,
)  # fmt: skip
def test_a_stream_starts_where_it_is_told(
    small: tuple[tiered.Store, str], options: dict[str, Any], wanted: str
) -> None:
    """At the latest offsets by default, as in Kafka's source; a text of offsets is always the same."""
    small[0].topic("t").delete_before(2, partition=0)
    assert bare(Stream(small[1], "t", **options).initial()) == wanted


def test_a_start_outside_the_log_is_an_error(small: tuple[tiered.Store, str]) -> None:
    for start in ('{"t":{"0":11,"1":0}}', '{"t":{"0":0,"1":0}}'):
        small[0].topic("t").delete_before(1, partition=0)
        with pytest.raises(OffsetOutOfRange, match="set the option failOnDataLoss to false"):
            Stream(small[1], "t", startingOffsets=start).initial()


def test_a_limit_is_shared_in_proportion_and_kept(small: tuple[tiered.Store, str]) -> None:
    stream = Stream(small[1], "t", startingOffsets="earliest", maxOffsetsPerTrigger=20)
    start = stream.initial()
    assert stream.limit == ReadMaxRows(20)
    assert [bare(end) for _, end in stream.batches(start)] == [offsets(p0=5, p1=15), offsets(p0=10, p1=30)]
    # What Spark says counts, not the option: Trigger.Once asks for everything.
    assert bare(stream.latest(start, ReadAllAvailable())) == offsets(p0=10, p1=30)


@given(
    st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1),
    st.integers(1, 300),
)
def test_a_ration_is_exact_fair_and_leaves_nobody_waiting(
    log: dict[int, tuple[int, int]], limit: int
) -> None:
    starts = {key: start for key, (start, _) in log.items()}
    ends = {key: start + size for key, (start, size) in log.items()}
    shares = {key: end - starts[key] for key, end in ration(starts, ends, limit).items()}
    total = sum(size for _, size in log.values())
    waiting = [key for key, (_, size) in log.items() if size]
    assert shares.keys() == log.keys()
    assert sum(shares.values()) == min(limit, total)
    assert all(0 <= shares[key] <= log[key][1] for key in log)
    if limit >= len(waiting):
        assert all(shares[key] >= 1 for key in waiting)
        assert all(abs(shares[key] - limit * log[key][1] / total) <= len(waiting) for key in waiting) or (
            total <= limit
        )
    # Where there is too little for all, each has its turn, however fast the others grow.
    served: set[int] = set()
    for _ in range(len(waiting)):
        after = ration(starts, ends, min(limit, max(1, len(waiting) - 1)))
        served |= {key for key in waiting if after[key] > starts[key]}
        ends = {key: ends[key] + after[key] - starts[key] for key in ends}
        starts = after
    assert served == set(waiting)


def test_small_micro_batches_wait_for_more_but_not_for_ever(small: tuple[tiered.Store, str]) -> None:
    """The first takes what it finds, as in Kafka's source; `AvailableNow` never waits."""
    store, path = small
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1m"}
    stream = Stream(path, "t", **options)
    assert stream.limit == ReadMinRows(5)
    start = stream.latest(stream.initial())
    assert bare(start) == offsets(p0=10, p1=30)
    fill(store, 4)
    assert stream.latest(start) == start
    assert bare(stream.latest(start, ReadAllAvailable())) == offsets(p0=14, p1=30)
    fill(store, 1)
    start = stream.latest(start)
    assert bare(start) == offsets(p0=15, p1=30)
    fill(store, 1)
    assert stream.latest(start) == start
    stream.clock.now += 60
    assert bare(stream.latest(start)) == offsets(p0=16, p1=30)
    once = Stream(path, "t", **{**options, "minOffsetsPerTrigger": 100, "maxOffsetsPerTrigger": 100})
    once.reader.prepareForTriggerAvailableNow()
    for from_here in (once.initial(), start):
        assert bare(once.latest(from_here)) == offsets(p0=16, p1=30)


def test_available_now_ends_at_what_there_was(small: tuple[tiered.Store, str]) -> None:
    """Also where records and partitions come meanwhile."""
    store, path = small
    stream = Stream(path, "t", startingOffsets="earliest", maxOffsetsPerTrigger=15)
    stream.reader.prepareForTriggerAvailableNow()
    start, sizes = stream.initial(), []
    store.topic("t").add_partitions(3)
    while (end := stream.latest(start)) != start:
        fill(store, 5, 5, 5)
        sizes.append(stream.rows(start, end).num_rows)
        start = end
    assert (bare(start), sum(sizes), max(sizes)) == (offsets(p0=10, p1=30), 40, 15)
    assert bare(json.dumps(stream.reader.reportLatestOffset())) == offsets(p0=25, p1=45, p2=15)


def test_available_now_may_start_beyond_what_there_was(small: tuple[tiered.Store, str]) -> None:
    """Spark asks for the target first, then for the start of a new query: the log may have grown in between."""
    store, path = small
    stream = Stream(path, "t")
    stream.reader.prepareForTriggerAvailableNow()
    store.topic("t").add_partitions(3)
    fill(store, 1, 2, 3)
    start = stream.initial()
    assert bare(start) == offsets(p0=11, p1=32, p2=3)
    assert stream.reader.latestOffset(json.loads(start), stream.limit) == json.loads(start)
    assert stream.latest(start) == start


def test_a_new_partition_is_read_from_its_first_record(small: tuple[tiered.Store, str]) -> None:
    store, path = small
    stream = Stream(path, "t")
    start = stream.initial()
    store.topic("t").add_partitions(3)
    fill(store, 1, 0, 3)
    end = stream.latest(start)
    assert bare(end) == offsets(p0=11, p1=30, p2=3)
    found = stream.rows(start, end)
    assert sorted(zip(*found.select(["partition", "offset"]).to_pydict().values(), strict=True)) == [
        (0, 10), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    store.topic("t").delete_before(1, partition=2)
    with pytest.raises(OffsetOutOfRange, match="offset 0 of topic 't' partition 2"):
        stream.rows(start, end)


def test_retention_that_overtakes_the_stream_stops_it(small: tuple[tiered.Store, str]) -> None:
    """When it looks for more, when it plans and when it reads; never by leaving something out."""
    store, path = small
    stream = Stream(path, "t", startingOffsets="earliest")
    start, end = offsets(p0=0, p1=0), offsets(p0=10, p1=30)
    tasks = stream.reader.partitions(json.loads(start), json.loads(end))
    store.topic("t").delete_before(20, partition=1)
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss") as found:
        stream.latest(start)
    assert (found.value.start, found.value.end) == (20, 30)
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        stream.rows(start, end)
    store.topic("t").delete_before(30, partition=1)
    store.topic("t").roll()
    store.tier()
    for task in tasks:
        if task.splits[0].partition == 1:  # type: ignore[attr-defined]
            with pytest.raises(OffsetOutOfRange):
                list(stream.executor.read(pickle.loads(pickle.dumps(task))))


def test_a_stream_that_may_lose_data_goes_on_and_says_so(
    small: tuple[tiered.Store, str], caplog: pytest.LogCaptureFixture
) -> None:
    store, path = small
    stream = Stream(path, "t", failOnDataLoss="false", maxOffsetsPerTrigger=10)
    store.topic("t").delete_before(20, partition=1)
    assert stream.rows(offsets(p0=8, p1=5), offsets(p0=10, p1=25))["offset"].to_pylist() == [
        8, 9, 20, 21, 22, 23, 24,
    ]  # fmt: skip
    assert "going on with what is there: offset 5 of topic 't' partition 1" in caplog.text
    # Empty micro-batches over what is gone would only take time.
    assert bare(stream.latest(offsets(p0=10, p1=0))) == offsets(p0=10, p1=30)
    assert stream.rows(offsets(p0=9, p1=5), offsets(p0=10, p1=15))["offset"].to_pylist() == [9]


def test_what_is_lost_is_said_once_and_not_at_every_look(
    small: tuple[tiered.Store, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks a hundred times a second, also where a query waits for more, or for a topic to be there again."""
    store, path = small
    stream = Stream(path, "t", failOnDataLoss="false", minOffsetsPerTrigger=100)
    stream.latest(offsets(p0=10, p1=30))
    looks = 0

    def looked() -> tiered.Topic:
        nonlocal looks
        looks += 1
        return find()

    find = stream.reader._topic
    monkeypatch.setattr(stream.reader, "_topic", looked)
    lost = json.dumps({**json.loads(stream.initial()), "t": {"0": 0, "1": 0}})
    for lose in (lambda: store.topic("t").delete_before(20, partition=1), lambda: store.delete_topic("t")):
        lose()
        caplog.clear()
        looks = 0
        for _ in range(100):
            stream.clock.now += 0.01
            assert stream.reader.latestOffset(json.loads(lost), stream.limit) == json.loads(lost)
        assert len(caplog.records) == 1
        assert looks <= 60
    stream.clock.now += 60
    assert stream.latest(lost) == lost
    assert len(caplog.records) == 2, "said again after a minute"


def test_a_log_that_is_shorter_than_the_checkpoint_says_stops_the_stream(
    small: tuple[tiered.Store, str],
) -> None:
    """An old image of a disk, or a bucket in place of the store that is ahead of it."""
    stream = Stream(small[1], "t")
    beyond = offsets(p0=11, p1=30)
    with pytest.raises(OffsetOutOfRange, match="offset 11"):
        stream.latest(beyond)
    with pytest.raises(OffsetOutOfRange, match="offset 11"):
        stream.rows(offsets(p0=0, p1=0), beyond)
    end = Stream(small[1], "t", startingOffsets="latest").initial()
    assert Stream(small[1], "t", failOnDataLoss="false").latest(beyond) == end


def test_a_deleted_topic_stops_the_stream(small: tuple[tiered.Store, str]) -> None:
    """Also one that is there again under its name, with other records at the same offsets."""
    store, path = small
    stream, lenient = Stream(path, "t", startingOffsets="earliest"), Stream(path, "t", failOnDataLoss="false")
    start = stream.initial()
    end = stream.latest(start)
    lenient.latest(start)
    store.delete_topic("t")
    for ask in (stream.latest, lambda start: stream.rows(start, end)):
        with pytest.raises(TopicNotFound, match="failOnDataLoss"):
            ask(start)
    assert lenient.latest(start) == start
    assert lenient.rows(start, end).num_rows == 0
    store.create_topic("t", partitions=2)
    fill(store, 50, 50)
    for ask in (stream.latest, lambda start: stream.rows(start, end)):
        with pytest.raises(TopicNotFound, match="created again"):
            ask(start)
    # The rows of the batch that was planned are gone; those of the new topic are all new.
    assert lenient.rows(start, end).num_rows == 0
    after = lenient.latest(end)
    assert bare(after) == offsets(p0=50, p1=50)
    assert lenient.rows(end, after).num_rows == 100
    store.delete_topic("t")
    store.create_topic("t")
    with pytest.raises(TopicNotFound, match=r"partitions \[1\]"):
        Stream(path, "t").latest(offsets(p0=0, p1=0))


def test_a_topic_that_was_created_again_while_no_query_ran_stops_it(small: tuple[tiered.Store, str]) -> None:
    """Whether it has as many records as the old one, fewer or more; nothing of it is skipped or taken for the old one's."""
    store, path = small
    stream = Stream(path, "t", startingOffsets="earliest")
    start = stream.initial()
    end = stream.latest(start)
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    for counts in ((0, 0), (10, 30), (90, 70)):
        fill(store, *counts)
        for ask in (lambda: Stream(path, "t").latest(end), lambda: Stream(path, "t").rows(start, end)):
            with pytest.raises(TopicNotFound, match="created again.*failOnDataLoss"):
                ask()
        with pytest.raises(TopicNotFound, match="created again"):
            Stream(path, "t", startingOffsets=end).initial()


def test_a_checkpoint_without_the_id_of_its_topic_goes_on_and_gets_it(
    small: tuple[tiered.Store, str],
) -> None:
    """As an older release wrote it."""
    stream = Stream(small[1], "t")
    old = offsets(p0=4, p1=30)
    end = stream.latest(old)
    assert bare(end) == offsets(p0=10, p1=30)
    assert stream.rows(old, end)["offset"].to_pylist() == [4, 5, 6, 7, 8, 9]
    assert stream.rows(old, offsets(p0=6, p1=30)).num_rows == 2
    assert stream.latest(end) == end
    assert stream.latest(offsets(p0=10, p1=30)) == end


@pytest.fixture(params=["local", "bucket", "served"])
def restored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Where a log is read whose partition 0 was restored up to offset 20, and has grown to 60; the texts of offset 20 and 50 of before.

    As where a machine is lost that had not offloaded everything: what is appended later has the old offsets.
    """
    bucket = (tmp_path / "bucket").as_uri()
    later = datetime.now(UTC) + timedelta(days=1)
    with tiered.open(tmp_path / "old", cold=bucket) as store:
        topic, found = store.create_topic("t", partitions=2), []
        for count in (20, 30):
            topic.append_many([{"value": b"old", "partition": 0}] * count)
            topic.flush()
            found.append(Stream(str(tmp_path / "old"), "t", startingOffsets="latest").initial())
            if count == 20:
                topic.roll()
                store.tier(now=later)
    with tiered.restore(bucket, tmp_path / "new") as store:
        store.topic("t").append_many([{"value": b"new", "partition": 0}] * 40)
        store.topic("t").roll()
        store.tier(now=later)
        places = {"local": str(tmp_path / "new"), "bucket": bucket}
        if request.param == "served":
            places["served"] = store.serve("127.0.0.1:0").location
        yield places[request.param], found


def test_a_log_that_a_restore_cut_below_the_checkpoint_stops_the_stream(
    restored: tuple[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Though it has grown past it since; or goes on from the cut, the same at each replay."""
    path, (shared, undone) = restored
    for ask in (
        lambda: Stream(path, "t").latest(undone),
        lambda: Stream(path, "t").rows(shared, undone),
        lambda: Stream(path, "t", startingOffsets=undone).initial(),
    ):
        with pytest.raises(OffsetOutOfRange, match="from offset 20 on.*offset 50.*has 0 to 60"):
            ask()
    with pytest.raises(OffsetOutOfRange, match="go on from offset 20 by setting the option failOnDataLoss"):
        Stream(path, "t").latest(undone)
    lenient = Stream(path, "t", failOnDataLoss="false", maxOffsetsPerTrigger=30)
    assert lenient.rows(shared, undone).num_rows == 0, "a batch of the old log, run again"
    found = list(lenient.batches(undone))
    assert "from offset 20 on" in caplog.text
    assert [json.loads(end)["t"] for _, end in found] == [{"0": 50, "1": 0}, {"0": 60, "1": 0}]
    for reader in (lenient, Stream(path, "t")):
        rows = pa.concat_tables(reader.rows(start, end) for start, end in found)
        assert rows["offset"].to_pylist() == [*range(20, 60)]
        assert set(rows["value"].to_pylist()) == {b"new"}
        assert reader.latest(found[-1][1]) == found[-1][1]


@pytest.mark.parametrize("rows", [3, 7])
def test_a_checkpoint_of_a_partition_that_was_lost_and_has_other_records_stops_the_stream(
    tmp_path: Path, rows: int
) -> None:
    """The bucket had no record of it when the disk was lost."""
    bucket, new = (tmp_path / "bucket").as_uri(), str(tmp_path / "new")
    with tiered.open(tmp_path / "old", cold=bucket) as store:
        topic = store.create_topic("t")
        topic.append(b"published")
        topic.publish()
        topic.add_partitions(2)
        topic.append_many([{"value": b"lost", "partition": 1}] * 5)
        topic.flush()
        lost = Stream(str(tmp_path / "old"), "t", startingOffsets="latest").initial()
    with tiered.restore(bucket, new) as store:
        store.topic("t").add_partitions(2)
        store.topic("t").append_many([{"value": b"new", "partition": 1}] * rows)
        store.flush()
        with pytest.raises(OffsetOutOfRange, match="from offset 0 on.*offset 5"):
            Stream(new, "t").latest(lost)


def test_a_restore_that_kept_what_was_read_is_gone_on_with(restored: tuple[str, list[str]]) -> None:
    """Also by a checkpoint that says of no lineage, as an older release wrote it: it cannot be told, and is taken as it is."""
    path, (shared, undone) = restored
    stream = Stream(path, "t")
    for text, first in ((shared, 20), (undone.replace(', "@lineages": {}', ""), 50)):
        end = stream.latest(text)
        assert stream.rows(text, end)["offset"].to_pylist() == [*range(first, 60)]
        assert json.loads(end)["@lineages"]["0"] > 1
        assert stream.latest(end) == end
        assert stream.rows(end, end).num_rows == 0


def test_a_partition_that_a_query_leaves_out_stays_where_it_was_over_a_restore(
    restored: tuple[str, list[str]],
) -> None:
    """None of its rows are read, and what was undone of it is reported once the query reads it again."""
    path, (_, undone) = restored
    stream = Stream(path, "t", partitions="1")
    end = stream.latest(undone)
    assert json.loads(end)["t"] == {"0": 50, "1": 0}
    assert stream.rows(undone, end).num_rows == 0
    with pytest.raises(OffsetOutOfRange, match="from offset 20 on"):
        Stream(path, "t").latest(end)


def test_a_query_that_looks_at_a_bucket_in_the_middle_of_a_restore_sees_what_it_undid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has the new lineage before it goes back."""
    bucket, clock = (tmp_path / "bucket").as_uri(), WallClock()
    rules = {"roll": {"age": "1m"}, "offload": {"after": "0s"}}
    settings = tiered.Settings.model_validate({"policies": {"default": rules}})
    host = Host(clock=clock)
    with tiered.open(tmp_path / "old", cold=bucket, settings=settings, host=host) as store:
        store.create_topic("t")
        for count in (20, 30):
            store.topic("t").append_many([b"old"] * count)
            store.flush()
            clock.advance(120)
            for _ in range(2):
                store.tier()
    stream = Stream(bucket, "t", startingOffsets="latest")
    read = stream.initial()
    assert json.loads(read)["t"] == {"0": 50}

    def looked_at(*arguments: Any, **named: Any) -> Any:
        nonlocal read
        read = stream.latest(read)
        return rewind_head(*arguments, **named)

    for module in (
        bucket_check,
        sys.modules["tiered.recovery.restore"],
    ):  # the package has a function of this name
        monkeypatch.setattr(module, "rewind_head", looked_at)
    at = (clock.now_us - 150_000_000) // 1000
    with tiered.restore(bucket, tmp_path / "new", at=at, settings=settings, host=host) as store:
        assert store.topic("t").offsets()[0].end == 20
        store.topic("t").append_many([b"new"] * 40)
        store.topic("t").roll()
        store.tier()
    with pytest.raises(OffsetOutOfRange, match="from offset 20 on"):
        stream.latest(read)


def test_a_query_that_waits_goes_back_all_the_same(restored: tuple[str, list[str]]) -> None:
    """The offset that it has read up to must not get the new lineage: it would skip what is there now."""
    path, (shared, undone) = restored
    stream = Stream(path, "t", failOnDataLoss="false", minOffsetsPerTrigger=100)
    stream.latest(shared)
    back = stream.latest(undone)
    assert json.loads(back)["t"] == {"0": 20, "1": 0}
    assert stream.rows(undone, back).num_rows == 0
    assert stream.latest(back) == back
    assert stream.rows(back, stream.latest(back, ReadAllAvailable())).num_rows == 40


def test_filters_and_columns_hold_in_a_stream(on_files: Place) -> None:
    options = {
        "columns": "offset,value",
        "key": "k3",
        "partitions": "0,2",
        "fromTimestamp": ORIGIN_MS + 1_000_000,
    }
    stream = Stream(on_files.path, "records", startingOffsets="earliest", **options)
    start = stream.initial()
    found = stream.rows(start, stream.latest(start))
    wanted = on_files.topic("records").scan(
        [0, 2], start_timestamp=ORIGIN_MS + 1_000_000, key="k3", columns=["offset", "value"]
    )
    assert found.equals(wanted.to_arrow())
    # A partition that the query left out before, and leaves out again, stays where it was.
    narrowed = Stream(on_files.path, "records", partitions="1")
    end = json.loads(narrowed.latest(json.dumps({"records": {"0": 5, "1": 6, "2": 7}})))["records"]
    assert end == {"0": 5, "1": on_files.topic("records").offsets()[1].end, "2": 7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 6}, "smaller minOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": 0}, "a number from 1"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"path": "/x", "topic": "t", **{name: str(value) for name, value in options.items()}}
    with pytest.raises(ConfigError, match=message):
        TieredDataSource(given).streamReader(schema=None)  # type: ignore[arg-type]


def test_an_older_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches go on with it."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "tiered.spark.stream.stream")
    source = TieredDataSource({"path": "/x", "topic": "t"})
    assert source.reader(schema=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"PySpark 4\.2"):
        source.streamReader(schema=None)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_topic_is_refused(small: tuple[tiered.Store, str]) -> None:
    for text in (
        '{"other": {"0": 1}}', '{"t": {"0": -1}}', '{"t": {"x": 1}}', "7", '{"t": {"0": 1}, "@topicId": "?"}',
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="checkpointLocation"):
            Stream(small[1], "t").latest(text)


def test_the_progress_of_a_query_is_published_as_a_consumer(tmp_path: Path) -> None:
    """From what Spark has completed, over restarts and new partitions; a name that somebody else owns is left alone."""
    with tiered.open(tmp_path / "data") as store, store.serve("127.0.0.1:0") as server:
        store.create_topic("t", partitions=2)
        fill(store, 10, 30)

        def at() -> dict[int, int | None]:
            return {item.partition: item.offset for item in store.consumers() if item.consumer == "job"}

        stream = Stream(server.location, "t", startingOffsets="earliest", consumer="job")
        start = stream.initial()
        end = stream.latest(start)
        assert at() == {}
        stream.reader.commit(json.loads(end))
        assert at() == {0: 10, 1: 30}
        assert all(item.note.startswith("Spark query on ") for item in store.consumers())
        fill(store, 5, 0)
        again = Stream(str(tmp_path / "data"), "t", consumer="job")  # the directory names the server
        later = again.latest(end)
        again.reader.commit(json.loads(later))
        assert at() == {0: 15, 1: 30}
        stream.reader.commit(json.loads(end))  # fenced, and the query goes on
        assert at() == {0: 15, 1: 30}
        store.topic("t").add_partitions(3)
        fill(store, 0, 0, 7)
        again.reader.commit(json.loads(again.latest(later)))
        assert at() == {0: 15, 1: 30, 2: 7}
        with store.topic("t").consumer("job") as consumer:
            assert consumer.position() == {0: 15, 1: 30, 2: 7}
            fill(store, 1, 1, 1)
            again.reader.commit(json.loads(again.latest(later)))
            Stream(server.location, "t", consumer="job").reader.commit(json.loads(again.latest(later)))
            assert at() == {0: 15, 1: 30, 2: 7}
            consumer.commit({0: 16})
        with pytest.raises(ConfigError, match="owned by .*process"):
            Stream(server.location, "t", consumer="job").initial()
    with pytest.raises(ConfigError, match="stored by the process that writes the store"):
        Stream(str(tmp_path / "data"), "t", consumer="job").initial()
    with pytest.raises(ConfigError, match="name of a consumer"):
        Stream(str(tmp_path / "data"), "t", consumer="a\nb")


def test_a_server_that_is_away_is_no_error_of_the_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        fill(store, 1, 1)
        with store.serve("127.0.0.1:0") as server:
            stream = Stream(server.location, "t", startingOffsets="earliest", consumer="job")
            end = json.loads(stream.latest(stream.initial()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "pauses", lambda _: iter(()))
            stream.reader.commit(end)
        assert "published with a later micro-batch" in caplog.text
        assert store.consumers() == []
