"""``tiered consumers``."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..base.units import format_duration
from ..errors import ConfigError, TieredError
from ..format.timestamps import to_datetime
from ..store.interface.store import Store
from ..transactions.positions import Position
from .changes import Yes, confirm
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    load_settings,
    open_for_appending,
    open_to_look,
)
from .output import count, iso, print_json, print_table, say
from .read import EARLIEST, LATEST, parse_moment


class ConsumerTask(StrEnum):
    """What to do with consumers."""

    SHOW = "show"
    RESET = "reset"
    DELETE = "delete"


def consumers(
    task: Annotated[
        ConsumerTask,
        typer.Argument(
            metavar="[show|reset|delete]",
            help="show: positions and lag. reset: move the positions in a topic. delete: forget a consumer.",
        ),
    ] = ConsumerTask.SHOW,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The consumer.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Only its positions in this topic.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            help="reset: earliest, latest, an offset, or a time such as 2025-01-31T12:00:00Z.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="reset: only this partition. Default: all")
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show how far consumers have read, and how far they are behind; or move or forget their positions.

    A consumer that runs is fenced by reset and delete: its next commit fails.
    """
    settings = load_settings(config, path, cold)
    if task is ConsumerTask.SHOW:
        with open_to_look(settings) as store:
            _show(store, name, topic, as_json)
        return
    if name is None or (task is ConsumerTask.RESET and (topic is None or to is None)):
        raise ConfigError("write: consumers reset NAME TOPIC --to POSITION, or consumers delete NAME [TOPIC]")
    with open_for_appending(settings) as store:
        owned = _positions(store, name, topic)
        if task is ConsumerTask.RESET:
            assert topic is not None
            assert to is not None
            _reset(store, name, topic, partition, to, owned, yes, as_json)
        else:
            _delete(store, name, topic, owned, yes, as_json)


def _show(store: Store, name: str | None, topic: str | None, as_json: bool) -> None:
    rows = [_facts(store, position) for position in _positions(store, name, topic)]
    if as_json:
        print_json(rows)
    elif not rows:
        say("no consumer has a position")
    else:
        columns = (
            "consumer",
            "topic",
            ">partition",
            ">position",
            ">end",
            ">lag",
            ">behind",
            "last commit",
            "owner",
        )
        print_table(
            columns,
            [[_cell(row[column.removeprefix(">").replace(" ", "_")]) for column in columns] for row in rows],
        )


def _positions(store: Store, name: str | None, topic: str | None) -> list[Position]:
    return [
        position
        for position in store.consumers()
        if name in (None, position.consumer) and topic in (None, position.topic)
    ]


def _facts(store: Store, position: Position) -> dict[str, Any]:
    """Return a row: what is stored, and what the log has beyond it."""
    facts: dict[str, Any] = {
        "consumer": position.consumer,
        "topic": position.topic,
        "partition": position.partition,
        "position": position.offset,
        "end": None,
        "lag": None,
        "behind": None,
        "last_commit": None if position.committed_us is None else iso(to_datetime(position.committed_us)),
        "owner": position.note,
        "lost": "",
    }
    try:
        topic = store.topic(position.topic)
        (log,) = topic.durable_offsets([position.partition]).values()
        at = log.start if position.offset is None else position.offset
        facts |= {"end": log.end, "lag": max(0, log.end - at)}
        if log.start <= at <= log.end:
            # The next record may be later: others may have been erased.
            scan = topic.scan(position.partition, at, log.end, columns=["timestamp"])
            stamps = next((batch.column(0) for batch in scan.to_batches() if batch.num_rows), None)
            when = None if stamps is None else stamps[0].as_py()
            facts["behind"] = 0.0 if when is None else max(0.0, (datetime.now(UTC) - when).total_seconds())
    except TieredError as error:
        # The other consumers are shown all the same.
        facts["lost"] = str(error)
    return facts


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return format_duration(round(value) * 1_000_000, parts=2)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _reset(
    store: Store,
    name: str,
    topic: str,
    partition: int | None,
    to: str,
    owned: list[Position],
    yes: bool,
    as_json: bool,
) -> None:
    handle = store.topic(topic)
    target = _target(to)
    chosen = range(handle.partitions) if partition is None else [partition]
    confirm(f"move consumer {name} in {topic} to {to}{_owner(owned)}", yes)
    with handle.consumer(name, partitions=chosen, on_rewind="earliest") as consumer:
        consumer.seek(dict.fromkeys(consumer.partitions, target) if isinstance(target, int) else target)
        positions = consumer.position()
        consumer.commit(positions, sync=True)
    if as_json:
        print_json({"consumer": name, "topic": topic, "positions": positions, "store": store.url})
    else:
        say(f"consumer {name} in {topic}: {', '.join(f'{key} at {at:,}' for key, at in positions.items())}")


def _delete(
    store: Store, name: str, topic: str | None, owned: list[Position], yes: bool, as_json: bool
) -> None:
    if not owned:
        raise ConfigError(f"there is no consumer {name!r}{f' of topic {topic!r}' if topic else ''}")
    confirm(f"delete {count(len(owned), 'position')} of consumer {name}{_owner(owned)}", yes)
    deleted = store.delete_consumer(name, topic)
    if as_json:
        print_json({"consumer": name, "deleted_positions": deleted, "store": store.url})
    else:
        say(f"consumer {name}: deleted {count(deleted, 'position')}")


def _target(text: str) -> Any:
    if text in (EARLIEST, LATEST):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return parse_moment(text, "--to")
    except ConfigError:
        raise ConfigError(
            f"--to {text!r} is neither earliest, latest, an offset, a time such as 2025-01-31T12:00:00Z nor a duration such as 1h"
        ) from None


def _owner(owned: list[Position]) -> str:
    """Return the sessions that a change fences, for a question."""
    notes = sorted({item.note for item in owned if item.note})
    return f", which fences {', '.join(notes)}" if notes else ""
