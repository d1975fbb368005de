"""The check of an object's filters: each key of a row group is in its filter, or a read by key would miss rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import FILTERS_BYTES_MAX, ObjectEntry
from ..fetch.object_reader import read_object
from ..fetch.plan import filters_range, tail_range
from ..fetch.verified_range import read_range
from ..object_store.protocol import ObjectStore
from ..parquet.key_filters import KeyFilters, hashes_of
from ..parquet.thrift import read_struct


class FilterCheck:
    """The check of one object, which is given its rows in order.

    Parameters
    ----------
    column
        The column of the filters; None checks nothing, nor does an entry without filters.

    Raises
    ------
    CorruptionError
        The filters fail their checksum, or are no filters.
    ColdStorageError
    """

    def __init__(self, store: ObjectStore, key: str, entry: ObjectEntry, column: str | None) -> None:
        self._entry = entry
        self._column = column
        self._ends = [group.end_offset for group in entry.row_groups]
        self._filters = None
        if entry.footer_position and column is not None:
            data = memoryview(read_range(store, key, filters_range(entry)))
            self._filters = KeyFilters.read(data, len(entry.row_groups))
            if self._filters is None or self._filters.end != len(data):
                raise CorruptionError("filters do not decode", position=entry.tail_position)

    def check(self, rows: pa.RecordBatch) -> None:
        """Check the keys of rows of one row group.

        Raises
        ------
        CorruptionError
        """
        if self._filters is None:
            return
        group = bisect_right(self._ends, rows.column("offset")[0].as_py())
        hashes, known = hashes_of(rows.column(self._column))
        if not self._filters.may_hold(group, hashes[known]).all():
            raise CorruptionError(
                f"the filter of row group {group} lacks a key that the row group has",
                position=self._entry.tail_position,
                offsets=(self._entry.base_offset, self._entry.end_offset),
            )


def with_filters(
    store: ObjectStore, key: str, entry: ObjectEntry, schema: pa.Schema, footer: memoryview
) -> ObjectEntry:
    """Return an entry that was made of its object, with the object's filters if every key of every row group is in them.

    Parameters
    ----------
    schema
        The columns of the object.
    footer
        Its Thrift.

    Raises
    ------
    CorruptionError, ColdStorageError
    """
    found = _filtered_column(footer, entry.tail_position)
    if found is None:
        return entry
    column, end = found
    tail = memoryview(read_range(store, key, tail_range(entry)))
    filters = KeyFilters.read(tail, len(entry.row_groups))
    if filters is None or entry.tail_position + filters.end != end or filters.end > FILTERS_BYTES_MAX:
        return entry
    filters_crc, footer_crc = crc32c(tail[: filters.end]), crc32c(tail[filters.end :])
    filtered = replace(entry, footer_position=end, footer_crc=footer_crc, filters_crc=filters_crc)
    rows = read_object(store, key, entry, schema, columns=[column, "offset"])
    try:
        checked = FilterCheck(store, key, filtered, column)
        for batch in rows:
            checked.check(batch)
    except CorruptionError:
        return entry
    return filtered


def _filtered_column(footer: memoryview, position: int) -> tuple[str, int] | None:
    """Return the only column with filters, and where these end, if they lie end to end from a position on."""
    try:
        found = list(_filters(read_struct(footer)[0]))
        columns = {path for path, _, _ in found}
        for _, start, length in found:
            if start != position:
                return None
            position += length
        return (columns.pop(), position) if len(columns) == 1 else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _filters(footer: dict[int, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield column, position and length of each filter; `statistics` describes the structs."""
    for group in footer[4]:
        for chunk in group[1]:
            about = chunk[3]
            if 14 in about:
                (name,) = about[3]
                yield name.decode(), about[14], about[15]
