"""What an object says without a manifest, and whether it is what the manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..errors import CorruptionError
from ..format.checksum import crc32c
from ..format.facts import SegmentFacts
from ..format.manifest import ObjectEntry, RowGroup, check_object
from .object_store import ObjectInfo, ObjectStore
from .parquet_footer import Footer, FooterCache, parse_footer
from .parquet_format import MAGIC, ObjectFacts, column_chunks, facts_of, make_entry

_TAIL_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024 * 1024


def read_facts(store: ObjectStore, key: str) -> ObjectFacts:
    """Return an object's facts, whether its segment was sealed, and its schema, from the object alone.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    _, footer = _open(store, key)
    return facts_of(footer.metadata, where=_where(store, key))


def read_facts_of_entry(
    store: ObjectStore, key: str, entry: ObjectEntry, footers: FooterCache | None = None
) -> tuple[SegmentFacts, ...]:
    """Return the facts of each segment in an object that the manifest names, verified against the manifest.

    Parameters
    ----------
    footers
        Takes the parsed footer, for the reads that follow.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    where, at = _where(store, key), entry.tail_position
    tail = memoryview(store.get_range(key, at, entry.bytes - at))
    if crc32c(tail) != entry.tail_crc:
        raise CorruptionError(
            "footer fails its checksum",
            where=where,
            position=at,
            offsets=(entry.base_offset, entry.end_offset),
        )
    footer = parse_footer(tail, where=where, position=at)
    about = facts_of(footer.metadata, where=where)
    again = make_entry(
        about.facts,
        entry.row_groups,
        name=entry.name,
        sealed=about.sealed,
        size=entry.bytes,
        tail_crc=entry.tail_crc,
    )
    # An object does not know in which storage class it is.
    if again != replace(entry, storage_class=""):
        raise CorruptionError("object and manifest disagree about what it holds", where=where, position=at)
    if footers is not None:
        footers.put(key, entry.tail_crc, footer)
    return about.segments


def rebuild_entry(store: ObjectStore, key: str) -> ObjectEntry:
    """Make the manifest's entry for an object again by reading all of it.

    Column chunks are verified against the checksums in the file. Its footer has no checksum outside of the
    manifest, so what the entry says of it is what was found.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    where = _where(store, key)
    info, footer = _open(store, key)
    about = facts_of(footer.metadata, where=where)
    try:
        groups = list(_rebuild_groups(store, key, footer, about.facts, info.size))
    except (ValueError, AttributeError, pa.ArrowException) as error:
        raise CorruptionError(f"object contradicts itself ({error})", where=where) from None
    tail_position = groups[-1].position + groups[-1].length if groups else 0
    entry = make_entry(
        about.facts,
        tuple(groups),
        name=key.rpartition("/")[2],
        sealed=about.sealed,
        size=info.size,
        tail_crc=_crc_of(store, key, tail_position, info.size - tail_position),
    )
    entry = replace(entry, storage_class=info.storage_class)
    problems = check_object(entry)
    if problems:
        raise CorruptionError(f"object contradicts itself: {problems[0]}", where=where)
    return entry


def verify_object(store: ObjectStore, key: str, entry: ObjectEntry) -> None:
    """Read every byte of an object and compare it with the manifest's checksums.

    Raises
    ------
    CorruptionError
        The first row group, or the tail, that differs.
    ColdStorageError
    """
    where = _where(store, key)
    size = store.stat(key).size
    if size != entry.bytes:
        raise CorruptionError(
            f"object has {size} bytes, the manifest says {entry.bytes}",
            where=where,
            offsets=(entry.base_offset, entry.end_offset),
        )
    pieces = [(g.position, g.length, g.crc, g.base_offset, g.end_offset) for g in entry.row_groups]
    pieces.append(
        (
            entry.tail_position,
            entry.bytes - entry.tail_position,
            entry.tail_crc,
            entry.base_offset,
            entry.end_offset,
        )
    )
    for position, length, crc, base, end in pieces:
        if _crc_of(store, key, position, length) != crc:
            raise CorruptionError(
                "bytes fail their checksum", where=where, position=position, offsets=(base, end)
            )


def _open(store: ObjectStore, key: str) -> tuple[ObjectInfo, Footer]:
    where = _where(store, key)
    info = store.stat(key)
    length = min(info.size, _TAIL_BYTES)
    tail = store.get_range(key, info.size - length, length)
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < 12 or tail[-4:] != MAGIC or needed + len(MAGIC) > info.size:
        raise CorruptionError("not a Parquet object", where=where, position=max(0, info.size - 8))
    if needed > length:
        tail = store.get_range(key, info.size - needed, needed)
    return info, parse_footer(memoryview(tail), where=where, position=info.size - len(tail))


def _rebuild_groups(
    store: ObjectStore, key: str, footer: Footer, facts: SegmentFacts, size_max: int
) -> Iterator[RowGroup]:
    metadata = footer.metadata
    spans = [column_chunks(metadata, index) for index in range(metadata.num_row_groups)]
    starts = [0, *(min(start for start, _ in chunks) for chunks in spans[1:])]
    firsts = [_bounds(metadata, index, "offset")[0] for index in range(metadata.num_row_groups)]
    edges = [facts.base_offset, *firsts[1:], facts.end_offset]
    for index, chunks in enumerate(spans):
        length = max(start + size for start, size in chunks) - starts[index]
        if min(starts[index], length) < 0 or starts[index] + length > size_max:
            raise ValueError(f"row group {index} lies outside of the object")
        data = memoryview(store.get_range(key, starts[index], length))
        for chunk in chunks:
            for position, size, crc in footer.extents_of(*chunk):
                at = position - starts[index]
                if crc32c(data[at : at + size]) != crc:
                    raise CorruptionError(
                        "column fails its checksum", where=_where(store, key), position=position
                    )
        low, high = _bounds(metadata, index, "timestamp")
        yield RowGroup(
            base_offset=edges[index],
            end_offset=edges[index + 1],
            record_count=metadata.row_group(index).num_rows,
            position=starts[index],
            length=length,
            crc=crc32c(data),
            min_timestamp_us=low,
            max_timestamp_us=high,
        )


def _bounds(metadata: Any, row_group: int, column: str) -> tuple[int, int]:
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    chunk = metadata.row_group(row_group).column(paths.index(column))
    # Statistics of another type than the column's end the process.
    if chunk.physical_type != "INT64":
        raise ValueError(f"column {column!r} is of type {chunk.physical_type}")
    low, high = chunk.statistics.min_raw, chunk.statistics.max_raw
    if type(low) is not int or type(high) is not int:
        raise ValueError(f"column {column!r} has no bounds")
    return low, high


def _crc_of(store: ObjectStore, key: str, position: int, length: int) -> int:
    crc = 0
    for at in range(position, position + length, _READ_BYTES):
        crc = crc32c(store.get_range(key, at, min(_READ_BYTES, position + length - at)), crc)
    return crc


def _where(store: ObjectStore, key: str) -> str:
    return f"{store.url.rstrip('/')}/{key}"
