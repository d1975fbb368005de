"""The streaming source: micro-batches of a topic, exact at every replay."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ...cold.manifest.commit import FIRST_LINEAGE
from ...engine.records import OffsetRange
from ...errors import ConfigError, OffsetOutOfRange, ServerUnavailable, TopicNotFound
from ...reader.query import select_partitions
from ...reader.scan import Scan
from ...store.interface.store import Store
from ...store.interface.topic import Topic
from ..columns import project
from ..errors import TerseTracebacks
from ..options import EARLIEST, LATEST, Lineages, SourceOptions
from ..read.planning import expand, in_common, open_source, scan_between, undone
from ..read.tasks import read_task, tasks_of
from .offsets import Offsets, from_json, ration, to_json

_log = logging.getLogger("tiered.spark.stream")
_T = TypeVar("_T")

# Spark asks every 10 ms for the latest offset. A bucket is asked as rarely as `read(follow=True)` asks it: each look is
# a GET a partition, and a head changes no more often than tails are shipped. A look at a writer has it flush.
_LOOK_SECONDS_LOCAL = 0.02
_LOOK_SECONDS_REMOTE = 0.05
_LOOK_SECONDS_BUCKET = 2.0
# What is lost, and stays lost, is said again after so long.
_SAY_AGAIN_SECONDS = 60.0
# How often retention may move the start offset while a plan is made that takes what is left.
_ATTEMPTS = 5

_LOST = (
    "records that this query has not read yet are gone, by retention, delete_before() or delete_topic(); to go on with "
    "what is there, set the option failOnDataLoss to false"
)
_UNDONE = (
    "what this query has read beyond that is no part of it any more; once that is removed from where the query wrote it, "
    "go on from offset {} by setting the option failOnDataLoss to false, or start with a new checkpointLocation"
)


@dataclass(frozen=True, slots=True)
class _Log:
    """A topic, its bounds by partition, and its lineages, as they were seen."""

    topic: Topic
    topic_id: UUID
    ranges: Mapping[int, OffsetRange]
    lineages: Lineages


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says how far a stream goes, and reads ranges of offsets.

    One lives in a process beside Spark's driver as long as the query runs, and keeps the store open; the executors
    get others, which only read. Nothing is kept but in Spark's checkpoint, so nothing is tied to `commit`.

    Parameters
    ----------
    clock
        Returns seconds of a clock that never goes back.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._store: Store | None = None
        self._log: _Log | None = None
        self._looked_at = 0.0
        self._target: Offsets | None = None
        self._batch_at: float | None = None
        self._missed_at: float | None = None
        self._said_at: dict[str, float] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return TieredStreamReader, (self._options, self._schema)

    # -- how far -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Return where a new query starts.

        Raises
        ------
        OffsetOutOfRange
            An offset that was asked for is not in the log, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            options, topic = self._options, self._topic()
            partitions = select_partitions(topic.meta, options.partitions)
            wanted = expand(topic, options.starting, partitions, "starting", options.without_match)
            # Seen anew, for what is looked at next must not be older than the start.
            log = self._look(fresh=True)
            found = {key: self._first(topic, log.ranges[key], value) for key, value in wanted.items()}
            return to_json(options.topic, log.topic_id, found, log.lineages)

    def _first(self, topic: Topic, log: OffsetRange, wanted: int) -> int:
        if wanted in (EARLIEST, LATEST):
            return log.start if wanted == EARLIEST else log.end
        if not log.start <= wanted <= log.end:
            self._report(
                f"the stream of topic {topic.name!r} is to start at offset {wanted} of partition {log.partition}; "
                f"the log has {log.start} to {log.end}",
                log,
            )
        return min(max(wanted, log.start), log.end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        stream = self._options.stream
        if stream.offsets_max is not None:
            return ReadMaxRows(stream.offsets_max)
        if stream.offsets_min is not None:
            return ReadMinRows(stream.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what there is now as all that this run of the query will read."""
        with TerseTracebacks():
            log = self._look(fresh=True).ranges
            self._target = {key: log[key].end for key in self._chosen(log)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends: `start` itself where there is nothing to read yet.

        Raises
        ------
        OffsetOutOfRange, TopicNotFound
            Retention, or a deletion, was faster than the query, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            topic_id, before, lineages = from_json(self._options.topic, start)
            seen = self._available()
            if seen is None:
                return start
            if topic_id not in (None, seen.topic_id):
                self._report_another()
                before, lineages = {}, None
            before = self._left_of(before, lineages, seen)
            log = seen.ranges
            starts, ends = self._bounds(before, log)
            after = ration(starts, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends
            if not isinstance(limit, ReadAllAvailable) and self._waits(starts, ends):
                after = before
            # What the option `partitions` leaves out stays where it was.
            after = {
                **{key: value for key, value in before.items() if key in log and key not in after},
                **after,
            }
            found = to_json(self._options.topic, seen.topic_id, after, self._lineages(lineages, seen))
            # Written by an older release, or before a restore, it is written anew: an empty micro-batch, once.
            return start if found == start else found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the log as it was last seen, for the progress of the query."""
        if self._log is None:
            return None
        log = self._log.ranges
        ends = {key: log[key].end for key in self._chosen(log)}
        return to_json(self._options.topic, self._log.topic_id, ends, self._log.lineages)

    def _left_of(self, offsets: Offsets, lineages: Lineages, log: _Log) -> Offsets:
        """Return what the log still has of what was read up to `offsets`; report what a restore took from under it."""
        found = self._in_common(offsets, lineages, log)
        for key, end in found.items():
            if end < offsets[key]:
                item = log.ranges[key]
                self._report(undone(self._options.topic, item, offsets[key], end), item, _UNDONE.format(end))
        return found

    def _in_common(self, offsets: Offsets, lineages: Lineages, log: _Log) -> Offsets:
        wanted = {key: value for key, value in offsets.items() if self._wanted(key)}
        return {**offsets, **in_common(log.topic, wanted, lineages, log.lineages)}

    def _lineages(self, before: Lineages, log: _Log) -> Lineages:
        """Return whose offsets those of a micro-batch are; what the option `partitions` leaves out stays where it was."""
        if before is None or log.lineages is None:
            return log.lineages
        return {
            key: epoch if self._wanted(key) else before.get(key, FIRST_LINEAGE)
            for key, epoch in log.lineages.items()
        }

    def _chosen(self, log: Mapping[int, OffsetRange]) -> list[int]:
        return [key for key in log if self._wanted(key)]

    def _available(self) -> _Log | None:
        """Return the log's bounds; None where there is no log."""
        now = self._clock()
        if self._missed_at is not None and now - self._missed_at < self._look_seconds():
            return None
        try:
            found = self._look()
        except TopicNotFound as gone:
            self._report(str(gone), gone)
            self._missed_at = now
            return None
        self._missed_at = None
        return found

    def _wanted(self, partition: int) -> bool:
        return self._options.partitions is None or partition in self._options.partitions

    def _bounds(self, before: Offsets, log: Mapping[int, OffsetRange]) -> tuple[Offsets, Offsets]:
        """Return what this run is to read of each partition; report what there is no more."""
        gone = [key for key in before if key not in log and self._wanted(key)]
        if gone:
            error = TopicNotFound(f"partitions {gone} of topic {self._options.topic!r} are gone")
            self._report(str(error), error)
        starts, ends, target = {}, {}, self._target
        for key in self._chosen(log):
            if target is not None and key not in target and key not in before:
                continue  # new since: none of this run's
            # A partition that is new to the query is read from its first record.
            start, item = before.get(key, 0), log[key]
            if not item.start <= start <= item.end:
                self._report_range(start, item)
            starts[key] = min(max(start, item.start), item.end)
            # A new query may start beyond the target, of which Spark asks first.
            last = item.end if target is None else min(item.end, target.get(key, 0))
            ends[key] = max(starts[key], last)
        return starts, ends

    def _waits(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether to wait for more, as the options say; a run that reads what there is now does not."""
        stream = self._options.stream
        if stream.offsets_min is None or self._target is not None:
            return False
        now = self._clock()
        waiting = sum(ends.values()) - sum(starts.values())
        # As in Kafka's source, the first micro-batch of a run takes what it finds.
        late = self._batch_at is None or now - self._batch_at >= stream.delay_seconds_max
        if waiting < stream.offsets_min and not late:
            return True
        self._batch_at = now
        return False

    # -- what ----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch: the same rows whenever it is asked for, wherever they lie by then.

        Raises
        ------
        OffsetOutOfRange, TopicNotFound
            Records of the range are gone, or not there yet, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            return self._reached(lambda: self._tasks(start, end))

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (before_id, before, from_lineages), (topic_id, ends, lineages) = (
            from_json(self._options.topic, document) for document in (start, end)
        )
        if None not in (before_id, topic_id) and before_id != topic_id:
            before, from_lineages = {}, None  # of another topic, which was there before this one
        if from_lineages == lineages and all(before.get(key, 0) >= ends[key] for key in ends):
            return []
        try:
            # In this order: a look may find that the server is gone, and what it had with it.
            log, topic = self._look(), self._topic()
        except TopicNotFound as gone:
            self._report(str(gone), gone)
            return []
        if topic_id not in (None, topic.meta.topic_id):
            self._report_another()
            return []
        # Where the micro-batch went back, that was said when it was planned.
        before = self._in_common(before, from_lineages, log)
        ends = self._left_of(ends, lineages, log)
        starts = {key: before.get(key, 0) for key in ends}
        projection = project(topic.schema, self._schema)
        scan = self._scan(topic, starts, ends, projection.scanned)
        if scan is None:
            return []
        return tasks_of(topic, scan, projection, self._options)

    def _scan(self, topic: Topic, starts: Offsets, ends: Offsets, columns: Sequence[str]) -> Scan | None:
        for attempt in range(_ATTEMPTS):
            missing = [key for key in ends if key >= topic.partitions]
            if missing:
                error = TopicNotFound(f"partitions {missing} of topic {topic.name!r} are gone")
                self._report(str(error), error)
            starts = {key: value for key, value in starts.items() if value < ends[key] and key not in missing}
            if not starts:
                return None
            try:
                scan = scan_between(topic, self._options, starts, {key: ends[key] for key in starts}, columns)
            except OffsetOutOfRange as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                log = topic.offsets()
                for key, value in starts.items():
                    if value < log[key].start:
                        self._report_range(value, log[key], error)
                starts = {key: max(value, log[key].start) for key, value in starts.items()}
                continue
            for key, (first, last) in scan.offsets.items():
                if last < ends[key]:
                    self._report_range(ends[key], OffsetRange(key, first, last))
            return scan
        raise AssertionError

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, the same ones at every attempt."""
        return read_task(partition)

    # -- the store -------------------------------------------------------------------------------------

    def _topic(self) -> Topic:
        """Return the topic as it is now: it may have grown by partitions and columns, or be another one."""
        if self._store is None:
            self._store = open_source(self._options)
        try:
            return self._store.topic(self._options.topic)
        except (ServerUnavailable, ConfigError):
            # The writer of a local path may serve no more, or elsewhere now; or its server wants another token than then.
            self.stop()
            self._store = open_source(self._options)
            return self._store.topic(self._options.topic)

    def _reached(self, ask: Callable[[], _T]) -> _T:
        """Return an answer of the store: if its server goes away in the middle, of what takes its place."""
        try:
            return ask()
        except ServerUnavailable:
            self.stop()
            return ask()

    def _look(self, *, fresh: bool = False) -> _Log:
        """Return the log's bounds as they are, or were a moment ago."""
        now = self._clock()
        if fresh or self._log is None or now - self._looked_at >= self._look_seconds():
            # Ends do not go back, but where a disk was lost, or the topic: `_bounds` reports that.
            self._log = self._reached(self._seen)
            self._looked_at = now
        return self._log

    def _seen(self) -> _Log:
        topic = self._topic()
        return _Log(topic, topic.meta.topic_id, topic.offsets(), topic.lineages())

    def _look_seconds(self) -> float:
        store = self._store
        if store is None or store.tiers is None:
            return _LOOK_SECONDS_REMOTE
        return _LOOK_SECONDS_BUCKET if store.tiers.locations.root is None else _LOOK_SECONDS_LOCAL

    def stop(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = self._log = None

    # -- what is lost ------------------------------------------------------------------------------------

    def _report_range(self, wanted: int, log: OffsetRange, cause: OffsetOutOfRange | None = None) -> None:
        self._report(
            f"offset {wanted} of topic {self._options.topic!r} partition {log.partition} is not there; the log has "
            f"{log.start} to {log.end}",
            cause or log,
        )

    def _report_another(self) -> None:
        error = TopicNotFound(f"topic {self._options.topic!r} was deleted and created again")
        self._report(str(error), error)

    def _report(
        self, what: str, at: OffsetRange | OffsetOutOfRange | TopicNotFound, advice: str = _LOST
    ) -> None:
        """Raise what was found, or log it, as the user chose."""
        if not self._options.fail_on_data_loss:
            now = self._clock()
            self._said_at = {
                text: then for text, then in self._said_at.items() if now - then < _SAY_AGAIN_SECONDS
            }
            if what not in self._said_at:
                self._said_at[what] = now
                _log.warning("failOnDataLoss is off, going on with what is there: %s", what)
            return
        message = f"{what}: {advice}"
        if isinstance(at, TopicNotFound):
            raise TopicNotFound(message)
        raise OffsetOutOfRange(message, start=at.start, end=at.end)
