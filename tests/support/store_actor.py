"""Calls a store and keeps the model beside it: what each call may do is marked before it, what it promised after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tests.support.partition_writers import batch_of
from tests.support.recorder import Recorder
from tests.support.stores import stepwise
from tests.support.topic_model import Expected, Log, Model, TopicModel, Violation, survivor
from tiered.engine.host import Host
from tiered.format.block import encode_body
from tiered.policies.actions import Expire

COLD = "s3://bucket/prefix"
POLICY = {"roll": {"bytes": "3KiB", "age": "off"}, "offload": {"after": "4h", "tail_interval": "1s"}}


class Actor:
    """A user of one store in one process.

    Attributes
    ----------
    store : tiered.Store
        As it was opened last.
    """

    store: tiered.Store

    def __init__(self, recorder: Recorder, clock: Clock, sync: str, path: Path | None = None) -> None:
        self.recorder = recorder
        self.clock = clock
        self.sync = sync
        self.path = path or recorder.root / "data"
        self.model = Model(lambda: len(recorder.journal))
        self.host = Host(clock=clock, fs=recorder, open_bucket=recorder.open_bucket)

    def settings(self, **rules: Any) -> tiered.Settings:
        return stepwise({"sync": self.sync}, **(POLICY | rules))

    # -- opening, looking --------------------------------------------------------------------------

    def open(self, **rules: Any) -> None:
        """Open for writing."""
        self.store = tiered.open(self.path, cold=COLD, settings=self.settings(**rules), host=self.host)
        self.model.created = True
        self.model.mark()

    def close(self) -> None:
        self._drain()
        self.store.close()
        self._acknowledge()

    def reader(self) -> tiered.Store:
        """Open as another process would, for reading."""
        return tiered.open(self.path, cold=COLD, settings=self.settings(), host=self.host, read_only=True)

    def recover(self, expected: Expected, *, kill: bool) -> None:
        """Look, as a reader, at what a crash left; the model is what was found from here on.

        Raises
        ------
        Violation
            It is not what is expected.
        """
        self.model.expect(expected)
        try:
            reader = self.reader()
        except tiered.ConfigError:
            if expected.created:
                raise Violation("the store is missing") from None
            self.model.mark()
            return
        with reader as store:
            names = set(store.topics())
            if names - expected.topics.keys():
                raise Violation(f"there are topics that nobody created: {names - expected.topics.keys()}")
            for name, alternatives in expected.topics.items():
                found = look(store.topic(name)) if name in names else None
                topic = survivor(name, alternatives, found, kill=kill)
                if topic is not None and topic.columns:
                    topic.columns = tuple(store.topic(name).schema.names)
                self.model.topics[name] = (topic,)
        self.model.created = True
        self.model.mark()

    def scan(self, store: tiered.Store | None = None) -> None:
        """Read everything; it is as the model has it, and durable from here on."""
        self._drain()
        own = store is None or store is self.store
        for name in list(self.model.topics):
            if self.model.topics[name] == (None,):
                continue
            topic = self.model.topic(name)
            found = look((store or self.store).topic(name))
            for partition, (log, (start, end, values)) in enumerate(zip(topic.logs, found, strict=True)):
                low = log.shown if not own else log.end
                if (
                    not low <= end <= log.end
                    or values != log.values[start:end]
                    or not log.start[0] <= start <= log.start[1]
                ):
                    raise Violation(
                        f"{name!r}/{partition} reads [{start}, {end}) with {len(values)} records: not what was "
                        f"appended, [{log.start}, {low}..{log.end})"
                    )
                log.shown = max(log.shown, end)
                if self.sync != "never":
                    log.acknowledged = max(log.acknowledged, end)
        self.model.mark()

    def scan_beside(self) -> None:
        """Read everything in another process."""
        with self.reader() as store:
            self.scan(store)

    # -- topics ----------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, columns: tuple[str, ...] = ()) -> None:
        """Create a topic: typed, with int64 columns, or of records."""
        topic = TopicModel(name, [Log() for _ in range(partitions)], columns)
        self.model.topics[name] = (None, topic)
        self.model.mark()
        schema = pa.schema([(column, pa.int64()) for column in columns]) if columns else None
        self.store.create_topic(name, partitions=partitions, schema=schema, exist_ok=True)
        self.model.topics[name] = (topic,)
        self.model.mark()

    def delete(self, name: str) -> None:
        topic = self.model.topics[name][0]
        self.model.topics[name] = (topic, None)
        self.model.mark()
        self.store.delete_topic(name)
        self.model.topics[name] = (None,)
        self.model.mark()

    def add_column(self, name: str, column: str) -> None:
        topic = self.model.topic(name)
        self._drain()
        if column not in self.store.topic(name).schema.names:
            self.store.topic(name).add_columns(pa.schema([(column, pa.int64())]))
        topic.columns += (column,)
        self.model.mark()

    # -- appending -------------------------------------------------------------------------------

    def append(self, name: str, *values: int, partition: int = 0, sync: bool | None = None) -> None:
        """Append records one by one; a value becomes one of the topic's kind."""
        topic = self.model.topic(name)
        log = topic.logs[partition]
        waits = sync or (sync is None and self.sync == "always")
        for value in values:
            offset = log.end
            log.values.append(value_of(topic, value))
            if waits:
                log.close_block()
            self.model.mark()
            try:
                found = self.store.topic(name).append(log.values[-1], partition=partition, sync=sync)
            except tiered.DiskFull:
                if not waits:
                    log.values.pop()
                raise
            if found != (partition, offset):
                raise Violation(f"{found} was appended at {offset} of partition {partition}")
            if waits:
                log.acknowledged = log.end
                self.model.mark()

    def batch(self, name: str, *values: int, partition: int = 0, sync: bool | None = None) -> None:
        """Append records as one Arrow batch, which is one block; a refused one was not appended."""
        topic = self.model.topic(name)
        log = topic.logs[partition]
        log.close_block()
        start = log.end
        rows = [value_of(topic, value) for value in values]
        log.values += rows
        log.close_block()
        self.model.mark()
        table = pa.Table.from_pylist(rows) if topic.columns else pa.table({"value": rows})
        try:
            found = self.store.topic(name).append_batch(table, partition=partition, sync=sync)
        except tiered.DiskFull:
            del log.values[start:]
            raise
        if found != [(partition, start, log.end)]:
            raise Violation(f"{found} was appended at {start} to {log.end} of partition {partition}")
        if sync or (sync is None and self.sync == "always"):
            log.acknowledged = log.end
            self.model.mark()

    def blocks(self, name: str, *groups: tuple[int, ...], partition: int = 0) -> None:
        """Append records as blocks by one write, which is refused as a whole; a crash may leave the first of them."""
        topic = self.model.topic(name)
        log = topic.logs[partition]
        log.close_block()
        start, ends = log.end, set(log.ends)
        bodies = []
        for group in groups:
            rows = [value_of(topic, value) for value in group]
            bodies.append(encode_body(batch_of(rows)))
            log.values += rows
            log.close_block()
        self.model.mark()
        writer = self.store.topic(name).opened.writer(partition)
        try:
            found = writer.append_bodies(bodies, 4, keep=False)
        except tiered.DiskFull:
            del log.values[start:]
            log.ends = ends
            raise
        if found != (start, log.end):
            raise Violation(f"{found} was appended at {start} to {log.end} of partition {partition}")

    def flush(self) -> None:
        self._drain()
        self.store.flush()
        self._acknowledge()

    def roll(self, name: str) -> None:
        self._drain()
        self.store.topic(name).roll()

    def _drain(self) -> None:
        """What is pending may be written now."""
        for log in self.model.logs():
            log.close_block()
        self.model.mark()

    def _acknowledge(self) -> None:
        for log in self.model.logs():
            log.acknowledged = log.shown = log.end
        self.model.mark()

    # -- moving and removing -----------------------------------------------------------------------

    def delete_before(self, name: str, offset: int, partition: int = 0) -> None:
        log = self.model.topic(name).logs[partition]
        self._drain()
        log.start = (log.start[0], offset)
        self.model.mark()
        self.store.topic(name).delete_before(offset, partition)
        log.start = (offset, offset)
        self.model.mark()

    def tier(self, ahead_us: int) -> tiered.TierReport:
        """Run one pass as if `ahead_us` had passed; every action must succeed."""
        self._drain()
        now = (self.clock() + ahead_us) // 1000
        expiring = [
            (self.model.topic(action.topic).logs[action.partition], action.end_offset)
            for action in self.store.plan(now).actions
            if isinstance(action, Expire)
        ]
        for log, offset in expiring:
            log.start = (log.start[0], max(log.start[1], offset))
        self.model.mark()
        report = self.store.tier(now)
        if report.failed and all("no room" in message for _, message in report.failed):
            raise tiered.DiskFull(report.failed[0][1])
        if report.failed:
            raise Violation(f"tiering failed: {report.failed}")
        for log, _ in expiring:
            log.start = (log.start[1], log.start[1])
        self.model.mark()
        return report


def value_of(topic: TopicModel, value: int) -> Any:
    """A record's value: bytes, or a row with the same number in every column."""
    if topic.columns:
        return dict.fromkeys(topic.columns, value)
    return b"%d" % value * (1 + value % 7)


def look(topic: tiered.Topic) -> list[tuple[int, int, list[Any]]]:
    """Start, end and values of each partition; offsets are dense and in order."""
    found = []
    scan = topic.scan()
    table = scan.to_arrow()
    rows = table.drop_columns(["topic", "timestamp"]).to_pylist()
    typed = "value" not in table.column_names
    for partition, (start, end) in sorted(scan.offsets.items()):
        mine = [row for row in rows if row["partition"] == partition]
        if [row["offset"] for row in mine] != list(range(start, end)):
            raise Violation(f"offsets {[row['offset'] for row in mine]}, not {start} to {end}")
        hidden = ("partition", "offset")
        found.append(
            (
                start,
                end,
                [
                    {name: item for name, item in row.items() if name not in hidden and item is not None}
                    if typed
                    else row["value"]
                    for row in mine
                ],
            )
        )
    return found
