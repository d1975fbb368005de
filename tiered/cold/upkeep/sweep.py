"""The sweep: it deletes the objects that no manifest names, and is the only code that deletes data objects and pages.

Other code deletes what it has made itself (leases, values of erasures, files of the live table, the objects of a probe), and
old versions of objects that the sweep has deleted (`tiering.erase_traces`).

A run over one partition, by the holder of its claimed epoch (promise P7)::

    settle + trim ─▶ LIST <partition>/ ─▶ survey: head + names in flight ─▶ pages ─▶ stat head ─▶ plan ─▶ DELETE
                         t1                   t2                                                     t3, in batches

An *orphan* is a data object or page that was listed at t1 and is named neither by the head read at t2 nor by its pages.
It is deleted once it has been an orphan for the grace. ``docs/design/sweep.md`` proves that this is never a live object
(promise P6). The invariants:

- Names are never reused, and no commit adopts an orphan.
- A commit of unknown outcome is settled first; if that fails, nothing is deleted.
- LIST precedes the read of the head: otherwise an object that is uploaded and published in between would seem an orphan.
- A name is in flight before its object can be listed, until its commit has returned; `Committer.survey` reads the head
  and the names in flight under the lock of commits.
- Another survey precedes each batch of deletions.
- If the head or a page cannot be read, or the head is missing, nothing is deleted (promise P10).
- Prefixes end in a slash: otherwise partition 1 would list partition 10.
- The grace counts by the server's clock, from the later of two times: the modification time, and an upper bound of when
  the object became an orphan. Orphans since the oldest valid lease stay (see `leases`).
- An object that the topic's live table names stays, however long ago the manifest stopped naming it.
- A deleted topic keeps its tombstone: otherwise a stalled tierer that announces the topic would revive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from ...errors import ColdStorageError
from ...format.manifest import Head
from ...format.manifest_changes import trim
from ...format.manifest_columns import field_of
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
    """The rules of one run.

    Attributes
    ----------
    now_seconds
        The server's clock (Unix), never ahead of it; see `server_seconds`.
    grace_seconds
        How long an orphan stays.
    objects_max
        How many objects the run may still delete.
    leased_since_seconds
        When the oldest valid lease was taken: objects that became orphans since then stay.
    """

    now_seconds: float
    grace_seconds: float
    objects_max: int = 1 << 62
    leased_since_seconds: float | None = None

    def is_due(self, orphan: Orphan) -> bool:
        """Whether an orphan may be deleted, since no reader may use it any more."""
        leased = self.leased_since_seconds
        old = self.now_seconds - orphan.since_seconds >= self.grace_seconds
        return old and (leased is None or orphan.since_seconds < leased)


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that no manifest names, at the latest since ``since_seconds`` of the server's clock."""

    key: str
    bytes: int
    since_seconds: float


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Orphans, oldest first: those to delete now, those over the limit of the run, and those within their grace.

    ``kept`` are those that a live table names: no manifest has named them for the grace.
    """

    due: tuple[Orphan, ...] = ()
    left: tuple[Orphan, ...] = ()
    waiting: tuple[Orphan, ...] = ()
    kept: tuple[Orphan, ...] = ()


@dataclass(frozen=True, slots=True)
class PartSweep:
    """The result of a sweep, or of a dry run, in one partition, in one deleted topic, or in the live table of a topic.

    Attributes
    ----------
    partition
        None for a whole deleted topic, and for a table.
    deleted
        Keys below the store's prefix.
    bytes
        Size of the deleted objects.
    left
        Due objects for the next run: over ``sweep.objects_max``, or the bucket refused to delete them.
    waiting, waiting_bytes
        Orphans within their grace.
    uploads
        Keys of unfinished multipart uploads that were aborted.
    problem
        Why the sweep is incomplete; empty if it is complete.
    table
        Whether this is the folder of the topic's live table.
    kept
        Orphans beyond their grace that stay because the newest version of the topic's live table names them.
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
    table: bool = False
    kept: int = 0

    @property
    def place(self) -> str:
        """The topic, and its partition or the word ``table``."""
        part = "/table" if self.table else "" if self.partition is None else f"/{self.partition}"
        return f"{self.topic}{part}"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of a sweep or of a dry run.

    Attributes
    ----------
    parts
        Partitions, deleted topics and live tables with orphans or with a problem.
    grace_seconds
        How long an orphan stays.
    leased_since_seconds
        When the oldest valid lease was taken (Unix, the server's clock): objects that became orphans since then stay, too.
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
        """The problems, one line each."""
        return tuple(f"{part.place}: {part.problem}" for part in self.parts if part.problem)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
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
    """Plan what to delete of a partition's listing. Pure.

    Parameters
    ----------
    listed
        The listing, made before the head was read.
    named
        Keys of the head's pages, and of all objects that these and the head name.
    epoch
        The claimed epoch; objects of a higher epoch are left alone.
    in_flight
        Names of objects that may still be published.
    marks
        Orphans of the last run, by key, with the latest time at which they became orphans, or at which a table named them.
    head_seconds
        The latest time at which the head that does not name them was written.
    """
    orphans = []
    for info in listed:
        if info.key in named or not _is_ours(info.key, keys, epoch, in_flight):
            continue
        unnamed = marks.get(info.key, head_seconds)
        orphans.append(Orphan(info.key, info.size, max(unnamed, info.modified_seconds)))
    return _divide(orphans, rules)


def _is_ours(key: str, keys: PartitionKeys, epoch: int, in_flight: AbstractSet[str]) -> bool:
    """Whether a key is that of a page, or of a data object that was begun under this claim or an earlier one."""
    if key.startswith(keys.pages_prefix):
        return parse_page_name(key.removeprefix(keys.pages_prefix)) is not None
    name = key.removeprefix(keys.data_prefix)
    parsed = parse_object_name(name) if name != key else None
    return parsed is not None and parsed.epoch <= epoch and name not in in_flight


def _divide(orphans: list[Orphan], rules: SweepRules) -> SweepPlan:
    orphans.sort(key=lambda item: (item.since_seconds, item.key))
    due = [item for item in orphans if rules.is_due(item)]
    limit = max(0, rules.objects_max)
    return SweepPlan(tuple(due[:limit]), tuple(due[limit:]), tuple(orphans[len(due) :]))


@dataclass(slots=True)
class PartitionSweeper:
    """The sweeper of one partition.

    Attributes
    ----------
    marks
        Orphans by key, with the latest time at which they became orphans. The caller keeps them from run to run: if they
        are lost, the grace of these orphans begins again.
    named_elsewhere
        Returns the keys of objects that stay although no manifest names them; called if an orphan is due. The grace of
        such an orphan begins again, for readers that know it from there.
    """

    partition: PartitionManifest
    rules: SweepRules
    marks: dict[str, float] = field(default_factory=dict)
    named_elsewhere: Callable[[], AbstractSet[str]] = frozenset

    def sweep(self, committer: Committer) -> PartSweep:
        """Delete the due orphans.

        Objects that the bucket refuses to delete are a ``problem`` of the report, and do not stop the others.

        Raises
        ------
        Fenced
            A higher epoch was published. All objects deleted until then were orphans.
        ColdStorageError, CorruptionError, UnsupportedFormat
            The manifest or the listing cannot be read completely, or the bucket stopped answering.
        """
        store, partition = self.partition.store, self.partition
        # Also settles a commit of unknown outcome, where there is one.
        committer.commit(lambda head: trim(head, partition))
        listed = list(store.list(partition.keys.prefix))
        loaded, in_flight = committer.survey()
        plan = self._plan(loaded.head, listed, committer.epoch, in_flight)
        # Set before the deletions: if one of them fails, the grace of the other orphans must not begin again.
        self.marks = {
            item.key: item.since_seconds for item in (*plan.due, *plan.left, *plan.waiting, *plan.kept)
        }
        done: list[Orphan] = []
        refused: list[Orphan] = []
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
                refused += batch
            else:
                done += batch
        for item in done:
            del self.marks[item.key]
        swept = replace(plan, due=tuple(done), left=(*refused, *plan.left))
        return replace(self._report(swept), problem=problem)

    def preview(self) -> PartSweep:
        """Return what `sweep` would delete, without a claim or a change.

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
            page = self.partition.load_page(ref)
            named.update(map(keys.data, field_of(page, "name", range(len(page)))))
        named.update(keys.data(entry.name) for entry in head.inline)
        # After the head was read: no later head names an object that this one does not.
        head_seconds = self.partition.store.stat(keys.head).modified_seconds
        objects = list(listed)

        def plan() -> SweepPlan:
            return plan_sweep(
                objects, named, self.rules, keys=keys, epoch=epoch, in_flight=in_flight, marks=self.marks,
                head_seconds=head_seconds,
            )  # fmt: skip

        first = plan()
        due = (*first.due, *first.left)
        elsewhere = self.named_elsewhere() if due else frozenset()
        kept = [replace(item, since_seconds=self.rules.now_seconds) for item in due if item.key in elsewhere]
        named.update(item.key for item in kept)
        return replace(plan(), kept=tuple(kept)) if kept else first

    def _report(self, plan: SweepPlan) -> PartSweep:
        return _report(plan, self.partition.topic_name, self.partition.partition)


def sweep_probes(store: ObjectStore, rules: SweepRules) -> None:
    """Delete probes whose own deletion failed.

    Raises
    ------
    ColdStorageError
    """
    store.delete(
        info.key
        for info in store.list(PROBE_PREFIX)
        # A topic may have the same name; its objects lie in folders.
        if "/" not in info.key.removeprefix(PROBE_PREFIX)
        and rules.now_seconds - info.modified_seconds >= rules.grace_seconds
    )


def sweep_leases(store: ObjectStore, rules: SweepRules) -> None:
    """Delete leases that ended so long ago that no reader renews them any more.

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
    """Delete the objects of a deleted topic, except its tombstone, which the caller has read.

    Raises
    ------
    ColdStorageError
    """
    tombstone = topic_key(name, topic_id)
    # A tombstone never changes, so this is the time of the deletion.
    deleted_seconds = store.stat(tombstone).modified_seconds
    orphans = [
        Orphan(info.key, info.size, max(deleted_seconds, info.modified_seconds))
        for info in store.list(topic_prefix(name, topic_id))
        if info.key != tombstone
    ]
    plan = _divide(orphans, rules)
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
        kept=len(plan.kept),
    )
