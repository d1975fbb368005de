"""The file of one attempt's rows: written once, synced, and read in order with every byte verified.

::

    header   8 bytes   magic ``TIERSTG1``
    frame    8 bytes   u32 length and u32 CRC32C of the message; little-endian
             length    an Arrow IPC message: a schema in the first frame, a record batch in the others

The file has no end mark; the commit holds its number of rows and bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import CorruptionError, SchemaMismatch
from ..format.checksum import crc32c
from ..format.ipc_message import read_batch
from ..warm.filesystem import FileSystem

_MAGIC = b"TIERSTG1"
_FRAME = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Staged:
    """The complete and durable rows of one attempt.

    Attributes
    ----------
    attempt
        The attempt's name, 32 hexadecimal digits.
    rows, bytes
        The number of rows in the file, and the length of the file.
    """

    attempt: str
    rows: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"attempt": self.attempt, "rows": self.rows, "bytes": self.bytes}


class StageFile:
    """A stage file that is being written; the caller must `close` it."""

    def __init__(self, fs: FileSystem, path: Path, schema: pa.Schema) -> None:
        self._fs = fs
        self.path = path
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._fd = fs.create(path)
        self._open = True
        try:
            self._put([_MAGIC])
            self._frame(schema.serialize())
        except BaseException:
            self.close()
            fs.unlink(path)
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises
        ------
        SchemaMismatch
            The rows have other columns than the rows before, so the file could not be read.
        DiskFull
        """
        if not batch.schema.equals(self._schema):
            raise SchemaMismatch("the batches of one attempt have different columns")
        self._frame(batch.serialize())
        self.rows += batch.num_rows

    def _frame(self, message: pa.Buffer) -> None:
        self._put([_FRAME.pack(message.size, crc32c(message)), message])

    def _put(self, buffers: list[Any]) -> None:
        self.bytes += self._fs.write(self._fd, self.bytes, buffers)

    def finish(self) -> None:
        """Make the file and its name durable."""
        self._fs.sync(self._fd)
        self._fs.sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file."""
        if self._open:
            self._open = False
            self._fs.close(self._fd)


def read_stage_file(path: Path, staged: Staged) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stage file, a frame at a time.

    Raises
    ------
    FileNotFoundError
    CorruptionError
        Bytes fail verification, or the file has another number of rows or bytes than were staged.
    """
    where = str(path)
    rows, position = 0, len(_MAGIC)
    with path.open("rb", buffering=0) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise CorruptionError("this is no stage file", where=where, position=0)
        schema: pa.Schema | None = None
        while position < staged.bytes:
            message = _next(file, where, position, staged.bytes)
            position += _FRAME.size + message.size
            if schema is None:
                schema = pa.ipc.read_schema(message)
                continue
            batch = read_batch(message, schema)
            rows += batch.num_rows
            yield batch
        if rows != staged.rows or file.read(1):
            raise CorruptionError(f"{rows} rows, not the {staged.rows} that were staged", where=where)


def _next(file: Any, where: str, position: int, end: int) -> pa.Buffer:
    head = file.read(_FRAME.size)
    if len(head) == _FRAME.size:
        length, checksum = _FRAME.unpack(head)
        if position + _FRAME.size + length <= end:
            message = _read(file, length)
            if len(message) == length and crc32c(message) == checksum:
                return pa.py_buffer(message)
    raise CorruptionError("staged rows fail their checksum", where=where, position=position)


def _read(file: Any, length: int) -> bytearray:
    data = bytearray(length)
    view, received = memoryview(data), 0
    while received < length and (count := file.readinto(view[received:])):
        received += count
    return data[:received]
