"""Repairs of a partition's manifest and objects, from the objects and from sound local segments."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from ..cold.manifest.commit import Committer
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.file_store import FileStore
from ..cold.parquet.key_filter_writer import KeyFilter
from ..cold.parquet.layout import object_schema
from ..cold.parquet.writer import write_object
from ..cold.upkeep.rebuild import plan_rebuild, publish_rebuilt, rebuild_page
from ..cold.upkeep.whole_object import copy_object
from ..engine.locations import COPIES_DIRECTORY
from ..errors import CorruptionError, ObjectNotFound
from ..format.manifest import Head, ObjectEntry
from ..format.producers import states_before
from ..format.schema import schema_to_text
from ..format.segment import SegmentHeader
from ..format.segment_facts import ProducerState, SegmentFacts
from ..format.topic_meta import TopicMeta
from ..reader.same_log import segment_rows
from ..reader.snapshot import open_listed
from ..survey.local_segments import LocalSegments
from ..tiering.partition_handle import PartitionHandle
from ..verify.findings import Findings
from ..verify.report import Repair
from ..verify.segments import SegmentCheck, check_segment, walk_blocks
from ..warm.partition_directory import list_segments, read_lineage, read_start_offset, write_marks
from ..warm.segment_reader import SegmentFile
from .quarantine import RepairContext


def committer_of(context: RepairContext, meta: TopicMeta, partition: int) -> Committer:
    """Claim a partition in the bucket and return its committer.

    Raises
    ------
    Fenced, ConfigError, ColdStorageError, CorruptionError
    """
    directory = context.access.directory(meta.name, partition)
    if context.claims is None or directory is None:
        raise CorruptionError("only the local store may change its bucket")
    return context.claims.committer(_DamagedPartition(context.access, meta, partition, {}))


class _DamagedPartition(PartitionHandle):
    """A partition without a writer, and with segments that may be damaged."""

    __slots__ = ()

    def local(self) -> LocalSegments:
        """Open the sound segments. The newest one must be sound, because its end shows whether the bucket is ahead."""
        segments = []
        names = list_segments(self.directory).segments
        for name in names:
            try:
                opened = open_listed(self._tiers, self.directory, name)
            except CorruptionError:
                if name == names[-1]:
                    raise
            else:
                segments += [opened] if opened is not None else []
        return LocalSegments(read_start_offset(self.directory), tuple(segments))


def rebuild_head(
    context: RepairContext,
    cold: PartitionManifest,
    meta: TopicMeta,
    segments: tuple[SegmentCheck, ...],
    *,
    publish: bool,
) -> Repair:
    """Plan a lost head from the objects; publish it if `publish` is set, otherwise propose it.

    Raises
    ------
    CorruptionError
        The objects leave a gap, or belong to another lineage than this disk.
    Fenced, ConfigError
        This store does not own the bucket any more.
    ColdStorageError
    """
    where = cold.where(cold.keys.head)
    directory = context.access.directory(meta.name, cold.partition)
    if directory is None or context.store_id is None or context.claims is None:
        raise CorruptionError("only the local store may change its bucket")
    # If the store was restored elsewhere meanwhile, a head of this disk's lineage would fence the restored store.
    context.claims.store.check_owner()
    start = _start_offset(directory)
    created_us = next(
        (check.header.created_us for check in segments if check.header is not None), context.clock()
    )
    planned = plan_rebuild(
        cold,
        store_id=context.store_id,
        schemas={i: schema_to_text(item) for i, item in enumerate(meta.schemas)},
        lineage_epoch=read_lineage(directory),
        start_offset=start,
        local=(segments[0].name.base_offset, created_us) if segments else None,
    )
    _check_lineage(planned.head.inline, planned.head.end_offset, segments)
    if planned.problems:
        raise CorruptionError(planned.problems[0], where=where)
    head = planned.head
    _check_start(head, start, segments)
    _check_end(head, segments)
    action = (
        f"a manifest of {len(head.inline)} objects, offsets {head.start_offset} to {head.end_offset}, "
        f"{len(planned.left_out)} objects left out"
    )
    warning = "records that retention or delete_before removed after the last seal may reappear"
    if len(head.lineages) > 1:
        warning += "; the history of earlier restores is only as complete as the remaining objects"
    if not segments:
        warning += f"; no local file shows whether the log continued after offset {head.end_offset}"
    if not publish:
        return Repair(
            where, f"would publish {action}", "proposed", f"{warning}; add --rebuild-manifest to do it"
        )
    _reset_marks(context, meta, cold.partition)
    original = publish_rebuilt(cold, head, context.clock)
    return Repair(where, f"published {action}", "done", warning, original)


def _start_offset(directory: Path) -> int | None:
    """Return the start offset on disk; None if it is damaged, and the rebuilt manifest restores it."""
    try:
        return read_start_offset(directory)
    except CorruptionError:
        return None


def _check_start(head: Head, start: int | None, segments: tuple[SegmentCheck, ...]) -> None:
    """Raise if a manifest would move the start offset up: the next pass would delete the records before it."""
    first = start if start is not None else min((check.name.base_offset for check in segments), default=0)
    if head.start_offset > first:
        raise CorruptionError(
            f"offsets {first} to {head.start_offset} are in no object; delete_before({head.start_offset}) gives them up"
        )


def _check_end(head: Head, segments: tuple[SegmentCheck, ...]) -> None:
    """Raise if a manifest would end before records that local files prove: a restore would use their offsets again."""
    cursor = head.end_offset
    for check in segments:
        base = check.name.base_offset
        if base > cursor:
            raise CorruptionError(
                f"offsets {cursor} to {base} are in no object and in no local file; put the object back, or "
                f"delete_before({base}) gives up all before it"
            )
        cursor = max(cursor, check.end_offset)


def _reset_marks(context: RepairContext, meta: TopicMeta, partition: int) -> None:
    """Restart the sweep's grace: an orphan may be in the new manifest, and become an orphan again later."""
    directory = context.access.directory(meta.name, partition)
    assert directory is not None
    write_marks(context.fs, directory, {})


