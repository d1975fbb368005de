"""A batch of a query is in the log exactly once: whatever is repeated, reordered, killed or aborted."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import EVERYTHING, NAMES, NOTHING, Image, Loss, some
from tests.support.disks import FailingDisk
from tests.support.recorder import Recorder
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier, values
from tiered.engine.append_numbered import append_idempotent, last_sequence
from tiered.engine.host import Host
from tiered.engine.open_topics import OpenTopic
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DiskFull,
    ReadOnly,
    RecordTooLarge,
    SchemaMismatch,
    TopicNotFound,
)
from tiered.format import producers
from tiered.format.schema import HEADERS_TYPE
from tiered.staging import stage as module
from tiered.staging.ledger import JOB_PREFIX, Ledger
from tiered.staging.stage import BATCH_MAX, DONE_SECONDS, ROWS_SECONDS, Staging
from tiered.staging.stage_file import Staged
from tiered.store.interface.topic import Topic

Parts = Sequence[Sequence[bytes]]


def rows(*found: bytes, keys: bool = False) -> pa.RecordBatch:
    columns = {"value": pa.array(found, pa.binary())}
    if keys:
        columns["key"] = pa.array(found, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def headers(size: int) -> pa.Array:
    return pa.array([[{"key": "h", "value": bytes(size)}]], HEADERS_TYPE)


def stage(staging: Staging, parts: Parts, *, keys: bool = False, query: str = "q") -> list[Staged]:
    """Stage each part as an attempt of its own, two rows a batch."""
    return [
        staging.stage(
            "t", query, uuid4().hex, [rows(*part[i : i + 2], keys=keys) for i in range(0, len(part), 2)]
        )
        for part in parts
    ]


def put(staging: Staging, batch: int, parts: Parts, *, keys: bool = False, query: str = "q") -> bool:
    return staging.commit("t", query, batch, stage(staging, parts, keys=keys, query=query))


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    with open_store(tmp_path / "store", None, clock) as store:
        store.create_topic("t", partitions=3)
        yield store


def left(store: tiered.Store) -> list[str]:
    """Files of the stage, but for what says which batch was the last."""
    root = Path(store.url) / "stage"
    return sorted(path.name for path in root.glob("*/*") if path.name != "done.json")


def test_a_batch_is_there_when_it_is_committed_and_not_before(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    first, lost, second = stage(staging, [[b"1", b"2", b"3"], [b"x"], [b"4", b"5"]])
    assert values(store.topic("t")) == []
    assert staging.commit("t", "q", 0, [second, first])
    assert Counter(values(store.topic("t"))) == Counter([b"1", b"2", b"3", b"4", b"5"])
    assert left(store) == [], "the attempt that does not count is gone too"
    assert lost.rows == 1


def test_rows_go_where_append_would_put_them(store: tiered.Store) -> None:
    """By the column `partition`, by the key as everywhere, and else one partition an attempt."""
    staging, topic = Staging(store.context, store.open_topics), store.topic("t")
    keys = [b"k%d" % i for i in range(20)]
    put(staging, 0, [keys], keys=True)
    found = topic.scan(columns=["key", "partition"]).to_arrow().to_pydict()
    direct = {key: topic.append(b"", key=key).partition for key in keys}
    assert dict(zip(found["key"], found["partition"], strict=True)) == direct
    named = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", b"b", b"c"], pa.binary()),
            "partition": pa.array([2, 0, 2], pa.int64()),
            "timestamp": pa.array([1, None, 3], pa.timestamp("ms", "UTC")),
        }
    )
    attempt = staging.stage("t", "q", uuid4().hex, [named])
    staging.commit("t", "q", 1, [attempt, *stage(staging, [[b"d", b"e"], [b"f"]])])
    table = topic.scan(columns=["value", "partition", "timestamp"]).to_arrow().to_pylist()
    places = {row["value"]: row["partition"] for row in table}
    assert [places[value] for value in (b"a", b"b", b"c")] == [2, 0, 2]
    assert places[b"d"] == places[b"e"] != places[b"f"]
    stamps = {row["value"]: row["timestamp"].timestamp() for row in table}
    assert (stamps[b"a"], stamps[b"c"]) == (0.001, 0.003)
    assert stamps[b"b"] == store.context.clock() / 1e6


def test_rows_name_their_partition_in_any_column(store: tiered.Store) -> None:
    """No other partition is opened for them, as one that is fenced would be in the way."""
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging = Staging(store.context, store.open_topics)
    named = pa.RecordBatch.from_pydict({"partition": [2, 0], "a": [1, 2]})
    assert staging.commit("typed", "q", 1, [staging.stage("typed", "q", uuid4().hex, [named])])
    assert set(topic.opened.writers) == {0, 2}
    found = topic.scan(columns=["a", "partition"]).to_arrow().to_pylist()
    assert {row["a"]: row["partition"] for row in found} == {1: 2, 2: 0}


def test_rows_of_a_topic_without_a_key_go_to_one_partition_an_attempt(store: tiered.Store) -> None:
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging = Staging(store.context, store.open_topics)
    batches = [pa.RecordBatch.from_pydict({"a": [number, number]}) for number in range(4)]
    attempts = [staging.stage("typed", "q", uuid4().hex, batches[i : i + 2]) for i in (0, 2)]
    assert staging.commit("typed", "q", 0, attempts)
    found = topic.scan(columns=["a", "partition"]).to_arrow().to_pylist()
    assert Counter(row["a"] for row in found) == {0: 2, 1: 2, 2: 2, 3: 2}
    places = {row["a"]: row["partition"] for row in found}
    assert places[0] == places[1] != places[2] == places[3]


def test_a_batch_that_is_there_is_not_appended_again(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    """A replay of the last batch, of one before, and a repeated request; also after a restart."""
    staging = Staging(store.context, store.open_topics)
    staged = stage(staging, [[b"1", b"2"], [b"3"]])
    assert staging.commit("t", "q", 0, staged)
    assert not staging.commit("t", "q", 0, staged)
    assert put(staging, 7, [[b"4"]])
    assert not put(staging, 7, [[b"5", b"6"]])
    assert not put(staging, 3, [[b"7"]])
    store.close()
    with open_store(tmp_path / "store", None, clock) as again:
        staging = Staging(again.context, again.open_topics)
        assert not put(staging, 7, [[b"4"]])
        assert put(staging, 7, [[b"8"]], query="another")
        assert put(staging, 8, [[b"9"], []])
        assert put(staging, 9, [[]])
        assert Counter(values(again.topic("t"))) == Counter([b"1", b"2", b"3", b"4", b"8", b"9"])
        assert left(again) == []


def test_a_batch_of_many_blocks_keeps_the_order_of_its_rows(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    numbers = [b"%0200d" % i for i in range(20_000)]
    parts = [pa.RecordBatch.from_pydict({"value": numbers[i : i + 700]}) for i in range(0, 20_000, 700)]
    assert staging.commit("t", "q", 0, [staging.stage("t", "q", uuid4().hex, parts)])
    assert values(store.topic("t")) == numbers


def test_a_commit_takes_about_a_block_of_its_rows_into_memory(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are."""
    sizes: list[int] = []

    def append(topic: OpenTopic, data: pa.Table, *arguments: Any, **named: Any) -> Any:
        sizes.append(data.nbytes)
        return append_idempotent(topic, data, *arguments, **named)

    monkeypatch.setattr(module, "append_idempotent", append)
    with open_store(tmp_path, None, clock, settings=stepwise({"block_bytes": "4KiB"})) as store:
        store.create_topic("t")
        assert put(Staging(store.context, store.open_topics), 0, [[bytes(1000)] * 50])
    assert sum(sizes) > 50_000
    assert max(sizes) < 2 * 4096 + 2048


