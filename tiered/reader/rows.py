"""The rows that readers see, built from decoded columns: with system columns, clipped, filtered and projected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..format.block import OFFSET_FIELD
from ..format.predicate import Comparison, Predicate, conjunction
from ..format.row_filter import RowFilter
from ..format.schema import consecutive_offsets, row_schema

BATCH_ROWS_MIN = 4096
BATCH_BYTES_MAX = 16 << 20
# Longer constant columns take little time compared with their batch, and much memory if they are cached.
_CACHED_ROWS_MAX = 1 << 14
_CONSTANTS = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class Query:
    """The wanted columns and rows of a range, the same for every split; it can be pickled.

    Attributes
    ----------
    columns
        Names in the order of the result; None for all.
    start_timestamp_us, end_timestamp_us
        Bounds on the record timestamp, end exclusive; they filter rows.
    key
        Value that the column ``key_column`` must equal.
    filter
        A predicate that rows must match.
    """

    columns: tuple[str, ...] | None = None
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None
    key: object = None
    key_column: str | None = None
    filter: Predicate | None = None

    @property
    def predicate(self) -> Predicate | None:
        """All conditions on the values of a row, as one predicate; None without any."""
        parts: list[Predicate] = []
        if self.start_timestamp_us is not None:
            parts.append(Comparison("timestamp", ">=", self.start_timestamp_us))
        if self.end_timestamp_us is not None:
            parts.append(Comparison("timestamp", "<", self.end_timestamp_us))
        if self.key_column is not None:
            parts.append(Comparison(self.key_column, "==", self.key))
        return conjunction([*parts, self.filter])

    @property
    def filters(self) -> bool:
        """Whether the query filters rows by value."""
        return self.predicate is not None


Load = Callable[[frozenset[str]], pa.RecordBatch]
"""Decodes the columns of these names. Columns that are not stored are missing in the result, and it may have others."""


class RowAssembler:
    """A builder of row batches of one partition.

    Attributes
    ----------
    schema : pa.Schema
        The schema of every batch.
    filter : RowFilter
        The filter of the rows.
    """

    def __init__(self, topic: str, partition: int, schema: pa.Schema, query: Query) -> None:
        self._topic = topic
        self._partition = partition
        self._full = schema
        self.schema, self._needed = _wanted(_Identity(schema), query.columns)
        self._names = self.schema.names  # cached, since Arrow creates new fields at each access
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self.filter = RowFilter.of(query.predicate, topic, partition)

    def dense(
        self,
        load: Load,
        base_offset: int,
        count: int,
        start_offset: int,
        end_offset: int,
        row_filter: RowFilter | None = None,
    ) -> pa.RecordBatch:
        """Build the rows of a block whose offsets are ``base_offset, base_offset + 1, …``.

        Parameters
        ----------
        row_filter
            What is left of `filter` for this block; default all of it.
        """
        first, last = max(0, start_offset - base_offset), min(count, end_offset - base_offset)
        rows = max(0, last - first)

        def within(names: frozenset[str]) -> pa.RecordBatch:
            batch = load(names)
            if rows != count:
                batch = batch.slice(first, rows)
            if "offset" in names:
                start = base_offset + first
                batch = batch.add_column(0, OFFSET_FIELD, consecutive_offsets(start, start + rows))
            return batch

        return self._build(within, self.filter if row_filter is None else row_filter)

    def sparse(
        self, load: Load, start_offset: int, end_offset: int, row_filter: RowFilter | None = None
    ) -> pa.RecordBatch:
        """Build the rows of a batch that has its offsets in the column ``offset``; see `dense`."""
        offsets = load(frozenset(("offset",))).column("offset")
        keep = pc.and_(pc.greater_equal(offsets, start_offset), pc.less(offsets, end_offset))
        if not pc.all(keep, min_count=0).as_py():
            load = _filtered(load, keep)
        return self._build(load, self.filter if row_filter is None else row_filter)

    def _build(self, load: Load, row_filter: RowFilter) -> pa.RecordBatch:
        if row_filter:
            # The other columns are decoded only if there are rows that match.
            batch = _only(load(row_filter.columns), row_filter.columns)
            mask = row_filter.mask(dict(zip(batch.schema.names, batch.columns, strict=True)), self._full)
            if mask is False:
                return self._shape(rows_only(0))
            if mask is not True:
                load = _filtered(load, mask)
        return self._shape(load(self._needed))

    def _shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the result, of a batch of stored columns."""
        names = tuple(batch.schema.names)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._layouts[names] = self._layout(names)
        if layout.lacks_columns:
            return self._with_nulls(batch)
        if layout.stored is not None:
            batch = batch.select(layout.stored)
        if layout.constants:
            constants = _constants(self._topic, self._partition, batch.num_rows)
            for at, field in layout.constants:
                batch = batch.add_column(at, field, constants[field.name])
        return batch

    def _layout(self, names: tuple[str, ...]) -> _Layout:
        """Return the layout for batches of stored columns of these names."""
        places = {name: at for at, name in enumerate(names)}
        stored = [places[name] for name in self._names if name in places]
        constants = [(at, self.schema.field(at)) for at, name in enumerate(self._names) if name in _CONSTANTS]
        return _Layout(
            None if stored == list(range(len(names))) else stored,
            constants,
            len(stored) + len(constants) < len(self._names),
        )

    def _with_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the result, of a batch from before columns were added to the topic."""
        count = batch.num_rows
        available = dict(zip(batch.schema.names, batch.columns, strict=True))
        available |= _constants(self._topic, self._partition, count)
        arrays = [
            available[name] if name in available else pa.nulls(count, self.schema.field(name).type)
            for name in self._names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Layout(NamedTuple):
    """How a batch of the result is made of a batch of stored columns: in a third of the time that new columns take.

    Attributes
    ----------
    stored
        The numbers of the stored columns in the result; None if they are all, in their order.
    constants
        Place and field of the columns that are added to them.
    """

    stored: list[int] | None
    constants: list[tuple[int, pa.Field]]
    lacks_columns: bool


def _only(batch: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    return batch.select([i for i, name in enumerate(batch.schema.names) if name in names])


def _filtered(load: Load, mask: pa.Array) -> Load:
    def matching(names: frozenset[str]) -> pa.RecordBatch:
        batch = _only(load(names), names)
        return batch.filter(mask) if batch.num_columns else rows_only(mask.true_count)

    return matching


class _Identity:
    """A schema that is compared by identity: Arrow's hash would take more time than the rest of a short read here."""

    __slots__ = ("schema",)

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.schema is self.schema


