"""``tiered append``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from ..base.units import approximate_size
from ..errors import ConfigError, SchemaMismatch, TieredError
from ..format.record import key_bytes
from ..format.schema import TIMESTAMP
from ..format.timestamps import timestamp_us
from ..store.interface.topic import Topic
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    log,
    open_for_appending,
    open_for_reading,
)
from .output import count, print_json, say, stderr, text_of_error
from .sources import (
    InputFormat,
    InputSource,
    JsonRows,
    Lines,
    find_source,
    numbered_lines,
    open_source,
    parse_object,
    read_csv,
    read_lines,
    read_parquet,
)

# Fewer records than this go through the store's buffer, where they share a block with other records.
_BATCH_RECORDS_MIN = 256

AppendedPart = tuple[int, int]
"""The number of appended records, and the bytes of the input that they took."""


def append(
    topic: TopicName,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Input; - or no FILE is stdin.", show_default=False),
    ] = None,
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--format",
            help="Format of the input. Default: by extension (.jsonl .ndjson .json .csv .parquet .pq), else lines.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of JSON lines that is the key (record topics).")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field of JSON lines that is the timestamp: ISO 8601 with a zone, or milliseconds (record topics).",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Append all to this partition.", min=0)
    ] = None,
    sync: Annotated[
        bool,
        typer.Option("--sync", help="Wait for the disk after each MiB of input, not only at the end."),
    ] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Append lines, JSON lines, CSV or Parquet to a topic.

    In a record topic each line is a value. In a typed topic JSON fields, and columns of CSV and Parquet, are its columns.
    The input is read in parts as it arrives; when the command ends, all records are durable.
    """
    settings = load_settings(config, path, cold)
    sources = [find_source(file, input_format) for file in files or ["-"]]
    with open_for_reading(settings) as store:
        # First, so that a wrong path or topic name creates nothing.
        store.topic(topic)
    with open_for_appending(settings) as store:
        appender = _Appender(store.topic(topic), key, timestamp, partition, settings.store.max_record_bytes)
        for source in sources:
            appender.check(source.format)
        started = time.monotonic()
        records, size = _append_all(appender, sources, sync)
        appender.topic.flush()
        seconds = max(time.monotonic() - started, 1e-6)
    if as_json:
        print_json({"topic": topic, "records": records, "bytes": size, "seconds": seconds})
        return
    say(
        f"appended {count(records, 'record')} to {topic}, all durable: {approximate_size(size)} in {seconds:.1f} s, "
        f"{records / seconds:,.0f} records/s"
    )


def _append_all(appender: _Appender, sources: list[InputSource], sync: bool) -> tuple[int, int]:
    """Append every source; return records and bytes."""
    records = size = 0
    total = (
        sum(item.size or 0 for item in sources) if all(item.size is not None for item in sources) else None
    )
    with _progress(total) as progress:
        task = progress.add_task("", total=total, records="")
        started = time.monotonic()
        try:
            for source in sources:
                for appended, read in appender.append(source):
                    records, size = records + appended, size + read
                    if sync:
                        appender.topic.flush()
                    rate = records / max(time.monotonic() - started, 1e-6)
                    progress.update(
                        task, completed=size, records=f"{count(records, 'record')}, {rate:,.0f}/s"
                    )
        except (TieredError, OSError) as error:
            if not records:
                raise
            raise TieredError(
                f"{text_of_error(error)}; {count(records, 'record')} before that were appended"
            ) from error
    return records, size


