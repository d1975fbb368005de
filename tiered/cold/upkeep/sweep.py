"""Sweep: find the objects that no manifest names and delete them, the only code that deletes in a bucket.

A run over one partition, by the holder of its claimed epoch (promise P7)::

    settle + trim ─▶ LIST <partition>/ ─▶ survey: head + what is in flight ─▶ pages ─▶ stat head ─▶ plan ─▶ DELETE
                         t1                   t2                                                        t3, in batches

An *orphan* is a data object or page that was listed at t1 and is named neither by the head read at t2 nor by its
pages. It is deleted once it has been one for the grace period. Why that is never a live object (promise P6):

- *Once unnamed, for ever unnamed.* Names are never used twice, a commit takes its entries from the head before it
  and from fresh uploads, and orphans are never adopted. So what must be shown is only that nobody holds an
  orphan of t2 as a fresh upload that is still to be published:
- *The own process, a slow upload.* A data object is in flight from the moment its name is given out, which is before
  it can be listed, until its commit has returned. `Committer.survey` reads the head and the names in flight under the
  lock under which commits run: an object listed at t1 is in flight, or named, or given up. A page is uploaded
  and published under that same lock.
- *An own commit of unknown outcome.* It is settled first; where that fails nothing is swept, since what it names may
  still become live. An object it published late is named by the head that settles it.
- *Another process of a lower epoch*, stalled however long in an upload or before its commit. Its commit is bound to
  an ETag from before our claim and cannot land. Its upload can, as an orphan, for a later run.
- *Another process of a higher epoch*: another tierer, a restore. It claimed before t2: then the survey raises `Fenced`.
  Or after t2: then its uploads began after t1 and were not listed.
- *The sweeper itself stalls between t2 and t3* and wakes after others claimed, restored, merged. Each batch is preceded
  by another survey, so it stops. Even a DELETE that was sent before and lands a week later removes what
  nothing can name any more; a DELETE that is repeated, or whose answer is lost, does no harm.
- *A manifest rebuilt from the objects* is the one thing that may adopt an orphan. On one host it is made under the
  lock that a sweep holds. While the head is lost no survey passes, nor does one after it: the rebuilt head has
  a far higher epoch. What an operator has to wait out is a DELETE that another host has already sent.

LIST comes before the head. The other way round, whatever was uploaded and published in between would be
unnamed. A head or page that cannot be read, or a missing head, means that nothing is known: the run of this partition
ends without a deletion (promise P10). Prefixes end in a slash: without one, partition 1 would list partition 10.

*Grace* is for readers, which hold objects by name since they took their snapshot: Spark's executors, or DuckDB with a
list of paths. It counts by the server's clock, from the later of two times: when the object was modified, and an
upper bound of when it became unnamed. That is the time at which the head that does not name it was written or, for
an orphan met before, the time noted then. Age alone would not do: an object of last year that was merged a second
ago is in the snapshots of readers. The modification time of an object does not show that it is
finished either: S3 dates a multipart upload by its beginning.

*Leases* are for readers that go on for longer than the grace: see `lease`. What became an orphan since the oldest
one began stays as long as it holds.

*The server's now* is the modification time of an object that was just written for the purpose. It is passed to the
whole run, hence a little early, hence ages come out too short and never too long. The clocks of machines take no part.

A deleted topic's objects go once its tombstone is older than the grace period, heads too. The tombstone stays:
a stalled tierer that announces its topic must meet it, or would bring the topic back. What such a tierer still
uploads and publishes there, unseen by any reader, goes in a later run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from ...errors import ColdStorageError
from ...format.manifest import Head
from ...format.manifest_changes import trim
from ..manifest.commit import Committer
from ..manifest.keys import (
    LEASES_PREFIX,
    PartitionKeys,
    parse_object_name,
    parse_page_name,
    topic_key,
    topic_prefix,
)
from ..manifest.leases import LEASE_SECONDS_MAX, is_lease
from ..manifest.partition_manifest import PartitionManifest
from ..object_store.protocol import PROBE_PREFIX, ObjectInfo, ObjectStore

_BATCH = 1000  # keys of one DELETE request


@dataclass(frozen=True, slots=True)
class SweepRules:
    """What one run goes by.

    Attributes
    ----------
    now_seconds
        The server's clock (Unix), never ahead of it; see `server_seconds`.
    grace_seconds
        For how long an orphan stays.
    objects_max
        How many objects the run may still delete.
    leased_since_seconds
        What became an orphan at this time or later stays: the oldest lease that holds is of then.
    """

    now_seconds: float
    grace_seconds: float
    objects_max: int = 1 << 62
    leased_since_seconds: float | None = None

    def let_go(self, orphan: Orphan) -> bool:
        """Whether no reader may rely on an orphan any more."""
        leased = self.leased_since_seconds
        old = self.now_seconds - orphan.since_seconds >= self.grace_seconds
        return old and (leased is None or orphan.since_seconds < leased)


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that nothing names, at the latest since ``since_seconds`` of the server's clock."""

    key: str
    bytes: int
    since_seconds: float


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Orphans, oldest first: to delete now, over the limit of the run, and still within their grace."""

    due: tuple[Orphan, ...] = ()
    left: tuple[Orphan, ...] = ()
    waiting: tuple[Orphan, ...] = ()


@dataclass(frozen=True, slots=True)
class PartSweep:
    """What a sweep did, or in a dry run would do, in one partition or one deleted topic.

    Attributes
    ----------
    partition
        None for a deleted topic as a whole.
    deleted
        Keys below the store's prefix.
    bytes
        Size of the deleted objects.
    left
        Objects that are due, and over ``sweep.objects_max`` or not to be deleted now: for the next run.
    waiting, waiting_bytes
        Objects that nothing names, still within their grace.
    uploads
        Keys of multipart uploads that were cut short and are aborted.
    problem
        Why nothing, or not everything, was looked at; empty when all is well.
    """

    topic: str
    partition: int | None
    deleted: tuple[str, ...] = ()
    bytes: int = 0
    left: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    uploads: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did; in a dry run, what it would do.

    Attributes
    ----------
    parts
        Partitions and deleted topics with orphans or with a problem.
    grace_seconds
        For how long an orphan stays.
    leased_since_seconds
        The oldest lease that holds (Unix, the server's clock): what became an orphan since then stays too.
    """

    dry_run: bool
    grace_seconds: float
    parts: tuple[PartSweep, ...] = ()
    leased_since_seconds: float | None = None

    @property
    def objects(self) -> int:
        """How many objects were deleted."""
        return sum(len(part.deleted) for part in self.parts)

    @property
    def bytes(self) -> int:
        """How many bytes were freed."""
        return sum(part.bytes for part in self.parts)

    @property
    def problems(self) -> tuple[str, ...]:
        """What stood in the way, one line each."""
        return tuple(
            f"{part.topic}{'' if part.partition is None else f'/{part.partition}'}: {part.problem}"
            for part in self.parts
            if part.problem
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "objects": self.objects, "bytes": self.bytes}


