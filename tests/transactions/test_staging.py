"""A batch of a query is in the log exactly once: whatever is repeated, reordered, killed or aborted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import let_go, open_store, stepwise, values
from tiered.engine.open_topics import OpenTopic
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DiskFull,
    PartitionPoisoned,
    ReadOnly,
    RecordTooLarge,
    SchemaMismatch,
    TopicNotFound,
    UnsupportedFormat,
)
from tiered.format import producers
from tiered.format.document import encode_document
from tiered.format.schema import HEADERS_TYPE
from tiered.hot.held_partition import HeldPartition
from tiered.transactions import log_renewal
from tiered.transactions import staging as module
from tiered.transactions.batches import BATCH_MAX, JOB_PREFIX, JOB_SECONDS, QUERY_SECONDS
from tiered.transactions.staged_log import StagedLog
from tiered.transactions.staged_rows import ROWS_SECONDS, Staged
from tiered.transactions.staging import Staging

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


def left(store: tiered.Store) -> int:
    """How many attempts wait for a commit."""
    staged = store.transactions._log.tables.staged
    assert staged.bytes == sum(attempt.bytes for attempt in staged._attempts.values())
    return len(staged._attempts)


def test_a_batch_is_there_when_it_is_committed_and_not_before(store: tiered.Store) -> None:
    staging = store.staging
    first, lost, second = stage(staging, [[b"1", b"2", b"3"], [b"x"], [b"4", b"5"]])
    assert values(store.topic("t")) == []
    assert staging.commit("t", "q", 0, [second, first])
    assert Counter(values(store.topic("t"))) == Counter([b"1", b"2", b"3", b"4", b"5"])
    assert left(store) == 0, "the attempt that does not count is gone too"
    assert lost.rows == 1


def test_rows_go_where_append_would_put_them(store: tiered.Store) -> None:
    """By the column `partition`, by the key as everywhere, and else one partition an attempt."""
    staging, topic = store.staging, store.topic("t")
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
    """No other partition is opened for them, as one that is fenced would be in the way, nor does the turn of one go by."""
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging, turn = store.staging, topic.opened.sticky
    named = pa.RecordBatch.from_pydict({"partition": [2, 0], "a": [1, 2]})
    assert staging.commit("typed", "q", 1, [staging.stage("typed", "q", uuid4().hex, [named])])
    assert set(topic.opened.writers) == {0, 2}
    assert topic.opened.sticky == turn
    found = topic.scan(columns=["a", "partition"]).to_arrow().to_pylist()
    assert {row["a"]: row["partition"] for row in found} == {1: 2, 2: 0}


def test_rows_of_a_topic_without_a_key_go_to_one_partition_an_attempt(store: tiered.Store) -> None:
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging = store.staging
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
    staging = store.staging
    staged = stage(staging, [[b"1", b"2"], [b"3"]])
    assert staging.commit("t", "q", 0, staged)
    assert not staging.commit("t", "q", 0, staged)
    assert put(staging, 7, [[b"4"]])
    assert not put(staging, 7, [[b"5", b"6"]])
    assert not put(staging, 3, [[b"7"]])
    store.close()
    with open_store(tmp_path / "store", None, clock) as again:
        staging = again.staging
        assert not put(staging, 7, [[b"4"]])
        assert put(staging, 7, [[b"8"]], query="another")
        assert put(staging, 8, [[b"9"], []])
        assert put(staging, 9, [[]])
        assert Counter(values(again.topic("t"))) == Counter([b"1", b"2", b"3", b"4", b"8", b"9"])
        assert left(again) == 0


def test_a_batch_of_many_blocks_keeps_the_order_of_its_rows(store: tiered.Store) -> None:
    staging = store.staging
    numbers = [b"%0200d" % i for i in range(20_000)]
    parts = [pa.RecordBatch.from_pydict({"value": numbers[i : i + 700]}) for i in range(0, 20_000, 700)]
    assert staging.commit("t", "q", 0, [staging.stage("t", "q", uuid4().hex, parts)])
    assert values(store.topic("t")) == numbers


def test_a_commit_waits_once_whatever_the_sync_mode(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each block of it would be an object of its own under ``sync = "cold"``."""
    waits = []
    monkeypatch.setattr(OpenTopic, "wait_safe", lambda self, *arguments: waits.append(arguments))
    settings = stepwise({"block_bytes": "4KiB", "sync": "cold"})
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=settings) as store:
        store.create_topic("t")
        staging = store.staging
        staging.commit("t", "q", 0, stage(staging, [[bytes(4000)] * 20]))
        assert len(waits) == 1


