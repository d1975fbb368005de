"""Readers of a directory find the writer that serves it, and nobody else, and give nothing away to anybody else."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.flight.serving import SERVER
from tiered.errors import CorruptionError, ServerUnavailable, TopicNotFound
from tiered.flight import open_noticed
from tiered.flight.client.connection import Connection
from tiered.flight.client.discovery import find_server
from tiered.flight.server.server import FlightServer
from tiered.flight.wire.errors import encode_error
from tiered.flight.wire.instance import Instance
from tiered.flight.wire.messages import Ticket
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.serving_file import SERVING_LOCK, Posting, read_notice, standing_notice
from tiered.warm.catalog import SERVING_FILE
from tiered.warm.document_file import write_document
from tiered.warm.file_lock import facts_of_holder
from tiered.warm.filesystem import OsFileSystem

TOKEN = "s3cret-of-a-test"


def test_a_served_directory_says_where_and_a_closed_server_takes_it_back(
    store: tiered.Store, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(store.url)
    first, second = store.serve("127.0.0.1:0"), store.serve("127.0.0.1:0")
    first.close()
    found = find_server(root, tiered.Settings())
    assert found is not None
    assert (found.url, found.store_id, found.read_only) == (second.location, store.store_id, True)
    found.close()
    second.close()
    assert not (root / SERVING_FILE).exists()
    assert facts_of_holder(root / SERVING_LOCK) is None
    with tiered.open(root, read_only=True) as beside, beside.serve("127.0.0.1:0"):
        assert read_notice(root) is None
    assert find_server(root, tiered.Settings()) is None
    assert not caplog.records


def test_the_lock_vouches_for_the_notice_until_the_socket_is_closed(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can have the port for as long as the lock is held; what is not said before that is never said."""
    root = Path(store.url)
    seen: list[tuple[str, bool, bool]] = []

    def watched(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            result = real(self, *arguments, **named)
            held = facts_of_holder(root / SERVING_LOCK) is not None
            seen.append((name, held, (root / SERVING_FILE).exists()))
            return result

        monkeypatch.setattr(owner, name, call)

    watched(type(store.context.host.fs), "rename")
    watched(Posting, "withdraw")
    watched(FlightServer, "_end")
    server = store.serve("127.0.0.1:0")
    notice = read_notice(root)
    assert notice is not None
    assert facts_of_holder(root / SERVING_LOCK)["instance"] == notice.instance  # type: ignore[index]
    server.close()
    assert seen == [("rename", True, True), ("withdraw", True, False), ("_end", True, False)]
    assert facts_of_holder(root / SERVING_LOCK) is None


def test_a_writer_that_was_killed_is_not_called_and_its_notice_goes_with_the_next(
    tmp_path: Path, python: Callable[..., subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tiered")
    process = python(SERVER, tmp_path, "127.0.0.1:0")
    assert process.stdout is not None
    location = process.stdout.readline().strip()
    process.kill()
    process.wait()
    notice = read_notice(tmp_path)
    assert notice is not None
    assert notice.location == location
    with fake_server(notice.location) as fake:
        assert find_server(tmp_path, tiered.Settings()) is None
        assert not fake.headers
    assert not caplog.records
    with tiered.open(tmp_path) as store:
        assert not (tmp_path / SERVING_FILE).exists()
        with store.serve("127.0.0.1:0") as server:
            notice = standing_notice(tmp_path)
            assert notice is not None
            assert notice.location == server.location
    assert read_notice(tmp_path) is None


@pytest.mark.parametrize(
    "how", ["copied", "another store", "damaged", "token", "lock of another", "earlier release"]
)
def test_who_serves_something_else_is_not_asked(
    store: tiered.Store,
    tmp_path: Path,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "tiered.flight")
    root = Path(store.url)
    server = store.serve("127.0.0.1:0", token=TOKEN if how == "token" else None)
    notice = read_notice(root)
    assert notice is not None
    if how == "copied":
        root = Path(shutil.copytree(root, tmp_path / "copy"))
    elif how == "another store":
        monkeypatch.setattr(
            "tiered.flight.wire.serving_file.read_notice", lambda _: replace(notice, store_id=uuid4())
        )
    elif how == "lock of another":
        monkeypatch.setattr(
            "tiered.flight.wire.serving_file.read_notice", lambda _: replace(notice, instance="0" * 32)
        )
    elif how == "earlier release":
        monkeypatch.setattr(
            "tiered.flight.wire.serving_file.read_notice", lambda _: replace(notice, instance=None)
        )
    elif how == "damaged":
        (root / SERVING_FILE).write_bytes((root / SERVING_FILE).read_bytes().replace(b"127", b"128"))
    assert find_server(root, tiered.Settings()) is None
    (record,) = caplog.records
    assert TOKEN not in record.getMessage()
    if how == "earlier release":
        assert "upgrade it" in record.getMessage()
    server.close()


def test_a_notice_that_cannot_be_read_keeps_nobody_from_reading(
    store: tiered.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders")
    (tmp_path / "data" / SERVING_FILE).mkdir()
    assert find_server(tmp_path / "data", tiered.Settings()) is None
    assert "its server is not used" in caplog.text


def test_a_notice_whose_address_fills_a_terminal_names_nobody(store: tiered.Store, tmp_path: Path) -> None:
    write_document(
        OsFileSystem(),
        tmp_path / "data" / SERVING_FILE,
        {"location": "grpc://" + "a" * 300_000, "store_id": str(store.store_id)},
    )
    with pytest.raises(CorruptionError, match="no place of a server"):
        read_notice(tmp_path / "data")


def test_a_disk_without_room_keeps_nobody_from_serving(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise tiered.DiskFull("no room")

    monkeypatch.setattr(store.context.host.fs, "create", full)
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        assert remote.topics() == []
        assert facts_of_holder(Path(store.url) / SERVING_LOCK) is None
    assert "will not find its server" in caplog.text


def test_a_lock_that_others_may_not_see_leaves_it_to_the_server_to_prove_itself(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Path) -> None:
        raise PermissionError

    with store.serve("127.0.0.1:0"):
        monkeypatch.setattr("tiered.flight.wire.serving_file.facts_of_holder", refuses)
        found = find_server(Path(store.url), tiered.Settings())
        assert found is not None
        found.close()


# -- whoever has the port ------------------------------------------------------------------------


class _Headers(fl.ServerMiddlewareFactory):
    def __init__(self, seen: list[dict[str, list[Any]]]) -> None:
        super().__init__()
        self._seen = seen

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> Any:
        self._seen.append(headers)
        return _Echo(headers)


class _Echo(fl.ServerMiddleware):
    """Shows what it was shown."""

    def __init__(self, headers: dict[str, list[Any]]) -> None:
        super().__init__()
        self._shown = headers.get("tiered-proof", [""])[0]

    def sending_headers(self) -> dict[str, Any]:
        return {"tiered-proof": [self._shown, self._shown.split(" ")[-1]]}


class FakeServer(fl.FlightServerBase):
    """Answers whatever would please a client."""

    facts: dict[str, Any]

    def __init__(self, location: str) -> None:
        self.headers: list[dict[str, list[Any]]] = []
        super().__init__(location, middleware={"headers": _Headers(self.headers)})

    def do_action(self, context: Any, action: fl.Action) -> list[bytes]:
        if action.type == "describe_topic":
            raise fl.FlightServerError("x", extra_info=encode_error(TopicNotFound("by the fake")))
        if action.type == "topics":
            raise fl.FlightUnavailableError("x", extra_info=encode_error(TopicNotFound("by the fake")))
        return [json.dumps(self.facts).encode()]

    def do_get(self, context: Any, ticket: fl.Ticket) -> fl.FlightDataStream:
        return fl.RecordBatchStream(pa.table({"value": [b"forged"]}))

    def get_flight_info(self, context: Any, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        return fl.FlightInfo(pa.schema([]), descriptor, [], -1, -1)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        reader.read_chunk()
        writer.write(b'{"ranges":[[0,0,1]],"partitions":1,"schema_id":0}')


@contextmanager
def fake_server(location: str, **facts: Any) -> Iterator[FakeServer]:
    found = FakeServer(location)
    found.facts = facts
    try:
        yield found
    finally:
        found.shutdown()


def everything_asked(connection: Connection) -> Iterator[Callable[[], object]]:
    """Yield each kind of call, up to its first answer."""
    ticket = Ticket("orders", UUID(int=0), 0, 0, 1, ("value",)).encode()

    def put() -> object:
        writer, answers = connection.put(b"{}", pa.schema([("value", pa.binary())]))
        writer.write_batch(pa.record_batch({"value": [b"x"]}))
        return answers.read()

    yield lambda: connection.action("server", {})
    yield lambda: connection.action("describe_topic", {})
    yield lambda: connection.action("topics", {})
    yield lambda: connection.plan(b"{}")
    yield lambda: next(connection.rows(ticket))
    yield put


@pytest.mark.parametrize("asks_token", [True, False])
def test_who_has_the_port_of_a_server_that_is_gone_learns_no_secret_and_is_not_believed(
    store: tiered.Store, asks_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was found is killed; the client goes on to call its port, where somebody else answers by now."""
    root = Path(store.url)
    monkeypatch.setenv("TIERED_FLIGHT_TOKEN", TOKEN)
    server = store.serve("127.0.0.1:0", token=TOKEN) if asks_token else _serve_without_token(store)
    notice = read_notice(root)
    assert notice is not None
    with open_noticed(notice, tiered.Settings(), read_only=True) as remote:
        assert remote.topics() == []
        connection = remote.connection
        monkeypatch.setattr(
            connection, "options", replace(connection.options, retry_seconds=0.0, call_seconds=10.0)
        )
        facts = connection.action("server", {})
        server.close()
        with fake_server(server.location, **facts) as fake:
            for ask in everything_asked(connection):
                with pytest.raises(ServerUnavailable, match="answered by another process"):
                    ask()
            with pytest.raises(ServerUnavailable, match="answered by another process"):
                open_noticed(notice, tiered.Settings(), read_only=True)
            shown = repr(fake.headers)
            assert len(fake.headers) == 7
    assert TOKEN not in shown
    assert "authorization" not in shown
    assert notice.secret is None or notice.secret not in shown
    # What it was shown opens no other server of the same token.
    proofs = {headers["tiered-proof"][0] for headers in fake.headers}
    assert len(proofs) == 7
    with store.serve("127.0.0.1:0", token=TOKEN) as later, fl.connect(later.location) as client:
        other = read_notice(root)
        assert other is not None
        renamed = {proof.replace(notice.server.id, other.server.id) for proof in proofs}
        for proof in proofs | renamed:
            options = fl.FlightCallOptions(headers=[(b"tiered-proof", proof.encode())])
            with pytest.raises((fl.FlightUnauthenticatedError, fl.FlightUnavailableError)):
                list(client.do_action(fl.Action("topics", b""), options))


def _serve_without_token(store: tiered.Store) -> Any:
    token = os.environ.pop("TIERED_FLIGHT_TOKEN")
    try:
        return store.serve("127.0.0.1:0")
    finally:
        os.environ["TIERED_FLIGHT_TOKEN"] = token


def test_a_proof_is_for_one_server_and_the_right_token(store: tiered.Store) -> None:
    root = Path(store.url)
    with store.serve("127.0.0.1:0", token=TOKEN) as server:
        notice = read_notice(root)
        assert notice is not None
        for instance, token, error in (
            (notice.server, TOKEN + "x", "wants a token"),
            (Instance(notice.server.id, False, "0" * 64), TOKEN, "wants a token"),
            (replace(notice.server, id="0" * 32), TOKEN, "another server is here"),
        ):
            connection = Connection(server.location, ConnectOptions(token, instance=instance))
            with pytest.raises(tiered.TieredError, match=error):
                connection.action("topics", {}, retry=False)
            connection.close()
        connection = Connection(server.location, ConnectOptions(TOKEN, instance=notice.server))
        assert connection.action("topics", {}) == {"topics": []}
        connection.close()
        with fl.connect(server.location) as client:
            for shown in (b"", b"x", b"a b c d", notice.server.id.encode(), b"\xff\xfe"):
                options = fl.FlightCallOptions(headers=[(b"tiered-proof", shown)])
                with pytest.raises((fl.FlightError, pa.ArrowException)):
                    list(client.do_action(fl.Action("topics", b""), options))


def test_a_directory_of_an_older_release_is_read_by_this_one_and_the_other_way(store: tiered.Store) -> None:
    """An earlier client takes the location, and shows the token; of an earlier notice there is nothing to prove."""
    root = Path(store.url)
    with store.serve("127.0.0.1:0", token=TOKEN) as server:
        with tiered.open(server.location, token=TOKEN) as remote:
            assert remote.topics() == []
        values = json.loads((root / SERVING_FILE).read_text())
        assert {"location", "store_id", "directory_id"} < set(values)


FORKING = """
import os, sys, tiered
store = tiered.open(sys.argv[1])
store.serve("127.0.0.1:0")
if os.fork() == 0:
    print("forked", flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_keep_the_lock(
    tmp_path: Path, python: Callable[..., subprocess.Popen[str]]
) -> None:
    """It would vouch for the port of its parent, which was killed."""
    process = python(FORKING, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    assert facts_of_holder(tmp_path / SERVING_LOCK) is not None
    process.kill()
    process.wait()
    assert facts_of_holder(tmp_path / SERVING_LOCK) is None


def test_the_lock_is_taken_while_a_reader_looks(store: tiered.Store) -> None:
    """To look whether nobody holds it, a reader holds it for a moment."""
    root = Path(store.url)
    (root / SERVING_LOCK).touch()
    with (root / SERVING_LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with store.serve("127.0.0.1:0"):
            assert standing_notice(root) is not None
