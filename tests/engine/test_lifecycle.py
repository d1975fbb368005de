"""Opening, locking, forking, syncing and closing a store."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, FullDisk
from tests.support.paths import ROOT
from tests.support.stores import OFFLOAD_US, evict_all, open_store, stepwise, tier, values
from tiered.engine.host import Host
from tiered.engine.writers import BackgroundFlush
from tiered.warm.filesystem import OsFileSystem


def script(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]


def run(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, at the end of which the store in it may still be open."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return fork_server.run(
        script(text, *arguments), env=environment, capture_output=True, text=True, timeout=60, check=False
    )


# -- one writer ------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    """In the same process too, and by whatever spelling of the path."""
    with tiered.open(tmp_path / "data") as store:
        (tmp_path / "link").symlink_to(tmp_path / "data")
        for path in (tmp_path / "data", tmp_path / "x" / ".." / "data", tmp_path / "link"):
            with pytest.raises(
                tiered.StoreLocked, match=rf"process {os.getpid()} \(this process\).*read_only=True"
            ):
                tiered.open(path)
        assert store.create_topic("t").append(b"v") == (0, 0)
    with tiered.open(tmp_path / "data") as store:
        assert values(store.topic("t")) == [b"v"]


def test_a_writer_of_another_process_is_named_until_it_dies(tmp_path: Path) -> None:
    """kill -9 frees the lock; readers never need it."""
    text = """
        import sys, time, tiered
        store = tiered.open(sys.argv[1])
        store.create_topic("t").append(b"v", sync=True)
        print("ready", flush=True)
        time.sleep(60)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with fork_server.Popen(
        script(text, tmp_path / "data"), env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with pytest.raises(
                tiered.StoreLocked, match=rf"held by process {process.pid} \(.*python.*\) on "
            ):
                tiered.open(tmp_path / "data")
            with tiered.open(tmp_path / "data", read_only=True) as reader:
                assert values(reader.topic("t")) == [b"v"]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with tiered.open(tmp_path / "data") as store:
        assert store.topic("t").append(b"w").offset == 1


def test_one_of_two_creators_makes_the_store(tmp_path: Path) -> None:
    """The id it works with is the one on disk, or its bucket would not be its own after a restart."""
    found: list[tiered.Store] = []
    refused: list[tiered.TieredError] = []
    start = threading.Barrier(6)

    def create() -> None:
        start.wait()
        try:
            found.append(tiered.open(tmp_path / "data"))
        except tiered.StoreLocked as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (store,) = found
    assert len(refused) == 5
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        assert reader.store_id == store.store_id
    store.close()


@pytest.mark.parametrize("beside", [{"read_only": True}, {"tierer": True}], ids=["reader", "tierer"])
def test_who_was_there_before_the_bucket_finds_it(
    tmp_path: Path, clock: Clock, beside: dict[str, bool]
) -> None:
    """A store gets its cold tier later than its reader opened it; what is then evicted is still read."""
    bucket = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", None, clock) as store:
        store.create_topic("t").append(b"v")
        early = open_store(tmp_path / "data", None, clock, **beside)
        topic = early.topic("t")
        assert values(topic) == []
    with early:
        with open_store(tmp_path / "data", bucket, clock) as store:
            store.topic("t").roll()
            evict_all(store, clock)
        assert values(topic) == [b"v"]
        assert early.status().cold_url == bucket


WRITES: dict[str, Callable[[tiered.Store, tiered.Topic], Any]] = {
    "append": lambda store, topic: topic.append(b"v"),
    "append_many": lambda store, topic: topic.append_many([b"v"]),
    "append_batch": lambda store, topic: topic.append_batch(pa.table({"value": [b"v"]})),
    "roll": lambda store, topic: topic.roll(),
    "delete_before": lambda store, topic: topic.delete_before(0),
    "add_columns": lambda store, topic: topic.add_columns(pa.schema([("a", pa.int8())])),
    "add_partitions": lambda store, topic: topic.add_partitions(2),
    "create_topic": lambda store, topic: store.create_topic("u"),
    "delete_topic": lambda store, topic: store.delete_topic("t"),
    "tier": lambda store, topic: store.tier(),
}


def test_nothing_is_planned_for_a_bucket(tmp_path: Path, clock: Clock) -> None:
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock) as store:
        store.create_topic("t").append(b"v")
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
    with tiered.open(url) as bucket, pytest.raises(tiered.ReadOnly, match="no local tier to plan for"):
        bucket.plan()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("where", ["beside", "bucket"])
