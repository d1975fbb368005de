"""The writer of a segment as one Parquet object: the topic's columns, then ``offset`` and ``timestamp``.

pyarrow writes the Parquet file; this module adds the checksums of promise P4. The bytes go through a sink that computes
the position and CRC32C of every write. The CRCs of each row group and of the tail (filters, page index and footer) go into
the manifest. The CRCs of smaller ranges, the *extents*, go into the file as key-value metadata ``tiered.crc32c``: a read of
some columns verifies its column chunks with them. (Parquet's own page checksums are written too, for other readers. They
do not cover page headers: a flipped bit in one was observed to drop a page silently.)

Key-value metadata::

    tiered.facts     JSON: {"version": 1, "sealed": bool, "facts": SegmentFacts.to_json()}; in a merged object also
                     "segments": the facts of each segment in it, without the keys that all of them share
    tiered.crc32c    base64 of pairs of u32, little-endian: length and CRC32C of the consecutive extents
                     of the file from byte 4 to the end of the last row group

Every column has a field id, as Iceberg requires: ``offset`` 1, ``timestamp`` 2, the topic's columns and those nested in
them from 3 on, depth first. So columns that are added at the end change no id.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...base.read_ahead import read_ahead
from ...errors import ColdStorageError, CorruptionError
from ...format import arrow_layouts
from ...format.checksum import crc32c
from ...format.manifest import GROUP_RECORDS_MAX, ObjectEntry, RowGroup
from ...format.schema import invalid_value
from ...format.segment_facts import SegmentFacts
from ..object_store.protocol import Bytes, Upload
from .key_filter_writer import KeyFilter, WrittenFilters
from .layout import (
    EXTENT,
    EXTENTS_KEY,
    FACTS_KEY,
    MAGIC,
    about_object,
    column_chunks,
    leaves,
    make_entry,
    read_extents,
    with_field_ids,
)
from .page_memory import check_elements

ROW_GROUP_BYTES = 16 * 1024 * 1024
ZSTD_LEVEL = 3
_SAMPLE_ROWS = 1 << 16

# Every page header begins with its type, field 1 of a Thrift struct. So a column chunk can only begin with this byte.
_PAGE_HEADER_BYTE = 0x15


def write_object(
    upload: Upload,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    facts: SegmentFacts,
    *,
    name: str,
    sealed: bool,
    level: int = ZSTD_LEVEL,
    row_group_bytes: int = ROW_GROUP_BYTES,
    key_filter: KeyFilter | None = None,
    segments: Sequence[SegmentFacts] = (),
    described: Callable[[], tuple[SegmentFacts, Sequence[SegmentFacts]]] | None = None,
) -> ObjectEntry:
    """Write an object, commit the upload and return the manifest's entry for it.

    While a row group is encoded, another thread prepares (reads, verifies, decompresses) the next batches, and the
    upload's own threads send. This takes memory for about one row group and a few batches.

    Parameters
    ----------
    schema
        The topic's columns, then ``offset: int64`` and ``timestamp: timestamp[us, UTC]``; every batch has
        exactly these.
    facts
        Facts of exactly the records in `batches`; those of a shipped tail have its own range.
    key_filter
        The wish for filters on the key column; None writes none.
    segments
        For a rewritten object, the facts of each segment in it.
    described
        Returns `facts` and `segments` once all batches were read, if only the batches show them. Then `facts` need only
        have the range.

    Raises
    ------
    CorruptionError
        The records are not those that `facts` describes; no object is visible in the bucket.
    ColdStorageError
    """
    sink = _Sink(upload)
    groups: list[RowGroup] = []
    writer = filters = None
    try:
        with closing(read_ahead(batches)) as ahead:
            for rows in _row_groups(schema, ahead, row_group_bytes):
                if writer is None:
                    if key_filter is not None and key_filter.pays(rows, facts.record_count):
                        filters = WrittenFilters(key_filter)
                    writer = _open_writer(sink, rows, level, filters)
                groups.append(_write_group(writer, sink, rows, facts, groups, not segments))
                if filters is not None:
                    filters.add(rows)
        writer = writer or _open_writer(sink, schema.empty_table(), level)
        if described is not None:
            facts, segments = described()
        if groups:
            sink.begin_range()
        if filters is not None:
            sink.copy = filters.tail
        extents = bytes(sink.extents)
        about = about_object(facts, segments, sealed=sealed)
        writer.add_key_value_metadata(
            {FACTS_KEY: json.dumps(about, sort_keys=True).encode(), EXTENTS_KEY: base64.b64encode(extents)}
        )
        writer.close()
    except BaseException:
        # A garbage-collected writer would write a footer, which must not go into a failed upload.
        if writer is not None:
            writer.is_open = False
        raise
    finally:
        sink.detach()
    entry = make_entry(
        facts, _close_gaps(groups, facts), name=name, sealed=sealed, size=sink.position, tail_crc=sink.crc
    )
    _check_layout(writer.writer.metadata, entry, extents)
    if filters is not None:
        entry = filters.proven(entry, writer.writer.metadata)
    info = upload.commit()
    if info.size != entry.bytes:
        raise CorruptionError(f"{info.size} bytes arrived of {entry.bytes}", where=info.key)
    return entry


class _Sink:
    """A file for pyarrow that passes its bytes on to an upload and computes their CRCs.

    Attributes
    ----------
    position
        Bytes so far.
    crc
        CRC32C since the last `begin_range`.
    extents
        Length and CRC32C of each extent, packed.
    copy
        Takes a copy of the bytes that follow; None: there is no use for one.
    """

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.position = 0
        self.crc = 0
        self.extents = bytearray()
        self.copy: bytearray | None = None
        self._upload: Upload | None = upload
        self._extent_start = 0
        self._extent_crc = 0

    def write(self, data: Bytes) -> int:
        view = memoryview(data)
        if self._upload is None or view.nbytes == 0:
            return len(view)
        if view[0] == _PAGE_HEADER_BYTE:
            self._end_extent()
        self._upload.write(view)
        if self.copy is not None:
            self.copy += view
        self.crc = crc32c(view, self.crc)
        self._extent_crc = crc32c(view, self._extent_crc)
        self.position += len(view)
        return len(view)

    def detach(self) -> None:
        """Drop the upload, and ignore further writes.

        This breaks a cycle that Python cannot collect: an error of the upload has the writer in its traceback, the writer
        refers to this file within Arrow, and this file refers to the upload, which holds the error.
        """
        self._upload = None

    def begin_range(self) -> int:
        """Begin a new range with CRC 0; return its position."""
        self._end_extent()
        self.crc = 0
        return self.position

    def _end_extent(self) -> None:
        # The magic at the beginning belongs to no column chunk, and so to no extent.
        if self.position > self._extent_start >= len(MAGIC):
            self.extents += EXTENT.pack(self.position - self._extent_start, self._extent_crc)
        self._extent_start, self._extent_crc = self.position, 0

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Do nothing: no bytes are buffered."""

    def close(self) -> None:
        self.closed = True


