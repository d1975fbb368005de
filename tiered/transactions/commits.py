"""`Commits`: makes transactions atomic over topics, partitions and positions of consumers.

A commit is three steps:

1. *Hold.* Nobody else appends to the partitions of the transaction, so the offsets of its rows are known.
2. *Decide.* One record of the transaction log gets the rows, their offsets and the positions. It is made durable, and so is
   what lies before the rows in their partitions. From here on the transaction is committed.
3. *Apply.* The rows are appended to their partitions, which are then released.

A crash before the record is durable leaves nothing. After it, the next writer of the store appends the rows that are missing,
before anything else: each partition knows the number of the last row of a transaction that it has.

One thread does this for all transactions: those that wait meanwhile share the next round and its syncs. It is not the
thread that calls `commit`, so that Ctrl-C cannot come between the steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from uuid import UUID

import pyarrow as pa

from ..base.worker_pool import WorkerPool
from ..engine.context import Place, Reading, StoreContext
from ..engine.ingest import add_null_columns
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.records import OffsetRange
from ..errors import PartitionPoisoned, StoreClosed, TieredError, TopicNotFound, copy_error
from ..format.block import Body, Numbers
from ..format.block_rows import encode_blocks
from ..format.document import TRANSACTIONS_FEATURE
from ..format.ipc_message import read_batch
from ..format.schema import TRANSACTIONS_TOPIC, body_schema
from ..format.topic_meta import TopicMeta
from ..hot.held_partition import HeldPartition
from ..hot.partition_writer import PartitionWriter
from .decided import Decided
from .decision import Decision, Placed
from .outcomes import Ranges
from .parts import TRANSACTIONS_PRODUCER, Part, block_data, part_batches
from .transaction_log import TransactionLog
from .transaction_rows import TRANSACTION_BYTES_MAX, EncodedPart
from .whole_reads import LogReading, WriterReading

_log = logging.getLogger("tiered.topic")

_SYNC_THREADS = 8
_OPEN_MAX = 1024
_RENEW_SECONDS = 1.0


class _Commit:
    """A transaction that waits for its commit, and the future with the ranges of its rows."""

    def __init__(self, decision: Decision, parts: Sequence[EncodedPart[OpenTopic]]) -> None:
        self.decision = decision
        self.parts = {(part.topic.meta.topic_id, part.partition): part for part in parts}
        self.length = sum(part.length for part in parts)
        self.ranges: Ranges = []
        self.log_end = 0
        self.error: TieredError | None = None
        self.future: Future[Ranges] = Future()

    def end(self) -> None:
        """Give the caller the ranges, or the error."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.ranges)


