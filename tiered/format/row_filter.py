"""A predicate on the rows of one partition: the columns to decode for it, and the rows that match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .predicate import TRUE, And, Comparison, In, Known, Predicate, Statistics, columns_of, leaves


class RowFilter:
    """A conjunction of predicates; without any, all rows match.

    Parameters
    ----------
    constants
        The columns with one value in all rows, which are not stored.

    Attributes
    ----------
    columns : frozenset[str]
        The stored columns that the predicates use.
    """

    def __init__(
        self, predicates: tuple[Predicate, ...] = (), constants: Mapping[str, Any] | None = None
    ) -> None:
        self._predicates = predicates
        self._constants = dict(constants or {})
        used = frozenset().union(*map(columns_of, predicates))
        self.columns: frozenset[str] = used.difference(self._constants)

    @classmethod
    def of(cls, predicate: Predicate | None, topic: str, partition: int) -> RowFilter:
        """Return the filter of the rows of one partition."""
        parts = predicate.parts if isinstance(predicate, And) else () if predicate is None else (predicate,)
        return cls(parts, {"topic": topic, "partition": partition})

    def __bool__(self) -> bool:
        return bool(self._predicates)

    def sought(self, column: str) -> list[Any]:
        """Return the values that a column must equal by one of the conditions."""
        values: dict[Any, None] = {}
        for leaf in leaves(And(self._predicates)):
            if leaf.column != column:
                continue
            if isinstance(leaf, In):
                values |= dict.fromkeys(leaf.values)
            elif isinstance(leaf, Comparison) and leaf.operator == "==":
                values[leaf.value] = None
        return list(values)

    def narrowed(self, known: Known) -> RowFilter | None:
        """Return the filter without the predicates that all rows with these statistics match; None if no row matches."""
        if not self._predicates:
            return self

        def with_constants(name: str) -> Statistics | None:
            value = self._constants.get(name)
            return known(name) if value is None else Statistics(value, value, null=False)

        undecided = []
        for predicate in self._predicates:
            outcomes = predicate.outcomes(with_constants)
            if not outcomes & TRUE:
                return None
            if outcomes != TRUE:
                undecided.append(predicate)
        return (
            self if len(undecided) == len(self._predicates) else RowFilter(tuple(undecided), self._constants)
        )

    def mask(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], schema: pa.Schema) -> Any:
        """Return which rows match: a boolean array, or True or False for all rows.

        Parameters
        ----------
        columns
            The decoded columns of `columns`; one that is missing is null in all rows.
        schema
            Types of the columns that may be missing.
        """

        def column(name: str) -> Any:
            if name in self._constants:
                return pa.scalar(self._constants[name])
            found = columns.get(name)
            return pa.scalar(None, schema.field(name).type) if found is None else found

        mask = And(self._predicates).evaluate(column) if self._predicates else pa.scalar(True)
        if isinstance(mask, pa.Scalar):
            return mask.as_py() is True
        chunks = mask.chunks if isinstance(mask, pa.ChunkedArray) else (mask,)
        matches = sum(chunk.true_count for chunk in chunks)
        return matches == len(mask) or (mask if matches else False)


ALL_ROWS = RowFilter()


def range_statistics(
    base_offset: int, end_offset: int, min_timestamp_us: int, max_timestamp_us: int
) -> dict[str, Statistics]:
    """Return the statistics of the columns ``offset`` and ``timestamp`` for records of a block, row group or object."""
    return {
        "offset": Statistics(base_offset, end_offset - 1, null=False),
        "timestamp": Statistics(min_timestamp_us, max_timestamp_us, null=False),
    }
