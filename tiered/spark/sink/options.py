"""The options of a write, and the mapping of a frame's columns to a topic's. Needs no PySpark."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...errors import ConfigError, SchemaMismatch
from ...format.schema import RECORD_SCHEMA, check_topic_name
from ...format.topic_meta import TopicMeta
from ...transactions.batches import BATCH_MAX

_ACCEPTED = ("topic", "path", "config", "txnAppId", "txnVersion")
_BY_LOWER_CASE = {name.lower(): name for name in _ACCEPTED}
# Options of Spark itself, which it passes with the others.
_SPARK_OPTIONS = ("checkpointlocation", "queryname")
# Columns of a frame that was read from a topic. They describe where a row came from, not where it goes.
_IGNORED_COLUMNS = ("topic", "offset", "timestamptype")
# Columns of an append besides the topic's own.
_RECORD_COLUMNS = ("partition", "timestamp")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write; `TieredDataSource` explains each.

    Attributes
    ----------
    topic
        None: the column ``topic`` names that of each row.
    location
        ``grpc://host:port`` of the writer's server.
    app_id, version
        Name and number of a write: a repetition with the same ones is not appended again. None: each write is new.
    """

    topic: str | None
    location: str
    config: str | None = None
    app_id: str | None = None
    version: int | None = None


def parse_sink_options(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Return the options of a write.

    Raises
    ------
    ConfigError
        The message names the option and says what to write.
    InvalidName
    """
    texts = {}
    for key, text in options.items():
        lower = key.lower()
        if lower in _SPARK_OPTIONS or lower.startswith("kafka."):
            continue
        if lower not in _BY_LOWER_CASE:
            close = difflib.get_close_matches(lower, _BY_LOWER_CASE, n=1)
            hint = f"did you mean {_BY_LOWER_CASE[close[0]]}? " if close else ""
            raise ConfigError(f"no option {key!r} of a write; {hint}The options are {', '.join(_ACCEPTED)}")
        texts[_BY_LOWER_CASE[lower]] = text
    app_id, version = texts.get("txnAppId"), texts.get("txnVersion")
    if stream and version is not None:
        raise ConfigError("option txnVersion: a stream numbers its batches itself; leave it out")
    if not stream and (app_id is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion go together: both, or neither")
    if app_id is not None and not 1 <= len(app_id) <= 256:
        raise ConfigError(f"option txnAppId has {len(app_id)} characters; write a name of 1 to 256")
    if version is not None and not (version.isdecimal() and len(version) < 32 and int(version) < BATCH_MAX):
        raise ConfigError(f"option txnVersion is {version!r}; write a number from 0 to {BATCH_MAX - 1}")
    return SinkOptions(
        topic=check_topic_name(texts["topic"].strip()) if "topic" in texts else None,
        location=_location(texts.get("path")),
        config=texts.get("config"),
        app_id=app_id,
        version=None if version is None else int(version),
    )


def _location(path: str | None) -> str:
    if path is not None and path.startswith(("grpc://", "grpc+tls://")):
        return path
    # A URL may have a secret in it, so the message shows the scheme alone.
    text = repr(path) if path is None or "://" not in path else f"{path.partition('://')[0]}://"
    raise ConfigError(
        f"rows are appended through the process that writes the store, not to {text}: run `tiered serve` there, or "
        'store.serve(), and write to its address: .save("grpc://host:port")'
    )


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a frame that are sent, and their names in the topic.

    Attributes
    ----------
    indices
        Positions of the columns in the frame.
    names
        The topic's name for each.
    """

    indices: tuple[int, ...]
    names: tuple[str, ...]

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns that are sent."""
        for batch in batches:
            columns = [batch.column(index) for index in self.indices]
            yield pa.RecordBatch.from_arrays(columns, names=list(self.names))


def choose_record_columns(names: Sequence[str]) -> SinkColumns:
    """Match the columns of a frame whose rows name their topics, as Kafka's sink does.

    Raises
    ------
    SchemaMismatch
    """
    accepted = (*RECORD_SCHEMA.names, *_RECORD_COLUMNS, "topic")
    by_lower_case = {name: index for index, name in enumerate(map(str.lower, names))}
    if len(by_lower_case) < len(names):
        raise SchemaMismatch("a column name appears twice in the frame: drop or rename one")
    for name in ("topic", "value"):
        if name not in by_lower_case:
            raise SchemaMismatch(
                f"without the option topic, the frame needs the columns topic and value, and it has no {name}; or name one "
                'topic: .option("topic", "orders")'
            )
    for name in by_lower_case:
        if name not in accepted and name not in _IGNORED_COLUMNS:
            raise SchemaMismatch(
                f"column {name!r} is none of a record; without the option topic the columns are {', '.join(accepted)}"
            )
    chosen = [(index, name) for name, index in by_lower_case.items() if name in accepted]
    return SinkColumns(tuple(index for index, _ in chosen), tuple(name for _, name in chosen))


def choose_columns(meta: TopicMeta, names: Sequence[str]) -> SinkColumns:
    """Match a frame's columns to the topic's by name, in any case and order, as Kafka's sink does for a record topic.

    Raises
    ------
    SchemaMismatch
        The topic lacks a column of the frame, or a frame of records lacks ``value``.
    """
    by_lower_case = {name.lower(): name for name in (*meta.schema.names, *_RECORD_COLUMNS)}
    indices, topic_names = [], []
    for index, name in enumerate(names):
        if name.lower() in by_lower_case:
            indices.append(index)
            topic_names.append(by_lower_case[name.lower()])
        elif name.lower() not in _IGNORED_COLUMNS:
            raise SchemaMismatch(
                f"column {name!r} is none of topic {meta.name!r}; its columns are {', '.join(meta.schema.names)}, "
                "besides partition and timestamp: select the columns to append"
            )
    if len(set(topic_names)) != len(topic_names):
        raise SchemaMismatch("a column name appears twice in the frame: drop or rename one")
    if not meta.typed and "value" not in topic_names:
        raise SchemaMismatch(f"topic {meta.name!r} is of records: the frame needs a column value")
    if not set(topic_names) & set(meta.schema.names):
        raise SchemaMismatch(
            f"the frame has none of the columns of topic {meta.name!r}, which are {', '.join(meta.schema.names)}"
        )
    return SinkColumns(tuple(indices), tuple(topic_names))
