"""Who may come in, how much is taken at a time, and what is left when either end goes away."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.flight.serving import SERVER
from tests.support.waiting import wait_until
from tiered.engine.host import Host
from tiered.errors import ServerUnavailable, TieredError
from tiered.flight.client.connection import Connection
from tiered.flight.client.remote_store import RemoteStore, open_remote
from tiered.flight.server import streams
from tiered.flight.server.append import append_stream
from tiered.flight.server.server import FlightServer
from tiered.flight.server.streams import Streams, connections
from tiered.flight.wire.flight_errors import from_flight
from tiered.flight.wire.options import ConnectOptions, ServeOptions
from tiered.flight.wire.put_messages import PutCommand

Start = Callable[..., subprocess.Popen[str]]
TOKEN = "s3cret-of-a-test"


def quick(location: str, **options: Any) -> RemoteStore:
    """A client that gives up soon."""
    return open_remote(location, tiered.Settings(), Host(), ConnectOptions(retry_seconds=0.2, **options))


# -- who may come in -----------------------------------------------------------------------------


def test_a_token_is_asked_for_and_never_shown(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = store.serve("127.0.0.1:0", token=TOKEN)
    for wrong in (None, "another", TOKEN[:-1], TOKEN + "x"):
        with pytest.raises(tiered.ConfigError, match="wants a token") as caught:
            tiered.open(server.location, token=wrong)
        assert TOKEN not in str(caught.value)
    with tiered.open(server.location, token=TOKEN) as remote:
        assert remote.topics() == []
        options = remote.connection.options  # type: ignore[attr-defined]
        shown = f"{remote!r} {vars(remote)!r} {server!r} {vars(server)!r} {options!r} {ServeOptions(TOKEN)!r}"
    monkeypatch.setenv("TIERED_FLIGHT_TOKEN", TOKEN)
    tiered.open(server.location).close()
    monkeypatch.delenv("TIERED_FLIGHT_TOKEN")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    settings = tiered.Settings.load(flight={"token_file": file})
    tiered.open(server.location, settings=settings).close()
    assert TOKEN not in shown + caplog.text + repr(settings)


def test_an_empty_token_is_not_none(store: tiered.Store) -> None:
    with pytest.raises(tiered.ConfigError, match="not empty"):
        store.serve("127.0.0.1:0", token="")


def test_other_hosts_are_answered_only_with_a_token_or_by_word(store: tiered.Store) -> None:
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(tiered.ConfigError, match="no token is asked"):
            store.serve(listen)
    store.serve("0.0.0.0:0", allow_remote=True).close()
    store.serve("0.0.0.0:0", token=TOKEN).close()


def test_tls(store: tiered.Store, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names, *files], check=True, capture_output=True)
    server = store.serve("127.0.0.1:0", tls_certificate=certificate, tls_key=key)
    assert server.location.startswith("grpc+tls://")
    settings = tiered.Settings.load(flight={"tls_roots": certificate})
    with tiered.open(server.location, settings=settings) as remote:
        remote.create_topic("orders").append(b"x", sync=True)
    with pytest.raises(ServerUnavailable, match=r"flight\.tls_roots"):
        tiered.open(server.location)  # nobody vouches for the certificate
    with pytest.raises(tiered.ConfigError, match="no certificates"):
        tiered.open(server.location, settings=tiered.Settings.load(flight={"tls_roots": key}))
    with pytest.raises(ServerUnavailable, match=r"grpc\+tls://"):
        tiered.open(server.location.replace("+tls", ""))
    with (
        store.serve("127.0.0.1:0") as plain,
        pytest.raises(ServerUnavailable, match="speaks no TLS: write grpc://"),
    ):
        tiered.open(plain.location.replace("grpc", "grpc+tls"), settings=settings)
    with pytest.raises(tiered.ConfigError, match="together"):
        store.serve("127.0.0.1:0", tls_certificate=certificate)
    with pytest.raises(tiered.ConfigError, match="cannot serve over TLS.*give both in PEM"):
        store.serve("127.0.0.1:0", tls_certificate=key, tls_key=certificate)
    piped, end = os.pipe()  # as of `--tls-key <(pass show key)`
    os.write(end, key.read_bytes())
    os.close(end)
    store.serve("127.0.0.1:0", tls_certificate=certificate, tls_key=f"/dev/fd/{piped}").close()
    os.close(piped)
    short = "openssl req -x509 -newkey rsa:1024 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*short.split(), *files], check=True, capture_output=True)
    with pytest.raises(tiered.ConfigError, match="key too small.*longer key"):
        store.serve("127.0.0.1:0", tls_certificate=certificate, tls_key=key)


@pytest.mark.parametrize(
    "url",
    ["grpc://", "grpc://host", "grpc://u:secret@host:1", "grpc+tcp://h:1", "grpc://h:99999", "grpc://h:1/x"],
)
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(tiered.ConfigError, match="grpc://host:port") as caught:
        tiered.open(url)
    assert "secret" not in str(caught.value)


def test_what_belongs_to_the_server_is_not_for_its_clients(server: Any) -> None:
    with pytest.raises(tiered.ConfigError, match="served elsewhere"):
        tiered.open(server.location, daemon=True)


# -- limits --------------------------------------------------------------------------------------


def test_more_streams_than_allowed_are_told_to_come_again(store: tiered.Store) -> None:
    topic = store.create_topic("orders")
    topic.append_many([bytes(1000)] * 20_000)
    server = FlightServer.open(store, "127.0.0.1:0", ServeOptions(streams_max=1))
    with server, quick(server.location) as remote:
        (split, *_) = remote.topic("orders").scan().splits()
        reading = remote.topic("orders").scan().read(split)
        next(reading)
        with pytest.raises(tiered.Backpressure, match="1 streams"):
            remote.topic("orders").scan().to_arrow()
        reading.close()
        wait_until(lambda: server.streams == 0)
        assert remote.topic("orders").scan().to_arrow().num_rows == 20_000


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_client_that_is_silent_for_long_gives_up_its_place_to_another(
    store: tiered.Store, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that sends nothing but its schema took one of the places for ever."""
    store.create_topic("orders")
    schema = pa.schema([("value", pa.binary())])
    with FlightServer.open(store, f"{host}:0", ServeOptions(streams_max=1)) as server:
        silent = fl.connect(server.location)
        writer, answers = silent.do_put(fl.FlightDescriptor.for_path("orders"), schema)
        wait_until(lambda: server.streams == 1)
        with quick(server.location) as remote:
            topic = remote.topic("orders")
            with pytest.raises(ServerUnavailable, match="1 streams"):
                topic.append(b"x", sync=True)
            monkeypatch.setattr(streams, "SILENT_SECONDS_MAX", 0.0)
            assert topic.append(b"x", sync=True).offset == 0
        with pytest.raises(pa.ArrowException):
            answers.read()
            writer.close()
        silent.close()


