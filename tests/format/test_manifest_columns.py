"""A page as columns has the entries that decoding it one by one has, or is refused with the same words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manifest_values import entries, entry
from tiered.errors import TieredError
from tiered.format import manifest_codec, manifest_page
from tiered.format.manifest import (
    FILTERS_BYTES_MAX,
    GROUP_RECORDS_MAX,
    RANGE_BYTES_MAX,
    ObjectEntry,
    PageRef,
    RowGroup,
)
from tiered.format.manifest_codec import decode_page, encode_page, entry_to_json
from tiered.format.manifest_columns import EntryColumns, IntegerColumn, field_of, overlapping

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def one_by_one(data: bytes, ref: PageRef) -> Sequence[ObjectEntry]:
    """Decode a page without columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_codec, "decode_columns", lambda raw, ref: None)
        return decode_page(data, ref, where="p")


def outcome(decode: Callable[[], Sequence[ObjectEntry]]) -> tuple[Any, ...]:
    """What a caller sees: the entries, or class and words of an error."""
    try:
        decoded = tuple(decode())
    except TieredError as error:
        return type(error), str(error)
    return decoded, repr(decoded), hash(decoded)


def reference(ref: PageRef, raw: bytes) -> tuple[PageRef, bytes]:
    """Return the page of these bytes as a head that fits it would name it."""
    data = zstandard.compress(raw)
    return replace(ref, bytes=len(data), crc=crc32c(data)), data


def check_same(ref: PageRef, raw: bytes) -> tuple[Any, ...]:
    """Check that both ways to decode these bytes have one outcome, and return it."""
    ref, data = reference(ref, raw)
    seen = outcome(lambda: decode_page(data, ref, where="p"))
    assert seen == outcome(lambda: one_by_one(data, ref))
    return seen


def page_of(objects: Sequence[ObjectEntry], **summary: Any) -> tuple[PageRef, dict[str, Any]]:
    ref, data = encode_page("p", tuple(objects))
    return replace(ref, **summary), json.loads(zstandard.decompress(data))


