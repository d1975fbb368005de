"""A store behind a server gives what the store itself gives: rows, offsets, errors."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.flight.serving import later_release
from tests.support.waiting import wait_until
from tiered.errors import StoreClosed
from tiered.flight.client.connection import Connection
from tiered.flight.client.remote_scan import RemoteSplit, read_remote_split
from tiered.flight.server import server as serving_calls
from tiered.flight.wire.messages import ScanCommand, Ticket
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.values import encode_json
from tiered.policies.tail_pace import TailPace
from tiered.reader.read import read_split
from tiered.reader.rows import Query

FLIGHTS = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int16())])


def noon(minute: int) -> datetime:
    return datetime(2013, 1, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tiered.Store]:
    """One that keeps little hot, and evicts what is offloaded."""
    values = {
        "store": {"block_bytes": "1KiB", "hot_bytes": "2KiB"},
        "policies": {"default": {"offload": {"after": "1h"}, "local_retention": {"age": "1h"}}},
    }
    settings = tiered.Settings.model_validate(values)
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=settings) as found:
        yield found


@pytest.fixture
def filled(store: tiered.Store, remote: tiered.Store) -> tuple[tiered.Topic, tiered.Topic]:
    """A typed topic, written through the server in every way, in three tiers; the store's own handle and the remote one."""
    there = remote.create_topic("flights", partitions=2, schema=FLIGHTS, timestamp="at", key="carrier")
    here = store.topic("flights")
    rows = [{"at": noon(i), "carrier": "AA" if i % 3 else "UA", "delay": i} for i in range(300)]
    there.append_batch(pa.Table.from_pylist(rows[:100], schema=FLIGHTS))
    there.roll()
    for _ in range(2):  # what the first offloads the second evicts
        store.tier(now=datetime(2030, 1, 1, tzinfo=UTC))
    there.append_many(rows[100:200])
    there.roll()
    for row in rows[200:]:
        there.append(row)
    # Else the first scan does, and what it writes takes the place of other recent blocks.
    there.flush()
    return here, there


QUERIES: list[dict[str, Any]] = [
    {},
    {"columns": ["offset", "delay"]},
    {"columns": []},
    {"partitions": 1, "start_offset": 2, "end_offset": 7},
    {"start_offset": {0: 1, 1: 0}, "end_offset": 5},
    {"start_timestamp": noon(5), "end_timestamp": noon(25)},
    {"key": "UA", "limit": 3},
    {"limit": 0},
]


def test_a_remote_scan_is_the_local_one(filled: tuple[tiered.Topic, tiered.Topic]) -> None:
    here, there = filled
    for query in QUERIES:
        remote, local = there.scan(**query), here.scan(**query)
        assert remote.to_arrow().equals(local.to_arrow()), query
        assert remote.schema == local.schema
        assert remote.offsets == local.offsets
        assert remote.explain().to_json() == {**local.explain().to_json(), "committed_us": {}}
        assert pa.table(remote).equals(local.to_arrow())


def test_what_a_handle_appended_it_reads(remote: tiered.Store, store: tiered.Store) -> None:
    """In order, with key, headers and time, and at the offsets that the appends returned."""
    topic = remote.create_topic("orders", partitions=2)
    first = topic.append(b"a", key=b"k", headers={"h": b"1"}, timestamp=noon(0))
    second = topic.append(b"b", key=b"k", timestamp=noon(1), sync=True)
    assert second == (1, 1)
    assert tuple(first) == (1, 0)
    assert repr(first) == "Appended(partition=1, offset=0)"
    assert topic.append_many([b"x", b"y"]) == [(0, 0, 2)]
    assert topic.append_many([{"value": b"z", "partition": 1}, {"value": b"w", "key": b"k"}]) == [(1, 2, 4)]
    assert list(topic.read(1)) == list(store.topic("orders").read(1))
    record = next(iter(topic.read(1)))
    assert (record.value, record.key, record.headers, record.timestamp) == (
        b"a",
        b"k",
        (("h", b"1"),),
        noon(0),
    )
    assert topic.offsets() == {0: (0, 0, 2), 1: (1, 0, 4)}
    assert topic.offset_at(noon(1), 1) == 1
    assert [item.value for item in topic.read(1, offset=1, limit=2)] == [b"b", b"z"]
    topic.delete_before(2, 1)
    assert topic.offsets()[1] == (1, 2, 4)


