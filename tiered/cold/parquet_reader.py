"""Reading objects: only the byte ranges that are needed, each verified before it is decoded (promise P4).

The manifest's entry says where the row groups lie, so the bounds prune before anything is fetched. A read of
all columns verifies whole row groups against the manifest; a read of some columns fetches their chunks and
verifies them against the CRCs in the footer, which the manifest's CRC covers. While one fetch is decoded,
the next one is under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from ..errors import ColdStorageError, CorruptionError, ObjectNotFound, SchemaMismatch
from ..format.manifest import ObjectEntry, RowGroup
from .object_store import ObjectStore
from .parquet_footer import Footer, FooterCache, parse_footer
from .parquet_format import column_chunks, object_schema
from .ranges import Range, SparseFile, coalesce

BATCH_ROWS = 16_384
SMALL_OBJECT_BYTES = 1024 * 1024
FETCH_BYTES = 16 * 1024 * 1024

# One more request costs about as much as so many bytes.
_GAP_BYTES = 256 * 1024
# From this share of a row group on, the whole of it is fetched: fewer requests for few bytes more.
_WHOLE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which rows are wanted: offsets and timestamps, ends exclusive, None for no bound."""

    start_offset: int | None = None
    end_offset: int | None = None
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None

    def overlap(self, group: RowGroup) -> bool:
        """Whether the row group can have a row within."""
        return (
            (self.start_offset is None or group.end_offset > self.start_offset)
            and (self.end_offset is None or group.base_offset < self.end_offset)
            and (self.start_timestamp_us is None or group.max_timestamp_us >= self.start_timestamp_us)
            and (self.end_timestamp_us is None or group.min_timestamp_us < self.end_timestamp_us)
        )

    def hold_offsets(self, group: RowGroup) -> bool:
        """Whether no row of the group is outside by its offset."""
        return (self.start_offset is None or group.base_offset >= self.start_offset) and (
            self.end_offset is None or group.end_offset <= self.end_offset
        )

    def hold_timestamps(self, group: RowGroup) -> bool:
        """Whether no row of the group is outside by its timestamp."""
        return (self.start_timestamp_us is None or group.min_timestamp_us >= self.start_timestamp_us) and (
            self.end_timestamp_us is None or group.max_timestamp_us < self.end_timestamp_us
        )


