"""The inputs of ``tiered append``: lines, JSON lines, CSV and Parquet, from files or stdin, read in parts."""

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

READ_BYTES = 1 << 20
_PARQUET_ROWS = 1 << 16
_CSV_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_CSV_ROWS = re.compile(rb"(?:%b(?:,%b)*+[\r\n])*+" % (_CSV_FIELD, _CSV_FIELD))


class InputFormat(StrEnum):
    """The format of an input."""

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
# Commands that write the content of a compressed file to a pipe; tar recognises the compression itself.
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
    """Lines without their newlines; ``first`` is the number of the first line, from 1."""

    first: int
    lines: list[bytes]


@dataclass(frozen=True, slots=True)
class InputSource:
    """One input.

    Attributes
    ----------
    name
        The path, or ``stdin``, for messages.
    path
        The path; None for stdin.
    size
        The size in bytes; None if it is unknown.
    """

    name: str
    path: Path | None
    format: InputFormat
    size: int | None


def find_source(file: str, chosen: InputFormat | None) -> InputSource:
    """Return the input that a FILE argument names; ``-`` is stdin.

    Raises
    ------
    OSError, ConfigError
    """
    no_parquet = ConfigError("Parquet is read from its end, which a pipe does not have; name a file")
    if file == "-":
        if chosen is InputFormat.PARQUET:
            raise no_parquet
        return InputSource("stdin", None, chosen or InputFormat.LINES, None)
    path = Path(file)
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{path} is a directory; name its files")
    extension = path.suffix.lower()
    if extension in _UNPACK and chosen is None:
        raise ConfigError(f"{path} is compressed or an archive; {_how_to_unpack(file, path)}")
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    input_format = chosen or _EXTENSIONS.get(extension, InputFormat.LINES)
    if input_format is InputFormat.PARQUET and size is None:
        raise no_parquet
    return InputSource(file, path, input_format, size)


def _how_to_unpack(file: str, path: Path) -> str:
    inner = Path(path.stem).suffix.lower()
    program = _UNPACK[inner if inner == ".tar" else path.suffix.lower()]
    input_format = _EXTENSIONS.get(inner)
    if input_format is InputFormat.PARQUET:
        return "unpack it to a file first, as Parquet cannot be read from a pipe"
    # A pipe has no extension, so the command must name the format.
    option = f" --format {input_format}" if input_format else ""
    return f"pipe its content: {program} {quote(file)} | tiered append …{option}"


@contextmanager
def open_source(source: InputSource) -> Iterator[IO[bytes]]:
    """Open an input for reading."""
    if source.path is None:
        yield sys.stdin.buffer
        return
    with source.path.open("rb") as file:
        yield file


def read_lines(stream: Any, name: str, line_bytes_max: int) -> Iterator[Lines]:
    """Yield lines as soon as a pipe delivers them.

    Raises
    ------
    RecordTooLarge
        A line is longer than a record can be; it is not read to its end.
    """
    parts, parts_bytes, number = [b""], 0, 1  # of the line that has not ended yet
    while part := stream.read1(READ_BYTES):
        *lines, last = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*parts, lines[0]])
            yield Lines(number, lines)
            number += len(lines)
            parts, parts_bytes = [], 0
        parts.append(last)
        parts_bytes += len(last)
        if parts_bytes > line_bytes_max:
            raise RecordTooLarge(f"{name} line {number}: a line of more than {line_bytes_max} bytes")
    if parts_bytes:
        yield Lines(number, [b"".join(parts)])


