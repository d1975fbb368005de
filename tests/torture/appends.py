"""Ways to append, each noted in a journal; see `tests.torture.roles`."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import tiered
from tests.torture.payload import PASSING, PRODUCER, TOPICS, TYPED, Id, row, text_of

Placed = tuple[int, int, int, int]
"""Partition, number of the first record, how many, offset of the first."""


class Notes:
    """What the threads of one writer process have in common: its journal, and what its sync mode promises.

    Attributes
    ----------
    waits
        Whether an append without ``sync=`` returns once it is durable.
    publishes
        Whether it is published by then, and so is what a flush returns for.
    """

    def __init__(self, journal: Any, seed: int, life: int, sync: str) -> None:
        self.journal = journal
        self.seed = seed
        self.life = life
        self.waits = sync in ("always", "cold")
        self.publishes = sync == "cold"
        self._lock = threading.Lock()
        self._acks_left = random.Random(f"{seed}.{life}").randint(1, 60)

    def count(self) -> None:
        """Say when so much was acknowledged that a kill is interesting."""
        with self._lock:
            self._acks_left -= 1
            if self._acks_left == 0:
                self.journal.word("going")


class Appender:
    """One thread: appends to one topic in one way, and notes what was acknowledged."""

    def __init__(self, notes: Notes, store: tiered.Store, thread: int, topic: str) -> None:
        self.notes = notes
        self.journal = notes.journal
        self.store = store
        self.thread = thread
        self.name = topic
        self.random = random.Random(f"{notes.seed}.{notes.life}.{thread}")
        self.number = 0

    @property
    def topic(self) -> tiered.Topic:
        return self.store.topic(self.name)

    def take(self, count: int, partition: int = -1, *, block: bool = False) -> list[Id]:
        """Return the next records, noted as intended."""
        first, self.number = self.number, self.number + count
        self.journal("intent", self.name, partition, self.thread, first, count, int(block))
        life = 0 if self.thread == PRODUCER else self.notes.life
        return [Id(life, self.thread, number) for number in range(first, self.number)]

    def ack(self, placed: list[Placed], *, published: bool) -> None:
        """Note what is durable, and whether it is published."""
        self.notes.count()
        for partition, first, count, offset in placed:
            self.journal("ack", self.name, partition, self.thread, first, count, offset)
        if published:
            self.note_published((partition, offset + count) for partition, _, count, offset in placed)

    def ack_somewhere(self, taken: list[Id], ranges: list[tiered.OffsetRange]) -> None:
        """Note that records are durable whose places are not known one by one."""
        self.notes.count()
        self.journal("all", self.name, -1, self.thread, taken[0].number, len(taken))
        for partition, start, end in ranges:
            self.journal("end", self.name, partition, start, end)
        if self.notes.publishes:
            self.note_published((partition, end) for partition, _, end in ranges)

    def note_published(self, ends: Iterable[tuple[int, int]]) -> None:
        for partition, end in ends:
            self.journal("published", self.name, partition, end)

    def partition(self) -> int:
        return self.random.randrange(TOPICS[self.name])

    def settle(self, placed: list[Placed], *, waited: bool) -> None:
        """Make it durable first where the appends did not."""
        if not waited:
            self.topic.flush()
        self.ack(placed, published=self.notes.publishes)

    def value(self, record: Id) -> Any:
        return row(record) if self.name == "typed" else text_of(record).encode()

    def how(self) -> bool | None:
        """Return a `sync` that waits for the disk at least."""
        return self.random.choice([None, True]) if self.notes.waits else True

    # Ways to append; each is called again and again.

    def one_waiting(self) -> None:
        partition, sync = self.partition(), self.how()
        (record,) = self.take(1, partition)
        found = self.topic.append(self.value(record), partition=partition, sync=sync)
        published = self.notes.publishes and sync is None
        self.ack([(found.partition, record.number, 1, found.offset)], published=published)

    def some_then_flush(self) -> None:
        keyed = self.random.random() < 0.5
        sync = self.random.choice([None, False])
        partition = -1 if keyed else self.partition()
        placed = []
        for record in self.take(self.random.randint(1, 40), partition):
            where = {"key": b"%d" % (record.number % 5)} if keyed else {"partition": partition}
            found = self.topic.append(self.value(record), sync=sync, **where)
            placed.append((found.partition, record.number, 1, found.offset))
        self.settle(placed, waited=sync is None and self.notes.waits)

    def many(self) -> None:
        partition = self.partition()
        taken = self.take(self.random.randint(1, 60), partition)
        ranges = self.topic.append_many(
            [{"value": self.value(item), "partition": partition} for item in taken]
        )
        self.settle(in_order(ranges, taken), waited=self.notes.waits)

    def many_columns(self) -> None:
        taken = self.take(260)
        ranges = self.topic.append_many([self.value(item) for item in taken])
        if not self.notes.waits:
            self.topic.flush()
        # They go to the partitions in turn, and the ranges do not say which record went where.
        self.ack_somewhere(taken, ranges)

    def batch(self) -> None:
        partition, sync = self.partition(), self.how()
        # Below 4 KiB: one block, which is there wholly or not at all.
        taken = self.take(self.random.randint(1, 20), partition, block=True)
        if self.name == "typed":
            table = pa.Table.from_pylist([row(item) for item in taken], schema=TYPED)
        else:
            table = pa.table({"value": [self.value(item) for item in taken]})
        ranges = self.topic.append_batch(table, partition=partition, sync=sync)
        self.ack(in_order(ranges, taken), published=self.notes.publishes and sync is None)


class Numbered(Appender):
    """A producer whose records have the same numbers in every life: it repeats what was not acknowledged.

    Parameters
    ----------
    first
        The first number that was not acknowledged.
    keyed
        Whether the records go to all partitions. Else to one: retention may make one forget a producer of whose
        records another has lost some.
    """

    def __init__(self, notes: Notes, store: tiered.Store, first: int, *, keyed: bool) -> None:
        super().__init__(notes, store, PRODUCER, "records")
        self.session = self.topic.producer("source")
        known = self.session.next_sequence
        if known < first and keyed:
            raise AssertionError(
                f"the topic knows {known} numbers of the producer; {first} were acknowledged"
            )
        # What was deleted before it was published can be unknown, or its producer is, after a restore.
        self.number = min(first, known or first)
        self.keyed = keyed

    def some(self) -> None:
        """Append one by one or as a batch, then flush."""
        taken = self.take(self.random.randint(1, 30))
        keys = [b"%d" % (item.number % 7) for item in taken] if self.keyed else None
        if self.random.random() < 0.5:
            columns = {"value": [self.value(item) for item in taken], **({"key": keys} if keys else {})}
            table = pa.table(columns)
            partition = None if keys else 0
            self.session.append_batch(table, sequence=taken[0].number, partition=partition)
        else:
            for place, item in enumerate(taken):
                where: dict[str, Any] = {"key": keys[place]} if keys else {"partition": 0}
                self.session.append(self.value(item), sequence=item.number, **where)
        self.session.flush()
        # The offset of a repeat need not be known.
        self.ack_somewhere(taken, [])


class Passing(Appender):
    """Appends to a topic that it deletes and creates again."""

    def __init__(self, notes: Notes, store: tiered.Store, thread: int) -> None:
        super().__init__(notes, store, thread, PASSING)
        self.create()

    def create(self) -> None:
        self.store.create_topic(PASSING, exist_ok=True)
        self.journal("created", PASSING)

    def partition(self) -> int:
        return 0

    def turn(self) -> None:
        """Append some, and seal them or make an end of the topic."""
        way = self.random.choice([self.one_waiting, self.some_then_flush, self.batch])
        for _ in range(self.random.randint(1, 8)):
            way()
        dice = self.random.random()
        if dice < 0.3:
            self.topic.roll()
        elif dice < 0.6:
            self.journal("dropping", PASSING)
            self.store.delete_topic(PASSING)
            self.journal("dropped", PASSING)
            self.create()


def in_order(ranges: list[tiered.OffsetRange], taken: list[Id]) -> list[Placed]:
    """Return where records went that went in one order."""
    placed, first = [], taken[0].number
    for partition, start, end in ranges:
        placed.append((partition, first, end - start, start))
        first += end - start
    return placed