def plan_sweep(
    listed: Iterable[ObjectInfo],
    named: AbstractSet[str],
    rules: SweepRules,
    *,
    keys: PartitionKeys,
    epoch: int,
    in_flight: AbstractSet[str],
    marks: Mapping[str, float],
    head_seconds: float,
) -> SweepPlan:
    """Say what of a partition's listing is to be deleted. Pure.

    Parameters
    ----------
    listed
        Made before the head was read.
    named
        Keys of the head's pages, and of everything in them and in the head itself.
    epoch
        The claimed one; an object of a higher epoch is nobody's business here.
    in_flight
        Names of objects that may still be published.
    marks
        Orphans of the last run, by key: since when at the latest nothing names them.
    head_seconds
        When, at the latest, the head that does not name them was written.
    """
    orphans = []
    for info in listed:
        if info.key in named or not _is_ours(info.key, keys, epoch, in_flight):
            continue
        unnamed = min(marks.get(info.key, head_seconds), head_seconds)
        orphans.append(Orphan(info.key, info.size, max(unnamed, info.modified_seconds)))
    return _divide(orphans, rules)


def _is_ours(key: str, keys: PartitionKeys, epoch: int, in_flight: AbstractSet[str]) -> bool:
    """Whether a key is that of a page, or of a data object that was begun under a claim that is over or ours."""
    if key.startswith(keys.pages_prefix):
        return parse_page_name(key.removeprefix(keys.pages_prefix)) is not None
    name = key.removeprefix(keys.data_prefix)
    parsed = parse_object_name(name) if name != key else None
    return parsed is not None and parsed.epoch <= epoch and name not in in_flight


def _divide(orphans: list[Orphan], rules: SweepRules) -> SweepPlan:
    orphans.sort(key=lambda item: (item.since_seconds, item.key))
    due = [item for item in orphans if rules.let_go(item)]
    limit = max(0, rules.objects_max)
    return SweepPlan(tuple(due[:limit]), tuple(due[limit:]), tuple(orphans[len(due) :]))