def _check_lineage(
    entries: tuple[ObjectEntry, ...], end_offset: int, segments: tuple[SegmentCheck, ...]
) -> None:
    """Raise if the objects show that another host continued the log."""
    if segments and not segments[-1].damaged and end_offset > segments[-1].end_offset:
        raise CorruptionError(
            f"the objects reach to offset {end_offset}, this disk to {segments[-1].end_offset}"
        )
    for check in segments:
        for entry in entries:
            overlap = entry.base_offset < check.end_offset and check.name.base_offset < entry.end_offset
            if overlap and check.header is not None and check.header.segment_id not in entry.segment_ids:
                raise CorruptionError(
                    f"{entry.name} holds offsets of {check.path.name}, and is of another segment"
                )


def repair_page(context: RepairContext, cold: PartitionManifest, meta: TopicMeta, name: str) -> Repair:
    """Rebuild a damaged page from its objects.

    Raises
    ------
    CorruptionError, Fenced, ColdStorageError
    """
    where = cold.where(cold.keys.page(name))
    loaded = cold.load()
    ref = next((ref for ref in loaded.head.pages if ref.name == name), None) if loaded is not None else None
    if ref is None:
        raise CorruptionError("the manifest does not name it any more", where=where)
    _reset_marks(context, meta, cold.partition)
    fresh = rebuild_page(committer_of(context, meta, cold.partition), ref)
    return Repair(where, f"made again from {fresh.count} objects as {fresh.name}", "done", kept=where)


def upload_again(
    context: RepairContext,
    cold: PartitionManifest,
    meta: TopicMeta,
    entry: ObjectEntry,
    segments: tuple[SegmentCheck, ...],
) -> Repair:
    """Upload a damaged or missing object again under a new name, and publish it.

    The source is the sound local segment or, if it was evicted, the local copy of the object.

    Raises
    ------
    CorruptionError
        The disk has neither, or both are damaged, too.
    Fenced, ColdStorageError
    """
    where = cold.where(cold.keys.data(entry.name))
    # If the object lacks records, a local file is older than the object and still has them.
    checks = [] if entry.lacks_records else _sources(entry, segments)
    if not checks:
        return _upload_copy(context, cold, meta, entry)
    ends = frozenset({entry.end_offset} if entry.end_hash else ())
    again = [_recheck(check, newest=check is segments[-1], ends=ends) for check in checks]
    facts = [_facts(again[0], entry)] if len(again) == 1 else [_sealed_facts(check) for check in again]
    if entry.sealed and entry.origin_hash != facts[-1].origin_hash:
        raise CorruptionError(f"{checks[-1].path} is not the segment that was uploaded", where=where)
    if len(again) == 1 and again[0].end_offset < entry.end_offset:
        raise CorruptionError(f"{checks[0].path} is no better", where=where)
    committer = committer_of(context, meta, cold.partition)
    names = [committer.new_object_name(item.base_offset) for item in facts]
    try:
        fresh = [
            _upload(context, cold, meta, check, item, name, sealed=entry.sealed)
            for check, item, name in zip(checks, facts, names, strict=True)
        ]
    except BaseException:
        committer.release(names)
        raise
    schemas = {i: schema_to_text(item) for i, item in enumerate(meta.schemas)}
    committer.publish_objects(fresh, schemas)
    source = ", ".join(check.path.name for check in checks)
    return Repair(where, f"uploaded again as {', '.join(names)} from {source}", "done", kept=where)


