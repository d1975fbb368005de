"""Schemas of topics: the closed list of types, the system columns, and the cast of appended data.

A topic has an Arrow schema of its own columns. Blocks store a *body*: the record timestamp as column 0, then the topic's
columns. Readers see a *row*: the system columns ``topic``, ``partition``, ``offset``, ``timestamp``, then the topic's
columns.

The list of types is closed because everything that reads a store must support it: Arrow, Parquet, Iceberg and Spark's data
source API, which refuses large, view, dictionary and not-null types.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ..errors import InvalidName, SchemaMismatch, UnsupportedFormat
from .arrow_layouts import as_map, contains, is_list_view, is_map_entries, leaves, text_parts, to_plain

TIMESTAMP = pa.timestamp("us", tz="UTC")
SYSTEM_FIELDS: tuple[pa.Field, ...] = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP),
)
SYSTEM_COLUMNS: tuple[str, ...] = tuple(field.name for field in SYSTEM_FIELDS)

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("headers", HEADERS_TYPE)]
)

# The range of both Python's datetime and Spark: years 1 to 9999.
TIMESTAMP_US_MIN = -62_135_596_800_000_000
TIMESTAMP_US_MAX = 253_402_300_799_999_999
FLOAT32_MAX = 3.4028234663852886e38
_DAY_US = 86_400_000_000

COLUMNS_MAX = 4000
# Arrow writes messages with at most 64 levels, and each list and map takes several.
DEPTH_MAX = 16
_COLUMN_NAME_BYTES_MAX = 255
# The offsets of plain strings have 32 bits.
_TEXT_BYTES_MAX = 1 << 30
TRANSACTIONS_TOPIC = "__transactions"
"""The name of the store's own topic, which no policy expires; see `tiered.transactions`."""
_TOPIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}")


def is_topic_name(name: object) -> bool:
    """Whether a topic can have this name, which becomes the name of one folder."""
    # An object beside the topics' folders has the name "store.json".
    return isinstance(name, str) and _TOPIC_NAME.fullmatch(name) is not None and name != "store.json"


def check_topic_name(name: str) -> str:
    """Return `name`, or raise `InvalidName`: names have Kafka's alphabet and do not start with a dot or dash."""
    if not is_topic_name(name):
        raise InvalidName(
            f"invalid topic name {str(name)[:60]!r}: use 1 to 249 of A-Z a-z 0-9 . _ - "
            "and start with a letter, a digit or _"
        )
    return name


def normalize_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with types of the closed list, all fields nullable and without metadata.

    Raises
    ------
    SchemaMismatch
        A type is not supported by every reader, or there are no columns or too many.
    InvalidName
        A column name is reserved, empty, repeated or too long.
    """
    if not isinstance(schema, pa.Schema):
        raise SchemaMismatch(f"a schema is a pyarrow.Schema, not {type(schema).__name__}")
    if len(schema) == 0:
        raise SchemaMismatch("a schema needs at least one column")
    check_column_count(schema)
    for name in schema.names:
        if name.lower() in SYSTEM_COLUMNS:
            raise InvalidName(f"column name {name!r} is reserved; every read adds it. Rename the column")
    _check_names(schema.names)
    return pa.schema([_plain_field(field, field.name, 1) for field in schema])


def check_column_count(schema: pa.Schema) -> None:
    """Raise `SchemaMismatch` if there are more columns than a block has chunks."""
    if len(schema) > COLUMNS_MAX:
        raise SchemaMismatch(f"{len(schema)} columns are over the limit of {COLUMNS_MAX}")


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name.encode("utf-8", "surrogatepass")) > _COLUMN_NAME_BYTES_MAX:
            raise InvalidName(f"column names have 1 to {_COLUMN_NAME_BYTES_MAX} bytes, not {name[:60]!r}")
        # Spark ignores the case of column names.
        if name.lower() in seen:
            raise InvalidName(f"column name {name!r} appears twice (case does not distinguish columns)")
        seen.add(name.lower())


def _plain_field(field: pa.Field, path: str, depth: int) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type, path, depth), nullable=True)


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pt.is_boolean, pa.bool_()),
    (pt.is_int8, pa.int8()),
    (pt.is_int16, pa.int16()),
    (pt.is_int32, pa.int32()),
    (pt.is_int64, pa.int64()),
    (pt.is_uint8, pa.int16()),
    (pt.is_uint16, pa.int32()),
    (pt.is_uint32, pa.int64()),
    (pt.is_uint64, pa.int64()),
    (pt.is_float16, pa.float32()),
    (pt.is_float32, pa.float32()),
    (pt.is_float64, pa.float64()),
    (pt.is_string, pa.string()),
    (pt.is_large_string, pa.string()),
    (pt.is_string_view, pa.string()),
    (pt.is_binary, pa.binary()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_binary_view, pa.binary()),
    (pt.is_fixed_size_binary, pa.binary()),
    (pt.is_date, pa.date32()),
)


_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pt.is_null, "give it the type that its values will have"),
    (pt.is_time, "use int64 (microseconds since midnight) or string"),
    (pt.is_duration, "use int64 (microseconds)"),
    (pt.is_interval, "use int64 (months, days, microseconds, each a column)"),
    (pt.is_decimal, "use a scale from 0 to the precision, at most 38 digits, or string"),
    (pt.is_struct, "give it at least one field"),
    (pt.is_union, "use a struct with a field for each type"),
)
_PLAIN = "integers, floats, booleans, strings, binary, dates, timestamps, decimals, lists, structs or maps"


def _plain_type(kind: pa.DataType, name: str, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise SchemaMismatch(f"column {name!r} is nested more than {DEPTH_MAX} levels deep")
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type, name, depth)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _plain_type(kind.value_type, name, depth)
    if pt.is_timestamp(kind):
        return TIMESTAMP if kind.tz is not None else pa.timestamp("us")
    if pt.is_decimal(kind):
        if kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return pa.decimal128(kind.precision, kind.scale)
    elif pt.is_map(kind):
        return pa.map_(
            _plain_type(kind.key_type, name, depth + 1), _plain_type(kind.item_type, name, depth + 1)
        )
    elif pt.is_struct(kind) and kind.num_fields:
        inner = [kind.field(i) for i in range(kind.num_fields)]
        _check_names([field.name for field in inner])
        return pa.struct([_plain_field(field, f"{name}.{field.name}", depth + 1) for field in inner])
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) or is_list_view(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type, name, depth + 1), nullable=True))
    else:
        for matches, plain in _SCALARS:
            if matches(kind):
                return plain
    instead = next((instead for matches, instead in _INSTEAD if matches(kind)), f"use {_PLAIN}")
    raise SchemaMismatch(
        f"column {name!r} has type {kind}, which not every reader of a store can hold; {instead}"
    )


def body_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a body of a topic with `schema`: the record timestamp, then its columns."""
    return pa.schema([SYSTEM_FIELDS[3], *schema])


