"""Whether an object is there and is what the manifest says: by the server's word, or by reading it.

The manifest has a CRC32C of every row group and of the tail, and together these are all bytes of an object. So
the CRC32C of the whole is known without reading it (`whole_crc`), and where the server keeps one too, a HEAD compares
them: it costs a request and no bytes. Such an answer is only the server's word, hence every few rounds
all bytes are read (`DEEP_EVERY` in ``policies/scrubbing.py``), as they are where it keeps none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import ObjectEntry
from ..object_store.protocol import ObjectStore
from ..object_store.second_look import DAMAGED_OR_MISSING, LOOKS, sound

READ_BYTES = 8 << 20

# CRC32C's polynomial, lowest bit first.
_POLYNOMIAL = 0x82F63B78


class Piece(NamedTuple):
    """A range of an object with a checksum in the manifest."""

    name: str
    position: int
    length: int
    crc: int
    offsets: tuple[int, int]


def pieces(entry: ObjectEntry) -> list[Piece]:
    """Return the row groups and the tail of an object, which cover every byte of it."""
    found = [
        Piece("row group", group.position, group.length, group.crc, (group.base_offset, group.end_offset))
        for group in entry.row_groups
    ]
    whole = (entry.base_offset, entry.end_offset)
    return [
        *found,
        Piece("footer", entry.tail_position, entry.bytes - entry.tail_position, entry.tail_crc, whole),
    ]


def check_size(store: ObjectStore, key: str, entry: ObjectEntry) -> int | None:
    """Raise where the object is missing or has another size; return the server's CRC32C of the whole, if it has one.

    Raises
    ------
    ObjectNotFound, CorruptionError, ColdStorageError
    """

    def look() -> int | None:
        info = store.stat(key)
        if info.size != entry.bytes:
            raise CorruptionError(
                f"has {info.size} bytes, the manifest says {entry.bytes}",
                where=f"{store.url.rstrip('/')}/{key}",
                position=min(info.size, entry.bytes),
                offsets=(entry.base_offset, entry.end_offset),
            )
        return info.crc

    return sound(look, doubted=DAMAGED_OR_MISSING)


def check_piece(store: ObjectStore, key: str, piece: Piece, read: Callable[[int], object]) -> None:
    """Read a piece of an object and raise where it fails its checksum.

    Parameters
    ----------
    read
        Told of the bytes that were read.

    Raises
    ------
    CorruptionError, ColdStorageError
    """

    def look() -> None:
        actual, end = 0, piece.position + piece.length
        for at in range(piece.position, end, READ_BYTES):
            data = store.get_range(key, at, min(READ_BYTES, end - at))
            read(len(data))
            actual = crc32c(data, actual)
        if actual != piece.crc:
            raise CorruptionError(
                f"{piece.name} fails its checksum",
                where=f"{store.url.rstrip('/')}/{key}",
                position=piece.position,
                offsets=piece.offsets,
            )

    sound(look, doubted=DAMAGED_OR_MISSING)


def scrub_object(
    store: ObjectStore, key: str, entry: ObjectEntry, *, deep: bool, read: Callable[[int], object]
) -> Iterator[CorruptionError]:
    """Yield what is wrong with an object's bytes, piece by piece; nothing where all is well.

    Parameters
    ----------
    deep
        Read every byte, whatever the server says of them.
    read
        Told of the bytes that were read.

    Raises
    ------
    ObjectNotFound
        It is missing, with authority.
    ColdStorageError
        The bucket does not say; nothing is known.
    """
    try:
        known = check_size(store, key, entry)
    except CorruptionError as error:
        yield error
        return
    agrees = known in (None, whole_crc(entry))
    if known is not None and agrees and not deep:
        return
    well = True
    for piece in pieces(entry):
        try:
            check_piece(store, key, piece, read)
        except CorruptionError as error:
            well = False
            yield error
    if well and not agrees:
        try:
            sound(partial(_check_server_crc, store, key, entry), looks=LOOKS - 1)
        except CorruptionError as error:
            yield error


def _check_server_crc(store: ObjectStore, key: str, entry: ObjectEntry) -> None:
    if check_size(store, key, entry) not in (None, whole_crc(entry)):
        raise CorruptionError(
            "the server's CRC32C of it is another than that of the bytes it returns",
            where=f"{store.url.rstrip('/')}/{key}",
            position=0,
            offsets=(entry.base_offset, entry.end_offset),
        )


def whole_crc(entry: ObjectEntry) -> int:
    """Return the CRC32C of an object's bytes, put together from those of its pieces."""
    total = 0
    for piece in pieces(entry):
        total = _times(_shift(8 * piece.length), total) ^ piece.crc
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
    """Return x to the power of `bits`: what appending so many zero bits multiplies a CRC by."""
    power, square = 1 << 31, 1 << 30
    while bits:
        if bits & 1:
            power = _times(square, power)
        square = _times(square, square)
        bits >>= 1
    return power
