"""Batches of a query over two topics, between other appends and transactions, on a recorded disk and in its bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from tests.support.clock import Clock
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Loss, some
from tests.support.recorder import Recorder
from tests.transactions.lives import opened
from tiered.transactions.staged_rows import Staged

TOPICS = ("eu", "us")
QUERY = "query:1"
BATCHES = 9
LIVES = 3
Row = tuple[str, int, bytes]


def batch_rows(number: int) -> list[Row]:
    """The rows of a batch, as topic, partition and value; not every batch has rows in every partition."""
    rows: list[Row] = [("eu", at % 2, b"%d.%d" % (number, at)) for at in range(2 + number % 3)]
    if number % 3:
        rows += [("us", 0, b"%d.u%d" % (number, at)) for at in range(number % 3)]
    return rows


def frame(rows: Sequence[Row]) -> pa.RecordBatch:
    topics, partitions, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"topic": topics, "partition": partitions, "value": values})


def stage(store: Any, rows: Sequence[Row]) -> Staged:
    """Stage rows as one attempt, row by row."""
    return store.staging.stage(None, QUERY, uuid4().hex, [frame([row]) for row in rows])


def put(store: Any, number: int, *, again: bool = False) -> bool:
    """Commit a batch; again: with its rows in other tasks and another order."""
    rows = batch_rows(number)[:: -1 if again else 1]
    cut = 1 if again else len(rows) // 2
    attempts = [stage(store, rows[:cut]), stage(store, rows[cut:])]
    return store.staging.commit(None, QUERY, number, attempts)


def found_in(store: Any) -> Counter[Row]:
    """All rows, in all topics, of one moment."""
    snapshot = store.snapshot([topic for topic in TOPICS if topic in store.topics()])
    found: Counter[Row] = Counter()
    for topic in snapshot.ends:
        for row in snapshot.scan(topic).to_arrow().to_pylist():
            found[topic, row["partition"], row["value"]] += 1
    return found


def batches_in(found: Counter[Row]) -> list[int]:
    """Check that each batch is there wholly and once, or not at all; return those that are there."""
    there = []
    for number in range(BATCHES):
        wanted = Counter(batch_rows(number))
        own = Counter({row: count for row, count in found.items() if row[2].startswith(b"%d." % number)})
        assert own in (wanted, Counter()), f"batch {number}: {own}"
        if own:
            there.append(number)
    return there


class Promise(NamedTuple):
    """A batch whose commit had returned at a point of the journal."""

    index: int
    number: int


class BatchLife:
    """The batches of a query, in three lives of a store."""

    def __init__(self, root: Path, cold: str | None = None) -> None:
        root.mkdir()
        self.cold = cold
        self.clock = Clock()
        self.recorder = Recorder(root)
        self.promises: list[Promise] = []
        self.begun: list[Promise] = []
        self.times_us: list[int] = []
        number = 0
        for life in range(LIVES):
            with opened(self.recorder, cold, self.clock) as store:
                if life == 0:
                    store.create_topic("eu", partitions=2)
                    store.create_topic("us")
                for _ in range(BATCHES // LIVES):
                    self.commit(store, number)
                    number += 1

    def commit(self, store: Any, number: int) -> None:
        if number % 4 < 3:
            store.topic("eu").append(b"other %d" % number, partition=number % 2)
        stage(store, [("eu", 0, b"never"), ("us", 0, b"never")])  # of a task that is repeated
        if number % 3 == 1:
            with store.transaction() as transaction:
                transaction.append("eu", b"small %d" % number, partition=0)
                transaction.append("us", b"small %d" % number)
        self.begun.append(Promise(len(self.recorder.journal), number))
        self.times_us.append(self.clock.advance(1))
        assert put(store, number)
        self.promises.append(Promise(len(self.recorder.journal), number))
        if self.cold is not None and number % 4:
            topic, partition = (("eu", 0), ("us", 0), ("eu", 1))[number % 3]
            store.topic(topic).flush()
            store.tierer.tails.publish(store.topic(topic).meta, partition)
        if self.cold is not None and number == 5:
            store.flush()
            store.tierer.tail_pass()

    def crashes(self) -> Any:
        def losses(index: int) -> list[Loss]:
            return [NOTHING, EVERYTHING, LAST, (NAMES, BYTES, some(index))[index % 3]]

        return self.recorder.crashes(losses)
