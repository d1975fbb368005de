"""The small rest of a fast table that is not in the bucket yet, read once and held for Spark's own readers.

A Python source costs each query a process that plans and a task that reads; for some megabytes that is most of the query.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ...cold.parquet.writer import ROW_GROUP_BYTES
from ...errors import OffsetOutOfRange
from ...reader.splits import ColdSource, Split
from ...store.interface.topic import Topic
from ..options import SourceOptions
from ..read.planning import scan_between
from .connector import Connector
from .plan import Range

TAIL_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class HeldTail:
    """Files of rows that no object has, one for each of some partitions."""

    folder: Path
    names: Mapping[int, str]

    def path(self, partition: int) -> list[str]:
        """Return the path of a partition's file, as Spark has to be given it; none where there is none."""
        name = self.names.get(partition)
        return [] if name is None else [Connector(f"file://{self.folder}").path(name)]

    def remove(self) -> None:
        """Delete the files."""
        with suppress(OSError):
            shutil.rmtree(self.folder)


def folder_for_tails(spark: SparkSession) -> Path | None:
    """Return a directory that all of Spark's processes see, and that goes with the session; None if there is none.

    Only where driver and executors are one process; a cluster reads the rest by the source, each executor its share.
    """
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        return None
    # Spark deletes it at the end, also where this process is killed.
    return Path(context._temp_dir)


def hold_tail(
    topic: Topic,
    read: SourceOptions,
    splits: Sequence[Split],
    rest: Sequence[Mapping[int, Range]],
    columns: Sequence[str],
    bytes_max: int,
    folder: Path,
) -> HeldTail | None:
    """Read the rest of a snapshot and write it down for Spark's Parquet reader; None where it is more than `bytes_max`.

    Parameters
    ----------
    splits, rest
        Of the snapshot: where its rows lie, and the offsets that no object has.
    columns
        Of the topic, with those that the read filters by.
    bytes_max
        As Arrow.
    """
    if sum(split.bytes for split in splits if not isinstance(split.source, ColdSource)) > bytes_max:
        return None
    place = Path(mkdtemp(prefix="tail-", dir=folder))
    try:
        names = _written(place, _batches(topic, read, rest, columns), bytes_max)
    except OffsetOutOfRange:
        names = None  # retention was faster: the source does what the options say then
    except BaseException:
        HeldTail(place, {}).remove()
        raise
    tail = HeldTail(place, names or {})
    if names is None:
        tail.remove()
        return None
    return tail


def _batches(
    topic: Topic, read: SourceOptions, rest: Sequence[Mapping[int, Range]], columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rest's rows, each batch with its partition."""
    for ranges in rest:
        starts = {partition: start for partition, (start, _) in ranges.items()}
        ends = {partition: end for partition, (_, end) in ranges.items()}
        scan = scan_between(topic, read, starts, ends, columns)
        for split in scan.splits():
            for batch in scan.read(split):
                yield split.partition, batch


def _written(
    place: Path, batches: Iterator[tuple[int, pa.RecordBatch]], bytes_max: int
) -> dict[int, str] | None:
    """Write each partition's rows to a file of its own; return their names, None where they are more than `bytes_max`."""
    names: dict[int, str] = {}
    size = 0
    with ExitStack() as files:
        rows: dict[int, _RowGroups] = {}
        for partition, batch in batches:
            size += batch.nbytes
            if size > bytes_max:
                return None
            if partition not in rows:
                names[partition] = f"{partition}.parquet"
                rows[partition] = files.enter_context(_RowGroups(place / names[partition], batch.schema))
            rows[partition].add(batch)
    return names


class _RowGroups:
    """A Parquet file that is written a row group at a time; leave the context to end it."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        # With the names alone that a read has: what a file lacks is null to Spark. As quick to write as to read.
        self._file = pq.ParquetWriter(
            path, schema, compression="none", store_schema=False, write_page_checksum=True
        )
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._batches:
            self._file.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()
        self._file.close()
