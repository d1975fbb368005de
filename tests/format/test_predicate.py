"""What a predicate says of statistics holds for all rows that have them."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.format.predicate import (
    FALSE,
    NULL,
    TRUE,
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    Statistics,
)
from tiered.format.row_filter import RowFilter

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("later", pa.int64())])
NUMBERS = st.integers(-2, 2)
FLOATS = st.sampled_from([float("nan"), -0.0, 0.0, 1.0, -1.0, float("inf")])
OPERATORS = st.sampled_from(["<", "<=", "==", ">=", ">"])
LEAVES: st.SearchStrategy[Any] = (
    st.builds(Comparison, st.sampled_from(["n", "later", "partition"]), OPERATORS, NUMBERS)
    | st.builds(Comparison, st.just("x"), OPERATORS, FLOATS)
    | st.builds(In, st.sampled_from(["n", "later", "partition"]), st.lists(NUMBERS, max_size=3).map(tuple))
    | st.builds(In, st.just("x"), st.lists(FLOATS, max_size=3).map(tuple))
    | st.builds(IsNull, st.sampled_from(["n", "x", "later", "partition"]))
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple))
    ),
    max_leaves=6,
)
ROWS = st.lists(st.tuples(st.none() | NUMBERS, st.none() | FLOATS), min_size=1, max_size=6)


def statistics_of(values: list[Any], *, wider: int) -> Statistics:
    bounded = [value for value in values if value is not None and value == value]
    return Statistics(
        min(bounded) - wider if bounded else None,
        max(bounded) + wider if bounded else None,
        null=None in values or bool(wider),
        nan=any(value is not None and value != value for value in values),
        value=any(value is not None for value in values),
    )


def outcomes_of(predicate: Predicate, rows: list[tuple[Any, Any]]) -> list[bool | None]:
    columns = {
        "n": pa.array([n for n, _ in rows], pa.int64()),
        "x": pa.array([x for _, x in rows], pa.float64()),
    }

    def column(name: str) -> Any:
        if name == "partition":
            return pa.scalar(1, pa.int32())
        return columns[name] if name in columns else pa.scalar(None, pa.int64())

    outcomes = predicate.evaluate(column)
    return [outcomes.as_py()] * len(rows) if isinstance(outcomes, pa.Scalar) else outcomes.to_pylist()


@given(
    predicate=PREDICATES,
    rows=ROWS,
    known=st.sets(st.sampled_from(["n", "x", "later"])),
    wider=st.integers(0, 1),
)
def test_every_outcome_of_a_row_is_one_that_the_statistics_allow(
    predicate: Predicate, rows: list[tuple[Any, Any]], known: set[str], wider: int
) -> None:
    statistics = {
        "n": statistics_of([n for n, _ in rows], wider=wider),
        "x": statistics_of([x for _, x in rows], wider=wider),
        "later": Statistics(value=False),
    }
    found = {name: item for name, item in statistics.items() if name in known}
    possible = predicate.outcomes({**found, "partition": Statistics(1, 1, null=False)}.get)
    flags = {True: TRUE, False: FALSE, None: NULL}
    outcomes = outcomes_of(predicate, rows)
    assert all(possible & flags[outcome] for outcome in outcomes)
    filtered = RowFilter.of(predicate, "t", 1).narrowed(found.get)
    matches = [outcome is True for outcome in outcomes]
    if filtered is None:
        assert not any(matches)
        return
    columns = {
        "n": pa.array([n for n, _ in rows], pa.int64()),
        "x": pa.array([x for _, x in rows], pa.float64()),
    }
    mask = filtered.mask(columns, SCHEMA)
    left = [mask] * len(rows) if isinstance(mask, bool) else [item is True for item in mask.to_pylist()]
    assert left == matches


@pytest.mark.parametrize(
    ("predicate", "statistics", "possible"),
    [
        (Comparison("n", "==", 5), Statistics(1, 4, null=False), FALSE),
        (Comparison("n", "==", 4), Statistics(1, 4, null=False), TRUE | FALSE),
        (Comparison("n", "==", 4), Statistics(4, 4, null=False), TRUE),
        (Comparison("n", "<", 1), Statistics(1, 4), FALSE | NULL),
        (Comparison("n", "<=", 1), Statistics(1, 4), TRUE | FALSE | NULL),
        (Comparison("n", ">", 4), Statistics(1, 4, null=False), FALSE),
        (Comparison("n", ">=", 1), Statistics(1, 4, null=False), TRUE),
        (Comparison("n", ">=", 1), Statistics(1, 4, null=False, nan=True), TRUE | FALSE),
        (Not(Comparison("n", "==", 4)), Statistics(4, 4), FALSE | NULL),
        (Not(Comparison("n", "==", 4)), Statistics(4, 4, nan=True), TRUE | FALSE | NULL),
        (Comparison("n", "==", 4), Statistics(value=False), NULL),
        (Comparison("n", "==", 4), Statistics(), TRUE | FALSE | NULL),
        (Comparison("n", "==", 4), None, TRUE | FALSE | NULL),
        (In("n", (0, 5)), Statistics(1, 4, null=False), FALSE),
        (In("n", (0, 3)), Statistics(3, 3, null=False), TRUE),
        (In("n", ()), Statistics(3, 3, null=False), FALSE),
        (IsNull("n"), Statistics(1, 4, null=False), FALSE),
        (IsNull("n"), Statistics(value=False), TRUE),
        (IsNull("n"), None, TRUE | FALSE),
    ],
    ids=str,
)
def test_statistics_leave_the_outcomes_that_are_possible(
    predicate: Predicate, statistics: Statistics | None, possible: int
) -> None:
    assert predicate.outcomes(lambda _: statistics) == possible


def test_the_values_of_a_dictionary_are_tested_once() -> None:
    encoded = pa.chunked_array(
        [pa.array(["a", None, "b", "a"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    )
    for predicate in (Comparison("s", ">", "a"), In("s", ("b", "c")), IsNull("s")):
        plain = pa.chunked_array([["a", None, "b", "a", "c", "a"]])
        found = predicate.evaluate(lambda _: encoded).to_pylist()
        assert found == predicate.evaluate(lambda _, plain=plain: plain).to_pylist()


def test_what_is_made_of_all_values_is_no_part_of_a_predicate() -> None:
    used, fresh = In("s", ("b", "c")), In("s", ("b", "c"))
    before = pickle.dumps(used)
    assert used.evaluate(lambda _: pa.array(["a", "b"])).to_pylist() == [False, True]
    assert used.outcomes(lambda _: Statistics("a", "b", null=False)) == TRUE | FALSE
    assert (used, hash(used), repr(used)) == (fresh, hash(fresh), repr(fresh))
    assert pickle.dumps(used) == before
    assert pickle.loads(before) == fresh
