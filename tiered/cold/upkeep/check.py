"""Checks of an object against the manifest: by the checksum that the server stores, or by reading every byte.

The manifest has a CRC32C of every row group and of the tail, which together contain all bytes of an object. So the CRC32C
of the whole object can be computed without reading it (`whole_crc`). If the server stores one too, a HEAD is enough to
compare them: one request, no bytes. The server may store a right checksum beside damaged bytes. So every few rounds, and
always if it stores none, all bytes are read (`DEEP_EVERY` in ``policies/rules/scrub.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import ObjectEntry
from ..fetch.plan import object_ranges
from ..fetch.verified_range import VerifiedRange
from ..object_store.protocol import ObjectStore, object_url
from ..object_store.rereads import DAMAGED_OR_MISSING, READS_MAX, reread_on_damage

READ_BYTES = 8 << 20

# CRC32C's polynomial, lowest bit first.
_POLYNOMIAL = 0x82F63B78


def check_size(store: ObjectStore, key: str, entry: ObjectEntry) -> int | None:
    """Raise if the object is missing or has another size; return the CRC32C that the server stores, or None.

    Raises
    ------
    ObjectNotFound, CorruptionError, ColdStorageError
    """

    def read() -> int | None:
        info = store.stat(key)
        if info.size != entry.bytes:
            raise CorruptionError(
                f"has {info.size} bytes, the manifest says {entry.bytes}",
                where=object_url(store, key),
                position=min(info.size, entry.bytes),
                offsets=(entry.base_offset, entry.end_offset),
            )
        return info.crc

    return reread_on_damage(read, verdicts=DAMAGED_OR_MISSING)


def check_range_crc(
    store: ObjectStore, key: str, checked: VerifiedRange, count_read: Callable[[int], object]
) -> None:
    """Read one of an object's `object_ranges`, in parts, and raise if it fails its checksum.

    Parameters
    ----------
    count_read
        Called with the number of bytes of each read.

    Raises
    ------
    CorruptionError, ColdStorageError
    """
    ((_, crc),) = checked.checks

    def read() -> None:
        actual, end = 0, checked.start + checked.length
        for at in range(checked.start, end, READ_BYTES):
            data = store.get_range(key, at, min(READ_BYTES, end - at))
            count_read(len(data))
            actual = crc32c(data, actual)
        if actual != crc:
            raise CorruptionError(
                checked.reason, where=object_url(store, key), position=checked.start, offsets=checked.offsets
            )

    reread_on_damage(read, verdicts=DAMAGED_OR_MISSING)


def scrub_object(
    store: ObjectStore, key: str, entry: ObjectEntry, *, deep: bool, count_read: Callable[[int], object]
) -> Iterator[CorruptionError]:
    """Yield the damage of an object, by ranges; nothing if it is sound.

    Parameters
    ----------
    deep
        Read every byte, even if the server's checksum is right.
    count_read
        Called with the number of bytes of each read.

    Raises
    ------
    ObjectNotFound
        The object is missing, with authority.
    ColdStorageError
        The bucket fails; the state of the object is unknown.
    """
    try:
        stored_crc = check_size(store, key, entry)
    except CorruptionError as error:
        yield error
        return
    agrees = stored_crc in (None, whole_crc(entry))
    if stored_crc is not None and agrees and not deep:
        return
    sound = True
    for checked in object_ranges(entry):
        try:
            check_range_crc(store, key, checked, count_read)
        except CorruptionError as error:
            sound = False
            yield error
    if sound and not agrees:
        try:
            reread_on_damage(partial(_check_server_crc, store, key, entry), reads=READS_MAX - 1)
        except CorruptionError as error:
            yield error


def _check_server_crc(store: ObjectStore, key: str, entry: ObjectEntry) -> None:
    if check_size(store, key, entry) not in (None, whole_crc(entry)):
        raise CorruptionError(
            "the server's CRC32C differs from that of the bytes that it returns",
            where=object_url(store, key),
            position=0,
            offsets=(entry.base_offset, entry.end_offset),
        )


def whole_crc(entry: ObjectEntry) -> int:
    """Return the CRC32C of an object's bytes, combined from those of its ranges."""
    total = 0
    for part in object_ranges(entry):
        for length, crc in part.checks:
            total = _times(_shift(8 * length), total) ^ crc
    return total


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo CRC32C's; bit 31 is the constant term."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _shift(bits: int) -> int:
    """Return x to the power of `bits`, the factor of a CRC to which that many zero bits are appended."""
    power, square = 1 << 31, 1 << 30
    while bits:
        if bits & 1:
            power = _times(square, power)
        square = _times(square, square)
        bits >>= 1
    return power
