"""A filter of a scan leaves the same rows as the same filter afterwards, in every tier and whatever is pruned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.arrow_values import PLAIN_LEAVES, plain_types, schemas
from tests.support.clock import Clock
from tests.support.filters import as_read, column_values, filters, holds, pools_of, same_rows
from tests.support.row_groups import small_row_groups
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, open_store, stepwise, tier
from tiered.cold.fetch import object_reader
from tiered.format.schema import normalize_schema

MERGES = stepwise(merge={"after": "0s", "target_bytes": "1MiB"})
ADDED = pa.schema([("added", pa.float64())])


@contextmanager
def small_pieces(group_bytes: int) -> Iterator[None]:
    """Many row groups, each fetched alone."""
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch, group_bytes)
        patch.setattr(object_reader, "SMALL_OBJECT_BYTES", 0)
        patch.setattr(object_reader, "FETCH_BYTES", 1)
        yield


def fill(folder: Path, schema: pa.Schema, parts: list[pa.Table]) -> None:
    """Rows that are merged and evicted, in a compressed file, in a plain one, and in the tail of the bucket."""
    clock = Clock()
    with open_store(folder / "data", f"file://{folder}/bucket", clock, settings=MERGES) as store:
        topic = store.create_topic("t", partitions=2, schema=schema)
        for number, part in enumerate(parts[:4]):
            if number == 2:
                tier(store, clock, OFFLOAD_US)
                tier(store, clock, OFFLOAD_US)
                tier(store, clock, EVICT_US)
                topic.add_columns(ADDED)
            topic.append_batch(part, partition=number % 2)
            topic.append_batch(part, partition=1)
            topic.roll()
            clock.advance(1)
        tier(store, clock, COMPRESS_US)
        topic.append_batch(parts[4], partition=0)
        topic.flush()
        store.tierer.tail_pass()  # type: ignore[attr-defined]


def opened(folder: Path, stack: ExitStack, pending: pa.Table) -> Iterator[tiered.Topic]:
    """The topic by its directory, with rows in memory; over Flight; and by its bucket."""
    store = stack.enter_context(open_store(folder / "data", None, Clock()))
    topic = store.topic("t")
    topic.append_batch(pending, partition=1)
    yield topic
    yield stack.enter_context(tiered.open(store.serve("127.0.0.1:0").location)).topic("t")
    yield stack.enter_context(tiered.open(f"file://{folder}/bucket")).topic("t")


def check(data: st.DataObject, topic: tiered.Topic, whole: pa.Table) -> None:
    """One filter of a scan, with columns and a limit, against Python's own comparisons over all rows."""
    wanted = data.draw(filters(pools_of(whole)))
    names = whole.schema.names
    columns = data.draw(st.none() | st.lists(st.sampled_from(names), max_size=3, unique=True))
    limit = data.draw(st.none() | st.integers(0, 5))
    kept = [holds(wanted, row) is True for row in whole.to_pylist()]
    expected = whole.filter(pa.array(kept, pa.bool_())).slice(0, limit)
    found = topic.scan(filter=wanted, columns=columns, limit=limit).to_arrow()
    assert found.num_rows == expected.num_rows, wanted
    assert same_rows(found, expected if columns is None else expected.select(columns)), wanted


WIDE = pa.schema(
    [
        *((f"{kind}", kind) for kind in PLAIN_LEAVES),
        ("list", pa.list_(pa.field("element", pa.int8()))),
        ("struct", pa.struct([("x", pa.int64())])),
        ("few", pa.string()),
    ]
)


def wide_rows(number: int) -> pa.Table:
    """Rows of values near each other, so that row groups have narrow bounds; nulls, NaN, both zeros, long text."""
    random, count = Random(number), 30

    def value(kind: pa.DataType, at: int) -> Any:
        base = number * 20 + at // 3
        if random.random() < 0.1 or (number == 1 and pt.is_floating(kind)):
            return None
        if pt.is_boolean(kind):
            return number % 2 == 0 or at > 15
        if pt.is_floating(kind):
            return random.choice([float("nan"), 0.0, -0.0, base / 3, base / 3, -float("inf")])
        if pt.is_string(kind):
            return f"{base:04}" * (2000 if at == 29 else 1)
        if pt.is_binary(kind):
            return b"%04d" % base
        if pt.is_decimal(kind):
            return Decimal(base % 10)
        return as_read(kind, base % 120) if pt.is_temporal(kind) or pt.is_integer(kind) else None

    columns = {field.name: [value(field.type, at) for at in range(count)] for field in WIDE}
    columns["list"] = [None if at % 7 == 0 else [at] * (at % 3) for at in range(count)]
    columns["struct"] = [None if at % 5 == 0 else {"x": None if at % 3 else at} for at in range(count)]
    columns["few"] = [random.choice(["a", "b", None, f"c{number}"]) for _ in range(count)]
    return pa.table(columns, schema=WIDE)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[tiered.Topic, pa.Table]]]:
    folder = tmp_path_factory.mktemp("wide")
    with small_pieces(3000), ExitStack() as stack:
        fill(folder, WIDE, [wide_rows(number) for number in range(5)])
        yield [(topic, topic.scan().to_arrow()) for topic in opened(folder, stack, wide_rows(5))]