def _progress(total: int | None) -> Progress:
    bar = [BarColumn()] if total else []
    return Progress(
        *bar, DownloadColumn(binary_units=True), TextColumn("{task.fields[records]}"), TimeElapsedColumn(),
        console=stderr(), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip


class _Appender:
    """Appends inputs of any format to one topic."""

    def __init__(
        self,
        topic: Topic,
        key: str | None,
        timestamp: str | None,
        partition: int | None,
        record_bytes_max: int,
    ) -> None:
        self.topic = topic
        self._typed = topic.meta.typed
        self._key = key
        self._timestamp = timestamp
        self._partition = partition
        self._record_bytes_max = record_bytes_max
        self._expected_fields = {field for field in (key, timestamp) if field}

    def check(self, input_format: InputFormat) -> None:
        """Raise `ConfigError` if the topic cannot take this format, or these options."""
        if self._typed and input_format is InputFormat.LINES:
            raise ConfigError(f"topic {self.topic.name!r} has columns; write --format jsonl, csv or parquet")
        if (self._key or self._timestamp) and (self._typed or input_format is not InputFormat.JSONL):
            raise ConfigError(
                "--key and --timestamp name fields of JSON lines for a record topic; a typed topic has its own key and "
                "timestamp columns, and other formats use the columns key and timestamp"
            )

    def append(self, source: InputSource) -> Iterator[AppendedPart]:
        """Append one input part by part; yield the size of each part.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, OSError
        """
        before = 0
        if source.format is InputFormat.PARQUET:
            for batch, done in read_parquet(source):
                yield self._rows(batch, source), done - before
                before = done
            return
        with open_source(source) as stream:
            if source.format is InputFormat.CSV:
                for table, read in read_csv(stream, source.name, self.topic.schema, self._record_bytes_max):
                    yield self._rows(table, source), read
                return
            rows = JsonRows(self.topic.schema, source.name)
            for lines in read_lines(stream, source.name, self._record_bytes_max):
                read = sum(map(len, lines.lines)) + len(lines.lines)
                if source.format is InputFormat.LINES:
                    yield self._records([{"value": line} for line in lines.lines]), read
                elif self._typed:
                    yield self._rows(rows.parse(lines), source), read
                else:
                    yield self._records(list(self._json_records(lines, source.name))), read

    def _rows(self, data: pa.Table | pa.RecordBatch, source: InputSource) -> int:
        if data.num_rows:
            try:
                self.topic.append_batch(data, partition=self._partition)
            except SchemaMismatch as error:
                hint = "" if self._typed else "; to append each line as a value, write --format lines"
                raise SchemaMismatch(f"{source.name}: {error}{hint}") from None
        return int(data.num_rows)

    def _json_records(self, lines: Lines, name: str) -> Iterator[dict[str, Any]]:
        for number, line in numbered_lines(lines):
            fields = parse_object(line, name, number)
            for field in self._expected_fields - fields.keys():
                log.warning("%s line %d has no field %r, as --key or --timestamp says", name, number, field)
                self._expected_fields.discard(field)  # warn once: the field may be optional
            try:
                yield {
                    "value": line,
                    "key": key_bytes(fields.get(self._key)) if self._key else None,
                    "timestamp": self._timestamp_of(fields),
                }
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{name} line {number}: {error}") from None

    def _timestamp_of(self, fields: dict[str, Any]) -> object:
        value = fields.get(self._timestamp) if self._timestamp else None
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise SchemaMismatch(f"{value!r} is not a time; write it as 2025-01-31T12:00:00Z") from None
            if value.tzinfo is None:
                raise SchemaMismatch(
                    f"{value.isoformat()} has no time zone; for UTC write {value.isoformat()}Z"
                )
        if value is not None:
            timestamp_us(value)
        return value

    def _records(self, records: list[dict[str, Any]]) -> int:
        """Append records: many as Arrow data, few through the store's buffer."""
        if len(records) < _BATCH_RECORDS_MIN:
            chosen = {} if self._partition is None else {"partition": self._partition}
            self.topic.append_many([{**record, **chosen} for record in records])
            return len(records)
        columns = {"value": pa.array([record["value"] for record in records], pa.binary())}
        if "key" in records[0]:
            columns["key"] = pa.array([record["key"] for record in records], pa.binary())
            times = [
                item if item is None else timestamp_us(item) for item in (r["timestamp"] for r in records)
            ]
            columns["timestamp"] = pa.array(times, pa.int64()).cast(TIMESTAMP)
        self.topic.append_batch(pa.table(columns), partition=self._partition)
        return len(records)
