"""What ``tiered append`` reads: lines, JSON lines, CSV and Parquet, from files or stdin, a piece at a time."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pyarrow.types as pt

from ..errors import ConfigError, RecordTooLarge, SchemaMismatch
from ..format.schema import TIMESTAMP

PIECE_BYTES = 1 << 20
_PARQUET_ROWS = 1 << 16
_CSV_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_CSV_ROWS = re.compile(rb"(?:%b(?:,%b)*+[\r\n])*+" % (_CSV_FIELD, _CSV_FIELD))


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
# What writes the contents of such files to a pipe; tar finds out itself how they are compressed.
_UNPACK = {
    ".7z": "7z x -so",
    ".br": "brotli -dc",
    ".bz2": "bzip2 -dc",
    ".gz": "gzip -dc",
    ".lz4": "lz4 -dc",
    ".snappy": "snzip -dc",
    ".sz": "snzip -dc",
    ".tar": "tar -xOf",
    ".tgz": "tar -xOf",
    ".xz": "xz -dc",
    ".z": "gzip -dc",
    ".zip": "unzip -p",
    ".zst": "zstd -dc",
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
    no_parquet = ConfigError("Parquet is read from its end, which a pipe does not have; name a file")
    if file == "-":
        if chosen is InputFormat.PARQUET:
            raise no_parquet
        return Source("stdin", None, chosen or InputFormat.LINES, None)
    path = Path(file)
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is a directory; name its files")
    extension = path.suffix.lower()
    if extension in _UNPACK and chosen is None:
        raise ConfigError(f"{path} is compressed or an archive; {_how_to_unpack(file, path)}")
    size = found.st_size if stat.S_ISREG(found.st_mode) else None
    held = chosen or _EXTENSIONS.get(extension, InputFormat.LINES)
    if held is InputFormat.PARQUET and size is None:
        raise no_parquet
    return Source(file, path, held, size)


def _how_to_unpack(file: str, path: Path) -> str:
    inner = Path(path.stem).suffix.lower()
    program = _UNPACK[inner if inner == ".tar" else path.suffix.lower()]
    held = _EXTENSIONS.get(inner)
    if held is InputFormat.PARQUET:
        return "unpack it to a file first, as Parquet cannot be read from a pipe"
    # A pipe has no extension to tell.
    told = f" --format {held}" if held else ""
    return f"pipe what it holds: {program} {quote(file)} | tiered append …{told}"


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


def read_csv(stream: Any, name: str, schema: pa.Schema, row_bytes_max: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of CSV with a header line as they arrive, as the columns of a topic, with the bytes read for them.

    An empty field is null. Of a number or a time so are Arrow's other spellings, such as NA; a text that reads NA is
    that text.

    Raises
    ------
    SchemaMismatch
    RecordTooLarge
        A row longer than a record can be, as one with an open quote is: it is not read to its end.
    """
    wanted = {field.name: field.type for field in schema} | {"timestamp": TIMESTAMP}
    names = None  # until the header was read
    for rows in _whole_rows(stream, name, row_bytes_max):
        if names is None and rows.isspace():
            continue
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(rows),
                read_options=pa_csv.ReadOptions(column_names=names, block_size=max(PIECE_BYTES, len(rows))),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(column_types=wanted),
            )
        except pa.ArrowException as error:
            reason = str(error).partition(". If ")[0]  # without Arrow's advice to its own callers
            raise SchemaMismatch(f"{name}: {reason}") from None
        try:
            names = table.schema.names
        except UnicodeDecodeError:
            raise SchemaMismatch(f"{name}: the header line is no UTF-8 text") from None
        yield _empty_as_null(table), len(rows)


