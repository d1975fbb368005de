"""Any history of appends, moves between tiers, deletions and reopens reads as plain lists do.

The model is one Python list a partition. What the machine compares with it is read by the writer itself,
by a second store beside it (what another process runs), and from the bucket alone.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tiered
from tests.support.clock import Clock
from tests.support.disks import WithoutSyncs
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, stepwise, tier
from tests.support.tally import tally
from tiered.engine.host import Host

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITIONS_MAX = 4
SMALL = {"block_bytes": 600, "hot_bytes": 1500}

milliseconds = st.integers(1_700_000_000_000, 1_700_000_100_000)
keys = st.sampled_from((b"a", b"b", b"\xff\x00", b"key-4"))
partition_numbers = st.integers(0, PARTITIONS_MAX - 1)
moments = milliseconds.map(lambda ms: EPOCH + timedelta(milliseconds=ms))

record_rows = st.fixed_dictionaries(
    {
        "key": keys,
        "value": st.none() | st.binary(max_size=60),
        "headers": st.none()
        | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=4)), min_size=1, max_size=2),
        "timestamp": milliseconds,
    }
)
typed_rows = st.fixed_dictionaries(
    {
        "at": moments,
        "city": st.sampled_from(("a", "b", "Zürich")),
        "amount": st.none() | st.integers(-(2**63), 2**63 - 1),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=2),
    }
)
TYPED_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("city", pa.string()),
        ("amount", pa.int64()),
        ("tags", pa.list_(pa.string())),
    ]
)


@dataclass
class Log:
    """One partition of the model; ``rows`` keeps what was deleted, as the bucket may still have it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    start: int = 0
    published: int = 0