def test_a_topic_that_grows_elsewhere_grows_here(remote: tiered.Store, store: tiered.Store) -> None:
    schema = pa.schema([("n", pa.int64())])
    topic = remote.create_topic("grows", schema=schema)
    topic.append({"n": 1}, sync=True)
    store.topic("grows").add_columns(pa.schema([("m", pa.int64())]))
    store.topic("grows").add_partitions(3)
    topic.append({"n": 2}, sync=True)
    wait_until(lambda: topic.partitions == 3)
    topic.append({"n": 3, "m": 4}, partition=2, sync=True)
    assert topic.scan(columns=["n", "m"]).to_arrow().to_pylist() == [
        {"n": 1, "m": None},
        {"n": 2, "m": None},
        {"n": 3, "m": 4},
    ]


def test_following_goes_on_with_what_others_append(remote: tiered.Store, store: tiered.Store) -> None:
    topic = store.create_topic("orders")
    topic.append(b"0", sync=True)
    records = remote.topic("orders").read(follow=True, limit=3)
    assert next(records).value == b"0"
    topic.append_many([b"1", b"2"])
    topic.flush()
    assert [record.value for record in records] == [b"1", b"2"]


@pytest.mark.parametrize("by", ["poll", "read"])
def test_a_close_ends_what_waits_for_a_server_that_is_away(
    remote: tiered.Store, server: Any, by: str
) -> None:
    """With the error of a close, not that of a server whose return it awaited."""
    topic = remote.create_topic("orders")
    consumer = topic.consumer("billing")
    server.close()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            (lambda: consumer.poll(None)) if by == "poll" else lambda: list(topic.read(follow=True))
        )
        time.sleep(0.5)
        remote.close()
        with pytest.raises(StoreClosed):
            waiting.result(30)


def test_splits_are_read_from_anywhere_and_again(
    filled: tuple[tiered.Topic, tiered.Topic], store: tiered.Store, server: Any
) -> None:
    """By ticket, from file and object, in pieces; and by the same tickets once all has moved to another tier."""
    here, there = filled
    scan = there.scan_cut(1)
    splits = scan.splits()
    assert {split.tier.value for split in splits} == {"hot", "warm", "cold"}
    assert scan.same_directory
    whole = here.scan().to_arrow()

    def by_ticket() -> pa.Table:
        batches = [
            batch
            for split in pickle.loads(pickle.dumps(splits))
            for batch in read_remote_split(server.location, split.ticket)
        ]
        return pa.Table.from_batches(batches, scan.schema)

    assert by_ticket().equals(whole)
    for split in splits:
        assert isinstance(split, RemoteSplit)
        middle = (split.start_offset + split.end_offset) // 2
        parts = [split.clip(split.start_offset, middle), split.clip(middle, split.end_offset)]
        rows = [batch for part in parts for batch in scan.read(part)]
        expected = pa.Table.from_batches(scan.read(split), scan.schema)
        assert pa.Table.from_batches(rows, scan.schema).equals(expected)
        direct = split.direct(store.context.tiers.locations.root)
        assert (direct is None) == (split.tier.value == "hot")
        if direct is not None:
            found = read_split(
                store.context.tiers, here.opened.meta, pickle.loads(pickle.dumps(direct)), Query()
            )
            assert pa.Table.from_batches(found, scan.schema).equals(expected)
    assert [split.direct(None) is not None for split in splits] == [
        split.tier.value == "cold" for split in splits
    ]
    there.roll()
    for _ in range(2):
        store.tier(now=datetime(2031, 1, 1, tzinfo=UTC))
    assert by_ticket().equals(whole)


