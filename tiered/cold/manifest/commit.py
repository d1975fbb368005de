"""Claims and commits: changes of a partition's head by compare-and-swap, with outcomes that are always settled.

One commit::

    load (or known) head ─▶ change ─▶ new pages uploaded ─▶ PUT head, If-Match: its ETag
                                                               │
        200 ───────────────────────────────────────────────────┴─▶ published
        anything else: the outcome is unknown. Read the head:
            own commit id in it (or among the previous ones) ────▶ published
            its ETag unchanged ──────────────────────────────────▶ repeat the identical PUT
            a higher epoch ──────────────────────────────────────▶ Fenced: nothing more is changed
            another head of the own epoch ───────────────────────▶ change again, on that head

A claim that lost a race tries again at once on the new head, for up to `CLAIM_SECONDS`. It does not wait between reading
the head and the PUT: otherwise a process that commits back to back would win every race. A commit waits before each
retry.

A PUT whose answer was lost can land at any time, but only on the ETag that it was planned on. So the next published head
settles it. Until then `Committer.unsettled` is true. A 412 does not prove a refusal: SDKs repeat a request whose answer
was lost, and the repetition fails on their own success.

A commit deletes nothing. The sweep removes what unpublished attempts left behind, after `Committer.survey`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID, uuid4

from ...errors import ColdStorageError, CorruptionError, Fenced, PreconditionFailed
from ...format.manifest import PREVIOUS_COMMITS_MAX, Head, ObjectEntry, Origin
from ...format.manifest_changes import add_objects, add_schemas, raise_start_offset, spill
from ...format.manifest_checks import check_head
from ...format.manifest_codec import encode_head
from .keys import ObjectName
from .leases import boot_seconds
from .partition_manifest import LoadedHead, PartitionManifest

FIRST_LINEAGE = 1
"""Epoch of the lineage that begins with the first head; only a restore begins another."""

CLAIM_SECONDS = 60.0
"""How long a claim retries while other committers win."""

_BACKOFF_SECONDS_MAX = 5.0
_CHECK_SECONDS = 5.0  # how old the last check of a claim may be


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A PUT of unknown outcome; it can land only while the head still has this ETag (None: no head)."""

    base_etag: str | None