def _open_writer(sink: _Sink, rows: pa.Table, level: int, filters: WrittenFilters | None = None) -> Any:
    """Begin a file with encodings for rows like these, which are its first ones."""
    schema = rows.schema
    # A name with a dot may also be the path of a nested column of another type.
    stamps = [field.name for field in schema if pa.types.is_timestamp(field.type) and "." not in field.name]
    delta = {*stamps, "offset"}
    # Binary values rarely repeat, and their bounds would fill the footer with values.
    comparable = [
        path
        for field in schema
        for path, kind in leaves(field.name, field.type)
        if not pa.types.is_binary(kind)
    ]
    return pq.ParquetWriter(
        sink,
        with_field_ids(schema),
        version="2.6",
        compression="zstd",
        compression_level=level,
        use_dictionary=[path for path in comparable if path not in delta and _repeats(rows, path)],
        column_encoding=dict.fromkeys(sorted(delta), "DELTA_BINARY_PACKED"),
        write_statistics=comparable,
        write_page_checksum=True,
        write_page_index=True,
        store_schema=False,
        **(filters.options(rows) if filters is not None else {}),
    )


def _repeats(rows: pa.Table, path: str) -> bool:
    """Whether a dictionary pays off for a leaf column: one that overflows costs readers more than plain values."""
    if path not in rows.schema.names:
        return True  # nested in a list, a map or a struct: not worth counting
    column = rows.column(path).slice(0, _SAMPLE_ROWS)
    return bool(2 * pc.count_distinct(column).as_py() <= len(column))


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Cut batches into tables of about `limit` bytes, and of at most as many rows as the format allows."""
    parts: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        remaining = pa.RecordBatch.from_arrays(batch.select(schema.names).columns, schema=schema)
        while remaining.num_rows:
            fits = max(1, (limit - size) * remaining.num_rows // max(1, _size(remaining, limit)))
            part = remaining.slice(0, min(fits, GROUP_RECORDS_MAX - rows))
            remaining = remaining.slice(part.num_rows)
            parts.append(part)
            size, rows = size + _size(part, limit), rows + part.num_rows
            # Within a tenth of the limit counts as full, which avoids tiny batches at the end of a row group.
            if size >= limit * 0.9 or rows == GROUP_RECORDS_MAX:
                yield pa.Table.from_batches(parts, schema=schema)
                parts, size, rows = [], 0, 0
    if parts:
        yield pa.Table.from_batches(parts, schema=schema)


def _size(batch: pa.RecordBatch, limit: int) -> int:
    """Return the bytes of a batch, for row groups of `limit` bytes; small values count more in large row groups.

    Readers refuse a row group that takes more than `page_memory` allows, and Parquet stores a Boolean or a small integer in
    up to four bytes. So each value counts at least four, but a row group has at least `ROW_GROUP_BYTES` as they are.
    """
    size: int = batch.nbytes
    if limit <= ROW_GROUP_BYTES:
        return size
    columns = batch.columns
    padded = sum(max(leaf.nbytes, 4 * len(leaf)) for item in columns for leaf in arrow_layouts.leaves(item))
    return int(max(size, min(padded, size * limit // ROW_GROUP_BYTES)))


def _write_group(
    writer: Any, sink: _Sink, rows: pa.Table, facts: SegmentFacts, before: list[RowGroup], checked: bool
) -> RowGroup:
    offsets, stamps = rows.column("offset"), rows.column("timestamp")
    if offsets.null_count or stamps.null_count:
        raise CorruptionError("a record without offset or timestamp", where=f"segment {facts.segment_id}")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    floor = before[-1].end_offset if before else facts.base_offset
    values = offsets.to_numpy()
    if first < floor or last >= facts.end_offset or not bool(np.all(values[1:] > values[:-1])):
        raise CorruptionError(
            "records are not in the order of their offsets",
            where=f"segment {facts.segment_id}",
            offsets=(facts.base_offset, facts.end_offset),
        )
    if checked:
        _check_values(rows, facts)
    start = sink.begin_range() if before else 0
    writer.write_table(rows, row_group_size=rows.num_rows)
    low, high = pc.min_max(stamps).values()
    return RowGroup(
        base_offset=first,
        end_offset=last + 1,
        record_count=rows.num_rows,
        position=start,
        length=sink.position - start,
        crc=sink.crc,
        min_timestamp_us=low.value,
        max_timestamp_us=high.value,
    )


def _check_values(rows: pa.Table, facts: SegmentFacts) -> None:
    """Raise `CorruptionError` for a decimal with more digits than its type, which Parquet would store as another number.

    Appends refuse such decimals; those of earlier releases did not.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for chunk in column.chunks:
            wrong = invalid_value(chunk, pa.types.is_decimal)
            if wrong is not None:
                raise CorruptionError(
                    f"column {name!r} holds {wrong}. The records stay on this disk, and nothing behind them is "
                    "uploaded: append them anew with other values, then delete_before the last of them",
                    where=f"segment {facts.segment_id}",
                    offsets=(rows.column("offset")[0].as_py(), rows.column("offset")[-1].as_py() + 1),
                )


