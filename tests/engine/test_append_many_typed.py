"""`append_many` of rows to a typed topic goes by columns, and does what `append` of each row does, errors included."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.arrow_values import PLAIN_LEAVES, as_appended, plain_types, values
from tests.support.clock import Clock
from tests.support.filters import as_read
from tests.support.stores import open_store, stepwise
from tiered.engine import append
from tiered.errors import SchemaMismatch, TieredError
from tiered.format.schema import TIMESTAMP, normalize_schema
from tiered.format.sizes import largest_record
from tiered.hot.column_checks import ColumnChecker
from tiered.hot.row_checks import RowChecker

RECORD_BYTES_MAX = 2000
ODD = [
    True, 0, -1, 127, 128, 2**31, 2**63, -(2**63), 10**400, 10**14, 1.5, -0.0, 1e39, 3.4028234663852886e38, float("nan"),
    float("inf"), "", "text", "ä", "\ud800", "x" * 1500, b"", b"bytes", b"v" * 1500, Decimal("1.5"), Decimal(1), Decimal("1e-9"),
    Decimal("NaN"), Decimal("Infinity"), date(2024, 1, 2), date.max, datetime(2024, 1, 2), datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-9))), datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
    np.int8(3), np.int64(2**40), np.float32(0.1), np.float64("nan"), np.bool_(True), np.str_("text"), np.bytes_(b"b"),
    np.datetime64("NaT"), np.datetime64("2024-01-02"), pa.scalar(3), pa.scalar(None, pa.int8()), [], [1, None], {}, {"x": 1}, (), 1j,
]  # fmt: skip


class Text(str):
    __slots__ = ()


def drawn_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type as an append takes them; a date, as a date or as its number."""
    drawn = values(kind).map(lambda value: as_appended(kind, value))
    return drawn | values(kind).map(lambda value: as_read(kind, value)) if pt.is_date(kind) else drawn


@st.composite
def schemas_of_topics(draw: st.DrawFn) -> tuple[pa.Schema, str | None, str | None]:
    """Some columns, of which one may be the timestamp column, and one the key column."""
    leaves = st.sampled_from(PLAIN_LEAVES)
    kinds = draw(
        st.lists(leaves | plain_types if draw(st.integers(0, 3)) == 0 else leaves, min_size=1, max_size=3)
    )
    fields = [(f"c{at}", kind) for at, kind in enumerate(kinds)]
    stamp, key = draw(st.booleans()), draw(st.sampled_from([None, pa.string(), pa.binary(), pa.int16()]))
    if stamp:
        fields.append(("stamp", TIMESTAMP))
    if key is not None:
        fields.insert(0, ("key", key))
    return normalize_schema(pa.schema(fields)), "stamp" if stamp else None, "key" if key is not None else None


@st.composite
def lists_of_rows(draw: st.DrawFn, schema: pa.Schema) -> list[Any]:
    """Rows of few values; some lack columns. In some lists, a value, a column or a whole row may be wrong, or unusual."""
    odd = draw(st.sampled_from([False, False, True]))
    pools = {}
    for field in schema:
        drawn = drawn_values(field.type)
        if odd:
            drawn = drawn | st.sampled_from([*ODD, Text("text")])
        pools[field.name] = draw(st.lists(drawn, min_size=1, max_size=3))
    rows: list[Any] = []
    for _ in range(draw(st.integers(8, 30))):
        row = {name: pool[draw(st.integers(0, len(pool) - 1))] for name, pool in pools.items()}
        choice = draw(st.integers(0, 60 if odd else 20))
        if choice < 5:
            del row[draw(st.sampled_from(schema.names))]
        rows.append(
            {50: OrderedDict(row), 51: {**row, "other": 1}, 52: b"no dict", 53: None}.get(choice, row)
        )
    return rows


def checked_one_by_one(schema: pa.Schema, rows: list[Any]) -> tuple[list[list[Any]], list[int]] | None:
    check = RowChecker(schema)
    try:
        found = [check(row) for row in rows]
    except SchemaMismatch:
        return None
    return [list(column) for column in zip(*(values for values, _ in found), strict=True)], [
        size for _, size in found
    ]