class Machine(RuleBasedStateMachine):
    typed: bool
    steps_total = 0
    examples = 0

    @initialize(partitions=st.integers(1, 3))
    def begin(self, partitions: int) -> None:
        type(self).examples += 1
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.cold = f"file://{self.folder}/bucket"
        self.clock = Clock()
        self.logs = [Log() for _ in range(partitions)]
        self.added = 0
        self.store = self.open()
        more: dict[str, Any] = (
            {"schema": TYPED_SCHEMA, "timestamp": "at", "key": "city"} if self.typed else {}
        )
        self.topic = self.store.create_topic("log", partitions=partitions, **more)

    def open(self, **options: Any) -> tiered.Store:
        host = Host(clock=self.clock, fs=WithoutSyncs())
        return tiered.open(
            self.folder / "data", cold=self.cold, settings=stepwise(SMALL), host=host, **options
        )

    @invariant()
    def counted(self) -> None:
        type(self).steps_total += 1

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.compare(self.topic.scan().to_arrow())
            finally:
                self.store.close()
                shutil.rmtree(self.folder)

    # -- appending ---------------------------------------------------------------------------------

    def place(self, row: dict[str, Any]) -> int:
        key = row["city"].encode() if self.typed else row["key"]
        return zlib.crc32(key) % len(self.logs)

    def remember(self, partition: int, row: dict[str, Any]) -> None:
        """Add a row to the model as a scan shows it."""
        row = dict(row)
        if self.typed:
            stamp = row["at"]
        else:
            stamp = EPOCH + timedelta(milliseconds=row.pop("timestamp"))
            headers = row["headers"]
            row["headers"] = headers and [{"key": name, "value": value} for name, value in headers]
        log = self.logs[partition]
        shown = {"topic": "log", "partition": partition, "offset": len(log.rows), "timestamp": stamp}
        log.rows.append({**shown, **row})

    def append_one(self, row: dict[str, Any], **options: Any) -> tiered.Appended:
        if self.typed:
            return self.topic.append(row, **options)
        rest = {name: item for name, item in row.items() if name != "value"}
        return self.topic.append(row["value"], **rest, **options)

    @rule(data=st.data(), partition=st.none() | partition_numbers, sync=st.sampled_from((None, True)))
    def append(self, data: st.DataObject, partition: int | None, sync: bool | None) -> None:
        row = data.draw(typed_rows if self.typed else record_rows)
        partition = None if partition is None else partition % len(self.logs)
        expected = self.place(row) if partition is None else partition
        found = self.append_one(row, partition=partition, sync=sync)
        assert found == (expected, len(self.logs[expected].rows))
        self.remember(expected, row)

    @rule(data=st.data())
    def append_many(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(typed_rows if self.typed else record_rows, max_size=12))
        ranges = self.topic.append_many(rows)
        self.check_ranges(ranges, [(self.place(row), row) for row in rows])

    @rule(data=st.data(), partition=st.none() | partition_numbers)
    def append_batch(self, data: st.DataObject, partition: int | None) -> None:
        rows = data.draw(st.lists(typed_rows if self.typed else record_rows, max_size=12))
        partition = None if partition is None else partition % len(self.logs)
        ranges = self.topic.append_batch(self.table(rows), partition=partition)
        self.check_ranges(
            ranges, [(self.place(row) if partition is None else partition, row) for row in rows]
        )

    def table(self, rows: list[dict[str, Any]]) -> pa.Table:
        if self.typed:
            return pa.Table.from_pylist(rows, schema=TYPED_SCHEMA)
        shown = [
            {
                **row,
                "headers": row["headers"]
                and [{"key": name, "value": value} for name, value in row["headers"]],
                "timestamp": EPOCH + timedelta(milliseconds=row["timestamp"]),
            }
            for row in rows
        ]
        return pa.Table.from_pylist(
            shown, schema=pa.schema([*self.topic.schema, ("timestamp", pa.timestamp("ms", "UTC"))])
        )

    def check_ranges(
        self, ranges: list[tiered.OffsetRange], placed: list[tuple[int, dict[str, Any]]]
    ) -> None:
        """The ranges returned are, partition by partition, the next offsets."""
        before = [len(log.rows) for log in self.logs]
        for partition, row in placed:
            self.remember(partition, row)
        found: dict[int, list[int]] = {}
        for partition, start, end in ranges:
            found.setdefault(partition, []).extend(range(start, end))
        after = [len(log.rows) for log in self.logs]
        assert found == {
            number: list(range(start, end))
            for number, (start, end) in enumerate(zip(before, after, strict=True))
            if start < end
        }

    @rule(data=st.data(), partition=partition_numbers)
    def append_from_threads(self, data: st.DataObject, partition: int) -> None:
        """Three threads, one partition: each row at the offset that its append returned."""
        partition %= len(self.logs)
        rows = data.draw(st.lists(typed_rows if self.typed else record_rows, min_size=3, max_size=9))
        placed: dict[int, dict[str, Any]] = {}

        def work(mine: list[dict[str, Any]]) -> None:
            for row in mine:
                placed[self.append_one(row, partition=partition).offset] = row

        threads = [threading.Thread(target=work, args=(rows[i::3],)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = len(self.logs[partition].rows)
        assert sorted(placed) == list(range(first, first + len(rows)))
        for offset in sorted(placed):
            self.remember(partition, placed[offset])

    # -- moving ------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.topic.flush()

    @rule()
    def roll(self) -> None:
        self.topic.roll()

    @rule()
    def compress(self) -> None:
        tier(self.store, self.clock, COMPRESS_US)

    @rule()
    def offload(self) -> None:
        """Two passes: the first seals what is open, the second ships it. Then the bucket has everything."""
        self.store.flush()
        tier(self.store, self.clock, OFFLOAD_US)
        tier(self.store, self.clock, OFFLOAD_US)
        for log in self.logs:
            log.published = len(log.rows)  # also where all of it was deleted before it was shipped
        if any(log.published for log in self.logs):
            with tiered.open(self.cold) as reader:
                found = reader.topic("log").offsets()
                ends = [found[number].end if number in found else 0 for number in range(len(self.logs))]
                assert ends == [log.published for log in self.logs]

    @rule()
    def evict(self) -> None:
        tier(self.store, self.clock, EVICT_US)

    @rule(seconds=st.integers(1, 20_000))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(partition=partition_numbers, share=st.sampled_from((1.0,)) | st.floats(0, 1))
    def delete_before(self, partition: int, share: float) -> None:
        partition %= len(self.logs)
        log = self.logs[partition]
        offset = log.start + round(share * (len(log.rows) - log.start))
        self.topic.delete_before(offset, partition)
        log.start = offset
        if offset:
            with pytest.raises(tiered.OffsetOutOfRange) as caught:
                self.topic.scan(partition, start_offset=offset - 1)
            assert (caught.value.start, caught.value.end) == (offset, len(log.rows))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()
        self.topic = self.store.topic("log")

    @precondition(lambda self: len(self.logs) < PARTITIONS_MAX)
    @rule()
    def add_partition(self) -> None:
        self.topic.add_partitions(len(self.logs) + 1)
        self.logs.append(Log())

    @precondition(lambda self: self.typed and self.added < 2)
    @rule()
    def add_column(self) -> None:
        """Rows from before read as null, and so do rows that do not name it."""
        name = f"more_{self.added}"
        self.topic.add_columns(pa.schema([(name, pa.string())]))
        for log in self.logs:
            for row in log.rows:
                row[name] = None
        self.added += 1

    # -- reading -----------------------------------------------------------------------------------

    def expected(
        self, partition: int, start: int | None = None, end: int | None = None
    ) -> list[dict[str, Any]]:
        log = self.logs[partition]
        names = [f"more_{i}" for i in range(self.added)]
        rows = log.rows[log.start if start is None else start : end]
        return [{**dict.fromkeys(names), **row} for row in rows]

    def compare(self, table: pa.Table) -> None:
        expected = [row for partition in range(len(self.logs)) for row in self.expected(partition)]
        assert table.to_pylist() == expected

    @rule()
    def scan(self) -> None:
        self.compare(self.topic.scan().to_arrow())
        offsets = {number: (number, log.start, len(log.rows)) for number, log in enumerate(self.logs)}
        assert self.topic.offsets() == offsets

    @rule(
        start=st.integers(0, 30),
        length=st.integers(0, 30),
        since=st.none() | moments,
        until=st.none() | moments,
        key=st.none() | keys,
        limit=st.none() | st.integers(0, 20),
    )
    def filtered_scan(
        self,
        start: int,
        length: int,
        since: datetime | None,
        until: datetime | None,
        key: bytes | None,
        limit: int | None,
    ) -> None:
        """Equal to the same filters on the whole table, in every partition that has the start."""
        key_column = "city" if self.typed else "key"
        if self.typed and key == b"\xff\x00":
            with pytest.raises(tiered.SchemaMismatch, match="does not fit"):
                self.topic.scan(key=key)
            return
        whole = self.topic.scan().to_arrow()
        for partition, log in enumerate(self.logs):
            first = max(start, log.start)
            found = self.topic.scan(
                partition,
                first,
                first + length,
                start_timestamp=since,
                end_timestamp=until,
                key=key,
                limit=limit,
            )
            rows = whole.filter(pc.equal(whole["partition"], partition))
            rows = rows.filter(
                pc.and_(pc.greater_equal(rows["offset"], first), pc.less(rows["offset"], first + length))
            )
            if since is not None:
                rows = rows.filter(pc.greater_equal(rows["timestamp"], since))
            if until is not None:
                rows = rows.filter(pc.less(rows["timestamp"], until))
            if key is not None:
                rows = rows.filter(pc.equal(rows[key_column], key.decode() if self.typed else key))
            assert found.to_arrow().equals(rows if limit is None else rows.slice(0, limit))

    @rule()
    def scan_beside_the_writer(self) -> None:
        self.store.flush()
        with self.open(read_only=True) as reader:
            self.compare(reader.topic("log").scan().to_arrow())

    @precondition(lambda self: any(log.published for log in self.logs))
    @rule()
    def scan_the_bucket_alone(self) -> None:
        """A range of the log, without a hole, that has at least what was published."""
        with tiered.open(self.cold) as reader:
            topic = reader.topic("log")
            whole = topic.scan().to_arrow()
            for partition, (_, start, end) in topic.offsets().items():
                log = self.logs[partition]
                assert start <= log.start
                assert log.published <= end <= len(log.rows)
                rows = whole.filter(pc.equal(whole["partition"], partition)).to_pylist()
                names = topic.schema.names
                expected = [
                    {
                        name: row[name]
                        for name in row
                        if name in names or name in ("topic", "partition", "offset", "timestamp")
                    }
                    for row in self.expected(partition, start, end)
                ]
                assert rows == expected


class RecordMachine(Machine):
    typed = False


class TypedMachine(Machine):
    typed = True


def run(machine: type[Machine]) -> None:
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=settings.default.max_examples * 2 // 5, stateful_step_count=30),
        )
    finally:
        tally("state machine", steps=machine.steps_total, examples=machine.examples)


@pytest.mark.extended
@pytest.mark.parametrize("machine", [RecordMachine, TypedMachine])
def test_any_history_reads_as_the_model(machine: type[Machine]) -> None:
    run(machine)
