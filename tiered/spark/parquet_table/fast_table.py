"""The fast table: a snapshot whose objects in the bucket Spark's own Parquet reader reads."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...base.units import parse_size
from ...cold.parquet.layout import object_schema
from ...errors import ConfigError, ReadOnly
from ...flight.client.remote_scan import RemoteScan, RemoteSplit
from ...reader.pruning import prune_splits
from ...reader.rows import Query
from ...reader.scan import Scan
from ...reader.snapshot import published_extents
from ...reader.splits import ColdSource, Extent, Split
from ...reader.tiers import Tiers
from ...store.interface.store import Store
from ...store.interface.topic import Topic
from ..columns import CREATE_TIME, TIMESTAMP_TYPE, choose_fields, spark_schema
from ..options import TOPIC_ID, SourceOptions, parse_options
from ..read.planning import open_source, pinned_scan
from ..read.remote import RemoteLocations
from .connector import Connector, find_connector
from .leases import LEASE_SECONDS, BucketLease, lease_keeper, take_lease
from .plan import ColdFiles, Range, TablePlan, clip_splits, cold_first, plan_table
from .tail import TAIL_BYTES, TailFiles, folder_for_tails, write_tail

_log = logging.getLogger("tiered.spark.fast_table")

# Spark verifies checksums only with this option, and a session may skip files that it cannot read (promises P4, P8).
# Arrow writes dates without rebasing them, which Spark calls corrected.
_READ_OPTIONS = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}

# Options that the plan sets for the part that our own source reads.
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
    tail: Literal["read", "publish"] = "read",
    tail_bytes: int | str = TAIL_BYTES,
    **options: str | int | bool,
) -> DataFrame:
    """Return a snapshot of a topic, for queries at the speed of Spark's own Parquet reader.

    This call pins the snapshot. Spark reads its objects in the bucket as Parquet: filters, column pruning and
    aggregates run in the JVM, without Python. The data source ``tiered`` reads the offsets that are not in the bucket,
    and a union joins the two parts. In a local session, this call writes a small tail to files beside Spark's own
    temporary files, so that no query starts Python. Columns, their types and their order are those of
    ``spark.read.format("tiered")``.

    Spark verifies the checksums of the Parquet pages that it reads. Unlike our own reader, it does not verify the
    objects' footers, and does not compare objects with the manifest.

    A lease keeps the sweep from deleting the snapshot's objects as long as the session has a plan that reads them.
    Without permission to write to the bucket there is no lease, and the objects stay for ``sweep.grace``.

    Parameters
    ----------
    path
        The same as for ``load()``: a local store, ``s3://bucket/prefix``, ``file:///directory`` or ``grpc://host:port``.
    prefer
        The tier to read records from that are in the bucket and in a local file: ``"cold"`` reads the Parquet object,
        in the JVM; ``"warm"`` reads the local file, through Python, for a bucket that is far away.
    tail
        What becomes of records that are not in the bucket. With ``"publish"`` this call asks the writer to publish them, and
        waits: then Spark's Parquet reader reads everything, on a cluster too, and no query starts Python. `path` must be the
        address of a server, or a directory that is served.
    tail_bytes
        The largest tail that this call writes to files in a local session (``local[*]``), measured as Arrow: in bytes
        or as ``"256MiB"`` (the default). Each query reads a larger tail itself. 0: each query reads the tail itself, as on a
        cluster, and from the bucket what the bucket has of it.
    **options
        Options of `TieredDataSource`: ranges, ``partitions``, ``key``, ``columns``, ``includeHeaders``, ``endpointUrl``
        and the rest.

    Returns
    -------
    pyspark.sql.DataFrame
        If Spark has no connector for the bucket (S3A for ``s3://``), the data source reads all of it, and a warning
        says so.

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
    if tail not in ("read", "publish"):
        raise ConfigError(f'tail is "read" or "publish", not {tail!r}')
    if tail == "publish" and prefer == "warm":
        raise ConfigError('with tail="publish" everything is read from the bucket: leave prefer out')
    try:
        tail_bytes_max = parse_size(tail_bytes)
    except ValueError as error:
        raise ConfigError(f"tail_bytes is {tail_bytes!r}: {error}") from None
    texts = {name: _text(value) for name, value in options.items()} | {"topic": topic}
    if path is not None:
        texts["path"] = os.fspath(path)
    read = parse_options(texts)
    with open_source(read) as store:
        # One handle for both: meanwhile a new topic may get its name.
        handle = store.topic(read.topic)
        # Fails for a wrong column, before there is a lease to release.
        choose_fields(handle.schema, read.columns, headers=read.include_headers)
        ends = _published(store, handle) if tail == "publish" else None
        # A local file replaces hundreds of small objects, but each query on a cluster would read it through Python.
        folder = folder_for_tails(spark) if tail_bytes_max else None
        pinned = _pin(spark, handle, read, prefer, ends, tails=ends is not None or folder is None)
        if folder is not None:
            pinned = _with_tail(handle, read, pinned, tail_bytes_max, folder)
    return _Assembly(spark, texts, read, pinned).frame()


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A snapshot with its division and the lease on its objects."""

    topic_id: UUID
    schema: pa.Schema
    query: Query
    plan: TablePlan
    connector: Connector | None
    lease: BucketLease | None
    splits: Sequence[Split]
    tail: TailFiles | None = None

    def release(self) -> None:
        """Release the lease and remove the files, after an error."""
        if self.lease is not None:
            self.lease.release()
        if self.tail is not None:
            self.tail.remove()


def _published(store: Store, topic: Topic) -> dict[int, int]:
    """Let the writer publish all durable records; return the ends of a moment before that."""
    ends = store.snapshot([topic.name]).ends[topic.name]
    try:
        topic.publish()
    except ReadOnly:
        raise ConfigError(
            f"{store.url} cannot be asked to publish, since no server of its writer is known here: write to the address of "
            '`tiered serve`, or leave tail="publish" out'
        ) from None
    return ends


def _pin(
    spark: SparkSession,
    topic: Topic,
    read: SourceOptions,
    prefer: str,
    ends: Mapping[int, int] | None,
    *,
    tails: bool,
) -> _Pinned:
    # A server names its bucket in a plan. The plan is made again when there is a lease.
    bucket = topic.tiers or _bucket_of(pinned_scan(topic, read, ["offset"]), read)
    url = bucket.locations.cold_url if bucket.has_cold else None
    connector = find_connector(spark, url, bucket.locations.cold_options) if url is not None else None
    if url is not None and connector is None:
        _log.warning(
            "this Spark session has no connector for %s: table() reads all through Python, as load() does",
            url,
        )
    # A lease covers only snapshots that are taken after it.
    lease = take_lease(url, bucket) if url is not None and connector is not None else None
    try:
        scan = pinned_scan(topic, read, ["offset"])
        if (explanation := scan.explain()).committed_us:
            _log.info("%s", explanation)  # says how far behind the writer this can be
        splits = [_direct(split) for split in scan.splits()]
        if connector is not None and prefer == "cold":
            splits = _cold_first(topic, bucket, splits, tails=tails)
        if ends is not None:
            splits = list(clip_splits(splits, ends))
        plan = plan_table(prune_splits(splits, scan.query.predicate), parquet=connector is not None)
    except BaseException:
        if lease is not None:
            lease.release()
        raise
    finally:
        if topic.tiers is None:
            bucket.close()
    if lease is not None and not plan.cold:
        lease.release()
        lease = None
    return _Pinned(topic.meta.topic_id, topic.schema, scan.query, plan, connector, lease, splits)


def _with_tail(topic: Topic, read: SourceOptions, pinned: _Pinned, bytes_max: int, folder: Path) -> _Pinned:
    """Write the tail to files if it is small, which leaves no reads through our source in the plan."""
    plan = pinned.plan
    reads_objects = pinned.connector is None and any(
        isinstance(item.source, ColdSource) for item in pinned.splits
    )
    if not plan.rest or reads_objects:
        return pinned
    stored = [field.name for field in object_schema(pinned.schema)]
    fields = choose_fields(pinned.schema, read.columns, headers=read.include_headers)
    needed = {field.name for field in fields} | {"offset", "timestamp", pinned.query.key_column}
    columns = [name for name in stored if name in needed]
    try:
        tail = write_tail(topic, read, pinned.splits, plan.rest, columns, bytes_max, folder)
    except BaseException:
        pinned.release()
        raise
    if tail is None:
        return pinned
    tail_only = sorted(tail.names.keys() - {files.partition for files in plan.cold if not files.ranges})
    cold = (*plan.cold, *(ColdFiles(partition, ()) for partition in tail_only))
    return replace(pinned, plan=TablePlan(cold, ()), tail=tail)


def _bucket_of(scan: Scan, read: SourceOptions) -> Tiers:
    """Return the bucket of a served store as tiers without a directory: the server reads its local tiers."""
    assert isinstance(scan, RemoteScan)
    remote = RemoteLocations.of(scan, read)
    locations = replace(remote.on_this_host(), root=None)
    is_here = scan.same_directory and (locations.cold_url or "").startswith("file:")
    if not remote.shared_bucket and not is_here:
        locations = replace(locations, cold_url=None)  # a directory of the server's host, or its memory
    return Tiers(locations)


def _direct(split: Split) -> Split:
    """Return a split of a server's plan as a split of the bucket, if the bucket has it."""
    return (split.direct(None) or split) if isinstance(split, RemoteSplit) else split


def _cold_first(topic: Topic, tiers: Tiers, splits: Sequence[Split], *, tails: bool) -> list[Split]:
    bounds: dict[int, Range] = {}
    for split in splits:
        start, _ = bounds.get(split.partition, (split.start_offset, 0))
        bounds[split.partition] = start, split.end_offset
    local = {split.partition for split in splits if not isinstance(split.source, ColdSource)}
    published = {
        partition: published_extents(tiers, topic.meta, partition, *bounds[partition])
        for partition in sorted(local)
    }
    if not tails:
        published = {partition: _sealed(extents) for partition, extents in published.items()}
    return cold_first(topic.name, splits, published)


def _sealed(extents: Sequence[Extent]) -> list[Extent]:
    """Leave out tails of active segments."""
    return [item for item in extents if isinstance(item.source, ColdSource) and item.source.entry.sealed]


class _Assembly:
    """Builds one DataFrame from the parts of a plan."""

    def __init__(
        self, spark: SparkSession, texts: Mapping[str, str], read: SourceOptions, pinned: _Pinned
    ) -> None:
        self._spark = spark
        self._texts = texts
        self._read = read
        self._pinned = pinned
        self._fields = choose_fields(pinned.schema, read.columns, headers=read.include_headers)

    def frame(self) -> DataFrame:
        """Return all rows. The lease is held as long as a plan that reads the objects exists."""
        plan, lease, tail = self._pinned.plan, self._pinned.lease, self._pinned.tail
        try:
            frames = [self._parquet(files) for files in plan.cold]
        except BaseException:
            self._pinned.release()
            raise
        in_use = _in_use(self._spark, frames)
        if lease is not None:
            erasures = lease.erasures(self._pinned.topic_id)
            lease_keeper().add(lease.lease, LEASE_SECONDS, in_use, lease.bucket.close, erasures)
        if tail is not None:
            lease_keeper().add(None, 0, in_use, tail.remove)
        parts = [self._rows(frame, files) for frame, files in zip(frames, plan.cold, strict=True)]
        parts += [self._source(ranges) for ranges in plan.rest]
        if not parts:
            return self._spark.createDataFrame([], spark_schema(self._fields))
        return reduce(lambda left, right: left.union(right), parts)

    def _parquet(self, files: ColdFiles) -> DataFrame:
        """Return objects and the file of the tail by Spark's Parquet reader; columns that a file lacks are null."""
        connector, tail = self._pinned.connector, self._pinned.tail
        reader = self._spark.read.schema(spark_schema(list(object_schema(self._pinned.schema))))
        reader = reader.options(**_READ_OPTIONS)
        paths: list[str] = []
        if connector is not None:
            reader = reader.options(**connector.options)
            paths += [connector.path(key) for key in files.keys]
        if tail is not None and not files.ranges:
            paths += tail.paths(files.partition)
        return reader.parquet(*paths)

    def _rows(self, frame: DataFrame, files: ColdFiles) -> DataFrame:
        """Return the rows of the snapshot in a frame of Parquet files, with the columns of our source."""
        for condition in (*_clip(files.ranges), *_filters(self._pinned.query)):
            frame = frame.where(condition)
        constants = {"topic": f"'{self._read.topic}'", "partition": str(files.partition)}
        if self._pinned.schema.get_field_index(TIMESTAMP_TYPE) < 0:
            constants[TIMESTAMP_TYPE] = str(CREATE_TIME)
        # A name alone: each operation on a column asks the JVM several times.
        return frame.select(
            [
                _constant(constants[field.name]).alias(field.name)
                if field.name in constants
                else _quoted(field.name)
                for field in self._fields
            ]
        )

    def _source(self, ranges: Mapping[int, Range]) -> DataFrame:
        """Return ranges of offsets by our source, which reads them from whichever tier has them at the query."""
        options = {name: text for name, text in self._texts.items() if name.lower() not in _RANGE_OPTIONS}
        # With a schema here, Spark does not start a Python process for it.
        reader = self._spark.read.format("tiered").schema(spark_schema(self._fields)).options(**options)
        for index, name in enumerate(("startingOffsets", "endingOffsets")):
            bounds = {str(partition): item[index] for partition, item in ranges.items()}
            # With the id, since a new topic may have the name when the query runs.
            offsets = {self._read.topic: bounds, TOPIC_ID: str(self._pinned.topic_id)}
            reader = reader.option(name, json.dumps(offsets))
        reader = reader.option("partitions", ",".join(map(str, ranges)))
        return reader.load(self._texts["path"]) if "path" in self._texts else reader.load()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    return f.col(_quoted(name))


def _constant(text: str) -> Column:
    """Return a constant that may be null for all Spark knows, as the columns of our source; its optimizer finds the value."""
    return f.expr(f"if(true, {text}, null)")


def _clip(ranges: Sequence[Range]) -> list[Column]:
    """Return the condition on offsets, if there are ranges."""
    inside = [(_column("offset") >= start) & (_column("offset") < end) for start, end in ranges]
    return [reduce(lambda left, right: left | right, inside)] if inside else []


def _filters(query: Query) -> list[Column]:
    """Return the filters of a scan as Spark's conditions."""
    at, conditions = _column("timestamp"), []
    if query.start_timestamp_us is not None:
        conditions.append(at >= f.timestamp_micros(f.lit(query.start_timestamp_us)))
    if query.end_timestamp_us is not None:
        conditions.append(at < f.timestamp_micros(f.lit(query.end_timestamp_us)))
    if query.key_column is not None:
        conditions.append(_column(query.key_column) == f.lit(query.key))
    return conditions


def _in_use(spark: SparkSession, frames: Sequence[DataFrame]) -> Callable[[], bool]:
    """Return a function that tells whether the JVM still has a plan, or an RDD, that reads one of the frames.

    All plans and RDDs of a frame share one instance of its file format, and no other object refers to it for long. (The
    index of the files would not do: ``rdd`` and ``toLocalIterator()`` do not refer to it.)
    """
    context, jvm = getattr(spark, "_sc", None), getattr(spark, "_jvm", None)
    if context is None or jvm is None:
        # Spark Connect, whose client may lack Py4J: the lease lasts as long as this process.
        return lambda: True
    from py4j.protocol import Py4JError

    new = jvm.java.lang.ref.WeakReference
    try:
        leaves = [frame._jdf.queryExecution().analyzed().collectLeaves() for frame in frames]
        formats = [new(relations.apply(0).relation().fileFormat()) for relations in leaves]
    except Py4JError:
        # This version of Spark has other classes: the lease lasts as long as the session.
        return lambda: context._jsc is not None

    def in_use() -> bool:
        try:
            return context._jsc is not None and any(item.get() is not None for item in formats)
        except Py4JError:
            return False  # the JVM is gone

    return in_use
