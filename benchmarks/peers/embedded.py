"""The embedded stores: SQLite and LMDB, laid out as their own guides advise for a log."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable
from pathlib import Path

import lmdb
import pyarrow as pa

_OFFSET = struct.Struct(">Q")
INSERT = "INSERT INTO log (timestamp, key, value) VALUES (?, ?, ?)"


def sqlite_log(folder: Path) -> sqlite3.Connection:
    """Open a log table: WAL, and a sync at each commit (``synchronous = FULL``)."""
    connection = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS log (offset INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, value BLOB)"
    )
    return connection


def lmdb_log(folder: Path, bytes_max: int = 4 << 30) -> lmdb.Environment:
    """Open an environment with LMDB's defaults: each commit is synced."""
    return lmdb.open(str(folder / "log.lmdb"), map_size=bytes_max)


def offset_key(offset: int) -> bytes:
    """Return an offset as a key that sorts in its order."""
    return _OFFSET.pack(offset)


def fill_sqlite(connection: sqlite3.Connection, batches: Iterable[pa.RecordBatch]) -> None:
    """Insert all rows, a transaction a batch."""
    for batch in batches:
        connection.execute("BEGIN")
        connection.executemany(INSERT, zip(range(batch.num_rows), *_columns(batch), strict=True))
        connection.execute("COMMIT")


def fill_lmdb(environment: lmdb.Environment, batches: Iterable[pa.RecordBatch]) -> None:
    """Put all values under their offsets, a transaction a batch."""
    offset = 0
    for batch in batches:
        with environment.begin(write=True) as transaction:
            for value in batch.column("value").to_pylist():
                transaction.put(_OFFSET.pack(offset), value, append=True)
                offset += 1


def _columns(batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
    return batch.column("key").to_pylist(), batch.column("value").to_pylist()
