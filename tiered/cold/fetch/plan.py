"""What to fetch of an object: planned from the manifest's entry and, for some columns only, the footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import ObjectEntry
from ..object_store.protocol import ObjectStore
from ..object_store.ranges import Range
from ..object_store.second_look import DAMAGED_OR_MISSING, LOOKS, sound
from ..parquet.footer import Footer
from ..parquet.layout import column_chunks

# From this share of a row group on, the whole of it is fetched: fewer requests for few bytes more.
_WHOLE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """A range of an object that is fetched, verified and cached as one.

    Attributes
    ----------
    checks
        Length and CRC32C of the parts that make it up, in order.
    reason
        What to say where one of them does not fit.
    offsets
        Of the records in it.
    """

    start: int
    length: int
    checks: tuple[tuple[int, int], ...]
    reason: str
    offsets: tuple[int, int]

    @property
    def range(self) -> Range:
        """Start and length."""
        return self.start, self.length

    def damage(self, data: bytes | memoryview) -> int | None:
        """Return the position in the object of the first part that fails its checksum, if one does."""
        view, at = memoryview(data), 0
        if len(view) != self.length:
            return self.start
        for length, crc in self.checks:
            if crc32c(view[at : at + length]) != crc:
                return self.start + at
            at += length
        return None


def read_piece(store: ObjectStore, key: str, piece: VerifiedRange, *, looks: int = LOOKS) -> bytes:
    """Return a piece of an object, verified; read again, `looks` times at most, where it fails.

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """

    def look() -> bytes:
        data = store.get_range(key, piece.start, piece.length)
        damaged_at = piece.damage(data)
        if damaged_at is not None:
            short = len(data) != piece.length
            raise CorruptionError(
                f"{len(data)} bytes instead of {piece.length}" if short else piece.reason,
                where=f"{store.url.rstrip('/')}/{key}",
                position=damaged_at,
                offsets=piece.offsets,
            )
        return data

    return sound(look, doubted=DAMAGED_OR_MISSING, looks=looks)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Row groups of an object that are fetched together.

    Attributes
    ----------
    bytes
        What is fetched at most, the footer aside.
    """

    groups: tuple[int, ...]
    bytes: int


def plan_units(entry: ObjectEntry, groups: Sequence[int], bytes_max: int) -> list[Unit]:
    """Cut row groups into runs of at most `bytes_max`, or of one that is larger."""
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


def tail_piece(entry: ObjectEntry) -> VerifiedRange:
    """Return the end of an object: page index and footer."""
    length = entry.bytes - entry.tail_position
    offsets = (entry.base_offset, entry.end_offset)
    return VerifiedRange(
        entry.tail_position, length, ((length, entry.tail_crc),), "footer fails its checksum", offsets
    )


def group_piece(entry: ObjectEntry, index: int) -> VerifiedRange:
    """Return a whole row group."""
    group = entry.row_groups[index]
    offsets = (group.base_offset, group.end_offset)
    return VerifiedRange(
        group.position, group.length, ((group.length, group.crc),), "row group fails its checksum", offsets
    )


def unit_pieces(
    entry: ObjectEntry, unit: Unit, footer: Footer, names: Sequence[str], where: str
) -> list[VerifiedRange]:
    """Return the chunks of some columns, or the whole row groups where that is nearly the same.

    Raises
    ------
    CorruptionError
        The footer contradicts itself.
    """
    leaves = leaf_indices(footer.metadata, names)
    chunks = {index: column_chunks(footer.metadata, index) for index in unit.groups}
    needed = sum(chunks[index][leaf][1] for index in unit.groups for leaf in leaves)
    if needed >= _WHOLE_SHARE * unit.bytes:
        return [group_piece(entry, index) for index in unit.groups]
    return [
        _chunk_piece(entry, index, footer, chunks[index][leaf], where)
        for index in unit.groups
        for leaf in leaves
    ]


def _chunk_piece(entry: ObjectEntry, index: int, footer: Footer, chunk: Range, where: str) -> VerifiedRange:
    group = entry.row_groups[index]
    offsets = (group.base_offset, group.end_offset)
    try:
        checks = tuple((length, crc) for _, length, crc in footer.extents_of(*chunk))
    except ValueError as error:
        raise CorruptionError(str(error), where=where, position=chunk[0], offsets=offsets) from None
    return VerifiedRange(*chunk, checks, "column fails its checksum", offsets)


def leaf_indices(metadata: Any, names: Sequence[str]) -> list[int]:
    """Return the leaf columns that pyarrow decodes for these names: the columns and all below them."""
    wanted = set(names)
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return [index for index, path in enumerate(paths) if path in wanted or _leads_below(path, wanted)]


def _leads_below(path: str, names: set[str]) -> bool:
    return any(path[:at] in names for at, letter in enumerate(path) if letter == ".")