@lru_cache(maxsize=256)
def _wanted(schema: _Identity, columns: tuple[str, ...] | None) -> tuple[pa.Schema, frozenset[str]]:
    rows = row_schema(schema.schema, None if columns is None else list(columns))
    return rows, frozenset(rows.names)


def needed_columns(schema: pa.Schema, query: Query) -> frozenset[str]:
    """Return the columns of the result of a query of a topic with this schema."""
    return _wanted(_Identity(schema), query.columns)[1]


def _next_power_of_two(count: int) -> int:
    """Return the next power of two, so that a few cached lengths serve all blocks."""
    return 1 << max(count - 1, 0).bit_length()


def _constants(topic: str, partition: int, count: int) -> dict[str, pa.Array]:
    """Return the columns with one value in all rows."""
    if count <= _CACHED_ROWS_MAX:
        return _cached_constants(topic, partition, count)
    return {name: pa.repeat(value, count) for name, value in _constant_values(topic, partition).items()}


@lru_cache(maxsize=64)
def _cached_constants(topic: str, partition: int, count: int) -> dict[str, pa.Array]:
    """Return `_constants`, cached: most blocks have as many rows as the one before."""
    values = _constant_values(topic, partition)
    return {name: _repeat(value, _next_power_of_two(count)).slice(0, count) for name, value in values.items()}


def _constant_values(topic: str, partition: int) -> dict[str, pa.Scalar]:
    return {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}


@lru_cache(maxsize=64)
def _repeat(value: pa.Scalar, count: int) -> pa.Array:
    return pa.repeat(value, count)


def rows_only(count: int) -> pa.RecordBatch:
    """Return a batch without columns and with `count` rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=[""]).select([])


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate small batches, so that blocks of one record do not become batches of one row.

    Large batches pass unchanged, since concatenating would copy them.
    """
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        count = batch.num_rows
        if count == 0:
            continue
        if count >= BATCH_ROWS_MIN:
            if pending:
                yield _concatenate(pending)
                pending, rows, size = [], 0, 0
            yield batch
            continue
        # The first batch of a run is measured when a second one comes, which saves time in reads of one record.
        if pending:
            size = (size or pending[0].nbytes) + batch.nbytes
        pending.append(batch)
        rows += count
        # Thousands of large records would fit neither into memory nor into one array of 2 GiB.
        if rows >= BATCH_ROWS_MIN or size >= BATCH_BYTES_MAX:
            yield _concatenate(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _concatenate(pending)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def limit_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` rows (None: all), and read nothing beyond them."""
    if limit is None:
        yield from batches
        return
    while limit > 0:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch if batch.num_rows <= limit else batch.slice(0, limit)
        limit -= batch.num_rows