def test_a_stream_is_silent_from_the_end_of_its_last_piece_of_work_on() -> None:
    now, cut = [0.0], []
    under_way = Streams(2, cut.append, lambda: now[0])

    def another() -> None:
        with under_way.one("ipv4:10.0.0.3:3"):
            pass

    with under_way.one("ipv4:10.0.0.1:1") as first, under_way.one("ipv4:10.0.0.2:2") as second:
        with first.working():
            now[0] = 61.0
            with second.working(), pytest.raises(tiered.Backpressure):
                another()
        assert cut == []
        now[0] = 122.0
        with second.working():
            pass
        with pytest.raises(tiered.Backpressure):
            another()
        assert cut == ["ipv4:10.0.0.1:1"]
    another()


def test_a_batch_over_the_limit_is_refused_and_the_stream_goes_on(remote: tiered.Store, server: Any) -> None:
    topic = remote.create_topic("orders")
    client = fl.connect(server.location)
    writer, answers = client.do_put(
        fl.FlightDescriptor.for_path("orders"), pa.schema([("value", pa.binary())])
    )
    writer.write_batch(pa.record_batch({"value": pa.array([bytes(9 << 20)] * 9, pa.binary())}))
    assert b"RecordTooLarge" in answers.read().to_pybytes()
    writer.write_batch(pa.record_batch({"value": pa.array([b"x"], pa.binary())}))
    assert b'"ranges":[[0,0,1]]' in answers.read().to_pybytes()
    writer.close()
    client.close()
    assert topic.offsets()[0].end == 1