def test_a_store_opened_for_reading_changes_nothing(
    tmp_path: Path, clock: Clock, write: str, where: str
) -> None:
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"v")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        before = sorted(tmp_path.rglob("*"))
        path = tmp_path / "data" if where == "beside" else url
        with tiered.open(path, read_only=True) as reader:
            with pytest.raises(tiered.ReadOnly, match=r"opened for reading|no local tier"):
                WRITES[write](reader, reader.topic("t"))
            assert values(reader.topic("t")) == [b"v"]
        assert sorted(tmp_path.rglob("*")) == before


READS: dict[str, Callable[[tiered.Store, tiered.Topic], Any]] = {
    "topic": lambda store, topic: store.topic("t"),
    "topics": lambda store, topic: store.topics(),
    "status": lambda store, topic: store.status(),
    "plan": lambda store, topic: store.plan(),
    "store.flush": lambda store, topic: store.flush(),
    "flush": lambda store, topic: topic.flush(),
    "scan": lambda store, topic: topic.scan(),
    "read": lambda store, topic: topic.read(),
    "offsets": lambda store, topic: topic.offsets(),
    "offset_at": lambda store, topic: topic.offset_at(0),
}
CALLS = {**READS, **WRITES}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_a_closed_store_says_so(tmp_path: Path, call: str) -> None:
    """Closing twice is fine."""
    store = tiered.open(tmp_path / "data")
    topic = store.create_topic("t")
    topic.append(b"v")
    store.close()
    store.close()
    expected = (tiered.StoreClosed, tiered.SchemaMismatch) if call == "add_columns" else tiered.StoreClosed
    with pytest.raises(expected):
        CALLS[call](store, topic)
    assert "closed" in repr(store)


