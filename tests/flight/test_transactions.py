"""Transactions over Flight: each is committed once, whatever happens to the answers, and hostile bytes commit nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.support.stores import values
from tiered.errors import ServerUnavailable
from tiered.flight.client.appender import Appender
from tiered.flight.client.connection import Connection
from tiered.flight.client.put_stream import PutStream
from tiered.flight.server.actions import ACTIONS
from tiered.flight.server.transactions import TRANSACTION_ACTIONS
from tiered.flight.wire.positions import moves_to_json
from tiered.flight.wire.topic_ref import topic_ref
from tiered.transactions import log_renewal, outcomes
from tiered.transactions.decision import Decision, Moves
from tiered.transactions.placing import PendingCommit
from tiered.transactions.transaction_rows import TransactionRows

Meanwhile = Callable[[], object]


def lose_answer(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile = lambda: None) -> None:
    """Lose the answer to the first commit, after which something else happens."""
    real, lost = Connection.action, False

    def lossy(self: Connection, name: str, *arguments: Any, **named: Any) -> Any:
        nonlocal lost
        found = real(self, name, *arguments, **named)
        if name == "commit_transaction" and not lost:
            lost = True
            meanwhile()
            raise ServerUnavailable("lost by the test")
        return found

    monkeypatch.setattr(Connection, "action", lossy)


def commit(store: Any, name: str | None = "etl") -> tiered.Transaction:
    with store.transaction(name) as transaction:
        transaction.append("events", b"a", partition=1)
        transaction.append_many("events", [b"b", b"c"])
    return transaction  # type: ignore[no-any-return]


def check_once(store: Any, transaction: tiered.Transaction) -> None:
    table = store.topic("events").scan().to_arrow()
    assert sorted(table["value"].to_pylist()) == [b"a", b"b", b"c"]
    found = {(row["partition"], row["offset"]) for row in table.to_pylist()}
    told = {
        (part.partition, at) for part in transaction.ranges["events"] for at in range(part.start, part.end)
    }
    assert found == told


@pytest.mark.parametrize("name", ["etl", None])
def test_a_commit_whose_answer_is_lost_is_not_repeated(
    store: Any, remote: Any, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it fenced by a newer transaction of its name that began meanwhile."""
    store.create_topic("events", partitions=2)
    lose_answer(monkeypatch, lambda: store.transaction("etl"))
    check_once(store, commit(remote, name))