class Commits:
    """The commits of one open store. Thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics, log: TransactionLog) -> None:
        self._context = context
        self._topics = topics
        self.log = log
        self._waiting: deque[_Commit] = deque()
        self._turn = threading.Lock()
        # Ends of partitions whose records after the durable ones are all of transactions: these the log can append again.
        self._certain_ends: dict[Place, int] = {}
        self._thread = WorkerPool(1, "tiered-commit")
        self._syncs = WorkerPool(_SYNC_THREADS, "tiered-commit-sync")
        self._holds_transactions = False
        self._renewing = False
        self._renew_after = 0.0

    # -- committing ------------------------------------------------------------------------------

    def commit(self, decision: Decision, parts: Sequence[EncodedPart[OpenTopic]]) -> Ranges:
        """Commit a transaction; return its topics and ranges. It is durable.

        Raises
        ------
        Fenced
            A newer session owns the name or a position; nothing was committed.
        ServerUnavailable
            The commit was sent again, and it is no longer known whether the first took effect.
        TopicNotFound, DiskFull, StoreClosed, ReadOnly, StoreLocked, CorruptionError
            Nothing was committed.
        PartitionPoisoned
            The disk failed. The message says whether the transaction is committed.
        ColdStorageError
            With ``sync="cold"``: the transaction is committed on this disk, and not published yet.
        """
        self._context.lifecycle.check_writable()
        if not parts and not decision.moves:
            if decision.name is not None:
                self.log.check_owner(decision)
            return []
        for part in parts:
            part.topic.writer(part.partition)  # an error of opening concerns this transaction alone
        commit = _Commit(decision, parts)
        self._waiting.append(commit)
        if self._thread.submit(self._run) is None:
            raise self._closed()
        ranges = commit.future.result()
        self.log.wait_published(commit.log_end)
        return ranges

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"the store {self._context.url} is being closed; nothing was committed")

    def _run(self) -> None:
        """Commit what waits."""
        while group := self._take():
            with self._turn:
                try:
                    self._commit(group)
                except BaseException as error:
                    for commit in group:
                        commit.error = commit.error or _unexpected(error)
                    raise
                finally:
                    for commit in group:
                        commit.end()
                self._renew_if_due()

    def _take(self) -> list[_Commit]:
        """Return the transactions that wait, up to the rows of a full one."""
        group: list[_Commit] = []
        length = 0
        while self._waiting and (not group or length + self._waiting[0].length <= TRANSACTION_BYTES_MAX):
            group.append(self._waiting.popleft())
            length += group[-1].length
        return group

    def _commit(self, group: list[_Commit]) -> None:
        with ExitStack() as holds:
            held = self._hold(group, holds)
            group = [commit for commit in group if commit.error is None]
            placing = _Placing(group, held)
            decided = False
            try:
                verdicts, end = self.log.decide([commit.decision for commit in group], placing.place)
                decided = True
                for commit, verdict in zip(group, verdicts, strict=True):
                    commit.log_end = end
                    if isinstance(verdict, TieredError):
                        commit.error = verdict
                    elif verdict is not None:
                        commit.ranges = verdict
                group = [commit for commit in group if commit.error is None]
                unsynced = self._sync(held, end)
            except BaseException as error:
                if (
                    isinstance(error, TieredError)
                    and not isinstance(error, PartitionPoisoned)
                    and not decided
                ):
                    for commit in group:
                        commit.error = copy_error(error)
                    return
                # The record may be in the file, and count later.
                _fail_unknown(group, held.values(), error)
                if isinstance(error, TieredError):
                    return
                raise
            self._apply(held, placing, unsynced)
        for commit in group:
            if not unsynced.keys().isdisjoint(commit.parts):
                commit.error = PartitionPoisoned(
                    "the transaction is committed, but the disk of a partition failed before its rows were there "
                    f"({next(iter(unsynced.values()))}): open the store again, which appends them"
                )
        for commit in group:
            for part in commit.parts.values():
                with suppress(TieredError):  # the next append raises it
                    part.topic.writer(part.partition).sync_if_due()

    def _hold(self, group: Sequence[_Commit], holds: ExitStack) -> dict[Place, HeldPartition]:
        """Hold the partitions of all transactions, with room for their rows; what fails there fails its transactions."""
        held: dict[Place, HeldPartition] = {}
        for place in sorted({place for commit in group for place in commit.parts}):
            users = [commit for commit in group if place in commit.parts and commit.error is None]
            if not users:
                continue
            topic = users[0].parts[place].topic
            try:
                writer = topic.writer(place[1])
                if writer.meta.schema_id < topic.meta.schema_id:
                    writer.change_schema(topic.meta)
                partition = holds.enter_context(writer.held())
                for commit in users:
                    commit.parts[place] = _in_schema(commit.parts[place], partition.meta)
                partition.make_room(sum(commit.parts[place].length for commit in users))
                held[place] = partition
            except TieredError as error:
                for commit in users:
                    commit.error = copy_error(error)
        return held

    def _sync(self, held: dict[Place, HeldPartition], end: int) -> dict[Place, TieredError]:
        """Make the decision durable, and what lies before the rows; return the errors of the latter."""
        behind = {
            place: partition
            for place, partition in held.items()
            if not partition.is_durable and self._certain_ends.get(place) != partition.end_offset
        }
        running = {place: self._syncs.submit(partition.sync) for place, partition in behind.items()}
        try:
            self.log.sync_written(end)
        finally:
            failed: dict[Place, TieredError] = {}
            for place, future in running.items():
                try:
                    behind[place].sync() if future is None else future.result()
                except TieredError as error:
                    failed[place] = error
        return failed

    def _apply(
        self, held: dict[Place, HeldPartition], placing: _Placing, unsynced: dict[Place, TieredError]
    ) -> None:
        # A restore to a time that has rows has their decision, too.
        decided_us = self.log.last_append_us()
        for place, partition in held.items():
            bodies, numbers = placing.rows[place]
            if not bodies or place in unsynced:
                continue
            try:
                partition.append(bodies, numbers, decided_us)
                self._certain_ends[place] = partition.end_offset
            except BaseException as error:  # noqa: BLE001
                # Nothing may be appended before these rows, which the next opening appends.
                partition.fail(
                    PartitionPoisoned(
                        f"rows of a committed transaction could not be appended ({error}); open the store again, which "
                        "appends them"
                    )
                )
                _log.warning("a committed transaction waits for the next opening of the store: %s", error)

    # -- reading ---------------------------------------------------------------------------------

    def begin_reading(self) -> Reading:
        """Begin a read over several partitions."""
        if self._context.lifecycle.writes:
            return WriterReading(self.log)
        return LogReading(self.log, lambda: TRANSACTIONS_FEATURE in self._context.catalog.features())

    def log_end_before(self, meta: TopicMeta, partition: int) -> int | None:
        """Return up to where the transaction log is to be published before rows of a partition; None: nothing is.

        Raises
        ------
        CorruptionError, StoreClosed
        """
        if meta.name == TRANSACTIONS_TOPIC or TRANSACTIONS_FEATURE not in self._context.catalog.features():
            return None
        return self.log.end_of((meta.topic_id, partition))

    def participants(self) -> list[TopicMeta]:
        """Return the topics with rows of transactions, as they are now, without those that were deleted."""
        if TRANSACTIONS_FEATURE not in self._context.catalog.features():
            return []
        found = (self._topic_of(name, topic_id) for name, topic_id in sorted(self.log.topics()))
        return [topic.meta for topic in found if topic is not None]

    # -- completing ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Append what is missing of the transactions that an earlier writer decided.

        A partition that cannot be opened now keeps its rows in the log until it is.

        Raises
        ------
        CorruptionError, UnsupportedFormat, DiskFull, PartitionPoisoned
            The transaction log cannot be read.
        """
        if TRANSACTIONS_FEATURE not in self._context.catalog.features():
            return
        self._holds_transactions = True
        self.log.drop_later(self._context.catalog.transactions_cuts())
        for part in {
            (part.topic, part.topic_id, part.partition): part for part in self._open_parts()
        }.values():
            try:
                topic = self._topic_of(part.topic, part.topic_id)
                if topic is not None:
                    topic.writer(part.partition)
            except TieredError as error:
                _log.warning(
                    "a transaction is not complete in partition %d of topic %r: %s",
                    part.partition, part.topic, error,
                )  # fmt: skip
        self.log.rewrite_if_moved()
        self.settle(ask=False)

    def complete(self, meta: TopicMeta, partition: int, writer: PartitionWriter) -> None:
        """Append to a partition what it lacks of decided transactions, before anything else is appended.

        Raises
        ------
        CorruptionError, DiskFull, PartitionPoisoned
        """
        if not self._holds_transactions or meta.name == TRANSACTIONS_TOPIC:
            return
        for decided in self.log.open_transactions():
            for at, part in enumerate(decided.parts):
                if (part.topic_id, part.partition) == (meta.topic_id, partition):
                    self._complete_part(meta, writer, decided, at)

    def _complete_part(self, meta: TopicMeta, writer: PartitionWriter, decided: Decided, at: int) -> None:
        part, end = decided.parts[at], decided.parts[at].first_number + decided.parts[at].rows
        with writer.held() as held:
            missing = end - max(part.first_number, held.last_sequence(TRANSACTIONS_PRODUCER) + 1)
            if missing == part.rows and part.first_offset + missing <= held.end_offset:
                # The log ends behind them: they were deleted, and a restore found no object that knows their numbers.
                held.continue_numbers(TRANSACTIONS_PRODUCER, end)
                missing = 0
            if missing > 0:
                bodies = _last_rows(part_batches(meta, decided.parts, self.log.data_of(decided), at), missing)
                numbers = _numbers_of(bodies, end - missing)
                held.append(bodies, numbers, self.log.last_append_us())
                first = held.end_offset - part.rows
                _log.info(
                    "completed a transaction: offsets %d to %d of partition %d of topic %r",
                    held.end_offset - missing, held.end_offset, part.partition, part.topic,
                )  # fmt: skip
        if missing <= 0:
            known = writer.offsets_from(TRANSACTIONS_PRODUCER, part.first_number)
            first = part.first_offset if known is None else known[0]
        if first != part.first_offset:
            self.log.move(decided.offset, at, first)

    # -- shortening the log ----------------------------------------------------------------------

    def settle(self, *, ask: bool) -> None:
        """Make the rows of all transactions durable in their partitions, and say so in the log.

        With a bucket, rows also have to be published. What fails stays open, and is tried again with a later transaction or
        opening.

        Parameters
        ----------
        ask
            Read from the bucket what is published; False sends no request.
        """
        try:
            for part in self._open_parts():
                with suppress(TieredError):
                    topic = self._topic_of(part.topic, part.topic_id)
                    if topic is not None and not _is_durable(part, topic.writer(part.partition)):
                        topic.writer(part.partition).flush()
            self._forget_durable(ask=ask)
            self.log.mark_applied()
        except StoreClosed:
            pass
        except TieredError as error:
            _log.warning("the transaction log cannot be shortened now: %s", error)

    def shorten_log(self, offset: int) -> None:
        """Move the start of the log to `offset` or beyond, as far as its transactions are applied and published."""
        if self.log.begins_before(offset):
            self.settle(ask=True)
            self.log.renew_beyond(offset)

    def close(self) -> None:
        """Commit nothing more; what still waits raises `StoreClosed`."""
        self._thread.close(wait=True)
        self._syncs.close(wait=True)
        while self._waiting:
            commit = self._waiting.popleft()
            commit.error = self._closed()
            commit.end()

    def quiesce(self) -> None:
        """Before the store closes: leave no transaction to complete, where that can be done, and a short log."""
        if self._context.lifecycle.writes:
            with self._turn:
                if self.log.holds_transactions:
                    self.settle(ask=False)
                self.log.renew_at_close()

    def _renew_if_due(self) -> None:
        self.log.rewrite_if_moved()
        if self.log.is_due and self._context.tiers.has_cold:
            if not self._renewing and time.monotonic() >= self._renew_after:
                # Commits do not wait for the bucket.
                self._renewing = self._syncs.submit(self._renew) is not None
        elif self.log.is_due:
            self.settle(ask=False)
            self.log.renew_if_due()
        elif self.log.open_count >= _OPEN_MAX and not self._context.tiers.has_cold:
            self._forget_durable(ask=False)

    def _renew(self) -> None:
        try:
            self.settle(ask=True)
            self.log.renew_if_due()
        finally:
            self._renewing = False
            self._renew_after = time.monotonic() + _RENEW_SECONDS

    def _forget_durable(self, *, ask: bool) -> None:
        ends: dict[Place, int] = {}
        self.log.forget([item for item in self.log.open_transactions() if self._is_applied(item, ends, ask)])

    def _is_applied(self, decided: Decided, ends: dict[Place, int], ask: bool) -> bool:
        """Whether the rows of a transaction are where no crash, and with a bucket no lost disk, can take them.

        Parameters
        ----------
        ends
            The published ends that are known by now; the function adds to them.
        """
        for part in decided.parts:
            topic = self._topic_of(part.topic, part.topic_id)
            if topic is None:
                continue
            writer = topic.writer(part.partition)
            if not _is_durable(part, writer):
                return False
            offloads = self._context.settings.policy_for(part.topic).offload.after is not None
            if offloads and self._context.tiers.has_cold and part.end_offset > writer.start_offset:
                if part.place not in ends:
                    end = self._context.fencing.end_in_bucket(topic.meta, part.partition, ask=ask)
                    ends[part.place] = end or 0
                if ends[part.place] < part.end_offset:
                    return False
        return True

    def _open_parts(self) -> Iterator[Part]:
        for decided in self.log.open_transactions():
            yield from decided.parts

    def _topic_of(self, name: str, topic_id: UUID) -> OpenTopic | None:
        """Return a topic; None if it was deleted."""
        try:
            topic = self._topics.topic(name)
        except TopicNotFound:
            return None
        return topic if topic.meta.topic_id == topic_id else None