def test_a_scan_of_a_closed_store_says_so(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("t").append(b"v")
        scan = store.topic("t").scan()
    with pytest.raises(tiered.StoreClosed):
        scan.to_arrow()


def test_a_closed_store_does_not_leak_memory_by_saying_so(tmp_path: Path) -> None:
    store = tiered.open(tmp_path / "data")
    topic = store.create_topic("t")
    topic.append(b"v")
    store.close()
    depth = 0
    for _ in range(100):
        with pytest.raises(tiered.StoreClosed) as caught:
            topic.append(b"v")
    trace = caught.value.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 10


def test_a_partition_that_is_opened_while_the_store_closes_is_closed_too(tmp_path: Path) -> None:
    """Or what is appended to it afterwards would never be flushed, and its lock never be free."""
    store = tiered.open(tmp_path / "data", settings=stepwise())
    topic = store.create_topic("t", partitions=2)
    topic.append(b"early", partition=0)
    writer = topic.opened.writers[0]
    close, refused = writer.close, []

    def close_slowly() -> None:
        close()
        try:
            topic.append(b"late", partition=1)
        except tiered.StoreClosed as error:
            refused.append(error)

    writer.close = close_slowly  # type: ignore[method-assign]
    store.close()
    with pytest.raises(tiered.StoreClosed):
        topic.append(b"never", partition=1)
    with tiered.open(tmp_path / "data", settings=stepwise()) as store:
        assert values(store.topic("t")) == [b"early"] + [b"late"] * (not refused)
        store.topic("t").append(b"next", partition=1)


def test_a_store_whose_close_failed_opens_partitions_again(tmp_path: Path) -> None:
    disk = FullDisk()
    store = tiered.open(tmp_path / "data", settings=stepwise(), host=Host(fs=disk))
    topic = store.create_topic("t", partitions=2)
    topic.append(b"a", partition=0)
    disk.full = True
    with pytest.raises(tiered.DiskFull):
        store.close()
    disk.full = False
    topic.append(b"b", partition=1)
    store.close()
    with tiered.open(tmp_path / "data", settings=stepwise()) as store:
        assert values(store.topic("t")) == [b"a", b"b"]


def test_an_interrupted_opening_of_a_partition_leaves_it_free(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a bucket that does not answer is asked."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        topic = store.create_topic("t")

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store.tierer.claims, "check_not_behind", interrupt)
            with pytest.raises(KeyboardInterrupt):
                topic.append(b"v")
        assert topic.append(b"v").offset == 0


def test_an_opening_that_fails_leaves_the_store_free(tmp_path: Path) -> None:
    """Also where it fails late, as what is left of a deleted topic cannot be removed."""

    class BusyDisk(OsFileSystem):
        def remove_directory(self, path: Path) -> None:
            raise OSError(16, "Device or resource busy (injected)", str(path))

    tiered.open(tmp_path / "data").close()
    (tmp_path / "data" / "topics" / ".deleted-1").mkdir(parents=True)
    with pytest.raises(OSError, match="busy"):
        tiered.open(tmp_path / "data", host=Host(fs=BusyDisk()))
    tiered.open(tmp_path / "data").close()


def test_trouble_with_one_partition_keeps_no_other_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: neither in the background nor at close."""
    store = tiered.open(tmp_path / "data", settings=stepwise())
    names = ("a", "b", "c")
    for name in names:
        store.create_topic(name).append(b"v")
    odd = tmp_path / "data" / "topics" / "b" / "0" / "fenced.json"
    odd.mkdir()
    with pytest.raises(tiered.FileUnreadable):
        BackgroundFlush(store.context, store.open_topics.writers).run()
    assert [store.topic(name).opened.writers[0].durable_offset for name in names] == [1, 0, 1]
    with pytest.raises(tiered.FileUnreadable):
        store.close()
    assert [store.topic(name).opened.writers[0].fault is None for name in names] == [False, True, False]
    odd.rmdir()
    store.close()
    with tiered.open(tmp_path / "data") as store:
        assert [values(store.topic(name)) for name in names] == [[b"v"]] * 3


def test_a_disk_that_became_read_only_leaves_no_lock_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder's name cannot be taken out of the lock's file then."""
    store = tiered.open(tmp_path / "data", settings=stepwise())
    store.create_topic("t").append(b"v")

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system (injected)")

    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr("tiered.warm.file_lock.os.ftruncate", refuse)
        patch.setattr(OsFileSystem, "truncate", lambda *_: None)
        store.close()
    with tiered.open(tmp_path / "data") as store:
        assert values(store.topic("t")) == [b"v"]
        store.topic("t").append(b"w")


# -- forks -------------------------------------------------------------------------------------------

FORK = """
    import os, sys, warnings, tiered

    warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later, where threads are forked
    store = tiered.open(sys.argv[1])
    topic = store.create_topic("t", partitions=2)
    topic.append(b"parent", partition=0)
    tried, try_ended = os.pipe()
    child = os.fork()
    if child == 0:
        failures = []
        def must_be_closed(name, call):
            try:
                call()
            except tiered.StoreClosed as error:
                if "fork" not in str(error):
                    failures.append(f"{name}: {error}")
            except BaseException as error:
                failures.append(f"{name}: {error!r}")
            else:
                failures.append(f"{name} did something")
        must_be_closed("append", lambda: topic.append(b"child", partition=0))
        must_be_closed("append to a partition that was not open", lambda: topic.append(b"child", partition=1))
        must_be_closed("sync append", lambda: topic.append(b"child", partition=0, sync=True))
        must_be_closed("append_many", lambda: topic.append_many([{"value": b"child", "partition": 0}]))
        must_be_closed("scan", topic.scan)
        must_be_closed("flush", topic.flush)
        must_be_closed("roll", topic.roll)
        must_be_closed("topics", store.topics)
        must_be_closed("tier", store.tier)
        store.close()
        try:
            tiered.open(sys.argv[1])
            failures.append("the child got the parent's lock")
        except tiered.StoreLocked:
            pass
        with tiered.open(sys.argv[1], read_only=True) as reader:
            reader.topic("t").scan().to_arrow()
        print(*failures, sep="\\n", flush=True)
        os.write(try_ended, b"x")
        sys.stdin.read()  # stays alive until its parent's parent lets go
        os._exit(len(failures))
    topic.append(b"parent again", partition=0)
    os.read(tried, 1)  # a child that tries to open the store later may well get it
    store.close()
    # The child holds no lock of the store that it inherited.
    with tiered.open(sys.argv[1]) as store:
        assert store.topic("t").scan().to_arrow()["value"].to_pylist() == [b"parent", b"parent again"]
    print("parent done", flush=True)
    sys.stdin.close()
    os.waitpid(child, 0)
"""


def test_a_forked_child_never_uses_the_parents_store(tmp_path: Path) -> None:
    """Every call is refused, whatever its threads and locks were doing; parent and readers go on."""
    result = run(FORK, tmp_path / "data")
    assert result.stderr == ""
    assert result.stdout.split() == ["parent", "done"]


def test_a_scan_ends_with_its_store_in_the_middle_of_a_split(tmp_path: Path) -> None:
    """In a forked child the threads are missing that the parent's scan waits for."""
    store = tiered.open(tmp_path / "data")
    topic = store.create_topic("t")
    for value in (b"first", b"second"):
        topic.append(value)
        topic.flush()
    scan = topic.scan()
    (split,) = scan.splits()
    rows, again = scan.read(split), scan.to_batches()
    assert next(rows)["value"].to_pylist() == [b"first"]
    store.close()
    for left in (rows, again):
        with pytest.raises(tiered.StoreClosed):
            next(left)


# -- what is durable when ----------------------------------------------------------------------------


def counted(tmp_path: Path, **store: Any) -> tuple[tiered.Store, FullDisk]:
    disk = FullDisk()
    return tiered.open(tmp_path / "data", settings=stepwise(store), host=Host(fs=disk)), disk


def durable(tmp_path: Path) -> int:
    """What another process can see."""
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        return reader.topic("t").offsets()[0].end


def test_sync_always_makes_each_append_durable_before_it_returns(tmp_path: Path) -> None:
    store, disk = counted(tmp_path, sync="always")
    topic = store.create_topic("t")
    for count in range(1, 4):
        before = disk.calls.count("sync")
        topic.append(b"v")
        assert disk.calls.count("sync") > before
        assert durable(tmp_path) == count
    topic.append_many([b"v"] * 1000)
    topic.append_batch(pa.table({"value": [b"v"]}))
    assert durable(tmp_path) == 1004
    before = disk.calls.count("sync")
    topic.append(b"v", sync=False)
    assert disk.calls.count("sync") == before
    assert durable(tmp_path) == 1004
    store.close()


def test_a_closed_store_refuses_records_before_it_looks_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's first array imports pandas: a child that was forked in the middle of that would wait for ever."""
    store, _ = counted(tmp_path)
    topic = store.create_topic("t")
    store.close()
    monkeypatch.setattr("tiered.engine.append.plain_records", lambda *_: pytest.fail("records were checked"))
    with pytest.raises(tiered.StoreClosed):
        topic.append_many([b"v"] * 500)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_flush_makes_the_others_durable_where_one_partition_fails(tmp_path: Path, failing: int) -> None:
    def fail(name: str, path: Path) -> None:
        if name == "sync" and path.parent.name == str(failing):
            raise OSError(errno.EIO, "the device failed")

    disk = FailingDisk()
    store = tiered.open(tmp_path / "data", settings=stepwise({"sync": "interval"}), host=Host(fs=disk))
    topic = store.create_topic("t", partitions=3)
    for partition in range(3):
        topic.append(b"v", partition=partition)
    disk.before = fail
    with pytest.raises(tiered.PartitionPoisoned):
        store.flush()
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        found = reader.topic("t").offsets()
    assert {found[partition].end for partition in {0, 1, 2} - {failing}} == {1}
    with pytest.raises(tiered.PartitionPoisoned):
        store.close()


def test_sync_interval_makes_appends_durable_soon_and_flush_at_once(tmp_path: Path) -> None:
    """The interval is an hour here, so that nothing but the calls can have done it."""
    store, disk = counted(tmp_path, sync="interval")
    topic = store.create_topic("t")
    topic.append(b"v")
    assert durable(tmp_path) == 0
    before = disk.calls.count("sync")
    topic.append(b"v", sync=True)
    assert (disk.calls.count("sync") - before, durable(tmp_path)) == (1, 2)
    topic.append(b"v")
    topic.flush()
    assert durable(tmp_path) == 3
    before = disk.calls.count("sync")
    topic.flush()
    assert disk.calls.count("sync") == before
    store.close()
    with tiered.open(tmp_path / "data", settings=stepwise({"sync_interval": "5ms"})) as store:
        store.topic("t").append(b"v")
        deadline = time.monotonic() + 30
        while durable(tmp_path) < 4:
            assert time.monotonic() < deadline, "the background flush did nothing"
            time.sleep(0.005)


@given(
    st.lists(st.tuples(st.sampled_from(["one", "many", "values", "batch", "numbered"]), st.integers(1, 12)))
)
@example([("values", 300), ("batch", 10), ("one", 9)])
@settings(max_examples=40)
def test_sync_every_bounds_what_is_at_risk_by_every_way_in(calls: list[tuple[str, int]]) -> None:
    every = 10
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(Path(folder), None, Clock(), settings=stepwise({"sync_every": every})) as store,
    ):
        topic = store.create_topic("t")
        session = topic.producer("p")
        writer = topic.opened.writer(0)
        for way, count in calls:
            table = pa.table({"value": [b"v"] * count})
            if way == "one":
                for _ in range(count):
                    topic.append(b"v")
                    assert writer.end_offset - writer.durable_offset <= every
            elif way == "many":
                topic.append_many([{"value": b"v"}] * count)
            elif way == "values":
                topic.append_many([b"v"] * count)
            elif way == "batch":
                topic.append_batch(table)
            else:
                session.append_batch(table)
            assert writer.end_offset - writer.durable_offset <= every


