"""A restore to a time at which an earlier restore was moving the heads of the bucket: each transaction is whole or absent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tiered
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.disk_model import NOTHING, Image, Objects, Put
from tests.support.recorder import Recorder
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tests.transactions.lives import BUCKET, SHIPPED, host_of
from tests.transactions.published_in_part import PLACES, TRANSACTIONS, life

HALF_US, HOUR_US = 500_000, 3_600_000_000


class Ticking(Clock):
    """A clock that moves on by a second whenever it is read."""

    def __call__(self) -> int:
        return self.advance(1)


def restore(recorder: Recorder, clock: Clock, at_us: int | None) -> tiered.Store:
    at = None if at_us is None else at_us // 1000
    return tiered.restore(
        BUCKET, recorder.root / "data", at=at, settings=SHIPPED, host=host_of(recorder, clock)
    )


def transactions_in(store: tiered.Store) -> set[bytes]:
    """Check that each transaction is in all partitions or in none; return those that are there."""
    found = [store.topic(name).scan(partition).to_arrow()["value"].to_pylist() for name, partition in PLACES]
    there = set().union(*found)
    for value in there:
        assert [own.count(value) for own in found] == [2, 2, 2], f"a part of transaction {value!r}"
    return there


def counts_at(times_us: Sequence[int], objects: Objects, now_us: int, folder: Path) -> list[int]:
    """Restore to each of these times; return how many transactions the restored stores have."""
    counts = []
    for at_us in times_us:
        root = folder / f"{at_us}"
        root.mkdir(parents=True)
        with restore(Recorder(root, Image(objects=objects)), Ticking(now_us), at_us) as store:
            counts.append(len(transactions_in(store)))
    return counts


@pytest.mark.extended
@pytest.mark.parametrize("number", [None, 1, 3])
def test_a_time_inside_a_restore(tmp_path: Path, number: int | None) -> None:
    """All its heads were moved at one moment, whenever they were."""
    recorder, clock = Recorder(tmp_path, Image(objects=life().objects)), Ticking(life().clock_us)
    began_us = clock.now_us
    restore(recorder, clock, None if number is None else life().times_us[number]).abandon()
    times_us = thinned(range(began_us, clock.now_us, HALF_US), 4)
    counts = counts_at(times_us, recorder.bucket.objects, clock.now_us + HOUR_US, tmp_path / "again")
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (TRANSACTIONS, TRANSACTIONS if number is None else number + 1)


@pytest.mark.extended
def test_a_time_inside_a_restore_that_was_repeated(tmp_path: Path) -> None:
    """An hour later: in between some heads were moved and others were not, and the repeat moves these as of the first attempt."""
    recorder, clock = Recorder(tmp_path, Image(objects=life().objects)), Ticking(life().clock_us)
    began_us, at_us = clock.now_us, life().times_us[1]
    restore(recorder, clock, at_us).abandon()
    died_us = clock.now_us
    moves = [
        1 + at
        for at, op in enumerate(recorder.journal)
        if isinstance(op, Put) and op.key.endswith(("head.json", "topic.json"))
    ]
    images = [image for at, _, image in recorder.crashes(lambda _: [NOTHING]) if at in moves]
    for number, image in enumerate(thinned(images, 3)):
        root = tmp_path / f"{number}"
        root.mkdir()
        again, later = Recorder(root, image), Ticking(died_us + HOUR_US)
        assert (again.root / "data/restoring.json").exists()
        restore(again, later, at_us).abandon()
        times_us = [
            *thinned(range(began_us, died_us, HALF_US), 14),
            died_us + HOUR_US // 2,
            *thinned(range(died_us + HOUR_US, later.now_us, HALF_US), 14),
        ]
        counts = counts_at(times_us, again.bucket.objects, later.now_us, root / "again")
        assert counts == sorted(counts, reverse=True)
        assert (counts[0], counts[-1]) == (TRANSACTIONS, 2)
    assert number > 2


@pytest.mark.extended
@pytest.mark.parametrize("shipped", [(0,), (1, 2)])
def test_a_time_inside_a_restore_beside_which_the_host_went_on(
    tmp_path: Path, shipped: tuple[int, ...]
) -> None:
    """Between the time that dates the restore and the claims: two transactions, the second published in part."""
    clock, bucket = Ticking(Clock()()), WatchedBucket()
    bucket.clock = lambda: clock.now_us / 1e6
    store = open_at(tmp_path / "old", bucket, clock, settings=SHIPPED)
    committed: list[int] = []

    def commit(places: Sequence[int]) -> None:
        with store.transaction() as transaction:
            for topic, partition in PLACES:
                for _ in range(2):
                    transaction.append(topic, b"%d" % len(committed), partition=partition)
        committed.append(clock.advance(1))
        store.flush()
        for place in places:
            topic, partition = PLACES[place]
            store.tierer.tails.publish(store.topic(topic).meta, partition)

    def go_on(request: str) -> None:
        if request == "put store.json" and len(committed) == 1:
            commit((0, 1, 2))
            commit(shipped)

    store.create_topic("First")
    store.create_topic("second", partitions=2)
    commit((0, 1, 2))
    began_us = clock.now_us
    bucket.hook = go_on
    with tiered.restore(URL, tmp_path / "new", settings=SHIPPED, host=host(bucket, clock)) as new:
        assert len(transactions_in(new)) == len(committed) == 3
    store.abandon()
    counts = []
    for at_us in thinned(range(began_us, clock.now_us, HALF_US), 4):
        again, later = WatchedBucket(), Ticking(clock.now_us + HOUR_US)
        again.clock, again.objects = (lambda now=later: now.now_us / 1e6), dict(bucket.objects)
        with tiered.restore(
            URL, tmp_path / f"{at_us}", at=at_us // 1000, settings=SHIPPED, host=host(again, later)
        ) as restored:
            counts.append(len(transactions_in(restored)))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 3)
