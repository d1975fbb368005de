"""What a commit says, and what comes next, if the disk fails before its decision or after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.recorder import Recorder
from tests.support.stores import let_go, stepwise, values
from tests.transactions.faults import Fault
from tests.transactions.lives import opened
from tiered.errors import DiskFull, PartitionPoisoned
from tiered.format import producers
from tiered.hot.held_partition import HeldPartition

LARGE = bytes(3 << 20)


def reopened(root: Path) -> Any:
    return tiered.open(root / "data", settings=stepwise(offload="off"))


def test_room_that_cannot_be_reserved_is_noticed_before_the_decision(tmp_path: Path) -> None:
    """Whichever of the files of a commit finds no room, the log included: nothing is committed."""
    failures = 0
    for step in range(20):
        (tmp_path / f"{step}").mkdir()
        recorder = Recorder(tmp_path / f"{step}")
        with opened(recorder) as store:
            events = store.create_topic("events", partitions=2)
            events.append_many([{"value": b"0", "partition": partition} for partition in range(2)])
            events.flush()
            fault = Fault(step, lambda: DiskFull("no room (injected)"), ("reserve",), lasting=True)
            recorder.fault = fault
            try:
                with store.transaction() as transaction:
                    for partition in range(2):
                        transaction.append("events", LARGE, partition=partition)
            except DiskFull:
                failures += 1
            recorder.fault = None
            there = [LARGE] if fault.left >= 0 else []
            assert [values(events.scan(partition)) for partition in range(2)] == [[b"0", *there]] * 2
        if fault.left >= 0:
            break
    assert failures >= 3


def test_nothing_comes_before_rows_whose_append_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error, and whether or not the file failed: the next opening appends them at the offsets decided."""

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("injected")

    store = opened(Recorder(tmp_path))
    events = store.create_topic("events")
    events.append(b"0", sync=True)
    with store.transaction() as transaction:
        transaction.append("events", b"1")
    append = HeldPartition.append
    monkeypatch.setattr(HeldPartition, "append", lambda held, *rest, **named: (
        fail() if held.meta.name == "events" else append(held, *rest, **named)
    ))  # fmt: skip
    with pytest.raises(PartitionPoisoned, match="the transaction is committed, but"):
        with store.transaction() as transaction:
            transaction.append("events", b"2")
    monkeypatch.undo()
    with pytest.raises(PartitionPoisoned, match="rows of an earlier transaction"):
        events.append(b"3", sync=True)
    let_go(store)
    with reopened(tmp_path) as again:
        assert values(again.topic("events")) == [b"0", b"1", b"2"]


def test_a_failed_sync_of_what_lies_before_the_rows_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the rows, and no reader has them before the next opening: a commit that returned would say otherwise."""

    def fail(held: HeldPartition) -> None:
        error = PartitionPoisoned("a failed sync (injected)")
        held.fail(error)
        raise error

    store = opened(Recorder(tmp_path))
    events = store.create_topic("events", partitions=2)
    events.append(b"0", partition=0, sync=True)
    events.append(b"1", partition=1)  # is not durable, and the transaction log does not have it
    monkeypatch.setattr(HeldPartition, "sync", fail)
    with pytest.raises(PartitionPoisoned, match="the transaction is committed, but"):
        with store.transaction() as transaction:
            for partition in range(2):
                transaction.append("events", b"2", partition=partition)
    monkeypatch.undo()
    assert b"2" not in values(events)
    let_go(store)
    with reopened(tmp_path) as again:
        assert values(again.topic("events").scan(0)) == [b"0", b"2"]
        assert values(again.topic("events").scan(1))[-1:] == [b"2"]


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_participant_keeps_no_transaction_in_the_log(tmp_path: Path, *, again: bool) -> None:
    """Also if another topic has its name by now, with fewer partitions: rows of the old one are nothing to wait for."""
    with opened(Recorder(tmp_path)) as store:
        store.create_topic("events", partitions=2)
        with store.transaction() as transaction:
            transaction.append("events", b"1", partition=1)
        assert store.transactions.open_count == 1
        store.delete_topic("events")
        if again:
            store.create_topic("events")
        store.commits.completion.settle(ask=False)
        assert store.transactions.open_count == 0


def test_a_writer_that_has_not_heard_of_new_columns_gets_rows_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`add_columns` misses a writer that is being opened, or that finds no room."""
    with opened(Recorder(tmp_path)) as store:
        sums = store.create_topic("sums", schema=pa.schema([("n", pa.int64())]))
        sums.append({"n": 1}, sync=True)
        monkeypatch.setattr(sums.opened.writer(0), "change_schema", lambda _: None)
        sums.add_columns(pa.schema([("more", pa.int64())]))
        monkeypatch.undo()
        with store.transaction() as transaction:
            transaction.append("sums", {"n": 2, "more": 3})
        assert sums.scan().to_arrow().select(["n", "more"]).to_pylist() == [
            {"n": 1, "more": None},
            {"n": 2, "more": 3},
        ]
    with reopened(tmp_path) as again:
        assert again.topic("sums").scan().to_arrow()["more"].to_pylist() == [None, 3]


def test_other_producers_do_not_displace_the_numbers_of_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By these numbers a recovery knows which rows a partition has: none is used twice."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    with opened(Recorder(tmp_path)) as store:
        events = store.create_topic("events")
        for number in range(2):
            with store.transaction() as transaction:
                transaction.append("events", b"%d" % number)
            for name in range(8):
                events.producer(f"{number} {name}").append(b"other", sequence=0)
        parts = [decided.parts for decided in store.transactions.open_transactions()]
        assert [part.first_number for (part,) in parts] == [0, 1]
