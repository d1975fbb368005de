"""The rows that open erasures remove from the objects of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.partition_manifest import PartitionManifest
from ..format.erasure import LedgerEntry
from ..format.manifest import ErasedMark, Head, ObjectEntry
from ..format.predicate import Comparison, In, IsNull, Not, Or, Predicate
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta


@dataclass(frozen=True, slots=True)
class DueErasure:
    """An open erasure with its values, and how far the partition was checked for it."""

    erasure: LedgerEntry
    wanted: In
    horizon: int
    mark: ErasedMark

    def concerns(self, entry: ObjectEntry, schema: pa.Schema) -> bool:
        """Whether the object may have a record of the erasure."""
        return entry.base_offset < self.horizon and self.erasure.column in schema.names

    def checked(self, offset: int) -> ErasedMark:
        """Return the mark once the objects before an offset were checked."""
        return replace(self.mark, offset=min(offset, self.horizon))

    def others(self) -> Predicate:
        """Match every other row, also one whose value is null."""
        behind = Comparison("offset", ">=", self.horizon)
        return Or((behind, IsNull(self.erasure.column), Not(self.wanted)))


def mark_of(head: Head | None, erasure: LedgerEntry) -> ErasedMark:
    """Return how far a partition was checked for an erasure."""
    marks = () if head is None else head.erased
    return next((mark for mark in marks if mark.erasure == erasure.id), ErasedMark(erasure.id, 0, 0))


def count_erased(
    manifest: PartitionManifest, entry: ObjectEntry, meta: TopicMeta, due: Sequence[DueErasure], start: int
) -> tuple[set[UUID], dict[UUID, int]]:
    """Return the erasures with a record in an object, and how many records of the log each of them removes.

    A record of several erasures counts for the first one. A record before the start offset is in the object and not in the
    log, so it does not count. Only the compared columns are read. The filters of the object need no check of their own:
    their bytes are verified like those of a column.

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """
    columns = dict.fromkeys(item.erasure.column for item in due)
    batches = read_object(
        manifest.store, manifest.keys.data(entry.name), entry, meta.schemas[entry.schema_id], columns=["offset", *columns],
        row_filter=RowFilter((Or(tuple(item.wanted for item in due)),)),
        key_column=meta.key_column,
    )  # fmt: skip
    hit: set[UUID] = set()
    rows = dict.fromkeys((item.erasure.id for item in due), 0)
    in_log = Comparison("offset", ">=", start)
    for batch in batches:
        left = batch
        for item in due:
            kept = _filtered(left, item.others())
            if kept.num_rows < left.num_rows:
                hit.add(item.erasure.id)
                before, after = _filtered(left, in_log), _filtered(kept, in_log)
                rows[item.erasure.id] += before.num_rows - after.num_rows
            left = kept
    return hit, rows


def _filtered(batch: pa.RecordBatch, condition: Predicate) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    mask = RowFilter((condition,)).mask(columns, batch.schema)
    return batch.slice(0, batch.num_rows * mask) if isinstance(mask, bool) else batch.filter(mask)


def plain_values(values: pa.Array) -> tuple[object, ...]:
    """Return values as predicates hold them: a timestamp as a number of microseconds."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return tuple(values.to_pylist())