def check_body_schema(schema: pa.Schema) -> None:
    """Raise `SchemaMismatch` or `InvalidName` unless `schema` is a result of `body_schema`.

    Types outside of the closed list are not only unreadable elsewhere: some (views, unions) point into other buffers by
    values that Arrow does not check.
    """
    if not schema.equals(body_schema(normalize_schema(pa.schema(list(schema)[1:])))):
        raise SchemaMismatch("its columns are not a timestamp and a topic's")


def consecutive_offsets(start: int, end: int) -> pa.Array:
    """Return the column ``offset`` of a range without gaps."""
    numbers = np.arange(start, end, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), end - start, [None, pa.py_buffer(numbers)])


def row_schema(schema: pa.Schema, columns: list[str] | None = None) -> pa.Schema:
    """Return the schema of a row, or of `columns` in their order.

    Raises
    ------
    SchemaMismatch
        The topic does not have such a column; the message lists those that it has.
    """
    full = pa.schema([*SYSTEM_FIELDS, *schema])
    if columns is None:
        return full
    missing = [name for name in columns if full.get_field_index(name) < 0]
    if missing:
        raise SchemaMismatch(f"no column {missing[0]!r}; the columns are {', '.join(full.names)}")
    return pa.schema([full.field(name) for name in columns])


def check_extends(old: pa.Schema, new: pa.Schema) -> None:
    """Raise `SchemaMismatch` unless `new` is `old` with more columns at the end."""
    check_column_count(new)
    if len(new) < len(old) or any(not new.field(i).equals(old.field(i)) for i in range(len(old))):
        raise SchemaMismatch("a schema grows by nullable columns at the end; it cannot lose or change any")


def schema_to_text(schema: pa.Schema) -> str:
    """Return the schema as base64 of its Arrow IPC message, for JSON documents."""
    return base64.b64encode(schema.serialize()).decode("ascii")


