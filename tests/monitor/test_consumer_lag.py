"""The lag of consumers: exact, from this disk alone, and never in the way of other metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("prometheus_client")

import tiered
from tests.monitor.scenes import requests_of, run, scene, scraped
from tests.support.clock import Clock
from tests.support.s3_server import S3Process
from tiered.cli import app
from tiered.monitor import first_unread
from tiered.monitor.status_page import page_state
from tiered.survey import partition_survey

RECORDS, SECONDS = "tiered_consumer_lag_records", "tiered_consumer_lag_seconds"
UNKNOWN = ("tiered_consumer_positions_unknown",)


def lag(store: tiered.Store, consumer: str, partition: int = 0) -> tuple[float | None, float | None]:
    found = scraped(store)
    labels = f"consumer={consumer}", f"partition={partition}", "topic=t"
    return found.get((RECORDS, *labels)), found.get((SECONDS, *labels))


def fill(store: tiered.Store, clock: Clock, partitions: int = 1) -> tiered.Topic:
    """Ten records a partition, one a second: the last is of now."""
    topic = store.create_topic("t", partitions=partitions)
    for i in range(10):
        when = datetime.fromtimestamp(clock() / 1e6 - 9 + i, UTC)
        for partition in range(partitions):
            topic.append(b"%d" % i, partition=partition, timestamp=when)
    topic.flush()
    return topic


def test_the_lag_follows_positions_records_and_the_clock(tmp_path: Path, clock: Clock) -> None:
    """In the process that writes, and in one beside it, which reads the log on."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock, 2)
        consumer = topic.consumer("billing")
        assert lag(store, "billing") == (None, None)  # no commit yet
        consumer.commit({0: 4, 1: 10}, sync=True)
        with tiered.open(tmp_path / "data", read_only=True) as beside:
            beside.context.clock = clock
            for each in (store, beside):
                assert lag(each, "billing") == (6, 5.0)
                assert lag(each, "billing", 1) == (0, 0.0)
            clock.advance(60)
            topic.append(b"new", partition=1, sync=True)
            consumer.commit({0: 9}, sync=True)
            clock.advance(5)
            for each in (store, beside):
                assert lag(each, "billing") == (1, 65.0)
                assert lag(each, "billing", 1) == (1, 5.0)
                assert scraped(each)[UNKNOWN] == 0
            store.delete_consumer("billing")
            assert [lag(each, "billing") for each in (store, beside)] == [(None, None)] * 2


def test_a_position_below_the_start_counts_what_is_left(tmp_path: Path, clock: Clock) -> None:
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock)
        topic.consumer("billing").commit({0: 2}, sync=True)
        topic.delete_before(7)
        assert lag(store, "billing") == (3, 2.0)
        store.delete_topic("t")
        store.create_topic("t").append(b"other", sync=True)
        assert lag(store, "billing") == (None, None)  # the position is in another topic of this name


