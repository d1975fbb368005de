"""The plan of a fetch: verified ranges of an object, from the manifest's entry and, for single columns, the footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import ObjectEntry
from ..object_store.protocol import ObjectStore, object_url
from ..object_store.ranges import Span
from ..object_store.rereads import DAMAGED_OR_MISSING, READS_MAX, reread_on_damage
from ..parquet.footer import Footer
from ..parquet.layout import column_chunks

# A row group is fetched whole if this share of it is needed: fewer requests for a few more bytes.
_WHOLE_SHARE = 0.75


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


def read_range(store: ObjectStore, key: str, wanted: VerifiedRange, *, reads: int = READS_MAX) -> bytes:
    """Read and verify a range of an object, by up to `reads` reads while it fails.

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """

    def read() -> bytes:
        data = store.get_range(key, wanted.start, wanted.length)
        damaged_at = wanted.damage(data)
        if damaged_at is not None:
            short = len(data) != wanted.length
            raise CorruptionError(
                f"{len(data)} bytes instead of {wanted.length}" if short else wanted.reason,
                where=object_url(store, key),
                position=damaged_at,
                offsets=wanted.offsets,
            )
        return data

    return reread_on_damage(read, verdicts=DAMAGED_OR_MISSING, reads=reads)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Row groups of an object that are fetched together.

    Attributes
    ----------
    bytes
        Bytes to fetch at most, without the footer.
    """

    groups: tuple[int, ...]
    bytes: int


def plan_units(entry: ObjectEntry, groups: Sequence[int], bytes_max: int) -> list[Unit]:
    """Divide row groups into units of at most `bytes_max`; a larger row group is a unit of its own."""
    units: list[Unit] = []
    run: list[int] = []
    size = 0
    for index in groups:
        length = entry.row_groups[index].length
        if run and size + length > bytes_max:
            units.append(Unit(tuple(run), size))
            run, size = [], 0
        run.append(index)
        size += length
    return [*units, Unit(tuple(run), size)] if run else units


def tail_range(entry: ObjectEntry) -> VerifiedRange:
    """Return the range of an object's page index and footer."""
    length = entry.bytes - entry.tail_position
    offsets = (entry.base_offset, entry.end_offset)
    return VerifiedRange(
        entry.tail_position, length, ((length, entry.tail_crc),), "footer fails its checksum", offsets
    )


def row_group_range(entry: ObjectEntry, index: int) -> VerifiedRange:
    """Return the range of a whole row group."""
    group = entry.row_groups[index]
    offsets = (group.base_offset, group.end_offset)
    return VerifiedRange(
        group.position, group.length, ((group.length, group.crc),), "row group fails its checksum", offsets
    )


def object_ranges(entry: ObjectEntry) -> list[VerifiedRange]:
    """Return the row groups and the tail of an object, which together contain all its bytes."""
    return [*(row_group_range(entry, index) for index in range(len(entry.row_groups))), tail_range(entry)]


def unit_ranges(
    entry: ObjectEntry, unit: Unit, footer: Footer, names: Sequence[str], where: str
) -> list[VerifiedRange]:
    """Return the chunks of some columns, or the whole row groups if these are hardly larger.

    Raises
    ------
    CorruptionError
        The footer contradicts itself.
    """
    leaves = leaf_indices(footer.metadata, names)
    chunks = {index: column_chunks(footer.metadata, index) for index in unit.groups}
    needed = sum(chunks[index][leaf][1] for index in unit.groups for leaf in leaves)
    if needed >= _WHOLE_SHARE * unit.bytes:
        return [row_group_range(entry, index) for index in unit.groups]
    return [
        _chunk_range(entry, index, footer, chunks[index][leaf], where)
        for index in unit.groups
        for leaf in leaves
    ]


def _chunk_range(entry: ObjectEntry, index: int, footer: Footer, chunk: Span, where: str) -> VerifiedRange:
    group = entry.row_groups[index]
    offsets = (group.base_offset, group.end_offset)
    try:
        checks = tuple((length, crc) for _, length, crc in footer.extents_of(*chunk))
    except ValueError as error:
        raise CorruptionError(str(error), where=where, position=chunk[0], offsets=offsets) from None
    return VerifiedRange(*chunk, checks, "column fails its checksum", offsets)


def leaf_indices(metadata: Any, names: Sequence[str]) -> list[int]:
    """Return the leaf columns that pyarrow decodes for these names: the columns and all that are nested in them."""
    wanted = set(names)
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return [index for index, path in enumerate(paths) if path in wanted or _is_nested_in(path, wanted)]


def _is_nested_in(path: str, names: set[str]) -> bool:
    return any(path[:at] in names for at, letter in enumerate(path) if letter == ".")