def test_sync_never_leaves_the_disk_alone_and_readers_see_the_file(tmp_path: Path) -> None:
    """Neither appends nor scans nor the interval wait for the disk; flush does, as it was asked to."""
    store, disk = counted(tmp_path, sync="never", sync_interval="5ms")
    topic = store.create_topic("t")
    topic.append(b"v")
    before = disk.calls.count("sync")
    deadline = time.monotonic() + 30
    while durable(tmp_path) < 1:
        assert time.monotonic() < deadline, "the block was not written"
        time.sleep(0.005)
    topic.append(b"w")
    assert values(topic) == [b"v", b"w"]
    assert disk.calls.count("sync") == before
    topic.flush()
    assert disk.calls.count("sync") == before + 1
    store.close()


def test_records_acknowledged_under_sync_always_survive_kill_9(tmp_path: Path) -> None:
    """Threads append and report each offset; then the process is killed (promise P3)."""
    text = """
        import sys, threading, tiered
        settings = tiered.Settings.model_validate({"store": {"sync": "always"}})
        topic = tiered.open(sys.argv[1], settings=settings).create_topic("t")
        def work(name):
            for i in range(10**9):
                offset = topic.append(b"%d:%d" % (name, i)).offset
                sys.stdout.write(f"{offset} {name}:{i}\\n")
                sys.stdout.flush()
        for name in range(4):
            threading.Thread(target=work, args=(name,)).start()
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    acknowledged: dict[int, bytes] = {}
    with fork_server.Popen(
        script(text, tmp_path / "data"), env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break
            offset, value = line.split()
            acknowledged[int(offset)] = value.encode()
            if len(acknowledged) == 400:
                process.send_signal(signal.SIGKILL)
    with tiered.open(tmp_path / "data") as store:
        topic = store.topic("t")
        found = values(topic)
        assert {offset: found[offset] for offset in acknowledged} == acknowledged
        assert topic.append(b"next").offset == len(found)


def test_a_store_that_was_not_closed_is_flushed_at_exit(tmp_path: Path) -> None:
    """Of several stores each, even where another one fails."""
    text = """
        import sys, tiered
        from tiered.errors import DiskFull
        from tiered.engine.host import Host
        from tiered.warm.filesystem import OsFileSystem
        class Disk(OsFileSystem):
            full = False
            def write(self, fd, position, buffers):
                if self.full:
                    raise DiskFull("no room at all")
                return super().write(fd, position, buffers)
        disk = Disk()
        settings = tiered.Settings.model_validate({"store": {"sync_interval": "1h"}})
        stores = [tiered.open(sys.argv[1] + str(i), settings=settings, host=Host(fs=disk if i == 2 else OsFileSystem()))
                  for i in range(5)]
        for store in stores:
            store.create_topic("t").append(b"pending")
        disk.full = True
    """
    result = run(text, tmp_path / "data")
    assert result.returncode == 0
    assert "data2" in result.stderr
    assert "no room at all" in result.stderr
    for i in range(5):
        with tiered.open(f"{tmp_path}/data{i}", read_only=True) as reader:
            assert values(reader.topic("t")) == ([b"pending"] if i != 2 else [])


def test_close_flushes_and_raises_what_stands_in_the_way(tmp_path: Path) -> None:
    """The store stays open then, with what is pending, so that a later close can succeed."""
    store, disk = counted(tmp_path)
    topic = store.create_topic("t")
    topic.append(b"v")
    disk.full = True
    for call in (topic.flush, store.flush, store.close):
        with pytest.raises(tiered.DiskFull, match="no room"):
            call()
    disk.full = False
    assert topic.append(b"w").offset == 1
    store.close()
    assert durable(tmp_path) == 2


@pytest.mark.extended
def test_nothing_that_was_appended_is_dropped_by_a_close_beside_it(tmp_path: Path) -> None:
    """An append either raises StoreClosed, or its record is there after the close."""
    lost = 0
    for attempt in range(10):
        store = tiered.open(tmp_path / f"data{attempt}")
        topic = store.create_topic("t")
        counts = [0] * 3

        def append(me: int, topic: tiered.Topic = topic, counts: list[int] = counts) -> None:
            try:
                while True:
                    topic.append(b"v")
                    counts[me] += 1
            except tiered.StoreClosed:
                return

        threads = [threading.Thread(target=append, args=(me,)) for me in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        store.close()
        for thread in threads:
            thread.join()
        with tiered.open(tmp_path / f"data{attempt}", read_only=True) as reader:
            lost += sum(counts) - reader.topic("t").offsets()[0].end
    assert lost == 0
