"""The check of one partition: its evidence is read from the bucket's head, the disk and the manifest, in this order."""

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
from .findings import FileVanished, Findings
from .invariants import ANOTHER_COPY, Evidence, check_partition
from .objects import check_object
from .report import Item, Problem
from .segments import SegmentCheck, check_segment

_READS_MAX = 4
_VANISHED_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifiedTiers:
    """The tiers of a store for a verification; None for a missing tier.

    Attributes
    ----------
    cold_known
        Whether a bucket of None means that there is none, not that it does not answer.
    """

    root: Path | None
    bucket: ObjectStore | None
    store_id: UUID | None = None
    cold_known: bool = True


def check_partition_tiers(
    tiers: VerifiedTiers,
    meta: TopicMeta,
    partition: int,
    directory: Path | None,
    *,
    deep: bool,
    findings: Findings,
) -> Evidence:
    """Check a partition and its invariants; add the results to `findings`."""
    facts = gather_evidence(tiers, meta, partition, directory, findings)
    if deep:
        findings.segments = findings.blocks = findings.objects = findings.bytes = 0
        segments = _deep_segments(directory, findings) if directory is not None else ()
        if tiers.bucket is not None:
            # The manifest is read again after the segments: it names the segments that were evicted meanwhile.
            _deep_objects(_cold(tiers.bucket, meta, partition), meta, segments, findings)
    elif tiers.bucket is not None and directory is not None:
        _check_known_damage(_cold(tiers.bucket, meta, partition), meta, directory, facts, findings)
    return facts


def gather_evidence(
    tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None, findings: Findings
) -> Evidence:
    """Return the evidence of a partition, without the bytes of its blocks, and check its invariants.

    A writer, a tierer or retention may change the partition between two reads, which can look like a problem. A problem
    counts only if two consecutive readings have it.
    """
    facts = Evidence(str(directory or ""), tiers.store_id, meta.topic_id, partition, meta.schemas)
    before: set[Problem] | None = None
    reading = findings.empty_copy()
    reads = vanished = 0
    while reads < _READS_MAX:
        reading = findings.empty_copy()
        try:
            facts = _gather(tiers, meta, partition, directory, reading)
        except FileVanished:
            vanished += 1
            if vanished == _VANISHED_MAX:
                reading.add_unknown(str(directory), "files keep moving while they are checked")
                break
            continue
        reads += 1
        for problem in check_partition(facts):
            reading.add_problem(problem)
        problems = set(reading.problems)
        if not problems:
            break
        reading.problems = [item for item in reading.problems if before is not None and item in before]
        if reading.problems:
            break
        before = problems
    findings.add(reading)
    return facts


def _cold(bucket: ObjectStore, meta: TopicMeta, partition: int) -> PartitionManifest:
    # A new one: a cached page may be missing in the bucket.
    return PartitionManifest(bucket, meta.name, meta.topic_id, partition)


def _gather(
    tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None, findings: Findings
) -> Evidence:
    cold = _cold(tiers.bucket, meta, partition) if tiers.bucket is not None else None
    earlier = _head(cold, directory, findings.empty_copy())[0] if cold is not None else None
    start, lineage, fenced = None, None, False
    segments: tuple[SegmentCheck, ...] | None = None
    if directory is not None:
        start, lineage, fenced = _documents(directory, findings)
        tails = earlier.inline if earlier is not None else ()
        ends = frozenset(entry.end_offset for entry in tails if entry.end_hash)
        segments = _segments(directory, ends, findings)
    facts = Evidence(
        str(directory or ""), tiers.store_id, meta.topic_id, partition, meta.schemas, start, lineage, fenced, segments,
        earlier_end=earlier.end_offset if earlier is not None else None,
    )  # fmt: skip
    if cold is None:
        # Without a bucket all records must be on this disk. If a bucket does not answer, this is unknown.
        local_only = tiers.cold_known and lineage is None
        if tiers.cold_known and lineage is not None and tiers.root is not None:
            where = str(tiers.root / COLD_FILE)
            findings.add_problem(
                Problem(Item.DOCUMENT, where, "is missing, yet records were offloaded", position=0)
            )
        return replace(facts, entries=()) if local_only else facts
    facts = replace(facts, bucket_where=cold.where(cold.keys.prefix))
    head, known = _head(cold, directory, findings)
    if not known:
        return facts
    entries, whole = _entries(cold, head, findings)
    findings.objects += len(entries)
    sizes = _sizes(cold, entries, findings)
    return replace(facts, head=head, entries=entries, entries_whole=whole, sizes=sizes)


def _documents(directory: Path, findings: Findings) -> tuple[int | None, int | None, bool]:
    start: int | None = None
    lineage: int | None = None
    fenced = True
    bases = [name.base_offset for name in list_segments(directory).segments]
    risk = (0, bases[-1]) if bases and bases[-1] else None
    with findings.guard(Item.DOCUMENT, str(directory / START_FILE), position=0, offsets=risk):
        start = read_start_offset(directory)
    with findings.guard(Item.DOCUMENT, str(directory / LINEAGE_FILE), position=0, offsets=risk):
        lineage = read_lineage(directory)
    with findings.guard(Item.DOCUMENT, str(directory / FENCED_FILE), position=0, offsets=risk):
        fenced = read_fence(directory) is not None
    with findings.guard(Item.DOCUMENT, str(directory / SWEEP_FILE), position=0):
        read_marks(directory)
    return start, lineage, fenced


