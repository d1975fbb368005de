"""The latest record of each key: which records of a log are superseded by a later one of the same key.

Keys are compared in Arrow's hash tables by their value, never by a digest. The tables of one `LatestOffsets` are bounded, so
a range with more keys than fit is taken in parts: a record is superseded if the table of any later part has its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from ..errors import ConfigError
from .offset_set import Offsets
from .predicate import And, Comparison, IsNull, Not, Or, Predicate
from .topic_meta import TopicMeta

KEYS_BYTES_MAX = 64 << 20
"""One table holds keys of about this size; with its hash table it takes a few times as much memory."""

UNBOUNDED = 1 << 62

# A smaller number of rows is not worth building a hash table for.
_ROWS_MIN = 1 << 16
_OFFSET_BYTES = 8


class LatestOffsets:
    """The offset of the latest record of each key, in one range of a partition.

    Parameters
    ----------
    kind
        Type of the keys: string, binary or integer.
    bytes_max
        It is full when its keys take this much; default `KEYS_BYTES_MAX`.

    Attributes
    ----------
    is_full : bool
        Whether the range must end here.
    """

    def __init__(self, kind: pa.DataType, bytes_max: int | None = None) -> None:
        self._kind = kind
        self._bytes_max = KEYS_BYTES_MAX if bytes_max is None else bytes_max
        self._keys: pa.Array = pa.array([], kind)
        self._offsets: pa.Array = pa.array([], pa.int64())
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self.is_full = False

    def __len__(self) -> int:
        self._join()
        return len(self._keys)

    def add(self, keys: pa.Array, offsets: pa.Array) -> None:
        """Add records that follow those before; records without a key are ignored."""
        batch = pa.record_batch([keys, offsets], names=["key", "offset"]).filter(has_key(keys))
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        rows_max = max(_ROWS_MIN, len(self._keys))
        if self._pending_rows >= rows_max or self._pending_bytes >= KEYS_BYTES_MAX:
            self._join()

    def _join(self) -> None:
        if not self._pending:
            return
        known = pa.record_batch([self._keys, self._offsets], names=["key", "offset"])
        table = pa.Table.from_batches([known, *self._pending])
        latest = table.group_by("key", use_threads=False).aggregate([("offset", "max")]).combine_chunks()
        self._keys = _whole(latest.column("key"), self._kind)
        self._offsets = _whole(latest.column("offset_max"), pa.int64())
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        self.is_full = self._keys.nbytes + _OFFSET_BYTES * len(self._keys) >= self._bytes_max

    def offsets(self) -> Offsets:
        """Return the latest offsets, in ascending order."""
        self._join()
        return np.sort(self._offsets.to_numpy())

    def superseded(self, rows: Iterable[tuple[pa.Array, pa.Array]]) -> Iterator[Offsets]:
        """Yield the offsets of records whose key has a later record here, in the order of the records.

        Parameters
        ----------
        rows
            Keys and offsets of records.
        """
        self._join()
        # Each look-up builds the hash table anew, so it serves about as many records as there are keys.
        for keys, offsets in _gathered(rows, max(_ROWS_MIN, len(self._keys)), KEYS_BYTES_MAX):
            found = pc.index_in(keys, value_set=self._keys)
            later = pc.greater(self._offsets.take(found), offsets)
            yield offsets.filter(pc.fill_null(later, False)).to_numpy()


def _gathered(
    rows: Iterable[tuple[pa.Array, pa.Array]], rows_max: int, bytes_max: int
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Join small pieces of rows into larger ones, without records that have no key."""
    keys: list[pa.Array] = []
    offsets: list[pa.Array] = []
    count = size = 0
    for some_keys, some_offsets in rows:
        keyed = has_key(some_keys)
        keys.append(some_keys.filter(keyed))
        offsets.append(some_offsets.filter(keyed))
        count += len(keys[-1])
        size += keys[-1].nbytes
        if count >= rows_max or size >= bytes_max:
            yield pa.concat_arrays(keys), pa.concat_arrays(offsets)
            keys, offsets, count, size = [], [], 0, 0
    if count:
        yield pa.concat_arrays(keys), pa.concat_arrays(offsets)


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    chunks = column.chunks
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def has_key(keys: pa.Array) -> pa.Array:
    """Return which of some rows have a key; an empty one counts as none."""
    if not _may_be_empty(keys.type):
        return keys.is_valid()
    return pc.fill_null(pc.greater(pc.binary_length(keys), 0), False)


def without_key(meta: TopicMeta) -> Predicate:
    """Return the condition on the records of a topic with a key column that have no key; an empty one counts as none."""
    key = meta.key_column
    assert key is not None
    kind = meta.schema.field(key).type
    if not _may_be_empty(kind):
        return IsNull(key)
    return Or((IsNull(key), Comparison(key, "==", "" if pt.is_string(kind) else b"")))


def _may_be_empty(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))


def tombstones_of(meta: TopicMeta, deleted: str | None) -> Predicate | None:
    """Return the condition on records that say that their key is deleted; None if the topic has no such records.

    Parameters
    ----------
    deleted
        The column of a typed topic that is true in them; `compact_keys.deleted` in its policy.

    Raises
    ------
    ConfigError
        The topic has no such column of booleans.
    """
    key = meta.key_column
    if key is None or (meta.typed and deleted is None):
        return None
    says_so: Predicate = IsNull("value")
    if meta.typed:
        assert deleted is not None
        if deleted not in meta.schema.names or not pa.types.is_boolean(meta.schema.field(deleted).type):
            raise ConfigError(
                f"compact_keys.deleted names {deleted!r}, and topic {meta.name!r} has no such column of booleans"
            )
        # Never null, so that its negation is true where the column is null.
        says_so = And((Comparison(deleted, "==", True), Not(IsNull(deleted))))
    return And((says_so, Not(without_key(meta))))
