"""What a row group takes in memory, reckoned from its pages before anything of it is decoded.

Arrow sets memory aside by what page headers and levels say, and a dictionary repeats a value as often as its indices say:
34 kB can become gigabytes under checksums that are right. No writer makes a row group of more than some 80 MiB of
values, so what would take more than the limits here is no row group of a store.

A page is a header in Thrift's compact protocol, and so many bytes::

    1: type                    0 data page, 2 dictionary page; no writer of ours makes another
    2: uncompressed_page_size
    3: compressed_page_size    of what follows the header
    5: data_page_header        1: num_values, nulls and empty lists included; 2: encoding
    7: dictionary_page_header  1: num_values; 2: encoding

Who reads the same bytes in another way reckons something else, so whatever Arrow does not write is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import zstandard

from ...format.arrow_layouts import decoded, has, leaves

VALUES_BYTES_MAX = 256 * 1024 * 1024
"""Of values, as Arrow lays them out, and of the pages that they come from."""

ELEMENTS_BYTES_MAX = 1280 * 1024 * 1024
"""Of what is within lists and maps: a slot for each element, null or not, and four bytes of levels. Records of 32 MiB fit,
of booleans too."""

_AT_ONCE_BYTES = 128 * 1024 * 1024
_LEVELS_BYTES = 4
_OURS = "parquet-cpp-arrow"
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_BY_DICTIONARY = {_PLAIN_DICTIONARY, _RLE_DICTIONARY}
# Others than these take less room than the values that they stand for, and by no bound.
_ENCODINGS = {_PLAIN, _RLE, _DELTA_BINARY_PACKED} | _BY_DICTIONARY
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_DECIMAL_BYTES = 16
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
# Of Thrift's compact protocol.
_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
_FIELDS_MAX = 16
_LENGTH = struct.Struct("<I").unpack_from
_DEPTH_MAX = 3

Fields = dict[int, Any]

Slice = Callable[[int, int], memoryview]
"""Returns so many bytes at a position of the object; OSError where they were not fetched."""


@dataclass(frozen=True, slots=True)
class Reckoned:
    """How to decode a row group.

    Attributes
    ----------
    dictionaries
        Paths of the leaf columns to leave as dictionaries: how much text they stand for is known only then.
    values_bytes
        What the rest takes.
    rows_at_once
        So many rows, and their levels, take a bounded part of the memory.
    """

    dictionaries: tuple[str, ...]
    values_bytes: int
    rows_at_once: int


@dataclass(slots=True)
class _Chunk:
    """The pages of one column chunk, added up.

    Attributes
    ----------
    dictionary
        What its page has after the header, and that page's values and size before compression.
    """

    values: int = 0
    values_by_dictionary: int = 0
    plain_bytes: int = 0
    dictionary: tuple[memoryview, int, int] | None = None


def reckon(metadata: Any, row_group: int, leaf_indices: Sequence[int], file: Slice) -> Reckoned:
    """Reckon what some leaf columns of a row group take.

    Parameters
    ----------
    metadata
        Of the object; contradictions in its column chunks have been looked for.

    Raises
    ------
    ValueError
        More than a row group can have, or pages that no writer of ours makes.
    OSError
        Pages lie where nothing was fetched.
    """
    if not str(metadata.created_by).startswith(_OURS):
        # For some writers Arrow reads on behind the end of a chunk.
        raise ValueError(f"it was written by {str(metadata.created_by)[:60]!r}")
    group = metadata.row_group(row_group)
    rows = group.num_rows
    values_bytes = elements_bytes = levels_bytes = text_bytes_max = 0
    dictionaries: list[str] = []
    bounded: list[str] = []
    for index in leaf_indices:
        column, chunk = metadata.schema.column(index), group.column(index)
        start, end = _place(chunk)
        found = _add_up(file(start, end - start))
        width = _width(column)
        if column.max_repetition_level:
            each = width + _LEVELS_BYTES
            elements_bytes += max(0, found.values - rows) * each
            levels_bytes += min(found.values, rows) * each
        else:
            values_bytes += found.values * width
        values_bytes += found.plain_bytes
        if column.physical_type == "BYTE_ARRAY" and found.values_by_dictionary:
            # To leave the values of a plain column so is the faster way; where others follow, it is slower by far.
            flat = column.max_repetition_level == 0 and column.max_definition_level <= 1
            if flat and found.values == found.values_by_dictionary:
                dictionaries.append(column.path)
            else:
                text_bytes_max += _text_bytes_max(found, chunk.compression)
                bounded.append(column.path)
        if values_bytes > VALUES_BYTES_MAX or elements_bytes > ELEMENTS_BYTES_MAX:
            raise ValueError(f"its {rows} rows would take {values_bytes + elements_bytes} bytes and more")
    if values_bytes + text_bytes_max > VALUES_BYTES_MAX:
        dictionaries += bounded
    else:
        values_bytes += text_bytes_max
    at_once = rows if levels_bytes <= _AT_ONCE_BYTES else max(1, rows * _AT_ONCE_BYTES // levels_bytes)
    return Reckoned(tuple(dictionaries), values_bytes, at_once)


def decode(
    source: Any, row_group: int, names: Sequence[str], reckoned: Reckoned, schema: pa.Schema
) -> pa.Table:
    """Read some columns of a row group.

    Parameters
    ----------
    source
        A `ParquetFile` that leaves ``reckoned.dictionaries`` as they are.
    schema
        Of the object, without dictionaries.

    Raises
    ------
    ValueError
        Dictionaries stand for more text than a row group can have.
    pyarrow.ArrowException, OSError
    """
    if reckoned.rows_at_once >= source.metadata.row_group(row_group).num_rows:
        table = source.read_row_group(row_group, columns=names, use_threads=False)
    else:
        batches = source.iter_batches(reckoned.rows_at_once, [row_group], columns=names, use_threads=False)
        table = pa.Table.from_batches(list(batches))
    left = VALUES_BYTES_MAX - reckoned.values_bytes
    for at, (name, column) in enumerate(zip(table.schema.names, table.columns, strict=True)):
        if not has(column.type, pt.is_dictionary):
            continue
        left -= sum(
            _text_bytes(leaf)
            for chunk in column.chunks
            for leaf in leaves(chunk)
            if pt.is_dictionary(leaf.type)
        )
        if left < 0:
            raise ValueError("its dictionaries stand for more text than a row group has")
        kind = schema.field(name).type
        plain = pa.chunked_array([decoded(chunk).cast(kind) for chunk in column.chunks], kind)
        table = table.set_column(at, name, plain)
    return table


def check_elements(metadata: Any, row_group: int) -> None:
    """Raise `ValueError` for a row group just written that `reckon` would refuse for what its lists hold."""
    group, total = metadata.row_group(row_group), 0
    for index in range(group.num_columns):
        column = metadata.schema.column(index)
        if column.max_repetition_level:
            elements = max(0, group.column(index).num_values - group.num_rows)
            total += elements * (_width(column) + _LEVELS_BYTES)
    if total > ELEMENTS_BYTES_MAX:
        raise ValueError(f"the lists in {group.num_rows} rows have more elements than can be read again")


def _width(column: Any) -> int:
    return _WIDTHS.get(column.physical_type) or max(_DECIMAL_BYTES, column.length)


def _text_bytes(array: pa.DictionaryArray) -> int:
    lengths = pc.binary_length(array.dictionary).cast(pa.int64())
    return int(pc.sum(lengths.take(array.indices), min_count=0).as_py())


def _place(chunk: Any) -> tuple[int, int]:
    """Return where the pages of a chunk begin and end."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None:
        if not 0 < dictionary < start:
            raise ValueError("a dictionary does not lie before its data")
        start = dictionary
    return start, start + chunk.total_compressed_size


