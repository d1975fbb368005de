"""Conditional appends: of all callers that expect one offset, one appends, and the others learn the end."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import tiered
from tests.engine import conditional_appender
from tests.engine.conditional_appender import TOPIC
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.disks import FullDisk, WithoutSyncs
from tests.support.paths import ROOT
from tests.support.stores import in_threads, let_go, open_store, stepwise, values
from tiered.engine.host import Host
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.pending_rows import PendingRows

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
SMALL = stepwise({"block_bytes": 700, "hot_bytes": 3000}, roll={"bytes": "2KiB", "age": "off"})


def opened(path: Path, **store: Any) -> tiered.Store:
    return tiered.open(path, settings=stepwise(store))


def test_a_record_gets_the_offset_that_it_expects(tmp_path: Path) -> None:
    """With everything that a plain append takes, by partition and by key."""
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2)
        assert topic.append(b"a", partition=1, expected_offset=0) == (1, 0)
        keyed = topic.append(
            b"b", key="d", headers={"h": b"1"}, timestamp=1_000, sync=True, expected_offset=0
        )
        assert keyed == (0, 0)
        assert topic.append(None, partition=1, expected_offset=np.int64(1)) == (1, 1)  # type: ignore[arg-type]
        [record] = topic.read(0)
        assert (record.key, record.value, record.headers) == (b"d", b"b", (("h", b"1"),))
        assert record.timestamp.timestamp() == 1
        assert values(topic.scan(1)) == [b"a", None]


def test_a_conflict_names_the_end_and_appends_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append_many([{"value": b"x", "partition": 1}] * 3)
        for expected in (0, 2, 4, (1 << 63) - 1):
            with pytest.raises(tiered.Conflict, match=f"ends at offset 3, not at {expected}") as caught:
                topic.append(b"y", partition=1, expected_offset=expected)
            error = pickle.loads(pickle.dumps(caught.value))
            for found in (caught.value, error):
                assert type(found) is tiered.Conflict
                assert (found.topic, found.partition, found.expected, found.end) == ("t", 1, expected, 3)
        assert topic.append(b"y", partition=1, expected_offset=3).offset == 3
        assert values(topic) == [b"x"] * 3 + [b"y"]


def test_rows_of_typed_topics_and_columns_that_are_added(tmp_path: Path) -> None:
    """A key column chooses the partition; a row for new columns waits for the roll, and is compared again."""
    with opened(tmp_path) as store:
        topic = store.create_topic("t", schema=SCHEMA, key="id", partitions=3)
        place = topic.append({"id": 7, "word": "a"}, expected_offset=0).partition
        assert topic.append({"id": 7}, expected_offset=1) == (place, 1)
        topic.add_columns(pa.schema([("more", pa.float64())]))
        with pytest.raises(tiered.Conflict):
            topic.append({"id": 7, "more": 1.0}, expected_offset=1)
        assert topic.append({"id": 7, "more": 1.0}, expected_offset=2) == (place, 2)
        with pytest.raises(tiered.ConfigError, match="partition="):
            topic.append({"word": "no key"}, expected_offset=0)
        assert topic.append({"word": "no key"}, partition=place, expected_offset=3) == (place, 3)
        assert topic.scan(columns=["word", "more"]).to_arrow().to_pylist() == [
            {"word": "a", "more": None},
            {"word": None, "more": None},
            {"word": None, "more": 1.0},
            {"word": "no key", "more": None},
        ]


def test_a_record_that_may_go_to_any_partition_has_no_condition(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2)
        for key in (None, b""):
            with pytest.raises(tiered.ConfigError, match="'t' has 2: give partition="):
                topic.append(b"x", key=key, expected_offset=0)
        assert store.create_topic("one").append(b"x", expected_offset=0) == (0, 0)
        assert values(topic) == []


def test_rows_that_a_block_has_no_room_for_are_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another append comes while the full block is written, without the lock."""
    real, others = PartitionWriter.make_room, [b"other"]

    def meanwhile(writer: PartitionWriter) -> None:
        real(writer)
        while others:
            topic.append(others.pop())

    with opened(tmp_path, block_bytes=700) as store:
        topic = store.create_topic("t")
        topic.append(bytes(800))
        monkeypatch.setattr(PartitionWriter, "make_room", meanwhile)
        with pytest.raises(tiered.Conflict) as caught:
            topic.append(b"mine", expected_offset=1)
        assert caught.value.end == 2
        topic.append(bytes(800))
        assert topic.append(b"mine", expected_offset=3).offset == 3
        assert values(topic) == [bytes(800), b"other", bytes(800), b"mine"]


