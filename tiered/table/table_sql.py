"""Statements with which engines read a live table. Each follows the table, or says that it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from .table_info import TableInfo


class Engine(StrEnum):
    """An engine that reads Iceberg tables."""

    DUCKDB = "duckdb"
    SPARK = "spark"
    TRINO = "trino"
    ATHENA = "athena"
    SNOWFLAKE = "snowflake"


TRIED = frozenset({Engine.DUCKDB, Engine.SPARK})
"""The engines on which the statements were run; those of the others follow their documentation."""

_NOT_TRIED = "-- not tried by the authors of tiered: it follows the engine's documentation"
_FIXED = "-- reads version {version} only; {how}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """The server of a bucket; None for the defaults of AWS."""

    endpoint_url: str | None = None
    region: str | None = None


def table_identifier(topic: str) -> str:
    """Return the name of a topic's table in catalogs that have lower-case names of letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]", "_", topic.lower())


def statement(engine: Engine, info: TableInfo, bucket: Bucket) -> str:
    """Return the statements that query a table, to be pasted into an engine; credentials are the reader's own."""
    make = {
        Engine.DUCKDB: _duckdb,
        Engine.SPARK: _spark,
        Engine.TRINO: _trino,
        Engine.ATHENA: _athena,
        Engine.SNOWFLAKE: _snowflake,
    }[engine]
    lines = make(info, bucket)
    return "\n".join(lines if engine in TRIED else [_NOT_TRIED, *lines])


def _duckdb(info: TableInfo, bucket: Bucket) -> list[str]:
    lines = ["INSTALL iceberg; LOAD iceberg;"]
    if info.location.startswith("s3://"):
        lines.append("INSTALL httpfs; LOAD httpfs; INSTALL aws; LOAD aws;")
        options = ["TYPE s3", "PROVIDER credential_chain"]
        if bucket.region:
            options.append(f"REGION {_text(bucket.region)}")
        if bucket.endpoint_url:
            server = urlsplit(bucket.endpoint_url)
            options += [f"ENDPOINT {_text(server.netloc)}", "URL_STYLE 'path'"]
            options.append(f"USE_SSL {str(server.scheme == 'https').lower()}")
        lines.append(f"CREATE OR REPLACE SECRET tiered ({', '.join(options)});")
    return [*lines, _query(f"iceberg_scan({_text(info.location)})")]


def _spark(info: TableInfo, bucket: Bucket) -> list[str]:
    lines = [
        "-- start spark-sql with the package org.apache.iceberg:iceberg-spark-runtime of your Spark and, for s3a, hadoop-aws"
    ]
    if info.location.startswith("s3://"):
        lines.append(
            "-- and, as the table names its files by s3://, with --conf spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem"
        )
    if bucket.endpoint_url and info.location.startswith("s3://"):
        lines.append(
            f"-- and with --conf spark.hadoop.fs.s3a.endpoint={bucket.endpoint_url} "
            "--conf spark.hadoop.fs.s3a.path.style.access=true"
        )
    location = info.location.replace("s3://", "s3a://", 1)
    name = f"`{table_identifier(info.topic)}`"
    view = f"CREATE OR REPLACE TEMPORARY VIEW {name} USING iceberg OPTIONS (path {_text(location)});"
    return [*lines, view, _query(name)]


def _trino(info: TableInfo, _bucket: Bucket) -> list[str]:
    name, file = table_identifier(info.topic), info.metadata.rpartition("/")[2]
    how = "to go on, unregister it and register it again, or use the REST catalog of tiered"
    return [
        _FIXED.format(version=info.version, how=how),
        "-- the catalog needs iceberg.register-table-procedure.enabled=true",
        (
            f"CALL iceberg.system.register_table(schema_name => 'default', table_name => {_text(name)}, "
            f"table_location => {_text(info.location)}, metadata_file_name => {_text(file)});"
        ),
        _query(f'iceberg.default."{name}"'),
    ]


def _athena(info: TableInfo, _bucket: Bucket) -> list[str]:
    name = table_identifier(info.topic)
    parameters = f'{{"table_type":"ICEBERG","metadata_location":"{info.metadata}"}}'
    table = f'{{"Name":"{name}","TableType":"EXTERNAL_TABLE","Parameters":{parameters}}}'
    return [
        _FIXED.format(version=info.version, how="to go on, update metadata_location in Glue"),
        "-- in a shell, once:",
        f"-- aws glue create-table --database-name default --table-input {_text(table)}",
        _query(f'"default"."{name}"'),
    ]


def _snowflake(info: TableInfo, _bucket: Bucket) -> list[str]:
    name, path = table_identifier(info.topic), "/".join(info.metadata.rsplit("/", 2)[1:])
    return [
        _FIXED.format(
            version=info.version, how="ALTER ICEBERG TABLE … REFRESH 'metadata/v<N>.metadata.json' goes on"
        ),
        f"-- the external volume is yours: its base URL is {info.location}",
        "CREATE CATALOG INTEGRATION IF NOT EXISTS tiered CATALOG_SOURCE = OBJECT_STORE TABLE_FORMAT = ICEBERG ENABLED = TRUE;",
        (
            f"CREATE ICEBERG TABLE \"{name}\" EXTERNAL_VOLUME = 'tiered' CATALOG = 'tiered' "
            f"METADATA_FILE_PATH = {_text(path)};"
        ),
        _query(f'"{name}"'),
    ]


def _query(source: str) -> str:
    return f"SELECT * FROM {source} LIMIT 10;"  # noqa: S608 — shown to a person, and `source` is quoted


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
