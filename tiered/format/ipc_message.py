"""Read a record batch that nobody vouches for: what comes out points nowhere but into its own buffers.

Arrow checks the structure of a message, and by `validate` the ends of each column's offsets, but what lies between
them by ``validate(full=True)`` alone, which for text also looks for UTF-8: several times the work of the checksum.
Text is therefore looked at as bytes; that its offsets are in order takes a fraction of it.
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
# A look at every value, text too, costs less than a second read up to here, and where there is hardly any text.
_SMALL_BYTES = 64 << 10
_RECORD_BODY = body_schema(RECORD_SCHEMA)


def read_batch(raw: pa.Buffer, schema: pa.Schema, *, known: bool = False) -> pa.RecordBatch:
    """Decode one encapsulated record batch message, without a copy; text is not checked to be UTF-8.

    Parameters
    ----------
    known
        The same bytes were read before: they need not be looked at again.

    Raises
    ------
    CorruptionError
        Another kind of message, or contents that contradict themselves.
    """
    try:
        if known:
            return pa.ipc.read_record_batch(raw, schema)
        if _is_compressed(raw):
            # Arrow would allocate whatever the buffers declare.
            raise CorruptionError("chunk is compressed a second time")
        batch = pa.ipc.read_record_batch(raw, schema)
        if not ((raw.size <= _SMALL_BYTES or schema.equals(_RECORD_BODY)) and _is_valid(batch)):
            pa.ipc.read_record_batch(raw, _as_bytes(schema)).validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError, struct.error) as error:
        raise CorruptionError(f"chunk does not decode ({error})") from None
    return batch


def _is_valid(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    return True


@lru_cache(maxsize=1024)
def _as_bytes(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the same layout in which text and decimals are bytes, of which any will do."""
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


def _is_compressed(raw: pa.Buffer) -> bool:
    """Whether the message's metadata (Flatbuffers; Arrow's ``Message.fbs``) names a compression of its buffers."""
    if raw.slice(0, min(raw.size, 4)).to_pybytes() != _CONTINUATION:
        raise CorruptionError("chunk is no Arrow message")
    message = 8 + struct.unpack_from("<I", raw, 8)[0]
    header = _field(raw, message, _HEADER_FIELD)
    if header is None:
        raise CorruptionError("chunk is no record batch")
    return _field(raw, header + struct.unpack_from("<I", raw, header)[0], _COMPRESSION_FIELD) is not None


def _field(raw: pa.Buffer, table: int, field: int) -> int | None:
    """Return where a field of a Flatbuffers table lies, or None where it has its default."""
    fields = table - struct.unpack_from("<i", raw, table)[0]
    if struct.unpack_from("<H", raw, fields)[0] < 6 + 2 * field:
        return None
    offset: int = struct.unpack_from("<H", raw, fields + 4 + 2 * field)[0]
    return table + offset if offset else None
