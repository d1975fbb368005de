"""The parts of one record as users give them: its key, value and headers, and the partition of its key."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from ..errors import RecordTooLarge, SchemaMismatch
from .schema import HEADERS_TYPE
from .sizes import element_bytes
from .timestamps import plain_int

_HEADER_BYTES = element_bytes(HEADERS_TYPE)

Headers = Sequence[tuple[str, bytes | None]]


def key_bytes(key: object) -> bytes | None:
    """Return a key as bytes: UTF-8 of a str, decimal text of an int.

    Raises
    ------
    SchemaMismatch
    """
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise SchemaMismatch(f"key {key!r} has no UTF-8 ({error.reason}); give it as bytes") from None
    key = plain_int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key)).encode()
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise SchemaMismatch(f"a key is bytes, str or int, not {type(key).__name__}")


def value_bytes(value: object) -> bytes | None:
    """Return a record's value as bytes.

    Raises
    ------
    SchemaMismatch
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = "; encode it first, for example with .encode()" if isinstance(value, str) else ""
    raise SchemaMismatch(f"a value is bytes, not {type(value).__name__}{hint}")


def header_pairs(headers: object) -> tuple[Headers | None, int]:
    """Return headers as pairs, or None without headers, and their size in bytes.

    Raises
    ------
    SchemaMismatch
    """
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    size = 0
    try:
        checked = [(name, value_bytes(value)) for name, value in pairs]  # type: ignore[attr-defined]
        for name, value in checked:
            size += len(name.encode()) + len(value or b"") + _HEADER_BYTES
    except (TypeError, ValueError, AttributeError):
        raise SchemaMismatch("headers are a dict of str to bytes, or a list of such pairs") from None
    return checked or None, size


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key as librdkafka's ``consistent`` partitioner does: CRC-32 modulo the partitions."""
    return zlib.crc32(key) % partitions


def check_record_size(size: int, limit: int) -> None:
    """Raise `RecordTooLarge` for a record above the limit; `format.sizes` says what counts."""
    if size > limit:
        raise RecordTooLarge(
            f"a record of {size} bytes is over max_record_bytes ({limit}); nothing was appended"
        )
