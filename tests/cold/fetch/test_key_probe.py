"""Reads by key through filters: the same rows as without, and no byte of a filter for any other read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cold.filtered_objects import ON, table_of, write
from tests.cold.parquet_objects import KEY
from tests.support.memory_store import MemoryStore
from tiered.cold.fetch import key_probe, object_reader
from tiered.cold.fetch.key_probe import VALUES_MAX
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.parquet.key_filter_writer import KeyFilter
from tiered.cold.parquet.key_filters import KEY_BYTES_MAX
from tiered.format.checksum import crc32c
from tiered.format.manifest import ObjectEntry
from tiered.format.predicate import And, Comparison, In, IsNull, Not, Or, Predicate
from tiered.format.row_filter import RowFilter

KEYS = [None if at % 9 == 0 else f"user-{at * 7919 % 1500}" for at in range(2000)]
TABLE = table_of(pa.array(KEYS))
SCHEMA = pa.schema([field for field in TABLE.schema if field.name not in ("offset", "timestamp")])


def equals(value: Any, column: str = "key") -> Predicate:
    return Comparison(column, "==", value)


def read(
    store: MemoryStore,
    entry: ObjectEntry,
    predicate: Predicate | None,
    *,
    key: str | None = "key",
    **how: Any,
) -> list[int]:
    """The offsets of the rows that match."""
    rows = RowFilter(() if predicate is None else (predicate,), {"partition": 0})
    how = {"columns": ["offset", "body"], "key_column": key} | how
    found = read_object(store, KEY, entry, SCHEMA, row_filter=rows, **how)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def spans(store: MemoryStore) -> list[tuple[int, int]]:
    """Start and end of each range that was asked for since the last call."""
    asked = [(start, start + length) for verb, _, start, length in store.requests if verb == "range"]
    store.requests.clear()
    return asked


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every object as a large one, and filters as small ones."""
    monkeypatch.setattr(object_reader, "SMALL_OBJECT_BYTES", 0)
    monkeypatch.setattr(object_reader, "_GAP_BYTES", 0)
    monkeypatch.setattr(key_probe, "_SHARE", 0)


@pytest.fixture
def made() -> tuple[MemoryStore, ObjectEntry]:
    store, entry = write(TABLE, row_group_bytes=20_000)
    assert len(entry.row_groups) > 4
    assert entry.footer_position
    spans(store)
    return store, entry


def test_an_absent_key_takes_one_request_and_no_footer(made: tuple[MemoryStore, ObjectEntry]) -> None:
    store, entry = made
    assert read(store, entry, equals("nobody")) == []
    assert spans(store) == [(entry.tail_position, entry.footer_position)]
    assert read(store, entry, In("key", ("nobody", "none"))) == []
    assert spans(store) == [(entry.tail_position, entry.footer_position)]


def test_a_key_takes_its_row_groups_beside_filters_and_footer(made: tuple[MemoryStore, ObjectEntry]) -> None:
    store, entry = made
    wanted = KEYS[1001]
    expected = [at for at, key in enumerate(KEYS) if key == wanted]
    assert read(store, entry, equals(wanted)) == expected
    filters, footer, *rest = spans(store)
    assert filters == (entry.tail_position, entry.footer_position)
    assert footer == (entry.footer_position, entry.bytes)
    groups = [
        group for group in entry.row_groups
        if any(group.base_offset <= at < group.end_offset for at in expected)
    ]  # fmt: skip
    assert 0 < len(groups) < len(entry.row_groups)
    assert all(
        any(group.position <= start and end <= group.position + group.length for group in groups)
        for start, end in rest
    )


@pytest.mark.parametrize(
    "predicate",
    [
        None,
        IsNull("key"),
        Not(IsNull("key")),
        Not(equals("nobody")),
        Comparison("key", "<", "user-1"),
        equals(3, "number"),
        Or((equals("nobody"), IsNull("key"))),
        Or((equals("nobody"), equals(3, "number"))),
        Or((equals("nobody"), Not(In("key", ("nobody",))))),
        In("key", tuple(f"nobody-{number}" for number in range(VALUES_MAX + 1))),
        And((equals("nobody"), Comparison("offset", "<", 0))),
        equals("n" * (KEY_BYTES_MAX + 1)),
        In("key", ("nobody", "n" * (KEY_BYTES_MAX + 1))),
    ],
    ids=str,
)
def test_a_read_that_filters_cannot_help_fetches_none(
    made: tuple[MemoryStore, ObjectEntry], predicate: Predicate | None
) -> None:
    """Without a key, or with a condition that rows without the key match, too; and for too many keys."""
    store, entry = made
    expected = read(store, entry, predicate, key=None)
    spans(store)
    assert read(store, entry, predicate) == expected
    assert all(end <= entry.tail_position or start >= entry.footer_position for start, end in spans(store))