def _close_gaps(groups: list[RowGroup], facts: SegmentFacts) -> tuple[RowGroup, ...]:
    """Extend the row groups over the gaps that a compaction left, and check the number of records."""
    record_count = sum(group.record_count for group in groups)
    if record_count != facts.record_count:
        raise CorruptionError(
            f"{record_count} records instead of {facts.record_count}",
            where=f"segment {facts.segment_id}",
            offsets=(facts.base_offset, facts.end_offset),
        )
    bases = [facts.base_offset, *(group.base_offset for group in groups[1:]), facts.end_offset]
    return tuple(
        replace(group, base_offset=base, end_offset=end)
        for (base, end), group in zip(pairwise(bases), groups, strict=bool(groups))
    )


def _check_layout(metadata: Any, entry: ObjectEntry, extents: bytes) -> None:
    """Check that the footer and the bytes that went through the sink agree."""
    edges = {position for position, _, _ in read_extents(extents)} | {entry.tail_position}
    if metadata.num_row_groups != len(entry.row_groups):
        raise CorruptionError("the footer lists other row groups than were written", where=entry.name)
    for index, group in enumerate(entry.row_groups):
        chunks = column_chunks(metadata, index)
        end = group.position + group.length
        inside = all(group.position <= start and start + length <= end for start, length in chunks)
        on_edges = all(start in edges and start + length in edges for start, length in chunks)
        whole = sum(length for _, length in chunks) == group.length - (len(MAGIC) if index == 0 else 0)
        try:
            check_elements(metadata, index)
        except ValueError as error:
            raise ColdStorageError(f"{entry.name} stays on the disk: {error}") from None
        if metadata.row_group(index).num_rows != group.record_count or not (inside and on_edges and whole):
            raise CorruptionError(
                "the footer has another position for a row group", where=entry.name, position=group.position
            )
