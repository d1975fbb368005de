"""The snapshot of one partition: its offsets, and the tier of each (promise P8).

A snapshot surveys the newest tier first: the end of the hot tier, then the local directory, then the bucket's head.
Records move towards colder tiers only, so a record that moves meanwhile is found in a later tier.
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
from .splits import ColdExtent, Extent, HotSource, Split, Tier, WarmSource, resolve
from .tiers import Tiers

_LISTING_ATTEMPTS = 10
_SURVEYS_MAX = 3


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """The log ``[start_offset, end_offset)`` of one partition at one moment, and the splits of the wanted range.

    Attributes
    ----------
    committed_us
        If the end offset is from the manifest: the time of its last commit. Later records are not known.
        None if the local tiers know the end.
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
    """Take a snapshot; the bucket is read only for records that the local tiers lack.

    With a local store and a given start, the last head that this process read is used if it names all records that the
    local tiers lack: objects below its end may be replaced and deleted, but never change.

    Parameters
    ----------
    view
        The active end as the writer in this process sees it; None in other processes.
    start_offset, end_offset
        The wanted range; None for the log's own bounds. An end beyond the log is reduced to the log's end.
    fresh
        Read a new head, since an object of the last one is gone.

    Raises
    ------
    OffsetOutOfRange
        The range begins before the log.
    TopicNotFound
        The topic was deleted.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    for _ in range(_SURVEYS_MAX):
        survey = _survey(access, meta, partition, view, start_offset, end_offset, fresh=fresh)
        if start_offset is not None and start_offset < survey.start_offset:
            raise OffsetOutOfRange(
                f"offset {start_offset} of topic {meta.name!r} partition {partition} is gone; the log has "
                f"{survey.start_offset} to {survey.end_offset}",
                start=survey.start_offset,
                end=survey.end_offset,
            )
        wanted = survey.start_offset if start_offset is None else start_offset
        last = _least(end_offset, survey.end_offset)
        # A directory that changes while it is listed can hide a file, so a gap leads to another survey.
        if not _has_gap((*survey.hot, *survey.warm, *survey.cold), wanted, last):
            break
    splits = (
        resolve(meta.name, partition, wanted, last, (survey.hot, survey.warm, survey.cold))
        if wanted < last
        else []
    )
    return PartitionSnapshot(
        partition, survey.start_offset, survey.end_offset, tuple(splits), survey.committed_us
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    """The bounds of the log, and each tier's extents of the wanted range; see `PartitionSnapshot`."""

    start_offset: int
    end_offset: int
    hot: list[Extent]
    warm: list[Extent]
    cold: list[ColdExtent]
    committed_us: int | None = None


def _survey(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    view: HotView | None,
    start: int | None,
    end: int | None,
    *,
    fresh: bool,
) -> _Survey:
    """Survey each tier once, newest first."""
    local = _local_extents(access, meta, partition, view, start or 0, end)
    log_start, log_end = local.start_offset, local.end_offset
    cold: list[ColdExtent] = []
    committed_us: int | None = None
    wanted = max(log_start, start or 0)
    if log_end is None or _has_gap((*local.hot, *local.warm), wanted, _least(end, log_end)):
        directory = access.directory(meta.name, partition)
        if directory is not None:
            # Records that expired since the view was taken are no gap: the start offset rises before files are deleted.
            log_start = max(log_start, read_start_offset(directory))
        manifest = access.cold(meta, partition) if access.has_cold else None
        if manifest is not None:
            published = None
            if directory is not None and start is not None and log_end is not None and not fresh:
                published = _try_recent_head(
                    manifest, directory, local, log_start, start, _least(end, log_end)
                )
            published = published or _read_published(manifest, directory, log_start, log_end, start, end)
            if published.committed_us is None and directory is None:
                _check_not_deleted(access, meta)
            log_start, log_end, cold = published.start_offset, published.end_offset, published.cold
            committed_us = published.committed_us
    return _Survey(log_start, max(log_start, log_end or 0), local.hot, local.warm, cold, committed_us)


@dataclass(frozen=True, slots=True)
class _Published:
    """The bounds of the log as corrected by the bucket, and the bucket's extents of the wanted range."""

    start_offset: int
    end_offset: int | None
    cold: list[ColdExtent]
    committed_us: int | None = None


