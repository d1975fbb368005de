"""A store with a live table that lives through a random history, and what engines are to read of it."""

from __future__ import annotations

import decimal
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import tiered
from tests.support.engines import TableEngine
from tests.support.faulty_store import FaultyStore
from tests.support.log_history import Days, LogHistory, Moment
from tests.support.stores import handle_of, stepwise
from tests.support.table_reader import check_whole, folder_of, load, newest, offsets
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.errors import ColdStorageError
from tiered.format.topic_meta import TopicMeta
from tiered.table.live_table import LiveTable

DAY = 86_400.0
PARTITIONS_MAX = 4
KEYS = [f"key-{number}" for number in range(24)]
FIRST = pa.schema([("key", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])
LATER = [
    pa.field("note", pa.string()),
    pa.field("price", pa.decimal128(9, 2)),
    pa.field("tags", pa.list_(pa.int32())),
    pa.field("body", pa.struct([("raw", pa.binary()), ("at", pa.timestamp("us", "UTC"))])),
]


def settings_of(dice: random.Random) -> tiered.Settings:
    compact = {"after": "2h", "dirty": dice.choice([0.01, 0.5]), "deleted": "gone", "keep_tombstones": "1h"}
    return stepwise(
        offload={"after": "2h", "tail_interval": "1s", "row_group_bytes": "1MiB"},
        local_retention={"age": dice.choice(["1h", "9h"])},
        merge={"after": "3h", "target_bytes": "256KiB"} if dice.random() < 0.7 else "off",
        cut={"deleted": 0.25},
        table={"every": "1m", "tails": "on" if dice.random() < 0.8 else "off"},
        **({"retention": {"age": "20h"}} if dice.random() < 0.3 else {}),
        **({"compact_keys": compact} if dice.random() < 0.6 else {}),
    )


class Version(NamedTuple):
    """A version of the table: its number, and the rows that pyiceberg read."""

    number: int
    rows: list[tuple[Any, ...]]


class TableHistory(LogHistory):
    """A store whose topic grows, moves, shrinks and comes back, and whose table several processes publish.

    Each version is read at once: by pyiceberg, and by the engines by the location of the table alone.

    Attributes
    ----------
    meta
        The topic as it was at the last publication.
    seen, read
        The version that pyiceberg has read, and the number of the one that engines have: none is read twice, but after a sweep.
    compared
        How many versions had the rows of a scan of the bucket.
    """

    schema = FIRST
    key = "key"

    def __init__(
        self, path: Path, dice: random.Random, days: Days, engines: Sequence[TableEngine] = ()
    ) -> None:
        self.engines = engines
        self.publishers: list[LiveTable | None] = [None, None, None]
        self.meta: TopicMeta | None = None
        self.seen: Version | None = None
        self.read = 0
        self.swept = False
        self.compared = 0
        super().__init__(path, dice, days, settings_of(dice))
        self.bucket = path / "bucket"

    # -- what happens ----------------------------------------------------------------------------

    def new_row(self) -> dict[str, Any]:
        self.number += 1
        number, dice = self.number, self.dice
        row = {
            "key": dice.choice([*KEYS, None]),
            "n": number,
            "gone": dice.random() < 0.2,
            "note": dice.choice([None, "", "é" * (number % 5), "x" * 300]),
            "price": decimal.Decimal(number) / 100,
            "tags": [number, None][: 1 + number % 2],
            "body": {"raw": b"%d" % number, "at": None} if number % 3 else None,
        }
        return {name: row[name] for name in self.schema.names}

    def add_columns(self) -> None:
        if more := LATER[len(self.schema) - len(FIRST) :][:1]:
            self.topic.add_columns(pa.schema(more))
            self.schema = self.topic.schema

    def add_partition(self) -> None:
        """A topic that is compacted keeps its partitions, as the records of a key must stay together."""
        compacted = self.settings.policy_for("t").compact_keys.after is not None
        if not compacted and self.topic.meta.partitions < PARTITIONS_MAX:
            self.topic.add_partitions(self.topic.meta.partitions + 1)
            self.moments.clear()  # a restore leaves the partition, without records

    def partition_of(self, _row: dict[str, Any]) -> int:
        return self.dice.randrange(self.topic.meta.partitions)

    def erase(self) -> None:
        self.topic.erase(self.dice.sample(KEYS, self.dice.choice([1, 2])))
        self.clock.advance(1)
        self.moments.clear()  # what is erased does not come back

    def ship(self) -> None:
        self.topic.flush()
        if self.dice.random() < 0.5:
            self.store.tierer.tail_pass()
        else:
            self.store.tierer.tails.publish(self.topic.meta, self.dice.randrange(self.topic.meta.partitions))

    def tier(self) -> None:
        super().tier()
        self.check_table()

    def sweep(self) -> None:
        super().sweep()
        self.swept = True
        self.check_table()

    def killed(self) -> None:
        super().killed()
        self.check_table()

    def publish(self) -> None:
        """By one of several processes, now and then by one that a fault of the bucket ends, or that read the topic before."""
        at = self.dice.randrange(3)
        live = self.publishers[at]
        if live is None or self.dice.random() < 0.2:
            live = self.publishers[at] = self._publisher()
        done, meta = None, self.topic.meta
        known, self.meta = self.meta or meta, meta
        try:
            done = live.publish(
                self.dice.choice([meta, meta, known]), tails=self.dice.random() < 0.8, grace_seconds=DAY
            )
        except ColdStorageError:
            self.publishers[at] = None
        self.check_table(is_new=done is not None)

    def _publisher(self) -> LiveTable:
        context, meta = self.store.context, self.topic.meta
        store: Any = context.tiers.object_store
        # One of this process knows the heads that it has just written, one of another process does not.
        manifest: Callable[[int], PartitionManifest] = partial(context.tiers.cold, meta)
        if self.dice.random() < 0.5:
            manifest = cache(partial(PartitionManifest, store, meta.name, meta.topic_id))
        if self.dice.random() < 0.4:
            fault = self.dice.choice(["busy", "answer lost"])
            store = FaultyStore(store, {self.dice.randrange(25): fault})
        return LiveTable(store, self.store.store_id, meta, manifest, clock=self.clock, sleep=lambda _: None)

    def reopen(self, store: Any = None) -> None:
        super().reopen(store)
        self.publishers = [None] * 3
        self.schema = self.topic.schema

    def gone_back(self, moment: Moment) -> None:
        self.pass_once()
        self.check_table(is_new=True)

    def check(self) -> None:
        """The log is what other tests are about."""

    def finish(self) -> None:
        self.pass_once()
        self.publishers = [None] * 3
        self.swept = True
        self.publish()
        assert self.seen is None or self.compared

    # -- what must hold --------------------------------------------------------------------------

    def check_table(self, *, is_new: bool = False) -> None:
        """The newest version has the rows of a scan if it is of the present heads, and else those that it had.

        Parameters
        ----------
        is_new
            Whether a publication has just compared it with the heads. It may have found nothing new in them.
        """
        if not list(self.bucket.glob("t/*/table/metadata/v*.json")):
            return
        folder = folder_of(self.bucket, "t")
        number, table = int(newest(folder).name[1:].partition(".")[0]), load(folder)
        columns = [field.name for field in table.schema().fields]
        if self.seen is None or number != self.seen.number or self.swept:
            seen = Version(number, rows_of(_microseconds(table.scan().to_arrow()), columns))
            assert self.seen is None or number > self.seen.number or seen == self.seen
            self.seen = seen
        found, rows = offsets(folder), self.seen.rows
        same = [partition for partition in found if is_new or self._is_of_head(table, partition)]
        self._check_scan(rows, columns, {partition: found[partition] for partition in same})
        self.compared += len(same) == len(found)
        # Some engines read the version of the hint, which a publication that failed has not moved.
        hint = folder / "version-hint.text"
        if (number != self.read or self.swept) and hint.exists() and hint.read_text() == str(number):
            self.read = number
            for engine in self.engines:
                assert rows_of(engine.read(f"file://{folder.parent}", columns), columns) == rows, engine.kind
        if self.swept:
            check_whole(folder)
        self.swept = False

    def _is_of_head(self, table: Any, partition: int) -> bool:
        loaded = handle_of(self.store, self.topic.meta, partition).manifest.load()
        summary = table.current_snapshot().summary.additional_properties
        return loaded is not None and summary[f"tiered.commit.{partition}"] == loaded.head.commit_id

    def _check_scan(
        self, rows: list[tuple[Any, ...]], columns: list[str], ends: dict[int, tuple[int, int, int]]
    ) -> None:
        """The rows from the start offset on are those of a scan; before it there are the rest of an object, deleted rows."""
        with tiered.open(self.url) as reader:
            for partition, (begins, start, end) in ends.items():
                own = [row for row in rows if row[0] == partition]
                assert all(begins <= row[1] < end for row in own)
                scanned: list[tuple[Any, ...]] = []
                if start < end:
                    scan = reader.topic("t").scan([partition], start_offset=start, end_offset=end).to_arrow()
                    # Columns that were just added may be in the table first.
                    new = [name for name in columns if name not in scan.column_names]
                    for name in new:
                        scan = scan.append_column(name, pa.nulls(len(scan)))
                    assert set(new) <= {field.name for field in LATER}
                    scanned = rows_of(_microseconds(scan), columns)
                assert [row for row in own if row[1] >= start] == scanned


def rows_of(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    """The rows in order of partition and offset. A list that is null is read as an empty one by pyiceberg."""
    lists = ([None if value == [] else value for value in table[name].to_pylist()] for name in columns)
    return sorted(zip(*lists, strict=True), key=lambda row: row[:2])


def _microseconds(table: pa.Table) -> pa.Table:
    at = table.column_names.index("timestamp")
    return table.set_column(at, "timestamp", pc.cast(table["timestamp"], pa.int64()))
