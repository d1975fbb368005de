"""Restores to a time, one after another: a transaction that one of them undid stays undone in those that follow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import stepwise
from tiered.engine.host import Host
from tiered.warm.catalog import Catalog

SETTINGS = stepwise(offload={"after": "1h", "tail_interval": "1s"})


def values(store: Any) -> list[bytes]:
    return [row["value"] for row in store.topic("t").scan().to_arrow().to_pylist()]


class Bucket:
    """One store after another, on a new disk each."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock, self.number = path, clock, 0
        self.url = f"file://{path}/bucket"

    def open(self) -> Any:
        return tiered.open(self.path / "0", cold=self.url, settings=SETTINGS, host=Host(clock=self.clock))

    def restore(self, at_ms: int | None = None) -> Any:
        self.number += 1
        shutil.rmtree(self.path / f"{self.number - 1}")
        self.clock.advance(60)
        host = Host(clock=self.clock)
        return tiered.restore(self.url, self.path / f"{self.number}", at=at_ms, settings=SETTINGS, host=host)

    def commit(self, store: Any, value: bytes) -> int:
        """Commit a transaction and publish it; return a time at which it was the last one."""
        with store.transaction() as transaction:
            transaction.append("t", value)
        store.topic("t").publish()
        moment = self.clock() // 1000
        self.clock.advance(60)
        return moment


@pytest.fixture
def bucket(tmp_path: Path, clock: Clock) -> Bucket:
    return Bucket(tmp_path, clock)


@pytest.mark.extended
@pytest.mark.parametrize("between", ["", "append", "pass", "commit", "append pass commit"])
def test_what_a_restore_to_a_time_undid_stays_undone(bucket: Bucket, between: str) -> None:
    """Whether or not the restored store published anything before its disk was lost, too."""
    with bucket.open() as store:
        store.create_topic("t")
        moment = bucket.commit(store, b"one")
        bucket.commit(store, b"undone")
    expected = [b"one"]
    with bucket.restore(moment) as store:
        assert values(store) == expected
        for step in between.split():
            bucket.clock.advance(60)
            match step:
                case "append":
                    store.topic("t").append(b"appended")
                    store.topic("t").publish()
                    expected.append(b"appended")
                case "commit":
                    bucket.commit(store, b"two")
                    expected.append(b"two")
                case "pass":
                    store.tier()
        now = bucket.clock() // 1000
    with bucket.restore() as store:
        assert values(store) == expected
        bucket.commit(store, b"three")
    with bucket.restore(now) as store:
        assert values(store) == expected
        assert store.verify(deep=True).problems == ()


@pytest.mark.parametrize("again", [False, True])
def test_rows_that_were_deleted_do_not_come_back_with_a_restore(bucket: Bucket, again: bool) -> None:
    """No object is left that says which transactions the partition had."""
    with bucket.open() as store:
        topic = store.create_topic("t")
        bucket.commit(store, b"one")
        bucket.commit(store, b"two")
        topic.delete_before(2)
        for _ in range(2):
            bucket.clock.advance(7200)
            store.tier()
    for _ in range(2 if again else 1):
        with bucket.restore() as store:
            assert values(store) == []
            assert store.topic("t").offsets()[0].end == 2
    with bucket.restore() as store:
        bucket.commit(store, b"three")
        assert values(store) == [b"three"]
        assert store.topic("t").offsets()[0].end == 3
        (part,) = store.transactions.open_transactions()[-1].parts
        assert part.first_number == 2, "the number of a deleted row is not used again"
    with bucket.restore() as store:
        assert values(store) == [b"three"]
        assert store.verify(deep=True).problems == ()


def test_what_was_undone_comes_back_with_a_time_before_that(bucket: Bucket) -> None:
    with bucket.open() as store:
        store.create_topic("t")
        first = bucket.commit(store, b"one")
        second = bucket.commit(store, b"two")
    with bucket.restore(first) as store:
        bucket.commit(store, b"three")
        assert values(store) == [b"one", b"three"]
    with bucket.restore(second) as store:
        assert values(store) == [b"one", b"two"]
    with bucket.restore(first) as store:
        assert values(store) == [b"one"]


def test_a_reader_of_a_restored_directory_leaves_out_what_was_undone(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes before the first writer, which appends the log anew: its objects have records of later times."""
    with bucket.open() as store:
        topic = store.create_topic("t")
        bucket.commit(store, b"one")
        with topic.consumer("billing") as consumer:
            for number, value in enumerate((b"two", b"undone")):
                with store.transaction() as transaction:
                    transaction.append("t", value)
                    transaction.commit_position(consumer, {0: number})
                bucket.clock.advance(60)
        moment = bucket.clock() // 1000 - 90_000
        topic.publish()

    def seen() -> tuple[list[bytes], list[int | None]]:
        path, host = bucket.path / f"{bucket.number}", Host(clock=bucket.clock)
        with tiered.open(path, read_only=True, host=host) as reader:
            return values(reader), [item.offset for item in reader.consumers()]

    with monkeypatch.context() as patched:
        patched.setattr("tiered.recovery.restore.open_store", lambda *_, **__: None)
        bucket.restore(moment)
    assert seen() == ([b"one"], [0])
    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "transactions_cuts", lambda _: ())
        assert seen() == ([b"one"], [1])
    path = bucket.path / f"{bucket.number}"
    with tiered.open(path, settings=SETTINGS, host=Host(clock=bucket.clock)) as store:
        assert values(store) == [b"one", b"two"]
        assert seen() == ([b"one", b"two"], [0])
