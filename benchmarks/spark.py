"""Spark: the fast table and the data source against Spark's own Parquet of the same rows, in the same session.

``python -m benchmarks.spark``; needs the extra ``spark``, and for S3 the network or a cache of Maven's, for the S3A connector.
Each query runs once for each way, in turns: in a new session, and again once the JVM has compiled its code. Where rows are
made in Python, a source that only decompresses them shows what can be had. A query takes at least 16 seconds and, for each
way, those of ``--warm``; standard error says how far it is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3
import pyspark

import tiered
from tests.support.s3a import connector
from tiered.spark import session, table

from .bare_source import BareSource, prepare
from .cases.cold import serve
from .environment import environment
from .spark_runs import Timed, timed
from .spark_store import START_US, fill

DOCS = Path(__file__).resolve().parent.parent / "docs" / "spark-benchmarks.md"
ROWS = 10_000_000
ROW_GROUPS = "16MiB"
PLACES = {
    "disk": "A `file://` bucket and local files, 95 % of the rows in the bucket alone",
    "s3": "A small S3 server on the same CPUs, all rows in the bucket; Parquet by S3A from the same server",
}
_COLD_SHARE = 0.95
_SECONDS_MIN, _ROUNDS_MAX = 8.0, 5
_PUBLISHED_TARGET = 0.95
_TITLES = {
    "table": "fast table", "published": "fast table, published", "objects": "Parquet of the objects",
    "source": "source", "flight": "source, Flight", "bare": "bare source",
}  # fmt: skip
_TABLES = ("table", "published", "objects"), ("source", "flight", "bare")
_AGAINST = {"published": "objects"}  # of the other ways: Parquet
_WITHOUT_PYTHON = _TABLES[0]
_ABOUT = ("system", "CPUs", "memory", "file system", "Python", "PySpark", "pyarrow", "tiered")

Run = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows lie.

    Attributes
    ----------
    store, options
        Path of the store, and what a source has to be told besides.
    parquet
        Folder or URL of the same rows as Parquet.
    flight
        The server of the store, if there is one.
    bare
        Folder of the records as the bare source reads them, if there is one.
    published
        Another store, which is served, and whose tail is published.
    """

    store: str
    parquet: str
    options: dict[str, str]
    published: Path
    flight: str | None = None
    bare: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One question to a frame.

    Attributes
    ----------
    topic
        ``records`` or ``typed``.
    target
        Speed of the fast table, and of the source, as shares of Parquet's; None: measured and stated. With ``tail="publish"``
        the fast table is compared with Parquet of the same objects, and is to reach `_PUBLISHED_TARGET`.
    columns
        What the source is told to read; Spark tells no Python source.
    ranges
        Further options of the source, equal to `where`.
    """

    name: str
    topic: str
    run: Run
    target: float | None
    source_target: float | None = None
    columns: str | None = None
    ranges: tuple[tuple[str, str], ...] = ()
    where: str | None = None


def noop(frame: Any) -> None:
    """Make every row and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def queries(rows: int) -> list[Query]:
    """Return what is asked."""
    low = START_US // 1000 + rows // 2
    high = low + rows // 100
    offsets = (
        json.dumps({"records": {"0": rows // 2}}),
        json.dumps({"records": {"0": rows // 2 + rows // 10}}),
    )
    return [
        Query("filtered group-by", "typed", lambda frame: _collect(_grouped(frame)), 0.9, columns="carrier,delay,miles"),
        Query("sum of one column", "typed", lambda frame: _collect(frame.selectExpr("sum(delay)")), 0.9, columns="delay"),
        Query("count", "records", lambda frame: _collect(frame.selectExpr("count(*)")), 0.9, columns="offset"),
        Query("full rows", "records", noop, 0.9, 0.75),
        Query("value alone", "records", lambda frame: noop(frame.select("value")), None, 0.6, columns="value"),
        Query("offset of a tenth", "records", lambda frame: noop(frame.select("offset")), None, columns="offset",
              ranges=(("startingOffsets", offsets[0]), ("endingOffsets", offsets[1])),
              where=f"offset >= {rows // 2} AND offset < {rows // 2 + rows // 10}"),
        Query("1 % of the time", "records", noop, None, ranges=(("fromTimestamp", str(low)), ("toTimestamp", str(high))),
              where=f"timestamp >= timestamp_millis({low}) AND timestamp < timestamp_millis({high})"),
    ]  # fmt: skip


def _grouped(frame: Any) -> Any:
    return frame.where("delay > 200").groupBy("carrier").agg({"miles": "avg", "delay": "max"})


def _collect(frame: Any) -> None:
    frame.collect()


def ways(spark: Any, query: Query, places: Places) -> dict[str, Callable[[], Any]]:
    """Return each way to get the frame of a query."""

    def source(place: str) -> Any:
        options = {"topic": query.topic, **places.options, **dict(query.ranges)}
        if query.columns is not None:
            options["columns"] = query.columns
        return spark.read.format("tiered").options(**options).load(place)

    def restricted(frame: Any) -> Any:
        return frame if query.where is None else frame.where(query.where)

    def published() -> Any:
        return table(spark, query.topic, places.published, tail="publish")

    objects = published().inputFiles()
    found = {
        "parquet": lambda: restricted(spark.read.parquet(f"{places.parquet}/{query.topic}.parquet")),
        "table": lambda: restricted(table(spark, query.topic, places.store, **places.options)),
        "published": lambda: restricted(published()),
        "objects": lambda: restricted(spark.read.parquet(*objects)),
        "source": lambda: source(places.store),
    }
    flight, bare = places.flight, places.bare
    if flight is not None:
        found["flight"] = lambda: source(flight)
    if bare is not None and query.source_target is not None:
        columns = {} if query.columns is None else {"columns": query.columns}
        found["bare"] = lambda: spark.read.format("bare").options(**columns).load(bare)
    return found


def measure(
    spark: Any,
    places: Places,
    rows: int,
    repeats: int,
    warm_seconds: float,
    wanted: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the figures of every query, and its speeds while the session was new; of the `wanted` ways, and `only` some queries."""
    asked = [(query, ways(spark, query, places)) for query in queries(rows) if not only or query.name in only]
    for _, frames in asked:
        for name in [name for name in frames if wanted and name not in ("parquet", *wanted)]:
            del frames[name]
    fresh = []
    for query, frames in asked:
        _say(f"in a new session: {query.name}")
        fresh.append(_figures(query, frames, repeats))
    for query, frames in asked:
        _say(f"warming up: {query.name}")
        for frame in frames.values():
            end = time.monotonic() + warm_seconds
            while time.monotonic() < end:
                query.run(frame())
    found = []
    for (query, frames), before in zip(asked, fresh, strict=True):
        _say(f"in a warm session: {query.name}")
        published = None if query.target is None else _PUBLISHED_TARGET
        targets = {"table": query.target, "source": query.source_target, "published": published}
        row = {"query": query.name, "target": targets}
        for name, figures in _figures(query, frames, repeats).items():
            row[name] = figures | {"fresh_speed": before[name]["speed"]}
        found.append(row)
    return found


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def _figures(query: Query, frames: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    for frame in frames.values():
        query.run(frame())
    runs: dict[str, list[Timed]] = {name: [] for name in frames}
    end = time.monotonic() + _SECONDS_MIN
    order, dice = list(frames), random.Random(0)
    # What takes a tenth of a second differs by a half from one time to the next.
    while len(runs["parquet"]) < repeats or (
        time.monotonic() < end and len(runs["parquet"]) < _ROUNDS_MAX * repeats
    ):
        # What one way leaves to be collected is not always the same one's to bear.
        dice.shuffle(order)
        for name in order:
            runs[name].append(timed(query.run, frames[name]))
    found = {}
    for name, times in runs.items():
        against = runs[_AGAINST.get(name, "parquet")]
        ratios = [one.asked / two.asked for one, two in zip(against, times, strict=True)]
        found[name] = {
            "made_seconds": round(statistics.median(item.made for item in times), 3),
            "seconds": round(statistics.median(item.asked for item in times), 3),
            "speed": round(statistics.median(ratios), 2),
            "python": round(statistics.median(item.python for item in times), 2),
            "mib": round(max(item.memory for item in times)),
        }
    return found


def upload(folder: Path, endpoint: str) -> None:
    """Copy the Parquet files that Spark wrote: it would rename them, which the small server cannot."""
    client = boto3.client("s3", endpoint_url=endpoint)
    for path in folder.glob("*.parquet/*.parquet"):
        client.upload_file(str(path), "bucket", f"parquet/{path.relative_to(folder)}")


def run(
    place: str,
    rows: int,
    row_groups: str,
    repeats: int,
    warm_seconds: float,
    memory: str,
    wanted: Sequence[str],
    only: Sequence[str],
    folder: Path,
) -> list[dict[str, Any]]:
    """Fill a store, write the same rows as Parquet, run every query."""
    _say(f"{place}: filling the stores")
    with ExitStack() as stack:
        options = {"spark.driver.memory": memory}
        own = folder / "published"
        if place == "disk":
            path = fill(folder, rows, (folder / "bucket").as_uri(), _COLD_SHARE, row_groups)
            server = _serve(stack, path)
            published = fill(own, rows, (own / "bucket").as_uri(), _COLD_SHARE, row_groups)
            _serve(stack, published)
            places = Places(str(path), str(folder), {}, published, server.location, str(folder / "bare"))
        else:
            endpoint = serve(stack)
            fill(folder, rows, "s3://bucket/p", 1.0, row_groups, endpoint)
            published = fill(own, rows, "s3://bucket/published", _COLD_SHARE, row_groups, endpoint)
            _serve(stack, published)
            places = Places("s3://bucket/p", "s3a://bucket/parquet", {"endpointUrl": endpoint}, published)
            options |= connector(Path(pyspark.__file__).parent) | {
                "spark.hadoop.fs.s3a.bucket.bucket.endpoint": endpoint,
                "spark.hadoop.fs.s3a.bucket.bucket.path.style.access": "true",
            }
        spark = session(**options)
        stack.callback(spark.stop)
        _say("writing the same rows by Spark")
        for topic in ("records", "typed"):
            frame = table(spark, topic, places.store, **places.options)
            frame.write.option("compression", "zstd").parquet(f"{folder}/{topic}.parquet")
        if places.bare is not None:
            prepare(folder / "records.parquet", Path(places.bare))
            spark.dataSource.register(BareSource)
        if place == "s3":
            upload(folder, endpoint)
        return measure(spark, places, rows, repeats, warm_seconds, wanted, only)


def _serve(stack: ExitStack, path: Path) -> Any:
    return stack.enter_context(stack.enter_context(tiered.open(path)).serve("127.0.0.1:0"))


def cells_of(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the cells of a query's row: Parquet's seconds; for each other way its seconds, speeds, and what Python had."""
    cells = [row["query"], f"{row['parquet']['made_seconds']:.2f} + {row['parquet']['seconds']:.2f}"]
    for name in names:
        if name not in row:
            cells += [""] * len(_heads(name))
            continue
        item, target = row[name], row["target"].get(name)
        mark = "" if target is None else (" (met)" if item["speed"] >= target else f" (asked {target})")
        cells += [
            f"{item['made_seconds']:.2f} + {item['seconds']:.2f}",
            f"{item['speed']:.2f}{mark}",
            f"{item['fresh_speed']:.2f}",
        ]
        if name not in _WITHOUT_PYTHON:
            cells.append(f"{item['python']:.0%}, {item['mib']} MiB")
    return cells


def _heads(name: str) -> list[str]:
    heads = [f"{_TITLES[name]}, s", "speed", "in a new session"]
    return heads if name in _WITHOUT_PYTHON else [*heads, "Python"]


def page(found: dict[str, list[dict[str, Any]]], rows: int, repeats: int, warm_seconds: float) -> str:
    """Return the page of the documentation."""
    about = {"PySpark": version("pyspark"), **environment(Path(tempfile.gettempdir()))}
    machine = ", ".join(f"{name} {about[name]}" for name in _ABOUT)
    lines = [
        "# Benchmarks: Spark",
        "",
        f"Written by `python -m benchmarks.spark --rows {rows} --repeats {repeats} --write-docs`: {machine}.",
        "",
        f"{rows:,} rows: `records` with a key of 16 bytes and a value of 100 bytes, and `typed` with ten columns. One session,",
        "`local[*]`; every query by each way in turns, in a random order, short ones up to five times as often, medians.",
        "Seconds are those of making the frame + those of the query. `speed` is that of the query as a share of",
        "`spark.read.parquet` (zstd) of the same rows; `Python` is the share of CPU time that Python's processes had, and the",
        "most memory of its own that one of them held. Grouping and the sum are asked of `typed`; rows go to a sink that drops",
        "them. `in a new session` is the speed after one run of each query, while the JVM still compiles what it does; then",
        f"every way is asked every query for {warm_seconds:g} seconds. The bare source is the least that a source in Python can do: it",
        "decompresses key and value, zstd as the Parquet files, and hands over batches that lay ready as Arrow. `published` is the",
        'fast table with `tail="publish"` of a store of its own, and its speed a share of `spark.read.parquet` of the same objects.',
        "",
    ]
    for place, items in found.items():
        lines += [f"## {PLACES[place]}", ""]
        for group in _TABLES:
            names = [name for name in group if any(name in row for row in items)]
            heads = ["query", "Parquet, s", *(head for name in names for head in _heads(name))]
            rows_of = [heads, ["---"] * len(heads), *(cells_of(row, names) for row in items)]
            lines += ["| " + " | ".join(cells) + " |" for cells in rows_of]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run every query for each place, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument(
        "--row-groups", default=ROW_GROUPS, metavar="SIZE", help="of the objects (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--warm",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="each query by each way, before it is timed",
    )
    parser.add_argument("--only", choices=PLACES, help="where the rows lie (default: each in turn)")
    parser.add_argument(
        "--ways", nargs="+", default=[], choices=_TITLES, help="beside Parquet (default: all)"
    )
    parser.add_argument(
        "--queries", nargs="+", default=[], choices=[query.name for query in queries(ROWS)], metavar="NAME",
        help="of the page (default: all)",
    )  # fmt: skip
    parser.add_argument("--memory", default="3g", help="of Spark's JVM")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")
    parser.add_argument("--write-docs", action="store_true", help="write docs/spark-benchmarks.md")
    parser.add_argument("--folder", type=Path, help="where files go (default: the system's)")
    options = parser.parse_args(arguments)
    if options.write_docs and (
        options.only or options.ways or options.queries or options.row_groups != ROW_GROUPS
    ):
        parser.error(
            "the page is written from everything: leave --only, --ways, --queries and --row-groups out"
        )
    found = {}
    for place in [options.only] if options.only else PLACES:
        # A session keeps the JVM that it was begun with, and its JARs.
        with (
            tempfile.TemporaryDirectory(prefix="tiered-bench-", dir=options.folder) as name,
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            given = (
                options.rows, options.row_groups, options.repeats, options.warm, options.memory, options.ways,
                options.queries,
            )  # fmt: skip
            found[place] = pool.submit(run, place, *given, Path(name)).result()
    text = page(found, options.rows, options.repeats, options.warm)
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if options.json else text)
    if options.write_docs:
        DOCS.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
