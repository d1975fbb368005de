"""Transactions are all or nothing: through crashes at every operation of the disk, and errors of every operation."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.disk_model import Image, Sync
from tests.support.recorder import Recorder
from tests.support.stores import let_go, stepwise, values
from tests.transactions.faults import FAULTS, Fault
from tests.transactions.lives import (
    BUCKET,
    ORDINARY,
    PLACES,
    TYPED,
    Life,
    check_each,
    host_of,
    opened,
    parts_of,
    rows_of,
)
from tiered.engine.open_topics import OpenTopics
from tiered.engine.writers import BackgroundFlush
from tiered.errors import DiskFull, PartitionPoisoned, StoreClosed, TieredError
from tiered.hot.held_partition import HeldPartition
from tiered.hot.partition_writer import PartitionWriter
from tiered.transactions import log_renewal
from tiered.transactions.commits import Commits
from tiered.transactions.completion import Completion
from tiered.transactions.transaction_log import TransactionLog


@pytest.fixture(autouse=True)
def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the transaction log be shortened after a few records, as it is after thousands."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 7)


def check(life: Life, root: Path, image: Image, index: int) -> None:
    """Each transaction is there wholly or not, in order; one that had returned is there, at its offsets."""
    promised = [item for item in life.promises if item.index <= index]
    begun = [number for at, number in life.begun if at < index]
    recorder = Recorder(root, image)
    with opened(recorder, life.cold) as store:
        found = rows_of(store)
        there = sorted({number for rows in found.values() for number in rows if number < ORDINARY})
        assert there == list(range(len(there)))
        for number in there:
            held = {place: rows.count(number) for place, rows in found.items() if number in rows}
            assert held == parts_of(number)
        assert len(promised) <= len(there) <= len(begun)
        for item in promised:
            for topic, ranges in item.ranges.items():
                for partition, start, end in ranges:
                    assert set(found[topic, partition][start:end]) == {item.number}
        for rows in found.values():
            own = [number for number in rows if number < ORDINARY]
            assert own == sorted(own)
        assert [item.offset is not None for item in store.consumers()] in ([], [bool(there)] * 2)
        if there:
            with store.transaction("etl") as transaction:
                transaction.append("events", b"77", partition=1)
                transaction.append("sums", {"n": 77})
            found["events", 1].append(77)
            found["sums", 0].append(77)
    with tiered.open(root / "data", read_only=True, host=host_of(recorder)) as reader:
        assert rows_of(reader) == found


def check_crashes(life: Life, folder: Path, every: int = 1) -> int:
    """Check what crashes could leave; return how many differ."""
    images = ((index, image) for index, _, image in life.crashes())
    return check_each(images, folder, every, partial(check, life))


@pytest.mark.extended
@pytest.mark.parametrize("cold", [None, BUCKET], ids=["disk", "bucket"])
def test_a_crash_anywhere_leaves_no_part_of_a_transaction(tmp_path: Path, cold: str | None) -> None:
    assert check_crashes(Life(tmp_path / "life", cold), tmp_path, every=6) > 200


def no_sync_of_the_log(
    commits: Commits, held: dict[Any, HeldPartition], end: int, **_: bool
) -> dict[Any, TieredError]:
    for partition in held.values():
        partition.sync()
    return {}


def no_sync_of_what_lies_before(
    commits: Commits, held: dict[Any, HeldPartition], end: int, **_: bool
) -> dict[Any, TieredError]:
    commits.log.sync_written(end)
    return {}


def forget_all(completion: Completion, *, ask: bool) -> None:
    log = completion._log
    log.forget(log.open_transactions())
    log.mark_applied()


STEPS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "the decision is durable before the rows are applied": (Commits, "_sync", no_sync_of_the_log),
    "what lies before the rows is durable before the commit returns": (
        Commits,
        "_sync",
        no_sync_of_what_lies_before,
    ),
    "an opening appends the rows that are missing": (Completion, "complete", lambda *_: None),
    "a start of the store opens the partitions of open transactions": (
        Completion,
        "recover",
        lambda *_: None,
    ),
    "a transaction is forgotten once its rows are durable": (Completion, "settle", forget_all),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", STEPS)
def test_each_protective_step_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, some crash leaves a part of a transaction."""
    monkeypatch.setattr(*STEPS[name])
    with pytest.raises(AssertionError):
        check_crashes(Life(tmp_path / "life"), tmp_path, every=6)


