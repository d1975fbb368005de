"""Reads of objects: only the necessary byte ranges, each verified before it is decoded (promise P4).

The manifest's entry has the positions and bounds of the row groups, so row groups are pruned before any fetch. The
statistics of other columns are in the footer; what they exclude is not fetched. A read of all columns verifies whole row
groups against the manifest. A read of some columns fetches their chunks and verifies them against the CRCs in the footer,
which the manifest's CRC covers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptionError, SchemaMismatch
from ...format.manifest import ObjectEntry, RowGroup
from ...format.predicate import Known, Statistics
from ...format.row_filter import ALL_ROWS, RowFilter, range_statistics
from ...format.schema import consecutive_offsets
from ..object_store.protocol import ObjectStore
from ..object_store.ranges import SparseFile
from ..parquet.footer import Footer, FooterCache, parse_footer
from ..parquet.layout import object_schema
from ..parquet.page_memory import decode, plan_decode
from ..parquet.statistics import FooterStatistics
from .decode_ahead import DecodeAhead
from .fetcher import Admission, Fetcher
from .group_rows import Bounds, GroupRows, is_clipped_by_column, is_dense
from .key_probe import KeyProbe
from .plan import Unit, filters_range, footer_range, leaf_indices, plan_units, row_group_range, unit_ranges
from .verified_range import VerifiedRange

BATCH_ROWS = 16_384
SMALL_OBJECT_BYTES = 1024 * 1024
FETCH_BYTES = 8 * 1024 * 1024
_COUNTED_ROWS = 1 << 16

# A request costs about as much as this many bytes.
_GAP_BYTES = 256 * 1024
# How much a read without a cache fetches ahead.
_AHEAD_BYTES = 32 * 1024 * 1024


def read_object(
    store: ObjectStore,
    key: str,
    entry: ObjectEntry,
    schema: pa.Schema,
    *,
    columns: list[str] | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    row_filter: RowFilter = ALL_ROWS,
    key_column: str | None = None,
    footers: FooterCache | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield an object's rows within the bounds, in order, as batches of at most `batch_rows`.

    Parameters
    ----------
    schema
        The topic's current columns; columns that the object lacks are null. It need not contain ``offset`` and
        ``timestamp``.
    columns
        At least one name from `schema`, ``offset`` or ``timestamp``, in the order of the result; None for the
        topic's columns, then ``offset``, then ``timestamp``.
    row_filter
        Only the rows that match are in the result; its columns need not be.
    key_column
        The topic's key column, of which the object may have filters; None reads without them.
    footers
        Caches parsed footers between reads.

    Raises
    ------
    CorruptionError
        Bytes fail verification; the error has the object's URL, their position and offsets.
    SchemaMismatch
        The topic has no such column.
    ColdStorageError
    """
    bounds = Bounds(start_offset, end_offset)
    fetcher = Fetcher(lambda: store, ahead_bytes=_AHEAD_BYTES, footers=footers)
    probe = KeyProbe.of(row_filter, schema, key_column)
    read = ObjectRead(
        fetcher, key, entry, schema, bounds, columns=columns, row_filter=row_filter, probe=probe
    )
    return _read_alone(fetcher, read, batch_rows)


