"""The least that a data source in Python can do: rows that lie ready as Arrow, compressed as the Parquet files are.

What it cannot reach no source in Python can: it decompresses, and hands over batches that it made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

_BATCH_ROWS = 10_000
_BATCHES_AHEAD = 8
_TASKS_A_FILE = 3
_STORED = ("key", "value")


def prepare(parquet: Path, folder: Path) -> None:
    """Write key and value of Parquet files of records as Arrow files; zstd compresses both alike, by its usual level."""
    folder.mkdir()
    schema = pa.schema([(name, pa.binary()) for name in _STORED])
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3))
    for file in sorted(parquet.glob("*.parquet")):
        with (
            pq.ParquetFile(file) as rows,
            pa.ipc.new_file(folder / file.stem, schema, options=options) as writer,
        ):
            for batch in rows.iter_batches(_BATCH_ROWS, columns=_STORED):
                writer.write_batch(batch.cast(schema))


class BareSource(DataSource):
    """Source ``bare``: the files that `prepare` wrote to the folder it loads; all columns, or ``columns=value``."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        if self.options.get("columns") == "value":
            return "value binary"
        return "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["path"], len(schema) == 1)


class _Reader(DataSourceReader):
    def __init__(self, path: str, value_alone: bool) -> None:
        self._path = path
        self._value_alone = value_alone

    def partitions(self) -> list[InputPartition]:
        files = sorted(map(str, Path(self._path).iterdir()))
        return [InputPartition((file, part)) for file in files for part in range(_TASKS_A_FILE)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        path, part = partition.value
        # What is the same in every batch, or would be cheap to compute, is made once.
        numbers = np.arange(_BATCH_ROWS)
        zeros = pa.array(np.zeros(_BATCH_ROWS, np.int32))
        rest = pa.RecordBatch.from_pydict(
            {
                "topic": pa.array(["records"] * _BATCH_ROWS),
                "partition": zeros,
                "offset": pa.array(numbers),
                "timestamp": pa.array(numbers).cast(pa.timestamp("us", "UTC")),
                "timestampType": zeros,
            }
        )
        with pa.memory_map(path) as file, ThreadPoolExecutor(1) as thread:
            batches = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False))
            count = batches.num_record_batches
            waiting = iter(range(count * part // _TASKS_A_FILE, count * (part + 1) // _TASKS_A_FILE))
            ahead = deque(
                thread.submit(batches.get_batch, n)
                for n, _ in zip(waiting, range(_BATCHES_AHEAD), strict=False)
            )
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(
                    thread.submit(batches.get_batch, n) for n in [next(waiting, None)] if n is not None
                )
                if self._value_alone:
                    yield batch.select(["value"])
                else:
                    same = rest.slice(0, batch.num_rows)
                    yield pa.RecordBatch.from_arrays(
                        [*batch.columns, *same.columns], names=[*batch.schema.names, *same.schema.names]
                    )
