"""One connection to a server: calls with time limits, retries of calls that may be made twice, and translated errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from ...errors import Backpressure, ServerUnavailable, StoreClosed, TieredError
from ..wire.auth import token_headers
from ..wire.flight_errors import client_errors, is_answer
from ..wire.grpc_forks import use_grpc
from ..wire.messages import Ticket
from ..wire.options import Address, ConnectOptions
from ..wire.proof import Call, Proofs
from ..wire.values import decode_answer, encode_action

_T = TypeVar("_T")
# Pings find a server that hangs. A server takes more than one ping in five minutes for an attack.
_KEEPALIVE = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
# How far a stream reads ahead. By default gRPC probes the network, and held hundreds of MiB for a reader that paused,
# without more speed.
_AHEAD = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]
# After a refused connection gRPC refuses calls by itself for longer and longer, up to two minutes. A server is back earlier.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000)]
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
_PASSING = (ServerUnavailable, Backpressure)


class Answers:
    """The answers of a server to the batches of a stream."""

    def __init__(self, reader: fl.FlightMetadataReader, call: Call | None, location: str) -> None:
        self._reader = reader
        self._call = call
        self._location = location

    def read(self) -> bytes | None:
        """Return the next answer; None after the end of the stream.

        Raises
        ------
        pyarrow.ArrowException
        ServerUnavailable
            Another process than the expected server answered.
        """
        data = self._reader.read()
        if data is None:
            return None
        if self._call is not None:
            self._call.check(self._location)
        return bytes(data)


class Connection:
    """Calls to one server. Thread-safe.

    Attributes
    ----------
    location : str
    options : ConnectOptions
    """

    def __init__(self, location: str, options: ConnectOptions) -> None:
        self.location = Address.of_url(location).location
        self.options = options
        self._proofs = None if options.instance is None else Proofs(options.instance, options.token)
        self._headers = token_headers(options.token if self._proofs is None else None)
        self._stopping = threading.Event()
        use_grpc()
        with client_errors(self.location):
            self._client = fl.FlightClient(
                self.location,
                tls_root_certs=options.tls_roots,
                middleware=None if self._proofs is None else [self._proofs],
                generic_options=_KEEPALIVE + _AHEAD + _RECONNECT,
            )

    def _options(self, seconds: float | None) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(timeout=seconds, headers=self._headers)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of Flight as those of this package; `StoreClosed` means that this client has closed the connection."""
        try:
            with client_errors(self.location):
                yield
        except TieredError as error:
            if self._stopping.is_set():
                raise self._closed() from None
            if isinstance(error, StoreClosed):
                raise ServerUnavailable(f"{self.location} ends: {error}") from None
            raise

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Make one call up to its first answer. If the server must prove its identity, no answer is used before the proof."""
        with self._errors():
            try:
                yield
            except pa.ArrowException as error:
                if is_answer(error):
                    self._check_proven()
                raise
            self._check_proven()

    def _check_proven(self) -> None:
        if self._proofs is not None:
            self._proofs.last_call().check(self.location)

    def action(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        data: Iterable[bytes] | None = None,
        seconds: float | None = 0.0,
        retry: bool = True,
    ) -> dict[str, Any]:
        """Carry out an action of the server.

        Parameters
        ----------
        data
            Bytes that follow the arguments.
        seconds
            The time limit; 0: that of the options; None: no limit.
        retry
            Whether the action may be carried out twice.
        """
        limit = self.options.call_seconds if seconds == 0.0 else seconds

        def call() -> dict[str, Any]:
            with self._answered():
                body = encode_action(values, data)
                found = list(self._client.do_action(fl.Action(name, body), self._options(limit)))
            if len(found) != 1:
                raise ServerUnavailable(f"{self.location} gave {len(found)} answers to {name!r}, not one")
            return decode_answer(found[0].body.to_pybytes())

        return self.retried(call) if retry else call()

    def plan(self, command: bytes) -> fl.FlightInfo:
        """Return the plan of a scan."""

        def call() -> fl.FlightInfo:
            with self._answered():
                return self._client.get_flight_info(
                    fl.FlightDescriptor.for_command(command), self._options(None)
                )

        return self.retried(call)

    def rows(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; after a lost connection, go on behind the rows that came."""
        remaining = Ticket.decode(ticket)
        while True:
            begun = remaining
            try:
                for batch in self._rows(remaining.encode()):
                    remaining = remaining.behind(batch)
                    yield batch
                return
            except ServerUnavailable:
                if remaining is begun:
                    raise
                if remaining.start_offset == remaining.end_offset:
                    return

    def _rows(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a ticket; retry until the first rows have come."""
        stream, batch = self.retried(lambda: self._first(ticket))
        try:
            while batch is not None:
                yield batch
                batch = self._next(stream)
        finally:
            # Else the server would go on to send rows.
            stream.cancel()

    def _first(self, ticket: bytes) -> tuple[fl.FlightStreamReader, pa.RecordBatch | None]:
        with self._answered():
            stream = self._client.do_get(fl.Ticket(ticket), self._options(None))
            try:
                return stream, _chunk(stream)
            except BaseException:
                stream.cancel()
                raise

    def _next(self, stream: fl.FlightStreamReader) -> pa.RecordBatch | None:
        with self._errors():
            return _chunk(stream)

    def put(self, command: bytes, schema: pa.Schema) -> tuple[fl.FlightStreamWriter, Answers]:
        """Begin a stream of batches."""
        with self._errors():
            descriptor = fl.FlightDescriptor.for_command(command)
            writer, reader = self._client.do_put(descriptor, schema, self._options(None))
        call = None if self._proofs is None else self._proofs.last_call()
        return writer, Answers(reader, call, self.location)

    def pauses(self) -> Iterator[None]:
        """Yield at growing intervals until ``retry_seconds`` are over or the connection is closed."""
        until, pause = time.monotonic() + self.options.retry_seconds, _PAUSE_SECONDS
        while (left := until - time.monotonic()) > 0 and not self._stopping.wait(min(pause, left)):
            yield
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def retried(
        self,
        call: Callable[[], _T],
        passes: Callable[[TieredError], bool] = lambda error: isinstance(error, _PASSING),
    ) -> _T:
        """Make a call that may be made twice; repeat it after a temporary error, until ``retry_seconds`` are over."""
        pauses = self.pauses()
        while True:
            try:
                return call()
            except TieredError as error:
                if not passes(error):
                    raise
                if next(pauses, pauses) is pauses:
                    if self._stopping.is_set():
                        raise self._closed() from None
                    raise

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"the connection to {self.location} was closed")

    def close(self) -> None:
        """Close the connection; calls in progress raise `StoreClosed`."""
        self._stopping.set()
        with client_errors(self.location):
            self._client.close()

    def abandon(self) -> None:
        """In a forked child: gRPC's threads are the parent's, and closing would wait for them."""
        _abandoned.append(self._client)


def _chunk(stream: fl.FlightStreamReader) -> pa.RecordBatch | None:
    try:
        return stream.read_chunk().data
    except StopIteration:
        return None


_abandoned: list[fl.FlightClient] = []