class _Placing:
    """Gives the rows of transactions their offsets and numbers, in the order in which they are decided.

    Attributes
    ----------
    rows
        By partition, the blocks to append and their numbers.
    """

    def __init__(self, group: Sequence[_Commit], held: dict[Place, HeldPartition]) -> None:
        self._group = group
        self._offsets = {place: partition.end_offset for place, partition in held.items()}
        self._numbers = {
            place: partition.last_sequence(TRANSACTIONS_PRODUCER) + 1 for place, partition in held.items()
        }
        self.rows: dict[Place, tuple[list[Body], list[Numbers]]] = {place: ([], []) for place in held}

    def place(self, at: int) -> Placed:
        """Return the parts of a transaction, and their blocks."""
        commit = self._group[at]
        parts: list[Part] = []
        data = []
        for place, encoded in commit.parts.items():
            meta, offset, number = encoded.topic.meta, self._offsets[place], self._numbers[place]
            blocks = [block_data(body) for body in encoded.bodies]
            parts.append(
                Part(
                    meta.name, meta.topic_id, encoded.partition, encoded.schema_id, offset, number, encoded.rows,
                    len(blocks), sum(map(len, blocks)),
                )
            )  # fmt: skip
            data += blocks
            self._offsets[place], self._numbers[place] = offset + encoded.rows, number + encoded.rows
            bodies, numbers = self.rows[place]
            bodies += encoded.bodies
            numbers += _numbers_of(encoded.bodies, number)
            commit.ranges.append((meta.name, OffsetRange(encoded.partition, offset, offset + encoded.rows)))
        return parts, data


