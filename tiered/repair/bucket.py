"""Repair a partition's manifest and objects from the objects themselves and from sound local segments."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from ..cold.manifest.commit import Committer
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.file_store import FileStore
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
from ..verify.notes import Notes
from ..verify.report import Repair
from ..verify.segments import SegmentCheck, check_segment, walk_blocks
from ..warm.partition_directory import list_segments, read_lineage, read_start_offset, write_marks
from ..warm.segment_reader import SegmentFile
from .quarantine import Workshop


def committer_of(shop: Workshop, meta: TopicMeta, partition: int) -> Committer:
    """Return the committer of a partition, its epoch claimed.

    Raises
    ------
    Fenced, ConfigError, ColdStorageError, CorruptionError
    """
    directory = shop.access.directory(meta.name, partition)
    if shop.claims is None or directory is None:
        raise CorruptionError("only the local store may change its bucket")
    return shop.claims.committer(_DamagedPartition(shop.access, meta, partition, {}))


class _DamagedPartition(PartitionHandle):
    """A partition without a writer, and with segments that may be damaged."""

    __slots__ = ()

    def local(self) -> LocalSegments:
        """Open the segments that are sound; the newest one must be: its end decides whether the bucket is ahead."""
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
    shop: Workshop,
    cold: PartitionManifest,
    meta: TopicMeta,
    segments: tuple[SegmentCheck, ...],
    *,
    publish: bool,
) -> Repair:
    """Plan a lost head from the objects, and publish it if that was asked for by name.

    Raises
    ------
    CorruptionError
        The objects leave a gap, or belong to another lineage than this disk.
    Fenced, ConfigError
        The bucket is not this store's any more.
    ColdStorageError
    """
    where = cold.where(cold.keys.head)
    directory = shop.access.directory(meta.name, cold.partition)
    if directory is None or shop.store_id is None or shop.claims is None:
        raise CorruptionError("only the local store may change its bucket")
    # A head of this disk's lineage would fence a store that was restored elsewhere since.
    shop.claims.store.check_owner()
    start = _start_offset(directory)
    created_us = next((look.header.created_us for look in segments if look.header is not None), shop.clock())
    planned = plan_rebuild(
        cold,
        store_id=shop.store_id,
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
    warning = "what retention or delete_before removed after the last seal may reappear"
    if len(head.lineages) > 1:
        warning += "; of the restores before, it says no more than the objects that are left"
    if not segments:
        warning += f"; no file here tells whether the log went on after offset {head.end_offset}"
    if not publish:
        return Repair(
            where, f"would publish {action}", "proposed", f"{warning}; add --rebuild-manifest to do it"
        )
    _forget_orphans(shop, meta, cold.partition)
    kept = publish_rebuilt(cold, head, shop.clock)
    return Repair(where, f"published {action}", "done", warning, kept)


def _start_offset(directory: Path) -> int | None:
    """Return where the log begins; None where the disk cannot say, which is made good by the manifest then."""
    try:
        return read_start_offset(directory)
    except CorruptionError:
        return None


def _check_start(head: Head, start: int | None, segments: tuple[SegmentCheck, ...]) -> None:
    """Raise where a manifest would move the start of the log up: the next pass deletes what lies before it."""
    begins = start if start is not None else min((look.name.base_offset for look in segments), default=0)
    if head.start_offset > begins:
        raise CorruptionError(
            f"offsets {begins} to {head.start_offset} are in no object; delete_before({head.start_offset}) gives them up"
        )


def _check_end(head: Head, segments: tuple[SegmentCheck, ...]) -> None:
    """Raise where a manifest would end before what files here prove: a restore from it would use offsets again."""
    cursor = head.end_offset
    for look in segments:
        base = look.name.base_offset
        if base > cursor:
            raise CorruptionError(
                f"offsets {cursor} to {base} are in no object and in no local file; put the object back, or "
                f"delete_before({base}) gives up all before it"
            )
        cursor = max(cursor, look.end_offset)


def _forget_orphans(shop: Workshop, meta: TopicMeta, partition: int) -> None:
    """Let the sweep's grace count anew: what it knew as an orphan may be named from now on, and be one again later."""
    directory = shop.access.directory(meta.name, partition)
    assert directory is not None
    write_marks(shop.fs, directory, {})


def _check_lineage(
    entries: tuple[ObjectEntry, ...], end_offset: int, segments: tuple[SegmentCheck, ...]
) -> None:
    """Raise where the objects show that another host went on with the log."""
    if segments and not segments[-1].damaged and end_offset > segments[-1].end_offset:
        raise CorruptionError(
            f"the objects reach to offset {end_offset}, this disk to {segments[-1].end_offset}"
        )
    for look in segments:
        for entry in entries:
            overlap = entry.base_offset < look.end_offset and look.name.base_offset < entry.end_offset
            if overlap and look.header is not None and look.header.segment_id not in entry.segment_ids:
                raise CorruptionError(
                    f"{entry.name} holds offsets of {look.path.name}, and is of another segment"
                )


def repair_page(shop: Workshop, cold: PartitionManifest, meta: TopicMeta, name: str) -> Repair:
    """Make a damaged page again from its objects.

    Raises
    ------
    CorruptionError, Fenced, ColdStorageError
    """
    where = cold.where(cold.keys.page(name))
    loaded = cold.load()
    ref = next((ref for ref in loaded.head.pages if ref.name == name), None) if loaded is not None else None
    if ref is None:
        raise CorruptionError("the manifest does not name it any more", where=where)
    _forget_orphans(shop, meta, cold.partition)
    fresh = rebuild_page(committer_of(shop, meta, cold.partition), ref)
    return Repair(where, f"made again from {fresh.count} objects as {fresh.name}", "done", kept=where)


