"""Idempotent producers: what is appended again under its number is not added, whatever happened in between."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import tiered
from tests.engine.number_appender import SETTINGS, TOPIC, key_of
from tests.engine.producer_machine import ProducerMachine
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.stores import COMPRESS_US, OFFLOAD_US, open_store, stepwise, tier, values
from tiered.cli.verify import open_tiers
from tiered.engine.append_numbered import append_idempotent, last_sequence
from tiered.format import producers as remembered
from tiered.format.producers import UNKNOWN_OFFSET
from tiered.format.record import partition_of
from tiered.format.segment_facts import producers_from_json
from tiered.repair.repair import repair_store
from tiered.store.local_producer import resume_producer
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile

GOLDEN = ROOT / "tests" / "data" / "v1" / "store"


@pytest.mark.extended
def test_any_history_has_every_number_once() -> None:
    run_state_machine_as_test(ProducerMachine, settings=settings(max_examples=15, stateful_step_count=25))


@pytest.mark.slow
def test_many_long_histories_have_every_number_once() -> None:
    run_state_machine_as_test(
        ProducerMachine, settings=settings(max_examples=300, stateful_step_count=60, derandomize=False)
    )


def kill_and_retry(path: Path, kills: int, seed: int) -> None:
    """Kill the process in mid-stream, again and again; the next goes on from what was acknowledged."""
    dice, acknowledged = random.Random(seed), 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.engine.number_appender", str(path), str(acknowledged)]
        with fork_server.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = iter(child.stdout)
            for _ in range(dice.randint(1, 6)):
                acknowledged = int(next(said))
            if (pause := dice.random()) < 0.7:
                threading.Event().wait(pause / 20)
            child.kill()
            for line in said:
                acknowledged = int(line)
    with tiered.open(path, settings=SETTINGS) as store:
        topic = store.topic(TOPIC)
        producer = topic.producer("source")
        assert producer.next_sequence >= acknowledged
        end = producer.next_sequence + 10
        for number in range(acknowledged, end):
            producer.append(b"%d" % number, key=key_of(number), sequence=number)
        found = [int(value) for value in values(topic)]
        assert sorted(found) == list(range(end)), "each number once, none missing"
        for partition in range(3):
            numbers = [int(value) for value in values(topic.scan(partition))]
            assert numbers == sorted(numbers)


def test_a_killed_process_repeats_what_was_not_acknowledged(tmp_path: Path) -> None:
    kill_and_retry(tmp_path / "data", 2, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_killed_processes_repeat_what_was_not_acknowledged(tmp_path: Path, seed: int) -> None:
    kill_and_retry(tmp_path / "data", 12, seed)


def test_the_first_result_is_returned_again_after_a_restart(tmp_path: Path) -> None:
    """Of a topic with one partition: from the active segment's blocks, then from a footer alone."""
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("one")
        producer = topic.producer("p")
        assert (producer.epoch, producer.next_sequence) == (0, 0)
        first = [producer.append(b"%d" % i, sequence=i) for i in range(5)]
        first += [producer.append(b"%d" % i) for i in range(5, 9)]
        batch = producer.append_batch(pa.table({"value": [b"9", b"10"]}), sequence=9)
        assert batch == [tiered.OffsetRange(0, 9, 11)]
    for _ in range(2):
        with open_store(tmp_path, None, Clock()) as store:
            topic = store.topic("one")
            producer = topic.producer("p")
            assert [producer.append(b"%d" % i, sequence=i, sync=True) for i in range(9)] == first
            assert producer.append_batch(pa.table({"value": [b"9", b"10"]}), sequence=9) == batch
            with pytest.raises(tiered.OutOfOrderSequence, match="the next is 11"):
                producer.append(b"12", sequence=12)
            assert values(topic) == [b"%d" % i for i in range(11)]
            topic.roll()


