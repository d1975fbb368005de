"""The fast decoder of manifest pages: Arrow parses the JSON into columns, and the checks run over whole columns.

It accepts the pages that this release writes, and returns None for every other page. Then `manifest_codec` decodes the
page entry by entry. That is the reference for what a page may contain, and it names what is wrong. Both decoders return
the same entries for every page that this one accepts (property tests). Arrow releases the interpreter lock, so several
threads decode the pages of a large manifest in parallel.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from .manifest import (
    FILTER_FIELDS,
    FILTERS_BYTES_MAX,
    GROUP_RECORDS_MAX,
    MANIFEST_VERSION,
    OBJECT_NAME,
    RANGE_BYTES_MAX,
    PageRef,
)
from .manifest_columns import (
    GROUP_COLUMNS,
    Column,
    EntryColumns,
    FlagColumn,
    IntegerColumn,
    Integers,
    TextColumn,
)

_TEXTS = ("name", "content_hash", "origin_hash")
_OPTIONAL_TEXTS = ("storage_class", "end_hash")
_INTEGERS = (
    "base_offset", "end_offset", "record_count", "min_timestamp_us", "max_timestamp_us", "last_append_us",
    "generation", "bytes", "schema_id", "tail_position", "tail_crc",
)  # fmt: skip
_ENTRY = pa.struct(
    [(name, pa.string()) for name in (*_TEXTS, *_OPTIONAL_TEXTS)]
    + [(name, pa.int64()) for name in (*_INTEGERS, *FILTER_FIELDS)]
    + [("sealed", pa.bool_())]
    + [("segment_ids", pa.list_(pa.string())), ("row_groups", pa.list_(pa.list_(pa.int64())))]
)
_PAGE = pa.schema([("version", pa.int64()), ("entries", pa.list_(_ENTRY))])
_GROUP_FIELDS = (
    "base_offset", "end_offset", "record_count", "position", "length", "crc", "min_timestamp_us", "max_timestamp_us",
)  # fmt: skip
# Arrow's parser takes more than twice the time for twice the bytes. Pages of this release are much smaller.
_RAW_BYTES_MAX = 4 << 20
# A field of an entry takes its name and at least `"":0,`. Optional fields may be missing.
_ENTRY_BYTES_MIN = sum(
    len(field.name) + 5 for field in _ENTRY if field.name not in (*_OPTIONAL_TEXTS, *FILTER_FIELDS)
)
_ID_CHARACTERS = 36
_HYPHENS = (8, 13, 18, 23)

_Integers = dict[str, Integers]


class _UnusualPage(ValueError):
    """The page is damaged, or another program wrote it."""


def decode_columns(raw: bytes, ref: PageRef) -> EntryColumns | None:
    """Return the entries of a sound page that this release wrote; None for any other page.

    Parameters
    ----------
    raw
        The decompressed page.
    """
    try:
        return _checked_columns(raw, ref)
    except (_UnusualPage, pa.ArrowException):
        return None


def _checked_columns(raw: bytes, ref: PageRef) -> EntryColumns:
    entries = _parse(raw)
    _require(len(entries) == ref.count > 0)
    integers = {name: _integers(entries.field(name)) for name in _INTEGERS}
    integers |= {name: _integers(entries.field(name).fill_null(0)) for name in FILTER_FIELDS}
    group_bounds, matrix = _row_groups(_present(entries.field("row_groups")))
    groups = {name: matrix[:, i] for i, name in enumerate(_GROUP_FIELDS)}
    segment_bounds, segment_ids = _segment_ids(_present(entries.field("segment_ids")))
    texts = {name: _present(entries.field(name)).to_pylist() for name in _TEXTS}
    texts |= {name: [text or "" for text in entries.field(name).to_pylist()] for name in _OPTIONAL_TEXTS}
    names = texts["name"]
    _require(
        all(map(OBJECT_NAME.fullmatch, names))
        and len(set(names)) == len(names)
        and bool((np.diff(segment_bounds) > 0).all())
        and _fit_reference(integers, ref)
        and _fit_each_other(integers, groups, group_bounds)
    )
    columns: dict[str, Column] = {name: IntegerColumn.of(values) for name, values in integers.items()}
    columns |= {name: TextColumn.of(values) for name, values in texts.items()}
    columns["sealed"] = FlagColumn(np.array(_present(entries.field("sealed")).to_pylist(), np.bool_))
    return EntryColumns(
        columns,
        segment_ids,
        IntegerColumn.of(segment_bounds),
        {name: IntegerColumn.of(groups[name]) for name in GROUP_COLUMNS},
        IntegerColumn.of(group_bounds),
    )


def _require(condition: bool) -> None:
    if not condition:
        raise _UnusualPage


def _parse(raw: bytes) -> pa.StructArray:
    """Return the entries of a page as Arrow's parser has them."""
    # Arrow cannot tell null from a field that is missing, and does not check UTF-8.
    _require(raw.isascii() and b"null" not in raw)
    # Arrow allocates every field of each entry: entries without fields would take far more memory than their text.
    _require((raw.count(b"{") - 1) * _ENTRY_BYTES_MIN <= len(raw) <= _RAW_BYTES_MAX)
    table = arrow_json.read_json(
        pa.BufferReader(raw),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(raw) + 1),
        parse_options=arrow_json.ParseOptions(explicit_schema=_PAGE, unexpected_field_behavior="error"),
        # Arrow's own pools keep some 10 MB for each thread that parsed.
        memory_pool=pa.system_memory_pool(),
    )
    version, pages = table.column("version"), table.column("entries")
    _require(version.to_pylist() == [MANIFEST_VERSION])
    return _present(pages.chunk(0).values)


