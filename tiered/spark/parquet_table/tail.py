"""The tail of a fast table, which is not in the bucket yet, written to Parquet files for Spark's own reader.

With a Python source, each query starts a process that plans and a task that reads. For some megabytes, that takes longer
than the rest of the query.
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
class TailFiles:
    """Parquet files of the rows that no object has, one for each partition that has such rows."""

    folder: Path
    names: Mapping[int, str]

    def paths(self, partition: int) -> list[str]:
        """Return the path of a partition's file in Spark's form; empty without a file."""
        name = self.names.get(partition)
        return [] if name is None else [Connector(f"file://{self.folder}").path(name)]

    def remove(self) -> None:
        """Delete the files."""
        with suppress(OSError):
            shutil.rmtree(self.folder)


def folder_for_tails(spark: SparkSession) -> Path | None:
    """Return a directory for the files that is deleted with the session; None in a cluster.

    Only a local session has a directory that driver and executors share. In a cluster, the executors read the tail
    through the source, each a part.
    """
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        return None
    # Spark deletes it at its end, even if this process is killed.
    return Path(context._temp_dir)


def write_tail(
    topic: Topic,
    read: SourceOptions,
    splits: Sequence[Split],
    rest: Sequence[Mapping[int, Range]],
    columns: Sequence[str],
    bytes_max: int,
    folder: Path,
) -> TailFiles | None:
    """Write the tail of a snapshot to Parquet files; None if it is larger than `bytes_max`.

    Parameters
    ----------
    splits, rest
        The splits of the snapshot, and the ranges of offsets that no object has.
    columns
        The topic's columns that the read uses, those of its filters included.
    bytes_max
        Of the rows as Arrow.
    """
    if sum(split.bytes for split in splits if not isinstance(split.source, ColdSource)) > bytes_max:
        return None
    path = Path(mkdtemp(prefix="tail-", dir=folder))
    try:
        names = _write_files(path, _batches(topic, read, rest, columns), bytes_max)
    except OffsetOutOfRange:
        names = None  # retention removed rows meanwhile: the source handles that by the options
    except BaseException:
        TailFiles(path, {}).remove()
        raise
    tail = TailFiles(path, names or {})
    if names is None:
        tail.remove()
        return None
    return tail


def _batches(
    topic: Topic, read: SourceOptions, rest: Sequence[Mapping[int, Range]], columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of the ranges, each with its partition."""
    for ranges in rest:
        starts = {partition: start for partition, (start, _) in ranges.items()}
        ends = {partition: end for partition, (_, end) in ranges.items()}
        scan = scan_between(topic, read, starts, ends, columns)
        for split in scan.splits():
            for batch in scan.read(split):
                yield split.partition, batch


def _write_files(
    folder: Path, batches: Iterator[tuple[int, pa.RecordBatch]], bytes_max: int
) -> dict[int, str] | None:
    """Write a file for each partition and return their names; None if the rows are larger than `bytes_max`."""
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
                rows[partition] = files.enter_context(_RowGroups(folder / names[partition], batch.schema))
            rows[partition].add(batch)
    return names


class _RowGroups:
    """A writer of a Parquet file by row groups; the end of the context completes the file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        # The file has only the columns of the read: Spark reads the others as null. It is uncompressed, for speed.
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
