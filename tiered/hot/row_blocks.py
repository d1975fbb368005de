"""Blocks encoded from pending rows and from the batches of an idempotent producer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..format.block import RAW_BYTES_MAX, Body, Numbers
from ..format.block_rows import encode_blocks, split_batch
from ..format.producers import SPAN_MAX
from .row_buffer import Number, RecordBuffer, RowBuffer

NumberedBody = tuple[Body, Numbers]


def encode_rows(
    buffer: RecordBuffer | RowBuffer, schema: pa.Schema, block_bytes: int
) -> Iterator[tuple[Body, Sequence[Numbers]]]:
    """Yield the blocks of buffered rows, each with its producer numbers, or none.

    Each block is encoded when the caller asks for it, so only one is in memory.

    Parameters
    ----------
    schema
        Schema of a block body: the timestamp, then the topic's columns.
    block_bytes
        About the size of a block before compression.
    """
    if isinstance(buffer, RecordBuffer) and buffer.is_single:
        yield buffer.to_single(), [Numbers(*number, number[2]) for number in buffer.numbers.values()]
        return
    if buffer.numbers:
        yield from _encode_numbered(buffer, schema, block_bytes)
        return
    batch = buffer.to_batch(schema)
    fits = buffer.bytes <= min(2 * block_bytes, RAW_BYTES_MAX // 2)
    for rows in [batch] if fits else split_batch(batch, block_bytes):
        for body in encode_blocks(rows, owned=fits):
            yield body, ()


def _encode_numbered(
    buffer: RecordBuffer | RowBuffer, schema: pa.Schema, block_bytes: int
) -> Iterator[tuple[Body, Sequence[Numbers]]]:
    """Yield blocks whose rows belong to one producer and epoch, or to no producer."""
    batch, numbers = buffer.to_batch(schema), buffer.numbers
    for start, end, numbered in stretches(numbers, batch.num_rows):
        row = start
        batches = split_batch(batch.slice(start, end - start), block_bytes)
        for body in (body for rows in batches for body in encode_blocks(rows)):
            last = row + body.record_count - 1
            yield body, [Numbers(*numbers[row], numbers[last][2])] if numbered else ()
            row = last + 1


def stretches(numbers: Mapping[int, Number], row_count: int) -> Iterator[tuple[int, int, bool]]:
    """Cut rows into stretches ``(start, end, numbered)``, each of one producer and epoch, or of no producer.

    Parameters
    ----------
    numbers
        Producer numbers by row, in the order of the rows and so of each producer's sequences.
    """
    start = end = 0
    first: Number | None = None
    for row, number in numbers.items():
        fits = (
            first is not None and row == end and number[:2] == first[:2] and number[2] - first[2] <= SPAN_MAX
        )
        if not fits:
            if first is not None:
                yield start, end, True
            if row > end:
                yield end, row, False
            start, first = row, number
        end = row + 1
    if first is not None:
        yield start, end, True
    if end < row_count:
        yield end, row_count, False


def producer_runs(
    producer_id: int,
    epoch: int,
    after: int,
    batches: Sequence[pa.RecordBatch],
    sequences: Sequence[np.ndarray[Any, Any]],
    bytes_max: int,
) -> Iterator[list[NumberedBody]]:
    """Yield the blocks of a producer's rows with sequences above `after`, in runs that are each one write.

    Parameters
    ----------
    sequences
        Sequences of the rows of each batch: int64, rising.
    bytes_max
        Size limit of a run; a run of one block may be larger.
    """
    run: list[NumberedBody] = []
    length = 0
    for batch, numbers in zip(batches, sequences, strict=True):
        row = int(np.searchsorted(numbers, after, side="right"))
        for body in encode_blocks(batch.slice(row)) if row < len(numbers) else ():
            if run and length + body.length > bytes_max:
                yield run
                run, length = [], 0
            end = row + body.record_count
            run.append((body, Numbers(producer_id, epoch, int(numbers[row]), int(numbers[end - 1]))))
            row, length = end, length + body.length
    if run:
        yield run