@pytest.mark.extended
@settings(max_examples=max(100, settings.default.max_examples // 5), deadline=None)
@given(data=st.data())
def test_columns_that_are_checked_are_those_of_the_rows(data: st.DataObject) -> None:
    """The same values of the same Python types, and the same sizes, as of each row."""
    schema = data.draw(schemas_of_topics())[0]
    rows = data.draw(lists_of_rows(schema))
    found = ColumnChecker(schema)(rows)
    if found is not None:
        expected = checked_one_by_one(schema, rows)
        assert expected is not None
        assert repr([list(column) for column in found[0]]) == repr(expected[0])
        assert found[1] == expected[1]
        columns = [pa.array(column, field.type) for column, field in zip(found[0], schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        assert max(found[1]) == largest_record(batch, 0)


@pytest.mark.extended
@pytest.mark.parametrize(
    "kinds", [*map(st.just, PLAIN_LEAVES), plain_types], ids=[*map(str, PLAIN_LEAVES), "any"]
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_plain_values_of_every_type_are_checked_by_columns(
    kinds: st.SearchStrategy[pa.DataType], data: st.DataObject
) -> None:
    kind = normalize_schema(pa.schema([("c", data.draw(kinds))])).field(0).type
    drawn = data.draw(st.lists(drawn_values(kind), min_size=1, max_size=9))
    assert ColumnChecker(pa.schema([("c", kind)]))([{"c": value} for value in drawn] + [{}]) is not None


def stored(topic: tiered.Topic) -> dict[int, list[str]]:
    """Each row as text, without its offset, by partition: NaN equals nothing."""
    whole = topic.scan().to_arrow()
    rows: dict[int, list[str]] = {partition: [] for partition in range(topic.partitions)}
    for row in whole.to_pylist():
        assert row.pop("offset") == len(rows[row["partition"]])
        row.pop("topic")
        rows[row["partition"]].append(repr(row))
    return rows


def appended_one_by_one(topic: tiered.Topic, rows: list[Any]) -> Exception | None:
    for row in rows:
        try:
            topic.append(row)
        except TieredError as error:
            return error
    return None


def compare(store: tiered.Store, data: st.DataObject) -> None:
    """Append lists of rows to two topics, by `append_many` and by `append`, and compare what they hold."""
    schema, stamp, key = data.draw(schemas_of_topics())
    partitions = data.draw(st.sampled_from([1, 1, 3]))
    names = (os.urandom(4).hex(), os.urandom(4).hex())
    many, single = (
        store.create_topic(name, partitions=partitions, schema=schema, timestamp=stamp, key=key)
        for name in names
    )
    for rows in data.draw(st.lists(lists_of_rows(schema), min_size=1, max_size=3)):
        before = stored(many)
        error = appended_one_by_one(single, rows)
        if error is None:
            ranges = many.append_many(rows)
            assert sum(item.end - item.start for item in ranges) == len(rows)
            continue
        with pytest.raises(type(error)) as raised:
            many.append_many(rows)
        assert str(raised.value) == str(error)
        assert stored(many) == before
        return
    found, expected = stored(many), stored(single)
    if partitions == 1:
        assert found == expected
    else:
        assert Counter(chain(*map(keyed, found.values()))) == Counter(chain(*map(keyed, expected.values())))
        for partition in range(partitions):
            with_key = [row for row in found[partition] if has_key(row)]
            assert with_key == [row for row in expected[partition] if has_key(row)]


def keyed(rows: list[str]) -> list[str]:
    """The rows without their partition."""
    return [row.split(", ", 1)[1] for row in rows]


def has_key(row: str) -> bool:
    return "'key': " in row and not any(f"'key': {empty}" in row for empty in ("None", "''", "b''"))


@pytest.mark.extended
@settings(
    max_examples=max(80, settings.default.max_examples // 5),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), block_bytes=st.sampled_from([512, 4096, 1 << 20]))
def test_any_rows_are_appended_or_refused_as_one_by_one(
    tmp_path: Path, data: st.DataObject, block_bytes: int
) -> None:
    options = stepwise({"block_bytes": block_bytes, "max_record_bytes": RECORD_BYTES_MAX})
    with open_store(tmp_path / os.urandom(8).hex(), None, Clock(), settings=options) as store:
        compare(store, data)


@pytest.mark.extended
@settings(
    max_examples=max(40, settings.default.max_examples // 20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_rows_are_appended_or_refused_as_one_by_one_over_flight(
    tmp_path: Path, data: st.DataObject
) -> None:
    options = stepwise({"block_bytes": 4096, "max_record_bytes": RECORD_BYTES_MAX})
    with open_store(tmp_path / os.urandom(8).hex(), None, Clock(), settings=options) as store:
        location = store.serve("127.0.0.1:0").location
        with tiered.open(location, host=store.context.host) as remote:  # type: ignore[attr-defined]
            compare(remote, data)


NESTED = pa.schema(
    [
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", pa.struct([("x", pa.int64())])),
    ]
)


def test_a_list_that_the_caller_changes_later_changes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("t", schema=NESTED)
        rows = [{"list": [at], "map": {"k": at}, "struct": {"x": at}} for at in range(20)]
        expected = [{"list": [at], "map": [("k", at)], "struct": {"x": at}} for at in range(20)]
        assert ColumnChecker(topic.schema)(rows) is not None
        topic.append_many(rows)
        for row in rows:
            row["list"].append(7)  # type: ignore[union-attr]
            row["map"]["l"] = 7  # type: ignore[index]
            row["struct"]["x"] = 7  # type: ignore[index]
        assert topic.scan(columns=NESTED.names).to_arrow().to_pylist() == expected


def test_rows_one_by_one_and_by_columns_share_a_block(tmp_path: Path) -> None:
    """Both checks keep a struct in one form: Arrow builds no column of dicts and tuples."""
    rows = [{"list": [at], "map": [("k", at)], "struct": {"x": at}} for at in range(22)]
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("t", schema=NESTED)
        topic.append(rows[0])
        topic.append_many(row | {"map": dict(row["map"])} for row in rows[1:21])  # type: ignore[call-overload]
        topic.append(rows[21])
        assert topic.scan(columns=NESTED.names).to_arrow().to_pylist() == rows


@pytest.mark.parametrize("last", [1, "wrong"])
def test_an_iterator_is_consumed_once(tmp_path: Path, last: Any) -> None:
    """A second check would find an empty map, and accept it."""
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("t", schema=NESTED)
        rows: list[dict[str, Any]] = [{"list": [1], "map": {"k": 1}}] * 20
        rows.append({"map": (("k", number) for number in (1, last))})
        if last == 1:
            topic.append_many(rows)
            assert topic.scan().to_arrow()["map"].to_pylist()[-1] == [("k", 1), ("k", 1)]
        else:
            with pytest.raises(SchemaMismatch, match="column 'map'"):
                topic.append_many(rows)
            assert topic.offsets()[0].end == 0


@pytest.mark.parametrize("count", [20, 2000])
def test_rows_with_columns_that_the_topic_gained_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Of rows that were checked before, and after; with the pending rows, and as blocks of their own."""
    options = stepwise({"block_bytes": 4096})
    with open_store(tmp_path, None, Clock(), settings=options) as store:
        topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
        topic.append_many([{"a": 1}] * 20)
        topic.add_columns(pa.schema([("b", pa.string())]))
        topic.append_many([{"a": 2, "b": "x"}] * count)
        plain_records = append.plain_records

        def grown(*arguments: Any) -> Any:
            found = plain_records(*arguments)
            assert found is not None
            topic.add_columns(pa.schema([("c", pa.list_(pa.int8()))]))
            topic.append({"c": [1]})
            return found

        monkeypatch.setattr(append, "plain_records", grown)
        topic.append_many([{"a": 3, "b": "y"}] * count)
        expected = (
            [(1, None, None)] * 20 + [(2, "x", None)] * count + [(None, None, [1])] + [(3, "y", None)] * count
        )
        table = topic.scan().to_arrow()
        assert list(zip(*(table[name].to_pylist() for name in "abc"), strict=True)) == expected