def _upload_copy(
    context: RepairContext, cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry
) -> Repair:
    root = context.access.locations.root
    assert root is not None
    where = cold.where(cold.keys.data(entry.name))
    copies = PartitionManifest(FileStore(root / COPIES_DIRECTORY), meta.name, meta.topic_id, cold.partition)
    try:
        copies.store.stat(cold.keys.data(entry.name))
    except ObjectNotFound:
        raise CorruptionError("the disk does not have its records any more", where=where) from None
    committer = committer_of(context, meta, cold.partition)
    name = committer.new_object_name(entry.base_offset)
    try:
        fresh = copy_object(copies, entry, name, cold.store, "")
    except BaseException:
        committer.release([name])
        raise
    committer.publish_objects([fresh])
    return Repair(where, f"uploaded again as {name} from its local copy", "done", kept=where)


def _sources(entry: ObjectEntry, segments: tuple[SegmentCheck, ...]) -> list[SegmentCheck]:
    """Return the local segments of an object; none unless the disk has all of them."""
    checks = [
        check
        for check in segments
        if check.header is not None and check.header.segment_id in entry.segment_ids
    ]
    if len(entry.segment_ids) == 1:
        return checks[:1]
    edges = [(check.name.base_offset, check.end_offset) for check in checks]
    whole = bool(edges) and (edges[0][0], edges[-1][1]) == (entry.base_offset, entry.end_offset)
    return checks if whole and all(a[1] == b[0] for a, b in pairwise(edges)) else []


def _recheck(check: SegmentCheck, *, newest: bool, ends: frozenset[int]) -> SegmentCheck:
    findings = Findings()
    again = check_segment(check.path, newest=newest, end_hint=None, deep=True, findings=findings, ends=ends)
    if findings.problems or again.header is None:
        raise CorruptionError(f"{check.path} is no better")
    return again


def _sealed_facts(check: SegmentCheck) -> SegmentFacts:
    if check.footer is None:
        raise CorruptionError(f"{check.path} is not the segment that was uploaded")
    return check.footer.facts


def _upload(
    context: RepairContext,
    cold: PartitionManifest,
    meta: TopicMeta,
    check: SegmentCheck,
    facts: SegmentFacts,
    name: str,
    *,
    sealed: bool,
) -> ObjectEntry:
    schema, rule = meta.schemas[facts.schema_id], context.policy_for(meta.name).offload
    with cold.store.upload(cold.keys.data(name)) as upload:
        rows = segment_rows(SegmentFile.open(check.path), schema, facts.base_offset, facts.end_offset)
        return write_object(
            upload, object_schema(schema), rows, facts,
            name=name, sealed=sealed, row_group_bytes=rule.row_group_bytes,
            key_filter=KeyFilter.of(meta, rule.key_filter) if sealed else None,
        )  # fmt: skip


def _facts(check: SegmentCheck, entry: ObjectEntry) -> SegmentFacts:
    header = check.header
    assert header is not None
    if entry.sealed:
        return _sealed_facts(check)
    if header.generation == 0 and check.hashes.get(entry.end_offset, entry.end_hash) != entry.end_hash:
        raise CorruptionError(f"{check.path} is not the segment that was uploaded")
    return SegmentFacts(
        store_id=header.store_id,
        topic_id=header.topic_id,
        segment_id=header.segment_id,
        partition=header.partition,
        generation=entry.generation,
        schema_id=header.schema_id,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        record_count=entry.record_count,
        min_timestamp_us=entry.min_timestamp_us,
        max_timestamp_us=entry.max_timestamp_us,
        created_us=header.created_us,
        last_append_us=entry.last_append_us,
        lineage_epoch=header.lineage_epoch,
        origin_hash=entry.origin_hash,
        prev_origin_hash=header.prev_origin_hash,
        content_hash=entry.content_hash,
        producers=_producers(check, header, entry.end_offset),
        end_hash=entry.end_hash,
    )


def _producers(check: SegmentCheck, header: SegmentHeader, end_offset: int) -> tuple[ProducerState, ...]:
    """Return the producers at an offset of a segment. Re-encoded blocks have none, so theirs come from the footer."""
    if header.generation and check.footer is not None:
        return states_before(check.footer.facts.producers, end_offset)
    return walk_blocks(check.path, producers_end=end_offset).producers
