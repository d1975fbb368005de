"""A commit of staged rows is in the log wholly once, wherever the server is killed; and names are no paths."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.waiting import wait_until
from tiered.errors import ConfigError, ServerUnavailable
from tiered.flight.client import staging as module
from tiered.flight.client.staging import StageClient
from tiered.flight.server import safe_batch
from tiered.flight.server.server import FlightServer
from tiered.flight.server.staging import stage_stream
from tiered.flight.wire.options import ConnectOptions, ServeOptions
from tiered.flight.wire.put_messages import PutCommand

Start = Callable[..., subprocess.Popen[str]]

# Kills itself, as by kill -9, in the middle of the first commit.
SERVER = """
import os, signal, sys, tiered
from tiered.hot.held_partition import HeldPartition
from tiered.transactions.commits import Commits
from tiered.transactions.transaction_log import TransactionLog

def killed_after(owner, name, first=lambda self, *arguments: None):
    real = getattr(owner, name)
    def last(self, *arguments, **named):
        real(self, *arguments, **named)
        first(self)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, last)

step = sys.argv[2]
if step == "decided":
    killed_after(TransactionLog, "sync_written")
elif step == "appended in part":
    # What one partition got is durable, the others have nothing.
    append = HeldPartition.append
    def appended(self, bodies, numbers=(), *arguments, **named):
        append(self, bodies, numbers, *arguments, **named)
        if numbers:
            self.sync()
            os.kill(os.getpid(), signal.SIGKILL)
    HeldPartition.append = appended
elif step == "applied":
    killed_after(Commits, "_apply_batch")
elif step == "done":
    killed_after(Commits, "commit")
store = tiered.open(sys.argv[1])
print(store.serve("127.0.0.1:0").location, flush=True)
sys.stdin.read()
"""
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def rows(*values: int) -> pa.RecordBatch:
    texts = [b"%d" % value for value in values]
    return pa.record_batch({"key": texts, "value": texts}, schema=SCHEMA)


def client_of(location: str) -> StageClient:
    return StageClient(location, ConnectOptions(retry_seconds=0.2))


def staged_in(store: tiered.Store) -> int:
    """How many attempts wait for a commit."""
    return len(store.transactions._log.tables.staged._attempts)


def values_of(store: tiered.Store) -> list[int]:
    found = store.topic("orders").scan(columns=["value"]).to_arrow()["value"].to_pylist()
    return sorted(int(value) for value in found)


@pytest.mark.parametrize("count", [1, 3])
def test_rows_for_a_server_that_is_busy_are_sent_again(tmp_path: Path, count: int) -> None:
    """A cluster may run more tasks at a time than a server takes streams."""
    made: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(count):
            made.append(number)
            yield rows(number)

    with (
        tiered.open(tmp_path / "data") as store,
        FlightServer.open(store, "127.0.0.1:0", ServeOptions(streams_max=1)) as server,
    ):
        store.create_topic("orders", partitions=3)
        with client_of(server.location) as client, client_of(server.location) as other:
            meta = client.describe("orders")

            def held() -> Iterator[pa.RecordBatch]:
                yield rows(100)
                wait_until(lambda: server.streams == 1)
                with pytest.raises(tiered.Backpressure, match="1 streams"):
                    client.stage(meta, "q", uuid4().hex, SCHEMA, [rows(7)])
                waiting.start()
                wait_until(lambda: bool(made))

            def wait() -> None:
                patient = StageClient(server.location, ConnectOptions(retry_seconds=10))
                with patient:
                    staged.append(patient.stage(meta, "q", uuid4().hex, SCHEMA, batches()))

            staged: list[Any] = []
            waiting = threading.Thread(target=wait)
            staged.append(other.stage(meta, "q", uuid4().hex, SCHEMA, held()))
            waiting.join()
            assert made == list(range(count))
            client.commit("orders", "q", 1, staged)
        assert values_of(store) == [*range(count), 100]


def test_more_than_can_be_sent_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = module._Replayed(rows(number) for number in range(7))
    monkeypatch.setattr(module, "_PIECES_KEPT", 2)
    assert [next(iter(pieces)), pieces.complete] == [rows(0), True]
    again = iter(pieces)
    assert [next(again), next(again), pieces.complete] == [rows(0), rows(1), True]
    assert list(pieces)[-1] == rows(6)
    assert not pieces.complete


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("decided", marks=pytest.mark.slow),
        "appended in part",
        pytest.param("applied", marks=pytest.mark.slow),
        "done",
    ],
)
def test_a_commit_whose_server_is_killed_is_in_the_log_once(tmp_path: Path, python: Start, step: str) -> None:
    """Completed by the next server, before anybody asks; found done by the query that comes back."""
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=3)
    server = python(SERVER, tmp_path / "data", step)
    assert server.stdout is not None
    with client_of(server.stdout.readline().strip()) as client:
        meta = client.describe("orders")
        staged = [
            client.stage(meta, "q", uuid4().hex, SCHEMA, [rows(*range(10)), rows(10)]),
            client.stage(meta, "q", uuid4().hex, SCHEMA, [rows(*range(11, 20))]),
        ]
        with pytest.raises(ServerUnavailable):
            client.commit("orders", "q", 7, staged)
    assert server.wait() == -signal.SIGKILL
    with tiered.open(tmp_path / "data") as store, client_of(store.serve("127.0.0.1:0").location) as client:
        assert values_of(store) == list(range(20))
        assert not client.commit("orders", "q", 7, staged)
        again = client.stage(meta, "q", uuid4().hex, SCHEMA, [rows(*reversed(range(20)))])
        assert not client.commit("orders", "q", 7, [again])
        assert values_of(store) == list(range(20))
        following = client.stage(meta, "q", uuid4().hex, SCHEMA, [rows(20)])
        assert client.commit("orders", "q", 8, [following])
        assert values_of(store) == list(range(21))
        assert staged_in(store) == 0


@pytest.mark.parametrize("error", [pa.ArrowInvalid("not a number"), OSError("no such file")])
def test_an_error_of_the_rows_is_the_callers_own(server: Any, store: tiered.Store, error: Exception) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        raise error

    store.create_topic("orders")
    with client_of(server.location) as client:
        meta = client.describe("orders")
        with pytest.raises(type(error)) as raised:
            client.stage(meta, "q", uuid4().hex, SCHEMA, broken())
        assert raised.value is error


def test_large_rows_beside_each_other_are_sent_in_pieces(
    server: Any, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among thousands of small ones, a batch cut by its average row would be over the server's limit."""
    monkeypatch.setattr(safe_batch, "BATCH_BYTES_MAX", 20 << 20)
    values = [b"", *[bytes(5 << 20)] * 5, *[b""] * 3000]
    batch = pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": values}, schema=SCHEMA)
    store.create_topic("orders")
    with client_of(server.location) as client:
        staged = client.stage(client.describe("orders"), "q", uuid4().hex, SCHEMA, [batch])
        assert client.commit("orders", "q", 0, [staged])
    assert store.topic("orders").offsets()[0].end == len(values)


