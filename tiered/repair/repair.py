"""The repair of a store: it makes all repairs that lose nothing, and refuses the others with a reason.

Documents come first, because all else is found through them; then segments, manifests and the objects that these name.
Every step reads again what it repairs. Damaged originals are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from ..cold.manifest.partition_manifest import PartitionManifest
from ..errors import CorruptionError, FileUnreadable, TieredError
from ..format.manifest import ObjectEntry
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..policies.policy import Policy
from ..reader.tiers import Tiers
from ..tiering.claims import Claims
from ..tiering.tiering_locks import PASSES_LOCK, TIERING_LOCK
from ..verify.damage_memory import DamageMemory, wall_clock_us
from ..verify.documents import check_store_document
from ..verify.findings import FileVanished, Findings, Progress
from ..verify.invariants import Evidence
from ..verify.partitions import VerifiedTiers, gather_evidence
from ..verify.report import Item, Problem, Repair, VerifyReport
from ..verify.segments import SegmentCheck
from ..verify.verifier import verify_store
from ..warm.catalog import STORE_LOCK, TOPIC_FILE, TOPICS_DIRECTORY, Catalog
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem, OsFileSystem
from .bucket import rebuild_head, repair_page, upload_again
from .documents import repair_bucket_document, repair_document
from .log_salvage import salvage
from .quarantine import RepairContext
from .segments import DamagedSegment, fetch_segment, rebuild_footer

log = logging.getLogger("tiered.verify")

_ROUNDS_MAX = 3


def repair_store(
    access: Tiers,
    *,
    deep: bool = False,
    rebuild_manifest: bool = False,
    drop_lost_transactions: bool = False,
    progress: Progress | None = None,
    clock: Callable[[], int] = wall_clock_us,
    fs: FileSystem | None = None,
    policy_for: Callable[[str], Policy] = lambda _: Policy(),
) -> VerifyReport:
    """Verify a store, make all repairs that lose nothing, and verify it again.

    Parameters
    ----------
    rebuild_manifest
        Publish manifests that are rebuilt from the objects. Otherwise they are only proposed, because removed records may
        reappear.
    drop_lost_transactions
        Go on without records of the transaction log that are damaged here and not in the bucket.
    policy_for
        Returns the policy of a topic: objects are written again as it says.

    Returns
    -------
    VerifyReport
        The report of the last verification; ``repairs`` has the repairs that were made, refused and proposed.

    Raises
    ------
    StoreLocked
        Another process has the store open; nothing was changed.
    ReadOnly, DiskFull
    """
    repairs: list[Repair] = []
    fs = fs or OsFileSystem()
    memory = DamageMemory(fs, clock)
    with _locked(access):
        for _ in range(_ROUNDS_MAX):
            report = verify_store(access, deep=deep, progress=progress, memory=memory)
            if not report.problems:
                break
            context = _repair_context(access, clock, fs, policy_for)
            fresh = _Round(context, report, rebuild_manifest, drop_lost_transactions).run()
            tried = {(item.where, item.result) for item in repairs}
            repairs += [item for item in fresh if (item.where, item.result) not in tried]
            # A repair can reveal further problems: a document those of its partition, a manifest those of its objects.
            if not any(item.result == "done" for item in fresh):
                break
        else:
            report = verify_store(access, deep=deep, progress=progress, memory=memory)
    settled = {item.where for item in repairs if item.result == "done"}
    return replace(
        report, repairs=tuple(item for item in repairs if item.result == "done" or item.where not in settled)
    )


@contextmanager
def _locked(access: Tiers) -> Iterator[None]:
    """Hold the store's locks, so that no process appends, tiers or restores."""
    root = access.locations.root
    with ExitStack() as locks:
        if root is not None and root.is_dir():
            tiering = "tiering of the store"
            # With `PASSES_LOCK` a pass cannot continue between two actions.
            for name, what in ((STORE_LOCK, "the store"), (PASSES_LOCK, tiering), (TIERING_LOCK, tiering)):
                locks.callback(FileLock.acquire(root / name, f"{what} {root}").release)
        yield