def test_a_commit_beside_a_close_is_not_called_none(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the client while it waits, and the server has committed."""
    real = TRANSACTION_ACTIONS["commit_transaction"]

    def close_first(*arguments: Any) -> Any:
        real(*arguments)
        remote.close()
        raise OSError("the connection breaks")

    store.create_topic("events", partitions=2)
    monkeypatch.setitem(TRANSACTION_ACTIONS, "commit_transaction", close_first)
    remote: Any = tiered.open(store.serve("127.0.0.1:0").location)
    with pytest.raises(ServerUnavailable, match="closed; whether the transaction is committed is unknown"):
        commit(remote)
    assert store.topic("events").scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("kind", ["rows", "positions"])
def test_a_commit_whose_topic_was_deleted_before_its_answer_came(
    store: Any, remote: Any, kind: str, monkeypatch: pytest.MonkeyPatch, *, created: bool
) -> None:
    """It is committed: who is told otherwise commits the rows of the other topics again."""
    for name in ("events", "doomed"):
        store.create_topic(name, partitions=2).append(b"x", partition=0, sync=True)

    def delete() -> None:
        store.delete_topic("doomed")
        if created:
            store.create_topic("doomed")

    consumer = remote.topic("doomed").consumer("billing")
    consumer.poll()
    lose_answer(monkeypatch, delete)
    with remote.transaction() as transaction:
        transaction.append("events", b"once", partition=1)
        if kind == "rows":
            transaction.append("doomed", b"once")
        else:
            transaction.commit_position(consumer)
    assert transaction.ranges["events"] == [tiered.OffsetRange(1, 0, 1)]
    assert values(store.topic("events")) == [b"x", b"once"]


def test_a_commit_that_is_not_known_any_more_is_not_called_none_for_a_deleted_topic(
    store: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 2)
    monkeypatch.setattr(Connection, "pauses", lambda _: iter([None]))
    for name in ("events", "doomed"):
        store.create_topic(name, partitions=2)

    def many() -> None:
        store.delete_topic("doomed")
        for number in range(3):
            with store.transaction(str(number)) as other:
                other.append("events", b"other")

    lose_answer(monkeypatch, many)
    with (
        pytest.raises(ServerUnavailable, match="whether the transaction is committed is unknown"),
        remote.transaction() as transaction,
    ):
        transaction.append("events", b"a")
        transaction.append("doomed", b"a")
    assert values(store.topic("events")).count(b"a") == 1


def test_a_lost_answer_of_positions(store: Any, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("events").append(b"x", sync=True)
    with remote.topic("events").consumer("billing") as consumer:
        consumer.poll()
        lose_answer(monkeypatch)
        with remote.transaction() as transaction:
            transaction.commit_position(consumer)
        assert transaction.ranges == {}
        assert consumer.committed()[0] == 1
    assert [row["kind"] for row in store.topic("__transactions").scan().to_arrow().to_pylist()].count(
        "transaction"
    ) == 1


@pytest.mark.parametrize("others", [0, 40])
def test_a_server_that_restarts_recognises_the_commit(
    tmp_path: Path, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the log was shortened meanwhile."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 7)
    monkeypatch.setattr(log_renewal, "CLOSE_RECORDS_MAX", 1)
    stores = [tiered.open(tmp_path / "data")]
    stores[0].create_topic("events", partitions=2)
    stores[0].create_topic("other")
    server = stores[0].serve("127.0.0.1:0")
    address = server.location.removeprefix("grpc://")

    def restart() -> None:
        for _ in range(others):
            with stores[0].transaction() as other:
                other.append("other", b"x")
        server.close()
        stores[0].close()
        stores[0] = tiered.open(tmp_path / "data")
        stores[0].serve(address)

    with tiered.open(server.location) as remote:
        lose_answer(monkeypatch, restart)
        transaction = commit(remote)
    check_once(stores[0], transaction)
    assert stores[0].topic("__transactions").offsets()[0].start > 0
    stores[0].close()


def test_what_is_no_longer_known_is_not_guessed(
    store: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 2)
    monkeypatch.setattr(Connection, "pauses", lambda _: iter([None]))
    store.create_topic("events", partitions=2)

    def many() -> None:
        for number in range(3):
            with store.transaction(str(number)) as other:
                other.append("events", b"other")

    lose_answer(monkeypatch, many)
    with pytest.raises(ServerUnavailable, match="whether the transaction is committed is unknown"):
        commit(remote)
    assert values(store.topic("events")).count(b"a") == 1
    commit(remote)  # the first attempt of another is not in doubt
    assert values(store.topic("events")).count(b"a") == 2


def test_a_repeat_after_a_restore_that_has_the_commit(store: Any, remote: Any) -> None:
    """The log of its consumer was taken back since: the transaction is committed all the same, and the answer says so."""
    topic = store.create_topic("events")
    topic.append(b"x", sync=True)
    session, _ = store.transactions.begin_session("billing", topic.meta, [0])
    begun = TRANSACTION_ACTIONS["begin_transaction"](store, {"name": None})

    def send(lineage: int, again: dict[str, Any], of: str = begun["session"]) -> Any:
        moves = moves_to_json(Moves("billing", topic.meta, session, {0: (1, lineage)}))
        values = {
            "name": None,
            "session": of,
            "moves": [{**topic_ref(topic.meta), "consumer": "billing", **moves}],
        }
        return TRANSACTION_ACTIONS["commit_transaction"](store, {**values, "parts": [], **again})

    again, lost = {"again_since": begun["log_end"]}, 7
    assert send(1, {}) == send(lost, again)
    with pytest.raises(tiered.PositionLost):
        send(lost, again, of="f" * 32)


@pytest.mark.parametrize("first", ["sent again", "given up"])
@pytest.mark.parametrize("then", ["commit", "transaction"])
def test_a_commit_that_the_server_comes_to_late_moves_no_position_back(
    store: Any, remote: Any, then: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the client had it by another connection, or no answer: what a transaction has done since would be done twice."""
    topic = store.create_topic("events")
    topic.append_many([b"%d" % i for i in range(3)])
    topic.flush()
    sent: list[dict[str, Any]] = []
    real = Connection.action

    def noted(self: Connection, name: str, values: Any, **named: Any) -> Any:
        if name == "commit_consumer":
            sent.append(values)
            if first == "given up" and len(sent) == 1:
                raise ServerUnavailable("no answer (injected)")
        return real(self, name, values, **named)

    monkeypatch.setattr(Connection, "action", noted)
    with remote.topic("events").consumer("billing") as consumer:
        consumer.poll(5, 1)
        with suppress(ServerUnavailable):
            consumer.commit()
        consumer.poll(5)
        if then == "commit":
            consumer.commit()
        else:
            with remote.transaction() as transaction:
                transaction.append("events", b"effect")
                transaction.commit_position(consumer)
        ACTIONS["commit_consumer"](store, sent[0])
        assert [item.offset for item in store.consumers()] == [3]
        consumer.seek({0: 1})
        consumer.commit()
        assert [item.offset for item in store.consumers()] == [1]


def test_a_repeat_beside_the_first_attempt(store: Any) -> None:
    """Both wait for the same round of commits."""
    store.create_topic("events")
    decision, rows = Decision(None, "5e5510", ()), TransactionRows[Any]()
    rows.add(store.topic("events").opened, b"a", None, None, None, None)
    both = [PendingCommit(decision, rows.encode()) for _ in range(2)]
    store.commits._waiting.extend(both)
    store.commits._run()
    assert values(store.topic("events")) == [b"a"]
    assert [commit.wait() for commit in both] == [[("events", tiered.OffsetRange(0, 0, 1))]] * 2


def test_a_snapshot_of_several_topics(store: Any, remote: Any) -> None:
    for name in ("events", "other"):
        store.create_topic(name, partitions=2)
    commit(remote)
    remote.topic("other").append(b"x", partition=0)
    snapshot = remote.snapshot(["events", remote.topic("other")])
    assert snapshot.ends == store.snapshot(["events", "other"]).ends
    assert sum(snapshot.ends["events"].values()) == 3
    store.topic("other").add_partitions(3)
    commit(store)
    for kind in (snapshot, store.snapshot(["events", "other"])):
        store.topic("events").append(b"later", sync=True)
        for topic, ends in kind.ends.items():
            assert {key: end for key, (_, end) in kind.scan(topic).offsets.items()} == ends
        assert kind.scan("events", start_offset=0, partitions=0).offsets == {0: (0, kind.ends["events"][0])}
    assert snapshot.scan("events").to_arrow().num_rows == 3
    assert snapshot.scan("other").to_arrow()["value"].to_pylist() == [b"x"]
    assert list(remote.snapshot(["other"]).ends["other"]) == [0, 1, 2]
    with pytest.raises(tiered.ConfigError, match="a list of topics"):
        remote.snapshot("events")


def test_earlier_appends_of_the_client_come_first(
    store: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sending thread begins only once somebody waits for it."""
    awaited = threading.Event()
    write, drain = PutStream.write, Appender.drain

    def slow(*arguments: Any) -> None:
        awaited.wait(5)
        write(*arguments)

    def noted(self: Appender) -> None:
        awaited.set()
        drain(self)

    monkeypatch.setattr(PutStream, "write", slow)
    monkeypatch.setattr(Appender, "drain", noted)
    store.create_topic("events", partitions=2)
    events = remote.topic("events")
    for number in range(50):
        events.append(b"%d" % number, partition=1)
    commit(remote)
    assert values(store.topic("events").scan(partitions=[1]))[:51] == [
        *(b"%d" % number for number in range(50)),
        b"a",
    ]


@pytest.mark.extended
def test_large_transactions(store: Any, remote: Any) -> None:
    """As large as a local one; rows keep their times and their order."""
    events = store.create_topic("events", partitions=3)
    numbers = [b"%07d" % number for number in range(200_000)]
    with remote.transaction() as transaction:
        transaction.append_many("events", numbers)
        with pytest.raises(tiered.RecordTooLarge):
            transaction.append_batch("events", pa.table({"value": [bytes(1 << 20)] * 32}))
        transaction.append("events", b"last", timestamp=1_000)
        for _ in range(10):
            transaction.append("events", bytes(1 << 20), key=b"k")
    found = events.scan(partitions=[transaction.ranges["events"][0].partition]).to_arrow()
    small = [value for value in values(events) if len(value) == 7]
    assert small == numbers
    assert found.num_rows >= 200_000
    (last,) = [row for row in events.scan().to_arrow().to_pylist() if row["value"] == b"last"]
    assert last["timestamp"].timestamp() == 1


def test_hostile_bytes_commit_nothing(store: Any, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on, and says what is wrong."""
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.string()))])
    store.create_topic("typed", schema=schema)
    sent: list[bytes] = []
    real = Connection.action

    def keep(self: Connection, name: str, arguments: Any, **named: Any) -> Any:
        if name != "commit_transaction":
            return real(self, name, arguments, **named)
        sent.append(named["data"][0])
        raise tiered.ConfigError("kept")

    monkeypatch.setattr(Connection, "action", keep)
    with pytest.raises(tiered.ConfigError, match="kept"), remote.transaction() as transaction:
        for number in range(40):
            transaction.append("typed", {"n": number, "text": "é" * number, "list": ["x" * 2000, None]})
    monkeypatch.undo()
    topic = store.topic("typed").meta
    part = {"topic": "typed", "topic_id": str(topic.topic_id), "partition": 0, "schema_id": 0}
    session = {"session": "5e55105e55105e55105e55105e55105e", "moves": []}

    def send(blocks: list[int], data: bytes, **changes: Any) -> None:
        remote.connection.action(
            "commit_transaction",
            {**session, "parts": [{**part, "blocks": blocks}], **changes},
            data=[data],
            retry=False,
        )

    chance, block, refused = random.Random(7), sent[0], 0
    for _ in range(300):
        data = bytearray(block)
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        try:
            send([len(data)], bytes(data[: chance.choice([len(data)] * 9 + [chance.randrange(len(data))])]))
        except tiered.TieredError:
            refused += 1
        session["session"] = f"{chance.getrandbits(128):032x}"
    assert refused > 50
    for blocks in ([len(block) + 1], [len(block) - 8], [], [-1], ["x"], [1 << 62]):
        with pytest.raises((tiered.ConfigError, tiered.SchemaMismatch)):
            send(blocks, block)
    for wrong in (
        {"parts": [{**part, "blocks": [len(block)], "schema_id": 1}]},
        {"parts": [{**part, "blocks": [len(block)], "partition": 1}]},
        {"parts": [{**part, "blocks": [len(block)], "topic": "__transactions"}]},
        {"session": "x"},
        {"moves": [{}]},
        {"name": 5},
        {"again_since": -1},
    ):
        with pytest.raises((tiered.ConfigError, tiered.TopicNotFound, tiered.ReadOnly)):
            send([len(block)], block, **wrong)
    with pytest.raises(fl.FlightError):
        raw = fl.connect(remote.url)
        list(raw.do_action(fl.Action("commit_transaction", b"\0\xff\xff\xff\xff{}")))
    raw.close()
    text = b"\xc3\xa9" * 39
    broken = bytearray(block)
    broken[block.rindex(text)] = 0xFF
    with pytest.raises(tiered.SchemaMismatch, match="UTF8|UTF-8|utf"):
        send([len(broken)], bytes(broken))
    before = store.topic("typed").offsets()[0].end
    send([len(block)], block)
    assert store.topic("typed").scan(start_offset=before, columns=["n"]).to_arrow()["n"].to_pylist() == list(
        range(40)
    )
