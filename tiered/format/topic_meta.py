"""The document of a topic: its columns and partitions, and the ways in which they may grow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt

from ..errors import ConfigError, CorruptionError, InvalidName, SchemaMismatch, TopicExists
from .schema import (
    RECORD_SCHEMA,
    body_schema,
    check_extends,
    check_topic_name,
    normalize_schema,
    schema_from_text,
    schema_to_text,
)
from .segment import schema_message

PARTITIONS_MAX = 4096


def topic_schema(schema: pa.Schema | None, timestamp: str | None, key: str | None) -> pa.Schema:
    """Return the normalized columns of a new topic; by default the record schema.

    Raises
    ------
    SchemaMismatch, InvalidName, ConfigError
        The columns, or the chosen timestamp or key column, are not valid.
    """
    plain = RECORD_SCHEMA if schema is None else normalize_schema(schema)
    schema_message(body_schema(plain))
    if schema is None and (timestamp or key):
        raise ConfigError("timestamp= and key= name columns of a typed topic: give schema= too")
    if timestamp is not None:
        check_timestamp_column(plain, timestamp)
    if key is not None:
        check_key_column(plain, key)
    return plain


def check_same(meta: TopicMeta, schema: pa.Schema, timestamp: str | None, key: str | None) -> None:
    """Raise `TopicExists` unless the topic has this schema in some version, and this timestamp and key column."""
    if not any(schema.equals(version) for version in meta.schemas):
        names = ", ".join(meta.schemas[-1].names)
        raise TopicExists(f"topic {meta.name!r} exists with another schema: {names}")
    for name, actual, wanted in (("timestamp", meta.timestamp, timestamp), ("key", meta.key, key)):
        if actual != wanted:
            raise TopicExists(f"topic {meta.name!r} exists with {name}={actual!r}, not {wanted!r}")


def with_partitions(meta: TopicMeta, total: int) -> TopicMeta:
    """Return a topic with `total` partitions; raise `ConfigError` if it has more."""
    check_partitions(total)
    if total < meta.partitions:
        raise ConfigError(f"topic {meta.name!r} has {meta.partitions} partitions; their number can only grow")
    return replace(meta, partitions=total)


def check_partitions(partitions: int) -> None:
    """Raise `ConfigError` for an invalid number of partitions."""
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= PARTITIONS_MAX
    ):
        raise ConfigError(f"partitions is a number from 1 to {PARTITIONS_MAX}, not {partitions!r}")


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """The content of ``topic.json``, in the store and in the bucket.

    Attributes
    ----------
    schemas
        Every version of the schema; the position of a version is its id.
    timestamp
        The column with the record timestamp. None: a record's timestamp is the caller's, by default the append time.
    key
        The column that chooses the partition and serves key filters, or None.
    """

    name: str
    topic_id: UUID
    partitions: int
    schemas: tuple[pa.Schema, ...]
    timestamp: str | None
    key: str | None
    created_us: int

    @property
    def schema(self) -> pa.Schema:
        """The newest version of the schema."""
        return self.schemas[-1]

    @property
    def schema_id(self) -> int:
        """Id of the newest version."""
        return len(self.schemas) - 1

    @property
    def typed(self) -> bool:
        """Whether the topic has columns of its own instead of the record schema."""
        return not self.schema.equals(RECORD_SCHEMA)

    @property
    def key_column(self) -> str | None:
        """Name of the column that chooses the partition; None if there is none."""
        return self.key if self.typed else "key"

    def with_columns(self, columns: pa.Schema) -> TopicMeta:
        """Return a topic with `columns` added to its schema."""
        existing = set(self.schema.names)
        taken = [name for name in columns.names if name in existing]
        if taken:
            raise SchemaMismatch(f"column {taken[0]!r} exists")
        grown = normalize_schema(pa.schema([*self.schema, *columns]))
        check_extends(self.schema, grown)
        return replace(self, schemas=(*self.schemas, grown))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.name,
            "id": str(self.topic_id),
            "partitions": self.partitions,
            "timestamp": self.timestamp,
            "key": self.key,
            "created_us": self.created_us,
            "schemas": [
                {
                    "id": i,
                    "columns": [f"{field.name}: {field.type}" for field in schema],
                    "arrow": schema_to_text(schema),
                }
                for i, schema in enumerate(self.schemas)
            ],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], *, where: str) -> TopicMeta:
        """Invert `to_json`.

        The document may come from a bucket, so its name is checked before it becomes the name of a local directory.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        try:
            meta = cls(
                name=check_topic_name(values["name"]),
                topic_id=UUID(values["id"]),
                partitions=_integer(values["partitions"]),
                schemas=tuple(schema_from_text(version["arrow"]) for version in values["schemas"]),
                timestamp=values["timestamp"],
                key=values["key"],
                created_us=_integer(values["created_us"]),
            )
            if not (
                1 <= meta.partitions <= PARTITIONS_MAX and meta.schemas and abs(meta.created_us) < 1 << 63
            ):
                raise ValueError("no partition, no schema, or no time")
            if not all(name is None or name in meta.schemas[0].names for name in (meta.timestamp, meta.key)):
                raise ValueError("no such column")
            return meta
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidName) as error:
            raise CorruptionError(f"topic does not decode ({error!r})", where=where) from None


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:60]!r} is not an integer")
    return value


def check_timestamp_column(schema: pa.Schema, name: str) -> None:
    """Raise `SchemaMismatch` unless `name` is a timestamp column of a topic's schema."""
    index = _index(schema, name)
    if index < 0:
        raise SchemaMismatch(f"timestamp column {name!r} is not in the schema ({', '.join(schema.names)})")
    if not pt.is_timestamp(schema.field(index).type):
        raise SchemaMismatch(
            f"timestamp column {name!r} has type {schema.field(index).type}; it must be a timestamp"
        )


def check_key_column(schema: pa.Schema, name: str) -> None:
    """Raise `SchemaMismatch` unless `name` is a string, binary or integer column of a topic's schema."""
    index = _index(schema, name)
    if index < 0:
        raise SchemaMismatch(f"key column {name!r} is not in the schema ({', '.join(schema.names)})")
    kind = schema.field(index).type
    if not (pt.is_string(kind) or pt.is_binary(kind) or pt.is_integer(kind)):
        raise SchemaMismatch(
            f"key column {name!r} has type {kind}; it must be a string, binary or an integer"
        )


def _index(schema: pa.Schema, name: object) -> int:
    return int(schema.get_field_index(name)) if isinstance(name, str) else -1
