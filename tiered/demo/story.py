"""The story of the demo, from an empty directory to checked answers."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from ..base.units import format_duration, format_size, to_us
from ..engine.host import Host
from ..errors import ConfigError
from ..opening import open_local_store
from ..policies.actions import Action, Compress, EvictLocal, Offload
from ..settings.settings import Settings
from ..store.local_store import LocalStore
from .checks import check_across_tiers, print_where
from .embedded_s3 import EmbeddedS3, environment
from .flights import KEY, ORIGINS, ROW_COUNT, TIMESTAMP, arrivals, as_records, load_flights, months
from .keep import keep_bucket
from .spark_queries import check_in_spark
from .stage import Figures, Stage

BUCKET = "tiered-demo"
TYPED = "flights"
RECORDS = "departures"

_HOT_BYTES = 12 << 20
_COMPRESS_AFTER = timedelta(minutes=10)
_OFFLOAD_AFTER = timedelta(hours=1)
_EVICT_AFTER = timedelta(days=1)


@dataclass(slots=True)
class Clock:
    """The clock of the demo: behind the machine's clock by the time that the demo will skip; equal at its end."""

    skipped_us: int

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self.skipped_us

    def skip(self, duration: timedelta) -> None:
        """Advance the clock."""
        self.skipped_us += to_us(duration)


@dataclass(slots=True)
class Scene:
    """The parts that the steps of the demo share."""

    stage: Stage
    store: LocalStore
    flights: Any
    clock: Clock
    folder: Path

    def figures(self) -> Figures:
        """Return the bytes in memory, in segment files and in the bucket."""
        disk = sum(path.stat().st_size for path in self.folder.glob("store/topics/*/*/*.log"))
        bucket = sum(item.cold.bytes for item in self.store.status())
        return Figures(self.store.context.memory.bytes, disk, bucket)


def run_demo(console: Console, *, spark: bool = True, keep: Path | None = None) -> bool:
    """Run the demo and print it.

    Parameters
    ----------
    spark
        Whether to query with Spark, too.
    keep
        A new or empty directory in which store and bucket stay after the demo.

    Returns
    -------
    bool
        Whether every check passed.

    Raises
    ------
    ConfigError
        Something that the demo needs is not installed, or `keep` is not empty.
    """
    if spark and importlib.util.find_spec("pyspark") is None:
        raise ConfigError("Spark is not installed; run: pip install 'tiered[demo]', or: tiered demo --fast")
    stage = Stage(console)
    stage.title(
        "tiered demo", "Real flights, real files, a real S3 server on this machine. Nothing leaves it."
    )
    with _folder(keep) as folder, EmbeddedS3.start() as s3:
        flights = load_flights()
        with environment(s3.environment()):
            s3.create_bucket(BUCKET)
            clock = Clock(-to_us(_EVICT_AFTER + _COMPRESS_AFTER))
            with _open(folder, s3.url, clock) as store:
                scene = Scene(stage, store, flights, clock, folder)
                _set_the_scene(scene, s3)
                _move(scene)
                print_where(stage, store, (TYPED, RECORDS))
                check_across_tiers(stage, store.topic(TYPED), store.topic(RECORDS), flights)
                if spark:
                    check_in_spark(stage, folder, (TYPED, RECORDS), flights)
                url = store.context.tiers.object_store.url
            if keep is not None:
                keep_bucket(folder, url, s3.url)
    _end(stage, keep)
    return stage.failed == 0


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="tiered-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = keep.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{keep} is not an empty directory; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _open(folder: Path, endpoint_url: str, clock: Clock) -> LocalStore:
    settings = Settings.model_validate(
        {
            "store": {"path": folder / "store", "hot_bytes": _HOT_BYTES},
            "cold": {"url": f"s3://{BUCKET}/store", "endpoint_url": endpoint_url, "region": "us-east-1"},
            "policies": {
                "default": {
                    # The demo seals by `roll`, so that a skip of its clock does not.
                    "roll": {"age": "off"},
                    "compress": {"codec": "zstd", "level": 3, "after": _COMPRESS_AFTER},
                    "offload": {"after": _OFFLOAD_AFTER, "tail_interval": "off"},
                    "local_retention": {"age": _EVICT_AFTER},
                }
            },
        }
    )
    return open_local_store(settings.store.path, settings=settings, host=Host(clock=clock))