@lru_cache(maxsize=64)
def schema_from_text(text: str) -> pa.Schema:
    """Invert `schema_to_text`.

    Raises
    ------
    UnsupportedFormat
        The text is not an Arrow schema, or no topic can have that schema.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        if not schema.equals(normalize_schema(schema)):
            raise SchemaMismatch("its columns are not of the closed list of types")
        return schema
    except (ValueError, pa.ArrowException, OSError, SchemaMismatch, InvalidName) as error:
        raise UnsupportedFormat(f"not the schema of a topic: {error}") from None


def to_batches(data: Any, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    """Cast appended data to the topic's `schema`, batch by batch; columns of the right type are not copied.

    Parameters
    ----------
    data
        A Table, RecordBatch, RecordBatchReader, or any object with ``__arrow_c_stream__`` or
        ``__arrow_c_array__`` (pandas, Polars, DuckDB).

    Yields
    ------
    (batch, timestamps)
        The batch has exactly the topic's columns; ``timestamps`` is the cast column ``timestamp`` of the data, or None if
        it has none.

    Raises
    ------
    SchemaMismatch
        The topic does not have a column of the data, or the cast would change a value.
    """
    reader = _reader_of(data)
    names = reader.schema.names
    extra = [name for name in names if name != "timestamp" and schema.get_field_index(name) < 0]
    if extra:
        is_index = extra[0] in (reader.schema.pandas_metadata or {}).get("index_columns", ())
        advice = " (the frame's index; reset_index(drop=True) leaves it out)" if is_index else ""
        raise SchemaMismatch(f"unknown column {extra[0]!r}{advice}; the topic has {', '.join(schema.names)}")
    if len(set(names)) != len(names):
        raise SchemaMismatch("a column name appears twice in the data")
    if not set(names) & set(schema.names):
        raise SchemaMismatch(f"the data has none of the topic's columns {', '.join(schema.names)}")
    has_headers = "headers" in names and schema.equals(RECORD_SCHEMA)
    for batch in chain.from_iterable(text_parts(whole, _TEXT_BYTES_MAX) for whole in reader):
        columns = [_cast(batch, field) for field in schema]
        if has_headers:
            _check_headers(columns[-1])
        stamps = _cast(batch, SYSTEM_FIELDS[3]) if "timestamp" in names else None
        yield pa.RecordBatch.from_arrays(columns, schema=schema), stamps


def _reader_of(data: Any) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        if hasattr(data, "__arrow_c_array__"):
            batch = pa.record_batch(data)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except (pa.ArrowException, ValueError, TypeError) as error:
        # pandas converts its columns here, and those of Python objects may contain anything.
        raise SchemaMismatch(f"this {type(data).__name__} has no columns of Arrow: {error}") from error
    raise SchemaMismatch(
        f"append_batch takes Arrow data (Table, RecordBatch, or an object with __arrow_c_stream__), "
        f"not {type(data).__name__}"
    )


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return `count` nulls of a plain type.

    `pyarrow.nulls` gives the empty children of lists and maps buffers as long as the parent's, and Arrow encodes every
    slice with these whole buffers.
    """
    zeros = _zeros(16 * (count + 1))
    if pt.is_list(kind) or pt.is_map(kind):
        entries = kind.value_type if pt.is_list(kind) else pa.struct([kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, count, [zeros, zeros], count, children=[pa.array([], entries)])
    if pt.is_struct(kind):
        children = [nulls(count, kind.field(i).type) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, count, [zeros], count, children=children)
    buffers = [zeros] * (3 if pt.is_string(kind) or pt.is_binary(kind) else 2)
    return pa.Array.from_buffers(kind, count, buffers, count)


_shared_zeros = pa.py_buffer(b"")


def _zeros(length: int) -> pa.Buffer:
    """Return a shared buffer of at least `length` zeros; it takes no memory, since nothing writes to it."""
    global _shared_zeros
    zeros = _shared_zeros
    if zeros.size < length:
        # Another thread may replace it by a shorter one, which is harmless.
        _shared_zeros = zeros = pa.py_buffer(bytes(length))
    return zeros


def _misfit(given: pa.DataType, kind: pa.DataType, *, nested: bool = False) -> str | None:
    """Return what Arrow would silently lose in a cast from `given` to `kind`; None if nothing."""
    if pt.is_struct(given) and pt.is_struct(kind):
        pairs = []
        for field in (given.field(i) for i in range(given.num_fields)):
            at = kind.get_field_index(field.name)
            if at < 0:
                return f"has a field {field.name!r}, which {kind} does not have"
            pairs.append((field.type, kind.field(at).type))
    elif pt.is_map(given) and pt.is_map(kind):
        pairs = [(given.key_type, kind.key_type), (given.item_type, kind.item_type)]
    elif pt.is_list(kind) and not pt.is_map(given) and given.num_fields == 1:
        pairs = [(given.field(0).type, kind.value_type)]
    elif pt.is_decimal(given) and not _can_rescale(given, kind):
        return f"is {given}, whose scale is too far from that of {kind}; cast it first"
    elif pt.is_temporal(given) and not pt.is_date(given) and pt.is_integer(kind):
        return f"is {given}, whose unit {kind} would lose; cast it first"
    elif nested and (_narrows(given, kind) or (pt.is_integer(given) and pt.is_timestamp(kind))):
        return f"has {given} instead of {kind}; cast it first"
    else:
        return None
    reasons = (_misfit(inner, wanted, nested=True) for inner, wanted in pairs)
    return next((reason for reason in reasons if reason is not None), None)


def _can_rescale(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow has the power of ten for a cast of decimals; it reads beyond its table of powers otherwise."""
    digits = 76 if given.bit_width == 256 else 38
    scale = kind.scale if pt.is_decimal(kind) else 0
    return bool(abs(given.scale) <= digits and abs(given.scale - scale) <= digits)


def _narrows(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow's cast silently drops the time of day, digits, or the number behind a boolean."""
    if pt.is_boolean(kind):
        return bool(pt.is_integer(given) or pt.is_floating(given) or pt.is_decimal(given))
    if pt.is_decimal(kind):
        return bool(pt.is_floating(given))
    return bool(pt.is_date(kind) and pt.is_timestamp(given))


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        return nulls(batch.num_rows, field.type)
    array = _fit(batch.column(index), field)
    if contains(field.type, _can_be_wrong):
        _check_values(array, field)
    return array


def _check_headers(headers: pa.Array) -> None:
    """Raise `SchemaMismatch` if a header is null or has no name."""
    if headers.flatten().flatten()[0].null_count:
        raise SchemaMismatch("column 'headers' holds a header without a name; leave it out of its list")


def _can_be_wrong(kind: pa.DataType) -> bool:
    """Whether arrays of a type may contain invalid values, or values that some reader cannot represent."""
    return _is_checked(kind) or bool(pt.is_temporal(kind))


def _check_values(array: pa.Array, field: pa.Field) -> None:
    """Raise `SchemaMismatch` if an array contains values that readers cannot represent.

    Arrow does not check them, not even in casts: a cast of large strings returns plain strings with invalid UTF-8.
    """
    if not all(map(_in_range, leaves(array))):
        raise SchemaMismatch(f"column {field.name!r} holds a time that is out of range: years 1 to 9999")
    wrong = invalid_value(array, _is_checked)
    if wrong is not None:
        raise SchemaMismatch(f"column {field.name!r} holds {wrong}")


def invalid_value(array: pa.Array, matches: Callable[[pa.DataType], bool]) -> str | None:
    """Return a description of the first invalid value in those arrays within `array` whose type matches; None without one."""
    if not contains(array.type, matches):
        return None
    for leaf in leaves(array):
        if matches(leaf.type):
            try:
                leaf.validate(full=True)
            except pa.ArrowInvalid as error:
                return f"an invalid {leaf.type}: {error}"
    return None


def _is_checked(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_decimal(kind))


def _fit(given: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if given.type.equals(kind):
        return given
    try:
        array = to_plain(given)
        if pt.is_map(kind) and is_map_entries(array.type):
            array = as_map(array)
        misfit = _misfit(array.type, kind)
        if misfit is not None:
            raise SchemaMismatch(f"column {field.name!r} {misfit}")
        if pt.is_integer(array.type) and pt.is_timestamp(kind):
            # Integer times are milliseconds everywhere in the API.
            array = pc.multiply_checked(array.cast(pa.int64()), 1000)
        elif (pt.is_floating(array.type) or pt.is_integer(array.type)) and pt.is_decimal(kind):
            # By way of text: Arrow rounds floats, and counts as many digits as an integer type can have.
            array = array.cast(pa.string())
        cast = array.cast(kind, safe=True)
        if _narrows(array.type, kind) and not cast.cast(array.type).equals(array):
            raise pa.ArrowInvalid("that would change a value")
        if (
            contains(kind, pt.is_float32)
            and contains(array.type, pt.is_float64)
            and _infinities(cast) > _infinities(array)
        ):
            raise pa.ArrowInvalid("a value would become infinite")
        return cast
    except (pa.ArrowException, NotImplementedError, OverflowError) as error:
        reason = str(error).splitlines()[0].partition(". If ")[0]  # without Arrow's advice to its callers
        raise SchemaMismatch(f"column {field.name!r}: {given.type} does not fit {kind}: {reason}") from None


def _in_range(leaf: pa.Array) -> bool:
    """Whether Python and Spark can represent all times of a scalar array; otherwise no row could be read."""
    if pt.is_timestamp(leaf.type):
        numbers, low, high = leaf.view(pa.int64()), TIMESTAMP_US_MIN, TIMESTAMP_US_MAX
    elif pt.is_date(leaf.type):
        numbers, low, high = leaf.view(pa.int32()), TIMESTAMP_US_MIN // _DAY_US, TIMESTAMP_US_MAX // _DAY_US
    else:
        return True
    bounds = pc.min_max(numbers)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    return first is None or bool(low <= first and last <= high)


def _infinities(array: pa.Array) -> int:
    floats = (leaf for leaf in leaves(array) if pt.is_floating(leaf.type))
    return sum(pc.sum(pc.is_inf(leaf), min_count=0).as_py() for leaf in floats)
