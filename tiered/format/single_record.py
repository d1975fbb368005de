"""The fast encoding of a block of one small record, which every append with ``sync="always"`` writes.

Arrow's builders take longer to make columns of one row than the write itself. The blocks of two records with keys and
values of the same lengths differ only in the timestamp and in the bytes of key and value. So each pair of lengths has a
template, and these three are copied into it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from .block import Body, encode_body, replace_chunk
from .schema import RECORD_SCHEMA, TIMESTAMP, body_schema

SINGLE_BYTES_MAX = 1024
"""Longer keys and values are encoded by Arrow, since copying them takes longer."""

_BODY_SCHEMA = body_schema(RECORD_SCHEMA)
_TIMESTAMP = struct.Struct("<q")


class _Template(NamedTuple):
    """An encoded record of zeros, and the positions of its timestamp, key and value in the chunk."""

    body: Body
    chunk: bytes
    timestamp_at: int
    key_at: int
    value_at: int


def encode_single(timestamp_us: int, key: bytes | None, value: bytes | None) -> Body:
    """Return the `encode_body` of one record without headers, with key and value of up to `SINGLE_BYTES_MAX`."""
    template = _template(None if key is None else len(key), None if value is None else len(value))
    chunk = bytearray(template.chunk)
    _TIMESTAMP.pack_into(chunk, template.timestamp_at, timestamp_us)
    if key:
        chunk[template.key_at : template.key_at + len(key)] = key
    if value:
        chunk[template.value_at : template.value_at + len(value)] = value
    return replace_chunk(template.body, pa.py_buffer(bytes(chunk)), timestamp_us)


@lru_cache(maxsize=1024)
def _template(key_length: int | None, value_length: int | None) -> _Template:
    columns = [
        pa.array([0], TIMESTAMP),
        pa.array([None if key_length is None else bytes(key_length)], pa.binary()),
        pa.array([None if value_length is None else bytes(value_length)], pa.binary()),
        pa.nulls(1, _BODY_SCHEMA.field(3).type),
    ]
    body = encode_body(pa.RecordBatch.from_arrays(columns, schema=_BODY_SCHEMA), owned=True)
    chunk: pa.Buffer = body.parts[1]
    decoded = pa.ipc.read_record_batch(chunk, _BODY_SCHEMA)

    def position(column: int) -> int:
        data = decoded.column(column).buffers()[-1]
        return 0 if data is None else int(data.address - chunk.address)

    return _Template(body, chunk.to_pybytes(), position(0), position(1), position(2))
