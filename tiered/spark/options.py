"""The options of the data source: parsed and checked once, as one frozen value. Needs no PySpark."""

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
from ..transactions.positions import check_consumer_name

EARLIEST = -2
LATEST = -1
OFFSETS_END = 1 << 63

SPLIT_BYTES = 128 << 20

TOPIC_ID = "@topicId"
"""Name of the topic's id in offsets as JSON, beside the topic's name; no topic can be called so."""
LINEAGES = "@lineages"
"""Name of the epochs of the lineages in offsets as JSON, by partition; a partition without one has its first lineage."""

Lineages = Mapping[int, int] | None
"""The epoch of each partition's lineage; None: unknown."""

_log = logging.getLogger("tiered.spark.options")

_ACCEPTED = (
    "topic", "subscribe", "path", "cold", "config", "endpointUrl", "region",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "fromTimestamp", "toTimestamp", "partitions", "key", "columns", "includeHeaders",
    "minPartitions", "splitBytes", "failOnDataLoss", "pushdown",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "consumer",
)  # fmt: skip
_BY_LOWER_CASE = {name.lower(): name for name in _ACCEPTED}
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "consumer")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

Use = Literal["batch", "stream", "either"]
"""What the options are for; `either` where Spark asks for the columns, before it says which."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or to end in each partition.

    Attributes
    ----------
    unit
        The unit of the values: offsets (or `EARLIEST`, `LATEST`), or milliseconds since the epoch. A time stands for
        the first offset with that timestamp or a later one.
    value
        One for all partitions, or one for each.
    topic_id, lineages
        The topic and the lineages that the offsets belong to, as a stream writes them; None: any.
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
    """The options that only a stream has.

    Attributes
    ----------
    offsets_max
        The most offsets of a micro-batch, over all partitions; None: no limit.
    offsets_min
        A micro-batch waits for so many offsets; None: it does not wait.
    delay_seconds_max
        The longest time that a micro-batch waits for `offsets_min`.
    consumer
        The name under which the progress of the query is published; None: it is not.
    """

    offsets_max: int | None = None
    offsets_min: int | None = None
    delay_seconds_max: float = 900.0
    consumer: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read; `TieredDataSource` explains each."""

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
        """Return the settings of this read. Its options win over the environment, which wins over the file.

        Raises
        ------
        ConfigError
        """
        cold = {"endpoint_url": self.endpoint_url, "region": self.region}
        return Settings.load(
            self.config, cold={name: text for name, text in cold.items() if text is not None}
        )


def parse_options(options: Mapping[str, str], use: Use = "batch") -> SourceOptions:
    """Return the options of a read.

    Parameters
    ----------
    options
        As Spark passes them: names in any case, values as text. The options of Kafka's own client (``kafka.*``) are
        ignored, so that a job can keep them.

    Raises
    ------
    ConfigError
        The message names the option and says what to write.
    InvalidName
    """
    texts = {_option_name(key): text for key, text in options.items() if not key.lower().startswith("kafka.")}
    topic = _topic(texts)
    reader = _OptionReader(texts, topic)
    if texts.get("cold") is not None and "://" in texts.get("path", ""):
        raise ConfigError(
            f"option cold goes with a local path, and the path {texts['path']!r} is a bucket already: leave cold out"
        )
    _check_use(texts, use)
    stream = _stream(reader)
    return SourceOptions(
        topic=topic,
        path=texts.get("path"),
        cold=texts.get("cold"),
        config=texts.get("config"),
        endpoint_url=texts.get("endpointUrl"),
        region=texts.get("region"),
        starting=_starting(reader, use),
        ending=_ending(reader),
        without_match=reader.choice("startingOffsetsByTimestampStrategy", "error", "latest"),
        from_timestamp=reader.instant("fromTimestamp"),
        to_timestamp=reader.instant("toTimestamp"),
        partitions=reader.partitions("partitions"),
        key=texts.get("key"),
        columns=reader.names("columns"),
        include_headers=reader.switch("includeHeaders", default=False),
        tasks_min=reader.count("minPartitions", 1),
        split_bytes=reader.size("splitBytes", SPLIT_BYTES),
        fail_on_data_loss=reader.switch("failOnDataLoss", default=True),
        pushdown=reader.switch("pushdown", default=False),
        stream=stream if use == "stream" else StreamOptions(),
    )


def _check_use(texts: Mapping[str, str], use: Use) -> None:
    if use == "batch" and (names := [name for name in _STREAM_ONLY if name in texts]):
        _log.warning(
            "%s is for streams; this batch read ignores it, as Kafka's source does", ", ".join(names)
        )
    if use == "stream" and (names := [name for name in _BATCH_ONLY if name in texts]):
        raise ConfigError(f"option {names[0]}: a stream has no end; leave it out, or use spark.read")


