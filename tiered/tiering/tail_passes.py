"""Tail passes: they publish the durable records that the bucket lacks, of many partitions or of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import StoreClosed, StoreLocked, TieredError, TopicNotFound, as_tiered_error
from ..format.topic_meta import TopicMeta
from ..policies.actions import ShipTail
from ..policies.executor import make_report
from ..policies.tail_pace import SECONDS_A_TAIL
from ..policies.turns import SLOTS, PartitionTurns
from ..survey.lag import Lag
from ..warm.partition_directory import read_start_offset
from .claims import Claims
from .partition_handle import PartitionHandle
from .pass_executors import PassExecutors
from .pauses import Pauses
from .publish_actions import PublishActions
from .reports import TailReport
from .tail_survey import append_times, survey_tail
from .tiering_locks import TieringLocks

_MEASURED_TAILS = 100
"""Fewer tails than these say little about the pace of many."""


class TailPasses:
    """The tail passes of one open store. Thread-safe.

    Attributes
    ----------
    seconds_a_tail
        The duration of the last pass with many tails, divided by their number; `SECONDS_A_TAIL` before the first one.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        pauses: Pauses,
        locks: TieringLocks,
        executors: PassExecutors,
        actions: PublishActions,
    ) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._pauses = pauses
        self._locks = locks
        self._executors = executors
        self._actions = actions
        self._turns = PartitionTurns()
        self.seconds_a_tail = SECONDS_A_TAIL
        self._one_at_a_time = threading.Lock()

    # -- passes ----------------------------------------------------------------------------------

    def run(
        self,
        wanted: Callable[[str, int], bool] = lambda *_: True,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        wait_seconds: float | None = None,
    ) -> TailReport:
        """Publish the durable records that the bucket lacks, of the partitions that are `wanted`.

        - A partition without new records costs no request.
        - A full pass can run at the same time.
        - A partition that cannot be surveyed is left out, and the others go on (promise P11).
        - Partitions do not wait for each other; see `PartitionTurns`. If there are more than can be published in time, the
          partition with the oldest record goes first. A partition whose uploads from an earlier pass go on is left out.

        Parameters
        ----------
        wait_seconds
            How long to wait for the uploads, which then go on; None: until they end.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        lags: dict[tuple[str, int], Lag] = {}
        problems: dict[tuple[str, int], TieredError] = {}
        begun = time.monotonic()
        with self._one_at_a_time:
            with self._locks.passes():
                tails = self._survey_tails(wanted, should_stop, lags, problems)
                executor = self._executors.executor(should_stop)
                for key, actions in tails.items():
                    pass_lock = ExitStack()
                    pass_lock.enter_context(self._locks.passes())
                    since_us = append_times(lags[key], actions, self._context.clock())
                    self._turns.begin(key, actions, executor, pass_lock, since_us=since_us)
            try:
                self._turns.wait(wait_seconds)
            except BaseException:
                self._turns.interrupt()
                raise
            under_way = self._turns.under_way()
            report = make_report(self._turns.take_ended(), time.monotonic() - begun)
            if len(report.done) >= _MEASURED_TAILS:
                self.seconds_a_tail = report.seconds / len(report.done)
        return TailReport(report, lags, problems, under_way)

    def _survey_tails(
        self,
        wanted: Callable[[str, int], bool],
        should_stop: Callable[[], bool],
        lags: dict[tuple[str, int], Lag],
        problems: dict[tuple[str, int], TieredError],
    ) -> dict[tuple[str, int], list[ShipTail]]:
        """Return the actions by partition; add the lag or the error of each surveyed partition to `lags` or `problems`."""

        def unread(topic: str, error: TieredError) -> None:
            if wanted(topic, 0):
                problems[topic, 0] = error

        tails: dict[tuple[str, int], list[ShipTail]] = {}

        def survey(meta: TopicMeta, partition: int) -> None:
            key = meta.name, partition
            try:
                handle = PartitionHandle.of(self._topics, meta, partition)
                lags[key], actions = survey_tail(self._claims, handle)
            except (TieredError, OSError) as error:
                if not is_gone(self._context, meta):
                    problems[key] = as_tiered_error(error)
            else:
                if actions:
                    tails[key] = actions

        def survey_unless_stopping(item: tuple[TopicMeta, int]) -> None:
            if not self._locks.stops(should_stop):
                survey(*item)

        under_way = self._turns.under_way()
        unknown: list[tuple[TopicMeta, int]] = []
        for meta, partition in self._topics.partitions(unread) if self._context.tiers.has_cold else ():
            key = meta.name, partition
            if key in under_way or not wanted(*key) or self._pauses.of(meta.name):
                continue
            if self._claims.known_end(meta, partition) is None:
                unknown.append((meta, partition))
            else:
                survey(meta, partition)
        if unknown:
            # Each of them reads a head.
            with ThreadPoolExecutor(min(SLOTS, len(unknown)), thread_name_prefix="tiered-survey") as threads:
                try:
                    list(threads.map(survey_unless_stopping, unknown))
                except BaseException:
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise
        return tails

    def lags(self) -> list[Lag]:
        """Return the lag of each partition whose published end is known, without a request."""
        lags: list[Lag] = []
        # A topic that cannot be read has no lag to report, nor has a store whose topics cannot be listed.
        try:
            partitions = (
                list(self._topics.partitions(lambda *_: None)) if self._context.tiers.has_cold else []
            )
        except StoreClosed:
            raise
        except (TieredError, OSError):
            return []
        for meta, partition in partitions:
            if self._claims.known_end(meta, partition) is not None:
                # Without a fenced partition: no pass could reduce its lag.
                with suppress(TieredError, OSError):
                    handle = PartitionHandle.of(self._topics, meta, partition)
                    lags.append(survey_tail(self._claims, handle, reread_head=False)[0])
        return lags

    # -- one partition ---------------------------------------------------------------------------

    def publish(
        self, meta: TopicMeta, partition: int, wait: Callable[[StoreLocked], object] | None = None
    ) -> int:
        """Publish the durable records of one partition that the bucket lacks.

        Returns the end of the records that are published, or that were deleted.

        Parameters
        ----------
        wait
            Called while another process holds the tiering lock: waits a moment, or raises to give up. The caller keeps
            its place in the queue for the lock meanwhile. Default: raise the `StoreLocked` that it is given.

        Raises
        ------
        StoreLocked
            Another process is tiering.
        TopicNotFound
            The topic was deleted meanwhile.
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat, PartitionPoisoned, DiskFull
        """
        try:
            handle = PartitionHandle.of(self._topics, meta, partition)
            return self._publish(handle, wait or _raise)
        except (TieredError, OSError):
            if is_gone(self._context, meta):
                raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
            raise

    def _publish(self, handle: PartitionHandle, wait: Callable[[StoreLocked], object]) -> int:
        _, actions = survey_tail(self._claims, handle)
        waited = False

        def waits(locked: StoreLocked) -> None:
            nonlocal waited
            waited = True
            wait(locked)

        for action in actions:
            with self._locks.turn(waits):
                if waited:
                    # The process that held the lock may have published these records, and claimed the partition. After
                    # this read no upload is in vain.
                    self._claims.read_published_end(handle)
                    waited = False
                self._executors.handlers[ShipTail](action)
        return self._proven_end(handle, self._claims.known_end(handle.meta, handle.partition) or 0)

    def published_now(self, meta: TopicMeta, partition: int) -> int:
        """Read the end of the published records of this log from the bucket; 0 if nothing is published.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        handle = PartitionHandle.of(self._topics, meta, partition)
        return self._proven_end(handle, self._claims.read_published_end(handle) or 0)

    def _proven_end(self, handle: PartitionHandle, published: int) -> int:
        """Return the end of the published records of *this* log; another copy of the disk may have published the rest."""
        same, meta, partition = self._claims.same, handle.meta, handle.partition
        deleted = read_start_offset(handle.directory)
        if same.proven_end(meta, partition) < published > deleted:
            self._actions.prove(handle)
        return max(deleted, same.proven_end(meta, partition))


def _raise(locked: StoreLocked) -> None:
    raise locked
