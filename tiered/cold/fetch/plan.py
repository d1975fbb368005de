"""The plan of a fetch: verified ranges of an object, from the manifest's entry and, for single columns, the footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CorruptionError
from ...format.manifest import ObjectEntry
from ..object_store.ranges import Span
from ..parquet.footer import Footer
from ..parquet.layout import column_chunks
from .verified_range import VerifiedRange

# A row group is fetched whole if this share of it is needed: fewer requests for a few more bytes.
_WHOLE_SHARE = 0.75


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
    """Return the range of all that follows an object's last row group."""
    return _range_of(entry, entry.tail_position, entry.bytes, entry.tail_crc, "footer fails its checksum")


def footer_range(entry: ObjectEntry) -> VerifiedRange:
    """Return the range of an object's page index and footer, without the filters before them."""
    if not entry.footer_position:
        return tail_range(entry)
    return _range_of(entry, entry.footer_position, entry.bytes, entry.footer_crc, "footer fails its checksum")


def filters_range(entry: ObjectEntry) -> VerifiedRange:
    """Return the range of the filters of an object that has some."""
    reason = "filters fail their checksum"
    return _range_of(entry, entry.tail_position, entry.footer_position, entry.filters_crc, reason)


def _range_of(entry: ObjectEntry, start: int, end: int, crc: int, reason: str) -> VerifiedRange:
    return VerifiedRange(
        start, end - start, ((end - start, crc),), reason, (entry.base_offset, entry.end_offset)
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
