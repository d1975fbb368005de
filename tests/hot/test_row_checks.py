"""Rows of typed topics: a value is kept as it is, or refused; nothing of it gets lost without a word."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiered.errors import SchemaMismatch
from tiered.hot.row_checks import RowChecker

MOMENT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
MOMENT_US = 1_704_164_645_000_006
INSTANT = pa.timestamp("us", "UTC")
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])


def kept(kind: pa.DataType, value: object) -> Any:
    """What a column of the type holds after an append of the value."""
    [found], _ = RowChecker(pa.schema([("c", kind)]))({"c": value})
    return pa.array([found], kind)[0].as_py()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PAIR, {"a": 1, "typo": 2}),
        (PAIR, {"A": 1}),
        (pa.list_(PAIR), [{"a": 1, "typo": 2}]),
        (pa.map_(pa.string(), PAIR), {"k": {"typo": 2}}),
        (pa.list_(pa.int64()), [1.5]),
        (pa.list_(pa.int64()), np.array([1.5])),
        (pa.list_(pa.int64()), [Decimal("1.5")]),
        (PAIR, {"a": 1.5}),
        (pa.list_(pa.string()), "abc"),
        (pa.list_(pa.int64()), b"abc"),
        (pa.date32(), MOMENT),
        (pa.list_(pa.date32()), [MOMENT]),
        (INSTANT, 1.7e9),
        (pa.list_(INSTANT), [MOMENT.replace(tzinfo=None)]),
        (pa.timestamp("us"), np.datetime64("2024-01-01T00:00:00.000000001")),
        (INSTANT, np.datetime64("2024-01-02")),
        (pa.date32(), np.datetime64("2024-01-02T03")),
        (pa.timestamp("us"), np.datetime64(300_000, "Y")),
        (pa.date32(), np.datetime64(-(2**62), "D")),
        (pa.float32(), 1e300),
        (pa.list_(pa.float32()), [1e300]),
        (pa.map_(pa.string(), pa.int64()), [(None, 1)]),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(kind: pa.DataType, value: object) -> None:
    with pytest.raises(SchemaMismatch, match="column 'c'"):
        kept(kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (PAIR, {"b": "x"}, {"a": None, "b": "x"}),
        (pa.list_(pa.int64()), [1.0, None, np.int64(3)], [1, None, 3]),
        (pa.list_(pa.list_(pa.float32())), np.array([[1, 2]], np.float32), [[1.0, 2.0]]),
        (pa.list_(INSTANT), [1000, MOMENT], [datetime.fromtimestamp(1, UTC), MOMENT]),
        (pa.map_(pa.string(), pa.date32()), {"k": date(2024, 1, 2)}, [("k", date(2024, 1, 2))]),
        (pa.map_(pa.string(), pa.int8()), [("k", 1), {"key": "l", "value": None}], [("k", 1), ("l", None)]),
        (pa.date32(), datetime(2024, 1, 2, tzinfo=UTC), date(2024, 1, 2)),
        (pa.timestamp("us"), np.datetime64("2024-01-02T00:00:00"), datetime(2024, 1, 2)),
        (pa.timestamp("us"), np.datetime64("2024-01-02"), datetime(2024, 1, 2)),
        (pa.timestamp("us"), np.datetime64("2024-01"), datetime(2024, 1, 1)),
        (pa.timestamp("us"), np.datetime64("2024-01-02T03"), datetime(2024, 1, 2, 3)),
        (pa.date32(), np.datetime64("2024-01-02"), date(2024, 1, 2)),
        (pa.date32(), np.datetime64("2024-01-02T00:00:00"), date(2024, 1, 2)),
        (INSTANT, np.datetime64("NaT"), None),
        (pa.date32(), np.datetime64("NaT"), None),
        (pa.float32(), float("-inf"), float("-inf")),
    ],
    ids=str,
)
def test_a_value_that_fits_is_kept(kind: pa.DataType, value: object, found: object) -> None:
    """An integer is milliseconds and NaT is null at any depth."""
    assert kept(kind, value) == found


def test_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    assert kept(INSTANT, pandas.NaT) is None
    assert kept(pa.date32(), pandas.NaT) is None
    assert kept(INSTANT, pandas.Timestamp(MOMENT)) == MOMENT
    with pytest.raises(SchemaMismatch, match="nanoseconds"):
        kept(INSTANT, pandas.Timestamp(MOMENT_US * 1000 + 1, unit="ns", tz="UTC"))
