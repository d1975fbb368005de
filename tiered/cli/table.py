"""``tiered table``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..base.units import format_duration
from ..errors import ColdStorageError, ConfigError, TieredError, may_be_away
from ..store.interface.store import Store
from ..table.table_info import NoTable, TableInfo
from ..table.table_sql import Bucket, Engine, statement
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    complete_topic,
    load_settings,
    open_for_tiering,
    open_to_look,
)
from .output import count, error_line, moment, print_facts, print_json, print_table, say


def table(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Only this topic.", show_default=False, autocompletion=complete_topic
        ),
    ] = None,
    sql: Annotated[
        Engine | None,
        typer.Option("--sql", help="Print the statements that query the table in this engine."),
    ] = None,
    take: Annotated[
        bool,
        typer.Option(
            "--take",
            help="Go on from the log after another program committed to the table, in a copied bucket, or after damage of the "
            "table's files: the next version has the log's rows and columns, and none of the other program's changes.",
        ),
    ] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show the live Iceberg tables of topics: where they are, what they have, and how far they are behind the log.

    The exit code is 1 if a table cannot be read.
    """
    settings = load_settings(config, path, cold)
    if topic is None and (sql is not None or take):
        raise ConfigError("--sql and --take need a TOPIC")
    if take:
        assert topic is not None
        with open_for_tiering(settings) as store:
            done = store.tierer.tables.publish(store.topic(topic).meta, take=True)
        if done is None:
            raise ConfigError(f"topic {topic} has nothing in the bucket yet")
        if not as_json:
            made = "was made of the log" if done.changed else "already has the log"
            say(f"version {done.version} of the table {made}: {count(done.records, 'row')}")
    with open_to_look(settings) as opened:
        if topic is None:
            failed = _show_all(opened, as_json)
        else:
            _show(opened, opened.topic(topic).table(), sql, as_json)
            failed = None
    if failed is not None:
        error_line(failed)
        raise typer.Exit(1)


def _show(store: Store, info: TableInfo, sql: Engine | None, as_json: bool) -> None:
    if sql is not None:
        tiers = store.tiers
        options = tiers.locations.cold_options if tiers is not None else None
        bucket = Bucket(options.endpoint_url, options.region) if options else Bucket()
        text = statement(sql, info, bucket)
        if as_json:
            print_json({"topic": info.topic, "engine": sql, "sql": text})
        else:
            say(text)
    elif as_json:
        print_json(info.to_json())
    else:
        print_facts(
            {
                "location": info.location,
                "metadata": info.metadata,
                "version": info.version,
                "snapshot": None if info.snapshot_id is None else str(info.snapshot_id),
                "published_us": info.published_us,
                "rows": info.records,
                "objects": info.objects,
                "lag": _lag(info),
            }
        )


def _show_all(store: Store, as_json: bool) -> TieredError | None:
    """Show the tables of all topics that have one; return the first error."""
    infos: list[TableInfo] = []
    errors: dict[str, TieredError] = {}
    away: ColdStorageError | None = None
    for name in store.topics():
        if away is not None:
            errors[name] = away
            continue
        try:
            infos.append(store.topic(name).table())
        except NoTable:
            continue
        except TieredError as error:
            errors[name] = error
            if may_be_away(error):
                away = error
    if as_json:
        problems = [{"topic": name, "problem": str(error)} for name, error in errors.items()]
        print_json([*(info.to_json() for info in infos), *problems])
    elif not infos and not errors:
        say("no topic has a table")
    else:
        rows = [
            (
                info.topic,
                f"{info.version:,}",
                f"{info.records:,}",
                "-" if info.published_us is None else moment(info.published_us),
                _lag(info),
                info.location,
            )
            for info in infos
        ]
        rows += [(name, "-", "-", "-", "unknown", str(error)) for name, error in errors.items()]
        print_table(("topic", ">version", ">rows", "published", ">lag", "location"), rows)
    return next(iter(errors.values()), None)


def _lag(info: TableInfo) -> str:
    if not info.lag_records:
        return "-"
    return f"{count(info.lag_records, 'record')}, {format_duration(int(info.lag_seconds * 1e6), parts=1)}"
