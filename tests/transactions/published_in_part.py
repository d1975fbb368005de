"""A life of a store whose transactions are in three partitions, each published in part: what restores start from."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support.clock import Clock
from tests.support.disk_model import Objects
from tests.support.recorder import Recorder
from tests.transactions.lives import BUCKET, opened

TOPICS = ("First", "second")  # one has a name before, one behind that of the transaction log
PLACES = (("First", 0), ("second", 0), ("second", 1))
TRANSACTIONS = 5

Ends = dict[tuple[str, int], int]


class Life(NamedTuple):
    """A store's bucket at its end, times between its transactions, and where each transaction ends in each partition."""

    objects: Objects
    clock_us: int
    times_us: list[int]
    ends: list[Ends]


@cache
def life() -> Life:
    """Transactions over all partitions; each is published in part, and the last of them wholly."""
    with TemporaryDirectory() as folder:
        recorder, clock = Recorder(Path(folder)), Clock()
        times: list[int] = []
        ends: list[Ends] = []
        for number in range(TRANSACTIONS):
            with opened(recorder, BUCKET, clock) as store:  # whose close marks what is applied
                store.create_topic("First", exist_ok=True)
                store.create_topic("second", partitions=2, exist_ok=True)
                clock.advance(60)
                if number in (2, 4):
                    with store.topic("First").consumer("billing" if number == 2 else "undone") as consumer:
                        consumer.seek({0: number})
                        consumer.commit()
                with store.transaction() as transaction:
                    for topic, partition in PLACES:
                        for _ in range(2):
                            transaction.append(topic, b"t%d" % number, partition=partition)
                ends.append(
                    {
                        (name, item.partition): item.end
                        for name, own in transaction.ranges.items()
                        for item in own
                    }
                )
                clock.advance(60)
                times.append(clock())
                store.flush()
                topic, partition = PLACES[number % 3]
                store.tierer.tails.publish(store.topic(topic).meta, partition)
                clock.advance(60)
                if number % 2 or number == TRANSACTIONS - 1:
                    store.tierer.tail_pass()
        with opened(recorder, BUCKET, clock) as store:
            store.tierer.tail_pass()
        return Life(dict(recorder.bucket.objects), clock(), times, ends)
