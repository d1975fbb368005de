"""Inspection of an object: its facts, its manifest entry made from its bytes, and its verification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import CorruptionError
from ...format.checksum import crc32c
from ...format.manifest import RANGE_BYTES_MAX, ObjectEntry, RowGroup
from ...format.manifest_checks import check_object
from ...format.segment_facts import SegmentFacts
from ..fetch.plan import footer_range, object_ranges
from ..fetch.verified_range import VerifiedRange, read_range
from ..object_store.protocol import ObjectInfo, ObjectStore, object_url
from ..object_store.rereads import reread_on_damage
from ..parquet.footer import Footer, FooterCache, parse_footer
from ..parquet.layout import MAGIC, ObjectFacts, as_in_manifest, column_chunks, facts_of, make_entry
from .check import check_range_crc, check_size
from .filter_check import with_filters

_TAIL_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024 * 1024


def read_facts(store: ObjectStore, key: str) -> ObjectFacts:
    """Read an object's facts, whether its segment was sealed, and its schema, from the object alone.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """

    def read() -> ObjectFacts:
        return facts_of(_open(store, key)[2].metadata, where=object_url(store, key))

    return reread_on_damage(read)


def read_facts_of_entry(
    store: ObjectStore, key: str, entry: ObjectEntry, footers: FooterCache | None = None
) -> tuple[SegmentFacts, ...]:
    """Read the facts of each segment in an object that the manifest names, verified against the manifest.

    Parameters
    ----------
    footers
        Receives the parsed footer, for later reads.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    where, part = object_url(store, key), footer_range(entry)
    at = part.start
    footer = parse_footer(memoryview(read_range(store, key, part)), where=where, position=at)
    about = facts_of(footer.metadata, where=where)
    again = make_entry(
        about.facts,
        entry.row_groups,
        name=entry.name,
        sealed=about.sealed,
        size=entry.bytes,
        tail_crc=entry.tail_crc,
    )
    if as_in_manifest(again, entry) != entry:
        raise CorruptionError("object and manifest disagree about what it holds", where=where, position=at)
    if footers is not None:
        footers.put(key, entry.tail_crc, footer)
    return about.segments


def rebuild_entry(store: ObjectStore, key: str) -> ObjectEntry:
    """Return a new manifest entry for an object; see `rebuild_object`."""
    return rebuild_object(store, key)[0]


def rebuild_object(store: ObjectStore, key: str) -> tuple[ObjectEntry, ObjectFacts]:
    """Read a whole object; return a new manifest entry for it, and its facts.

    Column chunks are verified against the checksums in the file. Only the manifest has checksums of footer and filters, so
    the footer is read twice, and each key is looked up in the filters instead.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    return reread_on_damage(lambda: _rebuild(store, key))


def _rebuild(store: ObjectStore, key: str) -> tuple[ObjectEntry, ObjectFacts]:
    where = object_url(store, key)
    info, tail, footer = _open(store, key)
    about = facts_of(footer.metadata, where=where)
    try:
        groups = list(_rebuild_groups(store, key, footer, about.facts, info.size))
    except (ValueError, AttributeError, pa.ArrowException) as error:
        raise CorruptionError(f"object contradicts itself ({error})", where=where) from None
    entry = make_entry(
        about.facts,
        tuple(groups),
        name=key.rpartition("/")[2],
        sealed=about.sealed,
        size=info.size,
        tail_crc=_tail_crc(store, key, groups[-1].position + groups[-1].length if groups else 0, info, tail),
    )
    entry = replace(entry, storage_class=info.storage_class)
    problems = check_object(entry)
    if problems:
        raise CorruptionError(f"object contradicts itself: {problems[0]}", where=where)
    encoded = memoryview(tail)[-8 - int.from_bytes(tail[-8:-4], "little") : -8]
    return with_filters(store, key, entry, about.schema, encoded), about


def _tail_crc(store: ObjectStore, key: str, position: int, info: ObjectInfo, tail: bytes) -> int:
    """Return the CRC32C of the end of an object from `position` on; `tail` are its last bytes from an earlier read.

    Raises
    ------
    CorruptionError
        Two reads differ.
    """
    tail_start = max(position, info.size - len(tail))
    first = _crc_of(store, key, position, tail_start - position)
    if (
        store.get_range(key, tail_start, info.size - tail_start) != tail[tail_start - info.size :]
        or _crc_of(store, key, position, tail_start - position) != first
    ):
        raise CorruptionError(
            "two reads of the footer differ", where=object_url(store, key), position=position
        )
    return crc32c(tail[tail_start - info.size :], first)


def verify_object(store: ObjectStore, key: str, entry: ObjectEntry) -> None:
    """Read every byte of an object and compare it with the manifest's checksums.

    Raises
    ------
    CorruptionError
        The error is about the first row group, or the tail, that differs.
    ColdStorageError
    """
    check_size(store, key, entry)
    for checked in object_ranges(entry):
        check_range_crc(store, key, checked, lambda _: None)


def _open(store: ObjectStore, key: str) -> tuple[ObjectInfo, bytes, Footer]:
    """Read the status of an object, its last bytes, and the footer in them; nothing is verified yet."""
    info, tail = read_tail(store, key)
    where = object_url(store, key)
    return info, tail, parse_footer(memoryview(tail), where=where, position=info.size - len(tail))


def read_tail(store: ObjectStore, key: str) -> tuple[ObjectInfo, bytes]:
    """Read the status of an object and its last bytes, which include its footer; nothing is verified.

    Raises
    ------
    CorruptionError
        It does not end like a Parquet file.
    ColdStorageError
    """
    where = object_url(store, key)
    info = store.stat(key)
    length = min(info.size, _TAIL_BYTES)
    tail = store.get_range(key, info.size - length, length)
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < 12 or tail[-4:] != MAGIC or needed + len(MAGIC) > info.size or needed > RANGE_BYTES_MAX:
        raise CorruptionError("not a Parquet object", where=where, position=max(0, info.size - 8))
    if needed > length:
        tail = store.get_range(key, info.size - needed, needed)
    return info, tail


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
        if min(starts[index], length) < 0 or starts[index] + length > size_max or length > RANGE_BYTES_MAX:
            raise ValueError(f"row group {index} lies outside of the object")
        checks = [(len(MAGIC), crc32c(MAGIC))] if index == 0 else []
        checks += [(size, crc) for chunk in sorted(chunks) for _, size, crc in footer.extents_of(*chunk)]
        if sum(size for size, _ in checks) != length:
            raise ValueError(f"row group {index} has bytes that are in no column, or in two")
        offsets = edges[index], edges[index + 1]
        group = VerifiedRange(starts[index], length, tuple(checks), "column fails its checksum", offsets)
        data = read_range(store, key, group)
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
    # pyarrow ends the process on statistics of another type than the column's.
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
