"""Descriptions of a store's files, manifests and documents, as plain values for tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..cold.object_store.protocol import ObjectStore
from ..errors import ConfigError, CorruptionError, ObjectNotFound
from ..format.block import FLAG_OFFSETS
from ..format.codec import Codec
from ..format.document import decode_document
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_codec import decode_head, decode_page, unpack_page
from ..format.schema import schema_from_text
from ..format.segment_facts import SegmentFacts
from ..warm.segment_reader import SegmentFile

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Description:
    """The description of one file or object.

    Attributes
    ----------
    kind
        ``segment``, ``cold object``, ``manifest head``, ``manifest page`` or ``document``.
    facts
        Names and values.
    tables
        Rows by title; the rows of a table have the same names.
    records
        The first records.
    """

    kind: str
    where: str
    facts: Row
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    records: Sequence[Row] = ()


def describe_segment(path: Path, record_count: int) -> Description:
    """Describe a segment file; all values are verified.

    Raises
    ------
    CorruptionError, UnsupportedFormat, OSError
    """
    segment = SegmentFile.open(path)
    header = segment.header
    facts: Row = {
        "state": "active" if segment.facts is None else "sealed",
        "bytes": segment.bytes,
        "base_offset": header.base_offset,
        "end_offset": segment.end_offset,
        "segment_id": str(header.segment_id),
        "topic_id": str(header.topic_id),
        "store_id": str(header.store_id),
        "partition": header.partition,
        "generation": header.generation,
        "schema_id": header.schema_id,
        "writer_epoch": header.writer_epoch,
        "lineage_epoch": header.lineage_epoch,
        "created_us": header.created_us,
    }
    if segment.facts is not None:
        facts |= segment_facts(segment.facts)
    elif segment.scan is not None and segment.scan.damage is not None:
        facts["torn_tail_bytes"] = segment.scan.file_bytes - segment.scan.end_position
        facts["torn_tail"] = segment.scan.damage.reason
    blocks = list(_blocks(segment))
    facts["blocks"] = len(blocks)
    facts["codecs"] = ", ".join(sorted({str(block["codec"]) for block in blocks}))
    return Description(
        "segment", str(path), facts, {"columns": columns_of(header.schema), "blocks": blocks},
        list(_first_records(segment, record_count)),
    )  # fmt: skip


def segment_facts(facts: SegmentFacts) -> Row:
    """Return the facts of a sealed segment about its records and history."""
    return {
        "records": facts.record_count,
        "min_timestamp_us": facts.min_timestamp_us,
        "max_timestamp_us": facts.max_timestamp_us,
        "last_append_us": facts.last_append_us,
        "start_offset": facts.start_offset,
        "content_hash": facts.content_hash,
        "origin_hash": facts.origin_hash,
        "prev_origin_hash": facts.prev_origin_hash,
        "replaces": ", ".join(map(str, facts.replaces)),
    }


def _blocks(segment: SegmentFile) -> Iterator[Row]:
    for block in segment.blocks(segment.header.base_offset, segment.end_offset):
        header = block.header
        yield {
            "base_offset": header.base_offset,
            "records": header.record_count,
            "position": block.position,
            "bytes": header.length,
            "raw_bytes": header.raw_length,
            "codec": Codec(header.codec).name.lower(),
            "chunks": header.chunk_count,
            "min_timestamp_us": header.min_timestamp_us,
            "max_timestamp_us": header.max_timestamp_us,
        }


def _first_records(segment: SegmentFile, record_count: int) -> Iterator[Row]:
    remaining = record_count
    names = segment.header.schema.names
    for block in segment.blocks(segment.header.base_offset, segment.end_offset):
        if remaining <= 0:
            return
        stored = block.header.flags & FLAG_OFFSETS
        batch = segment.decode(block)
        rows = min(remaining, block.header.record_count)
        columns = {name: batch.column(name).slice(0, rows).to_pylist() for name in names}
        base = block.header.base_offset
        offsets = batch.column("offset").slice(0, rows).to_pylist() if stored else range(base, base + rows)
        for i, offset in enumerate(offsets):
            yield {"offset": offset, **{name: columns[name][i] for name in names}}
        remaining -= rows


def describe_head(data: bytes, where: str) -> Description:
    """Describe a partition's ``head.json``.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    head = decode_head(data, where=where)
    facts: Row = {
        "epoch": head.epoch,
        "start_offset": head.start_offset,
        "end_offset": head.end_offset,
        "partition": head.partition,
        "topic_id": str(head.topic_id),
        "store_id": str(head.store_id),
        "commit_id": head.commit_id,
        "previous_commits": len(head.previous_commit_ids),
        "committed_us": head.committed_us,
        "lineages": ", ".join(f"epoch {epoch} from offset {start}" for epoch, start in head.lineages),
        "version": head.version,
    }
    pages = [
        {
            "page": ref.name,
            "base_offset": ref.base_offset,
            "end_offset": ref.end_offset,
            "objects": ref.count,
            "bytes": ref.bytes,
        }
        for ref in head.pages
    ]
    tables = {"pages": pages, "objects": [_entry(entry) for entry in head.inline]}
    for key, text in sorted(head.schemas.items()):
        tables[f"schema {key}"] = columns_of(schema_from_text(text))
    return Description("manifest head", where, facts, tables)


