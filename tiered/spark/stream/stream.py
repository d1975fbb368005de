"""The streaming source: micro-batches of a topic, with the same rows at each replay."""

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
from ...errors import ConfigError, OffsetOutOfRange, ServerUnavailable, TieredError, TopicNotFound
from ...reader.query import select_partitions
from ...reader.scan import Scan
from ...store.interface.store import Store
from ...store.interface.topic import Topic
from ..columns import project
from ..errors import TerseTracebacks
from ..options import EARLIEST, LATEST, Lineages, SourceOptions
from ..read.planning import common_offsets, expand, open_source, restore_message, scan_between
from ..read.tasks import read_task, tasks_of
from .offsets import Offsets, from_json, ration, to_json
from .progress import Progress

_log = logging.getLogger("tiered.spark.stream")
_T = TypeVar("_T")

# Spark asks for the latest offsets every 10 ms. These are the intervals of reading the bounds of the log. A writer
# flushes for each such read. A bucket takes a GET for each partition, and its heads change no more often than tails are
# shipped; `read(follow=True)` has the same interval.
_BOUNDS_SECONDS_LOCAL = 0.02
_BOUNDS_SECONDS_REMOTE = 0.05
_BOUNDS_SECONDS_BUCKET = 2.0
# The same loss is logged again after so long.
_LOG_AGAIN_SECONDS = 60.0
# Without failOnDataLoss, planning starts again when retention moves the start offset: at most so often.
_ATTEMPTS = 5

_DELETED_ADVICE = (
    "records that this query has not read yet are gone, by retention, delete_before() or delete_topic(); to go on with "
    "the records in the log, set the option failOnDataLoss to false"
)
_RESTORED_ADVICE = (
    "the query has read records from there on that the restored log does not have; delete them where the query wrote "
    "them, then go on from offset {} by setting the option failOnDataLoss to false, or start with a new checkpointLocation"
)


