"""`Appender`: sends the records that are appended to a served topic, in the order of the calls, over one open stream.

::

    append ──▶ queue of batches ──▶ stream ──▶ server
                 the last one        │  at most IN_FLIGHT_MAX batches are in flight
                 of a partition      ▼
                 grows             answers: each settles its batch

A small batch grows while others are in flight, so only a caller that waits for each record pays a round trip for each. If
nothing is in flight, the thread that appends sends its record itself.

Every batch has a producer's number. After a broken connection the appender sends the batches in flight again, and the server
leaves out the rows that it has.

A batch that was answered and may not be durable stays in the replay buffer. If the store was opened anew meanwhile (its
*incarnation* is another one), the appender sends these batches before any later one. Otherwise a `flush` would report records
as durable that a kill of the server took.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from ...base.condition import InterruptSafeCondition
from ...engine.records import OffsetRange
from ...errors import (
    Backpressure,
    Conflict,
    Fenced,
    ServerUnavailable,
    StoreClosed,
    TieredError,
    TopicNotFound,
    copy_error,
)
from ...format.topic_meta import TopicMeta
from ...hot.row_buffer import RecordBuffer, RowBuffer
from ..wire import packed_rows
from ..wire.topic_ref import topic_ref
from .connection import Connection
from .pending_batch import PendingBatch
from .put_stream import PutStream
from .replay_buffer import ReplayBuffer

log = logging.getLogger("tiered.flight")

IN_FLIGHT_MAX = 8
BUFFER_BYTES_MAX = 32 << 20
"""Limit of all batches that are queued or in flight; beyond it an append waits."""
BATCH_BYTES_MIN = 64 << 10
"""A smaller batch grows while others are in flight."""
BATCH_BYTES_MAX = 4 << 20
SEND_HERE_BYTES_MAX = 16 << 10
"""Limit of a batch that the calling thread sends itself: the system takes so much without a wait for the server."""
_IDLE_SECONDS = 1.0
# The number of failed batches whose error is kept until a flush raises it.
_FAILED_MAX = 64
_PASSING = (ServerUnavailable, Backpressure, StoreClosed)


class Appender:
    """The appends of one topic. Thread-safe; its own thread starts with the first record.

    Parameters
    ----------
    meta
        Returns the topic's document as the client knows it.
    on_growth
        Called when an answer shows that the topic has more columns or partitions than that.
    new_rows
        Returns an empty buffer for rows of the topic as the client knows it.
    waits
        Whether an append without `sync` waits until its record is durable.
    block_bytes
        Size of the server's blocks. A batch of single records fits in one, so that it is appended wholly or not at all.
    """

    def __init__(
        self,
        connection: Connection,
        meta: Callable[[], TopicMeta],
        on_growth: Callable[[], None],
        new_rows: Callable[[], RecordBuffer | RowBuffer],
        waits: bool,
        block_bytes: int,
    ) -> None:
        self._connection = connection
        self._meta = meta
        self._on_growth = on_growth
        self._new_rows = new_rows
        self._producer = f"flight-{uuid4().hex}"
        self._numbers: dict[int, int] = {}
        self._changed = InterruptSafeCondition()
        self._queue: deque[PendingBatch] = deque()
        self._growing: dict[int, PendingBatch] = {}
        self._in_flight: deque[PendingBatch] = deque()
        self._bytes = 0
        # -1 while nothing is accepted: before the thread starts, and once it is to end.
        self._buffer_bytes_max = -1
        self._waits = waits
        self._batch_bytes_max = min(BATCH_BYTES_MAX, block_bytes)
        self._replay = ReplayBuffer()
        self._incarnation: str | None = None
        self._must_replay = False
        # Whether an error or Ctrl-C ended the send of a calling thread: then the stream must not be used any more.
        self._send_unfinished = False
        self._failed: deque[PendingBatch] = deque(maxlen=_FAILED_MAX)
        self._fault: TieredError | None = None
        self._idle = False
        self._ending = False
        self._thread: threading.Thread | None = None
        self._stream: PutStream | None = None

    # -- on the threads of the callers -----------------------------------------------------------

    def add(
        self,
        partition: int,
        values: Sequence[Any],
        timestamp_us: int,
        size: int,
        sync: bool | None,
        *,
        more: bool = False,
    ) -> tuple[PendingBatch, int]:
        """Add one record; return its batch and its row there.

        Parameters
        ----------
        size
            As `RecordBuffer.add` and `RowBuffer.add` take it.
        more
            Whether the caller adds others at once, which are sent together with it.
        """
        with self._changed.lock:
            batch = self._growing.get(partition)
            if (
                batch is None
                or batch.size + size > self._batch_bytes_max
                or self._bytes + size > self._buffer_bytes_max
                or batch.sync is not sync
                or batch.width < len(values)
            ):
                self._wait_for_room(size)
                batch = PendingBatch.of_rows(partition, sync, self._new_rows())
            # Ctrl-C after any of these lines leaves the record there wholly or not at all.
            rows, before = batch.rows, batch.size
            assert rows is not None
            row = len(rows.timestamps_us)
            batch.threads.add(_thread())
            try:
                rows.add(values, size)
                rows.timestamps_us.append(timestamp_us)
            except BaseException:
                rows.truncate(row)
                raise
            batch.size = rows.bytes
            if row:
                self._bytes += batch.size - before
            else:
                self._add_new(batch, grows=True, send_here=not more)
            return batch, row

    def add_batch(self, batch: PendingBatch) -> None:
        """Add Arrow data, a record that has its number, or a conditional append."""
        with self._changed.lock:
            self._wait_for_room(batch.size)
            if batch.partition is not None:
                self._growing.pop(batch.partition, None)
            self._add_new(batch, grows=False, send_here=True)

    def _add_new(self, batch: PendingBatch, *, grows: bool, send_here: bool) -> None:
        """Send a batch on this thread if the appender's thread is idle, or else queue it. The caller holds the lock.

        The appender's thread takes the answer in both cases.
        """
        if send_here and self._can_send_here(batch):
            assert self._stream is not None
            self._number(batch)
            self._send_unfinished = True
            self._in_flight.append(batch)
            self._bytes += batch.size
            try:
                self._stream.write(batch, self._producer)
                self._send_unfinished = False
            except (pa.ArrowException, OSError) as error:
                log.debug("%s: a batch is sent again after %s", self._connection.location, error)
        else:
            self._queue.append(batch)
            if grows and batch.partition is not None:
                self._growing[batch.partition] = batch
            self._bytes += batch.size
        if self._idle:
            self._idle = False
            self._changed.notify_all()

    def _can_send_here(self, batch: PendingBatch) -> bool:
        stream = self._stream
        return (
            self._idle
            and not self._in_flight
            and stream is not None
            and stream.schema_id == self._meta().schema_id
            and batch.size <= SEND_HERE_BYTES_MAX
        )

    def _number(self, batch: PendingBatch) -> None:
        batch.sealed()
        if batch.number is None and batch.partition is not None:
            # Before anything can fail: the number tells the server whether it has the rows.
            batch.number = self._numbers.get(batch.partition, 0)
            self._numbers[batch.partition] = batch.number + batch.count

    def _wait_for_room(self, size: int) -> None:
        """Start the thread if need be, and wait until there is room for more bytes. The caller holds the lock."""
        if self._fault is not None:
            raise copy_error(self._fault)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tiered-flight-append", daemon=True)
        if self._thread.ident is None:
            self._thread.start()
            self._buffer_bytes_max = BUFFER_BYTES_MAX
        while not self._ending and self._bytes and self._bytes + size > BUFFER_BYTES_MAX:
            self._changed.wait()
        if self._ending:
            raise copy_error(self._fault or StoreClosed("the store is being closed"))

    def drain(self) -> None:
        """Wait until the server has answered everything that was added before the call."""
        with self._changed.lock:
            last = self._queue[-1] if self._queue else self._in_flight[-1] if self._in_flight else None
            if last is not None:
                self._growing.clear()
                while not (last.settled or self._fault is not None):
                    self._changed.wait()

    def flush(self) -> None:
        """Return once everything that was added before the call is durable at the server.

        Raises
        ------
        TieredError
            The flush failed, or an append before it whose error no call has raised.
        """
        while True:
            self.drain()
            self.raise_failed()
            with self._changed.lock:
                before, count, last = self._incarnation, len(self._replay), self._replay.end
            try:
                incarnation = self._connection.action("flush", topic_ref(self._meta()), seconds=None)[
                    "incarnation"
                ]
            except TopicNotFound:
                with self._changed.lock:
                    self._replay.release(last)  # the records were deleted with the topic
                raise
            with self._changed.lock:
                if count == 0 or incarnation == before:
                    self._replay.release(last)
                    return
                # The server was killed meanwhile: the thread sends the replay buffer to the next one.
                if incarnation != self._incarnation:
                    self._must_replay = True
                    self._idle = False
                    self._changed.notify_all()
                    while self._must_replay and self._fault is None:
                        self._changed.wait()
                if self._fault is not None:
                    raise copy_error(self._fault)

    def raise_failed(self) -> None:
        """Raise the error of an append that no call has raised: once on each thread that appended one of its records."""
        thread = threading.get_ident()
        with self._changed.lock:
            failed = [batch for batch in self._failed if batch.is_unreported_to(thread)]
            for batch in failed:
                batch.reported.add(thread)
            left = [batch for batch in self._failed if not batch.threads <= batch.reported]
            self._failed = deque(left, _FAILED_MAX)
        for batch in failed:
            batch.ranges()

    def close(self) -> None:
        """Send everything that is queued, take the answers, and end the thread."""
        with self._changed.lock:
            self._ending, self._buffer_bytes_max = True, -1
            self._changed.notify_all()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        with self._changed.lock:
            self._fault = self._fault or StoreClosed("the store was closed")
            self._changed.notify_all()

    @property
    def unsettled(self) -> bool:
        """Whether any record is not known to be durable."""
        with self._changed.lock:
            return bool(self._queue or self._in_flight or self._replay)

    def fail(self, fault: TieredError) -> None:
        """Refuse every later append."""
        with self._changed.lock:
            self._fault = self._fault or fault
            self._ending, self._buffer_bytes_max = True, -1
            self._changed.notify_all()

    def abandon(self, fault: TieredError) -> None:
        """In a forked child: refuse everything. The thread and the stream are the parent's."""
        self._changed = InterruptSafeCondition()
        self._fault, self._buffer_bytes_max = fault, -1
        _abandoned.append(self._stream)

    # -- on the thread of this appender ----------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None and not self._in_flight and not self._must_replay:
                break  # closed, and nothing is left
            try:
                if self._send_unfinished:
                    raise ServerUnavailable("a send was interrupted")
                if self._must_replay:
                    self._stream_to(self._meta())
                    if batch is None:
                        continue
                if batch is not None:
                    self._send(batch)
                if batch is None or len(self._in_flight) >= IN_FLIGHT_MAX:
                    self._take_answer()
                if self._replay.is_due and not self._make_durable():
                    raise ServerUnavailable(f"{self._connection.location} was restarted")
            except _PASSING as error:
                self._recover(error)
            except TieredError as error:
                self._fail_all(error)
            except BaseException as error:  # noqa: BLE001 (else the callers would wait for ever)
                self._fail_unexpected(error)
        self._close_stream()

    def _next(self) -> PendingBatch | None:
        """Return the next batch to send. None: take an answer, or end if nothing is in flight."""
        while self._rest():
            # An open stream takes a thread of the server. Closing it can take long, so without the lock.
            self._close_stream()
            self._flush_replay_buffer()
        with self._changed.lock:
            if self._must_replay and self._in_flight:
                self._must_replay = False  # if the server is another one, the stream shows it
            if self._must_replay or not self._queue or (self._in_flight and self._grows(self._queue[0])):
                # A small batch grows until the next answer: fewer and larger batches, none of them later.
                return None
            batch = self._queue.popleft()
            if batch.partition is not None and self._growing.get(batch.partition) is batch:
                del self._growing[batch.partition]
            self._number(batch)
            self._in_flight.append(batch)
            return batch

    def _grows(self, batch: PendingBatch) -> bool:
        small = batch.size < BATCH_BYTES_MIN
        return small and (batch.partition is None or self._growing.get(batch.partition) is batch)

    def _rest(self) -> bool:
        """Wait for work. Return True after a second without any, if there is a stream or a replay buffer to release."""
        with self._changed.lock:
            while not (self._queue or self._in_flight or self._ending or self._must_replay):
                self._idle = True
                until = time.monotonic() + _IDLE_SECONDS
                self._changed.wait(_IDLE_SECONDS)
                self._idle = False
                held = self._stream is not None or self._replay.is_due
                if held and time.monotonic() >= until and not (self._queue or self._in_flight):
                    return True
            return False

    def _send(self, batch: PendingBatch) -> None:
        meta = self._meta()
        stream = self._stream
        if stream is None or stream.schema_id != meta.schema_id:
            while self._stream is not None and len(self._in_flight) > 1:
                self._take_answer()
            stream = self._stream_to(meta)
        stream.send(batch, self._producer)

    def _stream_to(self, meta: TopicMeta) -> PutStream:
        """Open a stream. If the store was opened anew, send the replay buffer first."""
        self._close_stream()
        facts = self._connection.action("server", {}, retry=False)
        incarnation = str(facts["incarnation"])
        # The mode of this server decides which batches go to the replay buffer.
        self._waits = facts["sync"] in ("always", "cold")
        packs = facts.get("packed_rows") == packed_rows.VERSION
        stream = PutStream(self._connection, meta, incarnation, packs=packs)
        self._stream = stream
        if self._incarnation != incarnation:
            for batch in self._replay:
                stream.send(batch, self._producer)
                error = stream.answer().error
                if isinstance(error, Conflict) or (isinstance(error, Fenced) and batch.session is not None):
                    # Another append got the offset, or a newer session of the producer has begun: all other batches stay.
                    with self._changed.lock:
                        self._failed += self._replay.give_up(error, batch)
                    raise ServerUnavailable(str(error))  # the server ended the stream
                if error is not None:
                    raise error
            self._incarnation = incarnation
        with self._changed.lock:
            self._must_replay = False
            self._changed.notify_all()
        return stream

    def _make_durable(self, seconds: float | None = None) -> bool:
        """Flush the server, and release the replay buffer. Return False if the server needs the replay buffer first."""
        last = self._replay.end
        found = self._connection.action("flush", topic_ref(self._meta()), seconds=seconds, retry=False)
        if found["incarnation"] != self._incarnation:
            return False
        with self._changed.lock:
            self._replay.release(last)
        return True

    def _flush_replay_buffer(self) -> None:
        """Release the replay buffer if it is due. The next flush reports an error that persists."""
        if self._replay.is_due:
            self._replay.restart_clock()
            try:
                if not self._make_durable(seconds=0.0):
                    with self._changed.lock:
                        self._must_replay = True
            except TieredError as error:
                log.info("%s made nothing durable: %s", self._connection.location, error)

    def _take_answer(self) -> None:
        assert self._stream is not None
        ack = self._stream.answer()
        if isinstance(ack.error, _PASSING):
            raise ack.error  # the server shuts down: the batch goes to the next one
        batch = self._in_flight[0]
        ranges = tuple(OffsetRange(*item) for item in ack.ranges)
        self._settle(batch, ranges, ack.error)
        if ack.error is not None and not self._in_flight:
            self._close_stream()  # the server ended it
        meta = self._meta()
        if ack.schema_id > meta.schema_id or ack.partitions > meta.partitions:
            self._on_growth()

    def _settle(
        self, batch: PendingBatch, ranges: tuple[OffsetRange, ...], error: TieredError | None
    ) -> None:
        with self._changed.lock:
            self._in_flight.remove(batch)
            size = batch.size
            batch.settle(ranges, error)
            self._bytes -= size
            # The call of a conditional append raises its error; no flush of another thread does.
            if error is not None and batch.expected_offset is None:
                self._failed.append(batch)
            if error is not None or (self._waits if batch.sync is None else batch.sync):
                batch.drop_records()
            else:
                self._replay.add(batch)
            self._changed.notify_all()

    def _recover(self, error: TieredError) -> None:
        """Open a new stream, and send the batches in flight again."""
        self._close_stream()
        count = len(self._in_flight)
        for _ in self._connection.pauses():
            try:
                stream = self._stream_to(self._meta())
                # One by one: a write to an ended stream would hide the reason that the server gave.
                for batch in list(self._in_flight):
                    stream.send(batch, self._producer)
                    self._take_answer()
                return
            except _PASSING as failed:
                if len(self._in_flight) < count:
                    # The server answered, and ended the stream after a batch that it refused.
                    self._recover(failed)
                    return
                error = failed
                self._close_stream()
            except TieredError as failed:
                self._fail_all(failed)
                return
            except BaseException as failed:  # noqa: BLE001 (as in `_run`)
                self._fail_unexpected(failed)
                return
        self._fail_all(ServerUnavailable(f"{error}; whether the last records were appended is not known"))

    def _fail_unexpected(self, error: BaseException) -> None:
        log.error("appending to %s failed", self._connection.location, exc_info=error)
        self._fail_all(TieredError(f"appending to {self._connection.location} failed: {error!r}"))

    def _fail_all(self, error: TieredError) -> None:
        self._close_stream()
        with self._changed.lock:
            batches = [*self._in_flight, *self._queue]
            count = len(batches) + len(self._replay)
            self._in_flight = deque(batches)
            self._queue.clear()
            self._growing.clear()
            # The next flush raises the error: these batches may not be durable, and are not sent again.
            self._failed += self._replay.give_up(error)
            self._must_replay = False
            self._changed.notify_all()
        log.warning("%d batches were not appended, or are not known to be durable: %s", count, error)
        for batch in batches:
            self._settle(batch, (), error)

    def _close_stream(self) -> None:
        stream, self._stream, self._send_unfinished = self._stream, None, False
        if stream is not None:
            stream.close()


_thread = threading.get_ident
_abandoned: list[PutStream | None] = []
