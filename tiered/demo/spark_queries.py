"""The demo's queries in Spark, in processes of their own, over the same store."""

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
from .flights import KNOWN_ANSWERS, ORIGINS, ROW_COUNT, Answer, answers
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
    """Run both queries and compare them with what is known.

    Raises
    ------
    ConfigError
        Spark does not start, or a query fails; the message says where its log is.
    """
    stage.section("The same in Spark SQL")
    log = folder / "spark.log"
    # The JVM and its Python workers write their warnings to the standard error that they inherit.
    with _stderr_to(log), _readable_errors(log):
        with stage.step("start", "Spark and its Java, on this machine"), _signals_deferred():
            spark = tiered_spark.session("tiered-demo", **{"spark.master": "local[2]"})
        with _stopped(spark):
            _load(stage, spark, folder / "store", topics)
            _check_typed(stage, spark, flights)
            _check_records(stage, spark, flights)


def _load(stage: Stage, spark: SparkSession, path: Path, topics: tuple[str, ...]) -> None:
    spark.dataSource.register(tiered_spark.TieredDataSource)
    for topic in topics:
        spark.read.format("tiered").option("topic", topic).load(str(path)).createOrReplaceTempView(topic)
        stage.say("table", f'{topic} = spark.read.format("tiered").option("topic", "{topic}").load("{path}")')
    with open_store(path, read_only=True) as store:
        # What this process holds in memory is in the files too, since the flush: there another process finds it.
        shares = store.topic(topics[0]).scan().explain().tiers
    tiers = ", ".join(f"{share.records:,} {share.tier}" for share in reversed(shares) if share.records)
    stage.say("reads", f"flights: {tiers}; the hot ones from their files, as they were flushed")


def _check_typed(stage: Stage, spark: SparkSession, flights: pa.Table) -> None:
    _print_query(stage, _TYPED_QUERY)
    with stage.step("query", "departures and mean delay by carrier"):
        rows = spark.sql(_TYPED_QUERY).collect()
    found = {row["carrier"]: Answer(row["departures"], row["mean_delay"]) for row in rows}
    stage.table(
        ("carrier", ">departures", ">mean delay", ">known"),
        [
            (name, f"{answer.departures:,}", f"{answer.mean_delay:.4f}", _known(name))
            for name, answer in found.items()
        ],
    )
    expected = answers(flights)
    stage.check(
        sum(item.departures for item in found.values()) == ROW_COUNT,
        f"Spark counts {ROW_COUNT:,} departures",
    )
    for carrier, known in KNOWN_ANSWERS.items():
        stage.check(
            known.agrees(found.get(carrier)),
            f"{carrier}: {known.departures:,} departures, mean delay {known.mean_delay:.4f} minutes, in Spark too",
        )
    stage.check(
        found.keys() == expected.keys() and all(expected[name].agrees(found[name]) for name in found),
        f"all {len(expected)} carriers agree with the input",
    )


def _check_records(stage: Stage, spark: SparkSession, flights: pa.Table) -> None:
    _print_query(stage, _RECORDS_QUERY)
    with stage.step("query", "departures by origin, out of the JSON"):
        rows = spark.sql(_RECORDS_QUERY).collect()
    counts = {item["values"]: item["counts"] for item in flights.column("origin").value_counts().to_pylist()}
    expected = [(partition, origin, counts[origin]) for partition, origin in enumerate(ORIGINS)]
    said = ", ".join(f"{origin} {number:,}" for _, origin, number in expected)
    stage.check([tuple(row) for row in rows] == expected, f"JSON records by origin: {said}")


def _known(carrier: str) -> str:
    known = KNOWN_ANSWERS.get(carrier)
    return f"{known.departures:,}  {known.mean_delay:.4f}" if known else ""


def _print_query(stage: Stage, query: str) -> None:
    stage.print()
    for i, line in enumerate(query.splitlines()):
        stage.say("" if i else "SQL", line)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Hold back Ctrl-C and its like: PySpark, interrupted while it starts Java, leaves it running for ever."""
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
def _stopped(spark: SparkSession) -> Iterator[None]:
    """Stop a session at the end."""
    from py4j.protocol import Py4JError

    try:
        yield
    except BaseException:
        # The first error is the one to be told.
        with suppress(Py4JError):
            spark.stop()
        raise
    spark.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let file descriptor 2, which child processes inherit, lead to a file."""
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
            # Ctrl-C leaves Py4J in the middle of a call, and what PySpark then does to clean up fails.
            raise before from None
        last = next(
            (line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), ""
        )
        raise ConfigError(f"Spark failed: {str(error).splitlines()[0]} {last}".strip()) from error
