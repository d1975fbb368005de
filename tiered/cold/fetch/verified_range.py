"""A range of an object with its checksums: each byte of a fetch is verified here (promise P4)."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ..object_store.protocol import ObjectStore, object_url
from ..object_store.ranges import Span
from ..object_store.rereads import DAMAGED_OR_MISSING, READS_MAX, reread_on_damage


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """A range of an object that is fetched, verified and cached as one.

    Attributes
    ----------
    checks
        Length and CRC32C of its consecutive parts.
    reason
        The message if a part fails its checksum.
    offsets
        Offsets of the records in it.
    """

    start: int
    length: int
    checks: tuple[tuple[int, int], ...]
    reason: str
    offsets: tuple[int, int]

    @property
    def span(self) -> Span:
        """Start and length."""
        return self.start, self.length

    def damage(self, data: bytes | memoryview) -> int | None:
        """Return the position in the object of the first part that fails its checksum; None if all pass."""
        view, at = memoryview(data), 0
        if len(view) != self.length:
            return self.start
        for length, crc in self.checks:
            if crc32c(view[at : at + length]) != crc:
                return self.start + at
            at += length
        return None


def read_range(store: ObjectStore, key: str, byte_range: VerifiedRange, *, reads: int = READS_MAX) -> bytes:
    """Read and verify a range of an object, by up to `reads` reads while it fails.

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """

    def read() -> bytes:
        data = store.get_range(key, byte_range.start, byte_range.length)
        damaged_at = byte_range.damage(data)
        if damaged_at is not None:
            short = len(data) != byte_range.length
            raise CorruptionError(
                f"{len(data)} bytes instead of {byte_range.length}" if short else byte_range.reason,
                where=object_url(store, key),
                position=damaged_at,
                offsets=byte_range.offsets,
            )
        return data

    return reread_on_damage(read, verdicts=DAMAGED_OR_MISSING, reads=reads)