def test_a_typed_topic_that_grows_keeps_its_numbers(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with open_store(tmp_path, None, Clock(), settings=stepwise({"block_bytes": 300})) as store:
        topic = store.create_topic("typed", partitions=2, schema=schema, key="name")
        producer = topic.producer("p")
        rows: list[dict[str, Any]] = [{"id": i, "name": "abc"[i % 3]} for i in range(40)]
        first = [producer.append(row, sequence=i) for i, row in enumerate(rows)]
        topic.add_columns(pa.schema([("more", pa.int32())]))
        later = pa.table({"id": [40, 41], "name": ["a", "b"], "more": [1, 2]})
        added = producer.append_batch(later, sequence=40)
        assert producer.append_batch(later, sequence=40) == added
        assert [producer.append(row, sequence=i) for i, row in enumerate(rows)][-20:] == first[-20:]
        assert sorted(topic.scan().to_arrow()["id"].to_pylist()) == list(range(42))
        topic.add_partitions(5)
        assert [producer.append(row, sequence=i) for i, row in enumerate(rows)][-20:] == first[-20:]


def test_sessions_fence_each_other_across_a_restart(tmp_path: Path) -> None:
    """The epoch is durable when a session begins, before it appended anything."""
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("log", partitions=2)
        old = topic.producer("p")
        old.append(b"0", partition=1, sync=True)
        topic.producer("p")
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.topic("log")
        with pytest.raises(tiered.Fenced, match="newer session"):
            resume_producer(topic.opened, "p", old.epoch)
        resumed = resume_producer(topic.opened, "p", old.epoch + 1)
        assert resumed.append(b"0", partition=1, sequence=0) == (1, 0)
        with pytest.raises(tiered.Fenced, match="newer session"):
            append_idempotent(topic.opened, pa.table({"value": [b"x"]}), 0, "p", old.epoch, 5)
        assert last_sequence(topic.opened, 1, "p") == (1, 0)
        assert last_sequence(topic.opened, 1, "q") == (-1, -1)
        assert values(topic) == [b"0"]


def test_a_call_cut_short_is_completed_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four runs of a block two are there; the same call adds the rest, and says where the whole lies."""
    monkeypatch.setattr("tiered.hot.block_writer.RUN_BYTES_MAX", 600)
    rows = pa.table({"value": [b"%03d" % i + b"." * 100 for i in range(20)]})
    with open_store(tmp_path, None, Clock(), settings=stepwise({"block_bytes": 600})) as store:
        topic = store.create_topic("log")
        topic.append(b"before")
        writer = topic.opened.writer(0)
        topic.flush()
        plain, left = writer.active.append, [2]

        def until_full(*arguments: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise tiered.DiskFull("no room")
            plain(*arguments, **options)

        writer.active.append = until_full  # type: ignore[method-assign]
        with pytest.raises(tiered.DiskFull):
            append_idempotent(topic.opened, rows, 0, "sink", 0, 1 << 33)
        writer.active.append = plain  # type: ignore[method-assign]
        assert 1 < topic.offsets()[0].end < 21
        found = append_idempotent(topic.opened, rows, 0, "sink", 0, 1 << 33, sync=True)
        assert found == (0, 1, 21)
        assert append_idempotent(topic.opened, rows, 0, "sink", 0, 1 << 33) == found
        assert values(topic)[1:] == rows["value"].to_pylist()


def test_a_batch_cut_short_anywhere_is_completed_by_the_same_call(tmp_path: Path) -> None:
    """Also one of several pieces whose numbers the caller leaves to the session."""
    rows = pa.table({"value": pa.chunked_array([[b"a", b"b"], [b"c"], [b"d"]])})
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("log")
        producer, writer = topic.producer("p"), topic.opened.writer(0)
        plain, left = writer.append_numbered_batches, [1]

        def until_full(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise tiered.DiskFull("no room")
            return plain(*arguments)

        writer.append_numbered_batches = until_full  # type: ignore[assignment, method-assign]
        for _ in range(3):
            with pytest.raises(tiered.DiskFull):
                producer.append_batch(rows)
            left[0] = 2
        left[0] = 4
        producer.append_batch(rows)
        assert values(topic) == [b"a", b"b", b"c", b"d"]
        assert producer.next_sequence == 4


def test_a_batch_that_does_not_fit_takes_no_numbers(tmp_path: Path) -> None:
    """What is appended in its place is not taken for a repeat; what came before it in a stream is there, of a Table nothing."""
    with open_store(tmp_path, None, Clock(), settings=stepwise({"max_record_bytes": 1000})) as store:
        topic = store.create_topic("log", partitions=2)
        keys = {key_place(b"%d" % i): b"%d" % i for i in range(20)}
        producer = topic.producer("p")

        def batch(first: bytes, second: bytes) -> pa.Table:
            return pa.table({"key": [keys[0], keys[1]], "value": [first, second]})

        for bad in (batch(b"never", bytes(2000)), batch(bytes(2000), b"never")):
            for append in (producer.append_batch, topic.append_batch):
                with pytest.raises(tiered.RecordTooLarge):
                    append(bad)
            assert values(topic) == []
        whole = pa.concat_tables([batch(b"a", b"b"), batch(b"never", bytes(2000))])
        with pytest.raises(tiered.RecordTooLarge):
            producer.append_batch(whole)
        assert values(topic) == []
        with pytest.raises(tiered.RecordTooLarge):
            producer.append_batch(whole.to_reader())
        producer.append_batch(batch(b"c", b"d"))
        assert sorted(values(topic)) == [b"a", b"b", b"c", b"d"]


def key_place(key: bytes) -> int:
    return partition_of(key, 2)


def test_the_least_recently_seen_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound at once, and after the age when a segment is sealed; a forgotten one may begin anywhere."""
    monkeypatch.setattr(remembered, "PRODUCERS_MAX", 3)
    clock = Clock()
    with open_store(tmp_path, None, clock) as store:
        topic = store.create_topic("log")
        sessions = [topic.producer(name) for name in "abcd"]
        assert [last_sequence(topic.opened, 0, name)[0] for name in "abcd"] == [-1, 0, 0, 0]
        for session in sessions[1:]:
            session.append(b"x", sequence=7)
        topic.flush()
        clock.advance(remembered.PRODUCER_AGE_US // 1_000_000 + 1)
        sessions[3].append(b"y")
        topic.roll()
    with open_store(tmp_path, None, clock) as store:
        topic = store.topic("log")
        assert [last_sequence(topic.opened, 0, name)[1] for name in "abcd"] == [-1, -1, -1, 8]
        assert topic.producer("d").next_sequence == 9


def test_many_producers_that_take_turns_cost_little() -> None:
    """All that may be remembered, each record a stretch of its own: memory is bounded, a commit asks for what changed."""
    table, turns = remembered.ProducerTable(), 70
    for turn in range(turns):
        for number in range(remembered.PRODUCERS_MAX):
            offset = turn * remembered.PRODUCERS_MAX + number
            table.add(number, 0, turn, turn, offset, offset + 1)
    before = table.snapshot()
    found = [table.get(number) for number in range(remembered.PRODUCERS_MAX)]
    assert sum(len(known.runs) for known in found if known) <= remembered.RUNS_IN_ALL
    table.add(3, 0, turns, turns, 1 << 30, (1 << 30) + 1)
    known, after = table.get(3), table.snapshot()
    assert known is not None
    assert [known.offset_of(turns), known.offset_of(turns - 1)] == [1 << 30, (turns - 1) * len(before) + 3]
    assert after[-1].last_offset == 1 << 30
    assert all(new is old for new, old in zip(after, [*before[:3], *before[4:]], strict=False))
    stored = json.dumps([asdict(state) for state in before])
    first, second = (producers_from_json(json.loads(stored)) for _ in range(2))
    assert first == before
    assert all(one is other for one, other in zip(first, second, strict=True)), (
        "idle ones cost each segment nothing"
    )


def test_a_log_that_ends_earlier_knows_no_more_than_it_has() -> None:
    """Cut at every offset: right of whoever's last stretch reaches the end, and nothing of the others."""
    dice = random.Random(5)
    for _ in range(30):
        table, sent = remembered.ProducerTable(), dict.fromkeys("abc", 0)
        log: list[tuple[str, int]] = []
        while len(log) < 40:
            name, count = dice.choice("aabc"), dice.randint(1, 9)
            sent[name] += dice.choice((0, 0, 3))
            numbers = range(sent[name], sent[name] + count)
            table.add(ord(name), 0, numbers[0], numbers[-1], len(log), len(log) + count)
            log += [(name, number) for number in numbers]
            sent[name] += count
        for end in range(len(log) + 1):
            cut = remembered.states_before(table.snapshot(), end)
            truth = {ord(name): (number, offset) for offset, (name, number) in enumerate(log[:end])}
            for state in cut:
                assert (state.last_sequence, state.last_offset) == truth[state.producer_id]
                assert state.run_length > 0
            if end and (last := table.get(ord(log[-1][0]))) and end > last.runs[-1].base_offset:
                assert ord(log[-1][0]) in [state.producer_id for state in cut]


def test_a_fenced_session_is_fenced_where_partitions_were_added(tmp_path: Path) -> None:
    """A partition that is younger than both sessions has heard of neither."""
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("log")
        old = topic.producer("p")
        new = topic.producer("p")
        topic.add_partitions(2)
        with pytest.raises(tiered.Fenced, match="newer session"):
            old.append(b"never", partition=1)
        with pytest.raises(tiered.Fenced, match="newer session"):
            old.append_batch(pa.table({"value": [b"never"]}), partition=1)
        assert new.append(b"x", partition=1) == (1, 0)
        assert new.append_batch(pa.table({"value": [b"y"]}), partition=1) == [(1, 1, 2)]
        assert values(topic) == [b"x", b"y"]


def test_a_store_without_producers_takes_them(tmp_path: Path) -> None:
    """One that release 0.1 wrote; its segments are sealed, and begun, without a word about producers."""
    shutil.copytree(GOLDEN, tmp_path / "data")
    with tiered.open(tmp_path / "data") as store:
        topic = store.topic("records")
        before = len(values(topic))
        producer = topic.producer("p")
        assert producer.next_sequence == 0
        producer.append(b"new", sequence=0)
        topic.roll()
    with tiered.open(tmp_path / "data") as store:
        topic = store.topic("records")
        producer = topic.producer("p")
        assert producer.append(b"new", sequence=0, sync=True).offset != UNKNOWN_OFFSET
        assert len(values(topic)) == before + 1
        assert store.verify(deep=True).problems == ()


def test_a_segment_s_header_says_what_was_known_when_it_began(tmp_path: Path) -> None:
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("log")
        topic.producer("p").append(b"x", sequence=0)
        topic.roll()
    sealed, active = (
        SegmentFile.open(tmp_path / "topics" / "log" / "0" / str(name))
        for name in list_segments(tmp_path / "topics" / "log" / "0").segments
    )
    assert sealed.header.producers == ()
    assert active.header.producers == sealed.producers == active.producers
    assert [state.last_offset for state in active.producers] == [0]
    assert active.header.schema.equals(sealed.header.schema, check_metadata=True)


def test_a_footer_made_again_names_the_producers(tmp_path: Path) -> None:
    """Of a segment as written by its blocks, of a compressed one by the header of the one after it."""
    clock = Clock()
    with open_store(tmp_path, None, clock) as store:
        topic = store.create_topic("log")
        producer = topic.producer("p")
        for sequence in range(3):
            producer.append(b"x", sequence=sequence)
            topic.roll()
            if sequence == 1:
                tier(store, clock, COMPRESS_US)
    directory = tmp_path / "topics" / "log" / "0"
    before = {}
    for name in list_segments(directory).segments[1:3]:
        path = directory / str(name)
        before[name.base_offset] = SegmentFile.open(path).producers
        path.write_bytes(path.read_bytes()[:-40])
    options = tiered.Settings.model_validate({"store": {"path": str(tmp_path)}})
    assert repair_store(open_tiers(options), deep=True).problems == ()
    after = {
        name.base_offset: SegmentFile.open(directory / str(name)).producers
        for name in list_segments(directory).segments[1:3]
    }
    assert after == before
    assert [state.last_sequence for (state,) in after.values()] == [1, 2]


@pytest.mark.parametrize(
    ("rules", "repair"), [({}, "fetched again"), ({"compress": "off"}, "rebuilt the footer from its blocks")]
)
def test_the_producers_are_found_where_the_next_header_is_damaged_too(
    tmp_path: Path, rules: dict[str, Any], repair: str
) -> None:
    """Blocks as they were written name them; of a compressed segment the object does."""
    clock, cold = Clock(), f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", cold, clock, settings=stepwise(**rules)) as store:
        topic = store.create_topic("log")
        producer = topic.producer("p")
        for sequence in range(2):
            producer.append(b"x", sequence=sequence)
            topic.roll()
        tier(store, clock, OFFLOAD_US)
    directory = tmp_path / "data" / "topics" / "log" / "0"
    sealed, active = (directory / str(name) for name in list_segments(directory).segments[1:])
    before = SegmentFile.open(sealed).producers
    sealed.write_bytes(sealed.read_bytes()[:-40])
    active.write_bytes(bytes(8) + active.read_bytes()[8:])
    options = tiered.Settings.model_validate({"store": {"path": str(tmp_path / "data")}})
    done = [item for item in repair_store(open_tiers(options), deep=True).repairs if item.result == "done"]
    assert [item.action.startswith(repair) for item in done] == [True]
    (made,) = (name for name in list_segments(directory).segments if name.base_offset == 1)
    assert SegmentFile.open(directory / str(made)).producers == before


def test_a_restore_from_merged_objects_knows_what_the_last_one_knows(tmp_path: Path) -> None:
    clock, cold = Clock(), f"file://{tmp_path}/bucket"
    rules = stepwise(
        merge={"after": "0s", "target_bytes": "1MiB"}, offload={"after": "0s", "tail_interval": "off"}
    )
    with open_store(tmp_path / "data", cold, clock, settings=rules) as store:
        topic = store.create_topic("log")
        sessions = [topic.producer("p"), topic.producer("q")]
        for i in range(8):
            last = sessions[i % 2].append(b"%d" % i)
            topic.roll()
        reports = [tier(store, clock, OFFLOAD_US) for _ in range(3)]
        assert any(action.kind == "merge" for report in reports for action, _ in report.done)
    with tiered.restore(cold, tmp_path / "again", settings=rules) as store:
        topic = store.topic("log")
        assert [last_sequence(topic.opened, 0, name)[1] for name in "pq"] == [3, 3]
        assert topic.producer("q").append(b"7", sequence=3) == last
        assert topic.producer("p").append(b"0", sequence=0) == (0, UNKNOWN_OFFSET)
        assert topic.producer("p").next_sequence == 4


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda topic: topic.producer(""), tiered.ConfigError),
        (lambda topic: topic.producer("a\nb"), tiered.ConfigError),
        (lambda topic: topic.producer(7), tiered.ConfigError),
        (lambda topic: topic.producer("p").append(b"x", sequence=-1), tiered.ConfigError),
        (lambda topic: topic.producer("p").append(b"x", sequence=True), tiered.ConfigError),
        (lambda topic: topic.producer("p").append("x", sequence=0), tiered.SchemaMismatch),
        (lambda topic: topic.producer("p").append(b"x", partition=3), tiered.TopicNotFound),
        (lambda topic: append_idempotent(topic.opened, pa.table({"value": [b"x"]}), 0, "p", -1, 0), tiered.ConfigError),
        (lambda topic: append_idempotent(topic.opened, pa.table({"value": [b"x"]}), 9, "p", 0, 0), tiered.TopicNotFound),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, call: Any, error: type[Exception]) -> None:
    with open_store(tmp_path, None, Clock()) as store:
        topic = store.create_topic("log")
        with pytest.raises(error):
            call(topic)
        assert values(topic) == []


def test_a_tail_that_is_uploaded_again_names_the_producers(tmp_path: Path) -> None:
    """As of its last record, though the segment went on: a restore from the bucket knows them from there alone."""
    clock, cold = Clock(), f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", cold, clock, settings=stepwise(offload={"after": "4h"})) as store:
        topic = store.create_topic("log")
        topic.producer("p").append(b"x", sequence=0)
        topic.flush()
        assert store.tierer.tail_pass().report.bytes
        topic.producer("p").append(b"y", sequence=1)
    (tail,) = (tmp_path / "bucket").rglob("*.parquet")
    tail.write_bytes(tail.read_bytes()[:-7])
    options = tiered.Settings.model_validate({"store": {"path": str(tmp_path / "data")}})
    assert repair_store(open_tiers(options)).problems == ()
    with tiered.restore(cold, tmp_path / "new", settings=stepwise()) as store:
        producer = store.topic("log").producer("p")
        producer.append(b"x", sequence=0)
        producer.append(b"y", sequence=1)
        assert values(store.topic("log")) == [b"x", b"y"]
