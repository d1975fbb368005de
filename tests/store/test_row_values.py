"""What a row may give for a date, a map or a number, alone and within lists, so that nothing gets lost without a word."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tiered

SCHEMA = pa.schema(
    [("day", pa.date32()), ("days", pa.list_(pa.date32())), ("pairs", pa.map_(pa.string(), pa.int32()))]
)


@pytest.mark.parametrize(
    "odd", [0.5, 1.5, np.float64(1.5), Fraction(1, 2), Decimal("1.5"), UUID(int=5), np.array(5.5)], ids=repr
)
def test_a_part_of_a_day_is_no_date(tmp_path: Path, odd: object) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=SCHEMA)
        for row in ({"day": odd}, {"days": [odd]}):
            with pytest.raises(tiered.SchemaMismatch):
                topic.append(row)
            with pytest.raises(tiered.SchemaMismatch):
                topic.append_many([row])
        assert topic.offsets()[0].end == 0


TRUTHS = [True, np.True_, np.False_, np.array(True)]
NO_TIMES = [
    np.timedelta64("NaT"), np.timedelta64("NaT", "D"), np.timedelta64(2, "D"), timedelta(days=2), complex("nan"),
    np.complex64("nan"), np.array(np.nan), np.array([np.nan]),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int8(), pa.int64(), pa.float32(), pa.float64(),
     pa.decimal128(5, 2)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("odd", [*TRUTHS, *NO_TIMES], ids=repr)
def test_truth_values_and_durations_are_neither_numbers_nor_times(
    tmp_path: Path, kind: pa.DataType, odd: object
) -> None:
    """A truth value was the second day of 1970, and a duration that is none no day at all."""
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("one", kind), ("many", pa.list_(kind))]))
        for row in ({"one": odd}, {"many": [odd]}):
            with pytest.raises(tiered.SchemaMismatch):
                topic.append(row)
            with pytest.raises(tiered.SchemaMismatch):
                topic.append_many([row])
        assert topic.offsets()[0].end == 0


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
@pytest.mark.parametrize(
    "null", [float("nan"), np.float32("nan"), Decimal("nan"), np.datetime64("NaT"), pd.NaT], ids=repr
)
def test_what_a_frame_has_in_the_place_of_a_time_is_null(
    tmp_path: Path, kind: pa.DataType, null: object
) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("one", kind), ("many", pa.list_(kind))]))
        topic.append({"one": null, "many": [null]})
        assert [record.value for record in topic.read()] == [{"one": None, "many": [None]}]


@pytest.mark.parametrize(
    "day", [2, 2.0, np.int64(2), np.float32(2), Decimal(2), date(1970, 1, 3), datetime(1970, 1, 3)]
)
def test_whole_days_are_dates(tmp_path: Path, day: object) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=SCHEMA)
        topic.append({"day": day, "days": [day]})
        assert [record.value for record in topic.read()] == [
            {"day": date(1970, 1, 3), "days": [date(1970, 1, 3)], "pairs": None}
        ]


def test_nothing_is_read_into_bytes_of_numpy(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=SCHEMA)
        for odd in (np.void(b"ab"), b"", ""):
            with pytest.raises(tiered.SchemaMismatch):
                topic.append({"pairs": odd})
        assert topic.offsets()[0].end == 0


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int64(), pa.list_(pa.float64())], ids=str)
def test_complex_numbers_are_no_numbers_of_a_column(tmp_path: Path, kind: pa.DataType) -> None:
    """Of NumPy's, integer columns took those without an imaginary part, after a warning of NumPy; Python's were refused."""
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("number", kind)]))
        for odd in (np.complex64(1 + 2j), np.complex128(1), 1 + 2j):
            with pytest.raises(tiered.SchemaMismatch):
                topic.append({"number": [odd] if pa.types.is_list(kind) else odd})
        assert topic.offsets()[0].end == 0
