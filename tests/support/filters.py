"""Filters of scans as Hypothesis draws them, and the rows that match by Python's own comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from tests.support.arrow_values import values

EPOCH = datetime(1970, 1, 1)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def holds(given: Any, row: dict[str, Any]) -> bool | None:
    """The outcome for one row, by Python's own comparisons: True, False, or None for null."""
    if isinstance(given, list):
        word = "or" if isinstance(given[0], list) else "and"
        return holds((word, *given), row)
    if given[0] in ("and", "or") and not isinstance(given[1], str):
        outcomes = [holds(part, row) for part in given[1:]]
        decided = given[0] == "or"
        return decided if decided in outcomes else None if None in outcomes else not decided
    if given[0] == "not" and not isinstance(given[1], str):
        outcome = holds(given[1], row)
        return None if outcome is None else not outcome
    value = row[given[0]]
    if given[1].endswith("null"):
        return (value is None) == (given[1] == "is null")
    if value is None:
        return None
    if given[1].endswith("in"):
        return any(value == item for item in given[2]) == (given[1] == "in")
    return COMPARISONS[given[1]](value, given[2])


def as_read(kind: pa.DataType, value: Any) -> Any:
    """A drawn value as Python reads it from the column."""
    if value is None:
        return None
    if pt.is_timestamp(kind):
        return (EPOCH if kind.tz is None else EPOCH.replace(tzinfo=UTC)) + timedelta(microseconds=value)
    return date(1970, 1, 1) + timedelta(days=value) if pt.is_date(kind) else value


def column_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    drawn = values(kind)
    if pt.is_floating(kind):
        drawn = st.sampled_from([float("nan"), 0.0, -0.0, float("inf")]) | drawn
    return drawn.map(lambda value: as_read(kind, value))


@st.composite
def conditions(draw: st.DrawFn, pools: dict[str, tuple[pa.DataType, list[Any]]]) -> Any:
    """A condition on a column, with values that are in its rows and others."""
    name = draw(st.sampled_from(sorted(pools)))
    kind, pool = pools[name]
    choice = draw(st.sampled_from(["is null", "is not null", "in", "not in", *COMPARISONS]))
    if choice.endswith("null") or pt.is_nested(kind):
        return (name, choice if choice.endswith("null") else "is null")
    literals = column_values(kind).filter(lambda value: value is not None)
    if pool:
        literals = st.sampled_from(pool) | literals
    if choice.endswith("in"):
        return (name, choice, draw(st.lists(literals, max_size=3)))
    return (name, choice, draw(literals))


def filters(pools: dict[str, tuple[pa.DataType, list[Any]]]) -> st.SearchStrategy[Any]:
    """Filters in every form: conditions, lists of them, lists of lists, and trees."""
    condition = conditions(pools)
    conjunctions = st.lists(condition, min_size=1, max_size=3)
    trees = st.recursive(
        condition,
        lambda inner: (
            st.tuples(st.just("not"), inner)
            | st.builds(
                lambda word, parts: (word, *parts),
                st.sampled_from(["and", "or"]),
                st.lists(inner, min_size=1, max_size=3),
            )
        ),
        max_leaves=6,
    )
    return trees | conjunctions | st.lists(conjunctions, min_size=1, max_size=3)


def pools_of(table: pa.Table) -> dict[str, tuple[pa.DataType, list[Any]]]:
    return {
        field.name: (field.type, table[field.name].drop_null().slice(0, 20).to_pylist())
        for field in table.schema
    }


def same_rows(found: pa.Table, wanted: pa.Table) -> bool:
    # By text: NaN equals nothing, and the zeros differ.
    return found.schema.equals(wanted.schema) and repr(found.to_pylist()) == repr(wanted.to_pylist())
