"""The memory that a row group takes, computed from its pages before any of them is decoded.

Arrow allocates memory by the numbers in page headers and levels, and a dictionary repeats a value as often as its indices
say. So 34 kB with right checksums can become gigabytes. No row group of a store has more than some 150 MiB of values; a row
group above the limits here is refused.

A page is a header in Thrift's compact protocol, followed by its bytes::

    1: type                    0 data page, 2 dictionary page; this package writes no others
    2: uncompressed_page_size
    3: compressed_page_size    bytes after the header
    5: data_page_header        1: num_values, including nulls and empty lists; 2: encoding
    7: dictionary_page_header  1: num_values; 2: encoding

A reader that parses the same bytes differently would compute another size. So everything that Arrow does not write is
refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import zstandard

from ...format.arrow_layouts import contains, leaves, to_plain
from .thrift import varint

VALUES_BYTES_MAX = 256 * 1024 * 1024
"""Limit of the values, as Arrow lays them out, and of their pages."""

ELEMENTS_BYTES_MAX = 1280 * 1024 * 1024
"""Limit of the elements of lists and maps: a slot for each element, null or not, and four bytes of levels. Records of
32 MiB fit, even of booleans."""

_AT_ONCE_BYTES = 128 * 1024 * 1024
_LEVELS_BYTES = 4
_WRITER = "parquet-cpp-arrow"
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_BY_DICTIONARY = {_PLAIN_DICTIONARY, _RLE_DICTIONARY}
# Other encodings can be smaller than their values by any factor.
_ENCODINGS = {_PLAIN, _RLE, _DELTA_BINARY_PACKED} | _BY_DICTIONARY
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_DECIMAL_BYTES = 16
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
_FIELDS_MAX = 16
_LENGTH = struct.Struct("<I").unpack_from
_DEPTH_MAX = 3

Fields = dict[int, Any]

Slice = Callable[[int, int], memoryview]
"""Returns a number of bytes at a position of the object; raises OSError if they were not fetched."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The plan to decode a row group.

    Attributes
    ----------
    dictionaries
        Paths of the leaf columns to leave as dictionaries at first, since only then the size of their text is known.
    values_bytes
        Memory of the other columns.
    rows_at_once
        The number of rows whose levels take a bounded amount of memory.
    """

    dictionaries: tuple[str, ...]
    values_bytes: int
    rows_at_once: int

    def beside(self, table: pa.Table) -> DecodePlan:
        """Return the plan for the other columns, while the decoded ones in `table` are in memory."""
        return replace(self, values_bytes=self.values_bytes + table.nbytes)


@dataclass(slots=True)
class _Chunk:
    """The sums over the pages of one column chunk.

    Attributes
    ----------
    dictionary
        The bytes of the dictionary page after its header, its number of values, and its size before compression.
    """

    values: int = 0
    values_by_dictionary: int = 0
    plain_bytes: int = 0
    dictionary: tuple[memoryview, int, int] | None = None


def plan_decode(metadata: Any, row_group: int, leaf_indices: Sequence[int], file: Slice) -> DecodePlan:
    """Compute the memory of some leaf columns of a row group, and plan how to decode them.

    Parameters
    ----------
    metadata
        The object's metadata; its column chunks were checked for contradictions.

    Raises
    ------
    ValueError
        The memory exceeds a limit, or this package does not write such pages.
    OSError
        The pages were not fetched.
    """
    if not str(metadata.created_by).startswith(_WRITER):
        # For files of some writers Arrow reads beyond the end of a chunk.
        raise ValueError(f"it was written by {str(metadata.created_by)[:60]!r}")
    group = metadata.row_group(row_group)
    rows = group.num_rows
    values_bytes = elements_bytes = levels_bytes = text_bytes_max = 0
    dictionaries: list[str] = []
    bounded: list[str] = []
    for index in leaf_indices:
        column, chunk = metadata.schema.column(index), group.column(index)
        start, end = _page_range(chunk)
        sums = _sum_pages(file(start, end - start))
        width = _width(column)
        if column.max_repetition_level:
            each = width + _LEVELS_BYTES
            elements_bytes += max(0, sums.values - rows) * each
            levels_bytes += min(sums.values, rows) * each
        else:
            values_bytes += sums.values * width
        values_bytes += sums.plain_bytes
        if column.physical_type == "BYTE_ARRAY" and sums.values_by_dictionary:
            # Dictionaries are the fastest way for a flat column without plain values, and by far the slowest with them.
            flat = column.max_repetition_level == 0 and column.max_definition_level <= 1
            if flat and sums.values == sums.values_by_dictionary:
                dictionaries.append(column.path)
            else:
                text_bytes_max += _text_bytes_max(sums, chunk.compression)
                bounded.append(column.path)
        if values_bytes > VALUES_BYTES_MAX or elements_bytes > ELEMENTS_BYTES_MAX:
            raise ValueError(f"its {rows} rows would take {values_bytes + elements_bytes} bytes and more")
    if values_bytes + text_bytes_max > VALUES_BYTES_MAX:
        dictionaries += bounded
    else:
        values_bytes += text_bytes_max
    at_once = rows if levels_bytes <= _AT_ONCE_BYTES else max(1, rows * _AT_ONCE_BYTES // levels_bytes)
    return DecodePlan(tuple(dictionaries), values_bytes, at_once)


def decode(
    source: Any,
    row_group: int,
    names: Sequence[str],
    plan: DecodePlan,
    schema: pa.Schema,
    select: Callable[[pa.Table], pa.Table] | None = None,
) -> pa.Table:
    """Decode some columns of a row group.

    Parameters
    ----------
    source
        A `ParquetFile` that leaves ``plan.dictionaries`` as dictionaries.
    schema
        The object's schema, without dictionaries.
    select
        Returns the wanted rows of a table, in which columns may be dictionaries; None: all rows.

    Raises
    ------
    ValueError
        The text of dictionaries exceeds the limit.
    pyarrow.ArrowException, OSError
    """
    if plan.rows_at_once >= source.metadata.row_group(row_group).num_rows:
        table = source.read_row_group(row_group, columns=names, use_threads=False)
    else:
        batches = source.iter_batches(plan.rows_at_once, [row_group], columns=names, use_threads=False)
        table = pa.Table.from_batches(list(batches))
    if select is not None:
        table = select(table)
    bytes_left = VALUES_BYTES_MAX - plan.values_bytes
    for at, (name, column) in enumerate(zip(table.schema.names, table.columns, strict=True)):
        if not contains(column.type, pt.is_dictionary):
            continue
        bytes_left -= sum(
            _text_bytes(leaf)
            for chunk in column.chunks
            for leaf in leaves(chunk)
            if pt.is_dictionary(leaf.type)
        )
        if bytes_left < 0:
            raise ValueError("its dictionaries stand for more text than a row group has")
        kind = schema.field(name).type
        plain = pa.chunked_array([to_plain(chunk).cast(kind) for chunk in column.chunks], kind)
        table = table.set_column(at, name, plain)
    return table


def check_elements(metadata: Any, row_group: int) -> None:
    """Raise `ValueError` for a new row group whose lists have more elements than `plan_decode` accepts."""
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


def _page_range(chunk: Any) -> tuple[int, int]:
    """Return the start and the end of a chunk's pages."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None:
        if not 0 < dictionary < start:
            raise ValueError("a dictionary does not lie before its data")
        start = dictionary
    return start, start + chunk.total_compressed_size


