"""``tiered read``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import pyarrow as pa
import typer

from ..base.units import parse_duration
from ..errors import ConfigError, OffsetOutOfRange, TopicNotFound
from ..reader.scan import Scan
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..store.interface.topic import Topic
from .consumer_pipe import ConsumerPipe
from .options import (
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    names_server,
    open_for_appending,
    open_for_reading,
)
from .output import EscapedTerminal, check_stdout, say, sleep_while_read
from .records import OutputFormat, RecordPrinter, printer_for

_POLL_SECONDS = 0.1
# A poll of a bucket is a request that costs money.
_POLL_BUCKET_SECONDS = 2.0
# Each poll scans the active segment of another process, so the reader pauses several times as long as a poll takes.
_POLL_REST = 4.0

EARLIEST = "earliest"
LATEST = "latest"


def _offset(text: str | None) -> str | None:
    if text is not None and text not in (EARLIEST, LATEST) and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not an offset; write a number, earliest or latest")
    return text


def read(
    topic: TopicName,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Only this partition. Default: all", min=0)
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help="First offset: a number, earliest or latest. Default: earliest",
            callback=_offset,
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", help="End before this offset.", min=0)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only records with this timestamp or a later one: 2025-01-31T12:00:00Z, or a time ago, such as 1h30m.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most N records.", min=0)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records of all partitions until Ctrl-C.")
    ] = False,
    latest: Annotated[
        bool,
        typer.Option("--latest", help="Only the latest record of each key, without keys that are deleted."),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Go on at the position of this consumer, and commit what was printed. --from and --since say where a new "
            "consumer begins.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="--group: do not ask before this takes the consumer over from a program that may run.",
        ),
    ] = False,
    output_format: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            help="text: values (typed: columns separated by tabs); json: a line a record; arrow: an IPC stream.",
        ),
    ] = OutputFormat.TEXT,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    _verbose: Verbose = False,
) -> None:
    """Print records from all tiers, in offset order, partition after partition.

    Records that another process appends are shown when they are durable.
    """
    if output_format is OutputFormat.ARROW and sys.stdout.isatty():
        raise typer.BadParameter("an Arrow stream is not for a terminal; redirect it", param_hint="--format")
    settings = load_settings(config, path, cold)
    moment = None if since is None else parse_moment(since, "--since")
    if latest and (follow or group is not None):
        raise ConfigError("--latest is of one moment: leave out --follow and --group")
    if group is not None:
        if end is not None:
            raise ConfigError("--group reads to the end of the log: leave out --to, or write --limit")
        first = _first_of_group(start, moment)
        _read_group(settings, topic, group, partition, first, limit, follow, yes, output_format)
        return
    request = Request(partition, start or EARLIEST, end, moment, limit, latest)
    pause = _POLL_BUCKET_SECONDS if "://" in settings.store.path else _POLL_SECONDS
    with open_for_reading(settings) as store:
        source = store.topic(topic)
        printer = _printer(output_format, source.schema)
        batches = request.follow(store, topic, printer, pause) if follow else request.once(source, printer)
        try:
            for batch in batches:
                printer.write(batch)
        finally:
            # Of two errors the first one is reported.
            with suppress(BrokenPipeError):
                printer.close()


def _printer(output_format: OutputFormat, schema: pa.Schema) -> RecordPrinter:
    sink: Any = sys.stdout.buffer
    if sys.stdout.isatty():  # a pipe or file gets every byte as it was appended
        sink = EscapedTerminal(sink, json=output_format is OutputFormat.JSON)
    return printer_for(output_format, schema, sink)


def _first_of_group(start: str | None, since: datetime | None) -> int | str | datetime | None:
    if start is not None and since is not None:
        raise ConfigError("--from and --since both say where a new consumer begins: leave one of them out")
    return int(start) if start is not None and start.isdecimal() else start or since


def _read_group(
    settings: Settings,
    topic: str,
    group: str,
    partition: int | None,
    start: int | str | datetime | None,
    limit: int | None,
    follow: bool,
    yes: bool,
    output_format: OutputFormat,
) -> None:
    check_stdout()
    with open_for_reading(settings) as store:
        # First, so that a wrong path or topic name creates nothing.
        store.topic(topic)
    with open_for_appending(settings) as store:
        if follow and not names_server(store.url):
            say(
                "note: no other process can append meanwhile; serve the store by `tiered serve` to do both",
                err=True,
            )
        pipe = ConsumerPipe(store, topic, group, partition, start, yes=yes)
        pipe.run(_printer(output_format, store.topic(topic).schema), limit, follow=follow)


@dataclass(slots=True)
class Request:
    """The records to read: bounds, the number of records left, and the next offset of each partition in `positions`.

    With `latest`, only the latest record of each key.
    """

    partition: int | None
    start: str
    end: int | None
    since: datetime | None
    left: int | None
    latest: bool = False
    positions: dict[int, int] = field(default_factory=dict)

    def once(self, topic: Topic, printer: RecordPrinter) -> Iterator[pa.RecordBatch]:
        """Yield the present records.

        Raises
        ------
        OffsetOutOfRange
            The first offset is beyond the end of every partition, or before the start of one.
        """
        self.positions = self._first_offsets(topic)
        scan = self._scan(topic, printer)
        if self.start.isdecimal():
            _check_within_log(topic, int(self.start), scan.offsets)
        yield from self._rows(scan)

    def follow(
        self,
        store: Store,
        name: str,
        printer: RecordPrinter,
        pause: float,
        sleep: Callable[[float], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the present records and then new ones, also of partitions that are added.

        Raises
        ------
        TopicNotFound
            The topic was deleted, and perhaps created again: the offsets of the two topics are unrelated.
        """
        sleep = sleep or sleep_while_read
        topic = store.topic(name)
        topic_id = topic.meta.topic_id
        self.positions = self._first_offsets(topic)
        while True:
            started = time.monotonic()
            topic = store.topic(name)
            if topic.meta.topic_id != topic_id:
                raise TopicNotFound(f"topic {name!r} was deleted and created again")
            scan = self._scan(topic, printer)
            yield from self._rows(scan)
            if self.left == 0 or self._complete():
                return
            sleep(max(pause, _POLL_REST * (time.monotonic() - started)))

    def _first_offsets(self, topic: Topic) -> dict[int, int]:
        if self.start == LATEST:
            return {partition: ends.end for partition, ends in topic.offsets().items()}
        return dict.fromkeys(range(topic.partitions), int(self.start)) if self.start.isdecimal() else {}

    def _scan(self, topic: Topic, printer: RecordPrinter) -> Scan:
        return topic.scan(
            self.partition,
            start_offset=self.positions,
            end_offset=self.end,
            start_timestamp=self.since,
            columns=printer.columns,
            limit=self.left,
            latest=self.latest,
        )

    def _rows(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        for batch in scan.to_batches():
            if self.left is not None:
                self.left -= batch.num_rows
            if batch.num_rows:
                yield batch
        ends = {partition: end for partition, (_, end) in scan.offsets.items()}
        self.positions = {
            partition: max(end, self.positions.get(partition, 0)) for partition, end in ends.items()
        }

    def _complete(self) -> bool:
        return self.end is not None and all(offset >= self.end for offset in self.positions.values())


def _check_within_log(topic: Topic, offset: int, offsets: dict[int, tuple[int, int]]) -> None:
    if all(offset > end for _, end in offsets.values()):
        start, end = min(first for first, _ in offsets.values()), max(last for _, last in offsets.values())
        raise OffsetOutOfRange(
            f"offset {offset} of topic {topic.name!r} is not there yet; the log has {start} to {end}",
            start=start,
            end=end,
        )


def parse_moment(text: str, option: str) -> datetime:
    """Return the time that an option names: a time with a zone, or a duration before now.

    Raises
    ------
    ConfigError
        The text is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - parse_duration(text)
        except (ValueError, OverflowError):
            raise ConfigError(
                f"{option} {text!r} is neither a time such as 2025-01-31T12:00:00Z nor a duration such as 1h"
            ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"{option} {text!r} has no time zone; for UTC write {moment.isoformat()}Z")
    return moment
