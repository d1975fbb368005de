"""Carry out the repairs that lose nothing; refuse the others, with the reason.

The order matters: documents first, as everything else is found through them; then segments, then manifests, then
the objects that they name. Every step looks again at what it repairs. Damaged originals are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from ..cold.manifest.partition_manifest import PartitionManifest
from ..errors import TieredError
from ..format.manifest import ObjectEntry
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers
from ..tiering.claims import Claims
from ..tiering.tiering_locks import PASSES_LOCK, TIERING_LOCK
from ..verify.damage_memory import Memory, wall_clock_us
from ..verify.documents import check_store_document
from ..verify.invariants import Evidence
from ..verify.notes import Gone, Notes, Progress
from ..verify.partitions import VerifiedTiers, settled_facts
from ..verify.report import Item, Problem, Repair, VerifyReport
from ..verify.segments import SegmentCheck
from ..verify.verifier import verify_store
from ..warm.catalog import TOPIC_FILE, TOPICS_DIRECTORY, Catalog
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem, OsFileSystem
from ..warm.partition_directory import LOCK_FILE
from .bucket import rebuild_head, repair_page, upload_again
from .documents import repair_bucket_document, repair_document
from .quarantine import Workshop
from .segments import Damaged, fetch_segment, rebuild_footer

log = logging.getLogger("tiered.verify")

_ROUNDS_MAX = 3


def repair_store(
    access: Tiers,
    *,
    deep: bool = False,
    rebuild_manifest: bool = False,
    progress: Progress | None = None,
    clock: Callable[[], int] = wall_clock_us,
    fs: FileSystem | None = None,
) -> VerifyReport:
    """Verify a store, repair what can be repaired without losing anything, and verify it again.

    Parameters
    ----------
    rebuild_manifest
        Also publish manifests that were rebuilt from the objects; else they are only proposed, because records
        that were removed may reappear.

    Returns
    -------
    VerifyReport
        Of the last look, with what was done, refused and proposed in ``repairs``.

    Raises
    ------
    StoreLocked
        The store is open elsewhere; nothing was changed.
    ReadOnly, DiskFull
    """
    repairs: list[Repair] = []
    fs = fs or OsFileSystem()
    memory = Memory(fs, clock)
    with _locked(access):
        for _ in range(_ROUNDS_MAX):
            report = verify_store(access, deep=deep, progress=progress, memory=memory)
            if not report.problems:
                break
            shop = _workshop(access, clock, fs)
            fresh = _Round(shop, report, rebuild_manifest).run()
            tried = {(item.where, item.result) for item in repairs}
            repairs += [item for item in fresh if (item.where, item.result) not in tried]
            # One repair can lay open what it hid: a document its partition, a manifest its objects.
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
    """Hold the store's locks: nobody may append, tier or restore meanwhile."""
    root = access.locations.root
    with ExitStack() as held:
        if root is not None and root.is_dir():
            tiering = "tiering of the store"
            # The second, or a pass would go on between two actions.
            for name, what in ((LOCK_FILE, "the store"), (PASSES_LOCK, tiering), (TIERING_LOCK, tiering)):
                held.callback(FileLock.acquire(root / name, f"{what} {root}").release)
        yield


def _workshop(access: Tiers, clock: Callable[[], int], fs: FileSystem) -> Workshop:
    root = access.locations.root
    store_id: UUID | None = check_store_document(root, Notes()) if root is not None else None
    claims = Claims(access, store_id, clock, fs) if store_id is not None and access.has_cold else None
    access.release_segments()
    return Workshop(access, fs, clock, store_id, claims)