@pytest.mark.parametrize("expected", [0, 2])
def test_the_error_of_a_full_disk_comes_first(tmp_path: Path, expected: int) -> None:
    """A block that cannot be written is reported, whatever the caller expects; nothing is appended behind it."""
    disk = FullDisk()
    host = Host(fs=disk)
    with tiered.open(tmp_path, settings=stepwise({"block_bytes": 700}), host=host) as store:
        topic = store.create_topic("t")
        topic.append(b"durable", sync=True)
        topic.append(bytes(800))
        disk.full = True
        with pytest.raises(tiered.DiskFull):
            topic.append(b"x", expected_offset=expected)
        disk.full = False
        assert topic.append(b"x", expected_offset=2).offset == 2


def test_a_closed_store_refuses_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = store.create_topic("t")
    topic.append(b"x")
    store.close()
    with pytest.raises(tiered.StoreClosed):
        topic.append(b"y", expected_offset=0)


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("sync", ["interval", "always", "never"])
def test_a_counter_that_threads_raise_by_conditional_appends_loses_nothing(tmp_path: Path, sync: str) -> None:
    """Each reads the last value, and appends the next one only if no other did; blocks fill and segments roll."""
    count, threads = 60, 6
    policies = {"default": {"roll": {"bytes": "2KiB"}, "offload": "off"}}
    small = tiered.Settings.model_validate(
        {"store": {"sync": sync, "block_bytes": 700, "hot_bytes": 3000}, "policies": policies}
    )
    conflicts = []

    def raise_counter() -> None:
        end, done = 0, 0
        while done < count:
            last = 0 if end == 0 else next(iter(topic.read(0, end - 1, 1)))
            value = 0 if last == 0 else int(last.value)
            try:
                end = topic.append(b"%d" % (value + 1), partition=0, expected_offset=end).offset + 1
                done += 1
            except tiered.Conflict as error:
                conflicts.append(error.end - end)
                end = error.end

    with tiered.open(tmp_path, settings=small) as store:
        topic = store.create_topic("t", partitions=2)
        in_threads(*[raise_counter] * threads)
        assert [int(value) for value in values(topic)] == list(range(1, count * threads + 1))
    assert conflicts
    assert min(conflicts) > 0


def test_each_offset_has_one_winner_beside_all_other_appends(tmp_path: Path) -> None:
    """Lists, batches, producers and plain appends move the end, too; the winner's record is at its offset."""
    won: dict[int, list[bytes]] = {}
    stop = threading.Event()

    def race(name: int) -> None:
        end = 0
        for turn in range(400):
            value = b"%d:%d" % (name, turn)
            try:
                found = topic.append(value, expected_offset=end)
                won.setdefault(found.offset, []).append(value)
                end = found.offset + 1
            except tiered.Conflict as error:
                end = error.end

    def races() -> None:
        try:
            in_threads(*(partial(race, name) for name in range(4)))
        finally:
            stop.set()

    def others(append: Callable[[], object]) -> None:
        while not stop.wait(0.002):
            append()

    with tiered.open(tmp_path, settings=SMALL) as store:
        topic = store.create_topic("t")
        producer = topic.producer("p")
        in_threads(
            races,
            partial(others, lambda: topic.append(b"other")),
            partial(others, lambda: topic.append_many([b"other"] * 9)),
            partial(others, lambda: topic.append_batch(pa.table({"value": [b"other"] * 5}))),
            partial(others, lambda: producer.append(b"other")),
            partial(others, topic.roll),
        )
        table = topic.scan().to_arrow()
    assert table["offset"].to_pylist() == list(range(table.num_rows))
    found = {at: value for at, value in enumerate(table["value"].to_pylist()) if value != b"other"}
    assert {offset: [value] for offset, value in found.items()} == won


