"""A stream hands out every record once, in order, the same at every replay, wherever the records lie by then."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tiered.errors import ConfigError, OffsetOutOfRange

pytest.importorskip("pyspark.sql.streaming.datasource")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tests.spark.micro_batches import Stream, bare, fill, offsets
from tests.spark.stores import HOUR, ORIGIN_MS, Place, assert_same, expected
from tiered.spark.source import TieredDataSource
from tiered.spark.stream.offsets import ration


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
