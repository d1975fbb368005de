"""Iceberg's entries for the objects of a topic, with counts and the bounds of columns.

The footer of an object has the bounds of every column that is not binary. A shipped tail is replaced soon, so its entry
has only the bounds that the manifest knows, those of offset and timestamp, and costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..cold.fetch.plan import footer_range
from ..cold.fetch.verified_range import read_range
from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.parquet.footer import parse_footer
from ..cold.parquet.layout import MAGIC
from ..format.manifest import ObjectEntry
from .schema import OFFSET_ID, TIMESTAMP_ID

_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class NamedObject:
    """An object that a table names."""

    partition: int
    key: str
    entry: ObjectEntry


def data_files(store: ObjectStore, metadata: Any, objects: Iterable[NamedObject]) -> Iterator[Any]:
    """Yield the entry of each object in a table with this metadata; footers of sealed objects are read concurrently.

    Raises
    ------
    CorruptionError, ColdStorageError
    """
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    listed = list(objects)
    plan, paths = {}, {}
    if any(named.entry.sealed for named in listed):
        plan, paths = _plan(metadata), parquet_path_to_id_mapping(metadata.schema())
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="tiered-footers") as threads:
        footers = threads.map(lambda named: read_footer(store, named) if named.entry.sealed else None, listed)
        for named, footer in zip(listed, footers, strict=True):
            entry = named.entry
            statistics = _known_statistics(entry) if footer is None else _statistics(footer, plan, paths)
            yield DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=object_url(store, named.key),
                file_format=FileFormat.PARQUET,
                partition=Record(named.partition),
                file_size_in_bytes=entry.bytes,
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics,
            )


def _plan(metadata: Any) -> dict[int, Any]:
    from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, compute_statistics_plan
    from pyiceberg.types import BinaryType

    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    for number, collector in plan.items():
        if isinstance(collector.iceberg_type, BinaryType):  # no bounds; pyiceberg would warn for each chunk
            plan[number] = replace(collector, mode=MetricsMode(MetricModeTypes.NONE))
    return dict(plan)


def _statistics(footer: Any, plan: dict[int, Any], paths: dict[str, int]) -> dict[str, Any]:
    from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata

    statistics = data_file_statistics_from_parquet_metadata(footer, plan, paths)
    for path in _without_bounds(footer):
        statistics.column_aggregates.pop(paths[path], None)
    serialized: dict[str, Any] = statistics.to_serialized_dict()
    return serialized


def _known_statistics(entry: ObjectEntry) -> dict[str, Any]:
    """Return the statistics of an object as far as the manifest knows them."""

    def bounds(offset: int, timestamp_us: int) -> dict[int, bytes]:
        return {
            number: value.to_bytes(8, "little", signed=True)
            for number, value in ((OFFSET_ID, offset), (TIMESTAMP_ID, timestamp_us))
        }

    columns = (OFFSET_ID, TIMESTAMP_ID)
    return {
        "record_count": entry.record_count,
        "column_sizes": {},
        "value_counts": dict.fromkeys(columns, entry.record_count),
        "null_value_counts": dict.fromkeys(columns, 0),
        "nan_value_counts": {},
        "lower_bounds": bounds(entry.base_offset, entry.min_timestamp_us),
        "upper_bounds": bounds(entry.end_offset - 1, entry.max_timestamp_us),
        "split_offsets": [max(len(MAGIC), group.position) for group in entry.row_groups],
    }


def _without_bounds(footer: Any) -> set[str]:
    """Return the columns without bounds in a row group with values, as for text over 4 KiB.

    pyiceberg would use the bounds of the other row groups for the whole column.
    """
    chunks = [
        footer.row_group(group).column(index)
        for group in range(footer.num_row_groups)
        for index in range(footer.num_columns)
    ]
    return {
        chunk.path_in_schema
        for chunk in chunks
        if (statistics := chunk.statistics) is None
        or (not statistics.has_min_max and statistics.null_count < chunk.num_values)
    }


def read_footer(store: ObjectStore, item: NamedObject) -> Any:
    """Return the verified Parquet metadata of an object."""
    part = footer_range(item.entry)
    footer = memoryview(read_range(store, item.key, part))
    return parse_footer(footer, where=object_url(store, item.key), position=part.start).metadata