def _add_up(data: memoryview) -> _Chunk:
    found, at, end = _Chunk(), 0, len(data)
    while at < end:
        header, body = _struct(data, at, 0)
        try:
            at = _add_page(found, header, data, body)
        except (KeyError, TypeError):
            raise ValueError("a page header lacks a field") from None
    return found


def _add_page(found: _Chunk, header: Fields, data: memoryview, body: int) -> int:
    raw: int = header[2]
    stored: int = header[3]
    if not (0 <= stored <= len(data) - body and 0 <= raw <= VALUES_BYTES_MAX):
        raise ValueError(f"a page of {stored} bytes, {raw} before compression")
    kind, about = header[1], header[7 if header[1] == _DICTIONARY_PAGE else 5]
    count, encoding = about[1], about[2]
    if count < 0:
        raise ValueError(f"a page of {count} values")
    if kind == _DICTIONARY_PAGE and found.dictionary is None and not found.values:
        if encoding not in (_PLAIN, _PLAIN_DICTIONARY):
            raise ValueError(f"a dictionary in encoding {encoding}")
        found.dictionary = data[body : body + stored], count, raw
        found.plain_bytes += raw
    elif kind == _DATA_PAGE:
        if encoding not in _ENCODINGS:
            raise ValueError(f"values in encoding {encoding}")
        found.values += count
        if encoding in _BY_DICTIONARY:
            found.values_by_dictionary += count
        else:
            found.plain_bytes += raw
    else:
        raise ValueError(f"a page of type {kind}")
    return body + stored