def test_an_abort_leaves_nothing(store: tiered.Store) -> None:
    staging = store.staging
    staged = stage(staging, [[b"1"], [b"2"]])
    staging.abort("t", "q", [item.attempt for item in staged])
    assert left(store) == 0
    with pytest.raises(ConfigError, match="write them again"):
        staging.commit("t", "q", 0, staged)
    assert values(store.topic("t")) == []
    assert put(staging, 0, [[b"3"]])


def test_an_attempt_that_fails_is_forgotten_with_what_the_log_has_of_it(store: tiered.Store) -> None:
    with pytest.raises(SchemaMismatch):
        wrong = pa.RecordBatch.from_pydict({"nothing": [1]})
        store.staging.stage("t", "q", uuid4().hex, [rows(bytes(module.RECORD_BYTES)), wrong])
    assert store.topic("__transactions").offsets()[0].end > 0
    assert left(store) == 0


def test_small_batches_share_a_record(store: tiered.Store) -> None:
    """After a record was written, too."""
    batches = [rows(bytes(module.RECORD_BYTES)), *[rows(b"small")] * 5]
    began = stage(store.staging, [[b"first"]]) and store.topic("__transactions").offsets()[0].end
    store.staging.stage("t", "q", uuid4().hex, batches)
    assert store.topic("__transactions").offsets()[0].end == began + 2


def test_rows_that_the_log_would_refuse_are_not_staged(store: tiered.Store) -> None:
    """A commit that is decided can always be completed."""
    staging = store.staging
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
    assert left(store) == 0
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


def test_batches_that_come_once_displace_no_producer(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has numbers of its own, and a partition remembers so many producers."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    staging, topic = store.staging, store.topic("t")
    session = topic.producer("ingest")
    first = session.append(b"mine", sequence=0, partition=0)
    for number in range(6):
        put(staging, 0, [[b"theirs"]], query=f"{JOB_PREFIX}{number}")
    assert session.append(b"mine", sequence=0, partition=0) == first
    assert Counter(values(topic)) == {b"mine": 1, b"theirs": 6}


@pytest.mark.parametrize(
    ("query", "sound"), [("", False), ("q", True), ("q" * 512, True), ("q" * 513, False)]
)
def test_a_query_has_a_name_of_some_length(store: tiered.Store, query: str, *, sound: bool) -> None:
    staging = store.staging
    if sound:
        assert put(staging, 0, [[b"1"]], query=query)
        return
    with pytest.raises(ConfigError, match="1 to 512 characters"):
        stage(staging, [[b"1"]], query=query)


def test_what_is_no_attempt_or_one_twice_is_not_committed(store: tiered.Store) -> None:
    staging = store.staging
    (item,) = stage(staging, [[b"1"]])
    with pytest.raises(ConfigError, match="32 hexadecimal digits"):
        staging.commit("t", "q", 0, [Staged("../../../store", 0, 0)])
    with pytest.raises(ConfigError, match="committed twice"):
        staging.commit("t", "q", 0, [item, item])
    assert staging.commit("t", "q", 0, [item])
    assert values(store.topic("t")) == [b"1"]


def test_rows_of_a_batch_that_is_there_are_let_go(store: tiered.Store) -> None:
    staging = store.staging
    assert put(staging, 0, [[b"1"]])
    assert not put(staging, 0, [[b"1"]])
    assert left(store) == 0


def test_a_topic_may_grow_while_tasks_stage(store: tiered.Store) -> None:
    topic = store.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    staging = store.staging
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
    """Each row is read by the schema that it was staged with."""
    topic = store.create_topic("typed", partitions=3, schema=pa.schema([("a", pa.int64())]))
    staging = store.staging

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


# -- several topics ----------------------------------------------------------------------------------


def routed(*rows: tuple[str | None, bytes]) -> pa.RecordBatch:
    topics, found = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"topic": pa.array(topics, pa.string()), "value": found})


