"""The safe decoding of an untrusted record batch: the result points only into its own buffers.

Arrow checks the structure of a message, and `validate` the first and last offset of each column. Only
``validate(full=True)`` checks the offsets between them; for text it also checks UTF-8, which takes several times as long as
the checksum. So text is validated as bytes, which takes a fraction of that time.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pt

from ..errors import CorruptionError
from .schema import RECORD_SCHEMA, body_schema

_CONTINUATION = b"\xff\xff\xff\xff"
_HEADER_FIELD = 2
_COMPRESSION_FIELD = 3
# Up to this size, or with hardly any text, full validation takes less time than reading the batch again as bytes.
_SMALL_BYTES = 64 << 10
_RECORD_BODY = body_schema(RECORD_SCHEMA)


def read_batch(
    raw: pa.Buffer, schema: pa.Schema, *, trusted: bool = False, row: int | None = None
) -> pa.RecordBatch:
    """Decode one encapsulated record batch message, without a copy; UTF-8 is not checked.

    Parameters
    ----------
    trusted
        The same bytes were decoded before, and are not validated again.
    row
        The number of the one row that the caller uses: the values of the others are not validated.

    Raises
    ------
    CorruptionError
        Another kind of message, or contradictory contents.
    """
    try:
        if trusted:
            return pa.ipc.read_record_batch(raw, schema)
        if _is_compressed(raw):
            # Arrow would allocate the sizes that the buffers declare.
            raise CorruptionError("chunk is compressed a second time")
        batch = pa.ipc.read_record_batch(raw, schema)
        small = row is not None or raw.size <= _SMALL_BYTES or schema.equals(_RECORD_BODY)
        if not (small and _is_valid(_part(batch, row))):
            _part(pa.ipc.read_record_batch(raw, _as_bytes(schema)), row).validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError, struct.error) as error:
        raise CorruptionError(f"chunk does not decode ({error})") from None
    return batch


def _part(batch: pa.RecordBatch, row: int | None) -> pa.RecordBatch:
    return batch if row is None else batch.slice(row, 1)


def _is_valid(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    return True


@lru_cache(maxsize=1024)
def _as_bytes(schema: pa.Schema) -> pa.Schema:
    """Return a schema of the same layout with binary types for text and decimals, of which any bytes are valid."""
    return pa.schema([pa.field(field.name, _bytes_type(field.type)) for field in schema])


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_string(kind):
        return pa.binary()
    if pt.is_decimal(kind):
        return pa.binary(16)
    if pt.is_list(kind):
        return pa.list_(_bytes_type(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(_bytes_type(kind.key_type), _bytes_type(kind.item_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _bytes_type(field.type)) for field in kind])
    return kind


def _is_compressed(message: pa.Buffer) -> bool:
    """Whether the message's metadata (Flatbuffers; Arrow's ``Message.fbs``) declares compressed buffers."""
    raw = memoryview(message)
    if bytes(raw[:4]) != _CONTINUATION:
        raise CorruptionError("chunk is no Arrow message")
    header = _field(raw, 8 + struct.unpack_from("<I", raw, 8)[0], _HEADER_FIELD)
    if header is None:
        raise CorruptionError("chunk is no record batch")
    return _field(raw, header + struct.unpack_from("<I", raw, header)[0], _COMPRESSION_FIELD) is not None


def _field(raw: memoryview, table: int, field: int) -> int | None:
    """Return the position of a field of a Flatbuffers table, or None if it has its default."""
    fields = table - struct.unpack_from("<i", raw, table)[0]
    if struct.unpack_from("<H", raw, fields)[0] < 6 + 2 * field:
        return None
    offset: int = struct.unpack_from("<H", raw, fields + 4 + 2 * field)[0]
    return table + offset if offset else None
