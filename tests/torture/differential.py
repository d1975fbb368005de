"""Two topics with the same history by different ways in, against plain lists, through every way out.

Each call goes to one topic in process, and to the other over Flight or in another form. Both take it or both refuse it.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tiered
from tests.support.clock import Clock
from tests.support.disks import WithoutSyncs
from tests.support.odd_values import ODD
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, stepwise, tier
from tests.torture.any_rows import KEYS, Row, rows_of, shapes, table_of
from tiered.engine.host import Host

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("left", "right")
WAYS_IN = ("one by one", "list", "batch", "producer", "producer batch")
WAYS_OUT = ("here", "beside", "splits", "read", "Flight", "bucket", "restored", "DuckDB", "DuckDB on objects")
OF_BUCKET = ("bucket", "restored", "DuckDB on objects")
TAIL_US = 20_000_000
PARTITIONS_MAX = 4
SMALL = {"block_bytes": 600, "hot_bytes": 1500}
HIDDEN = ("topic", "partition", "offset", "timestamp")


@dataclass
class Log:
    """One partition: rows as a scan shows them; those below `start` are kept, as the bucket may have them."""

    rows: list[Row] = field(default_factory=list)
    start: int = 0
    published: int = 0


class DifferentialMachine(RuleBasedStateMachine):
    """See the module.

    Attributes
    ----------
    examples, steps_total, rows_compared, refused
        Counts of all histories.
    """

    examples = steps_total = rows_compared = refused = 0

    @initialize(
        shape=shapes(),
        partitions=st.integers(1, 3),
        sync=st.sampled_from(("interval", "interval", "always", "cold")),
    )
    def begin(self, shape: tuple[pa.Schema | None, dict[str, str]], partitions: int, sync: str) -> None:
        type(self).examples += 1
        self.folder = Path(tempfile.mkdtemp(prefix="differential-"))
        self.cold = f"file://{self.folder}/bucket"
        self.path = self.folder / "0"
        self.clock = Clock()
        self.sync = sync
        self.lives = 0
        self.schema, self.options = shape
        self.partitions = partitions
        self.open()
        self.logs = {name: [Log() for _ in range(partitions)] for name in NAMES}
        for name, store in zip(NAMES, (self.store, self.client), strict=True):
            store.create_topic(name, partitions=partitions, schema=self.schema, **self.options)

    def settings(self) -> tiered.Settings:
        rules = {
            "offload": {"after": "4h", "tail_interval": "10s"},
            "merge": {"after": "4h", "target_bytes": "20KiB"},
            "cut": {"deleted": 0},
        }
        return stepwise({**SMALL, "sync": self.sync}, **rules)

    def opened(self, path: Path | str, **options: Any) -> tiered.Store:
        host = Host(clock=self.clock, fs=WithoutSyncs())
        return tiered.open(path, settings=self.settings(), host=host, **options)

    def open(self) -> None:
        self.store = self.opened(self.path, cold=self.cold)
        self.client = tiered.open(self.store.serve("127.0.0.1:0").location, host=Host(clock=self.clock))

    def close(self) -> None:
        self.client.close()
        self.store.close()

    def teardown(self) -> None:
        if hasattr(self, "client"):
            try:
                for name in NAMES:
                    for way in WAYS_OUT:
                        self.compare(name, way)
                report = self.store.verify(deep=True)
                assert (report.problems, report.unknown) == ((), ())
            finally:
                self.close()
                shutil.rmtree(self.folder)

    @invariant()
    def counted(self) -> None:
        type(self).steps_total += 1

    # -- ways in -----------------------------------------------------------------------------------

    def topic(self, name: str, *, served: bool = False) -> tiered.Topic:
        return (self.client if served else self.store).topic(name)

    def place_of(self, row: Row) -> int | None:
        """The partition that the key chooses; None where there is no key."""
        key = (
            row[self.options["key"]].encode()
            if self.options.get("key") and row[self.options["key"]]
            else None
        )
        key = row["key"] if self.schema is None else key
        return zlib.crc32(key) % self.partitions if key else None

    def append(self, topic: tiered.Topic, way: str, rows: list[Row], partition: int) -> list[tuple[int, int]]:
        """Append rows; return where they went, for those whose place the call tells."""
        if "batch" in way:
            source = topic.producer("p") if "producer" in way else topic
            ranges = source.append_batch(table_of(rows, self.schema), partition=partition)
        elif way == "list":
            # A row of a typed topic says no partition: it goes where its key says, or anywhere.
            ranges = topic.append_many(
                [{**plain(row), "partition": partition} for row in rows] if self.schema is None else rows
            )
        else:
            source = topic.producer("p") if way == "producer" else topic
            found = [
                source.append(**plain(row), partition=partition)
                if self.schema is None
                else source.append(row, partition=partition)
                for row in rows
            ]
            return [tuple(item) for item in found]  # type: ignore[misc]
        return [(number, offset) for number, start, end in ranges for offset in range(start, end)]

    @rule(
        data=st.data(),
        ways=st.tuples(st.sampled_from(WAYS_IN), st.sampled_from(WAYS_IN)),
        served=st.tuples(st.booleans(), st.booleans()),
        partition=st.integers(0, PARTITIONS_MAX - 1),
        count=st.sampled_from((1, 2, 5, 25)),
    )
    def append_rows(
        self,
        data: st.DataObject,
        ways: tuple[str, str],
        served: tuple[bool, bool],
        partition: int,
        count: int,
    ) -> None:
        """A few different rows, some of them again and again."""
        drawn = data.draw(st.lists(rows_of(self.schema), min_size=1, max_size=3))
        rows = [drawn[number % len(drawn)] for number in range(count)]
        partition %= self.partitions
        if self.schema is not None and "list" in ways and self.partitions > 1:
            ways = ("one by one", "batch")
        self.clock.advance(1)
        for name, way, remote in zip(NAMES, ways, served, strict=True):
            found = self.append(self.topic(name, served=remote), way, rows, partition)
            log = self.logs[name][partition]
            assert found == [(partition, len(log.rows) + number) for number in range(count)], (name, way)
            self.remember(name, partition, rows)

    @rule(data=st.data(), way=st.sampled_from(("list", "batch", "producer batch")))
    def append_by_key(self, data: st.DataObject, way: str) -> None:
        """The key of each row chooses its partition, in process and over Flight."""
        keyed = rows_of(self.schema).filter(lambda row: self.place_of(row) is not None)
        if self.schema is not None and "key" not in self.options:
            return
        rows = data.draw(st.lists(keyed, max_size=6))
        self.clock.advance(1)
        for name, remote in zip(NAMES, (False, True), strict=True):
            topic = self.topic(name, served=remote)
            if way == "list":
                topic.append_many([plain(row) for row in rows] if self.schema is None else rows)
            else:
                source = topic.producer("p") if "producer" in way else topic
                source.append_batch(table_of(rows, self.schema))
            for row in rows:
                place = self.place_of(row)
                assert place is not None
                self.remember(name, place, [row])

    def remember(self, name: str, partition: int, rows: list[Row]) -> None:
        log = self.logs[name][partition]
        for row in rows:
            stamp = row.get(self.options.get("timestamp", "")) or EPOCH + timedelta(microseconds=self.clock())
            shown = {"topic": name, "partition": partition, "offset": len(log.rows), "timestamp": stamp}
            log.rows.append({**shown, **row})

    @rule(data=st.data(), ways=st.permutations(("append", "list", "producer")), odd=st.sampled_from(ODD))
    def append_odd(self, data: st.DataObject, ways: list[str], odd: object) -> None:
        """What one way takes the other takes, as the same; what one refuses the other refuses by the same error."""
        row = data.draw(rows_of(self.schema))
        column = data.draw(st.sampled_from(sorted(row)))
        row = {**row, column: odd}
        before = {name: len(self.logs[name][0].rows) for name in NAMES}
        outcomes, taken = [], []
        for name, way, remote in zip(NAMES, ways, (False, True), strict=False):
            topic = self.topic(name, served=remote)
            try:
                if way == "list" and self.schema is None:
                    topic.append_many([{**row, "partition": 0}])
                elif way == "list" and self.partitions == 1:
                    topic.append_many([row])
                else:
                    source = topic.producer("p") if way == "producer" else topic
                    source.append(**(row if self.schema is None else {"value": row}), partition=0)
                outcomes.append("taken")
            except tiered.TieredError as error:
                outcomes.append(type(error).__name__)
            topic.flush()
            found = self.store.topic(name).scan(0, start_offset=max(before[name], self.logs[name][0].start))
            added = [strip(item) for item in found.to_arrow().to_pylist()]
            assert len(added) == (outcomes[-1] == "taken"), (way, outcomes)
            taken.append([(item, stamp) for item, stamp in added])
        assert outcomes[0] == outcomes[1], (ways, column, odd, outcomes)
        assert text(taken[0]) == text(taken[1]), (ways, column, odd)
        type(self).refused += outcomes[0] != "taken"
        for name, rows in zip(NAMES, taken, strict=True):
            for item, stamp in rows:
                log = self.logs[name][0]
                shown = {"topic": name, "partition": 0, "offset": len(log.rows), "timestamp": stamp}
                log.rows.append({**shown, **item})

    # -- moving, removing, growing -----------------------------------------------------------------

    @rule(served=st.booleans())
    def flush(self, served: bool) -> None:
        (self.client if served else self.store).flush()

    @rule(name=st.sampled_from(NAMES))
    def roll(self, name: str) -> None:
        self.topic(name).roll()

    @rule(ahead_us=st.sampled_from((TAIL_US, COMPRESS_US, OFFLOAD_US, EVICT_US)), beside=st.booleans())
    def pass_(self, ahead_us: int, beside: bool) -> None:
        if beside:
            self.store.flush()
            with self.opened(self.path, tierer=True) as store:
                tier(store, self.clock, ahead_us)
        else:
            tier(self.store, self.clock, ahead_us)

    @rule()
    def move_everything(self) -> None:
        """Seal, ship and evict; then the bucket has all of it."""
        for name in NAMES:
            self.topic(name).roll()
        tier(self.store, self.clock, OFFLOAD_US)
        tier(self.store, self.clock, EVICT_US)
        for logs in self.logs.values():
            for log in logs:
                log.published = len(log.rows)

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), share=st.sampled_from((1.0,)) | st.floats(0, 1))
    def delete_before(self, partition: int, share: float) -> None:
        partition %= self.partitions
        for name, served in zip(NAMES, (False, True), strict=True):
            log = self.logs[name][partition]
            offset = log.start + round(share * (len(log.rows) - log.start))
            self.topic(name, served=served).delete_before(offset, partition)
            log.start = offset

    @precondition(lambda self: self.partitions < PARTITIONS_MAX)
    @rule()
    def add_partition(self) -> None:
        self.partitions += 1
        for name, served in zip(NAMES, (False, True), strict=True):
            self.topic(name, served=served).add_partitions(self.partitions)
            self.logs[name].append(Log())

    @precondition(lambda self: self.schema is not None and len(self.schema) < 8)
    @rule(shape=shapes())
    def add_columns(self, shape: tuple[pa.Schema | None, dict[str, str]]) -> None:
        """Rows from before read as null."""
        assert self.schema is not None
        taken = {name.lower() for name in self.schema.names}
        more = [item for item in shape[0] or [] if item.name.lower() not in taken][:2]
        if not more:
            return
        for name, served in zip(NAMES, (False, True), strict=True):
            self.topic(name, served=served).add_columns(pa.schema(more))
        self.schema = pa.schema([*self.schema, *more])

    @rule()
    def sweep(self) -> None:
        assert self.store.sweep().problems == ()

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    @rule()
    def lose_the_disk(self) -> None:
        """The store goes on with what the bucket had."""
        self.close()
        ends = self.ends_in_bucket()
        if len(ends) < len(NAMES):
            self.open()
            return
        self.lives += 1
        self.path = self.folder / str(self.lives)
        host = Host(clock=self.clock, fs=WithoutSyncs())
        self.store = tiered.restore(self.cold, self.path, settings=self.settings(), host=host)
        self.client = tiered.open(self.store.serve("127.0.0.1:0").location, host=Host(clock=self.clock))
        for name, logs in self.logs.items():
            topic = self.store.topic(name)
            if topic.partitions < self.partitions:
                topic.add_partitions(self.partitions)
            if self.schema is not None and len(topic.schema) < len(self.schema):
                topic.add_columns(pa.schema(list(self.schema)[len(topic.schema) :]))
            for log, bounds in zip(logs, topic.offsets().values(), strict=True):
                assert bounds.end == ends[name].get(bounds.partition, 0)
                del log.rows[bounds.end :]
                assert bounds.start <= log.start or bounds.start == bounds.end
                log.start = bounds.start

    def ends_in_bucket(self) -> dict[str, dict[int, int]]:
        try:
            with self.opened(self.cold) as store:
                return {
                    name: {number: item.end for number, item in store.topic(name).offsets().items()}
                    for name in store.topics()
                }
        except tiered.ConfigError:
            assert not any(log.published for logs in self.logs.values() for log in logs)
            return {}

    # -- ways out ----------------------------------------------------------------------------------

    @contextmanager
    def reader(self, name: str, way: str) -> Iterator[tiered.Topic | None]:
        """The topic as one way out has it; None where the bucket has nothing of it."""
        if way == "Flight":
            yield self.client.topic(name)
        elif way in ("beside", *OF_BUCKET):
            self.store.flush()
            if way != "beside" and name not in self.ends_in_bucket():
                assert not any(log.published for log in self.logs[name])
                yield None
                return
            with ExitStack() as stack:
                if way == "restored":
                    for folder in ("copy", "again"):
                        stack.callback(shutil.rmtree, self.folder / folder, ignore_errors=True)
                    shutil.copytree(self.folder / "bucket", self.folder / "copy")
                    url = f"file://{self.folder}/copy"
                    store = stack.enter_context(
                        tiered.restore(url, self.folder / "again", settings=self.settings())
                    )
                elif way == "beside":
                    store = stack.enter_context(self.opened(self.path, read_only=True))
                else:
                    store = stack.enter_context(self.opened(self.cold))
                yield store.topic(name)
        else:
            yield self.store.topic(name)

    @rule(
        name=st.sampled_from(NAMES),
        ways=st.sets(st.sampled_from(WAYS_OUT), min_size=2),
        wanted=st.sets(
            st.sampled_from(("offsets", "times", "key", "columns", "limit", "partition")), max_size=3
        ),
        numbers=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.integers(0, 20)),
        key=st.sampled_from(KEYS),
    )
    def look(self, name: str, ways: set[str], wanted: set[str], numbers: tuple[int, ...], key: bytes) -> None:
        for way in sorted(ways):
            self.compare(name, way, wanted, numbers, key)

    def compare(
        self,
        name: str,
        way: str,
        wanted: set[str] = frozenset(),  # type: ignore[assignment]
        numbers: tuple[int, ...] = (0, 0, 0, 0),
        key: bytes = b"",
    ) -> None:
        """What is read is what the lists have, filtered as asked."""
        with self.reader(name, way) as topic:
            if topic is None:
                return
            bounds = topic.offsets()
            columns = topic.schema.names
            rows: list[Row] = []
            for number, (_, start, end) in bounds.items():
                log = self.logs[name][number]
                if way in OF_BUCKET:
                    assert start <= max(log.start, log.published), (name, way, number)
                    assert log.published <= end <= len(log.rows), (name, way, number)
                else:
                    assert (start, end) == (log.start, len(log.rows)), (name, way, number)
                rows += log.rows[start:end]
            asked, rows = self.asked(wanted, numbers, key, rows, bounds, columns)
            shown = asked.get("columns") or [*HIDDEN, *columns]
            expected = [{column: row.get(column) for column in shown} for row in rows]
            found = self.read(topic, way, asked, shown)
            if found is None:
                return
            if way.startswith("DuckDB"):
                expected = [{column: row[column] for column in found[1]} for row in expected]
            type(self).rows_compared += len(expected)
            if text(found[0]) != text(expected):
                pairs = zip_longest(found[0], expected)
                wrong = next(pair for pair in pairs if text(pair[0]) != text(pair[1]))
                raise AssertionError(f"{name} by {way}, asked {asked}: found, expected {wrong}")

    def asked(
        self, wanted: set[str], numbers: tuple[int, ...], key: bytes, rows: list[Row],
        bounds: Any, columns: list[str],
    ) -> tuple[dict[str, Any], list[Row]]:  # fmt: skip
        """Return arguments of `scan`, and the rows that they leave."""
        asked: dict[str, Any] = {}
        partitions = list(bounds)
        if "columns" in wanted:
            asked["columns"] = ["offset", *columns[::-2], "partition"]
        if partitions and wanted & {"partition", "offsets"}:
            partition = partitions[numbers[2] % len(partitions)]
            asked["partitions"] = partition
            rows = [row for row in rows if row["partition"] == partition]
            if "offsets" in wanted:
                _, start, end = bounds[partition]
                first = start + numbers[0] % (end - start + 1)
                asked |= {"start_offset": first, "end_offset": first + numbers[1]}
                rows = [row for row in rows if first <= row["offset"] < first + numbers[1]]
        if "times" in wanted and rows:
            since, until = sorted(rows[number % len(rows)]["timestamp"] for number in numbers[:2])
            asked |= {"start_timestamp": since, "end_timestamp": until}
            rows = [row for row in rows if since <= row["timestamp"] < until]
        column = "key" if self.schema is None else self.options.get("key")
        if "key" in wanted and column is not None:
            value = rows[numbers[0] % len(rows)][column] if rows and numbers[0] % 4 else key
            if value is not None and (self.schema is None or isinstance(value, str)):
                asked["key"] = value
                rows = [row for row in rows if row[column] == value]
        if "limit" in wanted:
            asked["limit"] = numbers[3] % (len(rows) + 1)
            rows = rows[: asked["limit"]]
        return asked, rows

    def read(
        self, topic: tiered.Topic, way: str, asked: dict[str, Any], shown: list[str]
    ) -> tuple[list[Row], list[str]] | None:
        """Read rows by one way; None where it cannot hold them, or be asked so."""
        if way == "read":
            if set(asked) - {"partitions"} or (self.partitions > 1 and "partitions" not in asked):
                return None
            records = topic.read(asked.get("partitions", 0))
            return [shown_record(item, typed=self.schema is not None) for item in records], shown
        scan = topic.scan(**asked)
        if way == "splits":
            if "limit" in asked:
                return None
            batches = [batch for split in scan.splits() for batch in scan.read(split)]
            return pa.Table.from_batches(batches, scan.schema).to_pylist(), shown
        if not way.startswith("DuckDB"):
            return scan.to_arrow().to_pylist(), shown
        columns = [item.name for item in scan.schema if item.name in shown and in_duckdb(item)]
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            if way == "DuckDB":
                relation = connection.from_arrow(scan.to_reader())
                relation = relation.select(*(duckdb.ColumnExpression(column) for column in columns))
                return relation.to_arrow_table().to_pylist(), columns
            if asked:
                return None
            columns = [column for column in columns if column not in ("topic", "partition")]
            rows: list[Row] = []
            for item in scan.objects():
                relation = connection.from_parquet(item.url.removeprefix("file://"))
                there = [column for column in columns if column in relation.columns]
                relation = relation.filter(
                    f'"offset" >= {item.start_offset} AND "offset" < {item.end_offset}'
                ).order('"offset"')
                relation = relation.select(*(duckdb.ColumnExpression(column) for column in there))
                rows += [
                    {column: row.get(column) for column in columns}
                    for row in relation.to_arrow_table().to_pylist()
                ]
            return rows, columns


def text(rows: object) -> str:
    """What is compared: NaN is not equal to itself. Libraries have UTC by several names."""
    return repr(rows).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


def plain(row: Row) -> Row:
    """A record as `append` takes it: headers are pairs."""
    found = row["headers"]
    return {**row, "headers": found and [(item["key"], item["value"]) for item in found]}


def strip(row: Row) -> tuple[Row, datetime]:
    """The columns of a row of a scan, and its timestamp."""
    return {name: item for name, item in row.items() if name not in HIDDEN}, row["timestamp"]


def shown_record(record: tiered.Record, *, typed: bool) -> Row:
    """A record of `read` as a scan shows it."""
    hidden = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    if typed:
        return {**hidden, **record.value}
    headers = [{"key": name, "value": value} for name, value in record.headers] or None
    return {**hidden, "key": record.key, "value": record.value, "headers": headers}


def in_duckdb(item: pa.Field) -> bool:
    """Whether DuckDB holds every value of a column as Arrow does: no maps of equal keys, no strange names."""
    kind = item.type
    plain_name = item.name.isascii() and item.name.isalnum()
    return plain_name and not (pt.is_nested(kind) or pt.is_dictionary(kind))