def test_errors_come_over_the_wire_as_they_are(remote: tiered.Store, store: tiered.Store) -> None:
    topic = remote.create_topic("orders")
    topic.append_many([b"0", b"1", b"2"])
    topic.delete_before(1)
    with pytest.raises(tiered.OffsetOutOfRange) as caught:
        topic.scan(start_offset=0)
    assert (caught.value.start, caught.value.end) == (1, 3)
    with pytest.raises(tiered.OffsetOutOfRange, match="not there yet"):
        list(topic.read(offset=4))
    with pytest.raises(tiered.TopicNotFound):
        remote.topic("ordres")
    with pytest.raises(tiered.TopicExists):
        remote.create_topic("orders")
    with pytest.raises(tiered.InvalidName):
        remote.create_topic("../../etc")
    with pytest.raises(tiered.ConfigError, match="partitions"):
        remote.create_topic("many", partitions=0)
    with pytest.raises(tiered.SchemaMismatch, match="pyarrow.Schema"):
        remote.create_topic("many", schema="n: int64")  # type: ignore[arg-type]
    with pytest.raises(tiered.SchemaMismatch):
        topic.append_batch(pa.table({"nothing": [1]}))
    with pytest.raises(tiered.RecordTooLarge):
        topic.append(bytes(33 << 20))
    with pytest.raises(tiered.ReadOnly, match="where the store lies"):
        remote.tier()
    with tiered.open(remote.url, read_only=True) as reader, pytest.raises(tiered.ReadOnly):
        reader.topic("orders").append(b"x")
    (split,) = topic.scan().splits()
    topic.flush()
    store.delete_topic("orders")
    store.create_topic("orders").append(b"another", sync=True)
    with pytest.raises(tiered.TopicNotFound, match="created again"):
        list(Connection(remote.url, ConnectOptions()).rows(split.ticket))  # type: ignore[attr-defined]


def test_an_append_that_nobody_waited_for_fails_at_flush_and_at_its_offset(
    remote: tiered.Store, store: tiered.Store
) -> None:
    topic = remote.create_topic("orders")
    topic.append(b"0", sync=True)
    store.delete_topic("orders")
    lost = topic.append(b"1")
    with pytest.raises(tiered.TopicNotFound):
        _ = lost.offset
    with pytest.raises(tiered.TopicNotFound):
        topic.flush()


def test_producers_number_their_records_through_the_server(remote: tiered.Store, store: tiered.Store) -> None:
    topic = remote.create_topic("orders", partitions=2)
    producer = topic.producer("ingest-7")
    first = producer.append(b"a", sequence=0, key=b"k")
    assert producer.append(b"b", sequence=1, key=b"k") == (first.partition, first.offset + 1)
    assert producer.append(b"a", sequence=0, key=b"k") == first
    with pytest.raises(tiered.OutOfOrderSequence):
        producer.append(b"d", sequence=3)
    assert producer.append_batch(pa.table({"value": [b"c", b"d"]}), sequence=2)[0].end
    assert producer.next_sequence == 4
    producer.flush()
    assert store.topic("orders").opened.writers[first.partition].durable_offset > first.offset
    newer = store.topic("orders").producer("ingest-7")
    assert newer.next_sequence == 4
    with pytest.raises(tiered.Fenced):
        producer.append(b"e", sequence=4)
    assert remote.topic("orders").producer("ingest-7").append(b"e", sequence=4)
    values = topic.scan(columns=["value"]).to_arrow()["value"].to_pylist()
    assert sorted(values) == [b"a", b"b", b"c", b"d", b"e"]


def test_status_and_topics(remote: tiered.Store, store: tiered.Store) -> None:
    remote.create_topic("b")
    remote.create_topic("a").append(b"x", sync=True)
    assert remote.topics() == ["a", "b"]
    theirs, ours = ([replace(item, lag_seconds=None) for item in found.status()] for found in (remote, store))
    assert theirs == ours
    remote.delete_topic("b")
    assert store.topics() == ["a"]


