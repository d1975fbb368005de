"""The reader of splits: the only code that turns stored records into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial

import pyarrow as pa

from ..errors import CorruptionError, ObjectNotFound, OffsetOutOfRange
from ..format.block import FLAG_OFFSETS, BlockHeader, beside
from ..format.predicate import Known
from ..format.row_filter import ALL_ROWS, RowFilter, range_statistics
from ..format.topic_meta import TopicMeta
from ..warm.filesystem import file_status
from ..warm.segment_reader import Block, SegmentFile
from .prefetch import SplitsAhead
from .rows import Query, RowAssembler, rows_only
from .snapshot import snapshot_partition
from .splits import HotSource, Split, Tier, WarmSource
from .tiers import Tiers

_MOVES_MAX = 8

Progress = tuple[int, pa.RecordBatch | None]
"""The offset up to which a source has been read, and the next rows."""


def read_splits(
    access: Tiers,
    meta: TopicMeta,
    splits: Sequence[Split],
    query: Query,
    *,
    check: Callable[[], None],
    eager: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of splits one after the other; records in the bucket are fetched ahead.

    Parameters
    ----------
    check
        Called before each batch. It raises if the store is closed, or belongs to the parent of a forked process, whose
        threads do not run here.
    eager
        Whether the caller probably reads all rows.

    Raises
    ------
    OffsetOutOfRange, CorruptionError, ColdStorageError
    """
    if splits:
        access.erasures.end(meta.topic_id, splits[0].partition)  # before anything is fetched ahead
    cold = any(split.tier is Tier.COLD for split in splits)
    with SplitsAhead(access.fetcher, meta, splits, query, eager=eager) if cold else nullcontext() as ahead:
        for split in splits:
            check()
            for batch in read_split(access, meta, split, query, ahead):
                yield batch
                check()