def _try_recent_head(
    manifest: PartitionManifest, directory: Path, local: _Local, log_start: int, start: int, end: int
) -> _Published | None:
    """Return the extents that the last read head names of a range, if these and the local ones leave no gap."""
    loaded = manifest.recent_head
    if loaded is None:
        return None
    try:
        published = _published_by(manifest, loaded.head, directory, log_start, local.end_offset, start, end)
    except ObjectNotFound:
        return None
    whole = not _has_gap((*local.hot, *local.warm, *published.cold), start, end)
    return published if whole and published.start_offset <= start else None


def _read_published(
    manifest: PartitionManifest,
    directory: Path | None,
    log_start: int,
    log_end: int | None,
    start: int | None,
    end: int | None,
) -> _Published:
    """Read the head, and return the extents that it names of a range."""
    loaded = manifest.load()
    if loaded is None and directory is None:
        # Without local files, a lost head would look like an empty log.
        loaded = manifest.check_unpublished()
    for _ in range(_SURVEYS_MAX):
        if loaded is None:
            return _Published(log_start, log_end, [])
        try:
            return _published_by(manifest, loaded.head, directory, log_start, log_end, start, end)
        except ObjectNotFound as missing:
            # A page is gone: it was replaced since the head was read, or it is lost.
            before, loaded = loaded, manifest.load()
            lost = missing
            if loaded is not None and loaded.head.commit_id == before.head.commit_id:
                break
    raise lost


def _published_by(
    manifest: PartitionManifest,
    head: Head,
    directory: Path | None,
    log_start: int,
    log_end: int | None,
    start: int | None,
    end: int | None,
) -> _Published:
    """Return the extents that a head names of a range."""
    lineage_end = _end_of_lineage(head, directory)
    log_start = max(log_start, min(head.start_offset, lineage_end))
    committed_us = head.committed_us if log_end is None else None
    log_end = lineage_end if log_end is None else log_end
    wanted = max(log_start, start or 0), min(_least(end, log_end), lineage_end)
    folder = manifest.keys.data_prefix
    cold = [ColdExtent.of(folder, page, rows) for page, rows in manifest.rows(head, *wanted) if rows]
    return _Published(log_start, log_end, cold, committed_us)


def published_extents(
    access: Tiers, meta: TopicMeta, partition: int, start_offset: int, end_offset: int
) -> list[Extent]:
    """Return the bucket's extents of a range, one for each object, including those that the local tiers have, too.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    if not access.has_cold:
        return []
    directory = access.directory(meta.name, partition)
    manifest = access.cold(meta, partition)
    published = _read_published(manifest, directory, start_offset, end_offset, start_offset, end_offset)
    return [
        Extent(split.start_offset, split.end_offset, split.bytes, split.tier, split.source)
        for extent in published.cold
        for split in extent.splits(meta.name, partition, extent.start_offset, extent.end_offset)
    ]


def published_end(head: Head, lineage_epoch: int) -> int:
    """Return the end of a lineage's records in the bucket: where the next lineage begins, if there is one."""
    later = [start for epoch, start in head.lineages if epoch > lineage_epoch]
    return min([head.end_offset, *later])


def _end_of_lineage(head: Head, directory: Path | None) -> int:
    """Return the published end of this disk's lineage; records and retention of a later lineage do not concern it."""
    if directory is None or len(head.lineages) == 1:
        return head.end_offset
    return published_end(head, read_lineage(directory) or FIRST_LINEAGE)


def _least(first: int | None, second: int | None) -> int:
    given = [value for value in (first, second) if value is not None]
    return min(given) if given else 1 << 62


@dataclass(frozen=True, slots=True)
class _Local:
    """The extents of the local tiers; ``end_offset`` is None if they do not know the end."""

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
        sealed = access.sealed_segment(directory, start, end)
        if sealed is not None:
            check_identity(sealed, meta)
            return _Local(view.start_offset, view.end_offset, [], [_warm_extent(sealed, sealed.end_offset)])
    for _ in range(_LISTING_ATTEMPTS):
        names = access.list_segments(directory)
        if not names:
            _check_not_deleted(access, meta)
        try:
            if view is not None:
                return _with_view(access, directory, names, view, meta, start, end)
            return _without_writer(access, directory, names, meta, start, end)
        except FileNotFoundError:
            continue  # the newest segment was sealed and re-encoded since it was listed
        except CorruptionError:
            _check_not_deleted(access, meta)
            raise
    raise CorruptionError("segment files keep vanishing while they are opened", where=str(directory))