def read_csv(stream: Any, name: str, schema: pa.Schema, row_bytes_max: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of CSV with a header line as they arrive, as columns of a topic, with the bytes of the input.

    An empty field is null. In columns of numbers and times, Arrow's other spellings of null, such as NA, are null, too; in
    a text column NA is text.

    Raises
    ------
    SchemaMismatch
    RecordTooLarge
        A row is longer than a record can be, perhaps because of an open quote; it is not read to its end.
    """
    types = {field.name: field.type for field in schema} | {"timestamp": TIMESTAMP}
    names = None  # until the header is read
    for rows in _whole_rows(stream, name, row_bytes_max):
        if names is None and rows.isspace():
            continue
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(rows),
                read_options=pa_csv.ReadOptions(column_names=names, block_size=max(READ_BYTES, len(rows))),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(column_types=types),
            )
        except pa.ArrowException as error:
            reason = str(error).partition(". If ")[0]  # without Arrow's advice to programmers
            raise SchemaMismatch(f"{name}: {reason}") from None
        try:
            names = table.schema.names
        except UnicodeDecodeError:
            raise SchemaMismatch(f"{name}: the header line is no UTF-8 text") from None
        yield _empty_as_null(table), len(rows)


def _whole_rows(stream: Any, name: str, row_bytes_max: int) -> Iterator[bytes]:
    """Yield parts of CSV that end with a row; the last row may lack its newline, and an empty input is one empty part.

    Arrow's own CSV stream is not used: its thread waits for a pipe even after a signal to stop.
    """
    rest, cut = b"", False
    while part := stream.read1(READ_BYTES):
        rest += part
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


def read_parquet(source: InputSource) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a Parquet file, with the bytes of the file that were read so far, as its rows tell.

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
    """Parses JSON lines as rows of a typed topic.

    Times are text with a zone, or integer milliseconds. In each part of the input, all times of a column have the same
    form.

    Parameters
    ----------
    schema
        The topic's columns.
    """

    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema = pa.schema([*schema, pa.field("timestamp", TIMESTAMP)])
        self._name = name
        self._times = [field.name for field in self._schema if pt.is_timestamp(field.type)]
        self._integers: frozenset[str] | None = (
            None  # columns with times as integers; None before the first line
        )

    def parse(self, lines: Lines) -> pa.RecordBatch | pa.Table:
        """Return the rows in these lines; blank lines are skipped.

        Raises
        ------
        SchemaMismatch
        """
        filled = [line for line in lines.lines if not _blank(line)]
        if not filled:
            return self._schema.empty_table()
        if self._integers is None:
            self._integers = self._integer_times([next(numbered_lines(lines))])
        try:
            try:
                table = self._read(filled)
            except pa.ArrowException:
                before, self._integers = self._integers, self._integer_times(numbered_lines(lines))
                if self._integers == before:
                    raise
                table = self._read(filled)
            return self._with_times(table)
        except pa.ArrowException as error:
            last = lines.first + len(lines.lines) - 1
            where = f"line {last}" if last == lines.first else f"lines {lines.first} to {last}"
            raise SchemaMismatch(f"{self._name} {where}: {error}") from None

    def _read(self, filled: Sequence[bytes]) -> pa.Table:
        return pa_json.read_json(
            io.BytesIO(b"\n".join(filled)),
            parse_options=pa_json.ParseOptions(explicit_schema=self._parse_schema()),
            read_options=pa_json.ReadOptions(
                use_threads=False, block_size=max(READ_BYTES, _size(filled)) + 1
            ),
        )

    def _integer_times(self, lines: Iterable[tuple[int, bytes]]) -> frozenset[str]:
        """Return the columns whose times are integers; the first line with a value of the column decides.

        Raises
        ------
        SchemaMismatch
            A line is no JSON object.
        """
        examples: dict[str, object] = {}
        for number, line in lines:
            fields = parse_object(line, self._name, number)
            for name in self._times:
                if examples.get(name) is None:
                    examples[name] = fields.get(name)
        return frozenset(name for name, example in examples.items() if isinstance(example, int))

    def _parse_schema(self) -> pa.Schema:
        """Return the schema for Arrow's JSON parser. Times are parsed as text: Arrow takes a time without a zone for UTC."""
        return pa.schema([pa.field(field.name, self._parse_type(field)) for field in self._schema])

    def _parse_type(self, field: pa.Field) -> pa.DataType:
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


def numbered_lines(lines: Lines) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    return ((number, line) for number, line in enumerate(lines.lines, lines.first) if not _blank(line))


def _blank(line: bytes) -> bool:
    return not line or line.isspace()


def _size(lines: Sequence[bytes]) -> int:
    return sum(map(len, lines)) + len(lines)
