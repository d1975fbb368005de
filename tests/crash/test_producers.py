"""A crash between any two steps of idempotent producers: what is repeated afterwards is there exactly once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Image, Loss, some
from tests.support.recorder import Recorder
from tests.support.stores import COMPRESS_US, stepwise, tier, values
from tiered.engine.append_numbered import append_idempotent, last_sequence
from tiered.engine.host import Host
from tiered.store.interface.producer import Producer

KEYS = (b"a", b"b", b"c", None)
CALL = [b"call:%d" % i + b"." * 200 for i in range(12)]
CALL_BASE = 5 << 32
NUMBERS = 96


class Life:
    """Two sessions, a sink's call of several blocks, mixed blocks and rolls; and what each moment had promised."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.recorder = Recorder(root)
        self.clock = Clock()
        self.promises: list[tuple[int, int, int, bool]] = []
        epoch, flushed, called = -1, 0, False

        def promise() -> None:
            self.promises.append((len(self.recorder.journal), epoch, flushed, called))

        for life in range(2):
            with self.open(self.recorder) as store:
                topic = store.create_topic("log", partitions=2, exist_ok=True)
                promise()
                for half in range(2):
                    producer = topic.producer("p")
                    epoch = producer.epoch
                    promise()
                    base = NUMBERS // 4 * (2 * life + half)
                    for number in range(base, base + 12):
                        producer.append(b"p:%d" % number, sequence=number, key=KEYS[number % 4])
                        if number % 5 == 0:
                            topic.append(b"plain", partition=number % 2)
                    producer.append_batch(rows(range(base + 12, base + 24)), sequence=base + 12)
                    topic.flush()
                    flushed = base + 24
                    promise()
                if life == 0:
                    append_idempotent(
                        topic.opened, pa.table({"value": CALL}), 0, "sink", 0, CALL_BASE, sync=True
                    )
                    called = True
                    promise()
                    topic.roll()
                    tier(store, self.clock, COMPRESS_US)

    def open(self, recorder: Recorder) -> tiered.Store:
        settings = stepwise({"block_bytes": 600}, roll={"bytes": "4KiB", "age": "off"}, offload="off")
        return tiered.open(
            recorder.root / "data", settings=settings, host=Host(clock=self.clock, fs=recorder)
        )

    def crashes(self, stride: int, first: int) -> Iterator[tuple[int, Image]]:
        def losses(index: int) -> list[Loss]:
            if index % stride != first % stride:
                return []
            return [NOTHING, EVERYTHING, NAMES, BYTES, LAST, some(index)]

        for index, _, image in self.recorder.crashes(losses):
            yield index, image

    def check(self, root: Path, image: Image, index: int) -> None:
        """Go on from a crash as a source does: begin a session, repeat what no flush had acknowledged."""
        _, epoch, flushed, called = max(
            (item for item in self.promises if item[0] <= index), default=(0, -1, 0, False)
        )
        recorder = Recorder(root, image)
        with self.open(recorder) as store:
            topic = store.create_topic("log", partitions=2, exist_ok=True)
            producer = topic.producer("p")
            assert producer.epoch > epoch, "the epoch was durable when the session began"
            assert producer.next_sequence >= flushed
            if called:
                assert last_sequence(topic.opened, 0, "sink") == (0, CALL_BASE + len(CALL) - 1)
            repeat(topic, producer, flushed)
        with self.open(recorder) as store:
            topic = store.topic("log")
            check_once(topic)
            assert topic.producer("p").next_sequence == NUMBERS
            repeat(topic, topic.producer("p"), 0)
            check_once(topic)


def repeat(topic: tiered.Topic, producer: Producer, first: int) -> None:
    """Append everything from a number on, one by one and as a batch, and the whole of the sink's call."""
    middle = min(first + 12, NUMBERS)
    for number in range(first, middle):
        producer.append(b"p:%d" % number, sequence=number, key=KEYS[number % 4])
    if middle < NUMBERS:
        producer.append_batch(rows(range(middle, NUMBERS)), sequence=middle)
    append_idempotent(topic.opened, pa.table({"value": CALL}), 0, "sink", 0, CALL_BASE)


def check_once(topic: tiered.Topic) -> None:
    """Each number is there once, in order within its partition."""
    found = []
    for partition in range(2):
        here = [item for item in values(topic.scan(partition)) if item != b"plain"]
        numbers = [int(item[2:]) for item in here if item.startswith(b"p:")]
        assert numbers == sorted(numbers)
        assert [item for item in here if item.startswith(b"call")] == (CALL if partition == 0 else [])
        found += numbers
    assert sorted(found) == list(range(NUMBERS))


def rows(numbers: range) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([KEYS[number % 4] for number in numbers], pa.binary()),
            "value": pa.array([b"p:%d" % number for number in numbers], pa.binary()),
        }
    )


def run(tmp_path: Path, stride: int, first: int) -> None:
    life, tried = Life(tmp_path / "life"), 0
    for index, image in life.crashes(stride, first):
        folder = tmp_path / f"{index}-{tried}"
        folder.mkdir()
        life.check(folder, image, index)
        shutil.rmtree(folder)
        tried += 1
    assert tried > len(life.recorder.journal) // stride


@pytest.mark.extended
def test_a_crash_repeats_nothing_twice(tmp_path: Path) -> None:
    run(tmp_path, 23, 5)


@pytest.mark.slow
def test_a_crash_anywhere_repeats_nothing_twice(tmp_path: Path) -> None:
    run(tmp_path, 1, 0)
