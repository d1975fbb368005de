"""``tiered create`` and ``tiered topics``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from ..errors import ConfigError, CorruptionError, TopicExists, UnsupportedFormat
from ..format.schema import TIMESTAMP, check_topic_name
from ..format.topic_meta import check_partitions, topic_schema
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    open_for_appending,
    open_to_look,
)
from .output import count, error_line, print_json, print_table, say

_PARQUET_MAGIC = b"PAR1"
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_ALIASES = {"timestamp": TIMESTAMP, "date": pa.date32()}


def create(
    topic: TopicName,
    partitions: Annotated[int, typer.Option(metavar="N", help="Number of partitions.")] = 1,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Columns of a typed topic, from a Parquet file, or from JSON in a file or pipe such as "
            '{"carrier": "string", "departure": "timestamp", "delay": "int16"}. Default: key, value, headers.',
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column with the record timestamp. Default: the time of the append."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that chooses the partition.")
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Accept an existing topic.")] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Create a topic, and the store if there is none."""
    # First, so that invalid arguments create no store.
    check_topic_name(topic)
    check_partitions(partitions)
    if schema is None and (timestamp or key):
        raise ConfigError("--timestamp and --key name columns of a typed topic: give --schema too")
    columns = None if schema is None else read_schema(schema)
    topic_schema(columns, timestamp, key)
    settings = load_settings(config, path, cold)
    with open_for_appending(settings) as store:
        try:
            created = store.create_topic(
                topic, partitions=partitions, schema=columns, timestamp=timestamp, key=key, exist_ok=exist_ok
            )
        except TopicExists:
            if exist_ok:
                raise
            raise TopicExists(f"topic {topic!r} exists; write --exist-ok to accept it") from None
        if as_json:
            print_json({"topic": created.name, "partitions": created.partitions, "store": store.url})
        else:
            say(f"topic {created.name} with {count(created.partitions, 'partition')} in {store.url}")


def topics(
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """List the topics."""
    metas, errors = [], []
    with open_to_look(load_settings(config, path, cold)) as store:
        for name in store.topics():
            try:
                metas.append(store.topic(name).meta)
            except (CorruptionError, UnsupportedFormat) as error:
                errors.append(error)
    if as_json:
        print_json(
            [
                {
                    "topic": meta.name,
                    "id": str(meta.topic_id),
                    "partitions": meta.partitions,
                    "timestamp": meta.timestamp,
                    "key": meta.key,
                    "columns": {field.name: str(field.type) for field in meta.schema},
                }
                for meta in metas
            ]
        )
    else:
        rows = [
            (
                meta.name,
                str(meta.partitions),
                "typed" if meta.typed else "records",
                meta.timestamp or "-",
                meta.key or "-",
                ", ".join(meta.schema.names),
            )
            for meta in metas
        ]
        print_table(("topic", ">partitions", "kind", "timestamp", "key", "columns"), rows)
    for problem in errors:
        error_line(problem)
    if errors:
        raise typer.Exit(1)


def read_schema(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file, or of JSON with names and types.

    The content of a pipe, and of a file whose name ends in ``.json``, is JSON.

    Raises
    ------
    ConfigError
        The file is neither.
    OSError
    """
    if path.suffix == ".json" or path.is_fifo():
        return _schema_from_json(path)
    try:
        with path.open("rb") as file:
            return pq.read_schema(file)
    except pa.ArrowException as error:
        raise ConfigError(
            f"{path} is not a Parquet file ({error}); a schema in JSON goes into a file that ends in .json"
        ) from None


def _schema_from_json(path: Path) -> pa.Schema:
    text = path.read_bytes()
    if text.startswith(_PARQUET_MAGIC):
        raise ConfigError("Parquet is read from its end, which a pipe does not have; name a file")

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            duplicate = next(name for name in values if names.count(name) > 1)
            raise ConfigError(f"{path}: column {duplicate!r} appears twice")
        return values

    try:
        columns = json.loads(text, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(columns, dict):
        raise ConfigError(f'{path} holds no schema; write {{"column": "type", ...}}')
    return pa.schema([(name, _type_from_name(path, name, kind)) for name, kind in columns.items()])


def _type_from_name(path: Path, name: str, kind: object) -> pa.DataType:
    if isinstance(kind, str):
        try:
            if match := _DECIMAL.fullmatch(kind):
                return pa.decimal128(int(match[1]), int(match[2]))
            return _ALIASES.get(kind) or pa.type_for_alias(kind)
        except ValueError:
            pass
    raise ConfigError(
        f"{path}: column {name!r} has the unknown type {kind!r}; write one such as string, binary, bool, int64, "
        "double, date, timestamp or decimal(10, 2)"
    )
