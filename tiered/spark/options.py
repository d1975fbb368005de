"""The options of the data source: what users write, checked once, as one frozen value. Needs no PySpark."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ..base.units import parse_duration, parse_size
from ..errors import ConfigError, SchemaMismatch
from ..format.schema import check_topic_name
from ..format.timestamps import timestamp_us
from ..settings.settings import Settings

EARLIEST = -2
LATEST = -1
OFFSETS_END = 1 << 63

SPLIT_BYTES = 128 << 20

TOPIC_ID = "@topicId"
"""Whose offsets they are, beside those of a topic in JSON; no topic can have this name."""
LINEAGES = "@lineages"
"""Of which lineage's log they are, by partition, beside `TOPIC_ID`; a partition that is left out has its first one."""

Lineages = Mapping[int, int] | None
"""Their epochs; None: not known."""

_log = logging.getLogger("tiered.spark.options")

_ACCEPTED = (
    "topic", "subscribe", "path", "cold", "config", "endpointUrl", "region",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "fromTimestamp", "toTimestamp", "partitions", "key", "columns", "includeHeaders",
    "minPartitions", "splitBytes", "failOnDataLoss", "pushdown",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
_BY_LOWER_CASE = {name.lower(): name for name in _ACCEPTED}
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OF_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

Use = Literal["batch", "stream", "either"]
"""What options are for; `either` where it is not known yet: Spark asks for the columns first."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or to end in each partition.

    Attributes
    ----------
    unit
        What the values are: offsets (or `EARLIEST`, `LATEST`), or milliseconds since the epoch, which mean
        the first offset with that timestamp or a later one.
    value
        One for all partitions, or each partition's own.
    topic_id, lineages
        Of the topic and the logs that are meant, as in the offsets of a stream; None: of whichever are there.
    """

    unit: Literal["offset", "timestamp"]
    value: int | Mapping[int, int]
    topic_id: UUID | None = None
    lineages: Lineages = None

    def of(self, partition: int) -> int:
        """Return the value for one partition; `expand` has checked that there is one."""
        return self.value if isinstance(self.value, int) else self.value[partition]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What only a stream has.

    Attributes
    ----------
    offsets_max
        A micro-batch has at most so many offsets, over all partitions; None: all there are.
    offsets_min
        A micro-batch waits until there are so many offsets; None: it does not.
    delay_seconds_max
        How long it waits for them at most.
    """

    offsets_max: int | None = None
    offsets_min: int | None = None
    delay_seconds_max: float = 900.0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """One read, as its options describe it; see `TieredDataSource` for their meaning."""

    topic: str
    path: str | None = None
    cold: str | None = None
    config: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    starting: Position = Position("offset", EARLIEST)
    ending: Position = Position("offset", LATEST)
    without_match: Literal["error", "latest"] = "error"
    from_timestamp: int | datetime | None = None
    to_timestamp: int | datetime | None = None
    partitions: tuple[int, ...] | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    tasks_min: int = 1
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True
    pushdown: bool = False
    stream: StreamOptions = StreamOptions()

    def settings(self) -> Settings:
        """Return the settings of this read: its options over the environment over its file.

        Raises
        ------
        ConfigError
        """
        named = {"endpoint_url": self.endpoint_url, "region": self.region}
        return Settings.load(
            self.config, cold={name: text for name, text in named.items() if text is not None}
        )


def parse_options(options: Mapping[str, str], use: Use = "batch") -> SourceOptions:
    """Return the options of a read.

    Parameters
    ----------
    options
        As Spark hands them over: names in any case, values as text. Those of Kafka's own client
        (``kafka.*``) have no meaning here and are left aside, so that a job can keep them.

    Raises
    ------
    ConfigError
        Names the option and what to write.
    InvalidName
    """
    given = {_name_of(key): value for key, value in options.items() if not key.lower().startswith("kafka.")}
    topic = _topic(given)
    reader = _Values(given, topic)
    if given.get("cold") is not None and "://" in given.get("path", ""):
        raise ConfigError("option cold goes with a local path; this path is a bucket already")
    _check_use(given, use)
    stream = _stream(reader)
    return SourceOptions(
        topic=topic,
        path=given.get("path"),
        cold=given.get("cold"),
        config=given.get("config"),
        endpoint_url=given.get("endpointUrl"),
        region=given.get("region"),
        starting=_starting(reader, use),
        ending=_ending(reader),
        without_match=reader.choice("startingOffsetsByTimestampStrategy", "error", "latest"),
        from_timestamp=reader.instant("fromTimestamp"),
        to_timestamp=reader.instant("toTimestamp"),
        partitions=reader.partitions("partitions"),
        key=given.get("key"),
        columns=reader.names("columns"),
        include_headers=reader.switch("includeHeaders", default=False),
        tasks_min=reader.count("minPartitions", 1),
        split_bytes=reader.size("splitBytes", SPLIT_BYTES),
        fail_on_data_loss=reader.switch("failOnDataLoss", default=True),
        pushdown=reader.switch("pushdown", default=False),
        stream=stream if use == "stream" else StreamOptions(),
    )


def _check_use(given: Mapping[str, str], use: Use) -> None:
    if use == "batch" and (named := [name for name in _OF_STREAMS if name in given]):
        _log.warning(
            "%s is for streams; this batch read ignores it, as Kafka's source does", ", ".join(named)
        )
    if use == "stream" and (named := [name for name in _OF_BATCHES if name in given]):
        raise ConfigError(f"option {named[0]}: a stream has no end; leave it out, or use spark.read")


def _stream(reader: _Values) -> StreamOptions:
    found = StreamOptions(
        reader.count_or_none("maxOffsetsPerTrigger"),
        reader.count_or_none("minOffsetsPerTrigger"),
        reader.seconds("maxTriggerDelay", StreamOptions().delay_seconds_max),
    )
    if found.offsets_max is not None and (found.offsets_min or 0) > found.offsets_max:
        raise ConfigError(
            f"minOffsetsPerTrigger is {found.offsets_min}, maxOffsetsPerTrigger {found.offsets_max}; no "
            "micro-batch can have both: write a smaller minOffsetsPerTrigger"
        )
    return found


def _name_of(key: str) -> str:
    if key.lower() == "location":
        raise ConfigError("CREATE TABLE is not supported; write CREATE TEMPORARY VIEW … USING tiered instead")
    name = _BY_LOWER_CASE.get(key.lower())
    if name is None:
        close = difflib.get_close_matches(key.lower(), _BY_LOWER_CASE, n=1)
        hint = f"did you mean {_BY_LOWER_CASE[close[0]]}? " if close else ""
        raise ConfigError(f"no option {key!r}; {hint}The options are {', '.join(_ACCEPTED)}")
    return name


def _topic(given: Mapping[str, str]) -> str:
    named = [given[name] for name in ("topic", "subscribe") if name in given]
    if len(named) != 1:
        raise ConfigError('name the topic by exactly one of topic and subscribe: .option("topic", "orders")')
    if "," in named[0]:
        raise ConfigError(f"{named[0]!r}: one read has one topic; read each by itself and union them")
    return check_topic_name(named[0].strip())


def _starting(reader: _Values, use: Use) -> Position:
    """Return where to start, in Kafka's order of precedence; what loses is checked all the same."""
    by_offsets = reader.offsets("startingOffsets")
    if use == "batch" and by_offsets is not None and LATEST in _values(by_offsets):
        raise ConfigError(
            "startingOffsets: a batch read cannot start at the latest offset; nothing would be read"
        )
    found = (
        reader.timestamp("startingTimestamp"),
        reader.timestamps("startingOffsetsByTimestamp"),
        by_offsets,
    )
    default = LATEST if use == "stream" else EARLIEST
    return next((position for position in found if position is not None), Position("offset", default))


def _ending(reader: _Values) -> Position:
    by_offsets = reader.offsets("endingOffsets")
    if by_offsets is not None and EARLIEST in _values(by_offsets):
        raise ConfigError(
            "endingOffsets: a batch read cannot end at the earliest offset; nothing would be read"
        )
    found = (reader.timestamp("endingTimestamp"), reader.timestamps("endingOffsetsByTimestamp"), by_offsets)
    return next((position for position in found if position is not None), Position("offset", LATEST))


def _values(position: Position) -> set[int]:
    return {position.value} if isinstance(position.value, int) else set(position.value.values())


class _Values:
    """Reads option values; every error names the option and what to write."""

    def __init__(self, given: Mapping[str, str], topic: str) -> None:
        self._given = given
        self._topic = topic

    def _refused(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"option {name} is {self._given[name]!r}; write {expected}")

    def choice(self, name: str, *choices: Any) -> Any:
        """Return one of the choices; the first is the default."""
        value = self._given.get(name, choices[0]).lower()
        if value not in choices:
            raise self._refused(name, " or ".join(choices))
        return value

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a truth value."""
        return bool(self.choice(name, *(("true", "false") if default else ("false", "true"))) == "true")

    def count(self, name: str, default: int) -> int:
        """Return a number from 1."""
        text = self._given.get(name, str(default)).strip()
        if not _is_integer(text) or int(text) < 1:
            raise self._refused(name, "a number from 1")
        return int(text)

    def count_or_none(self, name: str) -> int | None:
        """Return a number from 1, or None where there is none."""
        return self.count(name, 1) if name in self._given else None

    def seconds(self, name: str, default: float) -> float:
        """Return a length of time."""
        if name not in self._given:
            return default
        try:
            return parse_duration(self._given[name]).total_seconds()
        except ValueError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes."""
        if name not in self._given:
            return default
        try:
            size = parse_size(self._given[name])
        except ValueError as error:
            raise ConfigError(f"option {name}: {error}") from None
        if size == 0:
            raise self._refused(name, "a size above zero, such as 128MiB")
        return size

    def instant(self, name: str) -> int | datetime | None:
        """Return milliseconds since the epoch, or an aware datetime."""
        if name not in self._given:
            return None
        text = self._given[name].strip()
        try:
            value = int(text) if _is_integer(text) else datetime.fromisoformat(text)
            timestamp_us(value)
        except (ValueError, SchemaMismatch):
            expected = "milliseconds since the epoch, or a time with its zone such as 2013-06-01T00:00:00Z"
            raise self._refused(name, expected) from None
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return names: separated by commas, or a JSON list for those that hold a comma."""
        text = self._given.get(name)
        if text is None:
            return None
        found = _json(text) if text.strip().startswith("[") else [part.strip() for part in text.split(",")]
        if (
            not isinstance(found, list)
            or not found
            or not all(isinstance(item, str) and item for item in found)
        ):
            raise self._refused(name, "column names, such as key,value,offset")
        if len({item.lower() for item in found}) != len(found):
            raise self._refused(name, "each column once")
        return tuple(found)

    def partitions(self, name: str) -> tuple[int, ...] | None:
        """Return partition numbers, sorted, each once."""
        text = self._given.get(name)
        if text is None:
            return None
        parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
        if not all(_is_integer(part) and int(part) >= 0 for part in parts):
            raise self._refused(name, "partition numbers, such as 0,2")
        return tuple(sorted({int(part) for part in parts}))

    def timestamp(self, name: str) -> Position | None:
        """Return one timestamp for all partitions."""
        if name not in self._given:
            return None
        text = self._given[name].strip()
        if not _is_integer(text):
            raise self._refused(name, "milliseconds since the epoch")
        return Position("timestamp", self._milliseconds(name, int(text)))

    def timestamps(self, name: str) -> Position | None:
        """Return a timestamp for each partition."""
        if name not in self._given:
            return None
        found = self._each(
            name,
            _json(self._given[name]),
            f'milliseconds since the epoch for each partition: {{"{self._topic}":{{"0":1700}}}}',
        )
        return Position("timestamp", {key: self._milliseconds(name, value) for key, value in found.items()})

    def _milliseconds(self, name: str, value: int) -> int:
        try:
            timestamp_us(value)
        except SchemaMismatch as error:
            raise ConfigError(f"option {name}: {error}") from None
        return value

    def offsets(self, name: str) -> Position | None:
        """Return offsets: one word for all partitions, or a number for each."""
        if name not in self._given:
            return None
        word = self._given[name].strip().lower()
        if word in ("earliest", "latest"):
            return Position("offset", EARLIEST if word == "earliest" else LATEST)
        expected = f'earliest, latest or, for each partition, {{"{self._topic}":{{"0":23,"1":-2}}}}'
        topic_id, lineages, document = split_marks(_json(self._given[name]))
        found = self._each(name, document, f"{expected} (-2 is earliest, -1 is latest)")
        if not all(EARLIEST <= value < OFFSETS_END for value in found.values()):
            raise self._refused(name, f"{expected} (-2 is earliest, -1 is latest)")
        return Position("offset", found, topic_id, lineages)

    def _each(self, name: str, document: Any, expected: str) -> dict[int, int]:
        """Return the numbers of Kafka's JSON form ``{"topic":{"0":23,"1":-2}}``."""
        if not isinstance(document, dict) or list(document) != [self._topic]:
            raise self._refused(name, expected)
        numbers = document[self._topic]
        if not isinstance(numbers, dict) or not numbers:
            raise self._refused(name, expected)
        if not all(_is_integer(key) and type(value) is int for key, value in numbers.items()):
            raise self._refused(name, expected)
        found = {int(key): value for key, value in numbers.items()}
        if min(found) < 0 or len(found) < len(numbers):
            raise self._refused(name, expected)
        return found


def split_marks(document: Any) -> tuple[UUID | None, Lineages, Any]:
    """Take `TOPIC_ID` and `LINEAGES` out of offsets in JSON; what is none is left where it is, to be refused with the rest."""
    try:
        topic_id = UUID(document[TOPIC_ID])
        given = document.get(LINEAGES)
        lineages = None if given is None else {int(key): int(epoch) for key, epoch in given.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None, None, document
    rest = {name: value for name, value in document.items() if name not in (TOPIC_ID, LINEAGES)}
    return topic_id, lineages, rest


def _is_integer(text: str) -> bool:
    """Whether a text is an integer; one of thousands of digits is none that Python would read."""
    return text.removeprefix("-").isdecimal() and len(text) < 32


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
