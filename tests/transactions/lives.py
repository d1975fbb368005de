"""Transactions over three partitions and a position, between other appends, on a recorded disk and in its bucket."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import tiered
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Image, Loss, some
from tests.support.recorder import Recorder
from tests.support.stores import stepwise
from tiered.engine.host import Host

TYPED = pa.schema([("n", pa.int64()), ("text", pa.string())])
PLACES = (("events", 0), ("events", 1), ("sums", 0))
ORDINARY = 1_000_000
BUCKET = "s3://bucket/prefix"
SHIPPED = stepwise(offload={"after": "4h", "tail_interval": "1s"})


def check_each(
    images: Iterable[tuple[int, Image]], folder: Path, every: int, check: Callable[[Path, Image, int], None]
) -> int:
    """Check images that differ, each in a folder of its own; return how many there are.

    Parameters
    ----------
    images
        Each with the operation after which it can be there.
    every
        In the short run, check one of so many.
    """
    different = {image.key(): (index, image) for index, image in images}
    for number, (index, image) in enumerate(thinned(list(different.values()), every)):
        root = folder / f"{number}"
        root.mkdir()
        check(root, image, index)
        shutil.rmtree(root)
    return len(different)


def check_each_bucket(
    crashes: Iterable[tuple[int, Any, Image]], folder: Path, every: int, check: Callable[[Path, Image], None]
) -> int:
    """Check what is left in the bucket, without the disk; see `check_each`."""
    images = ((index, Image(objects=image.objects)) for index, _, image in crashes)
    return check_each(images, folder, every, lambda root, image, _: check(root, image))


def host_of(recorder: Recorder, clock: Clock | None = None) -> Host:
    return Host(clock=clock or Clock(), fs=recorder, open_bucket=recorder.open_bucket)


def restored_at(life: Any, objects: Any, root: Path, time_us: int) -> tuple[Any, Host]:
    """Restore what a life left in its bucket to just after a time; return the store, and the host that has the bucket."""
    root.mkdir()
    host = host_of(Recorder(root, Image(objects=objects)), Clock(life.clock() + 1_000_000))
    at = (time_us + 500_000) // 1000
    return tiered.restore(BUCKET, root / "restored", at=at, settings=SHIPPED, host=host), host


def opened(recorder: Recorder, cold: str | None = None, clock: Clock | None = None) -> Any:
    settings = stepwise(offload="off" if cold is None else {"after": "4h", "tail_interval": "1s"})
    return tiered.open(recorder.root / "data", cold=cold, settings=settings, host=host_of(recorder, clock))


def rows_of(store: Any) -> dict[tuple[str, int], list[int]]:
    """The numbers in each partition, in the order of offsets."""
    found: dict[tuple[str, int], list[int]] = {place: [] for place in PLACES}
    for topic, column in (("events", "value"), ("sums", "n")):
        if topic in store.topics():
            for row in store.topic(topic).scan().to_arrow().sort_by("offset").to_pylist():
                found[topic, row["partition"]].append(int(row[column]))
    return found


class Promise(NamedTuple):
    """What a commit that returned at a point of the journal had promised."""

    index: int
    number: int
    ranges: dict[str, list[tiered.OffsetRange]]


class Life:
    """Transactions over three partitions and a position, between other appends, on a recorded disk."""

    def __init__(self, root: Path, cold: str | None = None) -> None:
        root.mkdir()
        self.cold = cold
        self.clock = Clock()
        self.times_us: list[int] = []
        self.positions: list[int] = []
        self.recorder = Recorder(root)
        self.promises: list[Promise] = []
        self.begun: list[tuple[int, int]] = []
        number = 0
        for life in range(3):
            with opened(self.recorder, cold, self.clock) as store:
                if life == 0:
                    store.create_topic("events", partitions=2)
                    store.create_topic("sums", schema=TYPED, key="n")
                with store.topic("events").consumer("billing", start="latest") as consumer:
                    for _ in range(4):
                        self.transact(store, consumer, number)
                        number += 1
                if life == 1:
                    store.topic("sums").add_columns(pa.schema([("more", pa.int64())]))

    def transact(self, store: Any, consumer: Any, number: int) -> None:
        events, sums = store.topic("events"), store.topic("sums")
        if number % 5 < 3:  # otherwise nothing lies between two transactions
            events.append(b"%d" % (ORDINARY + number), partition=number % 2)
            sums.append({"n": ORDINARY + number})
        consumer.seek("latest")
        self.positions.append(consumer.position()[0])
        self.begun.append((len(self.recorder.journal), number))
        self.times_us.append(self.clock.advance(1))
        with store.transaction("etl") as transaction:
            for partition in {0, number % 2}:
                transaction.append(events, b"%d" % number, partition=partition)
            if number % 3:
                transaction.append_many("sums", [{"n": number}] * (number % 3))
            if number % 4 == 1:
                transaction.append_batch("events", pa.table({"value": [b"%d" % number] * 3}), partition=1)
            transaction.commit_position(consumer)
        self.promises.append(Promise(len(self.recorder.journal), number, transaction.ranges))
        if self.cold is not None:
            self.publish(store, number)

    def publish(self, store: Any, number: int) -> None:
        """Publish the tail of one partition, of all, or whole segments; now and then nothing."""
        topic, partition = PLACES[number % 3]
        if number % 4 < 2:
            store.topic(topic).flush()
            store.tierer.tails.publish(store.topic(topic).meta, partition)
        elif number % 4 == 2:
            store.flush()
            store.tierer.tail_pass()
        if number == 7:
            store.topic(topic).roll()
            store.tier((store.context.clock() + 5 * 3_600_000_000) // 1000)

    def crashes(self) -> Any:
        def losses(index: int) -> list[Loss]:
            return [NOTHING, EVERYTHING, LAST, (NAMES, BYTES, some(index))[index % 3]]

        return self.recorder.crashes(losses)


def parts_of(number: int) -> dict[tuple[str, int], int]:
    """How many rows a transaction has in each partition."""
    parts = {("events", partition): 1 for partition in {0, number % 2}}
    if number % 4 == 1:
        parts["events", 1] = parts.get(("events", 1), 0) + 3
    if number % 3:
        parts["sums", 0] = number % 3
    return parts