def _whole_rows(stream: Any, name: str, row_bytes_max: int) -> Iterator[bytes]:
    """Cut CSV at ends of rows; the last row may lack its end, and an empty input is one empty piece.

    Arrow's own stream reads ahead on a thread, which waits for a pipe whatever signal asks for an end.
    """
    rest, cut = b"", False
    while piece := stream.read1(PIECE_BYTES):
        rest += piece
        whole = _CSV_ROWS.match(rest)
        if whole and whole.end():
            yield whole[0]
            rest, cut = rest[whole.end() :], True
        if len(rest) > row_bytes_max:
            raise RecordTooLarge(f"{name}: a row of more than {row_bytes_max} bytes; a quote may be open")
    if rest or not cut:
        yield rest


def _empty_as_null(table: pa.Table) -> pa.Table:
    for at, column in enumerate(table.columns):
        if pt.is_string(column.type) or pt.is_binary(column.type):
            empty = pc.equal(pc.binary_length(column), 0)
            if pc.any(empty).as_py():
                table = table.set_column(
                    at, table.field(at).name, pc.if_else(empty, pa.scalar(None, column.type), column)
                )
    return table


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


class JsonRows:
    """JSON lines as rows of a typed topic.

    Times are text with a zone, or integer milliseconds; those of a column are all the one or all the other within a
    piece of the input.

    Parameters
    ----------
    schema
        The topic's columns.
    """

    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema = pa.schema([*schema, pa.field("timestamp", TIMESTAMP)])
        self._name = name
        self._times = [field.name for field in self._schema if pt.is_timestamp(field.type)]
        self._integers: frozenset[str] | None = None  # the times that are; None before the first line

    def parse(self, lines: Lines) -> pa.RecordBatch | pa.Table:
        """Return the rows in these lines; blank ones are skipped.

        Raises
        ------
        SchemaMismatch
        """
        kept = [line for line in lines.lines if not _blank(line)]
        if not kept:
            return self._schema.empty_table()
        if self._integers is None:
            self._integers = self._integer_times([next(numbered(lines))])
        try:
            try:
                table = self._read(kept)
            except pa.ArrowException:
                before, self._integers = self._integers, self._integer_times(numbered(lines))
                if self._integers == before:
                    raise
                table = self._read(kept)
            return self._with_times(table)
        except pa.ArrowException as error:
            last = lines.first + len(lines.lines) - 1
            place = f"line {last}" if last == lines.first else f"lines {lines.first} to {last}"
            raise SchemaMismatch(f"{self._name} {place}: {error}") from None

    def _read(self, kept: Sequence[bytes]) -> pa.Table:
        return pa_json.read_json(
            io.BytesIO(b"\n".join(kept)),
            parse_options=pa_json.ParseOptions(explicit_schema=self._as_written()),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=max(PIECE_BYTES, _size(kept)) + 1),
        )

    def _integer_times(self, lines: Iterable[tuple[int, bytes]]) -> frozenset[str]:
        """Return the times that are integers in these lines, by the first line that has each.

        Raises
        ------
        SchemaMismatch
            One of the lines is no JSON object.
        """
        examples: dict[str, object] = {}
        for number, line in lines:
            fields = parse_object(line, self._name, number)
            for name in self._times:
                if examples.get(name) is None:
                    examples[name] = fields.get(name)
        return frozenset(name for name, example in examples.items() if isinstance(example, int))

    def _as_written(self) -> pa.Schema:
        """Return how to parse: JSON has no times, and Arrow would take those without a zone for UTC."""
        return pa.schema([pa.field(field.name, self._written(field)) for field in self._schema])

    def _written(self, field: pa.Field) -> pa.DataType:
        if pt.is_timestamp(field.type):
            return pa.int64() if field.name in (self._integers or ()) else pa.string()
        return pa.string() if pt.is_date(field.type) else field.type

    def _with_times(self, table: pa.Table) -> pa.Table:
        for field in self._schema:
            at = table.schema.get_field_index(field.name)
            if pt.is_timestamp(field.type) and pt.is_int64(table.schema.field(at).type):
                table = table.set_column(
                    at, field.name, table.column(at).cast(pa.timestamp("ms", field.type.tz))
                )
        return table


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
