"""One engine that reads Iceberg tables, as a process: an order a line, an answer a line.

It runs in the environment of its engine, and imports nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


class DuckDb:
    """DuckDB with its extension."""

    def __init__(self, folder: Path, _out: Path, _options: dict[str, str]) -> None:
        import duckdb

        self._connection = duckdb.connect()
        for name in ("avro", "iceberg", "httpfs", "delta"):
            (extension,) = folder.glob(
                f"lib/python*/site-packages/duckdb_extension_{name}/**/{name}.duckdb_extension"
            )
            self._connection.execute(f"LOAD '{extension}'")

    def read(self, location: str, columns: list[str], out: str) -> None:
        """Write columns of a table as Parquet."""
        values = ", ".join(
            'epoch_us("timestamp") AS "timestamp"' if name == "timestamp" else f'"{name}"' for name in columns
        )
        self._connection.execute(
            f"COPY (SELECT {values} FROM iceberg_scan('{location}')) TO '{out}' (FORMAT parquet)"
        )

    def execute(self, statement: str) -> list[Any]:
        """Return the rows of a statement."""
        return self._connection.execute(statement).fetchall()


class Spark:
    """Spark with Iceberg's runtime, in one session."""

    def __init__(self, folder: Path, out: Path, options: dict[str, str]) -> None:
        from pyspark.sql import SparkSession

        options = options | {
            "spark.jars": ",".join(map(str, (folder / "jars").iterdir())),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(out / "warehouse"),
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        builder = SparkSession.builder.master("local[1]")
        for name, value in options.items():
            builder = builder.config(name, value)
        self._session = builder.getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")

    def read(self, location: str, columns: list[str], out: str) -> None:
        """Write columns of a table as Parquet."""
        import pyarrow.parquet as pq

        table = self._session.read.format("iceberg").load(location)
        values = [
            "unix_micros(`timestamp`) AS `timestamp`" if name == "timestamp" else f"`{name}`"
            for name in columns
        ]
        pq.write_table(table.selectExpr(*values).toArrow(), out)

    def execute(self, statement: str) -> list[Any]:
        """Return the rows of a statement."""
        return [tuple(row) for row in self._session.sql(statement).collect()]


def main() -> None:
    """Answer orders until there are no more."""
    kind, folder, out, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer
    engine = {"duckdb": DuckDb, "spark": Spark}[kind](Path(folder), Path(out), json.loads(options))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"rows": (engine.execute if "statement" in order else engine.read)(**order)}
        except Exception as error:  # noqa: BLE001 — the test is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
