"""Gather the facts of one partition: the bucket's end, the disk, then the manifest; and every byte if wanted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.protocol import ObjectStore
from ..errors import CorruptionError, ObjectNotFound
from ..format.manifest import Head, ObjectEntry
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..survey.scrub_state import read_scrub_state
from ..warm.bucket_binding import COLD_FILE
from ..warm.partition_directory import (
    FENCED_FILE,
    LINEAGE_FILE,
    START_FILE,
    SWEEP_FILE,
    list_segments,
    read_fence,
    read_lineage,
    read_marks,
    read_start_offset,
)
from .invariants import ANOTHER_COPY, Evidence, check_partition
from .notes import Gone, Notes
from .objects import check_object
from .report import Item, Problem
from .segments import SegmentCheck, check_segment

_LOOKS_MAX = 4
_GONE_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifiedTiers:
    """Where one store's data lie, as a verification reaches them; None for a tier that there is not.

    Attributes
    ----------
    cold_known
        Whether a bucket of None says that there is none, and not that it cannot be asked.
    """

    root: Path | None
    bucket: ObjectStore | None
    store_id: UUID | None = None
    cold_known: bool = True


def check_partition_tiers(
    tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None, *, deep: bool, notes: Notes
) -> Evidence:
    """Look at a partition and check its invariants; what is found goes into `notes`."""
    facts = settled_facts(tiers, meta, partition, directory, notes)
    if deep:
        notes.segments = notes.blocks = notes.objects = notes.bytes = 0
        segments = _deep_segments(directory, notes) if directory is not None else ()
        if tiers.bucket is not None:
            # Read once more, after the segments: what was evicted since is named by now.
            _deep_objects(_cold(tiers.bucket, meta, partition), meta, segments, notes)
    elif tiers.bucket is not None and directory is not None:
        _known_damage(_cold(tiers.bucket, meta, partition), meta, directory, facts, notes)
    return facts


def settled_facts(
    tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None, notes: Notes
) -> Evidence:
    """Return what a partition has, its bytes not read, and check its invariants.

    While a writer, a tierer or retention moves things, a look can catch a moment between two of their steps. So
    what a look finds is looked for again, and counts if it is there in two looks, one after the other.
    """
    facts = Evidence(str(directory or ""), tiers.store_id, meta.topic_id, partition, meta.schemas)
    before: set[Problem] | None = None
    found = notes.inner()
    looks = gone = 0
    while looks < _LOOKS_MAX:
        found = notes.inner()
        try:
            facts = _gather(tiers, meta, partition, directory, found)
        except Gone:
            gone += 1
            if gone == _GONE_MAX:
                found.not_known(str(directory), "files keep moving while they are looked at")
                break
            continue
        looks += 1
        for problem in check_partition(facts):
            found.problem(problem)
        seen = set(found.problems)
        if not seen:
            break
        found.problems = [item for item in found.problems if before is not None and item in before]
        if found.problems:
            break
        before = seen
    notes.add(found)
    return facts


def _cold(bucket: ObjectStore, meta: TopicMeta, partition: int) -> PartitionManifest:
    # A fresh one, which has no page in memory that the bucket has lost since.
    return PartitionManifest(bucket, meta.name, meta.topic_id, partition)


def _gather(
    tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None, notes: Notes
) -> Evidence:
    cold = _cold(tiers.bucket, meta, partition) if tiers.bucket is not None else None
    earlier = _head(cold, directory, notes.inner())[0] if cold is not None else None
    start, lineage, fenced = None, None, False
    segments: tuple[SegmentCheck, ...] | None = None
    if directory is not None:
        start, lineage, fenced = _documents(directory, notes)
        tails = earlier.inline if earlier is not None else ()
        ends = frozenset(entry.end_offset for entry in tails if entry.end_hash)
        segments = _segments(directory, ends, notes)
    facts = Evidence(
        str(directory or ""), tiers.store_id, meta.topic_id, partition, meta.schemas, start, lineage, fenced, segments,
        earlier_end=earlier.end_offset if earlier is not None else None,
    )  # fmt: skip
    if cold is None:
        # Without a bucket everything must be here; with one that does not answer, nobody knows.
        local_only = tiers.cold_known and lineage is None
        if tiers.cold_known and lineage is not None and tiers.root is not None:
            where = str(tiers.root / COLD_FILE)
            notes.problem(Problem(Item.DOCUMENT, where, "is missing, yet records were offloaded", position=0))
        return replace(facts, entries=()) if local_only else facts
    facts = replace(facts, bucket_where=cold.where(cold.keys.prefix))
    head, known = _head(cold, directory, notes)
    if not known:
        return facts
    entries, whole = _entries(cold, head, notes)
    notes.objects += len(entries)
    sizes = _sizes(cold, entries, notes)
    return replace(facts, head=head, entries=entries, entries_whole=whole, sizes=sizes)


def _documents(directory: Path, notes: Notes) -> tuple[int | None, int | None, bool]:
    start: int | None = None
    lineage: int | None = None
    fenced = True
    end = [name.base_offset for name in list_segments(directory).segments]
    risk = (0, end[-1]) if end and end[-1] else None
    with notes.guard(Item.DOCUMENT, str(directory / START_FILE), position=0, offsets=risk):
        start = read_start_offset(directory)
    with notes.guard(Item.DOCUMENT, str(directory / LINEAGE_FILE), position=0, offsets=risk):
        lineage = read_lineage(directory)
    with notes.guard(Item.DOCUMENT, str(directory / FENCED_FILE), position=0, offsets=risk):
        fenced = read_fence(directory) is not None
    with notes.guard(Item.DOCUMENT, str(directory / SWEEP_FILE), position=0):
        read_marks(directory)
    return start, lineage, fenced


def _segments(directory: Path, ends: frozenset[int], notes: Notes) -> tuple[SegmentCheck, ...]:
    looks = []
    names = list_segments(directory).segments
    for i, name in enumerate(names):
        hint = names[i + 1].base_offset if i + 1 < len(names) else None
        path = directory / str(name)
        with notes.guard(Item.SEGMENT, str(path)):
            newest = i + 1 == len(names)
            looks.append(
                check_segment(path, newest=newest, end_hint=hint, deep=False, notes=notes, ends=ends)
            )
    return tuple(looks)


def _head(cold: PartitionManifest, directory: Path | None, notes: Notes) -> tuple[Head | None, bool]:
    """Return the head, and whether the bucket said what it is."""
    where = cold.where(cold.keys.head)
    names = list_segments(directory).segments if directory is not None else ()
    # What is not here any more is in the bucket alone.
    risk = (0, names[0].base_offset) if names and names[0].base_offset else None
    with notes.guard(Item.HEAD, where, position=0, offsets=risk):
        loaded = cold.load()
        if loaded is not None:
            return loaded.head, True
        claimed = directory is not None and (directory / LINEAGE_FILE).exists()
        if claimed or next(cold.store.list(cold.keys.data_prefix), None) is not None:
            raise CorruptionError("is missing", position=0)
        return None, True
    return None, False


def _entries(
    cold: PartitionManifest, head: Head | None, notes: Notes
) -> tuple[tuple[ObjectEntry, ...], bool]:
    """Return the entries of every page that verifies, and whether all pages did."""
    if head is None:
        return (), True
    found: list[ObjectEntry] = []
    whole = True
    for ref in head.pages:
        where = cold.where(cold.keys.page(ref.name))
        loaded = None
        with notes.guard(Item.PAGE, where, position=0, offsets=(ref.base_offset, ref.end_offset)):
            loaded = cold.load_page(ref)
            notes.read(where, ref.bytes)
        whole = whole and loaded is not None
        found += loaded or ()
    found += head.inline
    return tuple(entry for entry in found if entry.end_offset > head.start_offset), whole


def _sizes(cold: PartitionManifest, entries: tuple[ObjectEntry, ...], notes: Notes) -> dict[str, int] | None:
    """Return the sizes of the objects that are there; None where the bucket did not say."""
    prefix = cold.keys.data_prefix
    unknown = len(notes.unknown)
    sizes: dict[str, int] = {}
    with notes.guard(Item.OBJECT, cold.where(prefix)):
        if entries:
            sizes = {info.key.removeprefix(prefix): info.size for info in cold.store.list(prefix)}
        for entry in entries:
            # A listing is a hint; that an object is not there is for the object itself to say (promise P10).
            if entry.name not in sizes:
                try:
                    sizes[entry.name] = cold.store.stat(cold.keys.data(entry.name)).size
                except ObjectNotFound:
                    continue
    return sizes if len(notes.unknown) == unknown else None


def _deep_segments(directory: Path, notes: Notes) -> tuple[SegmentCheck, ...]:
    """Look at every byte of every segment; one that was re-encoded or evicted meanwhile is looked for again."""
    done: dict[int, SegmentCheck] = {}
    for _ in range(_GONE_MAX):
        moved = False
        names = list_segments(directory).segments
        for i, name in enumerate(names):
            if name.base_offset in done:
                continue
            hint = names[i + 1].base_offset if i + 1 < len(names) else None
            path = directory / str(name)
            try:
                with notes.guard(Item.SEGMENT, str(path)):
                    done[name.base_offset] = check_segment(
                        path, newest=i + 1 == len(names), end_hint=hint, deep=True, notes=notes
                    )
            except Gone:
                moved = True
        if not moved:
            break
    return tuple(done[base] for base in sorted(done))


def _known_damage(
    cold: PartitionManifest, meta: TopicMeta, directory: Path, facts: Evidence, notes: Notes
) -> None:
    """Read the objects again that are known to be damaged, at any depth: a repair takes them from here."""
    known = {item.name for item in read_scrub_state(directory).damaged}
    for entry in facts.entries or ():
        if entry.name not in known:
            continue
        twins = []
        for look in facts.segments or ():
            if look.header is not None and look.header.segment_id in entry.segment_ids:
                unread = Notes()
                newest = look is (facts.segments or ())[-1]
                with suppress(Gone):
                    check_segment(look.path, newest=newest, end_hint=None, deep=True, notes=unread)
                    twins += [look] if not unread.problems else []
        check_object(cold, meta, entry, twins, notes)


def _deep_objects(
    cold: PartitionManifest, meta: TopicMeta, segments: tuple[SegmentCheck, ...], notes: Notes
) -> None:
    local = {
        look.header.segment_id: look for look in segments if look.header is not None and not look.damaged
    }
    head, _ = _head(cold, None, notes.inner())
    before: ObjectEntry | None = None
    for entry in _entries(cold, head, notes.inner())[0]:
        twins = [local[item] for item in entry.segment_ids if item in local]
        about = check_object(cold, meta, entry, twins, notes)
        if before is not None and about and not _follows(before, about[0]):
            where = cold.where(cold.keys.data(entry.name))
            offsets = before.base_offset, entry.end_offset
            reason = f"{entry.name} does not follow {before.name}: its segment was written after another one"
            notes.problem(Problem(Item.LOG, where, reason, offsets=offsets, advice=ANOTHER_COPY))
        before = entry


def _follows(before: ObjectEntry, first: SegmentFacts) -> bool:
    """Whether a segment may be the one after an object, or go on with the last segment in it, by its hash."""
    if first.segment_id in before.segment_ids or before.end_offset != first.base_offset:
        return True
    named, known = first.prev_origin_hash, before.hash_at_end
    return not named or not known or named == known