def read_object(
    store: ObjectStore,
    key: str,
    entry: ObjectEntry,
    schema: pa.Schema,
    *,
    columns: list[str] | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    start_timestamp_us: int | None = None,
    end_timestamp_us: int | None = None,
    footers: FooterCache | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield an object's rows within the bounds, in order, as batches of at most `batch_rows`.

    Parameters
    ----------
    schema
        The topic's columns as wanted now; those that the object does not have yet are null. ``offset`` and
        ``timestamp`` need not be in it.
    columns
        Names from `schema`, ``offset`` or ``timestamp``, in the order wanted (at least one); None for the
        topic's columns, then ``offset``, then ``timestamp``.
    footers
        Keeps parsed footers between reads.

    Raises
    ------
    CorruptionError
        Bytes that fail verification, with the object's URL, their position and offsets.
    SchemaMismatch
        A column that the topic does not have.
    ColdStorageError
    """
    wanted = full = object_schema(schema)
    if columns is not None:
        missing = [name for name in columns if wanted.get_field_index(name) < 0]
        if missing or not columns:
            raise SchemaMismatch(
                f"no column {(missing or [''])[0]!r}; the columns are {', '.join(wanted.names)}"
            )
        wanted = pa.schema([wanted.field(name) for name in columns])
    bounds = Bounds(start_offset, end_offset, start_timestamp_us, end_timestamp_us)
    groups = [index for index, group in enumerate(entry.row_groups) if bounds.overlap(group)]
    read = _Read(
        store, key, entry, wanted, bounds, groups, footers, everything=set(full.names) <= set(wanted.names)
    )
    return read.batches(batch_rows) if groups else iter(())


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One round of requests: byte ranges, and the row groups that can be decoded from them."""

    groups: list[int]
    ranges: list[Range]
    whole: bool


class _Read:
    def __init__(
        self,
        store: ObjectStore,
        key: str,
        entry: ObjectEntry,
        wanted: pa.Schema,
        bounds: Bounds,
        groups: list[int],
        footers: FooterCache | None,
        *,
        everything: bool,
    ) -> None:
        self._store = store
        self._key = key
        self._entry = entry
        self._wanted = wanted
        self._bounds = bounds
        self._groups = groups
        self._footers = footers
        self._everything = everything
        self._where = f"{store.url.rstrip('/')}/{key}"

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        footer, first, plan = self._start()
        names = self._names(footer)
        if plan is None:
            plan = self._plan(footer, names)
        file = first or self._fetch(footer, plan[0], names)
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tiered-read-ahead")
        try:
            for index, fetch in enumerate(plan):
                last = index + 1 == len(plan)
                following = None if last else pool.submit(self._fetch, footer, plan[index + 1], names)
                for group in fetch.groups:
                    for batch in self._decode(footer, file, group, names).to_batches(batch_rows):
                        if batch.num_rows:
                            yield batch
                if following is not None:
                    file = following.result()
        finally:
            # An abandoned read does not wait for a request that nobody wants any more.
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> tuple[Footer, SparseFile | None, list[_Fetch] | None]:
        """Return the footer and, where no further request was needed, the first fetch and the plan."""
        entry = self._entry
        tail = (entry.tail_position, entry.bytes - entry.tail_position)
        if entry.bytes <= SMALL_OBJECT_BYTES:
            data = memoryview(self._get([(0, entry.bytes)])[0])
            footer = self._footer(data[entry.tail_position :])
            file = SparseFile(entry.bytes, [((0, entry.bytes), data)])
            self._verify_groups(file, self._groups)
            return footer, file, [_Fetch(self._groups, [(0, entry.bytes)], whole=True)]
        footer_known = self._footers.get(self._key, entry.tail_crc) if self._footers else None
        plan = _plan_whole(entry, self._groups) if self._everything else None
        if footer_known is not None:
            return footer_known, None, plan
        if plan is None:
            return self._footer(memoryview(self._get([tail])[0])), None, None
        parts = self._get([tail, *plan[0].ranges])
        footer = self._footer(memoryview(parts[0]))
        file = SparseFile(entry.bytes, list(zip(plan[0].ranges, parts[1:], strict=True)))
        self._verify_groups(file, plan[0].groups)
        return footer, file, plan

    def _footer(self, tail: memoryview) -> Footer:
        entry = self._entry
        if self._footers and (known := self._footers.get(self._key, entry.tail_crc)):
            return known
        if crc32c(tail) != entry.tail_crc:
            raise self._corrupt("footer fails its checksum", entry.tail_position)
        footer = parse_footer(tail, where=self._where, position=entry.tail_position)
        counts = [footer.metadata.row_group(i).num_rows for i in range(footer.metadata.num_row_groups)]
        if counts != [group.record_count for group in entry.row_groups]:
            raise self._corrupt("footer and manifest disagree about the row groups", entry.tail_position)
        if self._footers is not None:
            self._footers.put(self._key, entry.tail_crc, footer)
        return footer

    def _names(self, footer: Footer) -> list[str]:
        """Return the file's columns that must be decoded, for output or for the bounds."""
        groups = [self._entry.row_groups[index] for index in self._groups]
        names = {name for name in self._wanted.names if footer.schema.get_field_index(name) >= 0}
        if any(not self._bounds.hold_offsets(group) and not _dense(group) for group in groups) or not names:
            names.add("offset")
        if not all(self._bounds.hold_timestamps(group) for group in groups):
            names.add("timestamp")
        return [name for name in footer.schema.names if name in names]

    def _plan(self, footer: Footer, names: list[str]) -> list[_Fetch]:
        entry, plan = self._entry, []
        ranges: list[Range] = []
        groups: list[int] = []
        leaves = _leaf_indices(footer.metadata, names)
        chunks = {group: column_chunks(footer.metadata, group) for group in self._groups}
        needed = sum(chunks[group][leaf][1] for group in self._groups for leaf in leaves)
        if needed >= _WHOLE_SHARE * sum(entry.row_groups[group].length for group in self._groups):
            return _plan_whole(entry, self._groups)
        for group in self._groups:
            ranges += coalesce([chunks[group][leaf] for leaf in leaves], _GAP_BYTES)
            groups.append(group)
            if sum(length for _, length in ranges) >= FETCH_BYTES:
                plan.append(_Fetch(groups, ranges, whole=False))
                ranges, groups = [], []
        return [*plan, _Fetch(groups, ranges, whole=False)] if groups else plan

    def _fetch(self, footer: Footer, fetch: _Fetch, names: list[str]) -> SparseFile:
        parts = self._get(fetch.ranges)
        file = SparseFile(self._entry.bytes, list(zip(fetch.ranges, parts, strict=True)))
        if fetch.whole:
            self._verify_groups(file, fetch.groups)
        else:
            self._verify_chunks(file, footer, fetch.groups, names)
        return file

    def _get(self, ranges: list[Range]) -> list[bytes]:
        try:
            if len(ranges) == 1:
                parts = [self._store.get_range(self._key, *ranges[0])]
            else:
                parts = self._store.get_ranges(self._key, ranges)
        except ObjectNotFound:
            raise
        except ColdStorageError:
            self._check_size()
            raise
        for (start, length), part in zip(ranges, parts, strict=True):
            if len(part) != length:
                raise self._corrupt(f"{len(part)} bytes instead of {length}", start)
        return parts

    def _check_size(self) -> None:
        """Raise `CorruptionError` where a read failed because the object was cut: waiting does not help then."""
        try:
            size = self._store.stat(self._key).size
        except ColdStorageError:
            return
        if size != self._entry.bytes:
            raise self._corrupt(
                f"object has {size} bytes, the manifest says {self._entry.bytes}",
                min(size, self._entry.bytes),
            )

    def _verify_groups(self, file: SparseFile, groups: list[int]) -> None:
        for group in (self._entry.row_groups[index] for index in groups):
            if crc32c(file.slice(group.position, group.length)) != group.crc:
                raise self._corrupt("row group fails its checksum", group.position, group)

    def _verify_chunks(self, file: SparseFile, footer: Footer, groups: list[int], names: list[str]) -> None:
        leaves = _leaf_indices(footer.metadata, names)
        for index in groups:
            chunks = column_chunks(footer.metadata, index)
            for leaf in leaves:
                try:
                    pieces = list(footer.extents_of(*chunks[leaf]))
                except ValueError as error:
                    raise self._corrupt(str(error), chunks[leaf][0], self._entry.row_groups[index]) from None
                for position, length, crc in pieces:
                    if crc32c(file.slice(position, length)) != crc:
                        raise self._corrupt(
                            "column fails its checksum", position, self._entry.row_groups[index]
                        )

    def _decode(self, footer: Footer, file: SparseFile, index: int, names: list[str]) -> pa.Table:
        group = self._entry.row_groups[index]
        try:
            # Pre-buffering would read across the gaps between what was fetched.
            source = pq.ParquetFile(pa.PythonFile(file, "r"), metadata=footer.metadata, pre_buffer=False)
            table = source.read_row_group(index, columns=names)
            if table.num_rows != group.record_count:
                raise self._corrupt(
                    f"{table.num_rows} rows instead of {group.record_count}", group.position, group
                )
            return self._shape(self._clip(table, group))
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(f"row group does not decode ({error})", group.position, group) from None

    def _clip(self, table: pa.Table, group: RowGroup) -> pa.Table:
        bounds = self._bounds
        if not bounds.hold_offsets(group):
            low = group.base_offset if bounds.start_offset is None else bounds.start_offset
            high = group.end_offset if bounds.end_offset is None else bounds.end_offset
            if _dense(group):
                first = max(0, low - group.base_offset)
                table = table.slice(first, max(0, high - group.base_offset - first))
            else:
                offsets = table.column("offset")
                table = table.filter(pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high)))
        if not bounds.hold_timestamps(group):
            stamps = table.column("timestamp").cast(pa.int64())
            if bounds.start_timestamp_us is not None:
                keep = pc.greater_equal(stamps, bounds.start_timestamp_us)
                table, stamps = table.filter(keep), stamps.filter(keep)
            if bounds.end_timestamp_us is not None:
                table = table.filter(pc.less(stamps, bounds.end_timestamp_us))
        return table

    def _shape(self, table: pa.Table) -> pa.Table:
        columns = []
        for field in self._wanted:
            at = table.schema.get_field_index(field.name)
            if at < 0:
                columns.append(pa.nulls(table.num_rows, field.type))
                continue
            column = table.column(at)
            if not column.type.equals(field.type):
                raise self._corrupt(f"column {field.name!r} is {column.type}, not {field.type}", None)
            # Drops the field ids that Parquet left in nested types.
            columns.append(column.cast(field.type) if column.type.num_fields else column)
        return pa.table(columns, schema=self._wanted)

    def _corrupt(self, reason: str, position: int | None, group: RowGroup | None = None) -> CorruptionError:
        of = self._entry if group is None else group
        return CorruptionError(
            reason, where=self._where, position=position, offsets=(of.base_offset, of.end_offset)
        )


def _plan_whole(entry: ObjectEntry, groups: list[int]) -> list[_Fetch]:
    """Return fetches of whole row groups, adjacent ones in one request."""
    plan: list[_Fetch] = []
    batch: list[int] = []
    size = 0
    for index in groups:
        length = entry.row_groups[index].length
        if batch and size + length > FETCH_BYTES:
            plan.append(_whole(entry, batch))
            batch, size = [], 0
        batch.append(index)
        size += length
    return [*plan, _whole(entry, batch)] if batch else plan


def _whole(entry: ObjectEntry, groups: list[int]) -> _Fetch:
    spans = [(entry.row_groups[index].position, entry.row_groups[index].length) for index in groups]
    return _Fetch(groups, coalesce(spans, 0), whole=True)


def _dense(group: RowGroup) -> bool:
    return group.record_count == group.end_offset - group.base_offset


def _leaf_indices(metadata: Any, names: list[str]) -> list[int]:
    """Return the leaf columns that pyarrow decodes for these names: the columns and all below them."""
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return [
        index
        for index, path in enumerate(paths)
        if any(path == name or path.startswith(f"{name}.") for name in names)
    ]
