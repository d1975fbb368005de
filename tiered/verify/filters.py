"""The check of an object's filters: each key of a row group is in its filter, or a read by key would miss rows."""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa

from ..cold.fetch.plan import filters_range
from ..cold.fetch.verified_range import read_range
from ..cold.object_store.protocol import ObjectStore
from ..cold.parquet.key_filters import KeyFilters, hashes_of
from ..errors import CorruptionError
from ..format.manifest import ObjectEntry


class FilterCheck:
    """The check of one object, which is given its rows in order.

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
