"""Rows of transactions on their way into partitions: their offsets, their numbers, and their schema."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from ..engine.context import Place
from ..engine.ingest import add_null_columns
from ..engine.open_topics import OpenTopic
from ..engine.records import OffsetRange
from ..errors import TieredError
from ..format.block import Body, Numbers
from ..format.block_rows import encode_blocks
from ..format.ipc_message import read_batch
from ..format.schema import body_schema
from ..format.topic_meta import TopicMeta
from ..hot.held_partition import HeldPartition
from .decision import Decision, Placed
from .outcomes import Ranges
from .parts import TRANSACTIONS_PRODUCER, Part, block_data
from .transaction_rows import EncodedPart

# More than the rows of all transactions that are committed together.
_ALONE = 1 << 62


class PendingCommit:
    """A transaction that waits for its commit."""

    def __init__(self, decision: Decision, parts: Sequence[EncodedPart[OpenTopic]]) -> None:
        self.decision = decision
        self.parts = {(part.topic.meta.topic_id, part.partition): part for part in parts}
        self.length = sum(part.length for part in parts) if decision.batch is None else _ALONE
        self.ranges: Ranges = []
        self.log_end = 0
        self.error: TieredError | None = None
        # A lock instead of a future, whose condition takes a fifth of the time of a small commit.
        self._pending = threading.Lock()
        self._pending.acquire()

    def end(self) -> None:
        """Wake the caller of `wait`; called once."""
        self._pending.release()

    def wait(self) -> Ranges:
        """Return the ranges of the rows, or raise the error, once the commit has ended."""
        with self._pending:
            if self.error is not None:
                raise self.error
            return self.ranges


class Placing:
    """Gives the rows of transactions their offsets and numbers, in the order in which they are decided.

    Attributes
    ----------
    rows
        By partition, the blocks to append and their numbers.
    """

    def __init__(self, group: Sequence[PendingCommit], held: dict[Place, HeldPartition]) -> None:
        self._group = group
        self._offsets = {place: partition.end_offset for place, partition in held.items()}
        self._numbers = {
            place: partition.last_sequence(TRANSACTIONS_PRODUCER) + 1 for place, partition in held.items()
        }
        self.rows: dict[Place, tuple[list[Body], list[Numbers]]] = {place: ([], []) for place in held}

    def topic(self, place: Place) -> OpenTopic:
        """Return the topic of a partition."""
        return next(commit.parts[place].topic for commit in self._group if place in commit.parts)

    def place(self, at: int) -> Placed:
        """Return the parts of a transaction, and their blocks."""
        commit = self._group[at]
        parts: list[Part] = []
        data = []
        for place, encoded in commit.parts.items():
            meta, offset, number = encoded.topic.meta, self._offsets[place], self._numbers[place]
            blocks = [block_data(body) for body in encoded.bodies]
            parts.append(
                Part(
                    meta.name, meta.topic_id, encoded.partition, encoded.schema_id, offset, number, encoded.rows,
                    len(blocks), sum(map(len, blocks)),
                )
            )  # fmt: skip
            data += blocks
            self._offsets[place], self._numbers[place] = offset + encoded.rows, number + encoded.rows
            bodies, numbers = self.rows[place]
            bodies += encoded.bodies
            numbers += numbers_of(encoded.bodies, number)
            commit.ranges.append((meta.name, OffsetRange(encoded.partition, offset, offset + encoded.rows)))
        return parts, data


def last_rows(batches: Sequence[pa.RecordBatch], count: int) -> list[Body]:
    """Return the last rows of batches as blocks."""
    bodies: list[Body] = []
    skip = sum(batch.num_rows for batch in batches) - count
    for batch in batches:
        if batch.num_rows > skip:
            bodies += encode_blocks(batch.slice(skip))
        skip = max(0, skip - batch.num_rows)
    return bodies


def numbers_of(bodies: Sequence[Body], first: int) -> list[Numbers]:
    """Return the numbers of blocks whose first row has the number `first`."""
    numbers = []
    for body in bodies:
        last = first + body.record_count - 1
        numbers.append(Numbers(TRANSACTIONS_PRODUCER, 0, first, last))
        first = last + 1
    return numbers


def in_schema(part: EncodedPart[OpenTopic], meta: TopicMeta) -> EncodedPart[OpenTopic]:
    """Return the rows in the schema of the active segment, which may have grown since they were encoded."""
    if part.schema_id >= meta.schema_id:
        return part
    if not part.bodies:  # staged: each record of the rows has its schema
        return part._replace(schema_id=meta.schema_id)
    schema = body_schema(meta.schemas[part.schema_id])
    batches = [add_null_columns(read_batch(body.parts[1], schema), meta.schema) for body in part.bodies]
    bodies = [body for batch in batches for body in encode_blocks(batch)]
    length = sum(body.length for body in bodies)
    return part._replace(schema_id=meta.schema_id, bodies=bodies, length=length)
