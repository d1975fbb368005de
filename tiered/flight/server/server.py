"""The Arrow Flight server of a store. Its threads are gRPC's, one for each open call."""

from __future__ import annotations

import atexit
import logging
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl

from ...errors import ConfigError, CorruptionError, StoreClosed, TopicNotFound, UnsupportedFormat
from ...format.schema import row_schema
from ..wire.auth import AccessCheck
from ..wire.flight_errors import server_errors, to_flight
from ..wire.grpc_forks import use_grpc
from ..wire.instance import Instance
from ..wire.messages import Ticket
from ..wire.options import Address, ServeOptions, is_loopback
from ..wire.put_messages import PutCommand
from ..wire.serving_file import Posting, post_notice
from ..wire.topic_ref import resolve_topic
from ..wire.values import decode_action, encode_json
from .actions import ACTIONS, Action, run_action
from .append import PutHandler, append_stream
from .plan import command_of, plan_flight
from .read import ticket_rows, ticket_schema
from .staging import STAGE_ACTIONS, stage_stream
from .streams import Stream, Streams, cut_connections
from .transactions import TRANSACTION_ACTIONS

if TYPE_CHECKING:
    from ...store.local_store import LocalStore

log = logging.getLogger("tiered.flight")

# How long a server that closes waits for the appends in progress.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Service(fl.FlightServerBase):  # type: ignore[misc]
    """Answers calls.

    Parameters
    ----------
    store
        The store that is served.
    actions, puts
        The handlers by name; see `ACTIONS` and `PUTS`.
    """

    def __init__(
        self,
        store: LocalStore,
        address: Address,
        options: ServeOptions,
        actions: Mapping[str, Action],
        puts: Mapping[str, PutHandler],
    ) -> None:
        self.store = store
        self._actions = actions
        self._puts = puts
        self.streams = Streams(options.streams_max, lambda peer: cut_connections(self.port, peer))
        self._lock = threading.Lock()
        self.ending = False
        self.busy = 0
        self.instance = Instance.new(asks_token=options.token is not None)
        tls = options.tls_certificate
        use_grpc()
        super().__init__(
            address.location,
            tls_certificates=None if tls is None else [(tls, options.tls_key)],
            middleware={"access": AccessCheck(options.token, self.instance)},
        )
        _leave_exit_to_us(self)

    def check(self) -> None:
        """Raise `StoreClosed` if the server closes or the store is closed."""
        if self.ending:
            raise StoreClosed("the server is shutting down")
        self.store.lifecycle.check()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with server_errors():
            self.begin()
            try:
                yield
            finally:
                self.end()

    def begin(self) -> None:
        """Begin a piece of work; raise `StoreClosed` if the server closes."""
        self.check()
        with self._lock:
            self.busy += 1

    def end(self) -> None:
        """End a piece of work."""
        with self._lock:
            self.busy -= 1

    # -- what Flight calls -----------------------------------------------------------------------

    def list_flights(self, context: fl.ServerCallContext, criteria: bytes) -> Iterator[fl.FlightInfo]:  # noqa: ARG002
        """Yield each topic; a plan of its own has endpoints and sizes."""
        with self._call():
            infos = []
            for name in self.store.topics():
                descriptor = fl.FlightDescriptor.for_path(name)
                try:
                    schema = row_schema(self.store.topic(name).schema)
                except (CorruptionError, UnsupportedFormat, TopicNotFound) as error:
                    log.warning("topic %r is not listed: %s", name, error)
                    continue
                infos.append(fl.FlightInfo(schema, descriptor, [], -1, -1))
        yield from infos

    def get_schema(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.SchemaResult:  # noqa: ARG002
        with self._call():
            command = command_of(descriptor)
            columns = None if command.columns is None else list(command.columns)
            return fl.SchemaResult(row_schema(self.store.topic(command.topic).schema, columns))

    def get_flight_info(
        self,
        context: fl.ServerCallContext,  # noqa: ARG002
        descriptor: fl.FlightDescriptor,
    ) -> fl.FlightInfo:
        with self._call():
            return plan_flight(self.store, descriptor)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with self._call():
            requested = Ticket.decode(ticket.ticket)
            topic = resolve_topic(self.store, requested.topic, requested.topic_id)
            schema = ticket_schema(topic, requested)
            rows = ticket_rows(self.store, topic, requested, self.check)
            return fl.GeneratorStream(schema, self._sent(context, rows))

    def _sent(
        self, context: fl.ServerCallContext, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        # All of it is within the generator: a generator that never starts is never closed.
        try:
            with self.streams.one(context.peer()) as stream:
                while True:
                    with stream.working():
                        batch = next(rows, None)
                    if batch is None or context.is_cancelled():
                        return
                    self.check()
                    yield batch
        except Exception as error:  # noqa: BLE001 (the client must learn of every error)
            raise to_flight(error) from None

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        with server_errors(), self.streams.one(context.peer()) as stream:
            self.check()
            if descriptor.descriptor_type == fl.DescriptorType.PATH:
                command = PutCommand(command_of(descriptor).topic)
            else:
                command = PutCommand.decode(bytes(descriptor.command))
            handler = self._puts.get(command.kind)
            if handler is None:
                raise ConfigError(f"this server takes no batches for {command.kind!r}")
            work = _Work(self, stream)
            handler(self.store, command, reader, writer, lambda: work)

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(name, (action.__doc__ or "").partition("\n")[0]) for name, action in self._actions.items()]

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[bytes]:  # noqa: ARG002
        with self._call():
            values = decode_action(action.body.to_pybytes())
            return [encode_json(run_action(self._actions, self.store, action.type, values))]


class _Work:
    """The context of a piece of work for a stream. As a class: `contextmanager` takes longer than the append of a record."""

    def __init__(self, service: Service, stream: Stream) -> None:
        self._service = service
        self._stream = stream

    def __enter__(self) -> None:
        self._service.begin()
        self._stream.begin()

    def __exit__(self, *_: object) -> None:
        self._stream.end()
        self._service.end()


PUTS: dict[str, PutHandler] = {"append": append_stream, "stage": stage_stream}
"""The handlers of streams of batches, by `PutCommand.kind`."""


class FlightServer:
    """A running server; make one with `Store.serve`.

    Attributes
    ----------
    location : str
        ``grpc://host:port``.
    """

    def __init__(self, service: Service, address: Address) -> None:
        self._service = service
        self._port = address.port
        self.location = address.location
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._posting: Posting | None = None
        self._ending = threading.Event()
        # Started early, and waits: some Pythons start no thread at their exit, when servers are closed too.
        self._down = threading.Thread(target=self._shut_down, name="tiered-flight-close", daemon=True)
        _servers.add(self)

    @classmethod
    def open(cls, store: LocalStore, listen: str, options: ServeOptions) -> FlightServer:
        """Listen at ``host:port``.

        Raises
        ------
        ConfigError
            The address is taken or not ours, TLS files do not fit, or others could come in without a token.
        """
        address = Address.to_listen(listen, tls=options.tls_certificate is not None)
        options.check(address.host)
        _check_free(address)
        if store.writer_lock is not None:
            # Commits that an earlier server had decided on are in the log before the first call.
            store.staging.recover()
        try:
            service = Service(
                store, address, options, {**ACTIONS, **TRANSACTION_ACTIONS, **STAGE_ACTIONS}, PUTS
            )
        except pa.ArrowException as error:
            raise ConfigError(
                f"cannot serve at {listen}: {str(error).splitlines()[0]}; is the address free, and the certificate "
                "one in PEM with its key?"
            ) from None
        if options.tls_certificate is None and not is_loopback(address.host):
            log.warning("serving %s without TLS: records and the token can be read on the way", listen)
        host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104
        server = cls(service, Address(host, service.port, address.tls))
        server._down.start()
        server._posting = post_notice(store, server.location, service.instance)
        return server

    @property
    def streams(self) -> int:
        """The number of open reads and appends of clients."""
        return len(self._service.streams)

    def wait(self) -> None:
        """Wait until the server is closed."""
        self._closed.wait()

    def close(self) -> None:
        """Stop listening, wait for appends in progress, and disconnect all clients. May be called twice."""
        with self._closing:
            if self._closed.is_set():
                return
            if self._posting is not None:
                self._posting.withdraw()
            self._service.ending = True
            self._ending.set()
            self._end()
            if self._posting is not None:
                self._posting.release()
            self._closed.set()
        _servers.discard(self)

    def _shut_down(self) -> None:
        self._ending.wait()
        self._service.shutdown()

    def _end(self) -> None:
        """Wait for the calls in progress, and shut the connections of those that wait for their client."""
        down = self._down
        until = time.monotonic() + _GRACE_SECONDS
        while down.is_alive() and time.monotonic() < until:
            down.join(_POLL_SECONDS)
            if down.is_alive() and not self._service.busy:
                cut_connections(self._port)
        if down.is_alive():
            cut_connections(self._port)
            down.join(_GRACE_SECONDS)
        if down.is_alive():
            log.warning("%s: calls of clients are still open; they end with this process", self.location)

    def abandon(self) -> None:
        """In a forked child: leave the server to the parent."""
        # Closing it would wait for threads that the child does not have.
        _abandoned.append(self._service)
        if self._posting is not None:
            self._posting.abandon()
        _servers.discard(self)
        self._closed.set()

    def __enter__(self) -> FlightServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.location}{' (closed)' if self._closed.is_set() else ''}>"


_servers: weakref.WeakSet[FlightServer] = weakref.WeakSet()
_abandoned: list[Service] = []


def _close_all() -> None:
    for server in list(_servers):
        server.close()


# Before the stores are closed: a full disk keeps some of them open.
atexit.register(_close_all)


def _leave_exit_to_us(service: Service) -> None:
    """Keep pyarrow from shutting a server down at the exit of the process.

    It would wait for clients until they leave, and in a forked child for threads that are not there.
    """
    finalizers: Mapping[weakref.finalize[..., Any], object] = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(finalizers):
        found = finalizer.peek()
        if found is not None and found[0] is service:
            finalizer.atexit = False


def _check_free(address: Address) -> None:
    """Raise `ConfigError` if the address cannot be listened at: gRPC gives no reason."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {address.host}:{address.port}: {error.strerror or error}; write another address"
            ) from None