def _repair_context(
    access: Tiers, clock: Callable[[], int], fs: FileSystem, policy_for: Callable[[str], Policy]
) -> RepairContext:
    root = access.locations.root
    store_id: UUID | None = check_store_document(root, Findings()) if root is not None else None
    claims = Claims(access, store_id, clock, fs) if store_id is not None and access.has_cold else None
    access.release_segments()
    return RepairContext(access, fs, clock, store_id, claims, policy_for)


class _Round:
    def __init__(
        self, context: RepairContext, report: VerifyReport, rebuild_manifest: bool, drop_lost: bool
    ) -> None:
        self._context = context
        self._report = report
        self._rebuild_manifest = rebuild_manifest
        self._drop_lost = drop_lost
        self._root = context.access.locations.root
        self._done: list[Repair] = []

    def run(self) -> list[Repair]:
        if self._root is None:
            for problem in self._report.problems:
                self._add(problem, "refused", "only the local store may change its bucket: run it there")
            return self._done
        order = (Item.DOCUMENT, Item.SEGMENT, Item.HEAD, Item.PAGE, Item.OBJECT, Item.LOG, Item.TABLE)
        seen: set[tuple[Item, str]] = set()
        for item in order:
            for problem in self._report.problems:
                if problem.item is item and (item, problem.where) not in seen:
                    seen.add((item, problem.where))
                    self._attempt(problem)
        return self._done

    def _attempt(self, problem: Problem) -> None:
        try:
            repair = self._repair(problem)
        except (FileUnreadable, OSError) as error:
            self._add(problem, "failed", str(error))
        except (TieredError, FileVanished) as error:
            self._add(problem, "refused", " ".join(str(error).split()))
        # After an unexpected error the other repairs are still tried.
        except Exception as error:
            log.exception("repair of %s", problem.where)
            self._add(problem, "failed", f"{type(error).__name__}: {error}")
        else:
            log.info("%s", repair)
            self._done.append(repair)

    def _add(self, problem: Problem, result: str, why: str) -> None:
        self._done.append(Repair(problem.where, f"repair of: {problem.reason}", result, why))

    def _repair(self, problem: Problem) -> Repair:
        if problem.item is Item.DOCUMENT:
            return self._document(problem)
        if problem.item in (Item.LOG, Item.TABLE) or problem.partition is None:
            return Repair(
                problem.where, f"repair of: {problem.reason}", "refused", "nothing safe can be done"
            )
        meta, facts = self._gather(problem.topic, problem.partition)
        if problem.item is Item.SEGMENT:
            return self._segment(problem, meta, facts)
        cold = PartitionManifest(
            self._context.access.object_store, meta.name, meta.topic_id, problem.partition
        )
        if not problem.where.startswith(cold.where(cold.keys.prefix)):
            return Repair(
                problem.where, f"repair of: {problem.reason}", "refused", "it is no topic's of this store"
            )
        name = problem.where.rpartition("/")[2]
        if problem.item is Item.HEAD:
            return rebuild_head(
                self._context, cold, meta, facts.segments or (), publish=self._rebuild_manifest
            )
        if problem.item is Item.PAGE:
            return repair_page(self._context, cold, meta, name)
        entry = next((entry for entry in facts.entries or () if entry.name == name), None)
        if entry is None:
            return Repair(problem.where, "repair of the object", "refused", "no manifest names it")
        return upload_again(self._context, cold, meta, entry, facts.segments or ())

    def _gather(self, topic: str, partition: int) -> tuple[TopicMeta, Evidence]:
        """Return a topic's document and the present evidence of a partition, after the repairs so far."""
        assert self._root is not None
        meta = Catalog(self._context.fs, self._root).read_topic(topic)
        directory = self._root / TOPICS_DIRECTORY / topic / str(partition)
        access = self._context.access
        tiers = VerifiedTiers(
            self._root, access.object_store if access.has_cold else None, self._context.store_id
        )
        return meta, gather_evidence(tiers, meta, partition, directory, Findings())

    def _document(self, problem: Problem) -> Repair:
        assert self._root is not None
        if "://" in problem.where:
            url = self._context.access.object_store.url.rstrip("/")
            key = problem.where.removeprefix(f"{url}/")
            return repair_bucket_document(self._context, key, self._topics())
        path = Path(problem.where)
        facts = None
        if path.parent.parent.parent.parent == self._root and path.name != TOPIC_FILE:
            _, facts = self._gather(path.parent.parent.name, int(path.parent.name))
        return repair_document(self._context, path, facts)

    def _topics(self) -> list[TopicMeta]:
        assert self._root is not None
        catalog = Catalog(self._context.fs, self._root)
        return [catalog.read_topic(name) for name in catalog.topics()]

    def _segment(self, problem: Problem, meta: TopicMeta, facts: Evidence) -> Repair:
        checks = facts.segments or ()
        at = next((i for i, check in enumerate(checks) if str(check.path) == problem.where), None)
        if at is None:
            return Repair(problem.where, "repair of the segment", "refused", "it is not there any more")
        check = checks[at]
        damaged = DamagedSegment(
            check.path,
            check.name,
            checks[at - 1] if at and checks[at - 1].end_offset == check.name.base_offset else None,
            checks[at + 1] if at + 1 < len(checks) else None,
            _entry_of(check, facts),
            check.header.segment_id if check.header is not None else None,
            _merged_of(check, facts),
        )
        try:
            return self._replaced(problem, damaged, meta, facts)
        except TieredError as error:
            if meta.name != TRANSACTIONS_TOPIC:
                raise
            log.info("%s: %s", problem.where, error)
            return self._salvaged(problem, damaged, meta, facts)

    def _replaced(
        self, problem: Problem, damaged: DamagedSegment, meta: TopicMeta, facts: Evidence
    ) -> Repair:
        try:
            quarantined = rebuild_footer(self._context, damaged)
            return Repair(problem.where, "rebuilt the footer from its blocks", "done", kept=quarantined)
        except TieredError as first:
            if not self._context.access.has_cold:
                raise
            reason = str(first)
        cold = PartitionManifest(self._context.access.object_store, meta.name, meta.topic_id, facts.partition)
        try:
            quarantined = fetch_segment(self._context, damaged, cold, meta)
        except TieredError as second:
            raise CorruptionError(f"its blocks: {reason}; the bucket: {second}") from None
        source = damaged.entry or damaged.merged
        assert source is not None
        return Repair(problem.where, f"fetched again from {source.name}", "done", kept=quarantined)

    def _salvaged(
        self, problem: Problem, damaged: DamagedSegment, meta: TopicMeta, facts: Evidence
    ) -> Repair:
        cold = None
        if self._context.access.has_cold:
            if facts.entries is None or not facts.entries_whole:
                raise CorruptionError("what the bucket has of the transaction log cannot be read")
            cold = PartitionManifest(
                self._context.access.object_store, meta.name, meta.topic_id, facts.partition
            )
        salvaged = salvage(self._context, damaged, meta, cold, facts.entries or (), give_up=self._drop_lost)
        done = ["wrote the transaction log again"]
        done += [f"with records {first} to {last} from the bucket" for first, last in salvaged.fetched]
        done += [f"without records {first} to {last}" for first, last in salvaged.lost]
        return Repair(problem.where, ", ".join(done), "done", kept=salvaged.kept)


def _entry_of(check: SegmentCheck, facts: Evidence) -> ObjectEntry | None:
    """Return the entry of the manifest that holds this whole segment and no other."""
    entries = (entry for entry in facts.entries or () if entry.base_offset == check.name.base_offset)
    return next((entry for entry in entries if entry.sealed and len(entry.segment_ids) == 1), None)


def _merged_of(check: SegmentCheck, facts: Evidence) -> ObjectEntry | None:
    """Return the entry of a merged object that holds the records of this segment."""
    base = check.name.base_offset
    entries = (entry for entry in facts.entries or () if entry.base_offset <= base < entry.end_offset)
    return next((entry for entry in entries if entry.sealed and len(entry.segment_ids) > 1), None)
