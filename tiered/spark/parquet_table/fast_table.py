"""The fast table: one snapshot, of which Spark's own Parquet reader reads all that lies in the bucket."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...base.units import parse_size
from ...cold.parquet.layout import object_schema
from ...errors import ConfigError
from ...flight.client.remote_scan import RemoteScan, RemoteSplit
from ...reader.rows import Query
from ...reader.scan import Scan
from ...reader.snapshot import published_extents
from ...reader.splits import ColdSource, Extent, Split
from ...reader.tiers import Tiers
from ...store.interface.topic import Topic
from ..columns import CREATE_TIME, TIMESTAMP_TYPE, choose_fields, spark_schema
from ..options import TOPIC_ID, SourceOptions, parse_options
from ..read.planning import open_source, pinned_scan
from ..read.remote import RemoteLocations
from .connector import Connector, find_connector
from .leases import LEASE_SECONDS, Leased, lease_keeper, take_lease
from .plan import ColdFiles, Range, TablePlan, cold_first, plan_table
from .tail import TAIL_BYTES, HeldTail, folder_for_tails, hold_tail

_log = logging.getLogger("tiered.spark.fast_table")

# Spark checks no checksum unless told to, and a session may be set to leave out files that it cannot read (promises P4, P8).
# Arrow writes dates as they are, which is what Spark calls corrected.
_READ_OPTIONS = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}

# Chosen by the plan, for the part that our own source reads.
_RANGE_OPTIONS = {
    name.lower()
    for bound in ("starting", "ending")
    for name in (f"{bound}Offsets", f"{bound}Timestamp", f"{bound}OffsetsByTimestamp")
} | {"startingoffsetsbytimestampstrategy", "partitions", "path", "columns"}


def table(
    spark: SparkSession,
    topic: str,
    path: str | os.PathLike[str] | None = None,
    *,
    prefer: Literal["cold", "warm"] = "cold",
    tail_bytes: int | str = TAIL_BYTES,
    **options: str | int | bool,
) -> DataFrame:
    """Return a topic as it is now, for queries at the speed of Spark's own Parquet reader.

    One snapshot is pinned by this call. Spark reads its objects in the bucket as Parquet: filters, column
    pruning and aggregates run in the JVM, and nothing passes through Python. What is not in the bucket comes
    from the data source ``tiered``, restricted to exactly those offsets; a union puts both together. In a local
    session a small rest is read by this call and laid down beside Spark's own temporary files, so that no query
    starts Python. Columns, their types and their order are those of ``spark.read.format("tiered")``.

    Spark verifies the checksums of the Parquet pages that it reads, but not the objects' footers, and does not
    compare them with the manifest, as our own reader does.

    For as long as the session has a plan that reads the snapshot's objects, a lease keeps the sweep from deleting
    them. Where the credentials may not write to the bucket there is none, and ``sweep.grace`` is what the job has.

    Parameters
    ----------
    path
        As of ``load()``: a local store, ``s3://bucket/prefix``, ``file:///directory`` or ``grpc://host:port``.
    prefer
        What to read of records that lie both in the bucket and in a local file: ``"cold"`` the Parquet object,
        in the JVM; ``"warm"`` the local file, through Python, for a bucket that is far away.
    tail_bytes
        What is not in the bucket is read by this call, in a local session (``local[*]``), if it is no more than this
        as Arrow, in bytes or as ``"256MiB"`` (the default); else by each query. 0: always by each query.
    **options
        Of `TieredDataSource`: ranges, ``partitions``, ``key``, ``columns``, ``includeHeaders``, ``endpointUrl`` and
        the rest.

    Returns
    -------
    pyspark.sql.DataFrame
        Where Spark has no connector for the bucket (S3A for ``s3://``), all of it through the data source; a
        warning says so.

    Raises
    ------
    ConfigError, TopicNotFound, OffsetOutOfRange, SchemaMismatch, CorruptionError, ColdStorageError

    Examples
    --------
    >>> df = table(spark, "orders", "s3://bucket/prefix")  # doctest: +SKIP
    >>> df.where("partition = 0").groupBy("key").count()  # doctest: +SKIP
    """
    if prefer not in ("cold", "warm"):
        raise ConfigError(f'prefer is "cold" or "warm", not {prefer!r}')
    try:
        held_bytes_max = parse_size(tail_bytes)
    except ValueError as error:
        raise ConfigError(f"tail_bytes is {tail_bytes!r}: {error}") from None
    given = {name: _text(value) for name, value in options.items()} | {"topic": topic}
    if path is not None:
        given["path"] = os.fspath(path)
    read = parse_options(given)
    with open_source(read) as store:
        # One for both: another may have its name by then.
        found = store.topic(read.topic)
        # Before there is a lease to let go of.
        choose_fields(found.schema, read.columns, headers=read.include_headers)
        pinned = _pin(spark, found, read, prefer)
        pinned = _with_tail(spark, found, read, pinned, held_bytes_max)
    return _Assembly(spark, given, read, pinned).frame()


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A snapshot, divided; `lease` covers its objects."""

    topic_id: UUID
    schema: pa.Schema
    query: Query
    plan: TablePlan
    connector: Connector | None
    leased: Leased | None
    splits: Sequence[Split]
    tail: HeldTail | None = None

    def let_go(self) -> None:
        """Release what outlives this call, where it fails."""
        if self.leased is not None:
            self.leased.let_go()
        if self.tail is not None:
            self.tail.remove()


def _pin(spark: SparkSession, topic: Topic, read: SourceOptions, prefer: str) -> _Pinned:
    # A server is asked where the bucket is by a plan, which is made again once there is a lease.
    bucket = topic.tiers or _bucket_of(pinned_scan(topic, read, ["offset"]), read)
    url = bucket.locations.cold_url if bucket.has_cold else None
    connector = find_connector(spark, url, bucket.locations.cold_options) if url is not None else None
    if url is not None and connector is None:
        _log.warning(
            "this Spark session has no connector for %s: table() reads all through Python, as load() does",
            url,
        )
    # Before the snapshot, which it covers only then.
    leased = take_lease(url, bucket) if url is not None and connector is not None else None
    try:
        scan = pinned_scan(topic, read, ["offset"])
        if (found := scan.explain()).committed_us:
            _log.info("%s", found)  # says how far behind the writer this can be
        splits = [_direct(split) for split in scan.splits()]
        if connector is not None and prefer == "cold":
            splits = _cold_first(topic, bucket, splits)
        plan = plan_table(_within(splits, scan.query), parquet=connector is not None)
    except BaseException:
        if leased is not None:
            leased.let_go()
        raise
    finally:
        if topic.tiers is None:
            bucket.close()
    if leased is not None and not plan.cold:
        leased.let_go()
        leased = None
    return _Pinned(topic.meta.topic_id, topic.schema, scan.query, plan, connector, leased, splits)


def _with_tail(
    spark: SparkSession, topic: Topic, read: SourceOptions, pinned: _Pinned, bytes_max: int
) -> _Pinned:
    """Hold what no object has, if it is little: the plan has no rest then."""
    plan, folder = pinned.plan, folder_for_tails(spark)
    everything = pinned.connector is None and any(
        isinstance(item.source, ColdSource) for item in pinned.splits
    )
    if not plan.rest or folder is None or everything or bytes_max == 0:
        return pinned
    stored = [field.name for field in object_schema(pinned.schema)]
    chosen = {
        field.name for field in choose_fields(pinned.schema, read.columns, headers=read.include_headers)
    }
    needed = chosen | {"offset", "timestamp", pinned.query.key_column}
    columns = [name for name in stored if name in needed]
    try:
        tail = hold_tail(topic, read, pinned.splits, plan.rest, columns, bytes_max, folder)
    except BaseException:
        pinned.let_go()
        raise
    if tail is None:
        return pinned
    alone = sorted(tail.names.keys() - {files.partition for files in plan.cold if not files.ranges})
    cold = (*plan.cold, *(ColdFiles(partition, ()) for partition in alone))
    return replace(pinned, plan=TablePlan(cold, ()), tail=tail)


def _bucket_of(scan: Scan, read: SourceOptions) -> Tiers:
    """Return a way to the bucket of a served store; its local tiers are left to the server."""
    assert isinstance(scan, RemoteScan)
    remote = RemoteLocations.of(scan, read)
    places = replace(remote.here(), root=None)
    if not remote.shared_bucket and not (scan.same_directory and (places.cold_url or "").startswith("file:")):
        places = replace(places, cold_url=None)  # a directory or memory of the server's own
    return Tiers(places)


def _direct(split: Split) -> Split:
    """Return a split of a server's plan as one of the bucket, if it is there."""
    return (split.direct(None) or split) if isinstance(split, RemoteSplit) else split


def _cold_first(topic: Topic, access: Tiers, splits: Sequence[Split]) -> list[Split]:
    bounds: dict[int, Range] = {}
    for split in splits:
        start, _ = bounds.get(split.partition, (split.start_offset, 0))
        bounds[split.partition] = start, split.end_offset
    local = {split.partition for split in splits if not isinstance(split.source, ColdSource)}
    published = {
        partition: _sealed(published_extents(access, topic.meta, partition, *bounds[partition]))
        for partition in sorted(local)
    }
    return cold_first(topic.name, splits, published)


def _sealed(extents: Sequence[Extent]) -> list[Extent]:
    """Leave out tails of active segments: a local file has in one piece what they have in hundreds."""
    return [item for item in extents if isinstance(item.source, ColdSource) and item.source.entry.sealed]


def _within(splits: Sequence[Split], query: Query) -> list[Split]:
    """Leave out objects without a row in the bounds on timestamps."""
    return [
        split
        for split in splits
        if not isinstance(split.source, ColdSource)
        or not query.excludes(split.source.entry.min_timestamp_us, split.source.entry.max_timestamp_us)
    ]


class _Assembly:
    """Makes one DataFrame of the parts of a plan."""

    def __init__(
        self, spark: SparkSession, given: Mapping[str, str], read: SourceOptions, pinned: _Pinned
    ) -> None:
        self._spark = spark
        self._given = given
        self._read = read
        self._pinned = pinned
        self._fields = choose_fields(pinned.schema, read.columns, headers=read.include_headers)

    def frame(self) -> DataFrame:
        """Return all rows; the lease lives as long as a plan that reads the objects."""
        plan, leased, tail = self._pinned.plan, self._pinned.leased, self._pinned.tail
        try:
            objects = [self._objects(files) for files in plan.cold]
        except BaseException:
            self._pinned.let_go()
            raise
        in_use = _in_use(self._spark, objects)
        if leased is not None:
            lease_keeper().hold(leased.lease, LEASE_SECONDS, in_use, leased.bucket.close)
        if tail is not None:
            lease_keeper().hold(None, 0, in_use, tail.remove)
        parts = [self._shaped(frame, files) for frame, files in zip(objects, plan.cold, strict=True)]
        parts += [self._rest(ranges) for ranges in plan.rest]
        # Gives every column its type, and lets it be null; Spark's optimizer drops it.
        none = self._spark.createDataFrame([], spark_schema(self._fields)).where(f.lit(False))
        return reduce(lambda left, right: left.union(right), parts, none)

    def _objects(self, files: ColdFiles) -> DataFrame:
        """Return objects, and the held rows, as Spark's Parquet reader has them; what an older one lacks is null."""
        connector, tail = self._pinned.connector, self._pinned.tail
        reader = self._spark.read.schema(spark_schema(list(object_schema(self._pinned.schema))))
        reader = reader.options(**_READ_OPTIONS)
        paths: list[str] = []
        if connector is not None:
            reader = reader.options(**connector.options)
            paths += [connector.path(key) for key in files.keys]
        if tail is not None and not files.ranges:
            paths += tail.path(files.partition)
        return reader.parquet(*paths)

    def _shaped(self, frame: DataFrame, files: ColdFiles) -> DataFrame:
        """Return the rows that count, with the columns of our source."""
        for condition in (*_clip(files.ranges), *_filters(self._pinned.query)):
            frame = frame.where(condition)
        constants = {"topic": f.lit(self._read.topic), "partition": f.lit(files.partition)}
        if self._pinned.schema.get_field_index(TIMESTAMP_TYPE) < 0:
            constants[TIMESTAMP_TYPE] = f.lit(CREATE_TIME)
        columns = [constants.get(field.name, _column(field.name)) for field in self._fields]
        return frame.select(
            [column.alias(field.name) for column, field in zip(columns, self._fields, strict=True)]
        )

    def _rest(self, ranges: Mapping[int, Range]) -> DataFrame:
        """Return what our source reads: these offsets, whatever tier they are in by then."""
        kept = {name: text for name, text in self._given.items() if name.lower() not in _RANGE_OPTIONS}
        # With the schema given, Spark does not start a Python process to ask for it.
        reader = self._spark.read.format("tiered").schema(spark_schema(self._fields)).options(**kept)
        for index, name in enumerate(("startingOffsets", "endingOffsets")):
            bounds = {str(partition): item[index] for partition, item in ranges.items()}
            # Another topic may have the name when the query runs.
            named = {self._read.topic: bounds, TOPIC_ID: str(self._pinned.topic_id)}
            reader = reader.option(name, json.dumps(named))
        reader = reader.option("partitions", ",".join(map(str, ranges)))
        return reader.load(self._given["path"]) if "path" in self._given else reader.load()


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _clip(ranges: Sequence[Range]) -> list[Column]:
    """Return what keeps these offsets alone."""
    inside = [(_column("offset") >= start) & (_column("offset") < end) for start, end in ranges]
    return [reduce(lambda left, right: left | right, inside)] if inside else []


def _filters(query: Query) -> list[Column]:
    """Return the filters of a scan as Spark's."""
    at, found = _column("timestamp"), []
    if query.start_timestamp_us is not None:
        found.append(at >= f.timestamp_micros(f.lit(query.start_timestamp_us)))
    if query.end_timestamp_us is not None:
        found.append(at < f.timestamp_micros(f.lit(query.end_timestamp_us)))
    if query.key_column is not None:
        found.append(_column(query.key_column) == f.lit(query.key))
    return found


def _in_use(spark: SparkSession, frames: Sequence[DataFrame]) -> Callable[[], bool]:
    """Return a function that tells whether the JVM still has a plan, or an RDD, that reads one of the frames.

    All that was made of one shares the instance of its format, which no other object holds for long; the index of its
    files is held by plans alone, and not by what ``rdd`` or ``toLocalIterator()`` go by.
    """
    context, jvm = getattr(spark, "_sc", None), getattr(spark, "_jvm", None)
    if context is None or jvm is None:
        return lambda: True  # Spark Connect, whose client may lack Py4J: until this process ends
    from py4j.protocol import Py4JError

    new = jvm.java.lang.ref.WeakReference
    try:
        leaves = [frame._jdf.queryExecution().analyzed().collectLeaves() for frame in frames]
        formats = [new(found.apply(0).relation().fileFormat()) for found in leaves]
    except Py4JError:
        # Another version of Spark's reader, with other classes.
        return lambda: context._jsc is not None

    def in_use() -> bool:
        try:
            return context._jsc is not None and any(item.get() is not None for item in formats)
        except Py4JError:
            return False  # the JVM is gone

    return in_use
