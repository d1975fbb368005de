"""The layout of an object, as writer and reader share it: schema, metadata, facts and manifest entry."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa

from ...errors import CorruptionError, UnsupportedFormat
from ...format.manifest import FILTER_FIELDS, ObjectEntry, RowGroup
from ...format.schema import TIMESTAMP
from ...format.segment_facts import SegmentFacts

OBJECT_VERSION = 1
FACTS_KEY = b"tiered.facts"
EXTENTS_KEY = b"tiered.crc32c"
MAGIC = b"PAR1"

EXTENT = struct.Struct("<II")
_FIELD_ID = b"PARQUET:field_id"
# The facts that all segments of one object share.
_SHARED = ("store_id", "topic_id", "partition", "schema_id")
_SYSTEM_FIELDS = (pa.field("offset", pa.int64()), pa.field("timestamp", TIMESTAMP))


def object_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of an object for a topic's `schema`: its columns, ``offset``, ``timestamp``.

    A schema that ends in the two already is returned as it is.
    """
    if schema.get_field_index("offset") >= 0:
        return schema
    return pa.schema([*schema, *_SYSTEM_FIELDS])


def column_chunks(metadata: Any, row_group: int) -> list[tuple[int, int]]:
    """Return position and length of every leaf column's chunk in a row group of a Parquet footer."""
    group = metadata.row_group(row_group)
    chunks = []
    for index in range(group.num_columns):
        chunk = group.column(index)
        start = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        chunks.append((start, chunk.total_compressed_size))
    return chunks


def read_extents(packed: bytes) -> list[tuple[int, int, int]]:
    """Return ``(position, length, crc)`` of each extent from the decoded value of ``tiered.crc32c``."""
    position = len(MAGIC)
    extents = []
    for length, crc in EXTENT.iter_unpack(packed):
        extents.append((position, length, crc))
        position += length
    return extents


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """The facts in an object's footer."""

    facts: SegmentFacts
    sealed: bool
    schema: pa.Schema
    """The topic's columns, then ``offset`` and ``timestamp``."""
    merged: tuple[SegmentFacts, ...] = ()

    @property
    def segments(self) -> tuple[SegmentFacts, ...]:
        """The facts of each segment in the object, in order."""
        return self.merged or (self.facts,)


def about_object(facts: SegmentFacts, segments: Sequence[SegmentFacts], *, sealed: bool) -> dict[str, Any]:
    """Return the value of ``tiered.facts`` as plain JSON values."""
    about = {"version": OBJECT_VERSION, "sealed": sealed, "facts": facts.to_json()}
    if segments:
        about["segments"] = [
            {name: value for name, value in segment.to_json().items() if name not in _SHARED}
            for segment in segments
        ]
    return about


def make_entry(
    facts: SegmentFacts,
    row_groups: Sequence[RowGroup],
    *,
    name: str,
    sealed: bool,
    size: int,
    tail_crc: int,
) -> ObjectEntry:
    """Return the manifest's entry for an object of `size` bytes."""
    last = row_groups[-1] if row_groups else None
    return ObjectEntry(
        name=name,
        base_offset=facts.base_offset,
        end_offset=facts.end_offset,
        record_count=facts.record_count,
        min_timestamp_us=min(
            (group.min_timestamp_us for group in row_groups), default=facts.min_timestamp_us
        ),
        max_timestamp_us=max(
            (group.max_timestamp_us for group in row_groups), default=facts.max_timestamp_us
        ),
        last_append_us=facts.last_append_us,
        segment_ids=tuple(dict.fromkeys((facts.segment_id, *facts.replaces))),
        generation=facts.generation,
        sealed=sealed,
        bytes=size,
        schema_id=facts.schema_id,
        tail_position=last.position + last.length if last else 0,
        tail_crc=tail_crc,
        content_hash=facts.content_hash,
        origin_hash=facts.origin_hash,
        row_groups=row_groups,
        end_hash=facts.end_hash,
    )


def as_in_manifest(rebuilt: ObjectEntry, entry: ObjectEntry) -> ObjectEntry:
    """Return an entry `rebuilt` from an object, made comparable with the manifest's `entry` of the object.

    An object does not know its storage class, nor checksums of its filters. The manifest may lack `end_hash`, since early
    releases drop it.
    """
    filters = {name: getattr(entry, name) for name in FILTER_FIELDS}
    end_hash = entry.end_hash and rebuilt.end_hash
    return replace(rebuilt, storage_class=entry.storage_class, end_hash=end_hash, **filters)


def facts_of(metadata: Any, *, where: str) -> ObjectFacts:
    """Return the facts in a Parquet footer.

    Raises
    ------
    CorruptionError
        The footer has none, or they do not decode.
    UnsupportedFormat
    """
    try:
        about = json.loads(metadata.metadata[FACTS_KEY])
        if about["version"] > OBJECT_VERSION:
            raise UnsupportedFormat(
                f"object version {about['version']} of {where} is newer than this release reads ({OBJECT_VERSION})"
            )
        facts = SegmentFacts.from_json(about["facts"])
        shared = {name: about["facts"][name] for name in _SHARED}
        merged = tuple(SegmentFacts.from_json({**segment, **shared}) for segment in about.get("segments", ()))
        schema = metadata.schema.to_arrow_schema()
        return ObjectFacts(facts, about["sealed"] is True, plain_schema(schema), merged)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise CorruptionError(f"the object's facts do not decode ({error!r})", where=where) from None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without the field ids that Parquet adds."""
    return pa.schema([pa.field(field.name, _without_ids(field.type)) for field in schema])


def _without_ids(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _without_ids(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_without_ids(kind.key_type), _without_ids(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_ids(field.type)) for field in kind])
    return kind


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with a Parquet field id on every field, including nested ones."""
    ids = count(3)
    reserved = {"offset": 1, "timestamp": 2}
    return pa.schema([_numbered(field, ids, reserved.get(field.name)) for field in schema])


def _numbered(field: pa.Field, ids: Iterator[int], number: int | None = None) -> pa.Field:
    number = next(ids) if number is None else number
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, ids))
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, ids), _numbered(kind.item_field, ids))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_numbered(inner, ids) for inner in kind])
    return pa.field(field.name, kind, nullable=field.nullable, metadata={_FIELD_ID: str(number).encode()})


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield Parquet's path and the type of each leaf column."""
    if pa.types.is_list(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from leaves(f"{path}.{inner.name}", inner.type)
    else:
        yield path, kind
