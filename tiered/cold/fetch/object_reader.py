"""Reading objects: only the byte ranges that are needed, each verified before it is decoded (promise P4).

The manifest's entry says where the row groups lie, so the bounds prune before anything is fetched. A read of
all columns verifies whole row groups against the manifest; a read of some columns fetches their chunks and
verifies them against the CRCs in the footer, which the manifest's CRC covers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import CorruptionError, SchemaMismatch
from ...format.manifest import ObjectEntry, RowGroup
from ..object_store.protocol import ObjectStore
from ..object_store.ranges import SparseFile
from ..parquet.footer import Footer, FooterCache, parse_footer
from ..parquet.layout import object_schema
from ..parquet.page_memory import decode, reckon
from .decode_ahead import DecodeAhead
from .fetcher import Admission, Fetcher
from .plan import Unit, VerifiedRange, group_piece, leaf_indices, plan_units, tail_piece, unit_pieces

BATCH_ROWS = 16_384
SMALL_OBJECT_BYTES = 1024 * 1024
FETCH_BYTES = 8 * 1024 * 1024
_COUNTED_ROWS = 1 << 16

# One more request costs about as much as so many bytes.
_GAP_BYTES = 256 * 1024
# What a read without a cache fetches ahead.
_AHEAD_BYTES = 32 * 1024 * 1024


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
    bounds = Bounds(start_offset, end_offset, start_timestamp_us, end_timestamp_us)
    fetcher = Fetcher(lambda: store, ahead_bytes=_AHEAD_BYTES, footers=footers)
    read = ObjectRead(fetcher, key, entry, schema, bounds, columns=columns)
    return _read_alone(fetcher, read, batch_rows)


def _read_alone(fetcher: Fetcher, read: ObjectRead, batch_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with DecodeAhead(fetcher, [read], eager=True) as ahead:
            yield from read.batches(ahead.tables(read), batch_rows)
    finally:
        # An abandoned read does not wait for a request that nobody wants any more.
        fetcher.close(wait=False)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was fetched of a unit, verified; row groups are decoded on any thread."""

    read: ObjectRead
    file: SparseFile

    def decode(self, group: int) -> pa.Table:
        """Return the wanted rows of one of the unit's row groups.

        Raises
        ------
        CorruptionError
        """
        return self.read.decode(self.file, group)


