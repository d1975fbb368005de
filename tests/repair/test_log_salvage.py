"""A damaged record of the transaction log: the store says what goes on, and a repair loses nothing that is anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, let_go, repaired, stepwise, tier, values
from tiered.engine.host import Host
from tiered.errors import DiskFull, PartitionPoisoned, TransactionLogDamaged
from tiered.format.schema import TRANSACTIONS_TOPIC
from tiered.hot.held_partition import HeldPartition

MARK = b"!find me!"


def opened(root: Path, cold: str | None, clock: Clock) -> tiered.Store:
    settings = stepwise(offload="off" if cold is None else {"after": "4h", "tail_interval": "1s"})
    return tiered.open(root, cold=cold, settings=settings, host=Host(clock=clock))


def transact(store: tiered.Store, consumer: Any, value: bytes) -> None:
    store.topic("a").flush()
    consumer.seek("latest")
    with store.transaction("etl") as transaction:
        transaction.append("a", value)
        transaction.append("b", value)
        transaction.commit_position(consumer)


def fill(root: Path, cold: str | None, clock: Clock, *, sealed: bool, published: bool) -> None:
    with opened(root, cold, clock) as store:
        store.create_topic("a")
        store.create_topic("b")
        with store.topic("a").consumer("billing") as consumer:
            transact(store, consumer, b"1")
            transact(store, consumer, MARK * 20)
            transact(store, consumer, b"3")
        store.flush()
        if sealed:
            store.topic(TRANSACTIONS_TOPIC).opened.writer(0).roll()
        if published:
            store.tierer.tail_pass()
            if sealed:
                tier(store, clock, OFFLOAD_US)


def damage(root: Path) -> Path:
    for path in sorted((root / "topics" / TRANSACTIONS_TOPIC / "0").glob("*.log")):
        data = bytearray(path.read_bytes())
        at = data.find(MARK)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return path
    path = min((root / "topics" / TRANSACTIONS_TOPIC / "0").glob("*.log"))
    data = bytearray(path.read_bytes())  # compressed
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "newest"])
@pytest.mark.parametrize("where", ["here alone", "in the bucket"])
def test_a_damaged_record_is_named_and_repaired(tmp_path: Path, where: str, *, sealed: bool) -> None:
    root, clock = tmp_path / "data", Clock()
    cold = f"file://{tmp_path}/bucket" if where == "in the bucket" else None
    fill(root, cold, clock, sealed=sealed, published=cold is not None)
    path = damage(root)
    with pytest.raises(TransactionLogDamaged, match="--deep --repair") as raised:
        opened(root, cold, clock)
    assert raised.value.where == str(path)
    assert raised.value.offsets is not None
    with tiered.open(root, read_only=True) as reader:
        assert values(reader.topic("a")) == [b"1", MARK * 20, b"3"]
    report = repaired(root, cold)
    if cold is None:
        (refused,) = report.repairs
        assert refused.result == "refused"
        assert "--drop-lost-transactions" in str(refused)
        with pytest.raises(TransactionLogDamaged):
            opened(root, cold, clock)
        report = repaired(root, cold, drop_lost_transactions=True)
    assert [item.result for item in report.repairs] == ["done"]
    assert report.problems == ()
    with opened(root, cold, clock) as store:
        assert [item.offset for item in store.consumers()] == [2]
        with store.topic("a").consumer("billing") as consumer:
            transact(store, consumer, b"4")
        for topic in ("a", "b"):
            assert values(store.topic(topic)) == [b"1", MARK * 20, b"3", b"4"]
        if cold is not None:
            store.flush()
            tier(store, clock, 2 * OFFLOAD_US)
    assert repaired(root, cold).problems == ()
    with opened(root, cold, clock) as store:
        assert values(store.topic("b"))[-1] == b"4"


def test_a_lost_position_is_that_of_before(tmp_path: Path) -> None:
    """The record that moved it is gone: the consumer reads again what it had read since."""
    root, clock = tmp_path / "data", Clock()
    with opened(root, None, clock) as store:
        store.create_topic("a")
        store.create_topic("b")
        with store.topic("a").consumer("billing") as consumer:
            transact(store, consumer, b"1")
            transact(store, consumer, b"2")
            transact(store, consumer, MARK * 20)
        store.topic(TRANSACTIONS_TOPIC).opened.writer(0).roll()
    damage(root)
    assert [item.result for item in repaired(root, None, drop_lost_transactions=True).repairs] == ["done"]
    with opened(root, None, clock) as store:
        assert [item.offset for item in store.consumers()] == [1]
        assert values(store.topic("a")) == [b"1", b"2", MARK * 20]


def test_a_repair_holds_one_block_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the log may be larger than memory; it was read whole for each of its blocks."""
    root, clock = tmp_path / "data", Clock()
    fill(root, None, clock, sealed=True, published=False)
    path, whole, read_bytes = damage(root), [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: whole.append(self) or read_bytes(self))
    repaired(root, None, drop_lost_transactions=True)
    assert path not in whole


def test_lost_rows_of_spark_are_written_again(tmp_path: Path) -> None:
    root, clock = tmp_path / "data", Clock()
    rows = pa.RecordBatch.from_pydict({"value": [MARK * 20]})
    with opened(root, None, clock) as store:
        store.create_topic("a")
        staged = store.staging.stage("a", "q", uuid4().hex, [rows])
        store.topic(TRANSACTIONS_TOPIC).opened.writer(0).roll()
    damage(root)
    repaired(root, None, drop_lost_transactions=True)
    with opened(root, None, clock) as store:
        with pytest.raises(tiered.ConfigError, match="write them again"):
            store.staging.commit("a", "q", 0, [staged])
        assert store.staging.commit("a", "q", 0, [store.staging.stage("a", "q", uuid4().hex, [rows])])
        assert values(store.topic("a")) == [MARK * 20]


def test_a_partition_goes_on_without_lost_rows_of_a_decided_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in no partition when the process died, and their record is gone."""
    root, clock = tmp_path / "data", Clock()
    append = HeldPartition.append

    def failing(self: HeldPartition, bodies: Any, numbers: Any = (), *arguments: Any, **named: Any) -> None:
        if numbers:
            raise DiskFull("no room on the local disk (injected)")
        append(self, bodies, numbers, *arguments, **named)

    store = opened(root, None, clock)
    store.create_topic("a")
    attempts = [
        store.staging.stage("a", "q", uuid4().hex, [pa.RecordBatch.from_pydict({"value": [value]})])
        for value in (b"1", MARK * 20, b"3")
    ]
    monkeypatch.setattr(HeldPartition, "append", failing)
    with pytest.raises(PartitionPoisoned, match="the transaction is committed"):
        store.staging.commit("a", "q", 0, attempts)
    let_go(store)
    monkeypatch.undo()
    damage(root)
    with pytest.raises(TransactionLogDamaged):
        opened(root, None, clock)
    assert [item.result for item in repaired(root, None, drop_lost_transactions=True).repairs] == ["done"]
    for value in (b"4", b"5"):
        with opened(root, None, clock) as store:
            with store.transaction() as transaction:
                transaction.append("a", value)
            store.flush()
            assert not store.staging.commit("a", "q", 0, attempts)
    with tiered.open(root, read_only=True) as reader:
        assert values(reader.topic("a")) == [b"1", b"4", b"5"]
    assert repaired(root, None).problems == ()