@pytest.mark.extended
@settings(max_examples=max(50, settings.default.max_examples // 20), deadline=None)
@given(data=st.data())
def test_any_filter_is_the_filter_afterwards(
    data: st.DataObject, topics: list[tuple[tiered.Topic, pa.Table]]
) -> None:
    """Of rows in memory, in files, in merged objects and in a tail; at the directory, over Flight, and at the bucket."""
    check(data, *data.draw(st.sampled_from(topics)))


@pytest.mark.extended
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_any_filter_of_any_rows_is_the_filter_afterwards(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema = normalize_schema(data.draw(schemas(plain_types, 2)))
    assume("added" not in map(str.lower, schema.names))
    # Few values, of which all rows are made: more would exceed what Hypothesis draws.
    drawn = [data.draw(st.lists(column_values(field.type), min_size=1, max_size=4)) for field in schema]
    random = Random(data.draw(st.integers(0, 99)))
    parts = [
        pa.table(
            [
                pa.array(random.choices(each, k=4), field.type)
                for each, field in zip(drawn, schema, strict=True)
            ],
            schema=schema,
        )
        for _ in range(6)
    ]
    folder = tmp_path_factory.mktemp("any")
    with small_pieces(300), ExitStack() as stack:
        fill(folder, schema, parts)
        for topic in opened(folder, stack, parts[5]):
            check(data, topic, topic.scan().to_arrow())


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("few == 'a'", tiered.ConfigError, "is not a filter; write"),
        ([], tiered.ConfigError, "no conditions"),
        ((), tiered.ConfigError, "is not a filter"),
        ([("few", "==", "a"), [("few", "==", "b")]], tiered.ConfigError, "tuples or lists, not both"),
        (("few", "like", "a"), tiered.ConfigError, "the operators are"),
        (("few", "=="), tiered.ConfigError, "is not a condition"),
        (("few", "is null", 1), tiered.ConfigError, "take no value"),
        (("few", "==", None), tiered.ConfigError, "nothing equals null"),
        (("few", "in", ["a", None]), tiered.ConfigError, "nothing equals null"),
        (("few", "in", "abc"), tiered.ConfigError, "takes a list"),
        (("not", ("few", "==", "a"), ("few", "==", "b")), tiered.ConfigError, "is not a filter"),
        (
            ("nowhere", "==", 1),
            tiered.SchemaMismatch,
            "no column 'nowhere'; the columns are topic, partition",
        ),
        (("list", "==", [1]), tiered.SchemaMismatch, "only test whether it is null"),
        (("int8", "==", 300), tiered.SchemaMismatch, "does not fit int8"),
        (("offset", "==", "1"), tiered.SchemaMismatch, "does not fit int64"),
        (("timestamp", ">", datetime(2024, 1, 1)), tiered.SchemaMismatch, "time zone"),
    ],
    ids=str,
)
def test_a_filter_that_is_wrong_is_refused(
    topics: list[tuple[tiered.Topic, pa.Table]], wrong: Any, error: type[Exception], message: str
) -> None:
    for topic, _ in topics:
        with pytest.raises(error, match=message):
            topic.scan(filter=wrong)


def test_a_filter_of_too_many_levels_is_refused(topics: list[tuple[tiered.Topic, pa.Table]]) -> None:
    deep: Any = ("few", "==", "a")
    for _ in range(98):
        deep = ("not", deep)
    assert topics[0][0].scan(filter=deep).to_arrow().num_rows
    with pytest.raises(tiered.ConfigError, match="at most 100 levels"):
        topics[0][0].scan(filter=("not", ("not", deep)))


def test_values_are_those_of_an_append(topics: list[tuple[tiered.Topic, pa.Table]]) -> None:
    """A float of 32 bits is found by the number that was appended, a time by its milliseconds, bytes by text."""
    topic, whole = topics[0]
    single = next(value for value in whole["float"].to_pylist() if value is not None and 0 < value < 1)
    third = round(single * 3) / 3
    assert single != third
    for condition in (("float", "==", third), ("float", "in", [third]), ("timestamp", ">=", 0)):
        assert topic.scan(filter=condition).to_arrow().num_rows