class _Round:
    def __init__(self, shop: Workshop, report: VerifyReport, rebuild_manifest: bool) -> None:
        self._shop = shop
        self._report = report
        self._rebuild_manifest = rebuild_manifest
        self._root = shop.access.locations.root
        self._done: list[Repair] = []

    def run(self) -> list[Repair]:
        if self._root is None:
            for problem in self._report.problems:
                self._say(problem, "refused", "only the local store may change its bucket: run it there")
            return self._done
        order = (Item.DOCUMENT, Item.SEGMENT, Item.HEAD, Item.PAGE, Item.OBJECT, Item.LOG)
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
        except (TieredError, Gone) as error:
            self._say(problem, "refused", " ".join(str(error).split()))
        except OSError as error:
            self._say(problem, "failed", str(error))
        # One repair that fails in a way nobody foresaw must not keep the others from being tried.
        except Exception as error:
            log.exception("repair of %s", problem.where)
            self._say(problem, "failed", f"{type(error).__name__}: {error}")
        else:
            log.info("%s", repair)
            self._done.append(repair)

    def _say(self, problem: Problem, result: str, why: str) -> None:
        self._done.append(Repair(problem.where, f"repair of: {problem.reason}", result, why))

    def _repair(self, problem: Problem) -> Repair:
        if problem.item is Item.DOCUMENT:
            return self._document(problem)
        if problem.item is Item.LOG or problem.partition is None:
            return Repair(
                problem.where, f"repair of: {problem.reason}", "refused", "nothing safe can be done"
            )
        meta, facts = self._look(problem.topic, problem.partition)
        if problem.item is Item.SEGMENT:
            return self._segment(problem, meta, facts)
        cold = PartitionManifest(self._shop.access.object_store, meta.name, meta.topic_id, problem.partition)
        if not problem.where.startswith(cold.where(cold.keys.prefix)):
            return Repair(
                problem.where, f"repair of: {problem.reason}", "refused", "it is no topic's of this store"
            )
        name = problem.where.rpartition("/")[2]
        if problem.item is Item.HEAD:
            return rebuild_head(self._shop, cold, meta, facts.segments or (), publish=self._rebuild_manifest)
        if problem.item is Item.PAGE:
            return repair_page(self._shop, cold, meta, name)
        entry = next((entry for entry in facts.entries or () if entry.name == name), None)
        if entry is None:
            return Repair(problem.where, "repair of the object", "refused", "no manifest names it")
        return upload_again(self._shop, cold, meta, entry, facts.segments or ())

    def _look(self, topic: str, partition: int) -> tuple[TopicMeta, Evidence]:
        """Look at a partition as it is now, after the repairs so far."""
        assert self._root is not None
        meta = Catalog(self._shop.fs, self._root).read_topic(topic)
        directory = self._root / TOPICS_DIRECTORY / topic / str(partition)
        access = self._shop.access
        tiers = VerifiedTiers(
            self._root, access.object_store if access.has_cold else None, self._shop.store_id
        )
        return meta, settled_facts(tiers, meta, partition, directory, Notes())

    def _document(self, problem: Problem) -> Repair:
        assert self._root is not None
        if "://" in problem.where:
            url = self._shop.access.object_store.url.rstrip("/")
            key = problem.where.removeprefix(f"{url}/")
            return repair_bucket_document(self._shop, key, self._topics())
        path = Path(problem.where)
        facts = None
        if path.parent.parent.parent.parent == self._root and path.name != TOPIC_FILE:
            _, facts = self._look(path.parent.parent.name, int(path.parent.name))
        return repair_document(self._shop, path, facts)

    def _topics(self) -> list[TopicMeta]:
        assert self._root is not None
        catalog = Catalog(self._shop.fs, self._root)
        return [catalog.read_topic(name) for name in catalog.topics()]

    def _segment(self, problem: Problem, meta: TopicMeta, facts: Evidence) -> Repair:
        looks = facts.segments or ()
        place = next((i for i, look in enumerate(looks) if str(look.path) == problem.where), None)
        if place is None:
            return Repair(problem.where, "repair of the segment", "refused", "it is not there any more")
        look = looks[place]
        damaged = Damaged(
            look.path,
            look.name,
            looks[place - 1] if place and looks[place - 1].end_offset == look.name.base_offset else None,
            looks[place + 1] if place + 1 < len(looks) else None,
            _entry_of(look, facts),
            look.header.segment_id if look.header is not None else None,
            _merged_of(look, facts),
        )
        try:
            kept = rebuild_footer(self._shop, damaged)
            return Repair(problem.where, "rebuilt the footer from its blocks", "done", kept=kept)
        except TieredError as first:
            if not self._shop.access.has_cold:
                raise
            reason = str(first)
        cold = PartitionManifest(self._shop.access.object_store, meta.name, meta.topic_id, facts.partition)
        try:
            kept = fetch_segment(self._shop, damaged, cold, meta)
        except TieredError as second:
            why = f"its blocks: {reason}; the bucket: {second}"
            return Repair(problem.where, f"repair of: {problem.reason}", "refused", why)
        source = damaged.entry or damaged.merged
        assert source is not None
        return Repair(problem.where, f"fetched again from {source.name}", "done", kept=kept)


def _entry_of(look: SegmentCheck, facts: Evidence) -> ObjectEntry | None:
    """Return the entry of the manifest that holds the whole segment of a place, and no other."""
    found = (entry for entry in facts.entries or () if entry.base_offset == look.name.base_offset)
    return next((entry for entry in found if entry.sealed and len(entry.segment_ids) == 1), None)


def _merged_of(look: SegmentCheck, facts: Evidence) -> ObjectEntry | None:
    """Return the entry of a merged object that holds the records of a place."""
    base = look.name.base_offset
    found = (entry for entry in facts.entries or () if entry.base_offset <= base < entry.end_offset)
    return next((entry for entry in found if entry.sealed and len(entry.segment_ids) > 1), None)