@pytest.mark.parametrize("error", [pa.ArrowInvalid("no frame"), OSError(), pa.ArrowMemoryError("2 EiB")])
def test_a_batch_that_cannot_be_decoded_ends_the_stream_with_an_error(
    store: tiered.Store, error: Exception
) -> None:
    """Who waits for no answer would take a plain end of it for success."""

    class Reader:
        def read_chunk(self) -> None:
            raise error

    store.create_topic("orders")
    with pytest.raises(tiered.SchemaMismatch, match="damaged"):
        append_stream(store, PutCommand("orders"), Reader(), None, nullcontext)


def test_a_client_that_is_silent_has_no_data_held_for_it(store: tiered.Store) -> None:
    """The last batch of each stream was, with the error that named it, until another one came."""

    class Reader:
        held: weakref.ref[pa.RecordBatch] | None = None

        def read_chunk(self) -> SimpleNamespace:
            if self.held is None:
                batch = pa.record_batch({"no such column": [b"x"]})
                self.held = weakref.ref(batch)
                return SimpleNamespace(data=batch, app_metadata=None)
            assert self.held() is None
            raise StopIteration

    writer = Mock()
    append_stream(store, PutCommand(store.create_topic("orders").name), Reader(), writer, nullcontext)
    assert b"SchemaMismatch" in writer.write.call_args.args[0]


def test_a_batch_that_is_damaged_is_not_stored(remote: tiered.Store, server: Any) -> None:
    remote.create_topic("texts", schema=pa.schema([("text", pa.string())]))
    client = fl.connect(server.location)
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("texts"), pa.schema([("text", pa.string())]))
    array = pa.array([b"\xff\xfe"], pa.binary())
    writer.write_batch(
        pa.record_batch({"text": pa.StringArray.from_buffers(1, array.buffers()[1], array.buffers()[2])})
    )
    assert b"SchemaMismatch" in answers.read().to_pybytes()
    writer.close()
    client.close()


# -- either end goes away ------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnavailable, match="is a server running there"):
            tiered.open(f"grpc://127.0.0.1:{taken.getsockname()[1]}")


def test_a_proxy_is_suspected_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for direct, suspected in (("", True), ("other, .example.org", False), ("elsewhere", True)):
        monkeypatch.setenv("no_proxy", direct)
        error = from_flight(fl.FlightUnavailableError("message: none"), "grpc://log.example.org:9")
        assert ("http_proxy" in str(error)) is suspected


def test_a_taken_address_is_said(store: tiered.Store, server: Any) -> None:
    with pytest.raises(tiered.ConfigError, match="cannot listen"):
        store.serve(server.location.removeprefix("grpc://"))


