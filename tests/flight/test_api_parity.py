"""What a call takes, returns and raises is the same behind a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tiered.errors import ServerUnavailable
from tiered.flight.client import follow as remote_reads
from tiered.flight.client.connection import Connection
from tiered.flight.client.remote_scan import RemoteSplit, read_remote_split
from tiered.flight.wire.messages import ScanCommand, Ticket
from tiered.format.predicate import Comparison
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


def test_odd_arguments_are_taken_or_refused_alike(remote: tiered.Store, store: tiered.Store) -> None:
    there = remote.create_topic("orders", partitions=2, schema=EVENTS, key="n")
    here = store.topic("orders")
    there.append_batch(pa.table({"n": [1, 2, 3, 4]}), partition=0, sync=True)
    for topic in (there, here):
        assert topic.scan(start_offset={0: 3, 1: None}, end_offset={1: None}).to_arrow().num_rows == 1
        assert list(topic.read(0, 99, limit=0)) == []
        odd = (
            -1,
            5,
            1 << 70,
            -(1 << 70),
            "x",
            1.0,
            1.5,
            True,
            None,
            b"1",
            [1],
            np.True_,
            np.float64(1),
            np.int64(5),
        )
        for offset in odd:
            with pytest.raises(tiered.OffsetOutOfRange) as caught:
                topic.delete_before(offset)  # type: ignore[arg-type]
            assert (caught.value.start, caught.value.end) == (0, 4)
            shown = 5 if isinstance(offset, np.int64) else offset
            assert str(caught.value) == (
                f"cannot delete before offset {shown!r} of topic 'orders' partition 0; the log has 0 to 4"
            )
        with pytest.raises(tiered.TopicNotFound):
            topic.delete_before("x", 2)  # type: ignore[arg-type]
        assert topic.offsets()[0].start == 0
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
    assert not kept.appender.unsettled  # type: ignore[attr-defined]
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
        assert topic.opened.writers[0].durable_offset == 1
        with pytest.raises(tiered.OffsetOutOfRange, match="not there yet"):
            next(remote.topic("orders").read(follow=True, offset=2))
        again = remote.topic("orders").read(follow=True)
        next(again)
        scan = remote.topic("orders").scan()
        batches = scan.read(scan.splits()[0])
        remote.close()
        for closed in (records, again, batches):
            with pytest.raises(tiered.StoreClosed):
                next(closed)


def test_following_a_log_that_went_back_skips_nothing(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the next server after a restore to an earlier time: what is appended there has the old offsets."""
    topic = remote.create_topic("orders")
    topic.append_many([b"0", b"1"])
    topic.flush()
    records = topic.read(follow=True)
    assert [next(records).offset, next(records).offset] == [0, 1]
    answers = iter([{"start": 0, "end": 1, "waits": True}])
    monkeypatch.setattr(remote_reads, "wait", lambda *_, **__: next(answers))
    with pytest.raises(tiered.PositionLost, match="the log has 0 to 1"):
        next(records)


def test_following_a_partition_that_fails_does_not_hurry(slow: tiered.Store) -> None:
    """Nothing becomes durable there any more, and there is nothing to wait for: the client waits by itself."""
    topic = slow.create_topic("orders")
    topic.append(b"0", sync=True)
    with slow.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        there = remote.topic("orders")
        assert remote_reads.wait(there.opened, 0, 0)["waits"]
        writer = topic.opened.writers[0]
        writer.pending.fault = tiered.Fenced("by the test")
        assert not remote_reads.wait(there.opened, 0, 1)["waits"]
        writer.pending.fault = None


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


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"columns": ["value"]},
        {"columns": ["value"], "limit": 7},
        {"key": b"k"},
        {"limit": 9, "start_offset": 1},
    ],
    ids=str,
)
def test_reading_outlives_a_connection_that_breaks(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    """In the middle of the rows, and behind the last one: it goes on behind those that came."""
    topic = remote.create_topic("orders")
    values = [b"%d" % i for i in range(10)]
    for value in values:
        topic.append(value, key=b"k" if int(value) % 3 else b"other", sync=True)
    expected = store.topic("orders").scan(**wanted).to_arrow()
    real, chunks = Connection._next, 0

    def breaking(self: Connection, stream: Any) -> pa.RecordBatch | None:
        nonlocal chunks
        batch = real(self, stream)
        chunks += 1
        if chunks > 1 and (chunks % 4 == 0 or batch is None):
            chunks = 0
            raise ServerUnavailable("by the test")
        return batch

    monkeypatch.setattr(rows, "BATCH_ROWS_MIN", 1)
    monkeypatch.setattr(Connection, "_next", breaking)
    assert topic.scan(**wanted).to_arrow() == expected
    assert [record.value for record in topic.read(follow=True, limit=10)] == values


def test_a_server_of_something_else_is_said() -> None:
    class Other(fl.FlightServerBase):  # type: ignore[misc]
        def do_action(self, *_: Any) -> list[bytes]:
            return [b'{"store_id": 5}']

    with (
        Other("grpc://127.0.0.1:0") as other,
        pytest.raises(tiered.ConfigError, match="no tiered server"),
    ):
        tiered.open(f"grpc://127.0.0.1:{other.port}")


def test_filters_are_checked_at_both_ends(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = remote.create_topic("events", schema=EVENTS)
    here = store.topic("events")
    there.append_batch(pa.table({"n": [1, None, 3]}), sync=True)
    for topic in (there, here):
        assert topic.scan(filter=("n", ">", 1), columns=["n"]).to_arrow().to_pylist() == [{"n": 3}]
        for wrong, error in [
            (("m", "==", 1), tiered.SchemaMismatch),
            (("n", "==", "x"), tiered.SchemaMismatch),
            (("n", "~", 1), tiered.ConfigError),
        ]:
            with pytest.raises(error):
                topic.scan(filter=wrong)
    # A client of another release may not check.
    (split,) = there.scan().splits()
    assert isinstance(split, RemoteSplit)
    ticket = Ticket.decode(split.ticket)
    for condition in (Comparison("m", "==", 1), Comparison("n", "==", "x"), Comparison("n", "==", 1 << 70)):
        with pytest.raises(tiered.SchemaMismatch):
            list(read_remote_split(remote.url, replace(ticket, filter=condition).encode()))


def test_a_server_that_ignores_filters_is_not_believed(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = remote.create_topic("events", schema=EVENTS)
    topic.append({"n": 1}, sync=True)
    decode = ScanCommand.decode
    monkeypatch.setattr(ScanCommand, "decode", lambda data: replace(decode(data), filter=None))
    with pytest.raises(tiered.ConfigError, match="a release without filters"):
        topic.scan(filter=("n", "==", 2))