def test_a_commit_waits_once_whatever_the_sync_mode(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each block of it would be an object of its own under ``sync = "cold"``."""
    waits = []
    monkeypatch.setattr(OpenTopic, "wait_safe", lambda self, *arguments: waits.append(arguments))
    settings = stepwise({"block_bytes": "4KiB", "sync": "cold"})
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=settings) as store:
        store.create_topic("t")
        staging = Staging(store.context, store.open_topics)
        staging.commit("t", "q", 0, stage(staging, [[bytes(4000)] * 20]))
        assert len(waits) == 1


def test_the_rows_of_a_batch_have_no_numbers_of_the_next(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", 4)
    staging = Staging(store.context, store.open_topics)
    assert put(staging, 0, [[b"1", b"2", b"3", b"4"]])
    with pytest.raises(ConfigError, match="more than 4 rows"):
        put(staging, 1, [[b"5", b"6", b"7"], [b"8", b"9"]])
    assert put(staging, 1, [[b"5"]])
    assert values(store.topic("t")) == [b"1", b"2", b"3", b"4", b"5"]


def test_an_abort_leaves_nothing(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    staged = stage(staging, [[b"1"], [b"2"]])
    staging.abort("t", "q", [item.attempt for item in staged])
    assert left(store) == []
    with pytest.raises(ConfigError, match="write them again"):
        staging.commit("t", "q", 0, staged)
    assert values(store.topic("t")) == []
    assert put(staging, 0, [[b"3"]])


def test_rows_that_the_log_would_refuse_are_not_staged(store: tiered.Store) -> None:
    """A commit that is decided can always be completed."""
    staging = Staging(store.context, store.open_topics)
    wrong: list[tuple[pa.RecordBatch, type[Exception]]] = [
        (pa.RecordBatch.from_pydict({"nothing": [1]}), SchemaMismatch),
        (pa.RecordBatch.from_pydict({"value": pa.array([1.5])}), SchemaMismatch),
        (rows(bytes(33 << 20)), RecordTooLarge),
        (rows(b"").append_column("headers", headers(33 << 20)), RecordTooLarge),
        (pa.RecordBatch.from_pydict({"value": [b""], "partition": [3]}), TopicNotFound),
        (pa.RecordBatch.from_pydict({"value": [b""], "partition": [-1]}), TopicNotFound),
        (pa.RecordBatch.from_pydict({"value": [b""], "partition": ["x"]}), SchemaMismatch),
    ]
    for batch, kind in wrong:
        with pytest.raises(kind):
            staging.stage("t", "q", uuid4().hex, [rows(b"good"), batch])
    assert left(store) == []
    with pytest.raises(TopicNotFound):
        staging.stage("none", "q", uuid4().hex, [])
    for name in ("", "../x", "A" * 32, uuid4().hex[:-1]):
        with pytest.raises(ConfigError, match="hexadecimal"):
            staging.stage("t", "q", name, [])
    (item,) = stage(staging, [[b"1"]])
    with pytest.raises(ConfigError, match="staged already"):
        staging.stage("t", "q", item.attempt, [rows(b"2")])
    for number in (-1, BATCH_MAX):
        with pytest.raises(ConfigError, match="number of a batch"):
            staging.commit("t", "q", number, [item])
    assert staging.commit("t", "q", BATCH_MAX - 1, [item])


def test_damaged_rows_are_never_committed(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    for position in (0, 9, 300, -1):
        (item,) = stage(staging, [[b"1", b"2", b"3"]])
        (path,) = (Path(store.url) / "stage").glob(f"*/{item.attempt}.rows")
        data = bytearray(path.read_bytes())
        data[position] ^= 4
        path.write_bytes(data)
        with pytest.raises(CorruptionError):
            staging.commit("t", "q", 0, [item])
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(CorruptionError):
            staging.commit("t", "q", 0, [item])
    assert values(store.topic("t")) == []


def test_what_nobody_came_back_for_is_swept_by_age(store: tiered.Store, clock: Clock) -> None:
    staging = Staging(store.context, store.open_topics)
    put(staging, 4, [[b"1"]])
    stage(staging, [[b"2"]])
    now_us = max(int(path.stat().st_mtime * 1e6) for path in (Path(store.url) / "stage").glob("*/*"))
    clock.now_us = now_us
    clock.advance(ROWS_SECONDS - 10)
    staging.sweep()
    assert len(left(store)) == 1
    clock.advance(20)
    stage(staging, [[b"3"]], query="another")
    assert len(left(store)) == 1, "staging sweeps now and then"
    assert not put(staging, 4, [[b"1"]])
    clock.advance(DONE_SECONDS)
    staging.sweep()
    assert list((Path(store.url) / "stage").iterdir()) == []


def test_a_start_sweeps_and_leaves_out_what_does_not_read(store: tiered.Store, clock: Clock) -> None:
    """The rows of other queries are as old."""
    staging = Staging(store.context, store.open_topics)
    for query in "abc":
        put(staging, 0, [[b"1"]], query=query)
        stage(staging, [[b"2"]], query=query)
    documents = sorted((Path(store.url) / "stage").glob("*/done.json"))
    documents[0].write_bytes(b"{")
    clock.now_us = max(int(path.stat().st_mtime * 1e6) for path in (Path(store.url) / "stage").glob("*/*"))
    clock.advance(ROWS_SECONDS + 10)
    assert len(left(store)) == 3
    staging.recover()
    assert left(store) == []


def test_what_is_known_of_a_query_of_one_batch_goes_after_a_day(store: tiered.Store, clock: Clock) -> None:
    """Jobs come by the minute, and each opening of a partition looks at all that is known."""
    staging = Staging(store.context, store.open_topics)
    put(staging, 0, [[b"1"]], query=f"{JOB_PREFIX}1")
    (aborted,) = stage(staging, [[b"2"]], query=f"{JOB_PREFIX}2")
    staging.abort("t", f"{JOB_PREFIX}2", [aborted.attempt])
    put(staging, 0, [[b"3"]], query="app:1")
    directories = list((Path(store.url) / "stage").iterdir())
    clock.now_us = max(int(path.stat().st_mtime * 1e6) for path in directories)
    clock.advance(ROWS_SECONDS - 10)
    staging.sweep()
    assert not put(staging, 0, [[b"1"]], query=f"{JOB_PREFIX}1")
    assert all(path.exists() for path in directories)
    clock.advance(60)
    staging.sweep()
    assert sum(path.exists() for path in directories) == 1
    assert not put(staging, 0, [[b"3"]], query="app:1")


def test_batches_that_come_once_displace_no_producer(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has numbers of its own, and a partition remembers so many producers."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    staging, topic = Staging(store.context, store.open_topics), store.topic("t")
    session = topic.producer("ingest")
    first = session.append(b"mine", sequence=0, partition=0)
    for number in range(6):
        put(staging, 0, [[b"theirs"]], query=f"{JOB_PREFIX}{number}")
    assert session.append(b"mine", sequence=0, partition=0) == first
    assert Counter(values(topic)) == {b"mine": 1, b"theirs": 6}


def test_a_commit_under_way_holds_up_no_other_query(store: tiered.Store, clock: Clock) -> None:
    """Such as one that waits for a bucket; the sweep that is due leaves its query out."""
    staging = Staging(store.context, store.open_topics)
    put(staging, 0, [[b"1"]])
    [ledger] = staging._ledgers()
    clock.advance(2 * 3600)
    with staging._lock_of(ledger):
        thread = threading.Thread(target=lambda: put(staging, 0, [[b"2"]], query="another"), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert Counter(values(store.topic("t"))) == Counter([b"1", b"2"])


def test_a_commit_that_meets_a_full_disk_is_completed_later(tmp_path: Path) -> None:
    """The decision stands: an abort does not undo it, and another try of the batch finds it done."""
    for number in itertools.count(1):
        (tmp_path / str(number)).mkdir()
        recorder = Recorder(tmp_path / str(number))
        left = [1 << 30]

        def fault(name: str, left: list[int] = left) -> None:
            if name in ("create", "write", "rename", "make_directory"):
                left[0] -= 1
                if left[0] < 0:
                    raise DiskFull("no room on the local disk (injected)")

        recorder.fault = fault
        with opened(recorder) as store:
            store.create_topic("t", partitions=2)
            staging = Staging(store.context, store.open_topics)
            staged = stage(staging, [[b"1", b"2"], [b"3"]], keys=True)
            left[0] = number
            try:
                assert staging.commit("t", "q", 0, staged)
                return
            except DiskFull as error:
                decided = "do not write its rows again" in str(error)
            left[0] = 1 << 30
            staging.abort("t", "q", [item.attempt for item in staged])
            again = put(staging, 0, [[b"3"], [b"2", b"1"]], keys=True)
            assert again is not decided
            assert Counter(values(store.topic("t"))) == Counter([b"1", b"2", b"3"])


def test_a_commit_that_failed_is_tried_again_unasked(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ran once comes back with no other commit, and a server may live for months."""
    real, finish, full, done = append_idempotent, Ledger.finish, threading.Event(), threading.Event()

    def append(self: OpenTopic, data: Any, partition: int, *arguments: Any, **named: Any) -> Any:
        if partition == 1 and full.is_set():
            raise DiskFull("no room on the local disk (injected)")
        return real(self, data, partition, *arguments, **named)

    def finished(self: Ledger, *arguments: Any) -> None:
        finish(self, *arguments)
        done.set()

    monkeypatch.setattr("tiered.staging.stage.append_idempotent", append)
    monkeypatch.setattr(Ledger, "finish", finished)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    full.set()
    staging = Staging(store.context, store.open_topics)
    with pytest.raises(DiskFull):
        put(staging, 0, [[b"1"], [b"2"], [b"3"]])
    with pytest.raises(tiered.TieredError, match="next try"):
        staging.retry()
    full.clear()
    assert done.wait(30)
    assert Counter(values(store.topic("t"))) == Counter([b"1", b"2", b"3"])
    assert left(store) == []


@pytest.mark.parametrize("name", ["read_stage_file", "decide", "discard"])
def test_a_disk_that_fails_once_a_commit_is_decided_is_tried_again(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its rows do not read, nobody knows whether the decision is durable, or they are all in the log and only stay on the
    disk: they are not to be written again.
    """
    staging, calls = Staging(store.context, store.open_topics), itertools.count(1)
    staged = stage(staging, [[b"1"]])
    owner = module if name == "read_stage_file" else Ledger
    real = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        if owner is Ledger:
            real(*arguments)
        if owner is Ledger or next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        with pytest.raises(tiered.TieredError, match="do not write its rows again"):
            staging.commit("t", "q", 0, staged)
    assert staging._retries is not None
    staging.retry()
    assert values(store.topic("t")) == [b"1"]
    assert left(store) == []


@pytest.mark.parametrize("reopened", [False, True])
def test_an_open_decision_is_recognised_however_much_comes_between(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, reopened: bool
) -> None:
    """More producers than a partition remembers, and more time, also where a restart comes between."""
    real, full = append_idempotent, [True]

    def append(self: OpenTopic, data: Any, partition: int, *arguments: Any, **named: Any) -> Any:
        if partition == 1 and arguments[0].startswith("stage:") and full[0]:
            raise DiskFull("no room on the local disk (injected)")
        return real(self, data, partition, *arguments, **named)

    def others(topic: Topic) -> None:
        for number in range(2 * 3):
            append_idempotent(topic.opened, rows(b"other"), 0, f"other {number}", 0, 0)

    monkeypatch.setattr("tiered.staging.stage.append_idempotent", append)
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    with open_store(tmp_path, None, clock) as store:
        topic = store.create_topic("t", partitions=2)
        staging = Staging(store.context, store.open_topics)
        topic.append(b"other", partition=0)  # before there is a decision that its writer could find
        with pytest.raises(DiskFull):
            put(staging, 0, [[b"1"], [b"2"]])
        others(topic)
        if not reopened:
            topic.roll()
            clock.advance(producers.PRODUCER_AGE_US / 1e6 + 1)
            others(topic)
            topic.roll()
            full[0] = False
            staging.retry()
            assert Counter(values(topic))[b"1"] == Counter(values(topic))[b"2"] == 1
            others(topic)
            assert last_sequence(topic.opened, 0, f"stage:{staging._ledgers()[0].directory.name}") == (-1, -1)
    with open_store(tmp_path, None, clock) as store:
        topic = store.topic("t")
        clock.advance(producers.PRODUCER_AGE_US / 1e6 + 1)
        others(topic)
        topic.roll()
        full[0] = False
        staging = Staging(store.context, store.open_topics)
        staging.recover()
        assert Counter(values(topic))[b"1"] == Counter(values(topic))[b"2"] == 1
        assert left(store) == []


@pytest.mark.parametrize("writes", [0, 2])
def test_a_full_disk_leaves_nothing_of_an_attempt(tmp_path: Path, clock: Clock, writes: int) -> None:
    """Also where not even the head of its file was written."""
    disk, room = FailingDisk(), itertools.count(writes, -1)

    def full(name: str, path: Path) -> None:
        if name == "write" and next(room) <= 0:
            raise DiskFull("no room on the local disk (injected)")

    with tiered.open(tmp_path, settings=stepwise(), host=Host(clock=clock, fs=disk)) as store:
        store.create_topic("t")
        staging = Staging(store.context, store.open_topics)
        before = dict(disk.open_files)
        disk.before = full
        with pytest.raises(DiskFull):
            stage(staging, [[b"1"]])
        disk.before = None
        assert disk.open_files == before
        assert left(store) == []


def test_an_attempt_is_durable_and_closed_when_its_task_is_told(tmp_path: Path, clock: Clock) -> None:
    """A commit that was decided needs its rows after a power cut."""
    disk = FailingDisk()
    with tiered.open(tmp_path, settings=stepwise(), host=Host(clock=clock, fs=disk)) as store:
        store.create_topic("t")
        staging = Staging(store.context, store.open_topics)
        before = dict(disk.open_files)
        disk.calls.clear()
        stage(staging, [[b"1"]])
        assert disk.open_files == before
        wrote = len(disk.calls) - disk.calls[::-1].index("write")
        assert disk.calls[wrote:] == ["sync", "sync_directory"]


def test_a_sweep_beside_leaves_the_directory_to_who_puts_rows_into_it(tmp_path: Path, clock: Clock) -> None:
    """Also one that has been empty for as long as a query is remembered."""
    disk = FailingDisk()
    with tiered.open(tmp_path, settings=stepwise(), host=Host(clock=clock, fs=disk)) as store:
        store.create_topic("t")
        staging = Staging(store.context, store.open_topics)
        clock.now_us = int((time.time() + DONE_SECONDS + 3600) * 1e6)
        staging.sweep_if_due()

        def sweep(name: str, path: Path) -> None:
            if name == "create" and path.suffix == ".rows":
                disk.before = None
                staging.sweep()

        disk.before = sweep
        assert put(staging, 0, [[b"1"]])
        assert disk.before is None
        assert values(store.topic("t")) == [b"1"]


def test_staging_sweeps_once_an_hour(
    store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, sweeps = Staging(store.context, store.open_topics), itertools.count()
    monkeypatch.setattr(Staging, "sweep", lambda self: next(sweeps))
    for _ in range(3):
        stage(staging, [[b"1"]])
    clock.advance(3601)
    for _ in range(3):
        stage(staging, [[b"1"]])
    assert next(sweeps) == 2


def test_no_rows_are_no_file(store: tiered.Store) -> None:
    attempt = uuid4().hex
    staging = Staging(store.context, store.open_topics)
    assert staging.stage("t", "q", attempt, []) == Staged(attempt, 0, 0)
    assert staging.stage("t", "q", attempt, [rows()]) == Staged(attempt, 0, 0)
    assert left(store) == []
    assert staging.commit("t", "q", 0, [Staged(attempt, 0, 0)])


@pytest.mark.parametrize(
    ("query", "sound"), [("", False), ("q", True), ("q" * 512, True), ("q" * 513, False)]
)
def test_a_query_has_a_name_of_some_length(store: tiered.Store, query: str, *, sound: bool) -> None:
    staging = Staging(store.context, store.open_topics)
    if sound:
        assert put(staging, 0, [[b"1"]], query=query)
        return
    with pytest.raises(ConfigError, match="1 to 512 characters"):
        stage(staging, [[b"1"]], query=query)


def test_of_two_commits_of_a_batch_at_once_one_counts(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver of a query is started twice."""
    staging, decide, found = Staging(store.context, store.open_topics), Ledger.decide, []
    attempts = [stage(staging, [[b"%d" % number]]) for number in range(2)]
    second = threading.Thread(target=lambda: found.append(staging.commit("t", "q", 0, attempts[1])))

    def deciding(self: Ledger, commit: Any) -> None:
        if not second.ident:
            second.start()
            second.join(0.1)
            assert second.is_alive()
        decide(self, commit)

    monkeypatch.setattr(Ledger, "decide", deciding)
    assert staging.commit("t", "q", 0, attempts[0])
    second.join(60)
    assert found == [False]
    assert values(store.topic("t")) == [b"0"]


def test_an_abort_beside_a_commit_takes_no_rows_from_it(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were verified, and once the decision is written down it can only be completed."""
    staging, decide = Staging(store.context, store.open_topics), Ledger.decide
    [item] = stage(staging, [[b"1"]])
    beside = threading.Thread(target=staging.abort, args=("t", "q", [item.attempt]))

    def deciding(self: Ledger, commit: Any) -> None:
        beside.start()
        beside.join(0.05)
        decide(self, commit)

    monkeypatch.setattr(Ledger, "decide", deciding)
    assert staging.commit("t", "q", 0, [item])
    beside.join(30)
    assert values(store.topic("t")) == [b"1"]


def test_two_that_come_at_once_for_a_query_wait_for_each_other(store: tiered.Store) -> None:
    """The first two ever, so that there is no lock of it yet."""
    staging, found = Staging(store.context, store.open_topics), []
    ledger = Ledger.of(store.context.fs, Path(store.url), uuid4(), "q")

    class Overtaken(type(ledger.directory)):  # type: ignore[misc]
        looks = itertools.count()

        def __hash__(self) -> int:
            if next(self.looks) == 1:  # after the look for a lock, before there is one
                other.start()
                other.join(0.05)
            return super().__hash__()

    other = threading.Thread(target=lambda: found.append(staging._lock_of(ledger)))
    mine = staging._lock_of(Ledger(store.context.fs, Overtaken(ledger.directory)))
    other.join(30)
    assert found == [mine]


def test_what_cannot_be_recovered_at_once_is_tried_again_unasked(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]
    append = append_idempotent

    def fail(self: OpenTopic, *arguments: Any, **named: Any) -> Any:
        if full[0]:
            raise DiskFull("no room on the local disk (injected)")
        return append(self, *arguments, **named)

    monkeypatch.setattr(module, "append_idempotent", fail)
    monkeypatch.setattr(module, "RETRY_SECONDS", 3600.0)
    with open_store(tmp_path, None, clock) as store:
        store.create_topic("t")
        with pytest.raises(DiskFull):
            put(Staging(store.context, store.open_topics), 0, [[b"1"]])
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    done = threading.Event()
    finish = Ledger.finish
    monkeypatch.setattr(Ledger, "finish", lambda self, commit: (finish(self, commit), done.set()))
    with open_store(tmp_path, None, clock) as store:
        staging = Staging(store.context, store.open_topics)
        staging.recover()
        full[0] = False
        assert done.wait(30)
        assert values(store.topic("t")) == [b"1"]


def test_what_is_no_attempt_or_one_twice_is_not_committed(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    (item,) = stage(staging, [[b"1"]])
    with pytest.raises(ConfigError, match="32 hexadecimal digits"):
        staging.commit("t", "q", 0, [Staged("../../../store", 0, 0)])
    with pytest.raises(ConfigError, match="committed twice"):
        staging.commit("t", "q", 0, [item, item])
    assert staging.commit("t", "q", 0, [item])
    assert values(store.topic("t")) == [b"1"]


def test_rows_of_a_batch_that_is_there_are_let_go(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    assert put(staging, 0, [[b"1"]])
    assert not put(staging, 0, [[b"1"]])
    assert left(store) == []


def test_a_try_waits_for_no_commit_that_is_under_way(store: tiered.Store) -> None:
    staging = Staging(store.context, store.open_topics)
    put(staging, 0, [[b"1"]])
    [ledger] = staging._ledgers()
    with staging._lock_of(ledger):
        thread = threading.Thread(target=staging.retry, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("again", [False, True])
def test_a_decision_for_a_topic_that_is_gone_is_dropped(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """Its rows are none of the topic that has its name by then."""

    def fail(self: OpenTopic, *arguments: Any, **named: Any) -> Any:
        raise DiskFull("no room on the local disk (injected)")

    staging = Staging(store.context, store.open_topics)
    with monkeypatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(module, "append_idempotent", fail)
        put(staging, 0, [[b"1"]])
    store.delete_topic("t")
    if again:
        store.create_topic("t", partitions=3)
    staging.retry()
    assert left(store) == []
    assert store.context.pinned_producers == set()
    if again:
        assert values(store.topic("t")) == []


def test_nothing_is_tried_again_for_a_store_that_was_closed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process that opens it completes what was decided."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 3600.0)
    before = set(threading.enumerate())

    def fail(self: OpenTopic, *arguments: Any, **named: Any) -> Any:
        raise DiskFull("no room on the local disk (injected)")

    with open_store(tmp_path, None, clock) as store:
        store.create_topic("t")
        staging, idle = Staging(store.context, store.open_topics), Staging(store.context, store.open_topics)
        with monkeypatch.context() as patch, pytest.raises(DiskFull):
            patch.setattr(module, "append_idempotent", fail)
            put(staging, 0, [[b"1"]])
    [tries] = set(threading.enumerate()) - before
    staging.retry()
    idle.retry()
    tries.join(30)
    assert not tries.is_alive()


def test_a_topic_that_is_gone_takes_its_stage_along(tmp_path: Path, clock: Clock) -> None:
    with opened(Recorder(tmp_path)) as store:
        store.create_topic("t")
        staging = Staging(store.context, store.open_topics)
        staged = stage(staging, [[b"1"]])
        store.delete_topic("t")
        store.create_topic("t")
        with pytest.raises(ConfigError, match="write them again"):
            staging.commit("t", "q", 0, staged)
        assert put(staging, 0, [[b"2"]])
        assert values(store.topic("t")) == [b"2"]


def test_a_topic_may_grow_while_tasks_stage(store: tiered.Store) -> None:
    topic = store.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    staging = Staging(store.context, store.open_topics)
    before = staging.stage("typed", "q", uuid4().hex, [pa.RecordBatch.from_pydict({"a": [1]})])
    topic.add_columns(pa.schema([("b", pa.string())]))
    store.topic("t").add_partitions(5)
    after = staging.stage("typed", "q", uuid4().hex, [pa.RecordBatch.from_pydict({"b": ["x"]})])
    assert staging.commit("typed", "q", 0, [before, after])
    assert topic.scan(columns=["a", "b"]).to_arrow().to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]


def test_a_topic_may_grow_in_the_middle_of_an_attempt(store: tiered.Store) -> None:
    """A file has one schema: by another, the partition of a row would be read where the new column lies."""
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging = Staging(store.context, store.open_topics)

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"a": [1], "partition": [2]})
        topic.add_columns(pa.schema([("b", pa.int32())]))
        yield pa.RecordBatch.from_pydict({"a": [2], "partition": [2]})

    staged = staging.stage("typed", "q", uuid4().hex, batches())
    assert staging.commit("typed", "q", 0, [staged])
    assert topic.scan(columns=["partition", "a", "b"]).to_arrow().to_pylist() == [
        {"partition": 2, "a": 1, "b": None},
        {"partition": 2, "a": 2, "b": None},
    ]
    uneven = [rows(b"1"), rows(b"2").append_column("partition", pa.array([1]))]
    with pytest.raises(SchemaMismatch, match="different columns"):
        staging.stage("t", "q", uuid4().hex, uneven)
    assert left(store) == []


def test_only_the_writer_has_a_stage(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "store", None, clock), pytest.raises(ReadOnly):
        store = open_store(tmp_path / "store", None, clock, read_only=True)
        Staging(store.context, store.open_topics)


# -- crashes -----------------------------------------------------------------------------------------

BATCHES: list[Parts] = [
    [[b"a1", b"a2", b"a3"], [b"a4", b"a5"]],
    [[b"b1"], [b"b2", b"b3", b"b4", b"b5"], [b"b6"]],
    [[b"c%d" % i for i in range(12)], [b"c%d" % i for i in range(12, 30)]],
]


def opened(recorder: Recorder, **rules: Any) -> tiered.Store:
    settings = stepwise({"block_bytes": "64KiB"}, roll={"bytes": "3KiB", "age": "off"}, **rules)
    host = Host(clock=Clock(), fs=recorder, open_bucket=recorder.open_bucket)
    return tiered.open(recorder.root / "data", cold="s3://bucket/prefix", settings=settings, host=host)


def reordered(parts: Parts) -> Parts:
    """The same rows as another run of the batch may bring them: other tasks, another order."""
    flat = [row for part in parts for row in part][::-1]
    return [flat[::2], flat[1::2]]


def life(root: Path, *, keys: bool) -> tuple[Recorder, list[int]]:
    """Stage and commit batches among other appends; return after which operation each was acknowledged."""
    recorder = Recorder(root)
    acknowledged = []
    with opened(recorder) as store:
        topic = store.create_topic("t", partitions=2)
        staging = Staging(store.context, store.open_topics)
        for number, parts in enumerate(BATCHES):
            topic.append(b"other%d" % number, sync=True)
            stage(staging, [[b"never"]])
            put(staging, number, parts, keys=keys)
            acknowledged.append(len(recorder.journal))
            topic.roll()
            tier(store, store.context.clock, OFFLOAD_US)
        staging.abort("t", "q", [item.attempt for item in stage(staging, [[b"aborted"]])])
    return recorder, acknowledged


def check_crash(image: Image, acknowledged: int, folder: Path, *, keys: bool) -> None:
    """Reopen, recover, and run again every batch that the query cannot know to be committed."""
    recorder = Recorder(folder, image)
    with opened(recorder) as store:
        if "t" not in store.topics():
            store.create_topic("t", partitions=2)
        topic = store.topic("t")
        before = Counter(values(topic))
        staging = Staging(store.context, store.open_topics)
        staging.recover()
        for number in range(max(0, acknowledged - 1), len(BATCHES)):
            put(staging, number, reordered(BATCHES[number]), keys=keys)
        found = Counter(values(topic))
        wanted = Counter(row for parts in BATCHES for part in parts for row in part)
        others = Counter({row: count for row, count in found.items() if row.startswith(b"other")})
        assert found - others == wanted
        assert set(others.values()) <= {1}
        assert not before - found, "a record is gone"
        clock = store.context.clock
        assert isinstance(clock, Clock)
        clock.now_us = time.time_ns() // 1000
        clock.advance(2 * ROWS_SECONDS)
        staging.sweep()
        assert not list((recorder.root / "data" / "stage").glob("*/*.rows"))


def losses(seeds: int, stride: int) -> Any:
    def at(index: int) -> list[Loss]:
        if index % stride:
            return []
        return [EVERYTHING, NOTHING, NAMES, *(some(f"{index}.{seed}") for seed in range(seeds))]

    return at


def check_life(root: Path, *, keys: bool, seeds: int, stride: int) -> int:
    recorder, acknowledged = life(root, keys=keys)
    seen = set()
    for index, loss, image in recorder.crashes(losses(seeds, stride)):
        done = sum(at <= index for at in acknowledged)
        if (key := (image.key(), done)) in seen:
            continue
        seen.add(key)
        with TemporaryDirectory(dir=root.parent) as folder:
            try:
                check_crash(image, done, Path(folder), keys=keys)
            except Exception as error:
                raise AssertionError(f"crash after operation {index}, {loss.name}: {error!r}") from error
    return len(seen)


@pytest.mark.parametrize("keys", [True, False])
def test_a_crash_anywhere_neither_loses_nor_repeats_a_batch(tmp_path: Path, *, keys: bool) -> None:
    """Some of the operations on the disk and the bucket; the slow test takes all of them."""
    (tmp_path / "life").mkdir()
    assert check_life(tmp_path / "life", keys=keys, seeds=0, stride=29 + keys) > 10


@pytest.mark.slow
@pytest.mark.parametrize("keys", [True, False])
def test_a_crash_at_every_operation_neither_loses_nor_repeats_a_batch(tmp_path: Path, *, keys: bool) -> None:
    (tmp_path / "life").mkdir()
    assert check_life(tmp_path / "life", keys=keys, seeds=2, stride=1) > 200