def _stream(reader: _OptionReader) -> StreamOptions:
    stream = StreamOptions(
        reader.count_or_none("maxOffsetsPerTrigger"),
        reader.count_or_none("minOffsetsPerTrigger"),
        reader.seconds("maxTriggerDelay", StreamOptions().delay_seconds_max),
        reader.consumer("consumer"),
    )
    if stream.offsets_max is not None and (stream.offsets_min or 0) > stream.offsets_max:
        raise ConfigError(
            f"minOffsetsPerTrigger is {stream.offsets_min}, maxOffsetsPerTrigger {stream.offsets_max}; no "
            "micro-batch can have both: write a smaller minOffsetsPerTrigger"
        )
    return stream


def _option_name(key: str) -> str:
    if key.lower() == "location":
        raise ConfigError("CREATE TABLE is not supported; write CREATE TEMPORARY VIEW … USING tiered instead")
    name = _BY_LOWER_CASE.get(key.lower())
    if name is None:
        close = difflib.get_close_matches(key.lower(), _BY_LOWER_CASE, n=1)
        hint = f"did you mean {_BY_LOWER_CASE[close[0]]}? " if close else ""
        raise ConfigError(f"no option {key!r}; {hint}The options are {', '.join(_ACCEPTED)}")
    return name


def _topic(texts: Mapping[str, str]) -> str:
    topics = [texts[name] for name in ("topic", "subscribe") if name in texts]
    if len(topics) != 1:
        raise ConfigError('name the topic by exactly one of topic and subscribe: .option("topic", "orders")')
    if "," in topics[0]:
        raise ConfigError(f"{topics[0]!r}: one read has one topic; read each by itself and union them")
    return check_topic_name(topics[0].strip())


def _starting(reader: _OptionReader, use: Use) -> Position:
    """Return where to start, in Kafka's order of precedence. The options that lose are checked, too."""
    by_offsets = reader.offsets("startingOffsets")
    if use == "batch" and by_offsets is not None and LATEST in _values(by_offsets):
        raise ConfigError(
            "startingOffsets: a batch read cannot start at the latest offset; nothing would be read"
        )
    choices = (
        reader.timestamp("startingTimestamp"),
        reader.timestamps("startingOffsetsByTimestamp"),
        by_offsets,
    )
    default = LATEST if use == "stream" else EARLIEST
    return next((position for position in choices if position is not None), Position("offset", default))


def _ending(reader: _OptionReader) -> Position:
    by_offsets = reader.offsets("endingOffsets")
    if by_offsets is not None and EARLIEST in _values(by_offsets):
        raise ConfigError(
            "endingOffsets: a batch read cannot end at the earliest offset; nothing would be read"
        )
    choices = (reader.timestamp("endingTimestamp"), reader.timestamps("endingOffsetsByTimestamp"), by_offsets)
    return next((position for position in choices if position is not None), Position("offset", LATEST))


def _values(position: Position) -> set[int]:
    return {position.value} if isinstance(position.value, int) else set(position.value.values())


