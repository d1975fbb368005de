"""The actions of the server: short queries and changes, each a function of the store and its arguments.

The names are the types of Flight actions; arguments and answers are JSON objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...engine.read import snapshot_beyond
from ...engine.same_lineage import check_lineage
from ...errors import ConfigError
from ...reader.query import check_sync
from ...store.local_producer import open_producer
from ...transactions.positions import check_not_own
from ..wire import packed_rows
from ..wire.directory_id import directory_id
from ..wire.positions import moves_from_json, positions_to_json
from ..wire.topic_ref import resolve_topic
from ..wire.values import MALFORMED, count, decode_schema, maybe, positive, text, whole
from .append import incarnation_of
from .plan import moment
from .positions import check_positions

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic

Values = Mapping[str, Any]
Action = Callable[["LocalStore", Values], dict[str, Any]]

_WAIT_SECONDS_MAX = 2.0
_NOTE_CHARS_MAX = 200


def _server(store: LocalStore, _: Values) -> dict[str, Any]:
    """Return the facts that a client needs: ids, the sync mode, the limits of appends, and the version of packed rows."""
    options, root = store.context.settings.store, store.context.tiers.locations.root
    return {
        "store_id": str(store.store_id),
        "directory_id": None if root is None else directory_id(root),
        "incarnation": incarnation_of(store),
        "sync": options.sync,
        "max_record_bytes": options.max_record_bytes,
        "block_bytes": options.block_bytes,
        "read_only": store.writer_lock is None,
        "durable_on_scan": options.sync != "never",
        "packed_rows": packed_rows.VERSION,
    }


def _topics(store: LocalStore, _: Values) -> dict[str, Any]:
    return {"topics": store.topics()}


def _describe(store: LocalStore, values: Values) -> dict[str, Any]:
    return _described(_topic(store, values))


def _create_topic(store: LocalStore, values: Values) -> dict[str, Any]:
    schema = maybe(text, values.get("schema"))
    exist_ok = values.get("exist_ok", False)
    if not isinstance(exist_ok, bool):
        raise ConfigError("exist_ok is true or false")
    topic = store.create_topic(
        text(values["topic"]),
        partitions=whole(values.get("partitions", 1)),
        schema=None if schema is None else decode_schema(schema),
        timestamp=maybe(text, values.get("timestamp")),
        key=maybe(text, values.get("key")),
        exist_ok=exist_ok,
    )
    return _described(topic)


def _delete_topic(store: LocalStore, values: Values) -> dict[str, Any]:
    store.delete_topic(text(values["topic"]))
    return {}


def _add_columns(store: LocalStore, values: Values) -> dict[str, Any]:
    topic = _topic(store, values)
    topic.add_columns(decode_schema(text(values["schema"])))
    return _described(topic)


def _add_partitions(store: LocalStore, values: Values) -> dict[str, Any]:
    topic = _topic(store, values)
    topic.add_partitions(positive(values["total"]))
    return _described(topic)


def _flush(store: LocalStore, values: Values) -> dict[str, Any]:
    (store if values.get("topic") is None else _topic(store, values)).flush()
    return {"incarnation": incarnation_of(store)}


def _publish(store: LocalStore, values: Values) -> dict[str, Any]:
    """Publish all durable records of a topic."""
    _topic(store, values).publish()
    return {}


def _roll(store: LocalStore, values: Values) -> dict[str, Any]:
    _topic(store, values).roll()
    return {}


def _offsets(store: LocalStore, values: Values) -> dict[str, Any]:
    topic = _topic(store, values)
    found = {str(partition): [item.start, item.end] for partition, item in topic.offsets().items()}
    return {"offsets": found, **_lineages(store, values), **_size(topic)}


def _common_end(store: LocalStore, values: Values) -> dict[str, Any]:
    """Return the offset below which a partition's log is that of a lineage."""
    topic, partition = _topic(store, values), count(values["partition"])
    topic.opened.check_partition(partition)
    return {"offset": topic.common_end(partition, whole(values["lineage"]))}


def _offset_at(store: LocalStore, values: Values) -> dict[str, Any]:
    at = moment(whole(values["timestamp_us"]))
    return {"offset": _topic(store, values).offset_at(at, count(values.get("partition", 0)))}


def _table(store: LocalStore, values: Values) -> dict[str, Any]:
    return _topic(store, values).table().to_json()


def _delete_before(store: LocalStore, values: Values) -> dict[str, Any]:
    _topic(store, values).delete_before(values["offset"], count(values.get("partition", 0)))
    return {}


