"""The publisher of appends that wait for the bucket (``sync="cold"``): one upload serves all waiting appends of a partition.

The first waiting thread ships the tail of the partition for all others, as a group commit syncs for all others
(`hot.group_commit`). No pass has to run. The upload takes the locks of an action of a pass: the tiering lock and the
partition's. So a pass and the publisher never upload the same records.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from ..errors import ColdStorageError, RestoreUnderWay, StoreLocked, TieredError, copy_error
from ..format.topic_meta import TopicMeta
from ..hot.group_commit import GroupCommit
from ..hot.partition_writer import PartitionWriter

LOCKED_SECONDS_MAX = 60.0
"""How long a wait lasts while another process holds the tiering lock, or while attempts publish too little."""

_STEP_SECONDS = 0.02
_CHECK_EVERY_STEPS = 10


class Tails(Protocol):
    """Publication of one partition's tail; `TailPasses` implements it."""

    def publish(self, meta: TopicMeta, partition: int, wait: Callable[[StoreLocked], object]) -> int: ...
    def published_now(self, meta: TopicMeta, partition: int) -> int: ...


@dataclass(slots=True)
class _PartitionState:
    """One partition: the published end, and the error of the last attempt."""

    group: GroupCommit = field(default_factory=GroupCommit)
    end: int = 0
    failures: int = 0
    error: TieredError | None = None


class Publisher:
    """Publishes the tails that appends wait for. Thread-safe.

    Parameters
    ----------
    pause
        Waits this many seconds; raises if the store is closed meanwhile.
    monotonic
        Seconds.
    """

    def __init__(
        self,
        tails: Tails,
        *,
        pause: Callable[[float], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tails = tails
        self._pause = pause
        self._monotonic = monotonic
        self._partitions: dict[tuple[UUID, int], _PartitionState] = {}
        self._lock = threading.Lock()

    def wait(self, meta: TopicMeta, partition: int, writer: PartitionWriter, end: int) -> None:
        """Return once every record before `end` is durable on this disk and published.

        Raises
        ------
        ColdStorageError
            The records are durable on this disk and not published yet. They stay in the log, and the next
            publication includes them. A second append would duplicate them.
        DiskFull, PartitionPoisoned, StoreClosed, Fenced, CorruptionError
        """
        writer.sync_to(end)
        with self._lock:
            state = self._partitions.setdefault((meta.topic_id, partition), _PartitionState())
        seen = state.failures

        def done() -> bool:
            if state.end >= end:
                return True
            if state.failures != seen and state.error is not None:
                # A failed attempt fails all waiting appends. Otherwise each of them would wait for an attempt of its own.
                raise copy_error(state.error)
            return False

        state.group.run(done, lambda: self._publish_for_all(state, meta, partition, end))

    def _publish_for_all(self, state: _PartitionState, meta: TopicMeta, partition: int, end: int) -> None:
        try:
            published = self._publish(meta, partition, end)
        except TieredError as error:
            state.error = _append_error(error, meta, partition)
            state.failures += 1
            raise state.error from error
        state.end = max(state.end, published)

    def _publish(self, meta: TopicMeta, partition: int, end: int) -> int:
        until = self._monotonic() + LOCKED_SECONDS_MAX
        steps = itertools.count(1)

        def pause(why: str) -> None:
            if self._monotonic() >= until:
                raise ColdStorageError(why, retryable=True)
            self._pause(_STEP_SECONDS)

        def wait(locked: StoreLocked) -> None:
            # The process that holds the lock may be publishing these records.
            if next(steps) % _CHECK_EVERY_STEPS == 0:
                published = self._tails.published_now(meta, partition)
                if published >= end:
                    raise _AlreadyPublished(published)
            pause(str(locked))

        while True:
            try:
                published = self._tails.publish(meta, partition, wait)
            except _AlreadyPublished as already:
                return already.end
            except RestoreUnderWay as restore:
                # The restore completes and fences this store, or it was abandoned and this store continues.
                pause(str(restore))
                continue
            if published >= end:
                return published
            # A segment can be re-encoded or evicted between the survey and the upload.
            pause(f"the bucket has only the records before offset {published}")


class _AlreadyPublished(Exception):
    """Another process published the awaited records."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def _append_error(error: TieredError, meta: TopicMeta, partition: int) -> TieredError:
    if not isinstance(error, ColdStorageError):
        return error
    return ColdStorageError(
        f"partition {partition} of topic {meta.name!r}: the appended records are durable on this disk and not published "
        f"yet ({error}); do not append them again: flush() publishes them, and so does the next append or pass",
        retryable=error.retryable,
    )