def test_a_row_goes_to_the_topic_that_it_names(store: tiered.Store) -> None:
    """A commit of one topic and one of several have numbers of their own."""
    store.create_topic("u", partitions=2)
    batches = [routed(("t", b"1"), ("u", b"2")), routed(("u", b"3"), ("t", b"4"))]
    staged = store.staging.stage(None, "q", uuid4().hex, batches)
    assert staged.rows == 4
    assert store.staging.commit(None, "q", 0, [staged])
    assert not store.staging.commit(None, "q", 0, [staged])
    assert values(store.topic("t")) == [b"1", b"4"]
    assert values(store.topic("u")) == [b"2", b"3"]
    assert put(store.staging, 0, [[b"5"]])


@pytest.mark.parametrize(
    ("batch", "kind", "message"),
    [
        (routed(("t", b"1"), (None, b"2")), SchemaMismatch, "a row has no topic"),
        (routed(("t", b"1"), ("none", b"2")), TopicNotFound, "none"),
        (routed(("t", b"1"), ("typed", b"2")), SchemaMismatch, "topic 'typed' is typed"),
        (routed(("t", b"1"), ("__transactions", b"2")), ReadOnly, "own transaction log"),
        (rows(b"1"), SchemaMismatch, "have a column topic"),
        (pa.RecordBatch.from_pydict({"topic": [[1]], "value": [b""]}), SchemaMismatch, "holds no names"),
    ],
)
def test_a_row_without_a_topic_of_records_is_refused(
    store: tiered.Store, batch: pa.RecordBatch, kind: type[Exception], message: str
) -> None:
    """And with it all rows of the attempt, also those that were in the log by then."""
    store.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(kind, match=message):
        store.staging.stage(None, "q", uuid4().hex, [routed(("t", b"0")), batch])
    assert left(store) == 0
    assert values(store.topic("t")) == []


def test_a_topic_that_is_gone_takes_its_staged_rows_along(store: tiered.Store) -> None:
    """They are none of the topic that has its name by then."""
    store.create_topic("u")
    one = stage(store.staging, [[b"1"]])
    several = store.staging.stage(None, "q", uuid4().hex, [routed(("t", b"1"), ("u", b"2"))])
    store.delete_topic("t")
    with pytest.raises(TopicNotFound):
        store.staging.commit(None, "q", 0, [several])
    store.create_topic("t")
    with pytest.raises(ConfigError, match="write them again"):
        store.staging.commit("t", "q", 0, one)
    with pytest.raises(TopicNotFound, match="is another now"):
        store.staging.commit(None, "q", 0, [several])
    assert values(store.topic("u")) == []
    assert put(store.staging, 0, [[b"2"]])