@pytest.mark.parametrize("columns", [None, ["number"], ["key", "offset"]])
@pytest.mark.parametrize("small", [True, False])
def test_a_plain_read_fetches_no_filter(
    made: tuple[MemoryStore, ObjectEntry], columns: list[str] | None, small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not of a small object either, unless one request for all of it goes over them."""
    store, entry = made
    if small:
        monkeypatch.setattr(object_reader, "SMALL_OBJECT_BYTES", 1 << 20)
    rows = read_object(store, KEY, entry, SCHEMA, columns=columns, key_column="key")
    assert sum(batch.num_rows for batch in rows) == len(KEYS)
    asked = spans(store)
    assert small or all(end <= entry.tail_position or start >= entry.footer_position for start, end in asked)
    assert sum(end - start for start, end in asked) <= entry.bytes


def test_filters_that_are_large_beside_the_rows_are_not_fetched(
    made: tuple[MemoryStore, ObjectEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a range of offsets in one row group: the filters of all of them would be as much."""
    store, entry = made
    monkeypatch.setattr(key_probe, "_SHARE", 4)
    first = entry.row_groups[0]
    assert read(store, entry, equals("nobody")) == []
    assert (entry.tail_position, entry.footer_position) in spans(store)
    monkeypatch.setattr(
        key_probe, "_SHARE", 1 + first.length // (entry.footer_position - entry.tail_position)
    )
    assert read(store, entry, equals("nobody"), end_offset=first.end_offset) == []
    assert (entry.tail_position, entry.footer_position) not in spans(store)


def spoilt(store: MemoryStore, entry: ObjectEntry, change: Any) -> bytes:
    """Change the bytes of the filters in the object; return the tail."""
    data = bytearray(store.objects[KEY][0])
    filters = data[entry.tail_position : entry.footer_position]
    change(filters)
    data[entry.tail_position : entry.footer_position] = filters
    store.objects[KEY] = (bytes(data), "spoilt")
    return bytes(data[entry.tail_position :])


def lose_bits(filters: bytearray) -> None:
    """Let the filters of all row groups have no key, under sound headers."""
    at = 0
    while at < len(filters):
        header = bytes(filters[at : at + 64])
        length = header.index(b"\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00") + 13
        number = shift = 0
        for byte in header[1:]:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        size = number >> 1
        filters[at + length : at + length + size] = bytes(size)
        at += length + size
    assert at == len(filters)


def test_filters_that_fail_their_checksum_are_not_believed(made: tuple[MemoryStore, ObjectEntry]) -> None:
    """Bits that got lost would hide rows: the row groups are read as if there were no filters."""
    store, entry = made
    expected = [at for at, key in enumerate(KEYS) if key == KEYS[1]]
    spoilt(store, entry, lose_bits)
    assert read(store, entry, equals(KEYS[1])) == expected
    # The same bits are believed under their own checksum: so it is the checksum that protects.
    lost = replace(
        entry, filters_crc=crc32c(store.objects[KEY][0][entry.tail_position : entry.footer_position])
    )
    assert read(store, lost, equals(KEYS[1])) == []


def test_filters_of_another_kind_are_not_used(made: tuple[MemoryStore, ObjectEntry]) -> None:
    """Under a right checksum too: as a later release may write them."""
    store, entry = made
    expected = [at for at, key in enumerate(KEYS) if key == KEYS[1]]

    def other_kind(filters: bytearray) -> None:
        lose_bits(filters)
        at = filters.index(b"\x1c\x1c\x00\x00")
        filters[at + 1] = 0x2C

    spoilt(store, entry, other_kind)
    data = store.objects[KEY][0]
    other = replace(entry, filters_crc=crc32c(data[entry.tail_position : entry.footer_position]))
    assert read(store, other, equals(KEYS[1])) == expected


@pytest.mark.parametrize("by", [-10, 10])
def test_filters_that_end_elsewhere_are_not_used(made: tuple[MemoryStore, ObjectEntry], by: int) -> None:
    """What an entry calls filters has to be all of them, and nothing else."""
    store, entry = made
    expected = [at for at, key in enumerate(KEYS) if key == KEYS[1]]
    spoilt(store, entry, lose_bits)
    data = store.objects[KEY][0]
    end = entry.footer_position + by
    other = replace(
        entry, footer_position=end, footer_crc=crc32c(data[end:]), filters_crc=crc32c(data[entry.tail_position : end])
    )  # fmt: skip
    assert read(store, other, equals(KEYS[1])) == expected


def test_an_object_without_filters_is_read(made: tuple[MemoryStore, ObjectEntry]) -> None:
    """One of an earlier release, and one whose entry an earlier release has written again."""
    expected = [at for at, key in enumerate(KEYS) if key == KEYS[1]]
    plain, without = write(TABLE, None, row_group_bytes=20_000)
    assert without.footer_position == 0
    assert read(plain, without, equals(KEYS[1])) == expected
    store, entry = made
    dropped = replace(entry, footer_position=0, footer_crc=0, filters_crc=0)
    assert read(store, dropped, equals(KEYS[1])) == expected
    assert read(store, dropped, equals("nobody")) == []
    assert read(store, dropped, None) == list(range(len(KEYS)))


KINDS = (pa.binary(), pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64())


def conditions(keys: list[Any]) -> st.SearchStrategy[Predicate]:
    key = st.sampled_from(keys)
    one = key.map(equals)
    some = st.lists(key, max_size=4).map(lambda values: In("key", tuple(values)))
    bounds = st.tuples(st.sampled_from(["<", ">="]), key).map(
        lambda drawn: Comparison("key", drawn[0], drawn[1])
    )
    other = st.integers(0, 5).map(lambda value: equals(value, "number"))
    offset = st.integers(0, 300).map(lambda value: Comparison("offset", ">=", value))
    leaf = one | some | one | bounds | other | offset | st.just(IsNull("key"))
    return st.recursive(
        leaf,
        lambda parts: (
            parts.map(Not)
            | st.lists(parts, min_size=1, max_size=3).map(lambda found: And(tuple(found)))
            | st.lists(parts, min_size=1, max_size=3).map(lambda found: Or(tuple(found)))
        ),
        max_leaves=5,
    )


@pytest.mark.extended
@given(st.data())
def test_rows_are_the_same_as_without_filters(data: st.DataObject) -> None:
    """Of any condition, of keys of every type that are there, in other row groups, and nowhere; with nulls."""
    kind = data.draw(st.sampled_from(KINDS))
    numbers = [data.draw(st.none() | st.integers(-120, 120)) for _ in range(20)]
    texts = pa.types.is_integer(kind)
    keys = [number if texts else None if number is None else f"k{number}" for number in numbers] * 10
    keys = keys[: data.draw(st.integers(1, 200))]
    column = pa.array(keys, None if texts else pa.string()).cast(kind)
    table = table_of(column)
    wish = data.draw(st.sampled_from([ON, ON, ON, None]))
    store, entry = write(table, wish, row_group_bytes=data.draw(st.sampled_from([200, 2000])))
    pool = pa.array(range(-128, 128, 7) if texts else [f"k{n}" for n in range(-128, 128)]).cast(kind)
    asked = conditions([*pool.to_pylist(), *(key for key in column.to_pylist() if key is not None)])
    schema = pa.schema([field for field in table.schema if field.name not in ("offset", "timestamp")])
    for _ in range(5):
        rows = RowFilter((data.draw(asked),), {"partition": 0})
        bounds = {"start_offset": data.draw(st.none() | st.integers(0, 200))}
        columns = data.draw(st.sampled_from([None, ["offset"], ["body", "offset"]]))
        found, expected = (
            [
                row
                for batch in read_object(
                    store, KEY, entry, schema, row_filter=rows, key_column=key, columns=columns, **bounds
                )
                for row in batch.to_pylist()
            ]
            for key in ("key", None)
        )
        assert found == expected


def test_filters_of_another_column_are_not_asked() -> None:
    """The column is that of the topic, whatever the condition is about."""
    store, entry = write(TABLE, KeyFilter("key", always=True), row_group_bytes=20_000)
    spans(store)
    assert read(store, entry, equals("nobody"), key="body") == []
    assert (entry.tail_position, entry.footer_position) not in spans(store)