def test_close_ends_readers_and_idle_writers_and_lets_appends_end(
    store: tiered.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for clients, which gRPC by itself would, for ever."""
    store.create_topic("orders").append_many([bytes(1000)] * 50_000)
    server = store.serve("127.0.0.1:0")
    remote = quick(server.location)
    topic = remote.topic("orders")
    batches = iter(topic.scan().to_batches())
    next(batches)
    assert topic.append(b"x", sync=True).offset == 50_000
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(15)
    assert not closing.is_alive()
    assert "still open" not in caplog.text
    with pytest.raises((ServerUnavailable, tiered.StoreClosed)):
        for _ in batches:
            pass
    lost = topic.append(b"y")
    with pytest.raises(ServerUnavailable, match="not known"):
        topic.flush()
    with pytest.raises(ServerUnavailable):
        _ = lost.offset
    with pytest.raises(ServerUnavailable):
        remote.topics()
    remote.lifecycle.fault = tiered.StoreClosed("by the test")
    assert store.topic("orders").offsets()[0].end == 50_001


READER = """
import sys, tiered
rows = tiered.open(sys.argv[1]).topic("orders").scan().to_batches()
next(rows)
print("reading", flush=True)
sys.stdin.read()
"""
WRITER = """
import sys, tiered
topic = tiered.open(sys.argv[1]).topic("orders")
topic.append(b"first", sync=True)
print("appending", flush=True)
while True:
    topic.append(bytes(1000))
"""


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (names are numbers)


@pytest.mark.parametrize("program", [READER, WRITER], ids=["reader", "writer"])
def test_a_client_that_is_killed_leaves_nothing_behind(
    store: tiered.Store, python: Start, program: str
) -> None:
    """Neither a stream nor a connection; and the store goes on."""
    topic = store.create_topic("orders")
    topic.append_many([bytes(1000)] * 50_000)
    topic.flush()
    server = store.serve("127.0.0.1:0")
    with tiered.open(server.location) as warm:
        # What the store itself keeps open from the first read on.
        warm.topic("orders").append(b"first", sync=True)
        assert warm.topic("orders").scan().to_arrow().num_rows == 50_001
    wait_until(lambda: not _connections(server))
    files = _open_files()
    clients = [python(program, server.location) for _ in range(2)]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline()
    wait_until(lambda: server.streams == 2)
    for client in clients:
        client.send_signal(signal.SIGKILL)
        client.communicate()
    wait_until(lambda: server.streams == 0)
    wait_until(lambda: not _connections(server))
    wait_until(lambda: _open_files() <= files, "files are left open")
    end = topic.append(b"last", sync=True).offset
    assert topic.scan().to_arrow().num_rows == end + 1


def _connections(server: Any) -> int:
    return sum(1 for _ in connections(int(server.location.rpartition(":")[2])))


SERVER_THAT_FORGETS_TO_CLOSE = """
import os, sys, tiered
if sys.argv[2] == "forks":
    tiered.open(sys.argv[1]).serve("127.0.0.1:0")
    if os.fork():
        os._exit(0 if os.wait()[1] == 0 else 1)
    sys.exit(0)
store = tiered.open(sys.argv[1])
store.create_topic("orders")
print(store.serve("127.0.0.1:0").location, flush=True)
sys.stdin.readline()
"""


@pytest.mark.extended
def test_a_process_that_serves_ends_whatever_its_clients_do(tmp_path: Path, python: Start) -> None:
    """pyarrow waited at exit, before the store was closed, until the last of them had left."""
    process = python(SERVER_THAT_FORGETS_TO_CLOSE, tmp_path / "data", "ends", popen=subprocess.Popen)
    assert process.stdin is not None
    assert process.stdout is not None
    client = fl.connect(process.stdout.readline().strip())
    batch = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("orders"), batch.schema)
    writer.write_batch(batch)
    assert answers.read() is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(30) == 0
    with pytest.raises(pa.ArrowException):
        writer.close()
    client.close()
    with tiered.open(tmp_path / "data") as store:
        assert store.topic("orders").offsets()[0].end == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_of_a_server_ends(tmp_path: Path, python: Start) -> None:
    assert (
        python(SERVER_THAT_FORGETS_TO_CLOSE, tmp_path / "data", "forks", popen=subprocess.Popen).wait(30) == 0
    )


def test_appends_outlive_a_kill_of_the_server_and_none_is_there_twice(tmp_path: Path, python: Start) -> None:
    """What was under way, or not durable, is sent again to the server that comes after it; what it had is recognised."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    location = f"grpc://{address}"

    def start() -> subprocess.Popen[str]:
        process = python(SERVER, tmp_path / "data", address)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == location
        return process

    def power_cut() -> None:
        """Kill the server, and take from its disk what was not synced."""
        serving.kill()
        serving.wait()
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(tmp_path / "durable", tmp_path / "data")

    serving = start()
    remote = open_remote(location, tiered.Settings(), Host(), ConnectOptions(retry_seconds=30))
    topic = remote.topic("orders")
    sent = 0
    for _ in range(2):
        for count in (1000, 500):
            for _ in range(count):
                last = topic.append(sent.to_bytes(8, "big"))
                sent += 1
            if count == 1000:
                topic.flush()
                shutil.copytree(tmp_path / "data", tmp_path / "durable", dirs_exist_ok=True)
        assert last.offset >= 0  # answered, and not durable
        topic.append(sent.to_bytes(8, "big"))
        sent += 1
        power_cut()
        serving = start()
    topic.flush()
    values = [int.from_bytes(value.as_py(), "big") for value in topic.scan().to_arrow()["value"]]
    assert values == list(range(sent))
    remote.close()


def test_a_damaged_topic_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tiered.open(tmp_path / "data") as store:
        for name in ("damaged", "whole"):
            store.create_topic(name)
    (tmp_path / "data" / "topics" / "damaged" / "topic.json").write_bytes(b"{}")
    with tiered.open(tmp_path / "data") as store:
        client = fl.connect(store.serve("127.0.0.1:0").location)
        assert [info.descriptor.path for info in client.list_flights()] == [[b"whole"]]
        client.close()
    assert "'damaged' is not listed" in caplog.text


def test_an_error_of_the_engine_is_not_shown_to_clients(
    remote: tiered.Store,
    store: tiered.Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise RuntimeError("a path that is nobody's business")

    monkeypatch.setattr(store, "topics", fails)
    with pytest.raises(TieredError, match="its log has why") as caught:
        remote.topics()
    assert "business" not in str(caught.value)
    assert "business" in caplog.text


@pytest.mark.extended
@pytest.mark.parametrize(
    "odd", [0, 1.5, True, "x", [], [0], {"0": [0]}, {"0": {}}, {"x": [0, 1]}, {"0": [0, None]}], ids=repr
)
@pytest.mark.parametrize(
    ("action", "name"),
    [("commit_consumer", "offsets"), ("commit_consumer", "unmoved"), ("wait_any", "offsets"),
     ("commit_transaction", "moves"), ("commit_transaction", "parts"), ("commit", "staged"), ("snapshot", "topics")],
)  # fmt: skip
def test_arguments_of_another_kind_are_no_error_of_the_engine(
    remote: Any, caplog: pytest.LogCaptureFixture, action: str, name: str, odd: Any
) -> None:
    """A client of another release can send them; in the log, each would be a defect of the server."""
    remote.create_topic("odd", exist_ok=True)
    right = {
        "topic": "odd", "consumer": "c", "session": str(uuid4()), "offsets": {"7": 0}, "seconds": 0, "query": "q", "batch": 0,
        "parts": [], "moves": [],
    }  # fmt: skip
    with suppress(tiered.ConfigError, tiered.TopicNotFound, tiered.Fenced):
        remote.connection.action(action, {**right, name: odd})
    assert "Traceback" not in caplog.text


def test_a_server_that_closes_is_away_and_no_closed_store(server: Any) -> None:
    """What changes nothing is tried again, for the next server may be there soon."""
    with quick(server.location) as remote:
        server._service.ending = True
        with pytest.raises(ServerUnavailable, match="shutting down"):
            remote.topics()
        server._service.ending = False


def test_a_connection_is_tried_again_for_what_changes_nothing(server: Any) -> None:
    connection = Connection(server.location, ConnectOptions(retry_seconds=5))
    calls = []

    def once_away() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ServerUnavailable("away")
        return "back"

    assert connection.retried(once_away) == "back"
    connection.close()