@dataclass(frozen=True, slots=True)
class _Log:
    """A topic with its bounds by partition and its lineages, at one time."""

    topic: Topic
    topic_id: UUID
    ranges: Mapping[int, OffsetRange]
    lineages: Lineages


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Chooses the offsets of each micro-batch, and reads them.

    One reader runs in a process beside Spark's driver as long as the query, and keeps the store open. The executors get
    copies, which only read. All state is in Spark's checkpoint, so `commit` only publishes progress.

    Parameters
    ----------
    clock
        Returns the seconds of a monotonic clock.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._store: Store | None = None
        self._log: _Log | None = None
        self._read_at = 0.0
        self._target: Offsets | None = None
        self._batch_at: float | None = None
        self._missing_at: float | None = None
        self._logged_at: dict[str, float] = {}
        self._progress = None if options.stream.consumer is None else Progress(options.stream.consumer)

    def __reduce__(self) -> tuple[object, ...]:
        return TieredStreamReader, (self._options, self._schema)

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Return where a new query starts.

        Raises
        ------
        OffsetOutOfRange
            An offset that the options name is not in the log, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            options, topic = self._options, self._topic()
            if self._progress is not None:
                self._progress.check(topic)
            partitions = select_partitions(topic.meta, options.partitions)
            starts = expand(topic, options.starting, partitions, "starting", options.without_match)
            # Fresh bounds: older ones could end before the start.
            log = self._read_log(fresh=True)
            offsets = {key: self._start(topic, log.ranges[key], value) for key, value in starts.items()}
            return to_json(options.topic, log.topic_id, offsets, log.lineages)

    def _start(self, topic: Topic, log: OffsetRange, offset: int) -> int:
        if offset in (EARLIEST, LATEST):
            return log.start if offset == EARLIEST else log.end
        if not log.start <= offset <= log.end:
            self._report(
                f"the stream of topic {topic.name!r} is to start at offset {offset} of partition {log.partition}; "
                f"the log has {log.start} to {log.end}",
                log,
            )
        return min(max(offset, log.start), log.end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch by the options."""
        stream = self._options.stream
        if stream.offsets_max is not None:
            return ReadMaxRows(stream.offsets_max)
        if stream.offsets_min is not None:
            return ReadMinRows(stream.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present ends of the log as the target of this run of the query."""
        with TerseTracebacks():
            log = self._read_log(fresh=True).ranges
            self._target = {key: log[key].end for key in self._selected(log)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if there is nothing to read yet.

        Raises
        ------
        OffsetOutOfRange, TopicNotFound
            Retention or a deletion removed records that the query has not read, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            topic_id, before, lineages = from_json(self._options.topic, start)
            log = self._existing_log()
            if log is None:
                return start
            if topic_id not in (None, log.topic_id):
                self._report_new_topic()
                before, lineages = {}, None
            before = self._after_restore(before, lineages, log)
            starts, ends = self._bounds(before, log.ranges)
            after = ration(starts, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends
            if not isinstance(limit, ReadAllAvailable) and self._waits(starts, ends):
                after = before
            # Partitions that the option `partitions` leaves out keep their offsets.
            after = {
                **{key: value for key, value in before.items() if key in log.ranges and key not in after},
                **after,
            }
            end = to_json(self._options.topic, log.topic_id, after, self._lineages(lineages, log))
            # Offsets of an older release, or from before a restore, change their form: by one empty micro-batch.
            return start if end == start else end

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the end of a micro-batch that Spark has completed, if the option `consumer` asks for it."""
        if self._progress is None:
            return
        topic_id, offsets, lineages = from_json(self._options.topic, end)
        try:
            topic = self._topic()
        except TieredError as error:
            _log.warning("the progress of the query is published with a later micro-batch: %s", error)
            return
        if topic_id in (None, topic.meta.topic_id):
            chosen = {key: at for key, at in offsets.items() if self._selects(key)}
            self._progress.publish(topic, chosen, lineages)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the log when it was last read, for the progress of the query."""
        if self._log is None:
            return None
        log = self._log.ranges
        ends = {key: log[key].end for key in self._selected(log)}
        return to_json(self._options.topic, self._log.topic_id, ends, self._log.lineages)

    def _after_restore(self, offsets: Offsets, lineages: Lineages, log: _Log) -> Offsets:
        """Return the offsets, reduced to the end that a restored log shares with the one before; report the difference."""
        common = self._common(offsets, lineages, log)
        for key, end in common.items():
            if end < offsets[key]:
                partition = log.ranges[key]
                message = restore_message(self._options.topic, partition, offsets[key], end)
                self._report(message, partition, _RESTORED_ADVICE.format(end))
        return common

    def _common(self, offsets: Offsets, lineages: Lineages, log: _Log) -> Offsets:
        selected = {key: value for key, value in offsets.items() if self._selects(key)}
        return {**offsets, **common_offsets(log.topic, selected, lineages, log.lineages)}

    def _lineages(self, before: Lineages, log: _Log) -> Lineages:
        """Return the lineages of the end of a micro-batch; partitions that the query does not read keep theirs."""
        if before is None or log.lineages is None:
            return log.lineages
        return {
            key: epoch if self._selects(key) else before.get(key, FIRST_LINEAGE)
            for key, epoch in log.lineages.items()
        }

    def _selects(self, partition: int) -> bool:
        """Whether the query reads this partition, by the option `partitions`."""
        return self._options.partitions is None or partition in self._options.partitions

    def _selected(self, log: Mapping[int, OffsetRange]) -> list[int]:
        return [key for key in log if self._selects(key)]

    def _existing_log(self) -> _Log | None:
        """Return the topic and its bounds; None while there is no such topic."""
        now = self._clock()
        if self._missing_at is not None and now - self._missing_at < self._bounds_seconds():
            return None
        try:
            log = self._read_log()
        except TopicNotFound as error:
            self._report(str(error), error)
            self._missing_at = now
            return None
        self._missing_at = None
        return log

    def _bounds(self, before: Offsets, log: Mapping[int, OffsetRange]) -> tuple[Offsets, Offsets]:
        """Return the range of each partition that this run may read; report records that are gone."""
        missing = [key for key in before if key not in log and self._selects(key)]
        if missing:
            self._report_partitions(missing)
        starts, ends, target = {}, {}, self._target
        for key in self._selected(log):
            if target is not None and key not in target and key not in before:
                continue  # created after the target was fixed
            # The query reads a new partition from its first record.
            start, partition = before.get(key, 0), log[key]
            if not partition.start <= start <= partition.end:
                self._report_range(start, partition)
            starts[key] = min(max(start, partition.start), partition.end)
            # A new query may start beyond the target, which Spark fixes first.
            last = partition.end if target is None else min(partition.end, target.get(key, 0))
            ends[key] = max(starts[key], last)
        return starts, ends

    def _waits(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether a micro-batch waits for `minOffsetsPerTrigger`; a run with a target does not."""
        stream = self._options.stream
        if stream.offsets_min is None or self._target is not None:
            return False
        now = self._clock()
        unread = sum(ends.values()) - sum(starts.values())
        # As in Kafka's source, the first micro-batch of a run does not wait.
        overdue = self._batch_at is None or now - self._batch_at >= stream.delay_seconds_max
        if unread < stream.offsets_min and not overdue:
            return True
        self._batch_at = now
        return False

    # -- tasks ---------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch. A replay has the same rows, whichever tier has them by then.

        Raises
        ------
        OffsetOutOfRange, TopicNotFound
            The log does not have all records of the range, and ``failOnDataLoss`` is on.
        """
        with TerseTracebacks():
            return self._with_server(lambda: self._tasks(start, end))

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (before_id, before, from_lineages), (topic_id, ends, lineages) = (
            from_json(self._options.topic, document) for document in (start, end)
        )
        if None not in (before_id, topic_id) and before_id != topic_id:
            before, from_lineages = {}, None  # the start belongs to a deleted topic of the same name
        if from_lineages == lineages and all(before.get(key, 0) >= ends[key] for key in ends):
            return []
        try:
            # In this order: reading the log may replace a store whose server is gone, and the topic with it.
            log, topic = self._read_log(), self._topic()
        except TopicNotFound as error:
            self._report(str(error), error)
            return []
        if topic_id not in (None, topic.meta.topic_id):
            self._report_new_topic()
            return []
        # A start before a restore was reported when this micro-batch was planned.
        before = self._common(before, from_lineages, log)
        ends = self._after_restore(ends, lineages, log)
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
                self._report_partitions(missing)
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
        """Yield the rows of one task, the same rows at each attempt."""
        return read_task(partition)

    # -- the store -------------------------------------------------------------------------------------

    def _topic(self) -> Topic:
        """Return the topic as it is now. It may have new partitions and columns, or be a new topic of the same name."""
        if self._store is None:
            self._store = open_source(self._options)
        try:
            return self._store.topic(self._options.topic)
        except (ServerUnavailable, ConfigError):
            # The writer may have stopped its server, or moved it, or changed its token. Find it again.
            self.stop()
            self._store = open_source(self._options)
            return self._store.topic(self._options.topic)

    def _with_server(self, ask: Callable[[], _T]) -> _T:
        """Return an answer of the store. If its server goes away meanwhile, ask the store that replaces it."""
        try:
            return ask()
        except ServerUnavailable:
            self.stop()
            return ask()

    def _read_log(self, *, fresh: bool = False) -> _Log:
        """Return the topic and its bounds, now or of a moment ago."""
        now = self._clock()
        if fresh or self._log is None or now - self._read_at >= self._bounds_seconds():
            # Ends go back only when a disk was lost or the topic is new; `_bounds` reports that.
            self._log = self._with_server(self._current_log)
            self._read_at = now
        return self._log

    def _current_log(self) -> _Log:
        topic = self._topic()
        return _Log(topic, topic.meta.topic_id, topic.offsets(), topic.lineages())

    def _bounds_seconds(self) -> float:
        store = self._store
        if store is None or store.tiers is None:
            return _BOUNDS_SECONDS_REMOTE
        return _BOUNDS_SECONDS_BUCKET if store.tiers.locations.root is None else _BOUNDS_SECONDS_LOCAL

    def stop(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = self._log = None

    # -- lost records ------------------------------------------------------------------------------------

    def _report_range(self, offset: int, log: OffsetRange, cause: OffsetOutOfRange | None = None) -> None:
        self._report(
            f"offset {offset} of topic {self._options.topic!r} partition {log.partition} is not there; the log has "
            f"{log.start} to {log.end}",
            cause or log,
        )

    def _report_partitions(self, missing: list[int]) -> None:
        error = TopicNotFound(f"partitions {missing} of topic {self._options.topic!r} are gone")
        self._report(str(error), error)

    def _report_new_topic(self) -> None:
        error = TopicNotFound(f"topic {self._options.topic!r} was deleted and created again")
        self._report(str(error), error)

    def _report(
        self,
        message: str,
        cause: OffsetRange | OffsetOutOfRange | TopicNotFound,
        advice: str = _DELETED_ADVICE,
    ) -> None:
        """Raise an error, or log it if ``failOnDataLoss`` is off: each message once in `_LOG_AGAIN_SECONDS`."""
        if not self._options.fail_on_data_loss:
            now = self._clock()
            self._logged_at = {
                text: at for text, at in self._logged_at.items() if now - at < _LOG_AGAIN_SECONDS
            }
            if message not in self._logged_at:
                self._logged_at[message] = now
                _log.warning("failOnDataLoss is off, going on with what is there: %s", message)
            return
        message = f"{message}: {advice}"
        if isinstance(cause, TopicNotFound):
            raise TopicNotFound(message)
        raise OffsetOutOfRange(message, start=cause.start, end=cause.end)
