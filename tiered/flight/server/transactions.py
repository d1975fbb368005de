"""The server's side of transactions and snapshots. `client.remote_transaction` is the client's side.

======================  ============================================================================================
action                  arguments and answer
======================  ============================================================================================
``begin_transaction``   ``name`` or null; answer: ``session``, and ``log_end``, which no later decision lies before
``commit_transaction``  ``name``, ``session``; ``again_since``: the ``log_end`` if this is sent again; ``moves``: list
                        of ``consumer``, ``topic``, ``topic_id``, ``session``, ``offsets``, ``unmoved``, ``number``;
                        ``parts``: list of ``topic``, ``topic_id``, ``partition``, ``schema_id``, ``blocks``: the lengths of the Arrow
                        record batch messages that follow the arguments, one after the other; answer: ``ranges``, list
                        of topic, partition, start, end. A session that was committed before is not committed again.
``snapshot``            ``topics``: list of ``topic``, ``topic_id``; answer: ``ends``, by topic the list of offsets, and
                        ``lineages``, by topic the epochs of the lineages that have them
======================  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pyarrow as pa

from ...engine.open_topics import OpenTopic
from ...errors import ColdStorageError, CorruptionError, SchemaMismatch, TieredError
from ...format.ipc_message import read_batch
from ...format.schema import body_schema
from ...transactions.decision import Decision, Moves
from ...transactions.positions import check_not_own
from ...transactions.transaction_rows import TRANSACTION_BYTES_MAX, TransactionRows
from ..wire.positions import moves_from_json
from ..wire.topic_ref import resolve_topic
from ..wire.values import count, maybe, text
from .positions import check_positions
from .safe_batch import safe_batch

if TYPE_CHECKING:
    from ...store.local_store import LocalStore

Values = Mapping[str, Any]


def _begin(store: LocalStore, values: Values) -> dict[str, Any]:
    """Begin a transaction; with a name, earlier ones of that name are fenced."""
    name = maybe(text, values.get("name"))
    log = store.transactions
    session = uuid4().hex if name is None else log.begin_transaction(name)
    return {"session": session, "log_end": log.transactions_end()}


def _commit(store: LocalStore, values: Values) -> dict[str, Any]:
    """Commit a transaction, once; durable when it returns."""
    session, again_since = UUID(text(values["session"])).hex, maybe(count, values.get("again_since"))
    try:
        moves = tuple(_moves(store, item) for item in values["moves"])
        decision = Decision(maybe(text, values.get("name")), session, moves, again_since)
        rows = _rows(store, values["parts"], values.get("data", memoryview(b"")))
        ranges = store.commits.commit(decision, rows.encode())
    except ColdStorageError:
        raise
    except TieredError:
        # A commit that is sent again may have taken effect before a topic was deleted, or the log of its consumer taken back.
        outcome = None if again_since is None else store.commits.outcome(session, again_since)
        if outcome is None:
            raise
        ranges = outcome
    return {"ranges": [[topic, *found] for topic, found in ranges]}


def _moves(store: LocalStore, values: Values) -> Moves:
    topic = resolve_topic(store, text(values["topic"]), UUID(text(values["topic_id"])))
    moves = moves_from_json(text(values["consumer"]), topic.opened.meta, values)
    check_positions(topic, moves)
    return moves


def _rows(store: LocalStore, parts: list[Values], data: memoryview) -> TransactionRows[OpenTopic]:
    # The client keeps the limit; what it sends may count a little more here.
    rows: TransactionRows[OpenTopic] = TransactionRows(2 * TRANSACTION_BYTES_MAX)
    at = 0
    for part in parts:
        topic = _topic(store, part)
        check_not_own(topic.name)
        schema_id, partition = count(part["schema_id"]), count(part["partition"])
        if schema_id > topic.meta.schema_id:
            raise ValueError(f"topic {topic.name!r} has no schema {schema_id}")
        for length in part["blocks"]:
            block, at = data[at : at + count(length)], at + length
            rows.add_batch(topic, _batch(block, topic.meta.schemas[schema_id]), partition)
    if at != len(data):
        raise ValueError(f"{len(data)} bytes of rows, and {at} are announced")
    return rows


def _batch(block: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return safe_batch(read_batch(pa.py_buffer(block), body_schema(schema)))
    except CorruptionError as error:
        raise SchemaMismatch(f"the batch is damaged: {error}") from None


def _topic(store: LocalStore, values: Values) -> OpenTopic:
    return resolve_topic(store, text(values["topic"]), UUID(text(values["topic_id"]))).opened


def _snapshot(store: LocalStore, values: Values) -> dict[str, Any]:
    """Return the ends of several topics at one moment."""
    found = store.snapshot([_topic(store, item).name for item in values["topics"]])
    return {
        name: {topic: list(values.values()) for topic, values in by_topic.items()}
        for name, by_topic in (("ends", found.ends), ("lineages", found.lineages))
    }


TRANSACTION_ACTIONS = {"begin_transaction": _begin, "commit_transaction": _commit, "snapshot": _snapshot}
