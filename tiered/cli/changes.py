"""``tiered delete``, ``delete-before``, ``add-columns``, ``add-partitions`` and ``roll``: changes of a topic, on its host."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.units import printable
from ..errors import ConfigError, OffsetOutOfRange
from ..reader.query import plain_partition
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..store.interface.topic import Topic
from ..warm.catalog import STORE_FILE
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    names_server,
    open_for_writing,
)
from .output import count, print_json, say
from .topics import read_schema

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")]


def delete(
    topic: TopicName,
    yes: Yes = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Delete a topic and its records in every tier, for good.

    The objects stay in the bucket for sweep.grace; until then tiered restore --at can bring the records back.
    """
    with open_on_host(config, path, cold) as store:
        handle = store.topic(topic)
        records = sum(ends.end - ends.start for ends in handle.offsets().values())
        confirm(f"delete topic {topic} with {count(records, 'record')} from {store.url}", yes)
        store.delete_topic(topic)
        _report(
            {"topic": topic, "deleted_records": records},
            store,
            f"deleted {count(records, 'record')}",
            as_json,
        )


def delete_before(
    topic: TopicName,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The first offset that stays.")],
    partition: Annotated[int, typer.Option(metavar="N", min=0, help="The partition.")] = 0,
    yes: Yes = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Delete the records of a partition before an offset, for good; later passes delete files and objects."""
    with open_on_host(config, path, cold) as store:
        handle = store.topic(topic)
        ends = _ends(handle, partition)
        if offset > ends.end:
            raise OffsetOutOfRange(
                f"offset {offset} is after the end of {topic}/{partition}, which is {ends.end}",
                start=ends.start,
                end=ends.end,
            )
        lost = max(0, offset - ends.start)
        if lost:
            confirm(f"delete {count(lost, 'record')} of {topic}/{partition} before offset {offset}", yes)
        handle.delete_before(offset, partition)
        facts = {
            "topic": topic,
            "partition": partition,
            "start": max(offset, ends.start),
            "deleted_records": lost,
        }
        _report(facts, store, f"deleted {count(lost, 'record')}; it begins at {facts['start']}", as_json)


def add_columns(
    topic: TopicName,
    schema: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help='The new columns: from a Parquet file, or from a JSON file such as {"gate": "string"}.',
        ),
    ],
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Add columns at the end of a typed topic; older records read them as null."""
    columns = read_schema(schema)
    with open_on_host(config, path, cold) as store:
        handle = store.topic(topic)
        handle.add_columns(columns)
        names = store.topic(topic).schema.names
        _report({"topic": topic, "columns": names}, store, f"columns are {', '.join(names)}", as_json)


def add_partitions(
    topic: TopicName,
    total: Annotated[int, typer.Argument(metavar="TOTAL", min=1, help="The new number of partitions.")],
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Raise the number of a topic's partitions; keys of later appends spread over all of them."""
    with open_on_host(config, path, cold) as store:
        store.topic(topic).add_partitions(total)
        partitions = store.topic(topic).partitions
        _report(
            {"topic": topic, "partitions": partitions},
            store,
            f"has {count(partitions, 'partition')}",
            as_json,
        )


def roll(
    topic: TopicName,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Seal the active segments of a topic that hold records, and begin new ones."""
    with open_on_host(config, path, cold) as store:
        store.topic(topic).roll()
        _report({"topic": topic, "rolled": True}, store, "is sealed up to its end", as_json)


@contextmanager
def open_on_host(config: Path | None, path: str | None, cold: str | None) -> Iterator[Store]:
    """Open an existing store as its writer, on its host."""
    settings = load_settings(config, path, cold)
    _check_local(settings)
    with open_for_writing(settings) as store:
        yield store


def _check_local(settings: Settings) -> None:
    path = settings.store.path
    if names_server(path) or "://" in path:
        raise ConfigError(
            f"{path} lies elsewhere: run this on the host of the store, with the path of its directory"
        )
    if not (Path(path) / STORE_FILE).exists():
        raise ConfigError(f"there is no store at {path}; check the path")


def _ends(topic: Topic, partition: int) -> Any:
    plain_partition(topic.meta, partition)
    return topic.offsets()[partition]


def confirm(what: str, yes: bool) -> None:
    """Ask on a terminal whether to do `what`, unless `yes`; raise `ConfigError` without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"to {what} needs --yes without a terminal; nothing was done")
    if not typer.confirm(printable(f"{what}?"), err=True):
        raise typer.Exit(1)


def _report(facts: dict[str, Any], store: Store, text: str, as_json: bool) -> None:
    if as_json:
        print_json({**facts, "store": store.url})
    else:
        say(f"topic {facts['topic']}: {text}")