def read_split(
    access: Tiers, meta: TopicMeta, split: Split, query: Query, ahead: SplitsAhead | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows in offset order, in batches of a block or a part of a row group.

    If records moved to another tier since the split was planned, the read finds them there and goes on at the same
    offset.

    Raises
    ------
    OffsetOutOfRange
        Retention has removed records of the split.
    CorruptionError, ColdStorageError
    """
    assembler = RowAssembler(split.topic, split.partition, meta.schema, query)
    access.fetch_counters.add_split(split.tier.value)
    parts = [split]
    moves = 0
    while parts:
        part = parts.pop(0)
        reached = part.start_offset
        erased = access.erasures.end(meta.topic_id, part.partition)
        if reached < erased and isinstance(part.source, HotSource):
            # These blocks may have erased records, and the writer has written them all to its file.
            rest = [part.clip(erased, part.end_offset)] if erased < part.end_offset else []
            parts[:0] = [*_relocate(access, meta, part.clip(reached, erased)), *rest]
            continue
        try:
            if reached < erased:
                _check_exists(part.source)
            for reached, batch in _read_source(access, meta, part, query, assembler, ahead):  # noqa: B007
                if batch is not None and batch.num_rows:
                    yield batch
        except (FileNotFoundError, ObjectNotFound) as missing:
            moves += 1
            if moves > _MOVES_MAX:
                raise CorruptionError(
                    f"the records keep moving, or are gone: {missing}", offsets=(reached, part.end_offset)
                ) from missing
            parts[:0] = _relocate(access, meta, part.clip(reached, part.end_offset))


def _check_exists(source: object) -> None:
    """Raise `FileNotFoundError` for a file that is still open here, and was deleted."""
    if isinstance(source, WarmSource):
        file_status(source.path)


def _relocate(access: Tiers, meta: TopicMeta, part: Split) -> tuple[Split, ...]:
    """Return splits of the current locations of a split's records."""
    fresh = snapshot_partition(
        access,
        meta,
        part.partition,
        view=None,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
        fresh=True,
    )
    if fresh.end_offset < part.end_offset:
        raise OffsetOutOfRange(
            f"offsets {part.start_offset} to {part.end_offset} of topic {part.topic!r} partition {part.partition} "
            f"are gone; the log has {fresh.start_offset} to {fresh.end_offset}",
            start=fresh.start_offset,
            end=fresh.end_offset,
        )
    return fresh.splits


def _read_source(
    access: Tiers,
    meta: TopicMeta,
    split: Split,
    query: Query,
    assembler: RowAssembler,
    ahead: SplitsAhead | None,
) -> Iterator[Progress]:
    source = split.source
    if isinstance(source, HotSource):
        return _read_hot(split, source, assembler)
    if isinstance(source, WarmSource):
        return _read_warm(access, split, source, assembler)
    return _read_cold(access, meta, split, query, assembler, ahead)


def _read_hot(split: Split, source: HotSource, assembler: RowAssembler) -> Iterator[Progress]:
    for block in source.blocks:
        if block.end_offset <= split.start_offset or block.base_offset >= split.end_offset:
            continue
        batch = block.batch()
        yield (
            block.end_offset,
            assembler.dense(
                partial(_whole, batch),
                block.base_offset,
                batch.num_rows,
                split.start_offset,
                split.end_offset,
            ),
        )


def _whole(batch: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:  # noqa: ARG001 — the signature of `Load`
    return batch


def _read_warm(
    access: Tiers, split: Split, source: WarmSource, assembler: RowAssembler
) -> Iterator[Progress]:
    segment = source.opened or access.segment(source.path)
    if segment.header.segment_id != source.segment_id:
        raise FileNotFoundError(f"{source.path} is another segment now")
    names = (*segment.header.schema.names, "offset")
    bounds = split.start_offset, split.end_offset
    block_filter: RowFilter | None = assembler.filter
    filters = bool(block_filter)
    for block in segment.blocks(*bounds):
        header = block.header
        if filters:
            block_filter = assembler.filter.narrowed(_statistics(header))
            if block_filter is None:
                yield header.end_offset, None
                continue
        if header.flags & FLAG_OFFSETS:
            batch = assembler.sparse(_BlockColumns(segment, block, names), *bounds, block_filter)
        else:
            load = _BlockColumns(segment, block, names[:-1])
            batch = assembler.dense(load, header.base_offset, header.record_count, *bounds, block_filter)
        yield header.end_offset, batch


def _statistics(header: BlockHeader) -> Known:
    return range_statistics(
        header.base_offset, header.end_offset, header.min_timestamp_us, header.max_timestamp_us
    ).get


class _BlockColumns:
    """Decodes the columns of a block, each once."""

    def __init__(self, segment: SegmentFile, block: Block, stored: tuple[str, ...]) -> None:
        self._segment = segment
        self._block = block
        self._stored = stored
        self._batch: pa.RecordBatch | None = None

    def __call__(self, names: frozenset[str]) -> pa.RecordBatch:
        if self._batch is not None:
            names = names.difference(self._batch.schema.names)
        missing = _numbers(self._stored, names)
        if missing:
            # A chunk may have more columns than one.
            batch = self._segment.decode(self._block, missing)
            self._batch = batch if self._batch is None else beside((self._batch, batch))
        return rows_only(self._block.header.record_count) if self._batch is None else self._batch


@lru_cache(maxsize=256)
def _numbers(stored: tuple[str, ...], names: frozenset[str]) -> tuple[int, ...]:
    """Return the numbers of those stored columns that have one of the names."""
    return tuple(i for i, name in enumerate(stored) if name in names)


def _read_cold(
    access: Tiers,
    meta: TopicMeta,
    split: Split,
    query: Query,
    assembler: RowAssembler,
    ahead: SplitsAhead | None,
) -> Iterator[Progress]:
    # A split of records that moved was not planned, and so is not fetched ahead.
    if ahead is None or not ahead.expects(split):
        with SplitsAhead(access.fetcher, meta, [split], query, eager=True) as alone:
            yield from _read_cold(access, meta, split, query, assembler, alone)
        return
    for batch in ahead.batches(split):
        reached = batch.column("offset")[-1].as_py() + 1
        bounds = split.start_offset, split.end_offset
        # Row groups are filtered as they are decoded.
        yield reached, assembler.sparse(partial(_whole, batch), *bounds, ALL_ROWS)
