"""Appends of records, lists and Arrow data to a served topic: their division into batches for the appender.

`RemoteTopic` checks that the store accepts appends. A call that waits raises the first error of its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ...engine.append import MANY_ROWS_MIN, PreparedRecord, prepare_records, shares_of
from ...engine.append_conditional import check_condition
from ...engine.ingest import (
    by_partition,
    cast_batches,
    check_records,
    key_presence,
    plain_batch,
    plain_records,
    record_lists,
)
from ...engine.records import Appended, OffsetRange, Record, merge_ranges, report_appended
from ...errors import TieredError
from ...format.block_rows import split_batch
from ...format.record import partition_of
from ...format.sizes import bytes_bound
from ...hot.row_buffer import RECORD_OVERHEAD_BYTES, PlainRecords
from ...reader.query import check_sync
from ..wire.packed_rows import PACKED_BYTES_MAX
from .appender import BATCH_BYTES_MAX
from .pending_batch import PendingBatch
from .topic_state import TopicState, body_of_rows

_CHUNK_ROWS = 1 << 16
# With more rows, an Arrow batch is faster: packed rows are packed and unpacked by Python.
_PACKED_ROWS_MAX = 256


def append_conditional(
    state: TopicState, record: PreparedRecord, expected_offset: int, sync: bool | None
) -> Appended:
    """Append a record if its partition ends at `expected_offset`; wait for the answer."""
    partition, expected = check_condition(state, record, expected_offset)
    rows = state.new_buffer()
    rows.add(record.values, record.size if state.typed else record.size + RECORD_OVERHEAD_BYTES)
    rows.timestamps_us.append(record.timestamp_us)
    batch = PendingBatch.of_rows(partition, sync, rows)
    batch.expected_offset = expected
    state.appender.add_batch(batch)
    return Appended(partition, batch.offset_of(0))


def append_record(
    state: TopicState, record: PreparedRecord, sync: bool | None, *, more: bool = False
) -> tuple[PendingBatch, int]:
    """Add a record to a batch; return the batch and its row there.

    Parameters
    ----------
    more
        Whether the caller adds others at once.
    """
    target, key = record.partition, record.partition_key
    if target is None:
        target = partition_of(key, state.partitions) if key else state.sticky
    size = record.size if state.typed else record.size + RECORD_OVERHEAD_BYTES
    batch, row = state.appender.add(target, record.values, record.timestamp_us, size, sync, more=more)
    if batch.size > state.block_bytes and record.partition is None and not key:
        state.sticky = (target + 1) % state.partitions
    return batch, row


def append_many(
    state: TopicState, records: Iterable[bytes | Mapping[str, Any] | Record]
) -> list[OffsetRange]:
    """Append records and wait for the answers; see `Topic.append_many`."""
    ranges: list[OffsetRange] = []
    with report_appended(ranges):
        for chunk in record_lists(records, _CHUNK_ROWS):
            plain = plain_records(state, chunk) if len(chunk) >= MANY_ROWS_MIN else None
            if plain is None:
                _append_checked(state, prepare_records(state, chunk), ranges)
            elif len(chunk) <= _PACKED_ROWS_MAX and plain.total_bytes <= PACKED_BYTES_MAX:
                _append_plain(state, plain, ranges)
            else:
                batch = plain_batch(plain.columns, state.schema)
                _append_columns(state, batch, None, None, None, ranges)
    return merge_ranges(ranges)


def _append_plain(state: TopicState, records: PlainRecords, ranges: list[OffsetRange]) -> None:
    """Append a few records by columns, a batch of packed rows for each partition."""
    keyless, batches = state.sticky, []
    for partition, share in shares_of(state, records, keyless):
        rows = state.new_buffer()
        rows.add_plain(share)
        rows.timestamps_us = share.timestamps_us(state.clock())
        batches.append(PendingBatch.of_rows(keyless if partition is None else partition, None, rows))
        state.appender.add_batch(batches[-1])
        if batches[-1].partition == keyless:
            state.sticky = (keyless + 1) % state.partitions
    _wait_for((batch.ranges for batch in batches), ranges)


def _append_checked(state: TopicState, records: Iterable[PreparedRecord], ranges: list[OffsetRange]) -> None:
    """Append checked records one by one."""
    batches: dict[PendingBatch, list[int]] = {}
    for record in records:
        batch, row = append_record(state, record, None, more=True)
        batches.setdefault(batch, []).append(row)
    _wait_for((partial(batch.ranges_at, rows) for batch, rows in batches.items()), ranges)


def append_batch(state: TopicState, data: Any, partition: int | None, sync: bool | None) -> list[OffsetRange]:
    """Append Arrow data and wait for the answers; see `Topic.append_batch`."""
    check_sync(sync)
    if partition is not None:
        partition = state.check_partition(partition)
    ranges: list[OffsetRange] = []
    with report_appended(ranges):
        for batch, timestamps in cast_batches(data, state.schema, state.record_bytes_max):
            if batch.num_rows:
                _append_columns(state, batch, timestamps, partition, sync, ranges)
    return merge_ranges(ranges)


def _append_columns(
    state: TopicState, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None, sync: bool | None,
    ranges: list[OffsetRange],
) -> None:  # fmt: skip
    body = body_of_rows(batch, timestamps)
    # All records are checked before the first batch is sent.
    check_records(body, state.record_bytes_max)
    name = state.key_column
    keys = batch.column(name) if name is not None else None
    some_keyed, some_keyless = key_presence(keys)
    parts: list[tuple[int | None, pa.RecordBatch]]
    if partition is not None or state.partitions == 1:
        parts = [(partition or 0, body)]
    elif not some_keyed:
        parts = [(None, body)]
    else:
        # All rows without a key go to one partition: the rows of a partition keep their order.
        parts = list(by_partition(body, keys, state.partitions, state.sticky))
        if some_keyless:
            state.sticky = (state.sticky + 1) % state.partitions
    batches = []
    for chosen, rows in parts:
        for piece in split_batch(rows, BATCH_BYTES_MAX, bytes_bound):
            if chosen is None:
                target = state.sticky
                state.sticky = (target + 1) % state.partitions
            else:
                target = chosen
            batches.append(PendingBatch.of_arrow(target, sync, piece))
            state.appender.add_batch(batches[-1])
    _wait_for((batch.ranges for batch in batches), ranges)


def _wait_for(waits: Iterable[Callable[[], Sequence[OffsetRange]]], ranges: list[OffsetRange]) -> None:
    """Wait for all batches of a call, and raise the first error: no flush raises those of the others again.

    `ranges` grows by the ranges of the batches that were appended.
    """
    failed: TieredError | None = None
    for wait in waits:
        try:
            ranges += wait()
        except TieredError as error:
            failed = failed or error
    if failed is not None:
        raise failed
