"""Appends that wait until they are published (``sync="cold"``): one upload serves all that wait for a partition.

The first thread that waits ships the tail of the partition for everybody, as a group commit syncs for everybody
(`hot.group_commit`): no pass needs to run. What it takes is what an action of a pass takes, a turn of the tiering lock and
the partition's, so that nothing is uploaded twice, whoever is faster.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from ..errors import ColdStorageError, RestoreUnderWay, StoreLocked, TieredError, again
from ..format.topic_meta import TopicMeta
from ..hot.group_commit import GroupCommit
from ..hot.partition_writer import PartitionWriter

LOCKED_SECONDS_MAX = 60.0
"""How long another process may hold the tiering lock, or attempts may come to nothing, until a wait fails."""

_STEP_SECONDS = 0.02
_ASK_EVERY_STEPS = 10


class Publishes(Protocol):
    """What the tierer of a store does for those who wait; see `Tierer`."""

    def publish(self, meta: TopicMeta, partition: int, wait: Callable[[StoreLocked], object]) -> int: ...
    def published_now(self, meta: TopicMeta, partition: int) -> int: ...


@dataclass(slots=True)
class _Place:
    """One partition: how far it is published, and what the last attempt failed of."""

    group: GroupCommit = field(default_factory=GroupCommit)
    end: int = 0
    failures: int = 0
    error: TieredError | None = None


class Publisher:
    """Publishes on behalf of appends. Thread-safe.

    Parameters
    ----------
    pause
        Waits so many seconds, less if the store is closed meanwhile, or raises that it was.
    monotonic
        Seconds.
    """

    def __init__(
        self,
        tierer: Publishes,
        *,
        pause: Callable[[float], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tierer = tierer
        self._pause = pause
        self._monotonic = monotonic
        self._places: dict[tuple[UUID, int], _Place] = {}
        self._lock = threading.Lock()

    def wait(self, meta: TopicMeta, partition: int, writer: PartitionWriter, end: int) -> None:
        """Return once every record before `end` is durable here and published in the bucket.

        Raises
        ------
        ColdStorageError
            The records are durable on this disk and not published yet. They stay in the log, and whatever
            publishes next takes them along; to append them once more would make them twice.
        DiskFull, PartitionPoisoned, StoreClosed, Fenced, CorruptionError
        """
        writer.sync_to(end)
        with self._lock:
            place = self._places.setdefault((meta.topic_id, partition), _Place())
        seen = place.failures

        def done() -> bool:
            if place.end >= end:
                return True
            if place.failures != seen and place.error is not None:
                # One attempt that failed is everybody's: else each of them would wait for its own.
                raise again(place.error)
            return False

        place.group.run(done, lambda: self._lead(place, meta, partition, end))

    def _lead(self, place: _Place, meta: TopicMeta, partition: int, end: int) -> None:
        try:
            published = self._published(meta, partition, end)
        except TieredError as error:
            place.error = _told(error, meta, partition)
            place.failures += 1
            raise place.error from error
        place.end = max(place.end, published)

    def _published(self, meta: TopicMeta, partition: int, end: int) -> int:
        until = self._monotonic() + LOCKED_SECONDS_MAX
        steps = itertools.count(1)

        def pause(why: str) -> None:
            if self._monotonic() >= until:
                raise ColdStorageError(why, retryable=True)
            self._pause(_STEP_SECONDS)

        def wait(locked: StoreLocked) -> None:
            # A pass in another process may publish this itself, in a turn that lasts.
            if next(steps) % _ASK_EVERY_STEPS == 0:
                found = self._tierer.published_now(meta, partition)
                if found >= end:
                    raise _ThereAlready(found)
            pause(str(locked))

        while True:
            try:
                published = self._tierer.publish(meta, partition, wait)
            except _ThereAlready as there:
                return there.end
            except RestoreUnderWay as restore:
                # It ends, and this store is fenced, or it was cut short, and this store goes on.
                pause(str(restore))
                continue
            if published >= end:
                return published
            # Less, where what was to be shipped was encoded again or evicted between the look and the upload.
            pause(f"the bucket has what lies before offset {published}")


class _ThereAlready(Exception):
    """Somebody else published what is waited for."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def _told(error: TieredError, meta: TopicMeta, partition: int) -> TieredError:
    if not isinstance(error, ColdStorageError):
        return error
    return ColdStorageError(
        f"partition {partition} of topic {meta.name!r}: what was appended is durable on this disk and not published "
        f"yet ({error}); do not append it again: flush() publishes it, and so does the next append or pass",
        retryable=error.retryable,
    )