def _last_rows(batches: Sequence[pa.RecordBatch], count: int) -> list[Body]:
    """Return the last rows of batches as blocks."""
    bodies: list[Body] = []
    skip = sum(batch.num_rows for batch in batches) - count
    for batch in batches:
        if batch.num_rows > skip:
            bodies += encode_blocks(batch.slice(skip))
        skip = max(0, skip - batch.num_rows)
    return bodies


def _numbers_of(bodies: Sequence[Body], first: int) -> list[Numbers]:
    """Return the numbers of blocks whose first row has the number `first`."""
    numbers = []
    for body in bodies:
        last = first + body.record_count - 1
        numbers.append(Numbers(TRANSACTIONS_PRODUCER, 0, first, last))
        first = last + 1
    return numbers


def _in_schema(part: EncodedPart[OpenTopic], meta: TopicMeta) -> EncodedPart[OpenTopic]:
    """Return the rows in the schema of the active segment, which may have grown since they were encoded."""
    if part.schema_id >= meta.schema_id:
        return part
    schema = body_schema(meta.schemas[part.schema_id])
    batches = [add_null_columns(read_batch(body.parts[1], schema), meta.schema) for body in part.bodies]
    bodies = [body for batch in batches for body in encode_blocks(batch)]
    length = sum(body.length for body in bodies)
    return part._replace(schema_id=meta.schema_id, bodies=bodies, length=length)


def _is_durable(part: Part, writer: PartitionWriter) -> bool:
    return writer.durable_sequence(TRANSACTIONS_PRODUCER) >= part.first_number + part.rows - 1


def _fail_unknown(group: Sequence[_Commit], held: Iterable[HeldPartition], error: BaseException) -> None:
    """Fail transactions that may have been decided: nothing may be appended before their rows until the next opening."""
    for partition in held:
        partition.fail(
            PartitionPoisoned(
                f"the transaction log failed ({error}), so it is unknown whether rows of a transaction come next; open the "
                "store again"
            )
        )
    for commit in group:
        commit.error = PartitionPoisoned(
            f"the transaction log failed ({error}): whether the transaction is committed shows once the store is open again"
        )


def _unexpected(error: BaseException) -> TieredError:
    return TieredError(f"the commit failed by {type(error).__name__}: {error}; please report it")