def test_the_log_is_read_on_when_it_was_written_anew(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a renewal too, which deletes what a process beside the writer has not read yet."""
    monkeypatch.setattr("tiered.transactions.log_renewal.RENEW_RECORDS_MIN", 20)
    with scene(tmp_path / "data", None, clock) as (store, _):
        consumer = fill(store, clock).consumer("billing")
        consumer.commit({0: 1}, sync=True)
        with tiered.open(tmp_path / "data", read_only=True) as beside:
            assert lag(beside, "billing")[0] == 9
            for i in range(100):
                consumer.commit({0: i % 10}, sync=True)
            assert lag(beside, "billing")[0] == 1
            assert lag(store, "billing")[0] == 1


def test_a_scrape_asks_the_bucket_nothing_also_for_records_that_only_it_has(
    tmp_path: Path, s3_bucket: str, clock: Clock, fast_server: S3Process
) -> None:
    with scene(tmp_path / "data", s3_bucket, clock) as (store, passes):
        topic = fill(store, clock)
        topic.consumer("billing").commit({0: 4}, sync=True)
        topic.roll()
        for _ in range(3):
            clock.advance(3601)
            run(passes)
        assert not [
            path for path in (tmp_path / "data/topics/t/0").glob("*.log") if path.name < "0" * 19 + "1"
        ]
        before = requests_of(fast_server)
        records, seconds = lag(store, "billing")
        assert requests_of(fast_server) == before
        # The earliest record of the object is four seconds older than the first unread one.
        assert (records, seconds) == (6, 3 * 3601 + 9.0)


def test_each_position_reads_one_block_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes without news read nothing, and consumers at one offset share a read."""
    reads: list[int] = []
    first = first_unread._first_timestamp_us

    def counted(segment: object, offset: int) -> int | None:
        reads.append(offset)
        return first(segment, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(first_unread, "_first_timestamp_us", counted)
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock)
        for i in range(5):
            topic.consumer(f"c{i}").commit({0: 4}, sync=True)
        for _ in range(3):
            assert lag(store, "c3") == (6, 5.0)
        assert reads == [4]
        topic.consumer("c1").commit({0: 5}, sync=True)
        assert lag(store, "c1") == (5, 4.0)
        assert reads == [4, 5]


def test_a_damaged_log_takes_no_other_metric_with_it(tmp_path: Path, clock: Clock) -> None:
    """Promise P11: the lag is unknown, and says so; the page says so, too."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        fill(store, clock).consumer("billing").commit({0: 4}, sync=True)
    (path,) = (tmp_path / "data/topics/__transactions/0").glob("*.log")
    size = path.stat().st_size
    for damage in (bytes(10), bytes(size)):
        path.write_bytes(damage)
        with tiered.open(tmp_path / "data", read_only=True) as store:
            found = scraped(store)
            assert found["tiered_tier_records", "tier=warm", "topic=t"] == 10
            assert found[UNKNOWN] == 1
            assert not [name for name in found if name[0] in (RECORDS, SECONDS)]
            assert page_state(store.watched())["consumers"] is None


def test_a_damaged_record_leaves_the_number_of_records(tmp_path: Path, clock: Clock) -> None:
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock)
        topic.roll()
        topic.consumer("billing").commit({0: 4}, sync=True)
    path = min((tmp_path / "data/topics/t/0").glob("*.log"))
    content = bytearray(path.read_bytes())
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert lag(store, "billing")[0] == 6
    for i in range(4096 if len(content) > 5000 else 200, len(content) // 2):
        content[i] ^= 0xFF
    path.write_bytes(content)
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert lag(store, "billing") == (6, None)
        assert scraped(store)[UNKNOWN] == 0


def test_the_page_lists_who_is_behind(tmp_path: Path, clock: Clock) -> None:
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock, 2)
        topic.consumer("billing").commit({0: 4, 1: 10}, sync=True)
        topic.consumer("audit").commit({0: 1, 1: 9}, sync=True)
        shown = page_state(store.watched())["consumers"]
    assert [(item["consumer"], item["partition"], item["records"], item["seconds"]) for item in shown] == [
        ("audit", 0, 9, 8.0),
        ("billing", 0, 6, 5.0),
        ("audit", 1, 1, 0.0),
    ]


def test_the_status_has_who_is_behind_also_over_flight(tmp_path: Path, clock: Clock) -> None:
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock, 2)
        topic.consumer("billing").commit({0: 4, 1: 10}, sync=True)
        (item,) = store.status().consumers or ()
        assert (item.consumer, item.partition, item.position, item.records) == ("billing", 0, 4, 6)
        assert item.seconds(clock()) == 5.0
        with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
            assert remote.status().consumers == (item,)
            assert remote.status().to_json()["consumers"][0]["records"] == 6
    result = CliRunner().invoke(app, ["status", "--path", str(tmp_path / "data")])
    assert (result.exit_code, "consumer billing is 6 records behind in t/0" in result.stdout) == (0, True)
    (path,) = (tmp_path / "data/topics/__transactions/0").glob("*.log")
    path.write_bytes(bytes(10))
    result = CliRunner().invoke(app, ["status", "--path", str(tmp_path / "data")])
    assert (result.exit_code, "positions of consumers cannot be read" in result.stdout) == (1, True)


def test_a_damaged_file_leaves_the_lag_in_the_status(tmp_path: Path, clock: Clock) -> None:
    """It is the problem of its partition; who is behind there is told by a listing."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = fill(store, clock)
        topic.roll()
        topic.consumer("billing").commit({0: 4}, sync=True)
    min((tmp_path / "data/topics/t/0").glob("*.log")).write_bytes(bytes(10))
    with tiered.open(tmp_path / "data", read_only=True) as store:
        status = store.status()
    assert [row.topic for row in status.partitions if row.problem] == ["t"]
    (item,) = status.consumers or ()
    assert (item.consumer, item.records, item.oldest_us) == ("billing", 6, None)


def test_a_bucket_that_does_not_answer_leaves_the_lag_in_the_status(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene(tmp_path / "data", (tmp_path / "bucket").as_uri(), clock) as (store, _):
        fill(store, clock).consumer("billing").commit({0: 4}, sync=True)
        monkeypatch.setattr(partition_survey, "read_published", refused)
        status = store.status()
    assert {row.problem for row in status.partitions} == {"503"}
    (item,) = status.consumers or ()
    assert (item.consumer, item.records, item.oldest_us is None) == ("billing", 6, False)


def refused(*_: object, **__: object) -> None:
    raise tiered.ColdStorageError("503")
