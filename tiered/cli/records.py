"""Printers of records for ``tiered read``: text, JSON lines, or an Arrow stream."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import IO, Any, Protocol

import pyarrow as pa

from ..format.schema import RECORD_SCHEMA, row_schema
from .output import json_line, json_text, plain

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class OutputFormat(StrEnum):
    """The format of the output."""

    TEXT = "text"
    JSON = "json"
    ARROW = "arrow"


class RecordPrinter(Protocol):
    """Prints batches of rows.

    Attributes
    ----------
    columns
        The columns of the batches in order; None for every column.
    """

    columns: list[str] | None

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def printer_for(output_format: OutputFormat, schema: pa.Schema, sink: IO[bytes]) -> RecordPrinter:
    """Return the printer for records of a topic with `schema`, to `sink`."""
    if output_format is OutputFormat.JSON:
        return JsonPrinter(sink)
    if output_format is OutputFormat.ARROW:
        return ArrowPrinter(schema, sink)
    return ValuePrinter(sink) if schema.equals(RECORD_SCHEMA) else RowPrinter(schema, sink)


class ValuePrinter:
    """Prints the values of a record topic unchanged, each followed by a newline."""

    def __init__(self, sink: IO[bytes]) -> None:
        self.columns: list[str] | None = ["value"]
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the values; null is an empty line."""
        values = [value or b"" for value in batch.column(0).to_pylist()]
        self._sink.write(b"\n".join(values) + b"\n")
        self._sink.flush()

    def close(self) -> None:
        """Do nothing: every line is out."""


class RowPrinter:
    """Prints the columns of a typed topic, separated by tabs; null is empty; backslash, tab and newline are escaped."""

    def __init__(self, schema: pa.Schema, sink: IO[bytes]) -> None:
        self.columns: list[str] | None = schema.names
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        """Print a line a row."""
        columns = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
        lines = ("\t".join(row) for row in zip(*columns, strict=True))
        self._sink.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
        self._sink.flush()

    def close(self) -> None:
        """Do nothing: every line is out."""


class JsonPrinter:
    """Prints one JSON object a record, with every column of the scan."""

    def __init__(self, sink: IO[bytes]) -> None:
        self.columns: list[str] | None = None
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        """Print a line a record."""
        lines = [json_line(row) for row in batch.to_pylist()]
        self._sink.write(("\n".join(lines) + "\n").encode())
        self._sink.flush()

    def close(self) -> None:
        """Do nothing: every line is out."""


class ArrowPrinter:
    """Writes an Arrow IPC stream with every column of the scan."""

    def __init__(self, schema: pa.Schema, sink: IO[bytes]) -> None:
        self._sink = sink
        full = row_schema(schema)
        # The schema of the stream stays the same when columns are added to the topic.
        self.columns: list[str] | None = full.names
        self._stream = pa.ipc.new_stream(sink, full)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch of the stream."""
        self._stream.write_batch(batch)
        self._sink.flush()

    def close(self) -> None:
        """End the stream."""
        self._stream.close()
        self._sink.flush()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape").translate(_ESCAPES)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return str(value)
    if isinstance(value, (list, tuple, dict)):
        return json_text(value).translate(_ESCAPES)
    return str(plain(value))