def _read_alone(fetcher: Fetcher, read: ObjectRead, batch_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with DecodeAhead(fetcher, [read], eager=True) as ahead:
            yield from read.batches(ahead.tables(read), batch_rows)
    finally:
        # An abandoned read does not wait for requests that are under way.
        fetcher.close(wait=False)


@dataclass(frozen=True, slots=True)
class LoadedUnit:
    """A fetched and verified unit; any thread can decode its row groups."""

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
    """A read of one object; `load` and `decode` may be called from any thread.

    Parameters
    ----------
    columns, row_filter
        As in `read_object`.
    implied_offsets
        Do not read the column ``offset`` if the manifest shows that it has no gaps.
    probe
        The keys that `row_filter` looks for; None does not use the object's filters.

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
        row_filter: RowFilter = ALL_ROWS,
        probe: KeyProbe | None = None,
    ) -> None:
        self._full = full = object_schema(schema)
        self._wanted = _wanted(full, columns)
        self._fetcher = fetcher
        self._key = key
        self._entry = entry
        self._bounds = bounds
        self._admission = admission
        # What is left of the filter in each row group where a row may match.
        self._filters = {
            index: rest
            for index, group in enumerate(entry.row_groups)
            if bounds.overlap(group) and (rest := row_filter.narrowed(_statistics(group))) is not None
        }
        self._groups = list(self._filters)
        # The row groups that the statistics of the footer exclude; a unit's are known once it is loaded.
        self._excluded: set[int] = set()
        dense = all(is_dense(entry.row_groups[index]) for index in self._groups)
        self._implied = implied_offsets and dense
        used = frozenset().union(*(rest.columns for rest in self._filters.values()))
        self._everything = set(full.names) <= {*self._wanted.names, *used, *(["offset"] if dense else [])}
        self._footer_lock = threading.Lock()
        self._known_footer: Footer | None = None
        self._statistics: FooterStatistics | None = None
        small = entry.bytes <= SMALL_OBJECT_BYTES
        # If only offsets are wanted, the manifest has them all: nothing is fetched.
        self._counted = self._implied and self._wanted.names == ["offset"] and not any(self._filters.values())
        self._unit_bytes = entry.bytes if small else FETCH_BYTES
        self._plan_lock = threading.Lock()
        self._probe = probe
        self._candidates = [] if probe is None else probe.candidates(entry, self._groups, self._excludes)
        self._units: list[Unit] | None = None if self._candidates else self._plan()

    @property
    def is_planned(self) -> bool:
        """Whether the units are known without a fetch."""
        return self._units is not None

    @property
    def filters_bytes(self) -> int:
        """Size of the filters that a plan has to fetch."""
        return 0 if self.is_planned else filters_range(self._entry).length

    @property
    def units(self) -> list[Unit]:
        """The row groups to fetch, in order; those of a unit are fetched together.

        The first thread that needs them looks into the object's filters, the others wait.

        Raises
        ------
        ObjectNotFound, ColdStorageError
        """
        with self._plan_lock:
            if self._units is None:
                excluded = self._excluded_by_filters()
                self._groups = [index for index in self._groups if index not in excluded]
                self._units = self._plan()
            return self._units

    def _plan(self) -> list[Unit]:
        return [] if self._counted else plan_units(self._entry, self._groups, self._unit_bytes)

    def _excludes(self, index: int, known: Known) -> bool:
        """Whether a row group has no wanted row, by what is known of its columns beside the manifest's bounds."""
        by_manifest = _statistics(self._entry.row_groups[index])
        return self._filters[index].narrowed(lambda name: by_manifest(name) or known(name)) is None

    def _excluded_by_filters(self) -> set[int]:
        assert self._probe is not None
        try:
            data = self._fetch([filters_range(self._entry)], 0)[0]
        except CorruptionError:
            return set()  # the rows are as sound as without filters
        return self._probe.excluded(data, self._entry, self._candidates, self._excludes)

    def load(self, unit: Unit) -> LoadedUnit:
        """Fetch the ranges of a unit, except row groups in which no row matches, by the statistics of the footer."""
        entry = self._entry
        small = entry.bytes <= SMALL_OBJECT_BYTES
        unit = self._without_excluded(unit)
        if not unit.groups:
            return LoadedUnit(self, SparseFile(entry.bytes, []))
        if self._everything or small:
            ranges = [row_group_range(entry, index) for index in unit.groups]
            footer = self._cached_footer()
            if footer is None and unit.groups[0] == self._groups[0]:
                ranges.append(footer_range(entry))
            gap = entry.bytes if small else 0
            views = self._fetch(ranges, gap)
            if len(ranges) > len(unit.groups):
                self._parse(views[-1])
        else:
            footer = self._footer()
            ranges = unit_ranges(entry, unit, footer, self._names(footer), self._where)
            # A read of one row group takes one request, whatever lies between the columns.
            views = self._fetch(ranges, unit.bytes if len(self._groups) == 1 else _GAP_BYTES)
        parts = [(fetched.span, view) for fetched, view in zip(ranges, views, strict=True)]
        return LoadedUnit(self, SparseFile(entry.bytes, parts))

    def _without_excluded(self, unit: Unit) -> Unit:
        """Return a unit without the row groups that the footer's statistics exclude.

        The footer of a large object is fetched for them. That of a small one comes with its first row group.
        """
        used = frozenset().union(*(self._filters[index].columns for index in unit.groups))
        if not any(_has_statistics(self._full.field(name)) for name in used):
            return unit
        footer = self._cached_footer() if self._entry.bytes <= SMALL_OBJECT_BYTES else self._footer()
        if footer is None:
            return unit
        if self._statistics is None:
            self._statistics = footer.statistics()
        if self._statistics is None:
            return unit
        by_footer = self._statistics.column
        for index in unit.groups:

            def known(name: str, index: int = index) -> Statistics | None:
                return by_footer(index, self._full.field(name))

            if self._excludes(index, known):
                self._excluded.add(index)
        groups = tuple(index for index in unit.groups if index not in self._excluded)
        return Unit(groups, sum(self._entry.row_groups[index].length for index in groups))

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
        """Yield the offsets of a row group without gaps; a few at a time, since only the manifest vouches for the count."""
        start, end = self._bounds.start_offset, self._bounds.end_offset
        low = group.base_offset if start is None else max(start, group.base_offset)
        high = group.end_offset if end is None else min(end, group.end_offset)
        for first in range(low, high, _COUNTED_ROWS):
            yield pa.table(
                [consecutive_offsets(first, min(high, first + _COUNTED_ROWS))], schema=self._wanted
            )

    @property
    def _where(self) -> str:
        return self._fetcher.where(self._key)

    def _fetch(self, ranges: list[VerifiedRange], gap_bytes: int) -> list[memoryview]:
        return self._fetcher.fetch(
            self._key, self._entry.bytes, ranges, gap_bytes=gap_bytes, admission=self._admission
        )

    def _cached_footer(self) -> Footer | None:
        if self._known_footer is None:
            self._known_footer = self._fetcher.footers.get(self._key, self._entry.tail_crc)
        return self._known_footer

    def _footer(self) -> Footer:
        """Return the footer; the first thread that needs it fetches it, the others wait."""
        with self._footer_lock:
            footer = self._cached_footer()
            if footer is None:
                footer = self._parse(self._fetch([footer_range(self._entry)], 0)[0])
            return footer

    def _parse(self, tail: memoryview) -> Footer:
        entry = self._entry
        footer = parse_footer(tail, where=self._where, position=footer_range(entry).start)
        counts = [footer.metadata.row_group(i).num_rows for i in range(footer.metadata.num_row_groups)]
        if counts != [group.record_count for group in entry.row_groups]:
            raise self._corrupt("footer and manifest disagree about the row groups", entry.tail_position)
        self._fetcher.footers.put(self._key, entry.tail_crc, footer)
        self._known_footer = footer
        return footer

    def _names(self, footer: Footer) -> list[str]:
        """Return the columns to decode, for the result, the bounds or the filter."""
        names = set(self._wanted.names).union(*(rest.columns for rest in self._filters.values()))
        if self._implied:
            names.discard("offset")
        elif any(is_clipped_by_column(self._entry.row_groups[index], self._bounds) for index in self._groups):
            names.add("offset")
        # Without any column there would be no rows.
        return [name for name in footer.schema.names if name in (names or {"offset"})]

    def decode(self, file: SparseFile, index: int) -> pa.Table:
        """Return the wanted rows of a fetched row group.

        The columns of the filter are decoded first, the others only if rows match.
        """
        if index in self._excluded:
            return self._wanted.empty_table()
        group, footer = self._entry.row_groups[index], self._footer()
        names = self._names(footer)
        try:
            # On this thread alone: a thread of Arrow that releases the file while the interpreter ends would kill the
            # process. And without pre-buffering, which would read the gaps between the fetched ranges.
            plan = plan_decode(footer.metadata, index, leaf_indices(footer.metadata, names), file.slice)
            source = pq.ParquetFile(
                pa.PythonFile(file.reopen(), "r"),
                metadata=footer.metadata,
                read_dictionary=plan.dictionaries,
                pre_buffer=False,
            )
            rows = GroupRows(self._bounds, group, self._filters[index], self._full)
            first = [name for name in names if name in rows.columns] or names
            table = decode(source, index, first, plan, footer.schema, rows.select)
            others = [name for name in names if name not in first]
            if others and table.num_rows:
                rest = decode(source, index, others, plan.beside(table), footer.schema, rows.select)
                for name, column in zip(others, rest.columns, strict=True):
                    table = table.append_column(name, column)
            if rows.count != group.record_count:
                raise self._corrupt(
                    f"{rows.count} rows instead of {group.record_count}", group.position, group
                )
            if table.num_rows == 0:
                return self._wanted.empty_table()
            if "offset" in self._wanted.names and table.schema.get_field_index("offset") < 0:
                table = table.append_column("offset", rows.offsets())
            return self._shape(table)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._corrupt(f"row group does not decode ({error})", group.position, group) from None

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
            # The cast drops the field ids that Parquet puts into nested types.
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


def _has_statistics(field: pa.Field) -> bool:
    """Whether the footer has statistics of a column that the manifest has not."""
    return field.name not in ("offset", "timestamp") and not (
        pa.types.is_binary(field.type) or pa.types.is_nested(field.type)
    )


def _statistics(group: RowGroup) -> Known:
    return range_statistics(
        group.base_offset, group.end_offset, group.min_timestamp_us, group.max_timestamp_us
    ).get
