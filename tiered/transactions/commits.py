"""`Commits`: makes transactions atomic over topics, partitions and positions of consumers.

A commit is three steps:

1. *Hold.* No other thread appends to the partitions of the transaction, so the offsets of its rows are known.
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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from ..base.worker_pool import WorkerPool
from ..base.worker_thread import WorkerThread
from ..engine.context import Place, Reading, StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..errors import DiskFull, PartitionPoisoned, StoreClosed, TieredError, copy_error
from ..format.document import STAGED_FEATURE, TRANSACTIONS_FEATURE
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..hot.held_partition import HeldPartition
from ..hot.partition_writer import PartitionWriter
from .completion import Completion
from .decision import Decision
from .outcomes import Ranges
from .placing import PendingCommit, Placing, in_schema
from .staged_appends import append_staged
from .transaction_log import TransactionLog
from .transaction_rows import TRANSACTION_BYTES_MAX, EncodedPart
from .whole_reads import LogReading, WriterReading

_log = logging.getLogger("tiered.topic")

_SYNC_THREADS = 8


class Commits:
    """The commits of one open store. Thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics, log: TransactionLog) -> None:
        self._context = context
        self.log = log
        self._waiting: deque[PendingCommit] = deque()
        # Reentrant: a signal handler may close the store on the thread that resumes.
        self._turn = threading.RLock()
        # Ends of partitions whose records after the durable ones are all of transactions: these the log can append again.
        self._certain_ends: dict[Place, int] = {}
        # Partitions in which a decided transaction waits for room on the disk.
        self._suspended: dict[Place, OpenTopic] = {}
        self._thread = WorkerThread("tiered-commit", self._run)
        self._syncs = WorkerPool(_SYNC_THREADS, "tiered-commit-sync")
        self.completion = Completion(context, topics, log, lambda work: self._syncs.submit(work) is not None)

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
        moved = any(moves.offsets for moves in decision.moves)
        if not parts and not moved and decision.batch is None:
            if decision.name is not None or decision.moves:
                self.log.check_session(decision)
            return []
        try:
            for part in parts:
                part.topic.writer(part.partition)  # an error of opening concerns this transaction alone
        except PartitionPoisoned as error:
            raise _not_committed(error) from None
        commit = PendingCommit(decision, parts)
        self._waiting.append(commit)
        if not self._thread.wake():
            raise self._closed()
        ranges = commit.wait()
        self.log.wait_published(commit.log_end)
        return ranges

    def outcome(self, session: str, again_since: int) -> Ranges | None:
        """Return topics and ranges of a transaction that an earlier attempt has committed, once it is durable; None if none has.

        Parameters
        ----------
        again_since
            The end of the log before the first attempt.

        Raises
        ------
        ServerUnavailable
            The log does not know.
        PartitionPoisoned, StoreClosed, ColdStorageError
        """
        with self._turn:  # an attempt under way holds it
            ranges, end = self.log.outcome(session, again_since)
            if ranges is not None:
                self.log.sync_written(end)
        if ranges is not None:
            self.log.wait_published(end)
        return ranges

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"the store {self._context.url} is being closed; nothing was committed")

    def _run(self) -> None:
        """Commit the waiting transactions."""
        while group := self._take():
            with self._turn:
                try:
                    with suppress(TieredError):  # those that need its partitions raise it
                        self._resume()
                    self._commit(group)
                except BaseException as error:
                    for commit in group:
                        commit.error = commit.error or _unexpected(error)
                    raise
                finally:
                    for commit in group:
                        commit.end()
                self.completion.renew_if_due()

    def _take(self) -> list[PendingCommit]:
        """Return the transactions that wait, up to the rows of a full one."""
        group: list[PendingCommit] = []
        length = 0
        while self._waiting and (not group or length + self._waiting[0].length <= TRANSACTION_BYTES_MAX):
            group.append(self._waiting.popleft())
            length += group[-1].length
        return group

    def _commit(self, group: list[PendingCommit]) -> None:
        with ExitStack() as holds:
            held = self._hold(group, holds)
            group = [commit for commit in group if commit.error is None]
            placing = Placing(group, held)
            is_appended = False
            try:
                verdicts, end = self.log.decide([commit.decision for commit in group], placing.place)
                is_appended = True
                for commit, verdict in zip(group, verdicts, strict=True):
                    commit.log_end = end
                    if isinstance(verdict, TieredError):
                        commit.error = verdict
                    elif verdict is not None:
                        commit.ranges = verdict
                group = [commit for commit in group if commit.error is None]
                unsynced = self._sync(held, end, all_rows=bool(group) and group[0].decision.batch is not None)
            except BaseException as error:
                if (
                    isinstance(error, TieredError)
                    and not isinstance(error, PartitionPoisoned)
                    and not is_appended
                ):
                    for commit in group:
                        commit.error = copy_error(error)
                    return
                # The record may be in the file, and count later.
                _fail_unknown(group, held.values(), error)
                if isinstance(error, TieredError):
                    return
                raise
            failed = unsynced | self._apply(held, placing, unsynced)
            if any(commit.decision.batch is not None for commit in group):
                failed |= self._apply_batch(held, placing, end, unsynced)
        for commit in group:
            errors = [failed[place] for place in commit.parts if place in failed]
            if errors:
                full = all(isinstance(error, DiskFull) for error in errors)
                then = "there is room again" if full else "the store is opened again, which appends them"
                commit.error = PartitionPoisoned(
                    f"the transaction is committed, but the disk of a partition failed before its rows were there ({errors[0]}): "
                    f"its rows are readable after {then}"
                )
        for commit in group:
            for part in commit.parts.values():
                with suppress(TieredError):  # the next append raises it
                    part.topic.writer(part.partition).sync_if_due()

    def _hold(self, group: Sequence[PendingCommit], holds: ExitStack) -> dict[Place, HeldPartition]:
        """Hold the partitions of all transactions, with room for their rows; an error of one fails its transactions."""
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
                    commit.parts[place] = in_schema(commit.parts[place], partition.meta)
                # A batch is larger than what can be reserved at once; its room is looked for before.
                length = sum(commit.parts[place].length for commit in users)
                partition.make_room(min(length, TRANSACTION_BYTES_MAX))
                held[place] = partition
            except TieredError as error:
                for commit in users:
                    commit.error = _not_committed(error)
        return held

    def _sync(
        self, held: dict[Place, HeldPartition], end: int, *, all_rows: bool
    ) -> dict[Place, TieredError]:
        """Make the decision durable, and what lies before the rows; return the errors of the latter.

        Parameters
        ----------
        all_rows
            Sync also records that the log could append again. The rows of a batch come by several writes, and readers would
            not see these records for as long.
        """
        behind = {
            place: partition
            for place, partition in held.items()
            if not partition.is_durable
            and (all_rows or self._certain_ends.get(place) != partition.end_offset)
        }
        running = {place: self._syncs.submit(partition.sync) for place, partition in behind.items()}
        try:
            self.log.sync_written(end)
            # From here on the transactions are committed.
        finally:
            failed: dict[Place, TieredError] = {}
            for place, future in running.items():
                try:
                    behind[place].sync() if future is None else future.result()
                except TieredError as error:
                    failed[place] = error
        return failed

    def _apply(
        self, held: dict[Place, HeldPartition], placing: Placing, unsynced: dict[Place, TieredError]
    ) -> dict[Place, TieredError]:
        """Append the rows; return the errors of partitions that do not have them."""
        failed: dict[Place, TieredError] = {}
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
                self._fail(place, placing.topic(place), partition, error)
                failed[place] = error if isinstance(error, TieredError) else _unexpected(error)
        return failed

    def _apply_batch(
        self,
        held: dict[Place, HeldPartition],
        placing: Placing,
        end: int,
        unsynced: dict[Place, TieredError],
    ) -> dict[Place, TieredError]:
        """Append the staged rows of the batch that was decided last, alone in its group; see `_apply`."""
        decided = self.log.open_at(end - 1)
        if decided is None:
            return {}  # it has no rows
        failed = append_staged(
            self.log.staged,
            decided,
            held,
            {part.place: part.rows for part in decided.parts if part.place not in unsynced},
            block_bytes=self._context.settings.store.block_bytes,
            decided_us=self.log.last_append_us(),
        )
        for place, error in failed.items():
            self._fail(place, placing.topic(place), held[place], error)
        for part in decided.parts:
            if part.place not in failed and part.place not in unsynced:
                self._certain_ends[part.place] = held[part.place].end_offset
        return {
            place: error if isinstance(error, TieredError) else _unexpected(error)
            for place, error in failed.items()
        }

    def _fail(self, place: Place, topic: OpenTopic, partition: HeldPartition, error: BaseException) -> None:
        """Let nothing be appended before rows of a decided transaction: until there is room, or until the next opening."""
        if not isinstance(error, DiskFull):
            _fail_incomplete(partition, error)
            return
        partition.suspend(
            DiskFull(
                f"partition {place[1]} of topic {topic.name!r}: rows of an earlier transaction, which is committed, wait for room "
                f"({error}); nothing was appended"
            )
        )
        self._suspended[place] = topic
        _log.warning("a committed transaction waits for room on the disk: %s", error)

    def resume(self) -> None:
        """Append the rows of decided transactions that found no room on the disk.

        Raises
        ------
        DiskFull
            There is none yet.
        PartitionPoisoned, CorruptionError
        """
        if self._suspended:
            with self._turn:
                self._resume()

    def _resume(self) -> None:
        errors: list[TieredError] = []
        for place, topic in list(self._suspended.items()):
            writer = topic.writers.get(place[1])
            try:
                # The writer of a deleted topic or a closed store refuses.
                if writer is not None and writer.pending.is_suspended:
                    with writer.resumed() as held:
                        self.completion.resume(place, held)
                        self._certain_ends[place] = held.end_offset
                    _log.info(
                        "a committed transaction has its rows in partition %d of %r", place[1], topic.name
                    )
                del self._suspended[place]
            except TieredError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # -- reading ---------------------------------------------------------------------------------

    def begin_reading_one(self, meta: TopicMeta) -> Reading | None:
        """Begin a read of one partition of a topic; None where it needs none.

        The rows of a batch come to a partition one after the other. Of another transaction only a power cut can leave a part of
        the rows. This is rare, so a store without batches is readable with a damaged log.
        """
        if meta.name == TRANSACTIONS_TOPIC:
            return None
        return self._begin_reading(
            several=False, needs_log=STAGED_FEATURE in self._context.catalog.features()
        )

    def begin_reading(self) -> Reading:
        """Begin a read over several partitions."""
        return self._begin_reading(several=True, needs_log=True)

    def _begin_reading(self, *, several: bool, needs_log: bool) -> Reading:
        if self._context.lifecycle.writes:
            return WriterReading(self.log)
        return LogReading(self.log, self._context.catalog, several=several, needs_log=needs_log)

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
        topics = (self.completion.topic_of(name, topic_id) for name, topic_id in sorted(self.log.topics()))
        return [topic.meta for topic in topics if topic is not None]

    # -- completing ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Complete what an earlier writer decided; see `Completion.recover`."""
        self.completion.recover()

    def complete(self, meta: TopicMeta, partition: int, writer: PartitionWriter) -> None:
        """Append to a partition what it lacks of decided transactions; see `Completion.complete`."""
        self.completion.complete(meta, partition, writer)

    def shorten_log(self, offset: int) -> None:
        """Move the start of the log to `offset` or beyond, as far as its transactions are applied and published."""
        self.completion.shorten_log(offset)

    def shorten_log_soon(self, offset: int) -> None:
        """As `shorten_log`, on another thread; does nothing if that thread is busy or closed, as the next pass asks again."""
        self.completion.shorten_log_soon(offset)

    # -- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit nothing more; what still waits raises `StoreClosed`."""
        self._thread.close()
        self._syncs.close(wait=True)
        while self._waiting:
            commit = self._waiting.popleft()
            commit.error = self._closed()
            commit.end()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let no commit be under way in the block: one would find the log closed between its decision and its sync."""
        with self._turn:
            yield

    def quiesce(self) -> None:
        """Before the store closes: leave no transaction to complete, where that can be done, and a short log."""
        if self._context.lifecycle.writes:
            with self._turn:
                with suppress(TieredError):
                    self._resume()
                if self.log.holds_transactions:
                    self.completion.settle(ask=False)
                self.completion.end_shortening()
                self.log.renewal.renew_at_close()


def _fail_unknown(
    group: Sequence[PendingCommit], held: Iterable[HeldPartition], error: BaseException
) -> None:
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


def _fail_incomplete(partition: HeldPartition, error: BaseException) -> None:
    """Let nothing be appended before rows of a decided transaction, which the next opening appends."""
    partition.fail(
        PartitionPoisoned(
            f"rows of an earlier transaction, which is committed, could not be appended ({error}); open the store again, "
            "which appends them"
        )
    )
    _log.warning("a committed transaction waits for the next opening of the store: %s", error)


def _not_committed(error: TieredError) -> TieredError:
    """Return the error of a partition as that of a transaction which was not decided."""
    if isinstance(error, PartitionPoisoned):
        return PartitionPoisoned(f"this transaction is not committed: {error}")
    return copy_error(error)


def _unexpected(error: BaseException) -> TieredError:
    return TieredError(f"the commit failed by {type(error).__name__}: {error}; please report it")
