"""What the client does when an answer, a connection or the server is lost: every record once, or an error that says so."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.flight.serving import lose, of_an_earlier_release
from tiered.errors import DiskFull
from tiered.flight.client import replay_buffer
from tiered.flight.client.connection import Connection
from tiered.flight.client.put_stream import PutStream
from tiered.flight.server import append as appending
from tiered.flight.server.actions import ACTIONS


@pytest.fixture(autouse=True, params=["rows", "batches"])
def sent_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What records go as: packed rows, or batches as to a server of an earlier release."""
    if request.param == "batches":
        of_an_earlier_release(monkeypatch, ACTIONS)
    return str(request.param)


@pytest.mark.parametrize("connections", [(), (1,), (1, 2)])
def test_what_is_sent_again_is_there_once(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch, connections: tuple[int, ...]
) -> None:
    """Also where the first connection failed already, before anything was sent."""
    topic = remote.create_topic("orders", partitions=2)
    lose(monkeypatch, Connection, "put", *connections)
    lose(monkeypatch, PutStream, "answer", 1, 3)
    sent = [b"%d" % i for i in range(9)]
    for value in sent[:4]:
        topic.append(value, key=value, sync=True)
    topic.append_batch(pa.table({"value": sent[4:]}), partition=1)
    topic.flush()
    found = topic.scan(columns=["value"]).to_arrow()["value"].to_pylist()
    assert sorted(found) == sent


def test_a_flush_does_not_say_durable_of_what_could_not_be_sent_again(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was killed with records that it had answered to, and the next one has no room for them."""
    topic = remote.create_topic("orders")
    seen = topic.append(b"answered")
    assert seen.offset == 0
    appending._incarnations[store] = "another"

    def full(*_: Any) -> appending.Ack:
        raise DiskFull("no space for the test")

    with monkeypatch.context() as patch:
        patch.setattr(appending, "_appended", full)
        with pytest.raises(DiskFull, match="no space"):
            topic.flush()
    topic.append(b"later", sync=True)
    topic.flush()


def test_an_offset_that_is_on_its_way_is_an_appended_in_every_way(remote: tiered.Store) -> None:
    topic = remote.create_topic("orders", partitions=2)
    first, second = (topic.append(value, partition=1) for value in (b"a", b"b"))
    assert isinstance(first, tiered.Appended)
    assert isinstance(first, tuple)
    partition, offset = second
    assert (partition, offset, len(second)) == (1, 1, 2)
    assert (*second,) == tuple(second) == second == tiered.Appended(1, 1) == second
    assert (second.partition, second.offset, second[1], second[-1], second[:]) == (1, 1, 1, 1, (1, 1))
    assert first != second
    assert first < second <= (1, 1) < (1, 2)
    assert (1, 2) > second >= first
    assert sorted([second, first]) == [first, second] == [(1, 0), (1, 1)]
    assert {first, second} == {(1, 0), (1, 1)}
    assert 0 not in second
    assert (*second, 5) == second + tuple([5])  # noqa: C409 (the operator is what is tested)
    assert (second.index(1), second.count(1)) == (0, 2)
    assert second._asdict() == {"partition": 1, "offset": 1}
    assert second._replace(offset=7) == (1, 7)
    assert pickle.loads(pickle.dumps(second)) == copy.copy(second) == second
    assert json.dumps(second) == "[1, 1]"
    assert str(second) == f"{second}" == "Appended(partition=1, offset=1)"
    assert "%d:%d" % second == "1:1"  # noqa: UP031 (reads it past its methods)


def test_what_is_kept_is_bounded_however_small_it_is(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody flushes, and each record goes by itself: those of a producer count, too."""
    topic = remote.create_topic("orders")
    kept = topic.appender._replay  # type: ignore[attr-defined]
    monkeypatch.setattr(replay_buffer, "REPLAY_MAX", 4)
    for at in range(20):
        assert topic.append(b"x").offset == at
        assert len(kept) <= 6
    topic.flush()
    monkeypatch.setattr(replay_buffer, "REPLAY_MAX", 1000)
    monkeypatch.setattr(replay_buffer, "REPLAY_BYTES_MAX", 10_000)
    producer = topic.producer("ingest")
    for _ in range(50):
        producer.append(bytes(1000))
        assert len(kept) <= 12