def _entry(entry: ObjectEntry) -> Row:
    return {
        "object": entry.name,
        "base_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "records": entry.record_count,
        "bytes": entry.bytes,
        "row_groups": len(entry.row_groups),
        "sealed": entry.sealed,
        "generation": entry.generation,
        "last_append_us": entry.last_append_us,
    }


def describe_page(data: bytes, where: str, head: Head | None) -> Description:
    """Describe a page of a manifest; verify it if `head`, which is that of its partition, names it.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    name = where.rpartition("/")[2]
    refs = [ref for ref in head.pages if ref.name == name] if head is not None else []
    if refs:
        entries = [_entry(entry) for entry in decode_page(data, refs[0], where=where)]
        return Description(
            "manifest page", where, {"bytes": len(data), "verified": "against the head"}, {"objects": entries}
        )
    values = _unverified_page(data, where)
    rows = [
        {name: value for name, value in item.items() if not isinstance(value, (list, dict))}
        for item in values
    ]
    return Description(
        "manifest page", where, {"bytes": len(data), "verified": "no: no head names it"}, {"objects": rows}
    )


def _unverified_page(data: bytes, where: str) -> list[Row]:
    try:
        return [dict(item) for item in unpack_page(data)["entries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"not a page of a manifest ({error})", where=where) from None


def describe_document(data: bytes, where: str) -> Description:
    """Describe a small document: ``head.json``, ``topic.json``, ``store.json`` and their like.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    values = decode_document(data, where=where)
    if "commit_id" in values:
        return describe_head(data, where)
    tables: dict[str, Sequence[Row]] = {}
    if "name" in values and isinstance(values.get("schemas"), list):
        for i, version in enumerate(values.pop("schemas")):
            tables[f"schema {i}"] = columns_of(schema_from_text(version["arrow"]))
    facts = {
        name: value if value is None or isinstance(value, (str, int, float)) else json.dumps(value)
        for name, value in values.items()
    }
    return Description("document", where, facts, tables)


def sibling_head(store: ObjectStore, key: str) -> Head | None:
    """Return the head beside a page's folder; None if there is none."""
    folder, separator, _ = key.rpartition("pages/")
    if not separator:
        return None
    head_key = f"{folder}head.json"
    try:
        return decode_head(store.get(head_key).data, where=head_key)
    except ObjectNotFound:
        return None


def columns_of(schema: pa.Schema) -> list[Row]:
    """Return the columns of a schema as rows."""
    return [{"column": column.name, "type": str(column.type)} for column in schema]


def unknown_format(where: str) -> ConfigError:
    """Return the error for a file that no store wrote."""
    return ConfigError(
        f"{where} is no segment, Parquet object, manifest or document of a store; see tiered inspect --help"
    )