def _segments(directory: Path, ends: frozenset[int], findings: Findings) -> tuple[SegmentCheck, ...]:
    checks = []
    names = list_segments(directory).segments
    for i, name in enumerate(names):
        hint = names[i + 1].base_offset if i + 1 < len(names) else None
        path = directory / str(name)
        with findings.guard(Item.SEGMENT, str(path)):
            newest = i + 1 == len(names)
            checks.append(
                check_segment(path, newest=newest, end_hint=hint, deep=False, findings=findings, ends=ends)
            )
    return tuple(checks)


def _head(cold: PartitionManifest, directory: Path | None, findings: Findings) -> tuple[Head | None, bool]:
    """Return the head, and whether the bucket answered."""
    where = cold.where(cold.keys.head)
    names = list_segments(directory).segments if directory is not None else ()
    # Records before the first local segment are in the bucket only.
    risk = (0, names[0].base_offset) if names and names[0].base_offset else None
    with findings.guard(Item.HEAD, where, position=0, offsets=risk):
        loaded = cold.load()
        if loaded is not None:
            return loaded.head, True
        claimed = directory is not None and (directory / LINEAGE_FILE).exists()
        if claimed or next(cold.store.list(cold.keys.data_prefix), None) is not None:
            raise CorruptionError("is missing", position=0)
        return None, True
    return None, False


def _entries(
    cold: PartitionManifest, head: Head | None, findings: Findings
) -> tuple[tuple[ObjectEntry, ...], bool]:
    """Return the entries of every sound page, and whether all pages are sound."""
    if head is None:
        return (), True
    entries: list[ObjectEntry] = []
    whole = True
    for ref in head.pages:
        where = cold.where(cold.keys.page(ref.name))
        loaded = None
        with findings.guard(Item.PAGE, where, position=0, offsets=(ref.base_offset, ref.end_offset)):
            loaded = cold.load_page(ref)
            findings.count_read(where, ref.bytes)
        whole = whole and loaded is not None
        entries += loaded or ()
    entries += head.inline
    return tuple(entry for entry in entries if entry.end_offset > head.start_offset), whole


def _sizes(
    cold: PartitionManifest, entries: tuple[ObjectEntry, ...], findings: Findings
) -> dict[str, int] | None:
    """Return the sizes of the existing objects; None if the bucket did not answer."""
    prefix = cold.keys.data_prefix
    unknown = len(findings.unknown)
    sizes: dict[str, int] = {}
    with findings.guard(Item.OBJECT, cold.where(prefix)):
        if entries:
            sizes = {info.key.removeprefix(prefix): info.size for info in cold.store.list(prefix)}
        for entry in entries:
            # A listing may lack an object, so each missing one is requested itself (promise P10).
            if entry.name not in sizes:
                try:
                    sizes[entry.name] = cold.store.stat(cold.keys.data(entry.name)).size
                except ObjectNotFound:
                    continue
    return sizes if len(findings.unknown) == unknown else None


def _deep_segments(directory: Path, findings: Findings) -> tuple[SegmentCheck, ...]:
    """Check every byte of every segment; list again if one was re-encoded or evicted meanwhile."""
    checked: dict[int, SegmentCheck] = {}
    for _ in range(_VANISHED_MAX):
        moved = False
        names = list_segments(directory).segments
        for i, name in enumerate(names):
            if name.base_offset in checked:
                continue
            hint = names[i + 1].base_offset if i + 1 < len(names) else None
            path = directory / str(name)
            try:
                with findings.guard(Item.SEGMENT, str(path)):
                    checked[name.base_offset] = check_segment(
                        path, newest=i + 1 == len(names), end_hint=hint, deep=True, findings=findings
                    )
            except FileVanished:
                moved = True
        if not moved:
            break
    return tuple(checked[base] for base in sorted(checked))


def _check_known_damage(
    cold: PartitionManifest, meta: TopicMeta, directory: Path, facts: Evidence, findings: Findings
) -> None:
    """Check the known damaged objects again, so that a verification that is not deep reports them for a repair."""
    known = {item.name for item in read_scrub_state(directory).damaged}
    for entry in facts.entries or ():
        if entry.name not in known:
            continue
        twins = []
        for segment in facts.segments or ():
            if segment.header is not None and segment.header.segment_id in entry.segment_ids:
                unread = Findings()
                newest = segment is (facts.segments or ())[-1]
                with suppress(FileVanished):
                    check_segment(segment.path, newest=newest, end_hint=None, deep=True, findings=unread)
                    twins += [segment] if not unread.problems else []
        check_object(cold, meta, entry, twins, findings)


def _deep_objects(
    cold: PartitionManifest, meta: TopicMeta, segments: tuple[SegmentCheck, ...], findings: Findings
) -> None:
    local = {
        segment.header.segment_id: segment
        for segment in segments
        if segment.header is not None and not segment.damaged
    }
    head, _ = _head(cold, None, findings.empty_copy())
    before: ObjectEntry | None = None
    for entry in _entries(cold, head, findings.empty_copy())[0]:
        twins = [local[item] for item in entry.segment_ids if item in local]
        about = check_object(cold, meta, entry, twins, findings)
        if before is not None and about and not _follows(before, about[0]):
            where = cold.where(cold.keys.data(entry.name))
            offsets = before.base_offset, entry.end_offset
            reason = f"{entry.name} does not follow {before.name}: its segment was written after another one"
            findings.add_problem(Problem(Item.LOG, where, reason, offsets=offsets, advice=ANOTHER_COPY))
        before = entry


def _follows(before: ObjectEntry, first: SegmentFacts) -> bool:
    """Whether a segment can follow an object by its hash, or is itself the last segment of the object."""
    if first.segment_id in before.segment_ids or before.end_offset != first.base_offset:
        return True
    named, known = first.prev_origin_hash, before.hash_at_end
    return not named or not known or named == known
