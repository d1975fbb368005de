"""A stream whose log lost records, was restored or was deleted stops, or goes on where it may and says so."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tiered.errors import OffsetOutOfRange, TopicNotFound

pytest.importorskip("pyspark.sql.streaming.datasource")
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.micro_batches import Stream, bare, fill, offsets
from tests.support.clock import Clock as WallClock
from tiered.engine.host import Host
from tiered.recovery import bucket_check
from tiered.recovery.point_in_time import rewind_head
from tiered.tiering.claims import Claims


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
@pytest.mark.parametrize("told", [True, False])
def test_a_checkpoint_of_a_partition_that_was_lost_and_has_other_records_stops_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, *, told: bool
) -> None:
    """The bucket had no record of it when the disk was lost, and did not know of it if it had not answered."""
    bucket, new = (tmp_path / "bucket").as_uri(), str(tmp_path / "new")
    with tiered.open(tmp_path / "old", cold=bucket) as store:
        topic = store.create_topic("t")
        topic.append(b"published")
        topic.publish()
        with monkeypatch.context() as outage:
            if not told:
                outage.setattr(Claims, "announce_partitions", lambda *_: None)
            topic.add_partitions(2)
        topic.append_many([{"value": b"lost", "partition": 1}] * 5)
        topic.flush()
        lost = Stream(str(tmp_path / "old"), "t", startingOffsets="latest").initial()
    with tiered.restore(bucket, new) as store:
        assert store.topic("t").partitions == 1 + told
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
