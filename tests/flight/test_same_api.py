"""What a call takes, returns and raises is the same behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tiered.errors import ServerUnavailable
from tiered.reader import rows

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
EVENTS = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def test_a_store_open_for_reading_only_takes_no_records(remote: tiered.Store) -> None:
    remote.create_topic("orders")
    with tiered.open(remote.url, read_only=True) as reader:
        topic = reader.topic("orders")
        for records in ([b"x"], [{"value": b"x"}], []):
            with pytest.raises(tiered.ReadOnly):
                topic.append_many(records)
        reader.flush()
    assert remote.topic("orders").offsets()[0].end == 0


def test_records_of_one_topic_go_into_another(remote: tiered.Store, store: tiered.Store) -> None:
    """With their times: those of the topic's own column, and of the append where that is null."""
    source = store.create_topic("events", schema=EVENTS, timestamp="at")
    source.append({"at": NOON, "n": 1})
    source.append({"at": None, "n": 2}, timestamp=NOON)
    copy = remote.create_topic("copy", schema=EVENTS, timestamp="at")
    copy.append_many(source.read())
    columns = ["offset", "timestamp", "at", "n"]
    assert copy.scan(columns=columns).to_arrow().equals(source.scan(columns=columns).to_arrow())
    with pytest.raises(tiered.ConfigError, match="another one"):
        copy.append({"at": NOON, "n": 3}, timestamp=0)


def test_odd_arguments_are_taken_or_refused_alike(remote: tiered.Store, store: tiered.Store) -> None:
    there = remote.create_topic("orders", partitions=2, schema=EVENTS, key="n")
    here = store.topic("orders")
    there.append_batch(pa.table({"n": [1, 2, 3, 4]}), partition=0, sync=True)
    for topic in (there, here):
        assert topic.scan(start_offset={0: 3, 1: None}, end_offset={1: None}).to_arrow().num_rows == 1
        assert list(topic.read(0, 99, limit=0)) == []
        for offset in (-1, 5, 1 << 70, "x", 1.0):
            with pytest.raises(tiered.OffsetOutOfRange) as caught:
                topic.delete_before(offset)  # type: ignore[arg-type]
            assert (caught.value.start, caught.value.end) == (0, 4)
        with pytest.raises(tiered.SchemaMismatch, match="does not fit the key column"):
            topic.scan(key=1 << 70)


def test_a_flush_reaches_every_topic_also_beside_one_that_fails(
    remote: tiered.Store, store: tiered.Store
) -> None:
    """Another client deleted it; that is said once."""
    lost, kept = (remote.create_topic(name) for name in ("lost", "kept"))
    for topic in (lost, kept):
        assert topic.append(b"x").offset == 0
    store.delete_topic("lost")
    with pytest.raises(tiered.TopicNotFound, match="'lost'"):
        remote.flush()
    assert not kept._appender.unsettled  # type: ignore[attr-defined]
    remote.flush()


@pytest.fixture
def slow(tmp_path: Path) -> Any:
    """A store in which nothing is durable but by a flush."""
    with tiered.open(
        tmp_path / "slow", settings=tiered.Settings.load(store={"sync_interval": "1h"})
    ) as found:
        yield found


def test_following_forces_no_flush_and_ends_with_the_store(slow: tiered.Store) -> None:
    topic = slow.create_topic("orders")
    topic.append(b"0", sync=True)
    topic.append(b"1")
    with slow.serve("127.0.0.1:0") as server:
        remote = tiered.open(server.location)
        records = remote.topic("orders").read(follow=True)
        assert next(records).value == b"0"
        assert topic._writers[0].durable_offset == 1
        with pytest.raises(tiered.OffsetOutOfRange, match="not there yet"):
            next(remote.topic("orders").read(follow=True, offset=2))
        again = remote.topic("orders").read(follow=True)
        next(again)
        ticket = remote.topic("orders")._ticket(0, 0, 1)  # type: ignore[attr-defined]
        batches = remote._connection.rows(ticket)  # type: ignore[attr-defined]
        remote.close()
        for closed in (records, again, batches):
            with pytest.raises(tiered.StoreClosed):
                next(closed)


def test_following_a_partition_that_fails_does_not_hurry(slow: tiered.Store) -> None:
    """Nothing becomes durable there any more, and there is nothing to wait for: the client waits by itself."""
    topic = slow.create_topic("orders")
    topic.append(b"0", sync=True)
    with slow.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        there = remote.topic("orders")
        assert there._wait(0, 0)["waits"]  # type: ignore[attr-defined]
        writer = topic._writers[0]
        writer.fault = tiered.Fenced("by the test")
        assert not there._wait(0, 1)["waits"]  # type: ignore[attr-defined]
        writer.fault = None


def test_a_reader_takes_up_what_others_add(remote: tiered.Store, store: tiered.Store) -> None:
    """Columns and partitions, as a handle of a directory does; here each by the first call that meets them."""
    here = store.create_topic("events", schema=EVENTS)
    here.append({"n": 1}, sync=True)
    handles = [tiered.open(remote.url, read_only=True) for _ in range(4)]
    scanned, read, followed, asked = (handle.topic("events") for handle in handles)
    assert next(records := followed.read(follow=True)).value == {"at": None, "n": 1}
    here.add_columns(pa.schema([("m", pa.int64())]))
    here.add_partitions(3)
    here.append({"n": 2, "m": 3}, partition=0)
    here.append({"n": 4}, partition=2)
    store.flush()
    row = {"at": None, "n": 2, "m": 3}
    assert next(records).value == row
    assert [record.value for record in read.read(0)][1:] == [row]
    assert scanned.scan(2, columns=["n", "m"]).to_arrow().to_pylist() == [{"n": 4, "m": None}]
    assert asked.offset_at(NOON, 2) == 0
    for topic in (scanned, read, followed, asked):
        assert (topic.partitions, topic.schema) == (3, here.schema)
    for handle in handles:
        handle.close()


def test_following_outlives_a_connection_that_breaks(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the rows: it goes on behind those that came."""
    topic = remote.create_topic("orders")
    values = [b"%d" % i for i in range(10)]
    for value in values:
        topic.append(value, sync=True)
    connection = remote._connection  # type: ignore[attr-defined]
    real, broken = connection.rows, []

    def breaking(ticket: bytes) -> Iterator[pa.RecordBatch]:
        for place, batch in enumerate(real(ticket)):
            if place == 4 and not broken:
                broken.append(True)
                raise ServerUnavailable("by the test")
            yield batch

    monkeypatch.setattr(rows, "BATCH_ROWS_MIN", 1)
    monkeypatch.setattr(connection, "rows", breaking)
    assert [record.value for record in topic.read(follow=True, limit=10)] == values
    assert broken


def test_a_server_of_something_else_is_said() -> None:
    class Other(fl.FlightServerBase):  # type: ignore[misc]
        def do_action(self, *_: Any) -> list[bytes]:
            return [b'{"store_id": 5}']

    with (
        Other("grpc://127.0.0.1:0") as other,
        pytest.raises(tiered.ConfigError, match="no tiered server"),
    ):
        tiered.open(f"grpc://127.0.0.1:{other.port}")