@dataclass(slots=True)
class PartitionSweeper:
    """Sweeps one partition.

    Attributes
    ----------
    marks
        Orphans by key, with when at the latest they became one. To be kept from run to run: where
        they are lost, the grace of what was seen begins again.
    """

    partition: PartitionManifest
    rules: SweepRules
    marks: dict[str, float] = field(default_factory=dict)

    def sweep(self, committer: Committer) -> PartSweep:
        """Delete what is due.

        Objects that may not be deleted are a ``problem`` of the report, and hold up no others.

        Raises
        ------
        Fenced
            A higher epoch was published. What had been deleted by then was an orphan.
        ColdStorageError, CorruptionError, UnsupportedFormat
            The manifest, or the listing, is not known as a whole, or the bucket does not answer any more.
        """
        store, partition = self.partition.store, self.partition
        # Also settles a commit of unknown outcome, where there is one.
        committer.commit(lambda head: trim(head, partition))
        listed = list(store.list(partition.keys.prefix))
        loaded, in_flight = committer.survey()
        plan = self._plan(loaded.head, listed, committer.epoch, in_flight)
        # Noted first: where one object cannot be deleted, the grace of the others must not begin again.
        self.marks = {item.key: item.since_seconds for item in (*plan.due, *plan.left, *plan.waiting)}
        done: list[Orphan] = []
        kept: list[Orphan] = []
        problem = ""
        for start in range(0, len(plan.due), _BATCH):
            batch = plan.due[start : start + _BATCH]
            if start:
                committer.survey()
            try:
                store.delete(item.key for item in batch)
            except ColdStorageError as error:
                if error.retryable:
                    raise
                problem = problem or f"{type(error).__name__}: {error}"
                kept += batch
            else:
                done += batch
        for item in done:
            del self.marks[item.key]
        swept = replace(plan, due=tuple(done), left=(*kept, *plan.left))
        return replace(self._report(swept), problem=problem)

    def preview(self) -> PartSweep:
        """Say what `sweep` would delete, claiming and changing nothing.

        Raises
        ------
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        listed = list(self.partition.store.list(self.partition.keys.prefix))
        loaded = self.partition.load()
        if loaded is None:
            return PartSweep(self.partition.topic_name, self.partition.partition)
        return self._report(self._plan(loaded.head, listed, loaded.head.epoch, frozenset()))

    def _plan(
        self, head: Head, listed: Iterable[ObjectInfo], epoch: int, in_flight: AbstractSet[str]
    ) -> SweepPlan:
        keys = self.partition.keys
        named = {keys.page(ref.name) for ref in head.pages}
        for ref in head.pages:
            named.update(keys.data(entry.name) for entry in self.partition.load_page(ref))
        named.update(keys.data(entry.name) for entry in head.inline)
        # After the head was read: whichever head stands there now, it does not name what that one did not.
        head_seconds = self.partition.store.stat(keys.head).modified_seconds
        return plan_sweep(
            listed,
            named,
            self.rules,
            keys=keys,
            epoch=epoch,
            in_flight=in_flight,
            marks=self.marks,
            head_seconds=head_seconds,
        )

    def _report(self, plan: SweepPlan) -> PartSweep:
        return _report(plan, self.partition.topic_name, self.partition.partition)


def sweep_probes(store: ObjectStore, rules: SweepRules) -> None:
    """Delete the probes that stayed because their deletion failed; nobody reads them again.

    Raises
    ------
    ColdStorageError
    """
    store.delete(
        info.key
        for info in store.list(PROBE_PREFIX)
        # A topic may be called like that; what is its own lies in folders.
        if "/" not in info.key.removeprefix(PROBE_PREFIX)
        and rules.now_seconds - info.modified_seconds >= rules.grace_seconds
    )


def sweep_leases(store: ObjectStore, rules: SweepRules) -> None:
    """Delete the leases that ended so long ago that no reader renews them any more.

    Raises
    ------
    ColdStorageError
    """
    ended = [
        info.key
        for info in store.list(LEASES_PREFIX)
        if is_lease(info.key)
        and rules.now_seconds - info.modified_seconds >= LEASE_SECONDS_MAX + rules.grace_seconds
    ]
    if ended:
        store.delete(ended)


def sweep_deleted_topic(
    store: ObjectStore, name: str, topic_id: UUID, rules: SweepRules, *, dry_run: bool
) -> PartSweep:
    """Delete what is left of a topic that has a tombstone, as the caller has read, but for the tombstone.

    Raises
    ------
    ColdStorageError
    """
    tombstone = topic_key(name, topic_id)
    # Nothing follows a tombstone, so this is when it was written.
    buried_seconds = store.stat(tombstone).modified_seconds
    rest = [
        Orphan(info.key, info.size, max(buried_seconds, info.modified_seconds))
        for info in store.list(topic_prefix(name, topic_id))
        if info.key != tombstone
    ]
    plan = _divide(rest, rules)
    if not dry_run and plan.due:
        store.delete(item.key for item in plan.due)
    return _report(plan, name, None)


def _report(plan: SweepPlan, topic: str, partition: int | None) -> PartSweep:
    return PartSweep(
        topic,
        partition,
        deleted=tuple(item.key for item in plan.due),
        bytes=sum(item.bytes for item in plan.due),
        left=len(plan.left),
        waiting=len(plan.waiting),
        waiting_bytes=sum(item.bytes for item in plan.waiting),
    )