@pytest.mark.extended
@pytest.mark.parametrize("kind", FAULTS)
def test_a_failed_operation_leaves_no_part_of_a_transaction(kind: str, tmp_path: Path) -> None:
    """A commit that raises an error without the word committed left nothing; the store goes on, or says that it cannot."""
    error, names = FAULTS[kind]
    failures = 0
    for step in range(200):
        (tmp_path / f"{step}").mkdir()
        recorder = Recorder(tmp_path / f"{step}")
        store = opened(recorder)
        store.create_topic("events", partitions=2)
        store.create_topic("sums", schema=TYPED, key="n")
        with store.transaction("etl") as transaction:
            transaction.append("events", b"0", partition=0)
            transaction.append("events", b"0", partition=1)
            transaction.append("sums", {"n": 0})
        recorder.fault = fault = Fault(step, error, names)
        certain, possible = [0], [0]
        for number in range(1, 6):
            with suppress(TieredError):
                store.topic("events").append(b"%d" % (ORDINARY + number), partition=1)
            try:
                with store.transaction("etl" if number == 3 else None) as transaction:
                    transaction.append("events", b"%d" % number, partition=0)
                    transaction.append("events", b"%d" % number, partition=1)
                    transaction.append("sums", {"n": number})
                certain.append(number)
                possible.append(number)
            except PartitionPoisoned as failed:
                possible.append(number)
                if "is committed, but" in str(failed):
                    certain.append(number)
            except TieredError:
                pass
        recorder.fault = None
        let_go(store)
        with tiered.open(tmp_path / f"{step}/data", settings=stepwise(offload="off")) as again:
            found = rows_of(again)
            there = [number for number in found["events", 0] if number]
            for place in PLACES:
                assert [number for number in found[place] if 0 < number < ORDINARY] == there
            assert set(certain) <= {0, *there} <= set(possible)
            with again.transaction("etl") as transaction:
                transaction.append("sums", {"n": 9})
            assert rows_of(again)["sums", 0] == [0, *there, 9]
        shutil.rmtree(tmp_path / f"{step}")
        if fault.left >= 0:
            break
        failures += certain != [0, 1, 2, 3, 4, 5]
    assert fault.left >= 0
    assert failures > 3


def test_no_room_for_positions_does_not_undo_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is in the file: what waits behind it in memory must not make its sync fail."""
    recorder = Recorder(tmp_path)
    sync_written = TransactionLog.sync_written

    def without_room(log: TransactionLog, end: int) -> None:
        consumer.commit({0: 1})
        recorder.fault = Fault(0, lambda: DiskFull("no room (injected)"), ("write", "create", "reserve"))
        try:
            sync_written(log, end)
        finally:
            recorder.fault = None

    with opened(recorder) as store:
        events = store.create_topic("events")
        events.append(b"0", sync=True)
        consumer = events.consumer("billing")
        monkeypatch.setattr(TransactionLog, "sync_written", without_room)
        with store.transaction() as transaction:
            transaction.append("events", b"1")
        monkeypatch.undo()
        assert values(events) == [b"0", b"1"]
        assert store.consumers()[0].offset == 1


@pytest.mark.parametrize("by", ["commit", "flush", "background flush", "the next opening"])
def test_a_commit_without_its_rows_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Where the system promised room and has none: the error says which transaction is committed, and nobody sees half of it."""
    recorder = Recorder(tmp_path)
    sync_written = TransactionLog.sync_written

    def decided(log: TransactionLog, end: int) -> None:
        sync_written(log, end)
        recorder.fault = Fault(0, lambda: DiskFull("no room (injected)"), ("write",))

    store = opened(recorder)
    try:
        events = store.create_topic("events")
        events.append(b"0", sync=True)
        monkeypatch.setattr(TransactionLog, "sync_written", decided)
        with (
            pytest.raises(
                PartitionPoisoned,
                match="the transaction is committed, but .* readable after there is room again",
            ),
            store.transaction() as transaction,
        ):
            transaction.append("events", b"1")
        monkeypatch.undo()
        recorder.fault = Fault(0, lambda: DiskFull("no room (injected)"), ("write",), lasting=True)
        assert values(events) == [b"0"]
        with pytest.raises(DiskFull, match="an earlier transaction, which is committed, wait for room"):
            events.append(b"refused")
        with pytest.raises(DiskFull), store.transaction() as transaction:
            transaction.append("events", b"refused")
        with pytest.raises(DiskFull):
            events.flush()
        recorder.fault = None
        if by == "commit":
            with store.transaction() as transaction:
                transaction.append("events", b"2")
            assert transaction.ranges["events"][0].start == 2
        elif by == "flush":
            store.flush()
        elif by == "background flush":
            BackgroundFlush(store.context, store.open_topics.writers).run()
        if by in ("flush", "background flush"):
            events.append(b"2", sync=True)
        if by != "the next opening":
            assert values(events) == [b"0", b"1", b"2"]
    finally:
        store.close()
    with opened(recorder) as store:
        assert values(store.topic("events"))[:2] == [b"0", b"1"]