def _set_the_scene(scene: Scene, s3: EmbeddedS3) -> None:
    stage, store = scene.stage, scene.store
    stage.section("An empty store and its bucket")
    store.create_topic(TYPED, schema=scene.flights.schema, timestamp=TIMESTAMP, key=KEY)
    store.create_topic(RECORDS, partitions=len(ORIGINS))
    stage.say("store", str(scene.folder / "store"))
    stage.say("bucket", f"s3://{BUCKET}/store at {s3.url} (moto, in a process of its own)")
    stage.say(
        "input", f"{ROW_COUNT:,} departures from New York in 2013 (US Bureau of Transportation Statistics)"
    )
    stage.say(
        "topics", f"{TYPED}: {len(scene.flights.schema)} typed columns, timestamp {TIMESTAMP}, key {KEY}"
    )
    stage.say("", f"{RECORDS}: the same as JSON records, key {KEY}, partitions {', '.join(ORIGINS)}")
    stage.say(
        "policy",
        f"keep {format_size(_HOT_BYTES)} in memory; compress after {format_duration(_COMPRESS_AFTER)}, "
        f"offload after {format_duration(_OFFLOAD_AFTER)}, evict after {format_duration(_EVICT_AFTER)}",
    )


def _move(scene: Scene) -> None:
    """Append the year in three parts; each moves as far as its age allows."""
    scene.stage.section("Data arrives, ages and moves")
    scene.stage.figures = scene.figures
    scene.stage.heads()
    _append(scene, "January to August", 1, 8)
    _seal(scene)
    _let_pass(scene, _COMPRESS_AFTER, Compress, "encoded again with zstd")
    _let_pass(scene, _OFFLOAD_AFTER - _COMPRESS_AFTER, Offload, "as Parquet, published")
    _let_pass(scene, _EVICT_AFTER - _OFFLOAD_AFTER, EvictLocal, "as the bucket has them")
    _append(scene, "September and October", 9, 10)
    _seal(scene)
    _let_pass(scene, _COMPRESS_AFTER, Compress, "which stay here for now")
    _append(scene, "November and December", 11, 12)
    scene.stage.figures = None


def _append(scene: Scene, when: str, first: int, last: int) -> None:
    typed, records = scene.store.topic(TYPED), scene.store.topic(RECORDS)
    # Before the step, whose time must not include making the JSON.
    prepared = [(table, as_records(table)) for table in arrivals(months(scene.flights, first, last))]
    count = sum(table.num_rows for table, _ in prepared)
    with scene.stage.step("append", f"{when}: {count:,} rows, {count:,} records"):
        for table, by_partition in prepared:
            typed.append_batch(table)
            for partition, rows in by_partition.items():
                records.append_batch(rows, partition=partition)
    with scene.stage.step("flush", "written and synced: durable"):
        scene.store.flush()


def _seal(scene: Scene) -> None:
    with scene.stage.step("seal", "segments closed with index, totals and hashes"):
        for name in (TYPED, RECORDS):
            scene.store.topic(name).roll()


def _let_pass(scene: Scene, duration: timedelta, kind: type[Action], text: str) -> None:
    """Skip some time, then run a pass, which does what is due."""
    scene.clock.skip(duration)
    with scene.stage.step(kind.kind.removesuffix("_local")) as step:
        report = scene.store.tier()
        count = sum(isinstance(action, kind) for action, _ in report.done)
        step.text = f"{format_duration(duration)} later: {count} segments, {text}"
    for action, message in report.failed:
        scene.stage.check(False, f"{action}: {message}")


def _end(stage: Stage, keep: Path | None) -> None:
    stage.verdict()
    stage.section("Where to look next")
    if keep is None:
        stage.say("look", "tiered demo --keep ./tiered-demo   leaves store and bucket there")
    else:
        stage.say("look", f"tiered status --path {keep}/store")
        stage.say("", f"tiered read {RECORDS} --path {keep}/store --partition 1 --limit 3")
        stage.say(
            "", f"tiered inspect {keep}/bucket/store.json   and the Parquet files beside it, with any tool"
        )
    stage.say("use", "tiered create orders && tiered append orders orders.jsonl && tiered status")
    stage.say("help", "tiered --help")
    stage.print()