def test_a_deleted_topic_does_not_keep_the_others_from_their_rows(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch that was decided: the next opening completes it in the others."""
    monkeypatch.setattr(HeldPartition, "append", fail_for_rows(HeldPartition.append))
    store = open_store(tmp_path, None, clock)
    for name in "ab":
        store.create_topic(name)
    staged = store.staging.stage(None, "q", uuid4().hex, [routed(("a", b"1"), ("b", b"2"))])
    with pytest.raises(PartitionPoisoned, match="the transaction is committed"):
        store.staging.commit(None, "q", 0, [staged])
    with pytest.raises(DiskFull, match="wait for room"):
        store.topic("a").append(b"3", sync=True)
    monkeypatch.undo()
    store.delete_topic("a")
    let_go(store)
    with open_store(tmp_path, None, clock) as store:
        assert values(store.topic("b")) == [b"2"]
        assert not store.staging.commit(None, "q", 0, [staged])


def fail_for_rows(append: Any) -> Any:
    def failing(self: HeldPartition, bodies: Any, numbers: Any = (), *arguments: Any, **named: Any) -> None:
        if numbers:
            raise DiskFull("no room on the local disk (injected)")
        append(self, bodies, numbers, *arguments, **named)

    return failing


# -- the log -----------------------------------------------------------------------------------------


def test_a_commit_reads_and_writes_some_of_its_rows_at_a_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: neither records nor blocks are larger than set."""
    sizes: list[int] = []
    append = HeldPartition.append

    def watched(self: HeldPartition, bodies: Any, *arguments: Any, **named: Any) -> None:
        sizes.append(sum(body.length for body in bodies))
        append(self, bodies, *arguments, **named)

    monkeypatch.setattr(HeldPartition, "append", watched)
    monkeypatch.setattr(module, "RECORD_BYTES", 8192)
    with open_store(tmp_path, None, clock, settings=stepwise({"block_bytes": "4KiB"})) as store:
        store.create_topic("t")
        assert put(store.staging, 0, [[bytes(1000)] * 50])
        assert len(values(store.topic("t"))) == 50
    assert sum(sizes) > 100_000
    assert max(sizes) < 3 * 8192


def test_the_rows_of_a_batch_take_no_memory_from_recent_ones(store: tiered.Store) -> None:
    """A batch is larger than that memory: all that was appended just now would have to be read from the disk."""
    topic = store.topic("t")
    topic.append(b"recent", sync=True)
    assert put(store.staging, 0, [[b"1"] * 50])
    assert len(values(topic)) == 51
    recent = topic.opened.writers[0].recent.between(0, 51)
    assert [(block.base_offset, block.end_offset) for block in recent] == [(0, 1)]


def test_a_batch_without_room_is_not_decided(store: tiered.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    staged = stage(store.staging, [[b"1"]])
    host = replace(store.context.host, disk_usage=lambda _: Usage(1000))
    monkeypatch.setattr(store.context, "host", host)
    with pytest.raises(DiskFull, match="nothing was committed"):
        store.staging.commit("t", "q", 0, staged)
    monkeypatch.undo()
    assert values(store.topic("t")) == []
    assert store.staging.commit("t", "q", 0, staged)


def test_damaged_rows_are_never_committed(store: tiered.Store) -> None:
    staged = stage(store.staging, [[bytes([at]) * 5000 for at in range(20)]])
    [path] = sorted((Path(store.url) / "topics/__transactions/0").glob("*.log"))
    data = path.read_bytes()
    at = data.index(bytes([7]) * 5000)
    path.write_bytes(data[: at + 9] + b"x" + data[at + 10 :])
    with pytest.raises(CorruptionError):
        store.staging.commit("t", "q", 0, staged)
    path.write_bytes(data)
    assert values(store.topic("t")) == []
    assert store.staging.commit("t", "q", 0, staged)


def test_what_nobody_came_back_for_is_forgotten(store: tiered.Store, clock: Clock) -> None:
    staging = store.staging
    put(staging, 4, [[b"1"]])
    lost = stage(staging, [[b"2"]])
    clock.advance(ROWS_SECONDS - 10)
    stage(staging, [[]], query="another")
    assert left(store) == 1
    clock.advance(3700)
    stage(staging, [[b"3"]], query="another")
    assert left(store) == 1
    with pytest.raises(ConfigError, match="write them again"):
        staging.commit("t", "q", 5, lost)
    assert not put(staging, 4, [[b"1"]])


def test_rows_are_looked_through_once_an_hour(
    store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(StagedLog, "forget", lambda _: looked.append(clock()))
    for seconds in (0, 1, 3598, 1, 3600):
        clock.advance(seconds)
        stage(store.staging, [[]])
    assert len(looked) == 3


def test_a_query_is_known_for_some_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through restarts and renewals of the log; a job, whose name nobody has again, for a day."""
    monkeypatch.setattr(log_renewal, "CLOSE_RECORDS_MAX", 0)
    job = f"{JOB_PREFIX}1"
    with open_store(tmp_path, None, clock) as store:
        store.create_topic("t")
        put(store.staging, 0, [[b"1"]], query=job)
        put(store.staging, 0, [[b"2"]], query="app:1")
    for seconds, known in ((JOB_SECONDS - 10, {job, "app:1"}), (20, {"app:1"}), (QUERY_SECONDS, set())):
        clock.advance(seconds)
        with open_store(tmp_path, None, clock) as store:
            store.topic("t").consumer("c").commit({0: 0})
        with open_store(tmp_path, None, clock) as store:
            batches = store.transactions._log.current().batches
            assert {name.partition("/")[2] for name in batches._last} == known
            for name in known:
                assert not put(store.staging, 0, [[b"3"]], query=name)


def test_what_is_staged_is_durable(store: tiered.Store) -> None:
    """Its task is done by then, and nobody writes the rows again after a power cut."""
    stage(store.staging, [[b"1", b"2"]])
    assert not store.topic("__transactions").opened.writers[0].dirty


def test_staged_rows_outlive_their_server(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path, None, clock) as store:
        store.create_topic("t", partitions=3)
        staged = stage(store.staging, [[b"1"], [b"2", b"3"]])
    with open_store(tmp_path, None, clock) as store:
        assert store.staging.commit("t", "q", 0, staged)
        assert Counter(values(store.topic("t"))) == Counter([b"1", b"2", b"3"])


def test_of_two_commits_of_a_batch_at_once_one_counts(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver of a query is started twice."""
    staging, verify, found = store.staging, Staging._verify, []
    attempts = [stage(staging, [[b"%d" % number]]) for number in range(2)]
    second = threading.Thread(target=lambda: found.append(staging.commit("t", "q", 0, attempts[1])))

    def verifying(self: Staging, *arguments: Any) -> None:
        if not second.ident:
            second.start()
            second.join(0.1)
            assert second.is_alive()
        verify(self, *arguments)

    monkeypatch.setattr(Staging, "_verify", verifying)
    assert staging.commit("t", "q", 0, attempts[0])
    second.join(60)
    assert found == [False]
    assert values(store.topic("t")) == [b"0"]


def test_an_abort_beside_a_commit_leaves_all_or_nothing(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Staging._verify
    staged = stage(store.staging, [[b"1"], [b"2"]])

    def aborted(self: Staging, *arguments: Any) -> None:
        verify(self, *arguments)
        self.abort("t", "q", [staged[0].attempt])

    monkeypatch.setattr(Staging, "_verify", aborted)
    with pytest.raises(ConfigError, match="write them again"):
        store.staging.commit("t", "q", 0, staged)
    monkeypatch.undo()
    assert values(store.topic("t")) == []
    assert put(store.staging, 0, [[b"1"], [b"2"]])


def test_a_batch_without_rows_counts(store: tiered.Store) -> None:
    attempt = uuid4().hex
    assert store.staging.stage("t", "q", attempt, []) == Staged(attempt, 0, 0)
    assert store.staging.stage("t", "q", attempt, [rows()]) == Staged(attempt, 0, 0)
    assert left(store) == 0
    assert store.staging.commit("t", "q", 3, [Staged(attempt, 0, 0)])
    assert not put(store.staging, 3, [[b"1"]])


def test_only_the_writer_stages(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "store", None, clock) as store:
        store.create_topic("t")
        with open_store(tmp_path / "store", None, clock, read_only=True) as reader:
            with pytest.raises(ReadOnly):
                reader.staging.stage("t", "q", uuid4().hex, [rows(b"1")])
            with pytest.raises(ReadOnly):
                reader.staging.recover()


# -- what an early build left ------------------------------------------------------------------------


def old_stage(store: tiered.Store, name: str, **more: Any) -> Path:
    folder = Path(store.url) / "stage" / ("0" * 32)
    folder.mkdir(parents=True, exist_ok=True)
    values = {"topic": "t", "topic_id": str(store.topic("t").meta.topic_id), "query": "q", "batch": 7}
    (folder / name).write_bytes(encode_document(values | {"partitions": 3} | more))
    (folder / f"{'a' * 32}.rows").write_bytes(b"TIERSTG1")
    return folder


def test_batches_that_an_early_build_completed_are_known(store: tiered.Store) -> None:
    old_stage(store, "done.json")
    store.staging.recover()
    assert not (Path(store.url) / "stage").exists()
    assert not put(store.staging, 7, [[b"1"]])
    assert put(store.staging, 8, [[b"2"]])
    assert put(store.staging, 0, [[b"3"]], query="another")


def test_a_batch_that_an_early_build_decided_is_left_to_it(store: tiered.Store) -> None:
    folder = old_stage(store, "commit.json", staged=[])
    with pytest.raises(UnsupportedFormat, match="serve the store once with that build"):
        store.staging.recover()
    assert sorted(path.name for path in folder.iterdir()) == [f"{'a' * 32}.rows", "commit.json"]