def _wait(store: LocalStore, values: Values) -> dict[str, Any]:
    """Wait at most 2 s until a partition has durable records from an offset on; return its offsets. Nothing is flushed.

    With a ``lineage``, a log of another one is an `OffsetOutOfRange`.
    """
    topic, partition = _topic(store, values), count(values["partition"])
    topic.opened.check_partition(partition)
    seconds = values.get("seconds", 0.0)
    writer = topic.opened.writers.get(partition)
    if writer is not None and isinstance(seconds, int | float) and seconds > 0:
        writer.wait_beyond(whole(values["offset"]), min(float(seconds), _WAIT_SECONDS_MAX))
    snapshot = snapshot_beyond(topic.opened, partition, None, 0)
    check_lineage(topic.opened, snapshot, maybe(whole, values.get("lineage")))
    waits = writer is not None and writer.fault is None
    return {"start": snapshot.start_offset, "end": snapshot.end_offset, "waits": waits, **_size(topic)}


def _wait_any(store: LocalStore, values: Values) -> dict[str, Any]:
    """Wait at most 2 s until one of some partitions has durable records from its offset on."""
    topic, seconds = _topic(store, values), values["seconds"]
    if not isinstance(seconds, int | float):
        raise ConfigError("seconds is a number")
    ends = {int(key): count(offset) for key, offset in values["offsets"].items()}
    topic.wait_durable(ends, max(0.0, min(float(seconds), _WAIT_SECONDS_MAX)), threading.Event())
    return _size(topic)


def _lineages(store: LocalStore, values: Values) -> dict[str, Any]:
    topic = _topic(store, values)
    return {"lineages": {str(partition): epoch for partition, epoch in (topic.lineages() or {}).items()}}


def _consumer_positions(store: LocalStore, values: Values) -> dict[str, Any]:
    found = store.transactions.positions(text(values["consumer"]), _topic(store, values).name)
    return {"positions": positions_to_json(found.values())}


def _begin_consumer(store: LocalStore, values: Values) -> dict[str, Any]:
    topic = _topic(store, values)
    partitions = [topic.opened.check_partition(count(item)) for item in values["partitions"]]
    note = maybe(text, values.get("note"))
    session, found = store.transactions.begin_session(
        text(values["consumer"]), topic.meta, partitions, None if note is None else note[:_NOTE_CHARS_MAX]
    )
    return {"session": session, "positions": positions_to_json(found.values())}


def _commit_consumer(store: LocalStore, values: Values) -> dict[str, Any]:
    topic, sync = _topic(store, values), values.get("sync")
    check_sync(sync)
    moves = moves_from_json(text(values["consumer"]), topic.meta, values)
    check_positions(topic, moves)
    store.transactions.commit(moves, sync)
    return {}


def _consumers(store: LocalStore, _: Values) -> dict[str, Any]:
    return {"positions": positions_to_json(store.consumers())}


def _delete_consumer(store: LocalStore, values: Values) -> dict[str, Any]:
    return {"deleted": store.delete_consumer(text(values["consumer"]), maybe(text, values.get("topic")))}


def _status(store: LocalStore, _: Values) -> dict[str, Any]:
    return store.status().to_json()


def _producer(store: LocalStore, values: Values) -> dict[str, Any]:
    """Begin a session of an idempotent producer."""
    check_not_own(text(values["topic"]))
    found = open_producer(_topic(store, values).opened, text(values["id"]))
    return {"epoch": found.epoch, "next_sequence": found.sequence.number, "partitions": found.partitions}


ACTIONS: dict[str, Action] = {
    "server": _server,
    "topics": _topics,
    "describe_topic": _describe,
    "create_topic": _create_topic,
    "delete_topic": _delete_topic,
    "add_columns": _add_columns,
    "add_partitions": _add_partitions,
    "flush": _flush,
    "publish": _publish,
    "roll": _roll,
    "offsets": _offsets,
    "common_end": _common_end,
    "offset_at": _offset_at,
    "table": _table,
    "delete_before": _delete_before,
    "wait": _wait,
    "status": _status,
    "producer": _producer,
    "wait_any": _wait_any,
    "lineages": _lineages,
    "consumer_positions": _consumer_positions,
    "begin_consumer": _begin_consumer,
    "commit_consumer": _commit_consumer,
    "consumers": _consumers,
    "delete_consumer": _delete_consumer,
}
"""The server adds those of transactions and of staging."""


def run_action(actions: Mapping[str, Action], store: LocalStore, name: str, values: Values) -> dict[str, Any]:
    """Carry out one action.

    Raises
    ------
    ConfigError
        There is no action of that name, or its arguments do not fit.
    """
    action = actions.get(name)
    if action is None:
        raise ConfigError(f"this server has no action {name!r}; it has {', '.join(sorted(actions))}")
    try:
        return action(store, values)
    except MALFORMED as error:
        raise ConfigError(f"the arguments of action {name!r} do not fit: {error!r}") from None


def _topic(store: LocalStore, values: Values) -> LocalTopic:
    found = maybe(text, values.get("topic_id"))
    return resolve_topic(store, text(values["topic"]), None if found is None else UUID(found))


def _size(topic: LocalTopic) -> dict[str, Any]:
    """Return the facts by which a client notices that the topic grew."""
    return {"partitions": topic.partitions, "schema_id": topic.opened.meta.schema_id}


def _described(topic: LocalTopic) -> dict[str, Any]:
    return {"topic": topic.opened.meta.to_json()}
