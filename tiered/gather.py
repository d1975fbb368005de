"""Gather the facts that a plan is made from: the local directory and the published manifest, looked at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from .format.codec import Codec
from .format.manifest import Head, ObjectEntry, covers
from .hot.partition_writer import HotView, PartitionWriter
from .policies.facts import ColdObjectFact, PartitionFacts, SegmentFact
from .reader.access import TierAccess
from .reader.snapshot import open_listed
from .warm.catalog import TopicMeta
from .warm.directory import list_segments, read_start_offset
from .warm.segment_reader import SegmentFile


@dataclass(frozen=True, slots=True)
class Published:
    """What the bucket has of one partition; no head where nothing was ever published."""

    head: Head | None
    entries: tuple[ObjectEntry, ...]


@dataclass(frozen=True, slots=True)
class LocalSegments:
    """What the disk has of one partition, in offset order; the last one is the newest file."""

    start_offset: int
    segments: tuple[SegmentFile, ...]


def read_published(access: TierAccess, meta: TopicMeta, partition: int) -> Published:
    """Read the head and every page of a partition.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    if not access.has_cold:
        return Published(None, ())
    cold = access.cold(meta, partition)
    loaded = cold.load()
    if loaded is None:
        return Published(None, ())
    return Published(loaded.head, tuple(cold.entries(loaded.head)))


def local_segments(access: TierAccess, directory: Path, writer: PartitionWriter | None) -> LocalSegments:
    """Open every segment of a partition; the active one as its writer in this process knows it."""
    view = writer.view(flush=False) if writer is not None and writer.fault is None else None
    found = []
    for name in list_segments(directory).segments:
        if view is not None and directory / str(name) == view.active:
            found.append(_active(view))
        elif view is None or name.base_offset < view.active_header.base_offset:
            opened = open_listed(access, directory, name)
            if opened is not None:
                found.append(opened)
    return LocalSegments(read_start_offset(directory), tuple(found))


def _active(view: HotView) -> SegmentFile:
    return SegmentFile.of_writer(view.active, view.active_header, view.active_index, view.end_offset)


def partition_facts(
    meta: TopicMeta,
    partition: int,
    local: LocalSegments,
    published: Published,
    *,
    lineage_end: int | None = None,
) -> PartitionFacts:
    """Turn what was found into the facts of one partition. Pure, but for the first block header of each file.

    Parameters
    ----------
    lineage_end
        The end of what the bucket has of this disk's lineage: a later one's start offset counts up to there.
    """
    head = published.head
    cold_start = head.start_offset if head else 0
    if lineage_end is not None:
        cold_start = min(cold_start, lineage_end)
    segments = tuple(
        _segment_fact(meta, partition, item, published.entries, newest=item is local.segments[-1])
        for item in local.segments
    )
    here = {item.segment_id for item in segments}
    objects = tuple(
        ColdObjectFact(
            key=entry.name,
            segment_ids=entry.segment_ids,
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            bytes=entry.bytes,
            last_append_us=entry.last_append_us,
            max_timestamp_us=entry.max_timestamp_us,
            tail=not entry.sealed,
        )
        for entry in published.entries
        if not set(entry.segment_ids) <= here
    )
    start = max(local.start_offset, cold_start)
    end = local.segments[-1].end_offset if local.segments else (head.end_offset if head else start)
    appends = [item.last_append_us for item in segments] + [item.last_append_us for item in objects]
    return PartitionFacts(
        topic=meta.name,
        partition=partition,
        start_offset=start,
        end_offset=end,
        durable_offset=end,
        published_offset=head.end_offset if head else 0,
        segments=segments,
        cold_objects=objects,
        last_append_us=max(appends, default=0),
        tail_shipped_us=head.committed_us if head and published.entries else 0,
    )


def _segment_fact(
    meta: TopicMeta, partition: int, item: SegmentFile, entries: tuple[ObjectEntry, ...], *, newest: bool
) -> SegmentFact:
    facts, header, index = item.facts, item.header, item.index
    segment_id: UUID = header.segment_id
    own = [entry for entry in entries if segment_id in entry.segment_ids]
    sealed = facts is not None
    codec = _codec(item)
    size = item.bytes
    last_append_us = (
        facts.last_append_us if facts else (item.scan.last_append_us if item.scan else header.created_us)
    )
    return SegmentFact(
        topic=meta.name,
        partition=partition,
        segment_id=segment_id,
        base_offset=header.base_offset,
        end_offset=item.end_offset,
        record_count=facts.record_count if facts else item.end_offset - header.base_offset,
        local_bytes=size,
        cold_bytes=sum(entry.bytes for entry in own),
        generation=header.generation,
        codec=codec.name.lower(),
        sealed=sealed,
        newest=newest,
        in_manifest=sealed and covers(own, segment_id, header.base_offset, item.end_offset),
        created_us=header.created_us,
        last_append_us=last_append_us,
        max_timestamp_us=max(index.max_timestamps_us[i] for i in range(len(index))) if len(index) else 0,
        where=str(item.path),
        block_count=len(index),
        raw_bytes=size if codec is Codec.NONE else 0,
    )


def _codec(item: SegmentFile) -> Codec:
    for block in item.blocks(item.header.base_offset, item.header.base_offset + 1):
        return Codec(block.header.codec)
    return Codec.NONE
