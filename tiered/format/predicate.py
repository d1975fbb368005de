"""Predicates: conditions on rows, as values that can be evaluated, compared with statistics, and pickled.

A predicate has three outcomes, as in SQL: true, false and null. A comparison with null is null, and so is its negation; a
row matches only if the outcome is true. Numbers compare as IEEE 754 says: NaN equals nothing, and -0.0 equals 0.0.

The same tree answers two questions: which rows of some columns match (`evaluate`), and which outcomes rows with some
statistics can have (`outcomes`). Rows are pruned only if the outcome TRUE is impossible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .offset_set import OffsetSet

TRUE, FALSE, NULL = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Statistics:
    """Facts about the values of a column in some rows.

    Attributes
    ----------
    low, high
        Inclusive bounds of the values that are neither null nor NaN; None: unknown.
    null, nan, value
        Whether there may be nulls, NaNs, and values that are not null.
    absent
        Whether no row has a value, which is not null; None: unknown for every value.
    """

    low: Any = None
    high: Any = None
    null: bool = True
    nan: bool = False
    value: bool = True
    absent: Callable[[Any], bool] | None = None

    def lack(self, values: Iterable[Any]) -> bool:
        """Whether no row has any of these values, as far as `absent` says."""
        return self.absent is not None and all(map(self.absent, values))


Column = Any
"""An Arrow array, a chunked array, or a scalar, which stands for the same value in all rows."""

Columns = Callable[[str], Column]
"""Returns the column of a name."""

Known = Callable[[str], Statistics | None]
"""Returns the statistics of the column of a name; None: unknown."""

OPERATORS: Mapping[str, Callable[[Column, pa.Scalar], Column]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    "==": pc.equal,
    ">=": pc.greater_equal,
    ">": pc.greater,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a value that is not null; the operator is ``<``, ``<=``, ``==``, ``>=`` or ``>``."""

    column: str
    operator: str
    value: Any

    def evaluate(self, columns: Columns) -> Column:
        compare = OPERATORS[self.operator]
        return _each(columns(self.column), lambda column: compare(column, pa.scalar(self.value, column.type)))

    def outcomes(self, known: Known) -> int:
        statistics = known(self.column)
        if self.operator == "==" and statistics is not None and statistics.lack([self.value]):
            return _outcomes(False, statistics.value, statistics.null)
        if statistics is None or not statistics.value or statistics.low is None:
            return _without_bounds(statistics)
        low, high, value = statistics.low, statistics.high, self.value
        if self.operator == "==":
            true, false = low <= value <= high, not low == value == high
        elif self.operator == "<":
            true, false = low < value, not high < value
        elif self.operator == "<=":
            true, false = low <= value, not high <= value
        elif self.operator == ">":
            true, false = high > value, not low > value
        else:
            true, false = high >= value, not low >= value
        return _outcomes(true, false or statistics.nan, statistics.null)


@dataclass(frozen=True, slots=True)
class In:
    """Whether a column equals one of some values that are not null."""

    column: str
    values: tuple[Any, ...]
    # There may be a million values, and many batches and row groups: what is made of all values is made once.
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return In, (self.column, self.values)

    def evaluate(self, columns: Columns) -> Column:
        def test(column: Column) -> Column:
            values = self._value_set(column.type)
            if not isinstance(column, pa.Scalar) and len(values) > len(column):
                # Arrow makes a table of all values for each call.
                values = values.filter(pc.is_in(values, value_set=column))
            found = pc.is_in(column, value_set=values)
            return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))

        return _each(columns(self.column), test)

    def outcomes(self, known: Known) -> int:
        statistics = known(self.column)
        if statistics is not None and statistics.lack(self.values):
            return _outcomes(False, statistics.value, statistics.null)
        if statistics is None or not statistics.value or statistics.low is None:
            return _without_bounds(statistics)
        low, high = statistics.low, statistics.high
        ordered = self._ordered()
        first = bisect_left(ordered, low)
        true = first < len(ordered) and ordered[first] <= high
        return _outcomes(true, statistics.nan or low != high or not true, statistics.null)

    def _value_set(self, kind: pa.DataType) -> pa.Array:
        """Return the values for Arrow's `is_in`, which distinguishes the zeros, finds NaN, and is false for null."""
        if kind not in self._made:
            values = [value for value in self.values if value == value]
            values += [-value for value in values if type(value) is float and value == 0]
            self._made[kind] = pa.array(values, kind)
        return self._made[kind]

    def _ordered(self) -> list[Any]:
        """Return the values in order, without NaN, which has none."""
        if "ordered" not in self._made:
            self._made["ordered"] = sorted(value for value in self.values if value == value)
        ordered: list[Any] = self._made["ordered"]
        return ordered


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column is null."""

    column: str

    def evaluate(self, columns: Columns) -> Column:
        return _each(columns(self.column), pc.is_null)

    def outcomes(self, known: Known) -> int:
        statistics = known(self.column)
        if statistics is None:
            return TRUE | FALSE
        return _outcomes(statistics.null, statistics.value, null=False)


@dataclass(frozen=True, slots=True, eq=False)
class AtOffsets:
    """Whether the offset of a row is one of those of its partition; a partition without any has no such row.

    No user writes it: it is made of the rows of one log, and no server takes it.
    """

    partitions: Mapping[int, OffsetSet]

    def evaluate(self, columns: Columns) -> Column:
        # The partition is a constant of the rows; see `RowFilter`.
        found = self.partitions.get(columns("partition").as_py())
        if not found:
            return pa.scalar(False)
        return pa.array(found.mask(columns("offset").to_numpy()))

    def outcomes(self, known: Known) -> int:
        partition, offset = known("partition"), known("offset")
        if partition is None or partition.low is None or partition.low != partition.high:
            return TRUE | FALSE
        found = self.partitions.get(partition.low)
        if not found:
            return FALSE
        if offset is None or offset.low is None:
            return TRUE | FALSE
        count = found.count(offset.low, offset.high + 1)
        return _outcomes(count > 0, count <= offset.high - offset.low, null=False)


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a predicate; null stays null."""

    negated: Predicate

    def evaluate(self, columns: Columns) -> Column:
        return pc.invert(self.negated.evaluate(columns))

    def outcomes(self, known: Known) -> int:
        return _negation(self.negated.outcomes(known))


