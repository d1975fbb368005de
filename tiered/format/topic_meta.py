"""What a topic begins with, and how it may grow."""

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


def checked_schema(schema: pa.Schema | None, timestamp: str | None, key: str | None) -> pa.Schema:
    """Return the columns of a new topic as they are kept; by default the record schema.

    Raises
    ------
    SchemaMismatch, InvalidName, ConfigError
        The columns do not fit, or those named as timestamp and key do not.
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
    """Raise `TopicExists` where a topic has other columns, now and before some were added, or chooses others of them."""
    if not any(schema.equals(known) for known in meta.schemas):
        names = ", ".join(meta.schemas[-1].names)
        raise TopicExists(f"topic {meta.name!r} exists with another schema: {names}")
    for what, has, asked in (("timestamp", meta.timestamp, timestamp), ("key", meta.key, key)):
        if has != asked:
            raise TopicExists(f"topic {meta.name!r} exists with {what}={has!r}, not {asked!r}")


def with_partitions(meta: TopicMeta, total: int) -> TopicMeta:
    """Return a topic grown to `total` partitions; raise `ConfigError` where it would shrink."""
    check_partitions(total)
    if total < meta.partitions:
        raise ConfigError(f"topic {meta.name!r} has {meta.partitions} partitions; their number can only grow")
    return replace(meta, partitions=total)


def check_partitions(partitions: int) -> None:
    """Raise `ConfigError` for what is no number of partitions."""
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= PARTITIONS_MAX
    ):
        raise ConfigError(f"partitions is a number from 1 to {PARTITIONS_MAX}, not {partitions!r}")


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """What ``topic.json`` holds, in the store and in the bucket.

    Attributes
    ----------
    schemas
        Every version of the schema; the version's id is its position.
    timestamp
        Column whose value is the record timestamp, or None for the append time.
    key
        Column that chooses the partition and feeds key filters, or None.
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
        """Whether it has columns of its own, not those of the record schema."""
        return not self.schema.equals(RECORD_SCHEMA)

    @property
    def key_column(self) -> str | None:
        """Name of the column that places a record by its key; None: there is none."""
        return self.key if self.typed else "key"

    def with_columns(self, columns: pa.Schema) -> TopicMeta:
        """Return a topic whose schema is extended by `columns`."""
        known = set(self.schema.names)
        taken = [name for name in columns.names if name in known]
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

        The name becomes that of a directory here, and whoever may write to a bucket writes such documents.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        try:
            meta = cls(
                name=check_topic_name(values["name"]),
                topic_id=UUID(values["id"]),
                partitions=_integer(values["partitions"]),
                schemas=tuple(schema_from_text(item["arrow"]) for item in values["schemas"]),
                timestamp=values["timestamp"],
                key=values["key"],
                created_us=_integer(values["created_us"]),
            )
            if not (
                1 <= meta.partitions <= PARTITIONS_MAX and meta.schemas and abs(meta.created_us) < 1 << 63
            ):
                raise ValueError("no partition, no schema, or no time")
            if not all(item is None or item in meta.schemas[0].names for item in (meta.timestamp, meta.key)):
                raise ValueError("no such column")
            return meta
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidName) as error:
            raise CorruptionError(f"topic does not decode ({error!r})", where=where) from None


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:60]!r} is no integer")
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
