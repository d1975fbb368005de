"""Transactions over three topics of four partitions, and a position: whole or absent, whoever looks, after a crash anywhere.

Another process looks before the store is opened again, then the next writer, the bucket alone, and restores.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Image, some
from tests.support.recorder import Recorder
from tests.support.stores import stepwise
from tests.transactions.lives import BUCKET, SHIPPED, check_each, check_each_bucket, host_of, restored_at
from tiered.transactions import log_renewal
from tiered.transactions.commits import Commits
from tiered.transactions.whole_reads import LogReading

pytestmark = pytest.mark.extended

TOPICS = ("eu", "sa", "us")
PARTITIONS = 4
PLACES = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
TRANSACTIONS = 5
ROWS = 4
"""Of a transaction in each of its partitions: two blocks."""


def opened(recorder: Recorder, cold: str | None = None, clock: Clock | None = None) -> Any:
    offload: Any = "off" if cold is None else {"after": "4h", "tail_interval": "1s"}
    settings = stepwise({"block_bytes": "4KiB"}, offload=offload)
    return tiered.open(recorder.root / "data", cold=cold, settings=settings, host=host_of(recorder, clock))


@pytest.fixture(autouse=True)
def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 5)


def places_of(number: int) -> list[tuple[str, int]]:
    """The partitions of a transaction."""
    return [place for at, place in enumerate(PLACES) if (at + number) % 3]


class WideLife:
    """Such transactions on a recorded disk, with other appends in between."""

    def __init__(self, root: Path, cold: str | None = None) -> None:
        root.mkdir()
        self.recorder, self.clock = Recorder(root), Clock()
        self.promises: list[int] = []
        self.times_us: list[int] = []
        with opened(self.recorder, cold, self.clock) as store:
            for topic in TOPICS:
                store.create_topic(topic, partitions=PARTITIONS)
            with store.topic("eu").consumer("c", partitions=0) as consumer:
                for number in range(TRANSACTIONS):
                    store.topic("sa").append(b"other", partition=number % PARTITIONS)
                    store.topic("eu").append(b"other", partition=0, sync=True)
                    self.times_us.append(self.clock.advance(1))
                    with store.transaction("etl") as transaction:
                        for topic, partition in places_of(number):
                            rows = [
                                {"value": b"%d" % number, "key": bytes(4000), "partition": partition}
                            ] * ROWS
                            transaction.append_many(topic, rows)
                        transaction.commit_position(consumer, {0: number + 1})
                    self.promises.append(len(self.recorder.journal))
                    if cold is not None:
                        self.publish(store, number)

    def publish(self, store: Any, number: int) -> None:
        """Publish some partitions, one head after the other; at last all."""
        store.flush()
        for topic, partition in PLACES[number::TRANSACTIONS]:
            store.tierer.tails.publish(store.topic(topic).meta, partition)
        if number == TRANSACTIONS - 1:
            store.tierer.tail_pass()

    def crashes(self) -> Any:
        return self.recorder.crashes(
            lambda index: [NOTHING, EVERYTHING, LAST, (NAMES, BYTES, some(index))[index % 3]]
        )


def whole(store: Any) -> list[int]:
    """Check that one snapshot has each transaction wholly or not at all; return those that it has."""
    topics = [topic for topic in TOPICS if topic in store.topics()]
    snapshot = store.snapshot(topics)
    found: dict[int, list[tuple[str, int]]] = {}
    for topic in topics:
        for row in snapshot.scan(topic).to_arrow().to_pylist():
            if row["value"] != b"other":
                found.setdefault(int(row["value"]), []).append((topic, row["partition"]))
    for number, places in found.items():
        assert sorted(places) == sorted([place for place in places_of(number) if place[0] in topics] * ROWS)
    assert sorted(found) == list(range(len(found)))
    return sorted(found)


def check_partitions(store: Any) -> None:
    """Check that a read of one partition has each transaction wholly or not at all there."""
    for topic, partition in PLACES:
        if topic in store.topics() and partition < store.topic(topic).partitions:
            rows = (
                store.topic(topic)
                .scan(partitions=[partition], columns=["value"])
                .to_arrow()["value"]
                .to_pylist()
            )
            assert {rows.count(b"%d" % number) for number in range(TRANSACTIONS)} <= {0, ROWS}


def check_position(store: Any, there: list[int]) -> None:
    moved = [item.offset for item in store.consumers() if item.offset is not None]
    assert moved == ([len(there)] if there else [])


def check(life: WideLife, root: Path, image: Image, index: int) -> None:
    recorder = Recorder(root, image)
    if (root / "data/store.json").exists():
        with tiered.open(root / "data", read_only=True, host=host_of(recorder)) as reader:
            whole(reader)
            check_partitions(reader)
    with opened(recorder) as store:
        there = whole(store)
        assert len(there) >= sum(at <= index for at in life.promises)
        check_position(store, there)
    with tiered.open(root / "data", read_only=True, host=host_of(recorder)) as reader:
        assert whole(reader) == there
        check_position(reader, there)


def check_crashes(life: WideLife, folder: Path, every: int = 1) -> int:
    images = ((index, image) for index, _, image in life.crashes())
    return check_each(images, folder, every, partial(check, life))


def test_a_crash_anywhere_leaves_each_transaction_whole_or_absent(tmp_path: Path) -> None:
    assert check_crashes(WideLife(tmp_path / "life"), tmp_path, every=20) > 100


def check_bucket(root: Path, image: Image) -> None:
    if not any(key.endswith("store.json") for key in image.objects):
        return
    host = host_of(Recorder(root, image))
    with tiered.open(BUCKET, host=host) as reader:
        seen = whole(reader)
        check_partitions(reader)
    with tiered.restore(BUCKET, root / "restored", settings=SHIPPED, host=host) as store:
        there = whole(store)
        assert set(seen) <= set(there)
        check_position(store, there)


def check_buckets(life: WideLife, folder: Path, every: int = 1) -> int:
    return check_each_bucket(life.crashes(), folder, every, check_bucket)


def test_no_moment_of_the_bucket_has_a_part(tmp_path: Path) -> None:
    assert check_buckets(WideLife(tmp_path / "life", BUCKET), tmp_path, every=4) > 40


def test_a_restore_to_a_time_has_what_was_decided_by_then(tmp_path: Path) -> None:
    life = WideLife(tmp_path / "life", BUCKET)
    objects = dict(life.recorder.bucket.objects)
    for number, time_us in enumerate(life.times_us):
        restored, _ = restored_at(life, objects, tmp_path / f"at{number}", time_us)
        with restored as store:
            assert whole(store) == list(range(number + 1))
            check_position(store, whole(store))


def test_the_cut_of_a_read_of_one_partition_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a power cut shows the first block of a transaction, until the store is opened for writing."""
    monkeypatch.setattr(Commits, "begin_reading_one", lambda *_: None)
    with pytest.raises(AssertionError):
        check_crashes(WideLife(tmp_path / "life"), tmp_path, every=5)


def test_the_cut_of_readers_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, some moment of the bucket, or of a disk that was not opened again, shows a part."""
    monkeypatch.setattr(LogReading, "whole_ends", lambda _, ends: dict(ends))
    life = WideLife(tmp_path / "life", BUCKET)
    with pytest.raises(AssertionError):
        check_buckets(life, tmp_path)
