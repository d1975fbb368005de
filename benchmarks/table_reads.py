"""The reads of the simulated day's tables: all rows, and an hour of a partition, by DuckDB and by Spark."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.support.engines import TableEngine
from tests.support.s3_server import S3Process
from tests.support.s3a import connector

_READS = 3
_DELTA = "io.delta:delta-spark_4.1_2.13:4.3.1"
# What Spark has already, and a catalog that nobody asks.
_EXCLUDED = (
    "com.fasterxml.jackson*", "com.github.luben", "commons-pool", "io.airlift", "io.unitycatalog", "org.apache.logging*",
    "org.apache.parquet", "org.locationtech*", "org.roaringbitmap", "org.slf4j", "org.xerial*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scanned:
    """A table as engines find it: the function of DuckDB that reads it, its format in Spark, and its path there."""

    duckdb: str
    spark_format: str
    spark_path: str


@dataclass(frozen=True, slots=True)
class Asked:
    """How many rows there are, how many an hour of partition 1 has, and when that hour ends, in microseconds."""

    rows: int
    hour_rows: int
    hour_end_us: int


@dataclass(frozen=True, slots=True)
class _Dialect:
    """An engine: how it starts, its two queries, and the statements by which it reads a table."""

    name: str
    start: Callable[[S3Process], TableEngine]
    whole: str
    some: str
    statements: Callable[[Scanned, str], Sequence[str]]


def table_reads(server: S3Process, tables: Sequence[Scanned], asked: Asked) -> list[tuple[str, list[str]]]:
    """Return rows of the page: the name of a read, and of each table its seconds or its requests.

    Each engine is one process. The first read of a table is not timed, and its requests are counted.
    """
    found: list[tuple[str, list[str]]] = []
    for dialect in (_DUCKDB, _SPARK):
        with closing(dialect.start(server)) as engine:
            for name, query, count in (
                ("all", dialect.whole, asked.rows),
                ("filtered sum", dialect.some.replace("{end}", str(asked.hour_end_us)), asked.hour_rows),
            ):
                seconds, requests = [], []
                for table in tables:
                    statements = dialect.statements(table, query)
                    server.reset()
                    _read(engine, statements, count)
                    requests.append(f"{requests_of(server.counts()).total():,}")
                    taken = statistics.median(_read(engine, statements, count) for _ in range(_READS))
                    seconds.append(f"{taken:.2f} s")
                what = f"{dialect.name}: {name}"
                found += [(what, seconds), (f"{what}, requests of the first", requests)]
    return found


def requests_of(counts: Mapping[str, int]) -> Counter[str]:
    """Return the requests among what a server counted."""
    return Counter({name: count for name, count in counts.items() if not name.startswith("bytes")})


def _read(engine: TableEngine, statements: Sequence[str], count: int) -> float:
    """Run statements, the last of which counts rows first; return the seconds."""
    begun = time.perf_counter()
    answers = [engine.execute(statement) for statement in statements]
    taken = time.perf_counter() - begun
    assert answers[-1][0][0] == count, answers[-1]
    return taken


def _duckdb(server: S3Process) -> TableEngine:
    engine = TableEngine("duckdb")
    host = server.url.removeprefix("http://")
    engine.execute("SET enable_external_file_cache = false")
    engine.execute(
        "CREATE SECRET s3 (TYPE s3, KEY_ID 'benchmark', SECRET 'benchmark', REGION 'us-east-1', "
        f"ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
    )
    return engine


def _spark(server: S3Process) -> TableEngine:
    def options(spark: Path) -> dict[str, str]:
        told = connector(spark)
        return told | {
            "spark.jars.packages": f"{told['spark.jars.packages']},{_DELTA}",
            "spark.jars.excludes": ",".join(
                [told["spark.jars.excludes"], *(f"{group}:*" for group in _EXCLUDED)]
            ),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The tables of Iceberg name their files by s3://.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.hadoop.fs.s3a.input.stream.type": "classic",
            "spark.hadoop.fs.s3a.endpoint": server.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    return TableEngine("spark", options)


def _view(table: Scanned, query: str) -> list[str]:
    """A view, which finds the newest version, and the query."""
    return [
        f"CREATE OR REPLACE TEMPORARY VIEW asked USING {table.spark_format} OPTIONS (path '{table.spark_path}')",
        query.replace("{table}", "asked"),
    ]


_DUCKDB = _Dialect(
    "DuckDB",
    _duckdb,
    'SELECT count(*), count("user"), sum(amount), max(page), epoch_us(max("at")) FROM {table}',
    'SELECT count(*), sum(amount) FROM {table} WHERE "partition" = 1 AND "at" < make_timestamptz({end})',
    lambda table, query: [query.replace("{table}", table.duckdb)],
)
_SPARK = _Dialect(
    "Spark",
    _spark,
    "SELECT count(*), count(`user`), sum(amount), max(page), unix_micros(max(`at`)) FROM {table}",
    "SELECT count(*), sum(amount) FROM {table} WHERE `partition` = 1 AND `at` < timestamp_micros({end})",
    _view,
)