def _text_bytes_max(found: _Chunk, compression: str) -> int:
    """Return what the values by dictionary take at most: as if each were the longest."""
    if found.dictionary is None or compression != "ZSTD":
        raise ValueError("values of a dictionary that is not there")
    page, count, raw = found.dictionary
    return _longest(_unpacked(page, raw), count) * found.values_by_dictionary


def _unpacked(page: memoryview, raw: int) -> bytes:
    try:
        # The library sets aside what the frame declares, where it does.
        if zstandard.frame_content_size(page) not in (-1, raw):
            raise ValueError("a page has another size than it says")
        return zstandard.ZstdDecompressor().decompress(page, max_output_size=raw)
    except zstandard.ZstdError as error:
        raise ValueError(f"a dictionary does not decompress ({error})") from None


def _longest(data: bytes, count: int) -> int:
    """Return the longest of plain byte arrays, each behind its length in four bytes."""
    longest = at = 0
    try:
        for _ in range(count):
            (length,) = _LENGTH(data, at)
            at += 4 + length
            if length > longest:
                longest = length
    except struct.error:
        at = len(data) + 1
    if at > len(data):
        raise ValueError("a dictionary ends within a value")
    return longest


# -- Thrift's compact protocol ---------------------------------------------------------------------


def _struct(data: memoryview, at: int, depth: int) -> tuple[Fields, int]:
    """Return the fields of a struct by their ids and where it ends; None for what is neither an i32 nor a struct."""
    fields: Fields = {}
    number = 0
    try:
        while head := data[at]:
            at += 1
            step, kind = head >> 4, head & 15
            number += step
            if step == 0 or number > _FIELDS_MAX or depth > _DEPTH_MAX:
                raise ValueError("a page header has odd fields")
            if kind == _STRUCT:
                fields[number], at = _struct(data, at, depth + 1)
                continue
            fields[number] = None
            if kind in (_I32, _I64, _BINARY):
                value, at = _varint(data, at)
                if kind == _BINARY:
                    at += value
                elif kind == _I32:
                    fields[number] = _signed(value)
            elif kind not in (_TRUE, _FALSE):
                raise ValueError("a page header has odd fields")
    except IndexError:
        raise ValueError("a page header is cut off") from None
    return fields, at + 1


def _signed(value: int) -> int:
    if value >> 32:
        raise ValueError("a number of a page header has more than 32 bits")
    return (value >> 1) ^ -(value & 1)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of a page header has no end")
