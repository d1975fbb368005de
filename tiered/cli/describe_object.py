"""What a Parquet object of the cold tier says of itself, read by ranges."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..cold.object_store import ObjectStore
from ..cold.parquet_format import FACTS_KEY, facts_of
from ..errors import ConfigError, CorruptionError
from .describe import Description, Row, columns_of, segment_facts


def describe_object(store: ObjectStore, key: str, record_count: int) -> Description:
    """Describe a Parquet object from itself alone, without a manifest.

    Raises
    ------
    ConfigError
        It is Parquet that no store wrote.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    where = f"{store.url.rstrip('/')}/{key}"
    size = store.stat(key).size
    try:
        with pq.ParquetFile(
            pa.PythonFile(_ObjectFile(store, key, size), "r"), page_checksum_verification=True
        ) as file:
            return _describe(file, where, size, record_count)
    except pa.ArrowException as error:
        raise CorruptionError(f"Parquet does not decode ({error})", where=where) from None
    except OSError as error:  # Arrow's name for pages that fail their checksum
        raise CorruptionError(f"Parquet does not decode ({error})", where=where) from None


def _describe(file: Any, where: str, size: int, record_count: int) -> Description:
    metadata = file.metadata
    if FACTS_KEY not in (metadata.metadata or {}):
        raise ConfigError(
            f"{where} is Parquet that no store wrote: {metadata.num_rows:,} rows; any Parquet tool reads it"
        )
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
        "cold object", where, facts, {"columns": columns_of(about.schema), "row groups": groups},
        _first_records(file, record_count),
    )  # fmt: skip


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


def _first_records(file: Any, record_count: int) -> list[Row]:
    if record_count <= 0 or file.metadata.num_rows == 0:
        return []
    batch = next(file.iter_batches(batch_size=record_count))
    names = batch.schema.names
    order = ["offset", "timestamp", *(name for name in names if name not in ("offset", "timestamp"))]
    rows: list[Row] = batch.select(order).to_pylist()
    return rows


class _ObjectFile(io.RawIOBase):
    """An object as a file that can be read at any place."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size < 0 else min(size, left)
        data = self._store.get_range(self._key, self._position, length) if length else b""
        self._position += length
        return data
