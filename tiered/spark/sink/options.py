"""The options of a write, checked once, and how a frame's columns become a topic's. Needs no PySpark."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...errors import ConfigError, SchemaMismatch
from ...format.schema import check_topic_name
from ...format.topic_meta import TopicMeta
from ...staging.stage import BATCH_MAX

_ACCEPTED = ("topic", "path", "config", "txnAppId", "txnVersion")
_BY_LOWER_CASE = {name.lower(): name for name in _ACCEPTED}
# Spark's own, which it hands over with the others.
_SPARKS = ("checkpointlocation", "queryname")
# Columns of a frame that was read from a topic: where a row came from says nothing about where it goes.
_LEFT_ASIDE = ("topic", "offset", "timestamptype")
# Of a record that is appended, besides the topic's own columns.
_OF_A_RECORD = ("partition", "timestamp")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """One write, as its options describe it; see `TieredDataSource` for their meaning.

    Attributes
    ----------
    location
        ``grpc://host:port`` of the writer's server.
    app_id, version
        Name and number under which a write is done once, however often it is repeated; None: each is its own.
    """

    topic: str
    location: str
    config: str | None = None
    app_id: str | None = None
    version: int | None = None


def parse_sink_options(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Return the options of a write.

    Raises
    ------
    ConfigError
        Names the option and what to write.
    InvalidName
    """
    given = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _SPARKS or lower.startswith("kafka."):
            continue
        if lower not in _BY_LOWER_CASE:
            close = difflib.get_close_matches(lower, _BY_LOWER_CASE, n=1)
            hint = f"did you mean {_BY_LOWER_CASE[close[0]]}? " if close else ""
            raise ConfigError(f"no option {key!r} of a write; {hint}The options are {', '.join(_ACCEPTED)}")
        given[_BY_LOWER_CASE[lower]] = value
    if "topic" not in given:
        raise ConfigError('name the topic to append to: .option("topic", "orders")')
    app_id, version = given.get("txnAppId"), given.get("txnVersion")
    if stream and version is not None:
        raise ConfigError("option txnVersion: a stream numbers its batches itself; leave it out")
    if not stream and (app_id is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion go together: both, or neither")
    if app_id is not None and not 1 <= len(app_id) <= 256:
        raise ConfigError("option txnAppId is a name of 1 to 256 characters")
    if version is not None and not (version.isdecimal() and len(version) < 32 and int(version) < BATCH_MAX):
        raise ConfigError(f"option txnVersion is {version!r}; write a number from 0 to {BATCH_MAX - 1}")
    return SinkOptions(
        topic=check_topic_name(given["topic"].strip()),
        location=_location(given.get("path")),
        config=given.get("config"),
        app_id=app_id,
        version=None if version is None else int(version),
    )


def _location(path: str | None) -> str:
    if path is not None and path.startswith(("grpc://", "grpc+tls://")):
        return path
    # A URL may hold a secret, which is not repeated.
    shown = repr(path) if path is None or "://" not in path else f"{path.partition('://')[0]}://"
    raise ConfigError(
        f"rows are appended through the process that writes the store, not to {shown}: run `tiered serve` there, or "
        'store.serve(), and write to its address: .save("grpc://host:port")'
    )


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """From the columns of a frame to those that are staged: names are as the topic has them.

    Attributes
    ----------
    indices
        Of the frame's columns that are sent.
    names
        What each is called at the other end.
    """

    indices: tuple[int, ...]
    names: tuple[str, ...]

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the columns that are sent."""
        for batch in batches:
            columns = [batch.column(index) for index in self.indices]
            yield pa.RecordBatch.from_arrays(columns, names=list(self.names))


def choose_columns(meta: TopicMeta, names: Sequence[str]) -> SinkColumns:
    """Match a frame's columns to the topic's by name, in any case and order, as Kafka's sink does for a topic of records.

    Raises
    ------
    SchemaMismatch
        A column that the topic does not have, or records without ``value``.
    """
    known = {name.lower(): name for name in (*meta.schema.names, *_OF_A_RECORD)}
    chosen = []
    for index, name in enumerate(names):
        if name.lower() in known:
            chosen.append((index, known[name.lower()]))
        elif name.lower() not in _LEFT_ASIDE:
            raise SchemaMismatch(
                f"column {name!r} is none of topic {meta.name!r}; its columns are {', '.join(meta.schema.names)}, and "
                "partition and timestamp say where and when: select what is to be appended"
            )
    found = tuple(name for _, name in chosen)
    if len(set(found)) != len(found):
        raise SchemaMismatch("a column name appears twice in the frame")
    if not meta.typed and "value" not in found:
        raise SchemaMismatch(f"topic {meta.name!r} is of records: the frame needs a column value")
    if not set(found) & set(meta.schema.names):
        raise SchemaMismatch(f"the frame has none of the columns of topic {meta.name!r}")
    return SinkColumns(tuple(index for index, _ in chosen), found)
