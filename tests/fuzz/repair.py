"""Make the checksums of a spoilt input right again, so that what lies behind them is reached."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from crc32c import crc32c

from tiered.format.block import CHUNKS_MAX

_U32 = struct.Struct("<I")
_ENTRY = struct.Struct("<IIII")


def repair_block(data: bytearray, at: int = 0) -> int:
    """Repair the block at `at`; return the length that its header claims, 0 where there is none."""
    if len(data) < at + 128 or data[at : at + 4] != b"TBLK":
        return 0
    (stored,) = _U32.unpack_from(data, at + 56)
    (count,) = struct.unpack_from("<H", data, at + 112)
    if count <= CHUNKS_MAX:
        for i in range(count):
            place = at + 128 + 24 * i
            if place + 24 > len(data):
                break
            start, size, _, _ = _ENTRY.unpack_from(data, place)
            piece = data[at + start : at + start + size + -size % 64]
            _U32.pack_into(data, place + 12, crc32c(piece))
        size = 24 * count
        size += -(128 + size) % 64
        _U32.pack_into(data, at + 116, crc32c(data[at + 128 : at + 128 + size]))
    _U32.pack_into(data, at + 124, crc32c(data[at : at + 124]))
    return 128 + stored


def repair_segment(data: bytearray) -> None:
    """Repair header, schema, every block that follows another, footer and trailer."""
    if len(data) < 128:
        return
    (length,) = _U32.unpack_from(data, 8)
    _U32.pack_into(data, 120, crc32c(data[128:length]))
    _U32.pack_into(data, 124, crc32c(data[:124]))
    at = length
    while step := repair_block(data, at):
        at += step
    if data[-4:] == b"TEND" and len(data) >= 160:
        place = len(data) - 32
        position, size = struct.unpack_from("<QI", data, place)
        _U32.pack_into(
            data, place + 12, crc32c(data[position : position + size]) if position < len(data) else 0
        )
        _U32.pack_into(data, place + 24, crc32c(data[place : place + 24]))


def repair_document(text: bytes) -> bytes:
    """Give a JSON object the ``format`` and ``crc32c`` of a document."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict):
        return text
    values.setdefault("format", 1)
    values.pop("crc32c", None)
    body = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
    values["crc32c"] = f"{crc32c(body):08x}"
    return json.dumps(values).encode()


def repair_object(data: bytearray, entry: Any) -> None:
    """Repair the checksums that a Parquet object holds of its own pieces; those of `entry` are the caller's."""
    key = b"tiered.crc32c"
    place = data.rfind(key)
    if place < 0:
        return
    # The value follows as a Thrift string: field header, length as a varint, base64.
    start = place + len(key) + 1
    size = shift = 0
    while start < len(data):
        size |= (data[start] & 0x7F) << shift
        shift += 7
        start += 1
        if not data[start - 1] & 0x80:
            break
    try:
        packed = base64.b64decode(bytes(data[start : start + size]), validate=True)
        pairs = list(struct.iter_unpack("<II", packed))
    except (ValueError, struct.error):
        return
    at, fixed = 4, b""
    for length, _ in pairs:
        fixed += struct.pack("<II", length, crc32c(data[at : at + length]))
        at += length
    data[start : start + size] = base64.b64encode(fixed)
