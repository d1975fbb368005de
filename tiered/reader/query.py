"""The checked arguments of a read: partitions, offset bounds, columns, a key and a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError, SchemaMismatch, TopicNotFound
from ..format.record import key_bytes
from ..format.timestamps import plain_int, timestamp_us
from ..format.topic_meta import TopicMeta
from .filters import parse_filter
from .rows import Query

Offsets = int | Mapping[int, int] | None

_INT64_MAX = (1 << 63) - 1


def query_of(
    meta: TopicMeta,
    start: object,
    end: object,
    key: object,
    columns: Iterable[str] | None,
    conditions: object = None,
) -> Query:
    """Return the query of a scan; raise `ConfigError` or `SchemaMismatch` for arguments that do not fit the topic."""
    key_column = None
    if key is not None:
        key_column = meta.key_column
        if key_column is None:
            raise ConfigError(f"topic {meta.name!r} has no key column to look for key={key!r}")
        key = _as_key(key, meta.schema.field(key_column).type)
    if isinstance(columns, str):
        raise ConfigError(f"columns is a list of names; write columns=[{columns!r}]")
    try:
        names = None if columns is None else tuple(columns)
    except TypeError:  # an array without a dimension is an Iterable, too
        raise ConfigError(f"columns is a list of names, not {columns!r}") from None
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ConfigError(f"columns is a list of names, not {columns!r}")
    if names is not None and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"columns names {twice!r} twice; a scan has each column once")
    return Query(
        columns=names,
        start_timestamp_us=None if start is None else timestamp_us(start),
        end_timestamp_us=None if end is None else timestamp_us(end),
        key=key,
        key_column=key_column,
        filter=None if conditions is None else parse_filter(meta.schema, conditions),
    )


def plain_limit(limit: Any) -> int | None:
    """Return a limit as a plain int, or None for no limit; raise `ConfigError` for anything else."""
    limit = plain_int(limit)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ConfigError(f"limit is a number of rows, not {limit!r}")
    bounded: int | None = clamp_to_int64(limit)
    return bounded


def check_sync(sync: object) -> None:
    """Raise `ConfigError` unless `sync` is True, False or None: text such as "no" would count as True."""
    if sync is not None and type(sync) is not bool:
        raise ConfigError(f"sync is True, False, or None for the sync mode, not {sync!r}")


def _as_key(key: Any, kind: pa.DataType) -> Any:
    """Return a key as its column stores it."""
    if pa.types.is_binary(kind):
        return key_bytes(key)
    try:
        if pa.types.is_string(kind) and isinstance(key, bytes):
            return key.decode()
        stored = pa.scalar(key, kind).as_py()
        # Within the try: an array has no truth value when it is compared.
        if stored == key and not isinstance(key, (bool, np.bool_)):
            return stored
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError):
        pass
    raise SchemaMismatch(f"key {key!r} does not fit the key column's type {kind}")


def select_partitions(meta: TopicMeta, partitions: Iterable[int] | int | None) -> list[int]:
    """Return the requested partitions; all for None."""
    if partitions is None:
        return list(range(meta.partitions))
    partitions = plain_int(partitions)
    try:
        wanted = [partitions] if isinstance(partitions, int) else list(partitions)
    except TypeError:
        raise ConfigError(f"partitions is a partition or a list of them, not {partitions!r}") from None
    return list(dict.fromkeys(plain_partition(meta, partition) for partition in wanted))


def plain_bounds(meta: TopicMeta, offsets: Any) -> Offsets:
    """Return a bound on offsets in plain ints; raise `ConfigError` for anything else."""
    if not isinstance(offsets, Mapping):
        return _plain_offset(offsets)
    bounds = {}
    for key, value in offsets.items():
        partition, offset = plain_int(key), _plain_offset(value)
        if type(partition) is not int or not 0 <= partition < meta.partitions:
            raise ConfigError(f"an offset is given for {partition!r}, which is no partition of {meta.name!r}")
        if offset is not None:
            bounds[partition] = offset
    return bounds


def _plain_offset(offset: Any) -> int | None:
    offset = plain_int(offset)
    if offset is not None and type(offset) is not int:
        raise ConfigError(f"an offset is an int, or a dict of int by partition, not {offset!r}")
    bounded: int | None = clamp_to_int64(offset)
    return bounded


def clamp_to_int64(value: Any) -> Any:
    """Return the nearest integer of 64 bits for an integer, and any other value unchanged.

    No log becomes that long, so this does not change the meaning of a limit or an offset. Flight messages have 64 bits.
    """
    return max(-_INT64_MAX, min(value, _INT64_MAX)) if type(value) is int else value


def bound(offsets: Offsets, partition: int) -> int | None:
    """Return the bound for a partition."""
    return offsets.get(partition) if isinstance(offsets, Mapping) else offsets


def plain_partition(meta: TopicMeta, partition: Any) -> int:
    """Return a partition as a plain int; raise `TopicNotFound` if the topic does not have it."""
    partition = plain_int(partition)
    if type(partition) is not int or not 0 <= partition < meta.partitions:
        has = "partition 0 alone" if meta.partitions == 1 else f"partitions 0 to {meta.partitions - 1}"
        raise TopicNotFound(f"topic {meta.name!r} has {has}, not {partition!r}")
    return partition
