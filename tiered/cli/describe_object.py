"""Descriptions of Parquet objects of the cold tier, read by ranges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.ranges import SparseFile
from ..cold.parquet.footer import Footer, parse_footer
from ..cold.parquet.layout import FACTS_KEY, column_chunks, facts_of
from ..cold.parquet.page_memory import decode, plan_decode
from ..cold.upkeep.inspect import read_tail
from ..errors import ConfigError, CorruptionError
from ..format.manifest import RANGE_BYTES_MAX
from .describe import Description, Row, columns_of, segment_facts


def describe_object(store: ObjectStore, key: str, record_count: int) -> Description:
    """Describe a Parquet object without a manifest.

    Raises
    ------
    ConfigError
        The Parquet file was not written by a store.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    where = f"{store.url.rstrip('/')}/{key}"
    info, tail = read_tail(store, key)
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        if FACTS_KEY not in (metadata.metadata or {}):
            raise ConfigError(
                f"{where} is Parquet that no store wrote: {metadata.num_rows:,} rows; any Parquet tool reads it"
            )
        footer = parse_footer(memoryview(tail), where=where, position=info.size - len(tail))
        records = _first_records(store, key, info.size, footer, record_count)
    except (pa.ArrowException, ValueError, OSError) as error:  # pages that fail their checksum raise OSError
        raise CorruptionError(f"Parquet does not decode ({error})", where=where) from None
    return _describe(footer.metadata, where, info.size, records)


def _describe(metadata: Any, where: str, size: int, records: list[Row]) -> Description:
    about = facts_of(metadata, where=where)
    facts: Row = {
        "state": "whole segment" if about.sealed else "tail of an active segment",
        "bytes": size,
        "base_offset": about.facts.base_offset,
        "end_offset": about.facts.end_offset,
        "segment_id": str(about.facts.segment_id),
        "topic_id": str(about.facts.topic_id),
        "store_id": str(about.facts.store_id),
        "partition": about.facts.partition,
        "generation": about.facts.generation,
        "schema_id": about.facts.schema_id,
        "lineage_epoch": about.facts.lineage_epoch,
        "created_us": about.facts.created_us,
        **segment_facts(about.facts),
        "written_by": metadata.created_by,
    }
    groups = [_row_group(metadata, index) for index in range(metadata.num_row_groups)]
    return Description(
        "cold object", where, facts, {"columns": columns_of(about.schema), "row groups": groups}, records
    )


def _row_group(metadata: Any, index: int) -> Row:
    group = metadata.row_group(index)
    chunks = [group.column(i) for i in range(group.num_columns)]
    offsets = next(chunk.statistics for chunk in chunks if chunk.path_in_schema == "offset")
    return {
        "base_offset": offsets.min if offsets is not None else None,
        "records": group.num_rows,
        "bytes": sum(chunk.total_compressed_size for chunk in chunks),
        "raw_bytes": sum(chunk.total_uncompressed_size for chunk in chunks),
        "codec": ", ".join(sorted({chunk.compression.lower() for chunk in chunks})),
    }


def _first_records(store: ObjectStore, key: str, size: int, footer: Footer, record_count: int) -> list[Row]:
    metadata = footer.metadata
    if record_count <= 0 or metadata.num_rows == 0:
        return []
    chunks = column_chunks(metadata, 0)
    start, end = min(at for at, _ in chunks), max(at + length for at, length in chunks)
    if not 0 <= start < end <= min(size, start + RANGE_BYTES_MAX):
        raise ValueError(f"its first row group lies at {start} to {end}")
    file = SparseFile(size, [((start, end - start), store.get_range(key, start, end - start))])
    plan = plan_decode(metadata, 0, range(metadata.num_columns), file.slice)
    with pq.ParquetFile(
        pa.PythonFile(file, "r"),
        metadata=metadata,
        read_dictionary=plan.dictionaries,
        page_checksum_verification=True,
    ) as source:
        table = decode(source, 0, footer.schema.names, plan, footer.schema)
    system = ("offset", "timestamp")
    order = [*system, *(name for name in table.schema.names if name not in system)]
    rows: list[Row] = table.select(order).slice(0, record_count).to_pylist()
    return rows
