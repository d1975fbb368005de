"""What ``tiered append`` reads: lines, JSON lines, CSV and Parquet, from files or stdin, a piece at a time."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pyarrow.types as pt

from ..errors import ConfigError, RecordTooLarge, SchemaMismatch
from ..format.schema import TIMESTAMP

PIECE_BYTES = 1 << 20
_PARQUET_ROWS = 1 << 16


class InputFormat(StrEnum):
    """How the input is laid out."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_EXTENSIONS = {
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSONL,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
    ".pq": InputFormat.PARQUET,
}


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines, without their ends; ``first`` is the number of the first one, from 1."""

    first: int
    lines: list[bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """One input.

    Attributes
    ----------
    name
        For messages; the path, or ``stdin``.
    path
        None for stdin.
    size
        Bytes to be read; None where that is not known.
    """

    name: str
    path: Path | None
    format: InputFormat
    size: int | None


def find_source(file: str, chosen: InputFormat | None) -> Source:
    """Return the input that a FILE argument names; ``-`` is stdin.

    Raises
    ------
    OSError, ConfigError
    """
    if file == "-":
        if chosen is InputFormat.PARQUET:
            raise ConfigError("Parquet is read from its end, which a pipe does not have; name a file")
        return Source("stdin", None, chosen or InputFormat.LINES, None)
    path = Path(file)
    size = path.stat().st_size if path.is_file() else None
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name its files")
    return Source(file, path, chosen or _EXTENSIONS.get(path.suffix.lower(), InputFormat.LINES), size)


@contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """Open an input for reading."""
    if source.path is None:
        yield sys.stdin.buffer
        return
    with source.path.open("rb") as file:
        yield file


def read_lines(stream: Any, name: str, line_bytes_max: int) -> Iterator[Lines]:
    """Yield lines as they arrive, so that what a pipe has delivered is not held back.

    Raises
    ------
    RecordTooLarge
        A line longer than a record can be: it is not read to its end.
    """
    rest, rest_bytes, number = [b""], 0, 1  # pieces of the line that has not ended yet
    while piece := stream.read1(PIECE_BYTES):
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            yield Lines(number, lines)
            number += len(lines)
            rest, rest_bytes = [], 0
        rest.append(last)
        rest_bytes += len(last)
        if rest_bytes > line_bytes_max:
            raise RecordTooLarge(f"{name} line {number}: a line of more than {line_bytes_max} bytes")
    if rest_bytes:
        yield Lines(number, [b"".join(rest)])


def read_csv(
    stream: IO[bytes], name: str, schema: pa.Schema, counter: ByteCounter
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV with a header line, as the columns of a topic.

    Raises
    ------
    SchemaMismatch
    """
    wanted = {field.name: field.type for field in schema} | {"timestamp": TIMESTAMP}
    counter.stream = stream
    try:
        yield from pa_csv.open_csv(
            pa.PythonFile(counter, "r"),
            read_options=pa_csv.ReadOptions(block_size=PIECE_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=wanted, strings_can_be_null=True),
        )
    except pa.ArrowException as error:
        reason = str(error).partition(". If ")[0]  # without Arrow's advice to its own callers
        raise SchemaMismatch(f"{name}: {reason}") from None


def read_parquet(source: Source) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a Parquet file, with the bytes read so far, by share.

    Raises
    ------
    SchemaMismatch
    """
    assert source.path is not None
    try:
        with pq.ParquetFile(source.path) as file:
            rows, done = file.metadata.num_rows, 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                done += batch.num_rows
                yield batch, (source.size or 0) * done // max(1, rows)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"{source.name}: {error}") from None


class ByteCounter(io.RawIOBase):
    """A stream that counts what is read of it."""

    def __init__(self) -> None:
        self.stream: IO[bytes] = io.BytesIO()
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self.stream.read(size)
        self.count += len(piece)
        return piece


class JsonRows:
    """JSON lines as rows of a typed topic.

    Times are text with a zone, or integer milliseconds, as the first line has them.

    Parameters
    ----------
    schema
        The topic's columns.
    """

    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema = pa.schema([*schema, pa.field("timestamp", TIMESTAMP)])
        self._name = name
        self._parsed: pa.Schema | None = None

    def parse(self, lines: Lines) -> pa.RecordBatch | pa.Table:
        """Return the rows in these lines; blank ones are skipped.

        Raises
        ------
        SchemaMismatch
        """
        kept = [line for line in lines.lines if not _blank(line)]
        if not kept:
            return self._schema.empty_table()
        if self._parsed is None:
            self._parsed = self._as_written(parse_object(kept[0], self._name, lines.first))
        try:
            table = pa_json.read_json(
                io.BytesIO(b"\n".join(kept)),
                parse_options=pa_json.ParseOptions(explicit_schema=self._parsed),
                read_options=pa_json.ReadOptions(
                    use_threads=False, block_size=max(PIECE_BYTES, _size(kept)) + 1
                ),
            )
            return self._with_times(table)
        except pa.ArrowException as error:
            last = lines.first + len(lines.lines) - 1
            place = f"line {last}" if last == lines.first else f"lines {lines.first} to {last}"
            raise SchemaMismatch(f"{self._name} {place}: {error}") from None

    def _as_written(self, first: dict[str, Any]) -> pa.Schema:
        """Return how to parse: JSON has no times, and Arrow would take those without a zone for UTC."""
        return pa.schema(
            [pa.field(item.name, _written(item.type, first.get(item.name))) for item in self._schema]
        )

    def _with_times(self, table: pa.Table) -> pa.Table:
        for field in self._schema:
            at = table.schema.get_field_index(field.name)
            if pt.is_timestamp(field.type) and pt.is_int64(table.schema.field(at).type):
                table = table.set_column(
                    at, field.name, table.column(at).cast(pa.timestamp("ms", field.type.tz))
                )
        return table


def _written(kind: pa.DataType, example: object) -> pa.DataType:
    if pt.is_timestamp(kind):
        return pa.int64() if isinstance(example, int) else pa.string()
    return pa.string() if pt.is_date(kind) else kind


def parse_object(line: bytes, name: str, number: int) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises
    ------
    SchemaMismatch
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SchemaMismatch(
            f"{name} line {number}: not JSON ({error}); JSON lines have an object a line"
        ) from None
    except RecursionError:
        raise SchemaMismatch(f"{name} line {number}: nested too deeply") from None
    if not isinstance(value, dict):
        raise SchemaMismatch(f"{name} line {number}: {type(value).__name__} instead of a JSON object")
    return value


def numbered(lines: Lines) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers."""
    return ((number, line) for number, line in enumerate(lines.lines, lines.first) if not _blank(line))


def _blank(line: bytes) -> bool:
    return not line or line.isspace()


def _size(lines: Sequence[bytes]) -> int:
    return sum(map(len, lines)) + len(lines)