def upload_again(
    shop: Workshop,
    cold: PartitionManifest,
    meta: TopicMeta,
    entry: ObjectEntry,
    segments: tuple[SegmentCheck, ...],
) -> Repair:
    """Upload a damaged or missing object again from what the disk has of it, under a new name, and publish it.

    That is the sound local segment or, where it was evicted, the copy that a rule or a pin had made of the object.

    Raises
    ------
    CorruptionError
        The disk has neither, or nothing better.
    Fenced, ColdStorageError
    """
    where = cold.where(cold.keys.data(entry.name))
    looks = _sources(entry, segments)
    if not looks:
        return _upload_copy(shop, cold, meta, entry)
    ends = frozenset({entry.end_offset} if entry.end_hash else ())
    again = [_look_again(look, newest=look is segments[-1], ends=ends) for look in looks]
    facts = [_facts(again[0], entry)] if len(again) == 1 else [_sealed_facts(look) for look in again]
    if entry.sealed and entry.origin_hash != facts[-1].origin_hash:
        raise CorruptionError(f"{looks[-1].path} is not the segment that was uploaded", where=where)
    if len(again) == 1 and again[0].end_offset < entry.end_offset:
        raise CorruptionError(f"{looks[0].path} is no better", where=where)
    committer = committer_of(shop, meta, cold.partition)
    names = [committer.new_object_name(item.base_offset) for item in facts]
    try:
        fresh = [
            _upload(cold, meta, look, item, name, sealed=entry.sealed)
            for look, item, name in zip(looks, facts, names, strict=True)
        ]
    except BaseException:
        committer.release(names)
        raise
    schemas = {i: schema_to_text(item) for i, item in enumerate(meta.schemas)}
    committer.publish_objects(fresh, schemas)
    source = ", ".join(look.path.name for look in looks)
    return Repair(where, f"uploaded again as {', '.join(names)} from {source}", "done", kept=where)


def _upload_copy(shop: Workshop, cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry) -> Repair:
    root = shop.access.locations.root
    assert root is not None
    where = cold.where(cold.keys.data(entry.name))
    copies = PartitionManifest(FileStore(root / COPIES_DIRECTORY), meta.name, meta.topic_id, cold.partition)
    try:
        copies.store.stat(cold.keys.data(entry.name))
    except ObjectNotFound:
        raise CorruptionError("the disk does not have its records any more", where=where) from None
    committer = committer_of(shop, meta, cold.partition)
    name = committer.new_object_name(entry.base_offset)
    try:
        fresh = copy_object(copies, entry, name, cold.store, "")
    except BaseException:
        committer.release([name])
        raise
    committer.publish_objects([fresh])
    return Repair(where, f"uploaded again as {name} from its local copy", "done", kept=where)


def _sources(entry: ObjectEntry, segments: tuple[SegmentCheck, ...]) -> list[SegmentCheck]:
    """Return the local segments of which an object holds the records; none unless all of them are here."""
    looks = [
        look for look in segments if look.header is not None and look.header.segment_id in entry.segment_ids
    ]
    if len(entry.segment_ids) == 1:
        return looks[:1]
    edges = [(look.name.base_offset, look.end_offset) for look in looks]
    whole = bool(edges) and (edges[0][0], edges[-1][1]) == (entry.base_offset, entry.end_offset)
    return looks if whole and all(a[1] == b[0] for a, b in pairwise(edges)) else []


def _look_again(look: SegmentCheck, *, newest: bool, ends: frozenset[int]) -> SegmentCheck:
    notes = Notes()
    again = check_segment(look.path, newest=newest, end_hint=None, deep=True, notes=notes, ends=ends)
    if notes.problems or again.header is None:
        raise CorruptionError(f"{look.path} is no better")
    return again


def _sealed_facts(look: SegmentCheck) -> SegmentFacts:
    if look.footer is None:
        raise CorruptionError(f"{look.path} is not the segment that was uploaded")
    return look.footer.facts


def _upload(
    cold: PartitionManifest,
    meta: TopicMeta,
    look: SegmentCheck,
    facts: SegmentFacts,
    name: str,
    *,
    sealed: bool,
) -> ObjectEntry:
    schema = meta.schemas[facts.schema_id]
    with cold.store.upload(cold.keys.data(name)) as upload:
        rows = segment_rows(SegmentFile.open(look.path), schema, facts.base_offset, facts.end_offset)
        return write_object(upload, object_schema(schema), rows, facts, name=name, sealed=sealed)


def _facts(look: SegmentCheck, entry: ObjectEntry) -> SegmentFacts:
    header = look.header
    assert header is not None
    if entry.sealed:
        return _sealed_facts(look)
    if header.generation == 0 and look.hashes.get(entry.end_offset, entry.end_hash) != entry.end_hash:
        raise CorruptionError(f"{look.path} is not the segment that was uploaded")
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
        producers=_producers(look, header, entry.end_offset),
        end_hash=entry.end_hash,
    )


def _producers(look: SegmentCheck, header: SegmentHeader, end_offset: int) -> tuple[ProducerState, ...]:
    """Return which producers were known at an offset of the segment; re-encoded blocks name none, the footer all."""
    if header.generation and look.footer is not None:
        return states_before(look.footer.facts.producers, end_offset)
    return walk_blocks(look.path, producers_end=end_offset).producers
