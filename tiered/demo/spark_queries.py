"""The demo's queries in Spark, which reads the same store in its own processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .. import spark as tiered_spark
from ..errors import ConfigError
from ..opening import open_store
from .flights import KNOWN_ANSWERS, ORIGINS, ROW_COUNT, KnownAnswer, answers
from .stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPED_QUERY = """\
SELECT carrier, count(*) AS departures, avg(dep_delay) AS mean_delay
FROM flights GROUP BY carrier ORDER BY carrier"""
_RECORDS_QUERY = """\
SELECT partition, get_json_object(CAST(value AS STRING), '$.origin') AS origin, count(*) AS departures
FROM departures GROUP BY ALL ORDER BY partition"""


def check_in_spark(stage: Stage, folder: Path, topics: tuple[str, ...], flights: pa.Table) -> None:
    """Run both queries and compare the results with known answers.

    Raises
    ------
    ConfigError
        Spark does not start, or a query fails; the message has the last line of Spark's log.
    """
    stage.section("The same in Spark SQL")
    log = folder / "spark.log"
    # The JVM and its Python workers write warnings to the stderr that they inherit.
    with _stderr_to(log), _readable_errors(log):
        with stage.step("start", "Spark and its Java, on this machine"), _deferred_signals():
            spark = tiered_spark.session("tiered-demo", **{"spark.master": "local[2]"})
        with _stopping(spark):
            _load(stage, spark, folder / "store", topics)
            _check_typed(stage, spark, flights)
            _check_records(stage, spark, flights)


def _load(stage: Stage, spark: SparkSession, path: Path, topics: tuple[str, ...]) -> None:
    spark.dataSource.register(tiered_spark.TieredDataSource)
    for topic in topics:
        spark.read.format("tiered").option("topic", topic).load(str(path)).createOrReplaceTempView(topic)
        stage.say("table", f'{topic} = spark.read.format("tiered").option("topic", "{topic}").load("{path}")')
    with open_store(path, read_only=True) as store:
        # After the flush, records in this process's memory are in the files, too, where Spark reads them.
        shares = store.topic(topics[0]).scan().explain().tiers
    tiers = ", ".join(f"{share.records:,} {share.tier}" for share in reversed(shares) if share.records)
    stage.say("reads", f"flights: {tiers}; the hot ones from their files, as they were flushed")


def _check_typed(stage: Stage, spark: SparkSession, flights: pa.Table) -> None:
    _print_query(stage, _TYPED_QUERY)
    with stage.step("query", "departures and mean delay by carrier"):
        rows = spark.sql(_TYPED_QUERY).collect()
    by_carrier = {row["carrier"]: KnownAnswer(row["departures"], row["mean_delay"]) for row in rows}
    stage.table(
        ("carrier", ">departures", ">mean delay", ">known"),
        [
            (name, f"{answer.departures:,}", f"{answer.mean_delay:.4f}", _known(name))
            for name, answer in by_carrier.items()
        ],
    )
    expected = answers(flights)
    stage.check(
        sum(item.departures for item in by_carrier.values()) == ROW_COUNT,
        f"Spark counts {ROW_COUNT:,} departures",
    )
    for carrier, known in KNOWN_ANSWERS.items():
        stage.check(
            known.agrees(by_carrier.get(carrier)),
            f"{carrier}: {known.departures:,} departures, mean delay {known.mean_delay:.4f} minutes, in Spark too",
        )
    stage.check(
        by_carrier.keys() == expected.keys()
        and all(expected[name].agrees(answer) for name, answer in by_carrier.items()),
        f"all {len(expected)} carriers agree with the input",
    )


def _check_records(stage: Stage, spark: SparkSession, flights: pa.Table) -> None:
    _print_query(stage, _RECORDS_QUERY)
    with stage.step("query", "departures by origin, out of the JSON"):
        rows = spark.sql(_RECORDS_QUERY).collect()
    counts = {item["values"]: item["counts"] for item in flights.column("origin").value_counts().to_pylist()}
    expected = [(partition, origin, counts[origin]) for partition, origin in enumerate(ORIGINS)]
    text = ", ".join(f"{origin} {number:,}" for _, origin, number in expected)
    stage.check([tuple(row) for row in rows] == expected, f"JSON records by origin: {text}")


def _known(carrier: str) -> str:
    known = KNOWN_ANSWERS.get(carrier)
    return f"{known.departures:,}  {known.mean_delay:.4f}" if known else ""


def _print_query(stage: Stage, query: str) -> None:
    stage.print()
    for i, line in enumerate(query.splitlines()):
        stage.say("" if i else "SQL", line)


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer signals to the end of the block: an interrupt while PySpark starts Java would leave Java running."""
    pending: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for name in handlers:
        signal.signal(name, lambda number, _frame: pending.append(number))
    try:
        yield
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
    for number in pending:
        signal.raise_signal(number)


@contextmanager
def _stopping(spark: SparkSession) -> Iterator[None]:
    """Stop a session at the end."""
    from py4j.protocol import Py4JError

    try:
        yield
    except BaseException:
        # Of two errors the first one is raised.
        with suppress(Py4JError):
            spark.stop()
        raise
    spark.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect file descriptor 2, which child processes inherit, to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def _readable_errors(log: Path) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        before = error.__context__
        if before is not None and not isinstance(before, Exception):
            # An interrupt leaves Py4J in the middle of a call, so that PySpark's cleanup fails with this error.
            raise before from None
        last = next(
            (line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), ""
        )
        raise ConfigError(f"Spark failed: {str(error).splitlines()[0]} {last}".strip()) from error
