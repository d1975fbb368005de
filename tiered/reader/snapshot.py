"""Take a snapshot of one partition: which offsets it has, and where each of them lies (promise P8).

The order is newest first: the end of the hot tier, then the local directory, the bucket's head last. What
moves tier meanwhile moves towards the colder end, so it is found by the later look.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..cold.manifest.commit import FIRST_LINEAGE
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..errors import CorruptionError, ObjectNotFound, OffsetOutOfRange, TopicNotFound
from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..hot.recent_blocks import RecentBlock, overlapping
from ..hot.view import HotView
from ..warm.catalog import check_not_deleted
from ..warm.partition_directory import SegmentName, list_segments, read_lineage, read_start_offset
from ..warm.segment_reader import SegmentFile
from .splits import ColdSource, Extent, HotSource, Split, Tier, WarmSource, resolve
from .tiers import Tiers

_LISTING_ATTEMPTS = 10
_LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """The log ``[start_offset, end_offset)`` of one partition at one moment, and the splits wanted of it.

    Attributes
    ----------
    committed_us
        When the manifest was last published that the end offset was taken from: what is newer is not known.
        None where the local tiers know the end.
    """

    partition: int
    start_offset: int
    end_offset: int
    splits: tuple[Split, ...]
    committed_us: int | None = None


def snapshot_partition(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    *,
    view: HotView | None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    fresh: bool = False,
) -> PartitionSnapshot:
    """Take a snapshot; the bucket is asked only for what the local tiers do not have.

    Beside a local store, a range whose start is given is looked up in the head as this process last read it, where
    that names all of it: objects below its end are replaced and deleted, but never changed.

    Parameters
    ----------
    view
        The active end as the writer in this process sees it; None in other processes.
    start_offset, end_offset
        The range wanted; None for the log's own bounds. An end beyond the log's is cut to it.
    fresh
        Read the head again, as something that it named is gone.

    Raises
    ------
    OffsetOutOfRange
        The range begins before the log does.
    TopicNotFound
        The topic was deleted.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    for _ in range(_LOOKS_MAX):
        found = _look(access, meta, partition, view, start_offset, end_offset, fresh=fresh)
        if start_offset is not None and start_offset < found.start_offset:
            raise OffsetOutOfRange(
                f"offset {start_offset} of topic {meta.name!r} partition {partition} is gone; the log has "
                f"{found.start_offset} to {found.end_offset}",
                start=found.start_offset,
                end=found.end_offset,
            )
        wanted = found.start_offset if start_offset is None else start_offset
        last = _least(end_offset, found.end_offset)
        # A directory that changes while it is listed can hide a file, so a hole is looked at again.
        if not _uncovered((*found.hot, *found.warm, *found.cold), wanted, last):
            break
    splits = (
        resolve(meta.name, partition, wanted, last, (found.hot, found.warm, found.cold))
        if wanted < last
        else []
    )
    return PartitionSnapshot(
        partition, found.start_offset, found.end_offset, tuple(splits), found.committed_us
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What every tier holds of the wanted range, and the bounds of the log; see `PartitionSnapshot`."""

    start_offset: int
    end_offset: int
    hot: list[Extent]
    warm: list[Extent]
    cold: list[Extent]
    committed_us: int | None = None


def _look(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    view: HotView | None,
    start: int | None,
    end: int | None,
    *,
    fresh: bool,
) -> _Found:
    """Look at each tier once, newest first."""
    local = _local_extents(access, meta, partition, view, start or 0, end)
    log_start, log_end = local.start_offset, local.end_offset
    cold: list[Extent] = []
    committed_us: int | None = None
    wanted = max(log_start, start or 0)
    if log_end is None or _uncovered((*local.hot, *local.warm), wanted, _least(end, log_end)):
        directory = access.directory(meta.name, partition)
        if directory is not None:
            # What was expired since the view was taken is no hole: the start offset moved before the files went.
            log_start = max(log_start, read_start_offset(directory))
        manifest = access.cold(meta, partition) if access.has_cold else None
        if manifest is not None:
            published = None
            if directory is not None and start is not None and log_end is not None and not fresh:
                published = _remembered(manifest, directory, local, log_start, start, _least(end, log_end))
            published = published or _published(manifest, directory, log_start, log_end, start, end)
            if published.committed_us is None and directory is None:
                _check_not_deleted(access, meta)
            log_start, log_end, cold = published.start_offset, published.end_offset, published.cold
            committed_us = published.committed_us
    return _Found(log_start, max(log_start, log_end or 0), local.hot, local.warm, cold, committed_us)


@dataclass(frozen=True, slots=True)
class _Published:
    """The bounds of the log as the bucket corrects them, and what it has of the wanted range."""

    start_offset: int
    end_offset: int | None
    cold: list[Extent]
    committed_us: int | None = None


def _remembered(
    manifest: PartitionManifest, directory: Path, local: _Local, log_start: int, start: int, end: int
) -> _Published | None:
    """Return what the head as it was last read has of a range, if that is all that the local tiers lack."""
    loaded = manifest.remembered
    if loaded is None:
        return None
    try:
        found = _named(manifest, loaded.head, directory, log_start, local.end_offset, start, end)
    except ObjectNotFound:
        return None
    whole = not _uncovered((*local.hot, *local.warm, *found.cold), start, end)
    return found if whole and found.start_offset <= start else None


def _published(
    manifest: PartitionManifest,
    directory: Path | None,
    log_start: int,
    log_end: int | None,
    start: int | None,
    end: int | None,
) -> _Published:
    """Return what the head of this moment has of a range."""
    loaded = manifest.load()
    if loaded is None and directory is None:
        # Elsewhere the local files show that something is missing; here it would look like an empty log.
        loaded = manifest.check_unpublished()
    for _ in range(_LOOKS_MAX):
        if loaded is None:
            return _Published(log_start, log_end, [])
        try:
            return _named(manifest, loaded.head, directory, log_start, log_end, start, end)
        except ObjectNotFound as missing:
            # A page is gone: another took its place since the head was read, or it is lost.
            before, loaded = loaded, manifest.load()
            lost = missing
            if loaded is not None and loaded.head.commit_id == before.head.commit_id:
                break
    raise lost


def _named(
    manifest: PartitionManifest,
    head: Head,
    directory: Path | None,
    log_start: int,
    log_end: int | None,
    start: int | None,
    end: int | None,
) -> _Published:
    """Return what a head names of a range."""
    ours = _end_of_lineage(head, directory)
    log_start = max(log_start, min(head.start_offset, ours))
    committed_us = head.committed_us if log_end is None else None
    log_end = ours if log_end is None else log_end
    entries = manifest.entries(head, max(log_start, start or 0), min(_least(end, log_end), ours))
    cold = [
        Extent(entry.base_offset, entry.end_offset, entry.bytes, Tier.COLD,
               ColdSource(manifest.keys.data(entry.name), entry))
        for entry in entries
    ]  # fmt: skip
    return _Published(log_start, log_end, cold, committed_us)


def published_extents(
    access: Tiers, meta: TopicMeta, partition: int, start_offset: int, end_offset: int
) -> list[Extent]:
    """Return what the bucket has of a range, also of what the local tiers have; in offset order.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    if not access.has_cold:
        return []
    directory = access.directory(meta.name, partition)
    manifest = access.cold(meta, partition)
    return _published(manifest, directory, start_offset, end_offset, start_offset, end_offset).cold


def published_end(head: Head, lineage_epoch: int) -> int:
    """Return the end of what the bucket has of a lineage: where the next one begins, if there is one."""
    later = [start for epoch, start in head.lineages if epoch > lineage_epoch]
    return min([head.end_offset, *later])


def _end_of_lineage(head: Head, directory: Path | None) -> int:
    """Return the end of what is this disk's log too: a later lineage's records and retention are not."""
    if directory is None or len(head.lineages) == 1:
        return head.end_offset
    return published_end(head, read_lineage(directory) or FIRST_LINEAGE)


def _least(first: int | None, second: int | None) -> int:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else 1 << 62


@dataclass(frozen=True, slots=True)
class _Local:
    """What the local tiers hold; ``end_offset`` is None where they do not know it."""

    start_offset: int
    end_offset: int | None
    hot: list[Extent]
    warm: list[Extent]


def _local_extents(
    access: Tiers, meta: TopicMeta, partition: int, view: HotView | None, start: int, end: int | None
) -> _Local:
    directory = access.directory(meta.name, partition)
    if directory is None:
        return _Local(0, None, [], [])
    if (
        view is not None
        and end is not None
        and view.start_offset <= start < end <= view.active_header.base_offset
    ):
        known = access.sealed_segment(directory, start, end)
        if known is not None:
            check_owner(known, meta)
            return _Local(view.start_offset, view.end_offset, [], [_warm_extent(known, known.end_offset)])
    for _ in range(_LISTING_ATTEMPTS):
        names = access.list_segments(directory)
        if not names:
            _check_not_deleted(access, meta)
        try:
            if view is not None:
                return _with_view(access, directory, names, view, meta, start, end)
            return _without_writer(access, directory, names, meta, start, end)
        except FileNotFoundError:
            continue  # the newest file was rolled and re-encoded since it was listed
        except CorruptionError:
            _check_not_deleted(access, meta)
            raise
    raise CorruptionError("segment files keep vanishing while they are opened", where=str(directory))


def _check_not_deleted(access: Tiers, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` where a topic is gone, whose log would look empty or like another's."""
    if access.places.root is not None:
        check_not_deleted(access.places.root, meta)
        return
    cold = StoreDocuments(access.object_store).read_topic(meta.name, meta.topic_id)
    if cold is not None and DELETED in cold:
        raise TopicNotFound(f"topic {meta.name!r} was deleted")


def _with_view(
    access: Tiers, directory: Path, names: tuple[SegmentName, ...], view: HotView, meta: TopicMeta,
    start: int, end: int | None,
) -> _Local:  # fmt: skip
    active = SegmentFile.of_writer(
        view.active, view.active_header, view.active_index, view.end_offset, use_mmap=access.places.use_mmap
    )
    sealed = [name for name in names if name.base_offset < view.active_header.base_offset]
    bounds = [name.base_offset for name in [*sealed, SegmentName(view.active_header.base_offset, 0)][1:]]
    warm = _sealed_extents(access, directory, sealed, bounds, meta, max(start, view.start_offset), end)
    if view.end_offset > view.active_header.base_offset:
        warm.append(_warm_extent(active, view.end_offset))
    recent = overlapping(view.recent, start, _least(end, view.end_offset))
    return _Local(view.start_offset, view.end_offset, _hot_extents(recent, view.end_offset, meta), warm)


def _without_writer(
    access: Tiers,
    directory: Path,
    names: tuple[SegmentName, ...],
    meta: TopicMeta,
    start: int,
    end: int | None,
) -> _Local:
    log_start = read_start_offset(directory)
    if not names:
        return _Local(log_start, None, [], [])
    newest = access.segment(directory / str(names[-1]))
    check_owner(newest, meta)
    bounds = [name.base_offset for name in names[1:]]
    warm = _sealed_extents(access, directory, names[:-1], bounds, meta, max(start, log_start), end)
    if newest.end_offset > newest.header.base_offset:
        warm.append(_warm_extent(newest, newest.end_offset))
    return _Local(log_start, newest.end_offset, [], warm)


def _sealed_extents(
    access: Tiers, directory: Path, names: tuple[SegmentName, ...] | list[SegmentName], bounds: list[int],
    meta: TopicMeta, start: int, end: int | None,
) -> list[Extent]:  # fmt: skip
    """Open the sealed segments that can overlap the range; a segment ends at or before its bound."""
    extents = []
    for name, bound in zip(names, bounds, strict=True):
        if bound <= start or (end is not None and name.base_offset >= end):
            continue
        opened = open_listed(access, directory, name)
        if opened is None:
            continue
        check_owner(opened, meta)
        if opened.facts is None:
            raise CorruptionError(
                "segment has no footer, yet it is not the newest", where=str(opened.path),
                offsets=(name.base_offset, bound),
            )  # fmt: skip
        if opened.end_offset > name.base_offset:
            extents.append(_warm_extent(opened, opened.end_offset))
    return extents


def open_listed(access: Tiers, directory: Path, name: SegmentName) -> SegmentFile | None:
    """Open a segment, or the re-encoded file in its place; None where it was evicted or expired since."""
    for _ in range(_LISTING_ATTEMPTS):
        try:
            return access.segment(f"{directory}/{name}")
        except FileNotFoundError:
            current = [
                item for item in list_segments(directory).segments if item.base_offset == name.base_offset
            ]
            if not current:
                return None
            name = current[0]
    raise CorruptionError(
        "a segment file keeps vanishing while it is opened", where=str(directory / str(name))
    )


def check_owner(opened: SegmentFile, meta: TopicMeta) -> None:
    """Raise `CorruptionError` where a file is not the segment that its place says it is."""
    if opened.header.topic_id != meta.topic_id:
        raise CorruptionError("segment of another topic", where=str(opened.path), position=0)
    if not opened.is_in_its_place:
        raise CorruptionError("another segment than its place says", where=str(opened.path), position=0)


def _warm_extent(opened: SegmentFile, end_offset: int) -> Extent:
    source = WarmSource(str(opened.path), opened.header.segment_id, opened)
    return Extent(opened.header.base_offset, end_offset, opened.bytes, Tier.WARM, source)


def _hot_extents(blocks: tuple[RecentBlock, ...], end_offset: int, meta: TopicMeta) -> list[Extent]:
    """Return one extent of blocks, which lie end to end; none where there is no block."""
    if not blocks:
        return []
    size, source = sum(block.bytes for block in blocks), HotSource(blocks, meta.schema_id)
    end = min(blocks[-1].end_offset, end_offset)
    return [Extent(blocks[0].base_offset, end, size, Tier.HOT, source)]


def _uncovered(extents: tuple[Extent, ...], start: int, end: int) -> bool:
    """Whether the extents lack a part of ``[start, end)``."""
    cursor = start
    for extent in sorted(extents, key=lambda item: item.start_offset):
        if extent.start_offset > cursor:
            break
        cursor = max(cursor, extent.end_offset)
    return cursor < end
