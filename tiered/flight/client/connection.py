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
# A server that stands still is found out by pings; more of them than one in five minutes it takes for an attack.
_KEEPALIVE = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
# What a stream takes in ahead of its reader. By itself gRPC probes the network for it, and was seen to hold hundreds of
# MiB for a reader that pauses, at no more speed.
_AHEAD = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]
# After a refused connection gRPC refuses calls by itself, for ever longer: up to two minutes, where a server is back in one.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000)]
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
_PASSING = (ServerUnavailable, Backpressure)


class Answers:
    """What a server answers to the batches of a stream."""

    def __init__(self, reader: fl.FlightMetadataReader, call: Call | None, location: str) -> None:
        self._reader = reader
        self._call = call
        self._location = location

    def read(self) -> bytes | None:
        """Return the next answer; None where the stream has ended.

        Raises
        ------
        pyarrow.ArrowException
        ServerUnavailable
            It is not of who was meant.
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
        """Raise errors of Flight as those of this package; `StoreClosed` is what this end has closed."""
        try:
            with client_errors(self.location):
                yield
        except TieredError as error:
            if self._stopping.is_set():
                raise StoreClosed(f"the connection to {self.location} was closed") from None
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
            Sent behind the arguments.
        seconds
            How long it may take; 0: as the options say; None: as long as it does.
        retry
            Whether it may be done twice.
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
        """Yield the rows of a split; where the connection is lost between them, it goes on behind those that came."""
        left = Ticket.decode(ticket)
        while True:
            begun = left
            try:
                for batch in self._rows(left.encode()):
                    left = left.behind(batch)
                    yield batch
                return
            except ServerUnavailable:
                if left is begun:
                    raise
                if left.start_offset == left.end_offset:
                    return

    def _rows(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a ticket; tried again as long as nothing of it has come."""
        stream, batch = self.retried(lambda: self._first(ticket))
        try:
            while batch is not None:
                yield batch
                batch = self._next(stream)
        finally:
            # Else the server would go on to send what nobody reads.
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
        """Make a call that may be made twice, again and again while what it raises may pass."""
        pauses = self.pauses()
        while True:
            try:
                return call()
            except TieredError as error:
                if not passes(error) or next(pauses, pauses) is pauses:
                    raise

    def close(self) -> None:
        """Let go of the server."""
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