def dump(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()


@st.composite
def real_entries(draw: st.DrawFn) -> tuple[ObjectEntry, ...]:
    """Entries end to end with any value that a page can hold in each field."""
    # A page of many braces, or with "null" in a text, is decoded one by one: see `SPELLED`.
    texts = st.text(st.characters(codec="ascii", exclude_characters="{"), max_size=70).filter(
        lambda text: "null" not in text
    ) | st.sampled_from(["", "ab" * 32, '\x7f\\"\n/'])
    found: list[ObjectEntry] = []
    base = draw(st.sampled_from([0, 1, (1 << 40) + 5, 1 << 62]))
    for segment in range(draw(st.integers(1, 5))):
        position, start, groups = 0, base, []
        for _ in range(draw(st.integers(0, 4))):
            end = start + draw(st.integers(1, 5) | st.sampled_from([300, GROUP_RECORDS_MAX, 1 << 33]))
            count = draw(st.integers(1, min(end - start, GROUP_RECORDS_MAX)))
            length = draw(st.integers(1, 9) | st.sampled_from([70_000, RANGE_BYTES_MAX]))
            numbers = (draw(INT64), draw(INT64), draw(INT64))
            groups.append(RowGroup(start, end, count, position, length, *numbers))
            start, position = end, position + length
        end = start if groups else base + draw(st.integers(1, 1 << 33))
        size = position + draw(st.integers(3, RANGE_BYTES_MAX))
        filters = draw(st.just(0) | st.integers(1, min(size - position - 1, FILTERS_BYTES_MAX)))
        found.append(
            ObjectEntry(
                f"{base:020d}-{segment}.parquet", base, end, sum(group.record_count for group in groups),
                draw(INT64), draw(INT64), draw(INT64),
                tuple(draw(st.lists(st.uuids(), min_size=1, max_size=3))), draw(INT64), draw(st.booleans()),
                size, draw(INT64), position, draw(INT64),
                draw(texts), draw(texts), tuple(groups), draw(texts), draw(texts),
                *((position + filters, draw(INT64), draw(INT64)) if filters else ()),
            )
        )  # fmt: skip
        base = end
    return tuple(found)


@given(real_entries())
def test_columns_have_the_entries_that_were_written(objects: tuple[ObjectEntry, ...]) -> None:
    ref, data = encode_page("p", objects)
    page = decode_page(data, ref, where="p")
    assert isinstance(page, EntryColumns)
    assert len(page) == len(objects)
    # By index before the page makes all its entries, and after that.
    for _ in range(2):
        for row, written in enumerate(objects):
            made = page[row]
            assert (made, repr(made), hash(made)) == (written, repr(written), hash(written))
            assert written == made
            assert page[row - len(objects)] == written
        assert tuple(page) == objects == tuple(one_by_one(data, ref))
    assert page == objects
    assert page == list(objects)
    assert page != objects[1:]
    assert page[1:] == objects[1:]
    with pytest.raises(IndexError):
        page[len(objects)]


@given(real_entries())
def test_an_entry_of_columns_is_an_entry_in_every_other_way(objects: tuple[ObjectEntry, ...]) -> None:
    ref, data = encode_page("p", objects)
    for made, written in zip(decode_page(data, ref, where="p"), objects, strict=True):
        assert entry_to_json(made) == entry_to_json(written)
        assert replace(made, generation=5) == replace(written, generation=5)
        groups, expected = made.row_groups, written.row_groups
        assert (len(groups), list(groups), tuple(groups[1:])) == (len(expected), list(expected), expected[1:])
        assert [groups[i] for i in range(-len(groups), len(groups))] == [*expected, *expected]
        assert groups != (*expected, None)
        assert made != replace(written, row_groups=(*expected, None))
        sent = pickle.dumps(made)
        assert pickle.loads(sent) == written
        assert b"EntryColumns" not in sent  # nor the other entries with it
    assert encode_page("p", tuple(decode_page(data, ref, where="p"))) == (ref, data)


@given(real_entries(), st.data())
def test_a_range_has_the_entries_that_overlap_it(
    objects: tuple[ObjectEntry, ...], data: st.DataObject
) -> None:
    ref, stored = encode_page("p", objects)
    page = decode_page(stored, ref, where="p")
    edges = [value for item in objects for value in (item.base_offset, item.end_offset)]
    near = st.sampled_from(edges).flatmap(lambda edge: st.integers(edge - 1, edge + 1))
    low, high = data.draw(near | INT64), data.draw(near | INT64)
    wanted = [item for item in objects if item.end_offset > low and item.base_offset < high]
    for held in (objects, page):
        rows = overlapping(held, low, high)
        assert [held[row] for row in rows] == wanted
        for name in ("name", "base_offset", "bytes", "sealed", "end_hash"):
            assert field_of(held, name, rows) == [getattr(item, name) for item in wanted]


@given(st.lists(INT64, max_size=20))
def test_integers_of_any_distance_are_stored_without_loss(values: list[int]) -> None:
    column = IntegerColumn.of(np.array(values, np.int64))
    assert column.to_list(0, len(values)) == values
    assert [column[i] for i in range(len(column))] == values
    assert all(
        type(value) is int
        for value in (*column.to_list(0, len(values)), *(column[i] for i in range(len(values))))
    )
    spread = max(values, default=0) - min(values, default=0)
    assert (
        column.differences.itemsize * 8
        >= spread.bit_length()
        > (column.differences.itemsize * 4 if spread > 255 else -1)
    )


SOUND = (
    entry(0, 7, 1, groups=1),
    entry(7, 20, (2, 3), groups=3, storage_class="GLACIER_IR"),
    entry(20, 30, 4, record_count=0, row_groups=(), tail_position=0),
    entry(30, 40, 5, groups=2, sealed=False, end_hash="ef"),
    entry(40, 50, 6, groups=2, footer_position=220, footer_crc=7, filters_crc=8),
)
ODD: tuple[Any, ...] = (
    KeyError, None, "x", "", "null", -1, 0, 1, 1.0, 1.5, True, False, [], {}, [[]], [{}], [None], 2**63 - 1, 2**63,
    -(2**63), -(2**63) - 1, 10**30, RANGE_BYTES_MAX + 1, GROUP_RECORDS_MAX + 1, {"1": []}, {"x": "y"}, [1, 2, 3],
    [[1, 2, 3, 4, 5, 6, 7, 8]], [[0, 7, 7, 0, 100, 0, 0, True]], [[0, 7, 7, 0, 100, 0, 0, None]], ["x"],
    ["00000000-0000-0000-0000-00000000000a"], ["00000000-0000-0000-0000-00000000000A"], ["{" + "0" * 32 + "}"],
    ["0" * 32], ["0" * 36], ["00000000-0000-0000-0000- 0000000000a"], ["00000000-0000-0000-0000-0000000000é"],
    ["00000000-0000-0000-0000-0000000000_a"], ["urn:uuid:00000000-0000-0000-0000-00000000000a"],
    ["00000000-0000-0000-0000-  000000000a"],
    ["  000000-0000-0000-0000-00000000000a"],
    ["00000000-0000-0000-0000-00000000000", "000000000-0000-0000-0000-00000000000a"],
    "../x", "a/b", ".a", "é", "\ud800", "a\0b", "a\nb", "x" * 255, "x" * 256, "name\n", SOUND[0].name,
)  # fmt: skip


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within JSON values."""
    items = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    return [path, *(found for key, value in items for found in places(value, (*path, key)))]


def changed(values: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with one value replaced, or removed for KeyError."""
    if not path:
        return value
    copy = values.copy()
    if value is KeyError and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(values[path[0]], path[1:], value)
    return copy


SOUND_REF, SOUND_VALUES = page_of(SOUND, record_count=None, object_bytes=None, last_append_us=None)
PLACES = [path for path in places(SOUND_VALUES) if path]


@pytest.mark.extended
@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_each_odd_value_in_each_place_has_one_outcome(path: tuple[Any, ...]) -> None:
    at: Any = SOUND_VALUES
    for step in path:
        at = at[step]
    near = (at - 1, at + 1, at + 100, -at) if type(at) is int else ()
    for value in (*ODD, *near):
        check_same(SOUND_REF, dump(changed(SOUND_VALUES, path, value)))


@given(st.data())
def test_several_odd_values_have_one_outcome(data: st.DataObject) -> None:
    """Numbers above all: sums that wrap around in 64 bits must not fit by that."""
    numbers = [path for path in PLACES if type(_at(SOUND_VALUES, path)) is int]
    huge = st.sampled_from([0, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 62), -1, 1 << 32]).flatmap(
        lambda value: st.integers(max(-(1 << 63), value - 110), min((1 << 63) - 1, value + 110))
    )
    values = SOUND_VALUES
    for _ in range(data.draw(st.integers(1, 4))):
        values = changed(values, data.draw(st.sampled_from(numbers)), data.draw(huge | INT64))
    first, last = values["entries"][0], values["entries"][-1]
    ref = replace(SOUND_REF, base_offset=first["base_offset"], end_offset=last["end_offset"])
    check_same(ref, dump(values))


