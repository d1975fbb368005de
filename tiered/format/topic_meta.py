"""What a topic begins with, and how it may grow."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..engine.ingest import check_key_column, check_timestamp_column
from ..errors import ConfigError, TopicExists
from ..warm.catalog import PARTITIONS_MAX, TopicMeta
from .schema import RECORD_SCHEMA, body_schema, normalize_schema
from .segment import schema_message


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