@dataclass(frozen=True, slots=True)
class And:
    """The conjunction of one or more predicates."""

    parts: tuple[Predicate, ...]

    def evaluate(self, columns: Columns) -> Column:
        return reduce(pc.and_kleene, (part.evaluate(columns) for part in self.parts))

    def outcomes(self, known: Known) -> int:
        possible, always = 0, TRUE
        for part in self.parts:
            outcomes = part.outcomes(known)
            possible |= outcomes
            always &= outcomes
        return possible & (FALSE | NULL) | always


@dataclass(frozen=True, slots=True)
class Or:
    """The disjunction of one or more predicates."""

    parts: tuple[Predicate, ...]

    def evaluate(self, columns: Columns) -> Column:
        return reduce(pc.or_kleene, (part.evaluate(columns) for part in self.parts))

    def outcomes(self, known: Known) -> int:
        return _negation(And(tuple(Not(part) for part in self.parts)).outcomes(known))


Leaf = Comparison | In | IsNull
Predicate = Leaf | AtOffsets | Not | And | Or


def leaves(predicate: Predicate) -> Iterator[Leaf]:
    """Yield the predicates of single columns within a predicate."""
    if isinstance(predicate, (And, Or)):
        for part in predicate.parts:
            yield from leaves(part)
    elif isinstance(predicate, Not):
        yield from leaves(predicate.negated)
    elif not isinstance(predicate, AtOffsets):
        yield predicate


def columns_of(predicate: Predicate) -> frozenset[str]:
    """Return the columns that a predicate uses."""
    if isinstance(predicate, (And, Or)):
        return frozenset().union(*map(columns_of, predicate.parts))
    if isinstance(predicate, Not):
        return columns_of(predicate.negated)
    return frozenset(("partition", "offset") if isinstance(predicate, AtOffsets) else (predicate.column,))


def conjunction(given: Iterable[Predicate | None]) -> Predicate | None:
    """Return one predicate for all of those given; None without any."""
    parts: list[Predicate] = []
    for item in given:
        if item is not None:
            parts += item.parts if isinstance(item, And) else [item]
    return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


def _outcomes(true: bool, false: bool, null: bool) -> int:
    return (TRUE if true else 0) | (FALSE if false else 0) | (NULL if null else 0)


def _negation(outcomes: int) -> int:
    return _outcomes(bool(outcomes & FALSE), bool(outcomes & TRUE), bool(outcomes & NULL))


def _without_bounds(statistics: Statistics | None) -> int:
    if statistics is None:
        return TRUE | FALSE | NULL
    return _outcomes(statistics.value, statistics.value, statistics.null)


def _each(column: Column, test: Callable[[Column], Column]) -> Column:
    """Return the outcome of a test of single values for each value; of a dictionary's values, for each of them once."""
    if not pa.types.is_dictionary(column.type):
        return test(column)
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_each(chunk, test) for chunk in column.chunks], pa.bool_())
    indices = column.indices
    # Index of the outcome for null, which is one more value.
    values = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])
    return test(values).take(pc.fill_null(indices, len(values) - 1))
