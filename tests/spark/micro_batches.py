"""A query as Spark runs it, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa

import tiered
from tiered.spark.options import parse_options
from tiered.spark.source import TieredDataSource
from tiered.spark.stream.stream import TieredStreamReader


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """A query as Spark runs it, without Spark: offsets go through text, readers and tasks through pickles."""

    def __init__(self, path: str, topic: str, **options: Any) -> None:
        given = {"path": path, "topic": topic, **{name: str(value) for name, value in options.items()}}
        source = TieredDataSource(given)
        self.clock = Clock()
        parsed = parse_options(source.options, "stream")
        self.reader = TieredStreamReader(parsed, source.schema(), self.clock)
        assert type(source.streamReader(schema=source.schema())) is TieredStreamReader
        self.executor = pickle.loads(pickle.dumps(self.reader))
        self.limit = self.reader.getDefaultReadLimit()

    def initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def latest(self, start: str, limit: Any = None) -> str:
        """Return the end of the next micro-batch, after a pause long enough for the reader to look anew."""
        self.clock.now += 10
        return json.dumps(self.reader.latestOffset(json.loads(start), limit or self.limit))

    def rows(self, start: str, end: str) -> pa.Table:
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        found = [batch for task in tasks for batch in self.executor.read(pickle.loads(pickle.dumps(task)))]
        return pa.Table.from_batches(found) if found else pa.table({"offset": pa.array([], pa.int64())})

    def batches(self, start: str) -> Iterator[tuple[str, str]]:
        """Yield start and end of micro-batches until there is nothing more."""
        while (end := self.latest(start)) != start:
            yield start, end
            start = end


def offsets(**partitions: int) -> str:
    """Return offsets in Kafka's form, which no topic's id pins."""
    return json.dumps({"t": {name[1:]: value for name, value in partitions.items()}})


def bare(text: str) -> str:
    """Return offsets without the id of their topic."""
    document = json.loads(text)
    assert UUID(document.pop("@topicId"))
    assert document.pop("@lineages") == {}
    return json.dumps(document)


def fill(store: tiered.Store, *counts: int) -> None:
    topic = store.topic("t")
    for partition, count in enumerate(counts):
        topic.append_many([{"value": b"%d" % i, "partition": partition} for i in range(count)])
    store.flush()