class _OptionReader:
    """Parses the text of options; every error names the option and says what to write."""

    def __init__(self, texts: Mapping[str, str], topic: str) -> None:
        self._texts = texts
        self._topic = topic

    def _error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"option {name} is {self._texts[name]!r}; write {expected}")

    def choice(self, name: str, *choices: Any) -> Any:
        """Return one of the choices; the first is the default."""
        value = self._texts.get(name, choices[0]).lower()
        if value not in choices:
            raise self._error(name, " or ".join(choices))
        return value

    def switch(self, name: str, *, default: bool) -> bool:
        """Return whether the option is ``true``."""
        return bool(self.choice(name, *(("true", "false") if default else ("false", "true"))) == "true")

    def count(self, name: str, default: int) -> int:
        """Return a number from 1."""
        text = self._texts.get(name, str(default)).strip()
        if not _is_integer(text) or int(text) < 1:
            raise self._error(name, "a number from 1")
        return int(text)

    def count_or_none(self, name: str) -> int | None:
        """Return a number from 1, or None without the option."""
        return self.count(name, 1) if name in self._texts else None

    def consumer(self, name: str) -> str | None:
        """Return the name of a consumer, or None without the option."""
        return check_consumer_name(self._texts[name]) if name in self._texts else None

    def seconds(self, name: str, default: float) -> float:
        """Return a duration."""
        if name not in self._texts:
            return default
        try:
            return parse_duration(self._texts[name]).total_seconds()
        except ValueError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes."""
        if name not in self._texts:
            return default
        try:
            size = parse_size(self._texts[name])
        except ValueError as error:
            raise ConfigError(f"option {name}: {error}") from None
        if size == 0:
            raise self._error(name, "a size above zero, such as 128MiB")
        return size

    def instant(self, name: str) -> int | datetime | None:
        """Return milliseconds since the epoch, or an aware datetime."""
        if name not in self._texts:
            return None
        text = self._texts[name].strip()
        try:
            value = int(text) if _is_integer(text) else datetime.fromisoformat(text)
            timestamp_us(value)
        except (ValueError, SchemaMismatch):
            expected = "milliseconds since the epoch, or a time with its zone such as 2013-06-01T00:00:00Z"
            raise self._error(name, expected) from None
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return names: separated by commas, or a JSON list where a name has a comma."""
        text = self._texts.get(name)
        if text is None:
            return None
        names = _json(text) if text.strip().startswith("[") else [part.strip() for part in text.split(",")]
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(item, str) and item for item in names)
        ):
            raise self._error(name, "column names, such as key,value,offset")
        if len({item.lower() for item in names}) != len(names):
            raise self._error(name, "each column once")
        return tuple(names)

    def partitions(self, name: str) -> tuple[int, ...] | None:
        """Return partition numbers, sorted, each once."""
        text = self._texts.get(name)
        if text is None:
            return None
        parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
        if not all(_is_integer(part) and int(part) >= 0 for part in parts):
            raise self._error(name, "partition numbers, such as 0,2")
        return tuple(sorted({int(part) for part in parts}))

    def timestamp(self, name: str) -> Position | None:
        """Return one timestamp for all partitions."""
        if name not in self._texts:
            return None
        text = self._texts[name].strip()
        if not _is_integer(text):
            raise self._error(name, "milliseconds since the epoch")
        return Position("timestamp", self._milliseconds(name, int(text)))

    def timestamps(self, name: str) -> Position | None:
        """Return a timestamp for each partition."""
        if name not in self._texts:
            return None
        numbers = self._by_partition(
            name,
            _json(self._texts[name]),
            f'milliseconds since the epoch for each partition: {{"{self._topic}":{{"0":1700}}}}',
        )
        return Position("timestamp", {key: self._milliseconds(name, value) for key, value in numbers.items()})

    def _milliseconds(self, name: str, value: int) -> int:
        try:
            timestamp_us(value)
        except SchemaMismatch as error:
            raise ConfigError(f"option {name}: {error}") from None
        return value

    def offsets(self, name: str) -> Position | None:
        """Return offsets: one word for all partitions, or a number for each."""
        if name not in self._texts:
            return None
        word = self._texts[name].strip().lower()
        if word in ("earliest", "latest"):
            return Position("offset", EARLIEST if word == "earliest" else LATEST)
        expected = f'earliest, latest or, for each partition, {{"{self._topic}":{{"0":23,"1":-2}}}}'
        topic_id, lineages, document = split_marks(_json(self._texts[name]))
        offsets = self._by_partition(name, document, f"{expected} (-2 is earliest, -1 is latest)")
        if not all(EARLIEST <= value < OFFSETS_END for value in offsets.values()):
            raise self._error(name, f"{expected} (-2 is earliest, -1 is latest)")
        return Position("offset", offsets, topic_id, lineages)

    def _by_partition(self, name: str, document: Any, expected: str) -> dict[int, int]:
        """Return the numbers by partition out of Kafka's JSON form ``{"topic":{"0":23,"1":-2}}``."""
        if not isinstance(document, dict) or list(document) != [self._topic]:
            raise self._error(name, expected)
        numbers = document[self._topic]
        if not isinstance(numbers, dict) or not numbers:
            raise self._error(name, expected)
        if not all(_is_integer(key) and type(value) is int for key, value in numbers.items()):
            raise self._error(name, expected)
        by_partition = {int(key): value for key, value in numbers.items()}
        if min(by_partition) < 0 or len(by_partition) < len(numbers):
            raise self._error(name, expected)
        return by_partition


def split_marks(document: Any) -> tuple[UUID | None, Lineages, Any]:
    """Split offsets in JSON into `TOPIC_ID`, `LINEAGES` and the rest.

    A document in another form comes back whole, for the caller to refuse.
    """
    try:
        topic_id = UUID(document[TOPIC_ID])
        epochs = document.get(LINEAGES)
        lineages = None if epochs is None else {int(key): int(epoch) for key, epoch in epochs.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None, None, document
    rest = {name: value for name, value in document.items() if name not in (TOPIC_ID, LINEAGES)}
    return topic_id, lineages, rest


def _is_integer(text: str) -> bool:
    """Whether a text is an integer of a length that Python parses."""
    return text.removeprefix("-").isdecimal() and len(text) < 32


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