def _at(values: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        values = values[step]
    return values


def _object(base: int, *groups: tuple[int, int, int, int], **changes: Any) -> dict[str, Any]:
    """An object of row groups (end offset, records, position, length), whose numbers agree as far as they can."""
    rows, start = [], base
    for end, records, position, length in groups:
        rows.append([start, end, records, position, length, 0, 0, 0])
        start = end
    tail = groups[-1][2] + groups[-1][3] if groups else 0
    values = {
        "end_offset": start if groups else base + 1,
        "record_count": sum(group[1] for group in groups),
        "tail_position": tail,
        "bytes": tail + 1,
        "row_groups": rows,
    }
    return {**entry_to_json(entry(0, 1, 1)), "base_offset": base, "name": f"at{base}", **values, **changes}


HUGE = 1 << 63
UNSOUND = {
    "negative offsets": [_object(-9, (-3, 6, 0, 10), (0, 3, 10, 10), name="a")],
    "an end before its base": [_object(10, end_offset=5), _object(5, (20, 15, 0, 10))],
    "nothing between": [_object(10, end_offset=10), _object(10, (20, 10, 0, 10), name="b")],
    "a row group of no bytes": [_object(0, (5, 5, 0, 0), (9, 4, 0, 10))],
    "a row group of negative length": [_object(0, (5, 5, 0, 10), (9, 4, 10, -5))],
    "a long row group": [_object(0, (5, 5, 0, RANGE_BYTES_MAX + 1))],
    "a row group without records": [_object(0, (5, 0, 0, 10), (9, 4, 10, 10))],
    "a negative number of records": [_object(0, (5, -1, 0, 10), (9, 4, 10, 10))],
    "many records": [_object(0, (1 << 40, GROUP_RECORDS_MAX + 1, 0, 10))],
    "more records than offsets": [_object(0, (5, 6, 0, 10), (9, 3, 10, 10))],
    "a long footer": [_object(0, (5, 5, 0, 10), bytes=10 + RANGE_BYTES_MAX + 1)],
    "filters before the tail": [_object(0, (5, 5, 0, 10), bytes=30, footer_position=9)],
    "filters without bytes": [_object(0, (5, 5, 0, 10), bytes=30, footer_position=10)],
    "filters and no footer": [_object(0, (5, 5, 0, 10), bytes=30, footer_position=30)],
    "large filters": [
        _object(0, (5, 5, 0, 10), bytes=30 + FILTERS_BYTES_MAX, footer_position=11 + FILTERS_BYTES_MAX)
    ],
    "filters that wrap": [_object(0, (5, 5, 0, 10), bytes=30, footer_position=-HUGE)],
    "a checksum of no filters": [_object(0, (5, 5, 0, 10), bytes=30, filters_crc=1)],
    "a checksum of no footer": [_object(0, (5, 5, 0, 10), bytes=30, footer_crc=1)],
    "no footer": [_object(0, (5, 5, 0, 10), bytes=10)],
    "another number of records": [_object(0, (5, 5, 0, 10), record_count=4)],
    "records without a row group": [_object(0, record_count=1)],
    "row groups that end early": [_object(0, (5, 5, 0, 10), end_offset=6)],
    "row groups that end late": [_object(0, (5, 5, 0, 10), end_offset=4)],
    "a gap between bytes": [_object(0, (5, 5, 0, 10), (9, 4, 11, 10))],
    "bytes twice": [_object(0, (5, 5, 0, 10), (9, 4, 9, 10))],
    "bytes that begin late": [_object(0, (5, 5, 4, 10))],
    "a gap between objects": [_object(0, (5, 5, 0, 10)), _object(6, (9, 3, 0, 10))],
    "offsets twice": [_object(0, (5, 5, 0, 10)), _object(4, (9, 5, 0, 10))],
    # The distances are right in 64 bits that wrap around.
    "an end that wraps": [_object(10, (-HUGE, 1, 0, 10), (-1, 1, 10, 10), (20, 1, 20, 10))],
    "an object's end that wraps": [
        _object(10, end_offset=-HUGE),
        _object(-HUGE, end_offset=-1, name="b"),
        _object(-1, (20, 1, 0, 1), name="c"),
    ],
    "a position that wraps": [
        _object(0, (5, 5, 0, HUGE - 1), (9, 4, HUGE - 1, 10), tail_position=9, bytes=10)
    ],
    "bytes that wrap": [_object(0, (5, 5, 0, 10), bytes=-HUGE)],
}


@pytest.mark.parametrize("name", UNSOUND)
def test_objects_that_contradict_themselves_are_refused(name: str) -> None:
    """Under a reference that fits them, so that only their own numbers speak against them."""
    objects = UNSOUND[name]
    ref = replace(
        SOUND_REF,
        count=len(objects),
        base_offset=objects[0]["base_offset"],
        end_offset=objects[-1]["end_offset"],
    )
    kind, *_ = check_same(ref, dump({"version": 1, "entries": objects}))
    assert isinstance(kind, type)
    assert issubclass(kind, TieredError)


def test_objects_of_these_parts_are_sound_otherwise() -> None:
    objects = [
        _object(0, (5, 5, 0, 10), (9, 4, 10, 10)),
        _object(9),
        _object(10, (20, 3, 0, RANGE_BYTES_MAX)),
        _object(20, (30, 3, 0, 10), bytes=11 + FILTERS_BYTES_MAX, footer_position=10 + FILTERS_BYTES_MAX),
    ]
    ref = replace(SOUND_REF, count=4, base_offset=0, end_offset=30)
    decoded, *_ = check_same(ref, dump({"version": 1, "entries": objects}))
    assert [item.end_offset for item in decoded] == [9, 10, 20, 30]


@pytest.mark.parametrize(
    "name", ["record_count", "object_bytes", "last_append_us", "count", "base_offset", "end_offset"]
)
@pytest.mark.parametrize("change", [-1, 1, 1 << 40])
def test_a_reference_that_says_something_else_has_one_outcome(name: str, change: int) -> None:
    ref, values = page_of(SOUND)
    kind, *_ = check_same(replace(ref, **{name: getattr(ref, name) + change}), dump(values))
    assert isinstance(kind, type)
    assert issubclass(kind, TieredError)


RAW = dump(SOUND_VALUES)
SPELLED = {
    "as written": RAW,
    "spaces": json.dumps(SOUND_VALUES, indent=1).encode(),
    "spaces around": b" \r\n\t" + RAW + b"\n\n ",
    "another order": json.dumps(dict(reversed(SOUND_VALUES.items()))).encode(),
    "escapes": RAW.replace(b'"name"', b'"n\\u0061me"').replace(b"GLACIER", b"GL\\u0041CIER"),
    "a byte-order mark": b"\xef\xbb\xbf" + RAW,
    "UTF-16": RAW.decode().encode("utf-16"),
    "UTF-16 without a mark": RAW.decode().encode("utf-16-le"),
    "not UTF-8": RAW.replace(b"GLACIER", b"GLACI\xff"),
    "UTF-8": RAW.replace(b"GLACIER", "GLACIÉ".encode()),
    "braces in a text": RAW.replace(b"GLACIER", b"{" * 100),
    "null in a text": RAW.replace(b"GLACIER", b"null"),
    "a surrogate": RAW.replace(b"GLACIER", b"\\ud800"),
    "a NUL at the end": RAW + b"\0",
    "a NUL and more": RAW + b"\0]]",
    "a NUL in a text": RAW.replace(b"GLACIER", b"GLA\0"),
    "an escaped NUL in a text": RAW.replace(b"GLACIER", b"\\u0000"),
    "two pages": RAW + RAW,
    "two pages in lines": RAW + b"\n" + RAW,
    "a comma": RAW + b",",
    "a comment": RAW + b"/* */",
    "a comma before the end": RAW.replace(b'"version":1', b'"version":1,'),
    "cut": RAW[:-1],
    "empty": b"",
    "no object": b"[]",
    "no entries": b'{"version":1}',
    "entries twice": RAW[:-1] + b',"entries":[]}',
    "version twice": b'{"version":1,' + RAW[1:],
    "version twice, newer": b'{"version":2,' + RAW[1:],
    "a field twice": RAW.replace(b'"sealed":true', b'"sealed":false,"sealed":true', 1),
    "a field more": RAW.replace(b'"sealed":true', b'"sealed":true,"later":{"a":[1]}', 1),
    "a field more above": b'{"later":1,' + RAW[1:],
    "a deep field more": b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"," + RAW[1:],
    "a deep value": RAW.replace(b'"sealed":true', b'"sealed":' + b"[" * 100_000 + b"]" * 100_000, 1),
    "minus zero": RAW.replace(b'"generation":0', b'"generation":-0'),
    "a plus": RAW.replace(b'"generation":0', b'"generation":+0'),
    "a leading zero": RAW.replace(b'"generation":0', b'"generation":00'),
    "an exponent": RAW.replace(b'"generation":0', b'"generation":0e0'),
    "not a number": RAW.replace(b'"generation":0', b'"generation":NaN'),
    "a very long number": RAW.replace(b'"generation":0', b'"generation":' + b"9" * 10_000),
    "null for a class": RAW.replace(b'"GLACIER_IR"', b"null"),
    "null for a class, with spaces": RAW.replace(b'"GLACIER_IR"', b" null "),
    "null in a row group": RAW.replace(b",100,", b",null,", 1),
    "null beside row groups": RAW.replace(b"[[", b"[null,[", 1),
    "null beside entries": RAW.replace(b'"entries":[', b'"entries":[null,'),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_each_spelling_has_one_outcome(name: str) -> None:
    check_same(SOUND_REF, SPELLED[name])


def test_the_spellings_are_what_they_say() -> None:
    """So that none is refused for another reason than the one it is there for."""
    good = check_same(SOUND_REF, RAW)
    assert good[0] == SOUND
    for name in (
        "spaces",
        "spaces around",
        "another order",
        "a byte-order mark",
        "UTF-16",
        "minus zero",
        "version twice",
    ):
        assert check_same(SOUND_REF, SPELLED[name]) == good
    assert check_same(SOUND_REF, SPELLED["braces in a text"])[0][1].storage_class == "{" * 100 + "_IR"
    assert len({SPELLED[name] for name in SPELLED}) == len(SPELLED)


@given(entries(minimum=1, maximum=3), st.data())
def test_bytes_that_change_at_random_have_one_outcome(
    objects: tuple[ObjectEntry, ...], data: st.DataObject
) -> None:
    ref, values = page_of(objects)
    raw = bytearray(dump(values))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(
            st.sampled_from([b"", b"0", b"9", b"-", b",", b"]", b"[", b'"', b" ", b"e", b"\\", b"1", b"null"])
        )
        raw[at : at + data.draw(st.integers(0, 2))] = piece
    check_same(ref, bytes(raw))


@pytest.mark.parametrize(
    "raw", [b'{"version":1,"entries":[' + b",".join([b"{}"] * 10_000) + b"]}", RAW + b" " * (4 << 20)]
)
def test_a_page_that_would_take_much_memory_or_time_is_not_parsed_into_columns(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_page.arrow_json, "read_json", lambda *_, **__: pytest.fail("parsed"))
    assert manifest_page.decode_columns(raw, replace(SOUND_REF, count=10_000)) is None
    check_same(SOUND_REF, raw)


def test_the_ids_of_many_segments_stay_with_their_entries() -> None:
    objects = [
        entry(low, high, tuple(range(high, high + low % 4 + 1))) for low, high in pairwise(range(0, 400, 3))
    ]
    ref, data = encode_page("p", tuple(objects))
    page = decode_page(data, ref, where="p")
    assert page[-1].segment_ids[0] == UUID(int=objects[-1].end_offset)
    assert page == objects
