"""A served store: planned at the writer, read from the bucket, the local files or the server, the same rows from each."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import tiered
from tiered.errors import ConfigError, OffsetOutOfRange, ServerUnavailable
from tiered.reader.splits import Tier

pytest.importorskip("pyspark")
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.stores import HOUR, Place, append, assert_same, collected, expected, flight, in_spark
from tests.support.spark_read import direct
from tiered.engine.host import Host
from tiered.flight.client.connection import Connection
from tiered.flight.wire.auth import AccessCheck
from tiered.flight.wire.messages import PlanInfo
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.serving_file import read_notice
from tiered.format.schema import RECORD_SCHEMA
from tiered.format.topic_meta import TopicMeta
from tiered.spark import TieredDataSource, table
from tiered.spark.options import SourceOptions
from tiered.spark.read import remote
from tiered.spark.read.remote import bucket_of
from tiered.warm.bucket_binding import BucketBinding, write_binding
from tiered.warm.filesystem import OsFileSystem

ELSEWHERE: Any = lambda _: None  # noqa: E731 (an executor on another host has no such directory)


@pytest.fixture
def served(own: Place) -> Iterator[tuple[Place, str]]:
    """A store that serves, with records in its memory that no flush has made durable."""
    own.store.close()  # what is in memory is read from there
    host = Host(clock=own.clock)
    with tiered.open(own.path, settings=own.store.context.settings, host=host) as store:
        with store.serve("127.0.0.1:0") as server:
            store.topic("records").append_many([b"in memory"] * 50)
            store.topic("flights").append({**flight(1)})
            yield Place(store, own.path, own.bucket, own.clock), server.location


@pytest.fixture
def flown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Tickets that were redeemed at a server."""
    tickets: list[bytes] = []
    rows = Connection.rows
    monkeypatch.setattr(Connection, "rows", lambda self, ticket: tickets.append(ticket) or rows(self, ticket))
    remote._tiers.cache_clear()
    yield tickets
    remote._tiers.cache_clear()


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["records", "flights"])
def test_each_executor_reads_from_the_nearest_place(
    served: tuple[Place, str], flown: list[bytes], monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """On the writer's host files and bucket; elsewhere, with a bucket that is a directory there, all over Flight."""
    place, location = served
    parts: list[Any] = []
    found = direct(location, topic=topic, check=parts, splitBytes="40KiB")
    wanted = expected(place.topic(topic).scan())
    assert_same(found.sort_by([("partition", "ascending"), ("offset", "ascending")]), wanted)
    assert {split.tier for part in parts for split in part.splits} == set(Tier)
    here = len(flown)
    assert here < sum(len(part.splits) for part in parts)
    monkeypatch.setattr(remote, "directory_id", ELSEWHERE)
    remote._tiers.cache_clear()
    found = direct(location, topic=topic, startingTimestamp=0)
    assert_same(found.sort_by([("partition", "ascending"), ("offset", "ascending")]), wanted)
    assert len(flown) > here


@pytest.mark.extended
def test_a_task_gives_the_same_rows_again_wherever_they_went(
    served: tuple[Place, str], flown: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Re-encoded, offloaded and evicted between attempts; what retention took is an error, never skipped."""
    place, location = served
    source = TieredDataSource({"path": location, "topic": "records", "splitBytes": "60KiB"})
    reader = source.reader(source.schema())
    tasks = [pickle.dumps(part) for part in reader.partitions()]
    order = [("partition", "ascending"), ("offset", "ascending")]

    def read() -> pa.Table:
        batches = [batch for task in tasks for batch in reader.read(pickle.loads(task))]
        return pa.Table.from_batches(batches).sort_by(order)

    wanted = expected(place.topic("records").scan())
    assert_same(read(), wanted)
    append(place.store, 30_000, 30_300)
    place.topic("records").roll()
    place.clock.advance(24 * HOUR)
    for _ in range(2):
        assert not place.store.tier().failed
    for where in (remote.directory_id, ELSEWHERE):
        monkeypatch.setattr(remote, "directory_id", where)
        remote._tiers.cache_clear()
        assert_same(read(), wanted)
    assert flown
    for partition in range(3):
        place.topic("records").delete_before(100, partition=partition)
    # An object of the snapshot that is still there serves its rows; the server goes by the log as it is.
    with pytest.raises(OffsetOutOfRange):
        read()


def test_spark_reads_what_the_writer_holds_in_memory(spark: Any, served: tuple[Place, str]) -> None:
    """Planning flushes; the fast table reads the bucket by itself and the rest through the server."""
    place, location = served
    frame = in_spark(spark, location, topic="records")
    rows = collected(frame)
    wanted = expected(place.topic("records").scan())
    assert_same(rows, wanted)
    fast = table(spark, "records", location)
    place.topic("records").append_many([b"later"] * 10)
    assert_same(collected(fast), wanted)
    assert "FileScan parquet" in str(fast._jdf.queryExecution().executedPlan())


def test_a_local_path_finds_the_writer_that_serves_it(
    served: tuple[Place, str],
    flown: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the writer holds in memory is read, also by a stream; a writer that goes away costs no row."""
    place, _ = served
    topic = place.topic("records")
    source = TieredDataSource({"path": place.path, "topic": "records"})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    wanted = expected(topic.scan())
    topic.append_many([b"later"] * 10)
    stream = source.streamReader(source.schema())
    ends = {str(partition): span.end for partition, span in topic.offsets().items()}
    start = stream.initialOffset()
    assert start["records"] == ends

    def read() -> pa.Table:
        batches = [batch for task in tasks for batch in reader.read(pickle.loads(pickle.dumps(task)))]
        return pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])

    assert_same(read(), wanted)
    assert flown
    (connection,) = {remote._connection(task.plan.locations) for task in tasks}  # type: ignore[attr-defined]
    monkeypatch.setattr(connection, "options", ConnectOptions(retry_seconds=0.1))
    for server in place.store.servers:
        server.close()
    assert_same(read(), wanted)
    assert "reading its rows from" in caplog.text
    monkeypatch.setattr(stream._store.connection, "options", ConnectOptions(retry_seconds=0.1))  # type: ignore[attr-defined]
    assert stream.latestOffset(start, ReadAllAvailable()) == start  # type: ignore[attr-defined]
    stream.stop()