def test_status_has_every_part_over_flight(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(
        store.status(),
        tails=TailPace(2, 1.0, 1.5, 0.5, 1, 0.25),
        waiting=("retention of topic a, partition 0, waits for a consumer",),
    )
    monkeypatch.setattr(store, "status", lambda: report)
    assert remote.status() == report


def test_a_server_of_a_later_release_is_understood(
    remote: tiered.Store, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it adds to its answers."""
    monkeypatch.setattr(
        serving_calls,
        "encode_json",
        lambda values: encode_json(later_release(json.loads(encode_json(values)))),
    )
    _, there = filled
    consumer = there.consumer("c")
    rows = consumer.poll(10)
    consumer.commit()
    with remote.transaction("tx") as transaction:
        transaction.append(there, {"at": noon(1), "carrier": "UA", "delay": 1})
    there.producer("p").append({"at": noon(1), "carrier": "UA", "delay": 1})
    there.flush()
    status = remote.status()
    assert [item.topic for item in status if item.topic == "flights"] == ["flights"] * 2
    assert [position.consumer for position in remote.consumers()] == ["c"] * len(remote.consumers())
    assert rows
    assert remote.topics() == ["flights"]
    assert remote.snapshot(["flights"]).scan("flights").to_arrow().num_rows == 302
    assert there.offsets()[0].start == 0
    consumer.close()


def test_any_flight_client_can_list_read_and_append(remote: tiered.Store, server: Any) -> None:
    """Without a line of ours: by paths, and with durable answers."""
    remote.create_topic("orders")
    client = fl.connect(server.location)
    path = fl.FlightDescriptor.for_path("orders")
    writer, answers = client.do_put(path, pa.schema([("value", pa.binary())]))
    writer.write_batch(pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())}))
    assert b'"ranges":[[0,0,2]]' in answers.read().to_pybytes()
    writer.close()
    (listed,) = client.list_flights()
    assert listed.descriptor.path == [b"orders"]
    assert client.get_schema(path).schema == listed.schema
    info = client.get_flight_info(path)
    assert info.total_records == 2
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table["value"].to_pylist() == [b"a", b"b"]
    client.close()


@pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b"[1]", b'{"topic": 1}', b"\xff" * 9])
def test_nonsense_is_refused_and_the_server_goes_on(remote: tiered.Store, server: Any, body: bytes) -> None:
    client = fl.connect(server.location)
    command = fl.FlightDescriptor.for_command(body)
    schema = pa.schema([("value", pa.binary())])

    def put() -> None:
        writer, answers = client.do_put(command, schema)
        answers.read()
        writer.close()

    for call in (
        lambda: client.do_get(fl.Ticket(body)).read_all(),
        lambda: client.get_flight_info(command),
        lambda: list(client.do_action(fl.Action("describe_topic", body))),
        lambda: list(client.do_action(fl.Action("no such thing", b""))),
        put,
    ):
        with pytest.raises(fl.FlightServerError) as caught:
            call()
        assert b"ConfigError" in caught.value.extra_info
    client.close()
    assert remote.topics() == []


def test_a_column_that_is_added_changes_no_ticket(remote: tiered.Store) -> None:
    topic = remote.create_topic("grows", schema=pa.schema([("n", pa.int64())]))
    topic.append({"n": 1}, sync=True)
    scan = topic.scan()
    topic.add_columns(pa.schema([("m", pa.int64())]))
    assert scan.to_arrow().column_names == ["topic", "partition", "offset", "timestamp", "n"]


def test_a_ticket_beyond_the_end_is_refused(remote: tiered.Store) -> None:
    """As after a restore to an earlier time: rows that are not there must not be taken for none."""
    topic = remote.create_topic("orders")
    topic.append(b"x", sync=True)
    ticket = Ticket("orders", topic.opened.meta.topic_id, 0, 0, 2, ("value",)).encode()
    with pytest.raises(tiered.OffsetOutOfRange):
        list(Connection(remote.url, ConnectOptions()).rows(ticket))


@pytest.mark.parametrize(
    ("key", "column"), [("x", "n"), (b"x", "n"), (1 << 80, "n"), (1, "text"), ("x", "text"), (1, "nothing")]
)
def test_a_ticket_with_a_key_that_is_none_is_refused(remote: tiered.Store, key: Any, column: str) -> None:
    topic = remote.create_topic(
        "orders", schema=pa.schema([("n", pa.int64()), ("text", pa.string())]), key="n"
    )
    topic.append({"n": 1, "text": "x"}, sync=True)
    ticket = Ticket(
        "orders", topic.opened.meta.topic_id, 0, 0, 1, ("n",), key=key, key_column=column
    ).encode()
    with pytest.raises(tiered.SchemaMismatch, match="key"):
        list(Connection(remote.url, ConnectOptions()).rows(ticket))


def test_an_error_of_any_text_is_that_error(remote: tiered.Store) -> None:
    """Its bytes fit into what HTTP/2 lets pass."""
    topic = remote.create_topic("orders")
    command = ScanCommand("orders", columns=("\U0001f600" * 5000,), topic_id=topic.opened.meta.topic_id)
    with pytest.raises(tiered.SchemaMismatch, match="no column"):
        remote.connection.plan(command.encode())  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_not_use_it(remote: tiered.Store, tmp_path: Path) -> None:
    topic = remote.create_topic("orders")
    topic.append(b"x", sync=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(tiered.StoreClosed, match="forked"):
                topic.append(b"y", sync=True)
            # A connection of its own hung: gRPC's threads were the parent's.
            with pytest.raises(tiered.ConfigError, match="forked"):
                tiered.open(remote.url)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    topic.append(b"z", sync=True)
    assert topic.offsets()[0].end == 2
