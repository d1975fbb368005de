"""A disk without room: `DiskFull`, nothing damaged, and everything goes on by itself when there is room again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.crash.small_disk import SmallDisk
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, open_store, stepwise, values
from tests.support.tally import tally
from tiered.hot.held_partition import HeldPartition
from tiered.transactions import staging
from tiered.transactions.transaction_log import TransactionLog
from tiered.warm.bucket_binding import read_binding
from tiered.warm.partition_directory import read_lineage

ONE = bytes(900)


@pytest.fixture
def data(small_disk: SmallDisk) -> Path:
    return small_disk.path / "data"


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_appends_until_the_disk_is_full(small_disk: SmallDisk, data: Path, clock: Clock, sync: str) -> None:
    """What was acknowledged is there, once and in order; the open store goes on when there is room, and reopens."""
    options = stepwise({"sync": sync, "block_bytes": "32KiB"}, roll={"bytes": "300KiB", "age": "off"})
    with open_store(data, None, clock, settings=options) as store:
        topic = store.create_topic("t")
        small_disk.fill(1 << 20)
        acknowledged = refused = 0
        for number in range(3000):
            try:
                topic.append(b"%06d" % number + ONE, sync=number % 10 == 0)
                if number % 10 == 0:
                    acknowledged = topic.offsets()[0].end
            except tiered.DiskFull:
                refused += 1
                if refused == 3:
                    break
        assert refused == 3
        assert acknowledged > 500
        small_disk.make_room()
        topic.append(b"after", sync=True)
        found = values(topic)
    # Those whose wait for the disk failed were appended: they follow once there is room.
    numbers = [int(value[:6]) for value in found[:-1]]
    assert found[-1] == b"after"
    assert numbers == sorted(set(numbers))
    assert numbers[:acknowledged] == list(range(acknowledged))
    with open_store(data, None, clock, settings=options) as store:
        assert values(store.topic("t")) == found
    tally("disk full", appends_refused=refused)


def _tiering(ahead_us: int) -> Callable[[tiered.Store, Clock], None]:
    def work(store: tiered.Store, clock: Clock) -> None:
        report = store.tier((clock() + ahead_us) // 1000)
        for _, message in report.failed:
            assert "no room on the local disk" in message
            raise tiered.DiskFull(message)

    return work


def _cold_place(store: tiered.Store, clock: Clock) -> None:
    store.close()
    tiered.open(store.url, cold="memory://elsewhere").close()


WORKS: dict[str, Callable[[tiered.Store, Clock], Any]] = {
    "a batch": lambda store, clock: store.topic("t").append_batch(
        pa.table({"value": [ONE] * 200}), sync=True
    ),
    "a record": lambda store, clock: store.topic("t").append(bytes(70_000), sync=True),
    "a roll": lambda store, clock: store.topic("t").roll(),
    "new columns": lambda store, clock: store.topic("typed").add_columns(pa.schema([("more", pa.int64())])),
    "a new topic": lambda store, clock: store.create_topic("new", exist_ok=True).append(b"1", sync=True),
    "a start offset": lambda store, clock: store.topic("t").delete_before(3),
    "a deletion": lambda store, clock: store.delete_topic("other"),
    "compression": _tiering(COMPRESS_US),
    "an upload": _tiering(OFFLOAD_US),
    "an eviction": _tiering(EVICT_US),
    "a close": lambda store, clock: store.close(),
    "the cold place": _cold_place,
}


@pytest.mark.extended
@pytest.mark.parametrize("left", [0, 4096, 12288])
@pytest.mark.parametrize("name", WORKS)
def test_any_operation_on_a_full_disk(
    small_disk: SmallDisk, data: Path, clock: Clock, tmp_path: Path, name: str, left: int
) -> None:
    """It does its work or raises `DiskFull`; reads go on; with room it succeeds; nothing is lost at any time."""
    options = stepwise(roll={"bytes": "64KiB", "age": "off"})
    cold = None if name == "the cold place" else f"file://{tmp_path}/bucket"
    kept = [b"%03d" % number + ONE for number in range(250)]
    refused = 0
    with open_store(data, cold, clock, settings=options) as store:
        store.create_topic("t").append_batch(pa.table({"value": kept[:100]}))
        for value in kept[100:200]:
            store.topic("t").append(value)
        store.create_topic("typed", schema=pa.schema([("n", pa.int64())])).append({"n": 1})
        store.create_topic("other").append(b"x", sync=True)
        store.flush()
        for value in kept[200:]:
            store.topic("t").append(value)
        small_disk.fill(left)
        try:
            WORKS[name](store, clock)
        except tiered.DiskFull:
            refused = 1
        with tiered.open(data, read_only=True, cold=cold) as reader:
            check_values(reader, kept[:200])
        small_disk.make_room()
        if refused:
            WORKS[name](store, clock)
    with open_store(data, cold, clock, settings=options) as store:
        check_values(store, kept)
        assert store.topic("typed").scan(columns=["n"]).to_arrow().to_pylist() == [{"n": 1}]
        if name == "a deletion":
            assert store.topics() == ["t", "typed"]
        for number in (0, 1):
            assert store.topic("t").append(b"%d" % number, sync=True).offset >= len(kept)
        assert values(store.topic("t"))[-2:] == [b"0", b"1"]
    tally("disk full", operations=1, refused=refused)


def check_values(store: tiered.Store, kept: list[bytes]) -> None:
    """The log of `t` holds `kept` from its start on; what was appended behind does not matter."""
    topic = store.topic("t")
    start = topic.offsets()[0].start
    assert start in (0, 3)
    assert values(topic)[: len(kept) - start] == kept[start:]


_SMALL_SEGMENTS = stepwise(roll={"bytes": "64KiB", "age": "off"}, compress="off")


def fill_topic(store: tiered.Store) -> list[bytes]:
    """Append several segments of records to `t`, durably; return their values."""
    kept = [os.urandom(900) for _ in range(300)]
    topic = store.create_topic("t")
    for value in kept:
        topic.append(value)
    store.flush()
    return kept


def test_a_pass_makes_room_on_a_full_disk(
    small_disk: SmallDisk, data: Path, clock: Clock, tmp_path: Path
) -> None:
    """The message of `DiskFull` says to lower the local retention: so a pass must be able to begin."""
    with open_store(data, f"file://{tmp_path}/bucket", clock, settings=_SMALL_SEGMENTS) as store:
        kept = fill_topic(store)
        for _ in range(2):
            assert store.tier((clock() + OFFLOAD_US) // 1000).failed == ()
        small_disk.fill()
        report = store.tier((clock() + EVICT_US) // 1000)
        assert (report.failed, {action.kind for action, _ in report.done}) == ((), {"evict_local"})
        assert values(store.topic("t")) == kept
    assert sum(path.stat().st_size for path in data.glob("topics/t/0/*.log")) < 100_000


def test_the_first_offload_of_all_makes_room_on_a_full_disk(
    small_disk: SmallDisk, data: Path, clock: Clock, tmp_path: Path
) -> None:
    """A bucket that was out of reach from the first day until the disk was full; what it then knows is remembered."""
    with open_store(data, f"file://{tmp_path}/bucket", clock, settings=_SMALL_SEGMENTS) as store:
        kept = fill_topic(store)
        small_disk.fill()
        assert store.tier((clock() + OFFLOAD_US) // 1000).failed == ()
        assert (read_lineage(data / "topics/t/0"), read_binding(data).claimed) == (None, False)
        assert store.tier((clock() + EVICT_US) // 1000).failed == ()
        assert store.topic("t").append(kept[0], sync=True).offset == len(kept)
        assert store.tier((clock() + OFFLOAD_US) // 1000).failed == ()
        assert values(store.topic("t")) == [*kept, kept[0]]
    assert read_lineage(data / "topics/t/0") == 1
    assert read_binding(data).claimed


def test_a_store_on_a_full_disk_can_be_read(small_disk: SmallDisk, data: Path, clock: Clock) -> None:
    """A reader needs no room; a writer opens, or says `DiskFull` and opens when there is room."""
    with open_store(data, None, clock) as store:
        store.create_topic("t").append(b"1", sync=True)
    small_disk.fill()
    with tiered.open(data, read_only=True) as reader:
        assert values(reader.topic("t")) == [b"1"]
    with suppress(tiered.DiskFull), open_store(data, None, clock) as store:
        store.topic("t").append(b"2", sync=True)
    small_disk.make_room()
    with open_store(data, None, clock) as store:
        store.topic("t").append(b"3", sync=True)
        assert values(store.topic("t"))[0] == b"1"
        assert values(store.topic("t"))[-1] == b"3"


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "t"],
        pytest.param(["create", "u"], marks=pytest.mark.slow),
        pytest.param(["tier"], marks=pytest.mark.slow),
    ],
)
def test_the_command_line_says_it_in_one_line(
    small_disk: SmallDisk, data: Path, clock: Clock, tmp_path: Path, arguments: list[str]
) -> None:
    """Exit code 1, one line on stderr that names the trouble, no traceback; with room the same command works."""
    with open_store(data, None, clock) as store:
        topic = store.create_topic("t")
        topic.append_batch(pa.table({"value": [ONE] * 500}), sync=True)
        topic.roll()
    config = tmp_path / "tiered.toml"
    config.write_text('[policies.default]\ncompress = { codec = "zstd", after = "1us" }\n')

    def run() -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "tiered", *arguments, "--path", str(data), "--config", str(config)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        lines = (ONE.replace(b"\0", b"x") + b"\n") * 9
        return fork_server.run(
            command, input=lines, capture_output=True, timeout=60, check=False, env=environment
        )

    small_disk.fill()
    refused = run()
    assert refused.returncode == 1, refused
    assert re.fullmatch(rb"[^\n]*no room on the local disk[^\n]*\n", refused.stderr), refused.stderr
    small_disk.make_room()
    done = run()
    assert done.returncode == 0, done.stderr


def test_a_commit_on_a_full_disk_has_its_rows_or_leaves_nothing(
    small_disk: SmallDisk, data: Path, clock: Clock
) -> None:
    """Room is promised before the decision, in small files too; so the store goes on when there is room again."""
    with open_store(data, None, clock) as store:
        topics = [store.create_topic(name) for name in ("one", "two")]
        with store.transaction() as transaction:
            transaction.append("one", b"first")
        verdicts = set()
        for number in range(60):
            small_disk.fill(leave_bytes=number % 12 * 4096)
            try:
                with store.transaction() as transaction:
                    for at in range(8):
                        transaction.append(topics[at % 2], b"%d|" % number + ONE)
                expected = 8
            except tiered.DiskFull:
                expected = 0
            verdicts.add(expected)
            small_disk.make_room()
            found = [value for topic in topics for value in values(topic)]
            assert sum(value.startswith(b"%d|" % number) for value in found) == expected
            for topic in topics:
                topic.append(b"with room", sync=True)
        assert verdicts == {0, 8}


class _Unpromised:
    """A disk that promises no room, and is filled right after the next decision."""

    def __init__(self, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        decided = TransactionLog.sync_written
        monkeypatch.setattr(HeldPartition, "make_room", lambda *_: None)

        def fill(log: TransactionLog, end: int) -> None:
            decided(log, end)
            small_disk.fill()

        monkeypatch.setattr(TransactionLog, "sync_written", fill)


def test_a_decided_transaction_waits_for_room_and_goes_on(
    small_disk: SmallDisk, data: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no room can be promised: nothing comes before its rows, no reader sees half of it, and no opening is needed."""
    with open_store(data, None, clock) as store:
        topics = [store.create_topic(name) for name in ("one", "two")]
        for topic in topics:
            topic.append(b"0", sync=True)
        with monkeypatch.context() as patch:
            _Unpromised(small_disk, patch)
            with (
                pytest.raises(tiered.PartitionPoisoned, match="is committed, but .* there is room again"),
                store.transaction() as transaction,
            ):
                for topic in topics:
                    topic_rows = [bytes([65 + at]) * 200_000 for at in range(3)]
                    transaction.append_many(topic, topic_rows)
        snapshot = store.snapshot(topics)
        assert [values(snapshot.scan(topic)) for topic in topics] == [[b"0"], [b"0"]]
        for topic in topics:
            with pytest.raises(tiered.DiskFull, match="wait for room"):
                topic.append(b"refused")
        small_disk.make_room()
        with store.transaction() as transaction:
            transaction.append("one", b"next")
        assert [len(values(topic)) for topic in topics] == [5, 4]
        assert [record.offset for record in topics[0].read()] == list(range(5))
        topics[1].append(b"next", sync=True)
    with open_store(data, None, clock) as store:
        for name in ("one", "two"):
            assert [value[:1] for value in values(store.topic(name))] == [b"0", b"A", b"B", b"C", b"n"]