def test_an_executor_that_may_not_read_the_files_asks_the_server(
    served: tuple[Place, str], flown: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the writer's host, as another user."""
    place, location = served
    parts: list[Any] = []
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = direct(location, topic="records", check=parts)
    wanted = expected(place.topic("records").scan())
    assert_same(found.sort_by([("partition", "ascending"), ("offset", "ascending")]), wanted)
    assert len(flown) == sum(len(part.splits) for part in parts)


def test_a_writer_that_goes_away_in_the_middle_of_a_task_costs_no_row(
    served: tuple[Place, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is read from the directory, unless the rows that came do not tell how far they go."""
    place, _ = served
    real = Connection.rows

    def broken(self: Connection, ticket: bytes) -> Iterator[pa.RecordBatch]:
        yield next(real(self, ticket)).slice(0, 7)
        raise ServerUnavailable("by the test")

    monkeypatch.setattr(Connection, "rows", broken)
    wanted = expected(place.topic("records").scan())
    found = direct(place.path, topic="records").sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert_same(found, wanted)
    assert direct(place.path, "value binary", topic="records").num_rows == wanted.num_rows
    with pytest.raises(ServerUnavailable, match="by the test"):
        direct(place.path, "value binary", topic="records", fromTimestamp=0)


@pytest.mark.extended
@pytest.mark.parametrize("call", ["action", "plan"])
def test_a_stream_whose_server_is_gone_in_the_middle_of_a_call_goes_on(
    served: tuple[Place, str], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Between two questions of one look, or when a micro-batch is planned."""
    place, _ = served
    source = TieredDataSource({"path": place.path, "topic": "records", "startingOffsets": "earliest"})
    stream: Any = source.streamReader(source.schema())
    start, real = stream.initialOffset(), getattr(Connection, call)
    end = stream.latestOffset(start, ReadAllAvailable())

    def lost(self: Connection, asked: Any, *arguments: Any, **named: Any) -> Any:
        if call == "plan" or asked == "offsets":
            self.options = ConnectOptions(retry_seconds=0.1)
            for server in place.store.servers:
                server.close()
        return real(self, asked, *arguments, **named)

    monkeypatch.setattr(Connection, call, lost)
    stream._read_at -= 1
    assert stream.latestOffset(start, ReadAllAvailable()) == end
    tasks = stream.partitions(start, end)
    assert sum(batch.num_rows for task in tasks for batch in stream.read(task)) == sum(
        end["records"].values()
    )
    assert all(server._closed.is_set() for server in place.store.servers)  # type: ignore[attr-defined]
    stream.stop()


def test_a_token_that_was_changed_is_taken_up(own: Place, tmp_path: Path) -> None:
    """By a query that goes on, where it plans and in its executors, from the file that the settings name."""
    file, config = tmp_path / "token", tmp_path / "tiered.toml"
    config.write_text(f"[flight]\ntoken_file = {str(file)!r}\n")
    file.write_text("the-first-one")
    first = own.store.serve("127.0.0.1:0", token="the-first-one")
    source = TieredDataSource(
        {"path": first.location, "topic": "records", "config": str(config), "startingOffsets": "earliest"}
    )
    stream: Any = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())

    def rows() -> int:
        tasks = stream.partitions(start, end)
        with_the_server = [replace(task, plan=replace(task.plan, locations=elsewhere)) for task in tasks]
        return sum(batch.num_rows for task in with_the_server for batch in stream.read(task))

    elsewhere = replace(stream.partitions(start, end)[0].plan.locations, root=None, cold_url=None)
    assert rows() == 8500
    first.close()
    file.write_text("the-second-one")
    with own.store.serve(first.location.removeprefix("grpc://"), token="the-second-one"):
        assert rows() == 8500
        assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()


def test_no_token_travels_and_a_dead_server_is_named(own: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    own.store.flush()
    with own.store.serve("127.0.0.1:0", token="very-secret-indeed") as server:
        with pytest.raises(tiered.TieredError, match="token"):
            direct(server.location, topic="records")
        monkeypatch.setenv("TIERED_FLIGHT_TOKEN", "very-secret-indeed")
        source = TieredDataSource({"path": server.location, "topic": "records"})
        parts = source.reader(source.schema()).partitions()
        assert b"very-secret" not in pickle.dumps(parts)
        assert "very-secret" not in repr(parts) + repr(parts[0].plan)  # type: ignore[attr-defined]
        location = server.location
    with pytest.raises((ServerUnavailable, ConfigError)) as raised:
        direct(location, topic="records")
    assert "very-secret" not in str(raised.value)
    assert location in str(raised.value)


@pytest.mark.extended
@pytest.mark.parametrize("token", ["very-secret-indeed", None])
def test_a_server_that_its_directory_names_is_never_shown_the_token(
    own: Place, flown: list[bytes], monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """Neither by the driver nor by a task, on this host or another; what stands for one does not travel."""
    server = own.store.serve("127.0.0.1:0", token=token)
    monkeypatch.setenv("TIERED_FLIGHT_TOKEN", token or "of-another-server")
    notice = read_notice(Path(own.path))
    assert notice is not None
    shown: list[Any] = []
    real = AccessCheck.start_call
    monkeypatch.setattr(
        AccessCheck,
        "start_call",
        lambda self, info, headers: shown.append(headers) or real(self, info, headers),
    )
    source = TieredDataSource({"path": own.path, "topic": "records"})
    reader = source.reader(source.schema())
    tasks = pickle.dumps(reader.partitions())
    assert (notice.secret or token).encode() not in tasks  # type: ignore[union-attr]

    def rows() -> int:
        return sum(batch.num_rows for task in pickle.loads(tasks) for batch in reader.read(task))

    assert rows() == 8500
    monkeypatch.setattr(remote, "directory_id", ELSEWHERE)
    remote._tiers.cache_clear()
    assert rows() == 8500
    assert flown
    names = {name for headers in shown for name in headers}
    assert "authorization" not in names
    assert "tiered-proof" in names
    server.close()


@pytest.mark.extended
@pytest.mark.parametrize("token", ["very-secret-indeed", None])
def test_a_server_that_was_started_again_takes_no_tasks_of_the_one_before(
    own: Place, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """What is shown to it might have been shown to somebody else in between; the directory has the rows."""
    server = own.store.serve("127.0.0.1:0", token=token)
    if token is not None:
        monkeypatch.setenv("TIERED_FLIGHT_TOKEN", token)
    source = TieredDataSource({"path": own.path, "topic": "records"})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    server.close()
    with own.store.serve(server.location.removeprefix("grpc://"), token=token):
        began = time.monotonic()
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 8500
        assert time.monotonic() - began < 5  # nobody waits for the other one to come back


# -- where a plan sends requests -----------------------------------------------------------------


def planned(url: str | None, endpoint: str | None = None, region: str | None = None) -> PlanInfo:
    plan = PlanInfo(
        TopicMeta("t", UUID(int=1), 1, (RECORD_SCHEMA,), None, None, 0),
        {0: (0, 1)},
        ("value",),
        url,
        endpoint,
        region,
    )
    return PlanInfo.decode(plan.encode())


def test_no_host_is_taken_from_a_plan_unless_it_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to it are signed: who answers for a server would say who gets the credentials."""
    s3, minio, azure = "s3://bucket/logs", "http://minio:9000", "abfs://logs@account.example/x"
    by_url = SourceOptions("t", path="grpc://writer:8815")
    with pytest.raises(ConfigError) as raised:
        bucket_of(planned(s3, minio), by_url, {})
    assert "endpointUrl" in str(raised.value)
    assert 'endpoint_url = "http://minio:9000" under [cold]' in str(raised.value)
    with pytest.raises(ConfigError, match=re.escape(f'url = "{azure}" under [cold]')):
        bucket_of(planned(azure), by_url, {})
    with pytest.raises(ConfigError, match="sent no plan"):
        planned(s3, None, "x.evil.example/")
    # A cloud's own hosts.
    assert bucket_of(planned(s3, None, "eu-west-1"), by_url, {}) == BucketBinding(s3, None, "eu-west-1")
    assert bucket_of(planned(None), by_url, {}) == BucketBinding()
    # Configured here: by the option, the environment, the settings, or the directory that the read names.
    chosen = replace(by_url, endpoint_url=minio)
    assert bucket_of(planned(s3, "http://other"), chosen, {}).endpoint_url == minio
    assert bucket_of(planned(s3, minio), by_url, {"AWS_ENDPOINT_URL": minio}).endpoint_url is None
    config = tmp_path / "tiered.toml"
    config.write_text(f'[cold]\nurl = "{azure}"\nendpoint_url = "{minio}"\n')
    by_file = replace(by_url, config=str(config))
    assert bucket_of(planned(s3, minio), by_file, {}).endpoint_url == minio
    assert bucket_of(planned(azure), by_file, {}).url == azure
    write_binding(OsFileSystem(), tmp_path, BucketBinding(s3, minio, "eu-west-1"))
    by_path = SourceOptions("t", path=str(tmp_path))
    assert bucket_of(planned(s3, "http://other"), by_path, {}) == BucketBinding(s3, minio, "eu-west-1")
    monkeypatch.setenv("TIERED_COLD__ENDPOINT_URL", minio)
    assert bucket_of(planned(s3, minio), by_url, {}).endpoint_url == minio