class Committer:
    """The one committer of a partition in this process; a lock serializes calls from several threads.

    Parameters
    ----------
    clock
        Returns microseconds since the epoch, UTC.
    sleep
        Waits so many seconds between attempts.
    attempts
        PUTs of one commit before its outcome is reported as unknown.

    Attributes
    ----------
    epoch
        The claimed epoch; 0 before `claim`.
    """

    def __init__(
        self,
        partition: PartitionManifest,
        store_id: UUID,
        *,
        clock: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
        attempts: int = 5,
        backoff_seconds: float = 0.2,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partition = partition
        self.epoch = 0
        self._store_id = store_id
        self._clock = clock
        self._sleep = sleep
        self._attempts = attempts
        self._backoff_seconds = backoff_seconds
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._known: LoadedHead | None = None
        self._last_commit_id: str | None = None
        self._in_flight: set[str] = set()
        self._doubt: _Doubt | None = None
        self._fenced: str | None = None

    @property
    def unsettled(self) -> bool:
        """Whether a commit of unknown outcome may still land; what it names is not an orphan yet."""
        return self._doubt is not None

    @property
    def known_head(self) -> Head | None:
        """The head as it was last read or written, without I/O; None while a commit is under way."""
        known = self._known
        return known.head if known else None

    def last_head(self) -> Head:
        """Return the last known head of the claimed epoch; read it only if none is known.

        Another committer may have published since. A change that is planned on this head is still committed by
        compare-and-swap.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        with self._lock:
            if self._fenced is not None:
                raise Fenced(self._fenced)
            self._known = self._known or self._load()
            return self._check_owner(self._known.head if self._known else None)

    def claim(
        self,
        *,
        lineage_epoch: int | None = None,
        begin_lineage: bool = False,
        began_us: int | None = None,
        start_offset: int = 0,
        may_begin: bool | None = None,
        check: Callable[[], object] = lambda: None,
        loaded: LoadedHead | Literal["read"] | None = "read",
    ) -> int:
        """Publish the next epoch, which fences every earlier committer, and return it.

        Parameters
        ----------
        lineage_epoch
            The lineage that the caller's local data belongs to; None if it knows none yet.
        begin_lineage
            Begin a new lineage at the end offset, as a restore does. It also begins one if there is no head yet, so
            that a process about to publish the first head is fenced.
        began_us
            When the new lineage begins. Default: now, and not before the last commit.
        start_offset
            Where the log begins if there is no head yet.
        may_begin
            Whether a missing head means that none was ever published. Default: true if `lineage_epoch` is None.
        check
            Raises to abandon the claim. Called between reading the head and publishing, again after a new lineage
            appeared, and every few seconds.
        loaded
            The head as the caller read and checked it, None if there is none: saves a read. If it changed since, the
            compare-and-swap fails, and the head is read again.

        Raises
        ------
        Fenced
            A newer lineage than `lineage_epoch` has begun. Nothing was changed.
        ColdStorageError
            The head of a known lineage is missing (it must be rebuilt, never begun again), the head belongs
            to another store, or the bucket fails. If ``retryable``, the claim can be repeated; this includes a claim
            that lost every race for `CLAIM_SECONDS`.
        """
        # A lineage that begins after the check either builds on this claim or shows in the next head. So no request is
        # needed between reading the head and the PUT, and no other commit can slip in there.
        checked: tuple[object, float] | None = None
        first = lineage_epoch is None if may_begin is None else may_begin

        def plan(head: Head | None) -> Head:
            nonlocal checked
            lineages, now = head.lineages if head else None, self._monotonic()
            if checked is None or checked[0] != lineages or now - checked[1] >= _CHECK_SECONDS:
                check()
                checked = lineages, now
            if head is None:
                if not first or self.epoch:
                    raise ColdStorageError(f"{self._where} was published and is missing: rebuild it")
                first_head = Head(
                    store_id=self._store_id,
                    topic_id=self.partition.topic_id,
                    partition=self.partition.partition,
                    epoch=FIRST_LINEAGE,
                    lineages=((FIRST_LINEAGE, start_offset),),
                    commit_id="",
                    start_offset=start_offset,
                    end_offset=start_offset,
                )
                return next_lineage(first_head, self._clock(), began_us) if begin_lineage else first_head
            self._check_store(head)
            if lineage_epoch not in (None, head.lineage_epoch):
                raise Fenced(
                    f"lineage {head.lineage_epoch} of {self._where} began at offset {head.lineages[-1][1]}; "
                    f"this store belongs to lineage {lineage_epoch}"
                )
            if begin_lineage:
                return next_lineage(head, self._clock(), began_us)
            return replace(head, epoch=head.epoch + 1)

        with self._lock:
            self._known = self._last_commit_id = None
            base = self._load() if loaded == "read" else loaded
            self.epoch, self._fenced = self._publish(plan, base, race_seconds=CLAIM_SECONDS).epoch, None
            return self.epoch

    def commit(self, change: Callable[[Head], Head]) -> Head:
        """Publish what `change` makes of the head; return the published head.

        `change` may be called several times, each time with the current head.

        Raises
        ------
        Fenced
            A higher epoch was published. Delete nothing, publish nothing.
        ColdStorageError
            With ``retryable``: the outcome is unknown. Delete nothing; the next commit settles it.
        CorruptionError, UnsupportedFormat
        """

        def plan(head: Head | None) -> Head:
            return spill(change(self._check_owner(head)), self.partition)

        with self._lock:
            if self._fenced is not None:
                raise Fenced(self._fenced)
            if not self.epoch:
                raise RuntimeError("claim() comes before commit()")
            return self._publish(plan, self._known or self._load())

    def publish_objects(
        self, entries: Iterable[ObjectEntry], schemas: Mapping[int, str] | None = None
    ) -> Head:
        """Publish uploaded objects: they extend the log or replace the objects in their range.

        Parameters
        ----------
        schemas
            Schema id to schema text, for ids that the head may lack.
        """
        fresh = tuple(entries)
        try:
            return self.commit(
                lambda head: add_objects(add_schemas(head, schemas or {}), fresh, self.partition)
            )
        finally:
            # Safe even if the commit may still land: `survey` refuses until it is settled.
            self.release(entry.name for entry in fresh)

    def raise_start_offset(self, offset: int) -> Head:
        """Publish a higher start offset."""
        return self.commit(lambda head: raise_start_offset(head, offset))

    def settle(self) -> Head:
        """Settle a commit of unknown outcome: afterwards the head contains it, or never will."""
        return self.commit(lambda head: head)

    def new_object_name(self, base_offset: int) -> str:
        """Return a new, unique name for a data object of the claimed epoch.

        The name is in flight, so no sweep deletes its object, until it is published or given up by `release`.
        """
        name = str(ObjectName(base_offset, self.epoch, uuid4()))
        with self._lock:
            self._in_flight.add(name)
        return name

    def release(self, names: Iterable[str]) -> None:
        """Give up names that will not be published (again): an object of such a name that no head names is an orphan."""
        with self._lock:
            self._in_flight.difference_update(names)

    def survey(self) -> tuple[LoadedHead, frozenset[str]]:
        """Read the head between two commits, and the names of the objects that are in flight at that moment.

        Raises
        ------
        Fenced
            A higher epoch was published.
        ColdStorageError
            With ``retryable``: a commit of unknown outcome may still land. Else the head is missing.
        CorruptionError, UnsupportedFormat
        """
        with self._lock:
            if self._fenced is not None:
                raise Fenced(self._fenced)
            if not self.epoch:
                raise RuntimeError("claim() comes before survey()")
            loaded = self._load()
            self._check_owner(loaded.head if loaded else None)
            assert loaded is not None
            if self.unsettled:
                raise ColdStorageError(
                    f"a commit of {self._where} may still land: settle it first", retryable=True
                )
            return loaded, frozenset(self._in_flight)

    @property
    def _where(self) -> str:
        return self.partition.where(self.partition.keys.head)

    def _check_store(self, head: Head) -> None:
        if head.store_id != self._store_id:
            raise ColdStorageError(f"{self._where} belongs to store {head.store_id}, not to {self._store_id}")

    def _check_owner(self, head: Head | None) -> Head:
        if head is None:
            raise ColdStorageError(f"{self._where} was published and is missing: rebuild it")
        self._check_store(head)
        if head.epoch > self.epoch:
            self._fenced = (
                f"epoch {head.epoch} was published in {self._where}; this process holds {self.epoch}"
            )
            raise Fenced(self._fenced)
        if head.epoch < self.epoch:
            raise CorruptionError(f"epoch went back from {self.epoch} to {head.epoch}", where=self._where)
        if self._last_commit_id not in (None, head.commit_id, *head.previous_commit_ids):
            raise CorruptionError("an older head is in the place of the last one", where=self._where)
        return head

    def _publish(
        self, plan: Callable[[Head | None], Head], base: LoadedHead | None, *, race_seconds: float = 0.0
    ) -> Head:
        """Publish what `plan` makes of the head `base`, or of a later one.

        For `race_seconds`, a lost race costs neither an attempt nor a wait.
        """
        until = self._monotonic() + race_seconds
        proposal: Head | None = None
        failure: ColdStorageError | None = None
        attempts = lost = 0
        while True:
            if proposal is None:
                planned = plan(base.head if base else None)
                if base is not None and planned == base.head and self._doubt is None:
                    self._known = base
                    return base.head
                proposal = self._propose(base, planned)
            try:
                return self._put(base, proposal)
            except ColdStorageError as error:
                if not error.retryable and not isinstance(error, PreconditionFailed):
                    raise
                failure = error
            try:
                current = self._load()
            except ColdStorageError as error:
                if not error.retryable:
                    raise
                failure = error
            else:
                if _holds(current, proposal.commit_id):
                    # `seen` may be a later head, even of another committer: the next commit starts from it.
                    self._known, self._last_commit_id = current, proposal.commit_id
                    return proposal
                if _etag(current) != _etag(base):
                    base, proposal, lost = current, None, lost + 1
                    if self._monotonic() < until:
                        continue
            attempts += 1
            if attempts >= self._attempts or (proposal is None and race_seconds):
                break
            self._sleep(self._backoff(attempts))
        if proposal is None:
            raise ColdStorageError(
                f"not published: others committed to {self._where} first, {lost} times"
                + (f" in {race_seconds:.0f} s" if race_seconds else ""),
                retryable=True,
            )
        raise ColdStorageError(
            f"outcome unknown: no answer to {attempts} commits of {self._where} ({failure})", retryable=True
        )

    def _propose(self, base: LoadedHead | None, planned: Head) -> Head:
        previous = (base.head.commit_id, *base.head.previous_commit_ids) if base else ()
        proposal = replace(
            planned,
            commit_id=uuid4().hex,
            previous_commit_ids=previous[:PREVIOUS_COMMITS_MAX],
            committed_us=max(self._clock(), planned.committed_us),
        )
        problems = check_head(proposal)
        if problems:
            raise ColdStorageError(f"refused to publish {self._where}: {problems[0]}")
        return proposal

    def _put(self, base: LoadedHead | None, proposal: Head) -> Head:
        store, key, data = self.partition.store, self.partition.keys.head, encode_head(proposal)
        # Set before the request: an interrupt within it leaves its outcome unknown, like a timeout.
        self._known, self._doubt = None, _Doubt(_etag(base))
        request_seconds = boot_seconds()
        if store.conditional_writes:
            etag = store.put(key, data, if_match=_etag(base), if_none_match=base is None)
        else:
            # The operator promised exactly one tierer. This detects a broken promise, not a race.
            if _etag(self._load()) != _etag(base):
                raise PreconditionFailed(f"{self._where} changed since it was read")
            etag = store.put(key, data)
        self._known, self._doubt = LoadedHead(proposal, etag), None
        self._last_commit_id = proposal.commit_id
        self.partition.note(self._known, request_seconds)
        return proposal

    def _load(self) -> LoadedHead | None:
        seen = self.partition.load()
        if self._doubt is not None and _etag(seen) != self._doubt.base_etag:
            self._doubt = None
        return seen

    def _backoff(self, attempt: int) -> float:
        # Jitter keeps the partitions of a store from retrying in step.
        limit = min(_BACKOFF_SECONDS_MAX, self._backoff_seconds * float(2 ** (attempt - 1)))
        return limit * (0.5 + random.random() / 2)  # noqa: S311 - no secret


def _etag(loaded: LoadedHead | None) -> str | None:
    return loaded.etag if loaded else None


def _holds(loaded: LoadedHead | None, commit_id: str) -> bool:
    return loaded is not None and commit_id in (loaded.head.commit_id, *loaded.head.previous_commit_ids)


def next_lineage(head: Head, now_us: int, began_us: int | None = None) -> Head:
    """Return a head on which a new lineage begins, at its end offset: at `began_us`, or now."""
    if began_us is None:
        # The clock of another host never dates a lineage before the last commit.
        began_us = max(now_us, head.committed_us)
    epoch = head.epoch + 1
    origin = Origin(epoch, began_us, head.lineage_epoch, head.end_offset, head.start_offset)
    lineages = (*head.lineages, (epoch, head.end_offset))
    return replace(head, epoch=epoch, lineages=lineages, origins=(*head.origins, origin))