class Machine(RuleBasedStateMachine):
    """Conditional appends among all others against one list a partition, through rolls, kills and reopens."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="conditional-"))
        self.lives = 0
        self.store = self.open()
        self.topic = self.store.create_topic("t", partitions=2)
        self.model: list[list[bytes]] = [[], []]
        self.durable = [0, 0]
        self.number = 0

    def open(self) -> tiered.Store:
        host = Host(clock=Clock(), fs=WithoutSyncs())
        return tiered.open(self.folder / str(self.lives), settings=SMALL, host=host)

    def next_value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number + bytes(self.number % 97)

    @rule(partition=st.integers(0, 1), ahead=st.integers(-3, 3), sync=st.sampled_from([True, False, None]))
    def expect(self, partition: int, ahead: int, sync: bool | None) -> None:
        log = self.model[partition]
        expected, value = len(log) + ahead, self.next_value()
        if expected < 0:
            return
        append = partial(self.topic.append, value, partition=partition, sync=sync, expected_offset=expected)
        if ahead:
            with pytest.raises(tiered.Conflict) as caught:
                append()
            error = caught.value
            assert (error.partition, error.expected, error.end) == (partition, expected, len(log))
        else:
            assert append() == (partition, expected)
            log.append(value)
            if sync:
                self.durable[partition] = len(log)

    @rule(partition=st.integers(0, 1), threads=st.integers(2, 4))
    def race(self, partition: int, threads: int) -> None:
        log, winners, losers = self.model[partition], list[bytes](), list[int]()
        expected = len(log)

        def append(value: bytes) -> None:
            try:
                assert (
                    self.topic.append(value, partition=partition, expected_offset=expected).offset == expected
                )
                winners.append(value)
            except tiered.Conflict as error:
                losers.append(error.end)

        in_threads(*[partial(append, self.next_value()) for _ in range(threads)])
        assert len(winners) == 1
        assert losers == [expected + 1] * (threads - 1)
        log += winners

    @rule(
        partition=st.integers(0, 1), count=st.integers(1, 12), way=st.sampled_from(["one", "many", "batch"])
    )
    def append(self, partition: int, count: int, way: str) -> None:
        rows = [self.next_value() for _ in range(count)]
        if way == "one":
            for row in rows:
                self.topic.append(row, partition=partition)
        elif way == "many":
            self.topic.append_many([{"value": row, "partition": partition} for row in rows])
        else:
            self.topic.append_batch(pa.table({"value": rows}), partition=partition)
        self.model[partition] += rows

    @rule()
    def roll(self) -> None:
        self.topic.roll()

    @rule()
    def flush(self) -> None:
        self.topic.flush()
        self.durable = [len(log) for log in self.model]

    @rule(kill=st.booleans())
    def reopen(self, kill: bool) -> None:
        """A kill takes rows from the end at most, and none that is durable."""
        old = self.folder / str(self.lives)
        self.lives += 1
        if kill:
            shutil.copytree(old, self.folder / str(self.lives))
            let_go(self.store)
        else:
            self.store.close()
            old.rename(self.folder / str(self.lives))
        self.store = self.open()
        self.topic = self.store.topic("t")
        for partition, log in enumerate(self.model):
            end = self.topic.offsets()[partition].end
            assert (self.durable[partition] if kill else len(log)) <= end <= len(log)
            del log[end:]
        self.flush()

    @rule()
    def compare(self) -> None:
        for partition, log in enumerate(self.model):
            assert values(self.topic.scan(partition)) == log
        self.durable = [len(log) for log in self.model]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.compare()
            finally:
                let_go(self.store)
                shutil.rmtree(self.folder)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("examples", "steps"), [(25, 25), pytest.param(400, 60, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_any_history_is_that_of_a_list(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


# -- kills -------------------------------------------------------------------------------------------------------------


def test_a_kill_leaves_no_two_winners(tmp_path: Path) -> None:
    """What threads of a process were told with ``sync=True`` is at its offset after ``kill -9``, once."""
    acknowledged: dict[int, str] = {}
    for life in range(4):
        command = [
            sys.executable,
            "-m",
            "tests.engine.conditional_appender",
            str(tmp_path / "data"),
            str(life),
        ]
        with fork_server.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = iter(child.stdout)
            lines = [next(said) for _ in range(40)]
            child.kill()
            # The last line may be cut.
            lines += [line for line in said if line.endswith("\n")]
        for line in lines:
            offset, value = line.split()
            assert int(offset) not in acknowledged
            acknowledged[int(offset)] = value
    with tiered.open(tmp_path / "data", settings=conditional_appender.SETTINGS) as store:
        found = [value.decode() for value in values(store.topic(TOPIC))]
    assert len(acknowledged) >= 160
    assert {offset: found[offset] for offset in acknowledged} == acknowledged
    assert len(set(found)) == len(found)


# -- one step under the lock -------------------------------------------------------------------------------------------


def test_the_end_is_compared_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that appends between the check and the append would get the same offset."""
    held = []
    real = PendingRows.check_end

    def watched(pending: PendingRows, expected: int) -> None:
        held.append(pending.lock.locked())
        real(pending, expected)

    monkeypatch.setattr(PendingRows, "check_end", watched)
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("t")
        topic.append(b"x", expected_offset=0)
        with pytest.raises(tiered.Conflict):
            topic.append(b"x", expected_offset=0)
    assert held == [True, True]
