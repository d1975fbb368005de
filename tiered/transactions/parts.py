"""The parts of a transaction: the rows of one partition each, as the transaction log holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from ..engine.context import Place
from ..engine.ingest import add_null_columns
from ..errors import CorruptionError
from ..format.block import Body
from ..format.ipc_message import read_batch
from ..format.producers import producer_number
from ..format.schema import body_schema
from ..format.topic_meta import TopicMeta

TRANSACTIONS_PRODUCER = producer_number("tiered:transactions")
"""The producer whose numbers the rows of all transactions have: in each partition 0, 1, 2 and so on, without a gap."""

PARTS_COLUMNS = pa.schema(
    [
        (
            "parts",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("topic_id", pa.string()),
                        ("partition", pa.int32()),
                        ("schema_id", pa.int32()),
                        ("first_offset", pa.int64()),
                        ("first_number", pa.int64()),
                        ("rows", pa.int64()),
                        ("blocks", pa.int32()),
                        ("bytes", pa.int64()),
                    ]
                )
            ),
        ),
        ("data", pa.list_(pa.binary())),
        ("applied", pa.int64()),
    ]
)
"""The columns of the transaction log that the first transaction of a store adds.

``data`` has the blocks of all parts, in their order: Arrow record batch messages without their schemas. All transactions at
offsets below ``applied`` are durable in their partitions.
"""


class Part(NamedTuple):
    """The rows of a transaction in one partition.

    Attributes
    ----------
    schema_id
        The schema of the rows.
    first_offset
        The offset of the first row. A recovery may append the rows elsewhere; then `TransactionTable.move` corrects it.
    first_number
        The number of the first row (`TRANSACTIONS_PRODUCER`).
    blocks, bytes
        How many entries of ``data`` are of this part, and their bytes.
    """

    topic: str
    topic_id: UUID
    partition: int
    schema_id: int
    first_offset: int
    first_number: int
    rows: int
    blocks: int
    bytes: int

    @property
    def place(self) -> Place:
        """Where the rows are."""
        return self.topic_id, self.partition

    @property
    def end_offset(self) -> int:
        """The offset after the last row."""
        return self.first_offset + self.rows

    def missing_rows(self, last_number: int) -> int:
        """Return how many of the last rows a partition lacks if its last row of a transaction has this number."""
        end = self.first_number + self.rows
        return max(0, end - max(self.first_number, last_number + 1))

    def is_deleted(self, missing: int, end_offset: int) -> bool:
        """Whether a partition that lacks `missing` rows and ends at `end_offset` had them: a restore found no object of them."""
        return missing == self.rows and self.end_offset <= end_offset

    def to_row(self) -> tuple[Any, ...]:
        """Return the entry of the column ``parts``: Arrow takes a tuple in a third of the time of a dict."""
        return (self.topic, str(self.topic_id), *self[2:])

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Part:
        """Return the part of an entry.

        Raises
        ------
        KeyError, TypeError, ValueError
            The entry is no part.
        """
        part = cls(**{**row, "topic_id": UUID(row["topic_id"])})
        if min(part[2:]) < 0:
            raise ValueError("a number below 0")
        return part


def block_data(body: Body) -> bytes:
    """Return the entry of ``data`` of an uncompressed block."""
    return bytes(body.parts[1])


def part_batches(
    meta: TopicMeta, parts: Sequence[Part], data: Sequence[bytes], at: int
) -> list[pa.RecordBatch]:
    """Return the rows of ``parts[at]`` as body batches in the newest schema of the topic.

    Raises
    ------
    CorruptionError
    """
    part, first = parts[at], sum(part.blocks for part in parts[:at])
    if part.schema_id > meta.schema_id or first + part.blocks > len(data):
        raise CorruptionError("a part of a transaction names a schema or rows that are not there")
    schema = body_schema(meta.schemas[part.schema_id])
    batches = [read_batch(pa.py_buffer(item), schema) for item in data[first : first + part.blocks]]
    if sum(batch.num_rows for batch in batches) != part.rows:
        raise CorruptionError(f"a part of a transaction does not have {part.rows} rows")
    if part.schema_id < meta.schema_id:
        batches = [add_null_columns(batch, meta.schema) for batch in batches]
    return batches


def parts_in(rows: Iterable[Mapping[str, Any] | Part] | None) -> Iterator[Part]:
    """Yield the parts of a value of the column ``parts``, as it was read, or as it will be written."""
    return (row if isinstance(row, Part) else Part.from_row(row) for row in rows or ())