def _sum_pages(data: memoryview) -> _Chunk:
    sums, at, end = _Chunk(), 0, len(data)
    while at < end:
        header, body = _struct(data, at, 0)
        try:
            at = _add_page(sums, header, data, body)
        except (KeyError, TypeError):
            raise ValueError("a page header lacks a field") from None
    return sums


def _add_page(sums: _Chunk, header: Fields, data: memoryview, body: int) -> int:
    """Add a page to the sums, and return its end."""
    raw: int = header[2]
    stored: int = header[3]
    if not (0 <= stored <= len(data) - body and 0 <= raw <= VALUES_BYTES_MAX):
        raise ValueError(f"a page of {stored} bytes, {raw} before compression")
    kind, about = header[1], header[7 if header[1] == _DICTIONARY_PAGE else 5]
    count, encoding = about[1], about[2]
    if count < 0:
        raise ValueError(f"a page of {count} values")
    if kind == _DICTIONARY_PAGE and sums.dictionary is None and not sums.values:
        if encoding not in (_PLAIN, _PLAIN_DICTIONARY):
            raise ValueError(f"a dictionary in encoding {encoding}")
        sums.dictionary = data[body : body + stored], count, raw
        sums.plain_bytes += raw
    elif kind == _DATA_PAGE:
        if encoding not in _ENCODINGS:
            raise ValueError(f"values in encoding {encoding}")
        sums.values += count
        if encoding in _BY_DICTIONARY:
            sums.values_by_dictionary += count
        else:
            sums.plain_bytes += raw
    else:
        raise ValueError(f"a page of type {kind}")
    return body + stored


def _text_bytes_max(sums: _Chunk, compression: str) -> int:
    """Return the most memory that values by dictionary take: as if each were the longest."""
    if sums.dictionary is None or compression != "ZSTD":
        raise ValueError("values of a dictionary that is not there")
    page, count, raw = sums.dictionary
    return _longest(_decompress(page, raw), count) * sums.values_by_dictionary


def _decompress(page: memoryview, raw: int) -> bytes:
    try:
        # The library allocates the size that the frame declares, if it does.
        if zstandard.frame_content_size(page) not in (-1, raw):
            raise ValueError("a page has another size than it says")
        return zstandard.ZstdDecompressor().decompress(page, max_output_size=raw)
    except zstandard.ZstdError as error:
        raise ValueError(f"a dictionary does not decompress ({error})") from None


def _longest(data: bytes, count: int) -> int:
    """Return the length of the longest of plain byte arrays, each preceded by its length in four bytes."""
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
    """Return the fields of a struct by their ids, and its end; a field that is neither i32 nor struct is None."""
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
                value, at = varint(data, at)
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
