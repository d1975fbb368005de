"""``tiered export``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..export.iceberg import export_iceberg
from ..opening import open_local_store, open_store
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..warm.bucket_binding import read_binding
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    names_server,
    open_for_reading,
)
from .output import count, print_json, say, spinner

Table = Annotated[
    str | None,
    typer.Option(
        "--iceberg",
        metavar="TABLE",
        help="Update this Iceberg table: namespace.name.",
        show_default=False,
    ),
]
CatalogName = Annotated[
    str,
    typer.Option("--catalog", metavar="NAME", help="Name of the catalog in the configuration of pyiceberg."),
]


def export(
    topic: TopicName,
    iceberg: Table = None,
    catalog: CatalogName = "default",
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """List the Parquet objects of a topic, or register them in an Iceberg table; copy nothing.

    Without --iceberg, the command prints one URL a line, for DuckDB, Polars, Spark and other readers. With --iceberg, the
    table names exactly these objects afterwards; run the command again to follow the topic.
    """
    with _bucket(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("reading manifests")
        if iceberg is not None:
            exported = export_iceberg(store.topic(topic), iceberg, catalog)
        else:
            scan = store.topic(topic).scan()
            objects = scan.objects()
    if iceberg is None:
        if as_json:
            print_json({"topic": topic, "objects": [asdict(entry) for entry in objects]})
        else:
            for entry in objects:
                say(entry.url)
        return
    if as_json:
        print_json(exported.to_json())
        return
    say(
        f"{exported.table} names {count(exported.objects, 'object')} with {count(exported.records, 'record')}: {exported.added:,} added, "
        f"{exported.removed:,} removed; metadata at {exported.metadata}"
    )


def _bucket(settings: Settings) -> Store:
    """Open the bucket of a store, by its URL or by the binding of a local store."""
    if names_server(settings.store.path):
        raise ConfigError(
            f"{settings.store.path} is a server; export on the host of its store, or with the URL of its bucket"
        )
    if "://" in settings.store.path:
        return open_for_reading(settings)
    with open_local_store(settings.store.path, settings=settings, read_only=True) as local:
        locations = local.tiers.locations
    if locations.cold_url is None:
        raise ConfigError(f"the store {settings.store.path} has no bucket, so there is nothing to export")
    endpoint = {"endpoint_url": locations.cold_options.endpoint_url, "region": locations.cold_options.region}
    cold = settings.cold.model_copy(
        update={name: text for name, text in endpoint.items() if text is not None}
    )
    try:
        return open_store(
            locations.cold_url, settings=settings.model_copy(update={"cold": cold}), read_only=True
        )
    except ConfigError as error:
        if read_binding(Path(settings.store.path)).claimed:
            raise
        raise ConfigError(
            f"{error}; {settings.store.path} has offloaded nothing yet, see tiered tier"
        ) from None
