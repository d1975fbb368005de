"""Sends what is appended to a topic elsewhere, in the order of the calls, over one stream that stays open.

::

    append ──▶ queue of piles ──▶ stream ──▶ server
                 grows while       │  up to WINDOW piles are under way
                 others are        ▼
                 under way        answers: each settles its pile

A pile grows for as long as the ones before it are under way, so one record at a time costs a round trip each only for
who waits for each. Every pile has a producer's number: what was under way when a connection broke is sent again, and the
server leaves out what it has.

A pile that was answered and is not durable yet is kept. When the store was opened anew meanwhile (its *incarnation* is
another), it is sent again, before all that came later: else a `flush` would say that records are durable which a kill of
the server took.
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
from ...errors import Backpressure, Fenced, ServerUnavailable, StoreClosed, TieredError, TopicNotFound, again
from ...format.topic_meta import TopicMeta
from ...hot.row_buffer import RecordBuffer, RowBuffer
from ..wire import packed_rows
from ..wire.topic_ref import topic_ref
from .connection import Connection
from .pending_batch import PendingBatch
from .put_stream import PutStream
from .replay_buffer import ReplayBuffer

log = logging.getLogger("tiered.flight")

WINDOW = 8
# Of what waits or is under way.
BUFFER_BYTES_MAX = 32 << 20
PILE_BYTES_MIN = 64 << 10
PILE_BYTES_MAX = 4 << 20
# Of what a caller sends itself: so little is sent without a wait for the server.
AT_ONCE_BYTES_MAX = 16 << 10
_IDLE_SECONDS = 1.0
# Of what went wrong and nobody saw, the latest.
_FAILED_MAX = 64
_PASSING = (ServerUnavailable, Backpressure, StoreClosed)


class Appender:
    """One topic's way to the server. Thread-safe; its thread starts with the first record.

    Parameters
    ----------
    meta
        Returns the topic as it is known by now.
    grown
        Called when an answer tells that the topic has more columns or partitions than that.
    buffer
        Returns an empty buffer for records of the topic as it is known by now.
    waits
        Whether an append that does not say so waits until it is durable.
    block_bytes
        Of the server's blocks. Single records go as no more than fits one: it is appended wholly or not at all.
    """

    def __init__(
        self,
        connection: Connection,
        meta: Callable[[], TopicMeta],
        grown: Callable[[], None],
        buffer: Callable[[], RecordBuffer | RowBuffer],
        waits: bool,
        block_bytes: int,
    ) -> None:
        self._connection = connection
        self._meta = meta
        self._grown = grown
        self._buffer = buffer
        self._producer = f"flight-{uuid4().hex}"
        self._numbers: dict[int, int] = {}
        self._changed = InterruptSafeCondition()
        self._queue: deque[PendingBatch] = deque()
        self._growing: dict[int, PendingBatch] = {}
        self._under_way: deque[PendingBatch] = deque()
        self._bytes = 0
        # -1 where nothing is taken: before the thread is started, and once it is told to end.
        self._bytes_max = -1
        self._waits = waits
        self._pile_bytes = min(PILE_BYTES_MAX, block_bytes)
        self._kept = ReplayBuffer()
        self._incarnation: str | None = None
        self._stale = False
        # Whether Ctrl-C, or an error, cut short what a caller sent: then the stream is of no use any more.
        self._unsure = False
        self._failed: deque[PendingBatch] = deque(maxlen=_FAILED_MAX)
        self._fault: TieredError | None = None
        self._resting = False
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
        """Take one record; return its pile, and its place there.

        Parameters
        ----------
        size
            As `RecordBuffer.add` and `RowBuffer.add` take it.
        more
            Whether others follow at once, which are to go with it.
        """
        with self._changed.lock:
            pile = self._growing.get(partition)
            if (
                pile is None
                or pile.size + size > self._pile_bytes
                or self._bytes + size > self._bytes_max
                or pile.sync is not sync
                or pile.width < len(values)
            ):
                self._make_room(size)
                pile = PendingBatch.of_rows(partition, sync, self._buffer())
            # After each of these lines, where Ctrl-C may end the call, the record is there wholly or not at all.
            rows, before = pile.rows, pile.size
            assert rows is not None
            place = len(rows.timestamps_us)
            pile.threads.add(_thread())
            try:
                rows.add(values, size)
                rows.timestamps_us.append(timestamp_us)
            except BaseException:
                rows.truncate(place)
                raise
            pile.size = rows.bytes
            if place:
                self._bytes += pile.size - before
            else:
                self._add_first(pile, grows=True, at_once=not more)
            return pile, place

    def add_batch(self, pile: PendingBatch) -> None:
        """Take Arrow data of one partition, or a record that is numbered."""
        with self._changed.lock:
            self._make_room(pile.size)
            if pile.partition is not None:
                self._growing.pop(pile.partition, None)
            self._add_first(pile, grows=False, at_once=True)

    def _add_first(self, pile: PendingBatch, *, grows: bool, at_once: bool) -> None:
        """Send a pile at once, on this thread, where nothing else is to be sent and that takes no wait; else queue it.

        The thread of the appender rests then, and takes the answer.
        """
        stream = self._stream
        if (
            at_once
            and self._resting
            and not self._under_way
            and stream is not None
            and stream.schema_id == self._meta().schema_id
            and pile.size <= AT_ONCE_BYTES_MAX
        ):
            self._number(pile)
            self._unsure = True
            self._under_way.append(pile)
            self._bytes += pile.size
            try:
                stream.write(pile, self._producer)
                self._unsure = False
            except (pa.ArrowException, OSError) as error:
                log.debug("%s: a record was not sent at once: %s", self._connection.location, error)
        else:
            self._queue.append(pile)
            if grows and pile.partition is not None:
                self._growing[pile.partition] = pile
            self._bytes += pile.size
        if self._resting:
            self._resting = False
            self._changed.notify_all()

    def _number(self, pile: PendingBatch) -> None:
        pile.sealed()
        if pile.number is None and pile.partition is not None:
            # Before anything can fail: a pile that is under way is sent again by its number.
            pile.number = self._numbers.get(pile.partition, 0)
            self._numbers[pile.partition] = pile.number + pile.count

    def _make_room(self, size: int) -> None:
        if self._fault is not None:
            raise again(self._fault)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tiered-flight-append", daemon=True)
        if self._thread.ident is None:
            self._thread.start()
            self._bytes_max = BUFFER_BYTES_MAX
        while not self._ending and self._bytes and self._bytes + size > BUFFER_BYTES_MAX:
            self._changed.wait()
        if self._ending:
            raise again(self._fault or StoreClosed("the store is being closed"))

    def drain(self) -> None:
        """Wait until the server has answered to everything so far."""
        with self._changed.lock:
            last = self._queue[-1] if self._queue else self._under_way[-1] if self._under_way else None
            if last is not None:
                self._growing.clear()
                while not (last.settled or self._fault is not None):
                    self._changed.wait()

    def flush(self) -> None:
        """Return when everything so far is durable at the server.

        Raises
        ------
        TieredError
            What an append ran into that nobody waited for, or what stands in the way of the flush.
        """
        while True:
            self.drain()
            self.raise_failed()
            with self._changed.lock:
                known, count, last = self._incarnation, len(self._kept), self._kept.end
            try:
                found = self._connection.action("flush", topic_ref(self._meta()), seconds=None)["incarnation"]
            except TopicNotFound:
                with self._changed.lock:
                    self._kept.release(last)  # they went with the topic
                raise
            with self._changed.lock:
                if count == 0 or found == known:
                    self._kept.release(last)
                    return
                # The server was killed since: what is kept has to be sent again.
                if found != self._incarnation:
                    self._stale = True
                    self._resting = False
                    self._changed.notify_all()
                    while self._stale and self._fault is None:
                        self._changed.wait()
                if self._fault is not None:
                    raise again(self._fault)

    def raise_failed(self) -> None:
        """Raise what an append ran into that nobody waited for; once to each thread whose records they were."""
        thread = threading.get_ident()
        with self._changed.lock:
            failed = [pile for pile in self._failed if pile.untold(thread)]
            for pile in failed:
                pile.told.add(thread)
            left = [pile for pile in self._failed if not pile.threads <= pile.told]
            self._failed = deque(left, _FAILED_MAX)
        for pile in failed:
            pile.ranges()

    def close(self) -> None:
        """Send what is left, and end."""
        with self._changed.lock:
            self._ending, self._bytes_max = True, -1
            self._changed.notify_all()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        with self._changed.lock:
            self._fault = self._fault or StoreClosed("the store was closed")
            self._changed.notify_all()

    @property
    def unsettled(self) -> bool:
        """Whether anything that was appended here is not known to be durable."""
        with self._changed.lock:
            return bool(self._queue or self._under_way or self._kept)

    def fail(self, fault: TieredError) -> None:
        """Take nothing more."""
        with self._changed.lock:
            self._fault = self._fault or fault
            self._ending, self._bytes_max = True, -1
            self._changed.notify_all()

    def abandon(self, fault: TieredError) -> None:
        """In a forked child: neither the thread nor the stream is there."""
        self._changed = InterruptSafeCondition()
        self._fault, self._bytes_max = fault, -1
        _abandoned.append(self._stream)

    # -- on the thread of this appender ----------------------------------------------------------

    def _run(self) -> None:
        while True:
            pile = self._next()
            if pile is None and not self._under_way and not self._stale:
                break  # told to end, and nothing is left
            try:
                if self._unsure:
                    raise ServerUnavailable("it is not known what was sent")
                if self._stale:
                    self._stream_to(self._meta())
                    if pile is None:
                        continue
                if pile is not None:
                    self._send(pile)
                if pile is None or len(self._under_way) >= WINDOW:
                    self._take_answer()
                if self._kept.too_much and not self._make_durable():
                    raise ServerUnavailable(f"{self._connection.location} was started anew")
            except _PASSING as error:
                self._recover(error)
            except TieredError as error:
                self._fail_all(error)
            except BaseException as error:  # noqa: BLE001 (else those who wait would never hear)
                self._fail_unexpected(error)
        self._close_stream()

    def _next(self) -> PendingBatch | None:
        """Return what to send next; None: look for answers, or, with nothing under way, end."""
        while self._idles():
            # A stream that is left open takes a thread of the server. Its end can take long, so not under the lock.
            self._close_stream()
            self._keep_no_longer()
        with self._changed.lock:
            if self._stale and self._under_way:
                self._stale = False  # a server that went away shows in the stream
            if self._stale or not self._queue or (self._under_way and self._grows(self._queue[0])):
                # A small pile grows until an answer comes: fewer and larger batches, and no later.
                return None
            pile = self._queue.popleft()
            if pile.partition is not None and self._growing.get(pile.partition) is pile:
                del self._growing[pile.partition]
            self._number(pile)
            self._under_way.append(pile)
            return pile

    def _grows(self, pile: PendingBatch) -> bool:
        small = pile.size < PILE_BYTES_MIN
        return small and (pile.partition is None or self._growing.get(pile.partition) is pile)

    def _idles(self) -> bool:
        """Wait until there is something to do; return whether there was nothing for long, but to let go of what is held."""
        with self._changed.lock:
            while not (self._queue or self._under_way or self._ending or self._stale):
                self._resting = True
                until = time.monotonic() + _IDLE_SECONDS
                self._changed.wait(_IDLE_SECONDS)
                self._resting = False
                held = self._stream is not None or self._kept.too_much
                if held and time.monotonic() >= until and not (self._queue or self._under_way):
                    return True
            return False

    def _send(self, pile: PendingBatch) -> None:
        meta = self._meta()
        stream = self._stream
        if stream is None or stream.schema_id != meta.schema_id:
            while self._stream is not None and len(self._under_way) > 1:
                self._take_answer()
            stream = self._stream_to(meta)
        stream.send(pile, self._producer)

    def _stream_to(self, meta: TopicMeta) -> PutStream:
        """Open a stream; to a store that was opened anew, what is kept goes first."""
        self._close_stream()
        facts = self._connection.action("server", {}, retry=False)
        found = str(facts["incarnation"])
        # Of this server: what it answers to without waiting has to be kept.
        self._waits = facts["sync"] in ("always", "cold")
        packs = facts.get("packed_rows") == packed_rows.VERSION
        stream = PutStream(self._connection, meta, found, packs=packs)
        self._stream = stream
        if self._incarnation != found:
            for pile in self._kept:
                stream.send(pile, self._producer)
                error = stream.answer().error
                if isinstance(error, Fenced) and pile.session is not None:
                    # The producer began another session: this one's records alone are given up.
                    with self._changed.lock:
                        self._failed += self._kept.give_up(error, pile.session)
                    raise ServerUnavailable(str(error))  # the server ended the stream
                if error is not None:
                    raise error
            self._incarnation = found
        with self._changed.lock:
            self._stale = False
            self._changed.notify_all()
        return stream

    def _make_durable(self, seconds: float | None = None) -> bool:
        """Have the server make durable what is kept; return False where it is another one, which has to get it first."""
        last = self._kept.end
        found = self._connection.action("flush", topic_ref(self._meta()), seconds=seconds, retry=False)
        if found["incarnation"] != self._incarnation:
            return False
        with self._changed.lock:
            self._kept.release(last)
        return True

    def _keep_no_longer(self) -> None:
        """While nothing else is to be done; what goes wrong is told by the next flush, if it still does."""
        if self._kept.too_much:
            self._kept.wait()
            try:
                if not self._make_durable(seconds=0.0):
                    with self._changed.lock:
                        self._stale = True
            except TieredError as error:
                log.info("%s made nothing durable: %s", self._connection.location, error)

    def _take_answer(self) -> None:
        assert self._stream is not None
        ack = self._stream.answer()
        if isinstance(ack.error, _PASSING):
            raise ack.error  # of a server that ends: the next one takes it
        pile = self._under_way[0]
        ranges = tuple(OffsetRange(*item) for item in ack.ranges)
        self._settle(pile, ranges, ack.error)
        if ack.error is not None and not self._under_way:
            self._close_stream()  # the server ended it
        meta = self._meta()
        if ack.schema_id > meta.schema_id or ack.partitions > meta.partitions:
            self._grown()

    def _settle(self, pile: PendingBatch, ranges: tuple[OffsetRange, ...], error: TieredError | None) -> None:
        with self._changed.lock:
            self._under_way.remove(pile)
            size = pile.size
            pile.settle(ranges, error)
            self._bytes -= size
            if error is not None:
                self._failed.append(pile)
            if error is not None or (self._waits if pile.sync is None else pile.sync):
                pile.forget()
            else:
                self._kept.add(pile)
            self._changed.notify_all()

    def _recover(self, error: TieredError) -> None:
        """Connect again, and send again what was under way."""
        self._close_stream()
        count = len(self._under_way)
        for _ in self._connection.pauses():
            try:
                stream = self._stream_to(self._meta())
                # One by one: a write that meets the end of a stream would hide why the server ended it.
                for pile in list(self._under_way):
                    stream.send(pile, self._producer)
                    self._take_answer()
                return
            except _PASSING as failed:
                if len(self._under_way) < count:
                    # It answers, and ended the stream behind a batch that it refused.
                    self._recover(failed)
                    return
                error = failed
                self._close_stream()
            except TieredError as failed:
                self._fail_all(failed)
                return
            except BaseException as failed:  # noqa: BLE001 (as there)
                self._fail_unexpected(failed)
                return
        self._fail_all(ServerUnavailable(f"{error}; whether the last records were appended is not known"))

    def _fail_unexpected(self, error: BaseException) -> None:
        log.error("appending to %s failed", self._connection.location, exc_info=error)
        self._fail_all(TieredError(f"appending to {self._connection.location} failed: {error!r}"))

    def _fail_all(self, error: TieredError) -> None:
        self._close_stream()
        with self._changed.lock:
            piles = [*self._under_way, *self._queue]
            count = len(piles) + len(self._kept)
            self._under_way = deque(piles)
            self._queue.clear()
            self._growing.clear()
            # The next flush raises it: what was answered may not be durable, and is not sent again.
            self._failed += self._kept.give_up(error)
            self._stale = False
            self._changed.notify_all()
        log.warning("%d batches were not appended, or are not known to be durable: %s", count, error)
        for pile in piles:
            self._settle(pile, (), error)

    def _close_stream(self) -> None:
        stream, self._stream, self._unsure = self._stream, None, False
        if stream is not None:
            stream.close()


_thread = threading.get_ident
_abandoned: list[PutStream | None] = []
