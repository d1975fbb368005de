"""Reads over several partitions and topics never see a part of a transaction: in this process, and beside it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fork_server
from tests.support.paths import ROOT
from tests.support.stores import let_go
from tests.transactions.whole_reads_writer import TOPICS, opened, transact
from tiered.engine.open_topics import OpenTopic
from tiered.errors import PartitionPoisoned
from tiered.hot.held_partition import HeldPartition
from tiered.transactions import log_renewal, transaction_log, whole_reads
from tiered.transactions.parts import Part
from tiered.transactions.whole_reads import whole_ends

ID = UUID(int=1)


# -- the rule --------------------------------------------------------------------------------------

histories = st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), max_size=12)
"""Of each transaction the partitions; it has one row in each."""


@given(histories, st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_no_transaction_is_torn_and_none_is_left_out_without_need(
    history: list[list[int]], taken: list[int]
) -> None:
    """The result is the largest of all ends that tear none: what a search of all says."""
    counts, transactions = [0] * 4, []
    for places in history:
        transactions.append([Part("t", ID, place, 0, counts[place], 0, 1, 1, 1) for place in places])
        for place in places:
            counts[place] += 1
    ends = [min(end, count) for end, count in zip(taken, counts, strict=True)]
    found = whole_ends(transactions, {(ID, place): end for place, end in enumerate(ends)})
    assert found == {(ID, place): end for place, end in enumerate(largest(transactions, ends))}


def largest(transactions: list[list[Part]], ends: list[int]) -> list[int]:
    """The same by repetition: drop what is torn until nothing is."""
    while True:
        torn = [
            part
            for parts in transactions
            if any(part.first_offset >= ends[part.partition] for part in parts)
            for part in parts
            if part.first_offset < ends[part.partition]
        ]
        if not torn:
            return ends
        ends = list(ends)
        for part in torn:
            ends[part.partition] = min(ends[part.partition], part.first_offset)


# -- in this process, and beside it ----------------------------------------------------------------


def look(store: Any, start: int = 0) -> int:
    """One snapshot of both topics and one scan of each, from an offset on; return how far the snapshot came.

    While a transaction is applied, a scan of the one topic may have it, and the next snapshot of both not yet.
    """
    snapshot = store.snapshot(TOPICS)
    looks = [[(snapshot.scan(topic, start_offset=start), snapshot.ends[topic]) for topic in TOPICS]]
    for topic in TOPICS:
        scan = store.topic(topic).scan(start_offset=start)
        looks.append([(scan, {partition: end for partition, (_, end) in scan.offsets.items()})])
    for scans in looks:
        assert len({end for _, ends in scans for end in ends.values()}) == 1
        for scan, ends in scans:
            rows = scan.to_arrow()
            for partition, end in ends.items():
                own = rows.filter(pc.equal(rows["partition"], partition))
                assert own.num_rows == end - start
                assert end == start or own["value"][-1].as_py() == b"%d" % (end - 1)
    return next(iter(snapshot.ends["a"].values()))


def look_beside_a_thread(store: Any, transactions: int) -> list[int]:
    """Look while another thread commits; return how far it was each time."""
    for topic, partitions in TOPICS.items():
        store.create_topic(topic, partitions=partitions)
    ended, stopped = threading.Event(), threading.Event()

    def write() -> None:
        try:
            for number in range(transactions):
                if stopped.is_set():
                    return
                transact(store, number)
        finally:
            ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [0]
    try:
        while not ended.is_set():
            seen.append(look(store, seen[-1]))
    finally:
        stopped.set()
        thread.join()
    return [*seen, look(store)]


@pytest.mark.extended
def test_threads_see_no_part(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        seen = look_beside_a_thread(store, 400)
        assert seen[-1] == 400
        assert all(earlier <= later for earlier, later in pairwise(seen))


def run_beside(root: Path, looks: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Look at a store that another process writes and that is killed at last; return how far it was each time."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 100)
    with opened(root) as store:
        for topic, partitions in TOPICS.items():
            store.create_topic(topic, partitions=partitions)
        transact(store, 0)
    process = fork_server.Popen(
        [sys.executable, "-m", "tests.transactions.whole_reads_writer", str(root)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    seen = [0]
    try:
        with opened(root, read_only=True) as reader:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(looks):
                seen.append(look(reader, seen[-1]))
            process.kill()
            process.communicate(timeout=60)
            seen.append(look(reader, seen[-1]))
    finally:
        process.kill()
    with opened(root) as store:
        seen.append(look(store, seen[-1]))
    return seen


@pytest.mark.extended
def test_another_process_sees_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run_beside(tmp_path / "data", 60, monkeypatch)
    assert all(earlier <= later for earlier, later in pairwise(seen))
    assert seen[-1] > seen[0]


STEPS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the ends are cut": (whole_reads, "whole_ends", lambda _, ends: dict(ends)),
    "the log is looked at after the ends": (
        transaction_log.TransactionLog, "parts_since", lambda *_: [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_each_protective_step_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*STEPS[name])
    with pytest.raises(AssertionError):
        run_beside(tmp_path / "data", 300, monkeypatch)


def test_a_partition_that_failed_hides_the_transaction_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are committed, and there after the next opening."""
    store = opened(tmp_path / "data")
    for topic, partitions in TOPICS.items():
        store.create_topic(topic, partitions=partitions)
    transact(store, 0)
    append = HeldPartition.append

    def fail_once(held: HeldPartition, bodies: Any, numbers: Any = (), *rest: Any, **keep: Any) -> None:
        if numbers:
            monkeypatch.setattr(HeldPartition, "append", append)
            raise OSError(5, "Input/output error (injected)")
        append(held, bodies, numbers, *rest, **keep)

    monkeypatch.setattr(HeldPartition, "append", fail_once)
    with pytest.raises(PartitionPoisoned, match="the transaction is committed"):
        transact(store, 1)
    snapshot = store.snapshot(["a", "b"])
    # Of the first transaction, the failed partition may not have synced its row.
    (end,) = {end for ends in snapshot.ends.values() for end in ends.values()}
    assert end <= 1
    assert snapshot.scan("a").to_arrow().num_rows == 3 * end
    let_go(store)
    with opened(tmp_path / "data") as store:
        assert look(store) == 2


def test_the_cut_is_needed_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_reads, "whole_ends", lambda _, ends: dict(ends))
    with opened(tmp_path / "data") as store, pytest.raises(AssertionError):
        look_beside_a_thread(store, 4000)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_transaction_that_is_forgotten_during_a_read_makes_it_begin_again(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard it would be seen in the second half of the partitions only."""
    if not guarded:
        monkeypatch.setattr(transaction_log.TransactionLog, "forgotten", 0)
    with opened(tmp_path / "data") as store:
        for topic, partitions in TOPICS.items():
            store.create_topic(topic, partitions=partitions)
        transact(store, 0)
        view, times = OpenTopic.view, []

        def view_late(topic: OpenTopic, partition: int, *, flush: bool = True) -> Any:
            if (topic.name, times) == ("b", []):
                times.append(1)
                transact(store, 1)
                store.commits.completion.settle(ask=False)
            return view(topic, partition, flush=flush)

        monkeypatch.setattr(OpenTopic, "view", view_late)
        ends = store.snapshot(["a", "b"]).ends
        monkeypatch.undo()
        assert ends["b"] == {0: 2, 1: 2}
        assert (ends["a"] == {0: 2, 1: 2, 2: 2}) is guarded
