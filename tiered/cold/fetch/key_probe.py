"""The probe of an object's filters: which row groups have none of the keys that a read looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from ...format.manifest import ObjectEntry
from ...format.predicate import Known, Statistics
from ...format.row_filter import RowFilter
from ..parquet.key_filters import KeyFilters, can_filter, hashes_of

VALUES_MAX = 256
"""More values than this are not looked up: in filters of so many row groups, one of them nearly always seems to be there."""

# Filters are fetched only if they are at most this part of the row groups that they may exclude.
_SHARE = 4


class KeyProbe:
    """The values of the key column that a read looks for.

    Parameters
    ----------
    positions
        The position of each value among `hashes`; values that have no hash are missing.
    """

    def __init__(self, column: str, positions: dict[Any, int], hashes: Any) -> None:
        self._column = column
        self._positions = positions
        self._hashes = hashes

    @classmethod
    def of(cls, row_filter: RowFilter, schema: pa.Schema, key_column: str | None) -> KeyProbe | None:
        """Return the probe for the values that a filter of rows looks for; None if it looks for none, or for too many."""
        if key_column is None or schema.get_field_index(key_column) < 0:
            return None
        values, kind = row_filter.sought(key_column), schema.field(key_column).type
        if not 0 < len(values) <= VALUES_MAX or not can_filter(kind):
            return None
        hashes, known = hashes_of(pa.array(values, kind))
        positions = {value: at for at, value in enumerate(values) if known[at]}
        return cls(key_column, positions, hashes) if positions else None

    def candidates(
        self, entry: ObjectEntry, groups: Iterable[int], excludes: Callable[[int, Known], bool]
    ) -> list[int]:
        """Return the row groups that the filters may exclude; none if these are not worth the fetch.

        Parameters
        ----------
        excludes
            Whether a row group has no wanted row, by what is known of its columns.
        """
        if not entry.footer_position:
            return []
        nothing = self._statistics(lambda _: True)
        found = [index for index in groups if excludes(index, nothing)]
        size = sum(entry.row_groups[index].length for index in found)
        return found if size >= _SHARE * (entry.footer_position - entry.tail_position) else []

    def excluded(
        self,
        data: memoryview,
        entry: ObjectEntry,
        candidates: Iterable[int],
        excludes: Callable[[int, Known], bool],
    ) -> set[int]:
        """Return the row groups without a wanted row, by the verified filters of an object; none if they are not as expected."""
        filters = KeyFilters.read(data, len(entry.row_groups))
        if filters is None or filters.end != len(data):
            return set()
        return {index for index in candidates if excludes(index, self._known(filters, index))}

    def _known(self, filters: KeyFilters, row_group: int) -> Known:
        found = filters.may_hold(row_group, self._hashes)

        return self._statistics(lambda value: not found[self._positions[value]])

    def _statistics(self, absent: Callable[[Any], bool]) -> Known:
        # Null is in no filter, so there may be nulls.
        statistics = Statistics(absent=lambda value: value in self._positions and absent(value))
        return lambda name: statistics if name == self._column else None
