"""Transactions with rows in what was made while the bucket did not answer: a restore has each one whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import NOTHING, Image
from tests.support.recorder import Recorder
from tests.transactions.lives import BUCKET, SHIPPED, check_each_bucket, host_of, opened, restored_at
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.transactions.commits import Commits

COUNT = 3
PLACES = [("__transactions", 0), ("events", 0), ("sums", 0)]
GROWTHS: dict[str, tuple[Callable[[Any], object], list[tuple[str, int]]]] = {
    "partitions": (lambda store: store.topic("events").add_partitions(2), [("events", 1)]),
    "columns": (lambda store: store.topic("sums").add_columns(pa.schema([("more", pa.int64())])), []),
    "topic": (lambda store: store.create_topic("new"), [("new", 0)]),
}


class Life:
    """Topics that grow while the bucket does not answer, and transactions over all of them, published one by one."""

    def __init__(self, root: Path, growth: str, *, known: bool) -> None:
        root.mkdir()
        self.recorder, self.clock, self.times_us = Recorder(root), Clock(), list[int]()
        grow, self.grown = GROWTHS[growth]
        with opened(self.recorder, BUCKET, self.clock) as store:
            events = store.create_topic("events")
            store.create_topic("sums", schema=pa.schema([("n", pa.int64())]))
            if known:
                events.append(b"0")
                store.tierer.tail_pass()
            with pytest.MonkeyPatch.context() as outage:
                outage.setattr(StoreDocuments, "read", _unreachable)
                grow(store)
            for number in range(1, COUNT + 1):
                self._transact(store, number)
                topic, partition = PLACES[(number - 1) % 3]  # the log first
                store.flush()
                store.tierer.tails.publish(store.topic(topic).meta, partition)
            store.tierer.tail_pass()

    def _transact(self, store: Any, number: int) -> None:
        self.times_us.append(self.clock.advance(1))
        with store.transaction() as transaction:
            for topic, partition in [("events", 0), *self.grown]:
                transaction.append(topic, b"%d" % number, partition=partition)
            columns = store.topic("sums").schema.names
            transaction.append("sums", dict.fromkeys(columns, number))

    def check(self, store: Any) -> list[int]:
        """Check that each transaction is there wholly or not; return those that are there."""
        found: dict[int, list[tuple[str, int]]] = {}
        for topic in {"events", "sums", "new"} & set(store.topics()):
            for row in store.topic(topic).scan().to_arrow().to_pylist():
                number = int(row["n" if topic == "sums" else "value"])
                assert row.get("more", number) == number
                found.setdefault(number, []).append((topic, row["partition"]))
        found.pop(0, None)
        assert all(sorted(places) == sorted([*PLACES[1:], *self.grown]) for places in found.values())
        return sorted(found)

    def check_buckets(self, folder: Path) -> None:
        """Restore what the bucket has after each change."""

        def check(root: Path, image: Image) -> None:
            if any(key.endswith("store.json") for key in image.objects):
                host = host_of(Recorder(root, image))
                with tiered.restore(BUCKET, root / "restored", settings=SHIPPED, host=host) as store:
                    there = self.check(store)
                    assert there == list(range(1, len(there) + 1))

        check_each_bucket(self.recorder.crashes(lambda _: [NOTHING]), folder, 4, check)


def _unreachable(*_: Any, **__: Any) -> None:
    raise tiered.ColdStorageError("no answer (injected)", retryable=True)


@pytest.mark.extended
@pytest.mark.parametrize("known", [True, False], ids=["known topics", "new topics"])
@pytest.mark.parametrize("growth", GROWTHS)
def test_what_grew_unknown_to_the_bucket_is_restored_with_its_transactions(
    growth: str, tmp_path: Path, *, known: bool
) -> None:
    life = Life(tmp_path / "life", growth, known=known)
    life.check_buckets(tmp_path)
    for number, time_us in enumerate(life.times_us, start=1):
        restored, _ = restored_at(life, dict(life.recorder.bucket.objects), tmp_path / f"at{number}", time_us)
        with restored as store:
            assert life.check(store) == list(range(1, number + 1))


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_bucket_knows_the_topics_before_the_log(
    growth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commits, "participants", lambda _: [])
    with pytest.raises(AssertionError):
        Life(tmp_path / "life", growth, known=True).check_buckets(tmp_path)
