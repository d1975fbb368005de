"""The rows of one ticket, the answer of ``do_get``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.same_lineage import check_lineage, of_lineage
from ...errors import OffsetOutOfRange, SchemaMismatch
from ...format.schema import row_schema
from ...reader.filters import check_predicate
from ...reader.query import query_of
from ...reader.read import read_splits
from ...reader.rows import coalesce, limit_rows
from ...reader.snapshot import snapshot_partition
from ..wire.messages import Ticket

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic


def ticket_schema(topic: LocalTopic, ticket: Ticket) -> pa.Schema:
    """Return the schema of the rows.

    Raises
    ------
    SchemaMismatch, TopicNotFound, ConfigError
    """
    topic.opened.check_partition(ticket.partition)
    known = query_of(topic.opened.meta, None, None, ticket.key, None).key_column
    if ticket.key_column != known:
        raise SchemaMismatch(f"the key of topic {ticket.topic!r} is {known!r}, not {ticket.key_column!r}")
    if ticket.filter is not None:
        check_predicate(topic.schema, ticket.filter)
    return row_schema(topic.schema, list(ticket.columns))


def ticket_rows(
    store: LocalStore, topic: LocalTopic, ticket: Ticket, check: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, from the tier in which they are now.

    They were durable when the ticket was made, so nothing is flushed.

    Raises
    ------
    OffsetOutOfRange
        Retention removed the records, or the log was restored to an earlier time: it ends before the ticket, or is of
        another lineage than the ticket names.
    CorruptionError, ColdStorageError, StoreClosed
    """
    snapshot = snapshot_partition(
        store.context.tiers,
        topic.opened.meta,
        ticket.partition,
        view=topic.opened.view(ticket.partition, flush=False),
        start_offset=ticket.start_offset,
        end_offset=ticket.end_offset,
    )
    if ticket.end_offset > snapshot.end_offset:
        raise OffsetOutOfRange(
            f"offset {ticket.end_offset} of topic {ticket.topic!r} partition {ticket.partition} is not there; the "
            f"log has {snapshot.start_offset} to {snapshot.end_offset}",
            start=snapshot.start_offset,
            end=snapshot.end_offset,
        )
    lineage = _lineage_of(topic, ticket)
    check_lineage(topic.opened, snapshot, lineage)
    rows = read_splits(
        store.context.tiers,
        topic.opened.meta,
        snapshot.splits,
        ticket.query,
        check=check,
        eager=ticket.limit is None,
    )
    yield from of_lineage(topic.opened, snapshot, lineage, coalesce(limit_rows(rows, ticket.limit)))


def _lineage_of(topic: LocalTopic, ticket: Ticket) -> int | None:
    """Return the lineage that has the records of a ticket: that of the log, or an earlier one that it does not descend from."""
    if ticket.lineage is None:
        return None
    (now,) = topic.lineages_of([ticket.partition]).values()
    return now if ticket.end_offset <= topic.common_end(ticket.partition, ticket.lineage) else ticket.lineage