def _check_not_deleted(access: Tiers, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` if the topic was deleted; its log would look empty, or like that of a new topic."""
    if access.locations.root is not None:
        check_not_deleted(access.locations.root, meta)
        return
    cold = StoreDocuments(access.object_store).read_topic(meta.name, meta.topic_id)
    if cold is not None and DELETED in cold:
        raise TopicNotFound(f"topic {meta.name!r} was deleted")


def _with_view(
    access: Tiers, directory: Path, names: tuple[SegmentName, ...], view: HotView, meta: TopicMeta,
    start: int, end: int | None,
) -> _Local:  # fmt: skip
    active = access.active_segment(view)
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
    check_identity(newest, meta)
    bounds = [name.base_offset for name in names[1:]]
    warm = _sealed_extents(access, directory, names[:-1], bounds, meta, max(start, log_start), end)
    if newest.end_offset > newest.header.base_offset:
        warm.append(_warm_extent(newest, newest.end_offset))
    return _Local(log_start, newest.end_offset, [], warm)


def _sealed_extents(
    access: Tiers, directory: Path, names: tuple[SegmentName, ...] | list[SegmentName], bounds: list[int],
    meta: TopicMeta, start: int, end: int | None,
) -> list[Extent]:  # fmt: skip
    """Open the sealed segments that may overlap the range; each ends at or before its bound."""
    extents = []
    for name, bound in zip(names, bounds, strict=True):
        if bound <= start or (end is not None and name.base_offset >= end):
            continue
        opened = open_listed(access, directory, name)
        if opened is None:
            continue
        check_identity(opened, meta)
        if opened.facts is None:
            raise CorruptionError(
                "segment has no footer, yet it is not the newest", where=str(opened.path),
                offsets=(name.base_offset, bound),
            )  # fmt: skip
        if opened.end_offset > name.base_offset:
            extents.append(_warm_extent(opened, opened.end_offset))
    return extents


def open_listed(access: Tiers, directory: Path, name: SegmentName) -> SegmentFile | None:
    """Open a segment, or the re-encoded file that replaced it; None if it was evicted or has expired since."""
    for _ in range(_LISTING_ATTEMPTS):
        try:
            return access.segment(f"{directory}/{name}")
        except FileNotFoundError:
            current = [
                other for other in list_segments(directory).segments if other.base_offset == name.base_offset
            ]
            if not current:
                return None
            name = current[0]
    raise CorruptionError(
        "a segment file keeps vanishing while it is opened", where=str(directory / str(name))
    )


def check_identity(opened: SegmentFile, meta: TopicMeta) -> None:
    """Raise `CorruptionError` if a file is not the segment that its path names."""
    if opened.header.topic_id != meta.topic_id:
        raise CorruptionError("segment of another topic", where=str(opened.path), position=0)
    if not opened.matches_path:
        raise CorruptionError("another segment than its path says", where=str(opened.path), position=0)


def _warm_extent(opened: SegmentFile, end_offset: int) -> Extent:
    source = WarmSource(str(opened.path), opened.header.segment_id, opened)
    return Extent(opened.header.base_offset, end_offset, opened.bytes, Tier.WARM, source)


def _hot_extents(blocks: tuple[RecentBlock, ...], end_offset: int, meta: TopicMeta) -> list[Extent]:
    """Return one extent of consecutive blocks; none without blocks."""
    if not blocks:
        return []
    size, source = sum(block.bytes for block in blocks), HotSource(blocks, meta.schema_id)
    end = min(blocks[-1].end_offset, end_offset)
    return [Extent(blocks[0].base_offset, end, size, Tier.HOT, source)]


def _has_gap(extents: tuple[Extent | ColdExtent, ...], start: int, end: int) -> bool:
    """Whether a part of ``[start, end)`` is in no extent."""
    cursor = start
    for extent in sorted(extents, key=lambda extent: extent.start_offset):
        if extent.start_offset > cursor:
            break
        cursor = max(cursor, extent.end_offset)
    return cursor < end