class ObjectRead:
    """What is wanted of one object; `load` and `decode` may be called from any thread.

    Parameters
    ----------
    columns
        As of `read_object`.
    implied_offsets
        Do not read the column ``offset`` where the manifest says that it has no gap.

    Attributes
    ----------
    units
        What to fetch together, in order.

    Raises
    ------
    SchemaMismatch
    """

    def __init__(
        self,
        fetcher: Fetcher,
        key: str,
        entry: ObjectEntry,
        schema: pa.Schema,
        bounds: Bounds,
        *,
        columns: list[str] | None = None,
        admission: Admission = Admission.SCAN,
        implied_offsets: bool = False,
    ) -> None:
        full = object_schema(schema)
        self._wanted = _wanted(full, columns)
        self._fetcher = fetcher
        self._key = key
        self._entry = entry
        self._bounds = bounds
        self._admission = admission
        self._groups = [index for index, group in enumerate(entry.row_groups) if bounds.overlap(group)]
        dense = all(_dense(entry.row_groups[index]) for index in self._groups)
        self._implied = implied_offsets and dense
        self._everything = set(full.names) <= {*self._wanted.names, *(["offset"] if dense else [])}
        self._footer_lock = threading.Lock()
        self._known_footer: Footer | None = None
        small = entry.bytes <= SMALL_OBJECT_BYTES
        # Offsets alone are all in the manifest: nothing is fetched for them.
        self._counted = (
            self._implied
            and self._wanted.names == ["offset"]
            and all(bounds.hold_timestamps(entry.row_groups[index]) for index in self._groups)
        )
        self.units = (
            [] if self._counted else plan_units(entry, self._groups, entry.bytes if small else FETCH_BYTES)
        )

    def load(self, unit: Unit) -> Loaded:
        """Fetch what a unit needs."""
        entry = self._entry
        small = entry.bytes <= SMALL_OBJECT_BYTES
        if self._everything or small:
            pieces = [group_piece(entry, index) for index in unit.groups]
            footer = self._footer_at_hand()
            if footer is None and unit is self.units[0]:
                pieces.append(tail_piece(entry))
            gap = entry.bytes if small else 0
            views = self._fetch(pieces, gap)
            if len(pieces) > len(unit.groups):
                self._parse(views[-1])
        else:
            footer = self._footer()
            pieces = unit_pieces(entry, unit, footer, self._names(footer), self._where)
            # A read of one row group takes one request, whatever lies between the columns.
            views = self._fetch(pieces, unit.bytes if len(self._groups) == 1 else _GAP_BYTES)
        parts = [(piece.range, view) for piece, view in zip(pieces, views, strict=True)]
        return Loaded(self, SparseFile(entry.bytes, parts))

    def batches(self, tables: Iterable[pa.Table], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the decoded row groups, in batches of at most `batch_rows`."""
        if self._counted:
            groups = (self._entry.row_groups[index] for index in self._groups)
            tables = (table for group in groups for table in self._counted_rows(group))
        for table in tables:
            for batch in table.to_batches(batch_rows):
                if batch.num_rows:
                    yield batch

    def _counted_rows(self, group: RowGroup) -> Iterator[pa.Table]:
        """Yield the offsets of a row group without gaps; a few at a time, as nothing but the manifest says how many."""
        start, end = self._bounds.start_offset, self._bounds.end_offset
        low = group.base_offset if start is None else max(start, group.base_offset)
        high = group.end_offset if end is None else min(end, group.end_offset)
        for first in range(low, high, _COUNTED_ROWS):
            yield pa.table([_numbers(first, min(high, first + _COUNTED_ROWS))], schema=self._wanted)

    @property
    def _where(self) -> str:
        return self._fetcher.where(self._key)

    def _fetch(self, pieces: list[VerifiedRange], gap_bytes: int) -> list[memoryview]:
        return self._fetcher.fetch(
            self._key, self._entry.bytes, pieces, gap_bytes=gap_bytes, admission=self._admission
        )

    def _footer_at_hand(self) -> Footer | None:
        if self._known_footer is None:
            self._known_footer = self._fetcher.footers.get(self._key, self._entry.tail_crc)
        return self._known_footer

    def _footer(self) -> Footer:
        """Return the footer; the first thread that needs it fetches it, the others wait."""
        with self._footer_lock:
            footer = self._footer_at_hand()
            if footer is None:
                footer = self._parse(self._fetch([tail_piece(self._entry)], 0)[0])
            return footer

    def _parse(self, tail: memoryview) -> Footer:
        entry = self._entry
        footer = parse_footer(tail, where=self._where, position=entry.tail_position)
        counts = [footer.metadata.row_group(i).num_rows for i in range(footer.metadata.num_row_groups)]
        if counts != [group.record_count for group in entry.row_groups]:
            raise self._corrupt("footer and manifest disagree about the row groups", entry.tail_position)
        self._fetcher.footers.put(self._key, entry.tail_crc, footer)
        self._known_footer = footer
        return footer

    def _names(self, footer: Footer) -> list[str]:
        """Return the file's columns that must be decoded, for output or for the bounds."""
        groups = [self._entry.row_groups[index] for index in self._groups]
        names = {name for name in self._wanted.names if footer.schema.get_field_index(name) >= 0}
        if self._implied:
            names.discard("offset")
        if any(not self._bounds.hold_offsets(group) and not _dense(group) for group in groups):
            names.add("offset")
        if not all(self._bounds.hold_timestamps(group) for group in groups):
            names.add("timestamp")
        # Without a column there would be no rows.
        return [name for name in footer.schema.names if name in (names or {"offset"})]

    def decode(self, file: SparseFile, index: int) -> pa.Table:
        """Return the wanted rows of a row group that was fetched."""
        group = self._entry.row_groups[index]
        footer = self._footer()
        names = self._names(footer)
        try:
            # On this thread alone, and without pre-buffering, which would read across the gaps between what was
            # fetched: a thread of Arrow's that lets go of the file while the interpreter ends would end the process.
            reckoned = reckon(footer.metadata, index, leaf_indices(footer.metadata, names), file.slice)
            source = pq.ParquetFile(
                pa.PythonFile(file.reopen(), "r"),
                metadata=footer.metadata,
                read_dictionary=reckoned.dictionaries,
                pre_buffer=False,
            )
            table = decode(source, index, names, reckoned, footer.schema)
            if table.num_rows != group.record_count:
                raise self._corrupt(
                    f"{table.num_rows} rows instead of {group.record_count}", group.position, group
                )
            if self._implied and "offset" in self._wanted.names and "offset" not in names:
                table = table.append_column("offset", _numbers(group.base_offset, group.end_offset))
            return self._shape(self._clip(table, group))
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
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


def _wanted(full: pa.Schema, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return full
    missing = [name for name in columns if full.get_field_index(name) < 0]
    if missing or not columns:
        raise SchemaMismatch(f"no column {(missing or [''])[0]!r}; the columns are {', '.join(full.names)}")
    return pa.schema([full.field(name) for name in columns])


def _numbers(start: int, end: int) -> pa.Array:
    """Return the offsets of a range without gaps."""
    numbers = np.arange(start, end, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), end - start, [None, pa.py_buffer(numbers)])


def _dense(group: RowGroup) -> bool:
    return group.record_count == group.end_offset - group.base_offset