def _present(array: pa.Array) -> pa.Array:
    """Return an array that has no nulls."""
    _require(array.null_count == 0)
    return array


def _integers(array: pa.Array) -> Integers:
    """Return an array of integers without nulls."""
    integers: Any = np.from_dlpack(_present(array))  # `to_numpy` would import pandas
    return cast("Integers", integers)


def _row_groups(lists: pa.ListArray) -> tuple[Integers, Integers]:
    """Return the bounds of each entry's row groups, and the row groups as rows of a matrix."""
    rows = _present(lists.values)
    numbers = _integers(rows.values)
    _require(bool((np.diff(_integers(rows.offsets)) == len(_GROUP_FIELDS)).all()))
    return _integers(lists.offsets).astype(np.int64), numbers.reshape(-1, len(_GROUP_FIELDS))


def _segment_ids(lists: pa.ListArray) -> tuple[Integers, bytes]:
    """Return the bounds of each entry's segment ids, and the ids in 16 bytes each."""
    texts = _present(lists.values).to_pylist()
    _require(set(map(len, texts)) <= {_ID_CHARACTERS})
    try:
        characters = np.frombuffer("".join(texts).encode("ascii"), np.uint8).reshape(-1, _ID_CHARACTERS)
        ids = bytes.fromhex(np.delete(characters, _HYPHENS, axis=1).tobytes().decode("ascii"))
    except ValueError:
        raise _UnusualPage from None
    # `fromhex` skips spaces.
    _require(len(ids) == 16 * len(texts) and bool((characters[:, _HYPHENS] == ord("-")).all()))
    return _integers(lists.offsets).astype(np.int64), ids


def _fit_reference(entries: _Integers, ref: PageRef) -> bool:
    """Whether the entries have the bounds and sums that the head has for them; see `manifest_checks.check_page`."""
    sums = {
        "record_count": sum(entries["record_count"].tolist()),
        "object_bytes": sum(entries["bytes"].tolist()),
        "last_append_us": int(entries["last_append_us"].max()),
    }
    return (
        entries["base_offset"][0] == ref.base_offset
        and entries["end_offset"][-1] == ref.end_offset
        and all(getattr(ref, name) in (None, value) for name, value in sums.items())
    )


def _fit_each_other(entries: _Integers, groups: _Integers, bounds: Integers) -> bool:
    """Whether `manifest_checks` finds no problem in the numbers of the entries.

    No condition overflows if all the others hold.
    """
    base, end, records = entries["base_offset"], entries["end_offset"], entries["record_count"]
    starts, ends = bounds[:-1], bounds[1:]
    filled = ends > starts
    firsts, lasts = starts[filled], ends[filled] - 1
    group_end, reach = groups["end_offset"], groups["position"] + groups["length"]
    bases, positions = np.roll(group_end, 1), np.roll(reach, 1)
    bases[firsts], positions[firsts] = base[filled], 0
    counted = np.concatenate(([0], np.cumsum(groups["record_count"])))
    tails = np.zeros(len(base), np.int64)
    tails[filled] = reach[lasts]
    footers = np.where(entries["footer_position"] == 0, tails, entries["footer_position"])
    conditions = (
        base >= 0,
        end > base,
        base[1:] == end[:-1],
        records == counted[ends] - counted[starts],
        groups["base_offset"] == bases,
        groups["position"] == positions,
        group_end > bases,
        group_end[lasts] == end[filled],
        (groups["length"] >= 1) & (groups["length"] <= RANGE_BYTES_MAX),
        (groups["record_count"] >= 1) & (groups["record_count"] <= GROUP_RECORDS_MAX),
        groups["record_count"] <= group_end - bases,
        entries["tail_position"] == tails,
        entries["bytes"] > tails,
        entries["bytes"] - tails <= RANGE_BYTES_MAX,
        entries["bytes"] > footers,
        (footers > tails) | (entries["footer_position"] == 0),
        footers - tails <= FILTERS_BYTES_MAX,
        (footers > tails) | ((entries["footer_crc"] == 0) & (entries["filters_crc"] == 0)),
    )
    return all(bool(condition.all()) for condition in conditions)