def test_names_of_attempts_and_queries_are_no_paths(server: Any, store: tiered.Store, tmp_path: Path) -> None:
    """A client can neither write nor remove a file of its choice, and a query may have any name."""
    store.create_topic("orders")
    outside = tmp_path / "outside.rows"
    outside.touch()
    with client_of(server.location) as client:
        meta = client.describe("orders")
        staged = client.stage(meta, "../q/\0", uuid4().hex, SCHEMA, [rows(1)])
        assert client.commit("orders", "../q/\0", 0, [staged])
        for name in (str(outside.with_suffix("")), "../../../outside", "", "A" * 32, f"{uuid4().hex}\n"):
            with pytest.raises(ConfigError, match="32 hexadecimal"):
                client.stage(meta, "../q/\0", name, SCHEMA, [rows(2)])
            bad = type(staged)(name, 0, 0)
            # Done already: what is staged would be let go.
            with pytest.raises(ConfigError, match="32 hexadecimal"):
                client.commit("orders", "../q/\0", 0, [bad])
            client.abort("orders", "../q/\0", [name])
        again = client.stage(meta, "../q/\0", uuid4().hex, SCHEMA, [rows(2)])
        with pytest.raises(ConfigError, match="twice"):
            client.commit("orders", "../q/\0", 1, [again, again])
        with pytest.raises(ConfigError):
            client.commit("orders", "x" * 513, 0, [again])
    assert outside.exists()
    assert values_of(store) == [1]


@pytest.mark.parametrize("query", [1, None, "\ud800"], ids=["number", "none", "surrogate"])
def test_a_query_that_is_no_text_is_the_clients_mistake(store: tiered.Store, query: Any) -> None:
    store.create_topic("orders")
    sent = json.dumps({"put": "stage", "topic": "orders", "options": {"query": query, "attempt": "a" * 32}})
    with pytest.raises(ConfigError, match="query"):
        stage_stream(store, PutCommand.decode(sent.encode()), Gone(), Gone(), nullcontext)


class Gone:
    """A client's stream that ends after some batches, and the client with it."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._left = list(batches)

    def read_chunk(self) -> Any:
        if not self._left:
            raise StopIteration
        return SimpleNamespace(data=self._left.pop(0), app_metadata=None)

    def write(self, _: bytes) -> None:
        raise OSError("nobody is there")


def test_a_client_that_vanishes_leaves_no_rows_behind(store: tiered.Store) -> None:
    """A stream that is cut off looks like one that ended; only its answer tells."""
    store.create_topic("orders")
    client = Gone(rows(1, 2))
    command = PutCommand("orders", kind="stage", options={"query": "q", "attempt": uuid4().hex})
    stage_stream(store, command, client, client, nullcontext)
    assert staged_in(store) == 0