def test_an_error_after_the_decision_leaves_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error says, the record may count at the next opening, so nothing comes before its rows."""

    def fails(log: TransactionLog, end: int) -> None:
        raise StoreClosed("the store is closed")

    store = opened(Recorder(tmp_path))
    events = store.create_topic("events")
    monkeypatch.setattr(TransactionLog, "sync_written", fails)
    with pytest.raises(PartitionPoisoned, match="shows once the store is open again"):
        with store.transaction() as transaction:
            transaction.append("events", b"1")
    monkeypatch.undo()
    with pytest.raises(PartitionPoisoned):
        events.append(b"2", sync=True)
    let_go(store)
    with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as again:
        assert values(again.topic("events")) == [b"1"]


def test_a_commit_makes_one_sync(tmp_path: Path) -> None:
    """That of the log: rows that the log can append again need none, however many partitions have them."""
    recorder = Recorder(tmp_path)
    with opened(recorder) as store:
        store.create_topic("events", partitions=2)
        syncs = []
        for _ in range(4):
            began = len(recorder.journal)
            with store.transaction() as transaction:
                transaction.append("events", b"0", partition=0)
                transaction.append("events", b"1", partition=1)
            syncs.append(sum(isinstance(op, Sync) for op in recorder.journal[began:]))
        assert syncs[1:] == [1, 1, 1]


def test_a_close_waits_for_a_commit_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the log is closed between the decision and its sync, which then cannot tell whether it is committed."""
    store: Any = tiered.open(tmp_path / "data", settings=stepwise())
    topic = store.create_topic("t")
    with store.transaction() as transaction:
        transaction.append(topic, b"before")
    log, partition = store.open_topics.writer("__transactions", 0), topic.opened.writers[0]
    syncing, closing, raised = threading.Event(), threading.Event(), []
    begin_closing, sync, close, stopped = (
        OpenTopics.begin_closing, PartitionWriter._commit, PartitionWriter.close, Commits.stopped,
    )  # fmt: skip

    def commit() -> None:
        try:
            with store.transaction() as transaction:
                transaction.append(topic, b"beside")
        except TieredError as error:
            raised.append(error)

    thread = threading.Thread(target=commit)

    def begin(topics: OpenTopics) -> None:
        begin_closing(topics)
        thread.start()
        assert syncing.wait(30)

    def sync_late(writer: PartitionWriter, **named: Any) -> None:
        if thread.ident and writer is log and not syncing.is_set():
            syncing.set()
            assert closing.wait(30)
        sync(writer, **named)

    def close_first(writer: PartitionWriter) -> None:
        close(writer)
        closing.set()

    def stop(commits: Commits) -> Any:
        closing.set()
        return stopped(commits)

    monkeypatch.setattr(OpenTopics, "begin_closing", begin)
    monkeypatch.setattr(PartitionWriter, "_commit", sync_late)
    monkeypatch.setattr(PartitionWriter, "close", close_first)
    monkeypatch.setattr(Commits, "stopped", stop)
    monkeypatch.setattr(OpenTopics, "writers", lambda _: [log, partition])
    store.close()
    thread.join(30)
    assert raised == []
    monkeypatch.undo()
    with tiered.open(tmp_path / "data", settings=stepwise()) as store:
        assert values(store.topic("t")) == [b"before", b"beside"]