def test_a_decided_batch_waits_for_room_and_goes_on(
    small_disk: SmallDisk, data: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its blocks may be there already; no reader sees them."""
    rows = [pa.record_batch({"value": [bytes([65 + at]) * 60_000]}) for at in range(45)]
    monkeypatch.setattr(staging, "RECORD_BYTES", 1 << 16)
    with open_store(data, None, clock, settings=stepwise({"block_bytes": "64KiB"})) as store:
        topic = store.create_topic("one")
        topic.append(b"0", sync=True)
        staged = [store.staging.stage("one", "q", "0" * 32, rows)]
        append, left = HeldPartition.append, 5

        def fill(self: HeldPartition, bodies: Any, numbers: Any = (), *more: Any, **named: Any) -> None:
            nonlocal left
            left -= bool(numbers)
            if left == 0:
                small_disk.fill()
            append(self, bodies, numbers, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(HeldPartition, "make_room", lambda *_: None)
            patch.setattr(HeldPartition, "append", fill)
            patch.setattr(staging, "_ROOM_BYTES", 0)
            with pytest.raises(tiered.PartitionPoisoned, match="is committed, but .* there is room again"):
                store.staging.commit("one", "q", 0, staged)
        assert values(topic) == [record.value for record in topic.read()] == [b"0"]
        assert topic.consumer("billing", start="latest").position() == {0: 1}
        with pytest.raises(tiered.DiskFull, match="wait for room"):
            topic.append(b"refused")
        small_disk.make_room()
        assert not store.staging.commit("one", "q", 0, staged)
        topic.flush()
        assert [value[:1] for value in values(topic)] == [b"0", *(bytes([65 + at]) for at in range(45))]
        topic.append(b"next", sync=True)
