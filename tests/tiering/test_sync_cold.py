"""``sync="cold"``: an append that returned is in the bucket; what is not there yet is durable here, and said."""

from __future__ import annotations

import inspect
import json
import linecache
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.s3_server import s3_process
from tests.support.stores import handle_of, local_segments, values
from tests.support.watched_bucket import WatchedBucket, away, host, open_at, published, settings
from tiered.format.codec import Codec
from tiered.policies.actions import ShipTail
from tiered.survey import partition_survey
from tiered.tiering import partition_handle
from tiered.tiering.publisher import Publisher
from tiered.tiering.tail_survey import survey_tail
from tiered.tiering.tiering_locks import TieringLocks
from tiered.warm.fair_lock import FairLock
from tiered.warm.file_lock import FileLock
from tiered.warm.partition_directory import Listing
from tiered.warm.reencode import rewrite_segment

COLD = settings("cold", tail_interval="off")


def test_each_way_to_append_waits_until_it_is_published(tmp_path: Path, clock: Clock) -> None:
    """And `sync=True` until it is durable here, `sync=False` not at all; flush and close publish the rest."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")
        topic.append(b"1")
        assert published(bucket) == [b"1"]
        topic.append_many([b"2", b"3"])
        assert published(bucket)[1:] == [b"2", b"3"]
        topic.append_batch(pa.table({"value": pa.array([b"4"], pa.binary())}))
        assert published(bucket)[3:] == [b"4"]
        before = bucket.uploads()
        topic.append(b"5", sync=True)
        assert topic.opened.writers[0].durable_offset == 5
        topic.append(b"6", sync=False)
        topic.append_batch(pa.table({"value": pa.array([b"7"], pa.binary())}), sync=False)
        assert bucket.uploads() == before
        topic.flush()
        assert (bucket.uploads(), published(bucket)[4:]) == (before + 1, [b"5", b"6", b"7"])
        topic.append(b"8", sync=False)
    assert published(bucket)[7:] == [b"8"]


def test_a_first_publication_beside_a_pass_is_no_lost_manifest(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass looked before it, and finds right after that the partition was published once."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")
        look = partition_survey.read_published

        def overtaken(*arguments: Any, **options: Any) -> Any:
            found = look(*arguments, **options)
            monkeypatch.undo()
            topic.append(b"first")
            return found

        monkeypatch.setattr(partition_survey, "read_published", overtaken)
        assert store.tier().failed == ()
    assert published(bucket) == [b"first"]


def test_a_topic_deleted_while_an_append_waits_is_said_to_be(tmp_path: Path, clock: Clock) -> None:
    """Whatever the append meets first: files that are gone, or those of a topic created again."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")

        def deleted(request: str) -> None:
            if request.startswith("put") and request.endswith("head.json"):
                bucket.hook = lambda _: None
                store.delete_topic("t")

        bucket.hook = deleted
        with pytest.raises(tiered.TopicNotFound, match="was deleted"):
            topic.append(b"v")


def test_those_who_wait_together_share_an_upload(tmp_path: Path, clock: Clock) -> None:
    """While one upload is on its way, eight threads append: the next one takes all of them."""
    bucket = WatchedBucket()
    uploading, go_on = threading.Event(), threading.Event()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store, ThreadPoolExecutor(9) as pool:
        topic = store.create_topic("t")
        topic.append(b"before")

        def stall(request: str) -> None:
            if request.endswith(".parquet"):
                uploading.set()
                assert go_on.wait(30)

        bucket.hook = stall
        first = pool.submit(topic.append, b"first")
        assert uploading.wait(30)
        others = [pool.submit(topic.append, b"other") for _ in range(8)]
        writer = topic.opened.writers[0]
        assert writer.wait_beyond(9, 30)
        assert not first.done()
        before = bucket.uploads()
        go_on.set()
        assert sorted(item.result().offset for item in [first, *others]) == list(range(1, 10))
        # A thread that was late to wait finds its record published, or leads one more.
        assert bucket.uploads() - before <= 2
    assert len(published(bucket)) == 10


def test_an_outage_is_told_and_the_record_stays(tmp_path: Path, clock: Clock) -> None:
    """One attempt that fails is everybody's; the records are here once, and published once it is over."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store, ThreadPoolExecutor(8) as pool:
        topic = store.create_topic("t")
        topic.append(b"0")
        bucket.hook = away
        with pytest.raises(
            tiered.ColdStorageError,
            match="durable on this disk and not published yet.*no route.*do not append them again",
        ) as caught:
            topic.append(b"1")
        assert caught.value.retryable
        attempts = bucket.uploads()
        all_wait = threading.Event()

        def refuse_late(request: str) -> None:
            assert all_wait.wait(30)
            away(request)

        bucket.hook = refuse_late
        failing = [pool.submit(topic.append, b"%d" % number) for number in range(2, 10)]
        assert topic.opened.writers[0].wait_beyond(9, 30)
        all_wait.set()
        assert all(isinstance(item.exception(), tiered.ColdStorageError) for item in failing)
        # A thread that was late to wait may lead one more.
        assert attempts < bucket.uploads() <= attempts + 3
        assert topic.opened.writers[0].durable_offset == 10
        assert len(values(topic)) == 10
        with pytest.raises(tiered.ColdStorageError):
            topic.flush()
        bucket.hook = lambda request: None
        before = bucket.uploads()
        topic.flush()
        assert bucket.uploads() == before + 1
        assert sorted(published(bucket)) == [b"%d" % number for number in range(10)]


def test_close_during_an_outage_raises_and_closes(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    store = open_at(tmp_path / "data", bucket, clock, settings=COLD)
    topic = store.create_topic("t")
    topic.append(b"0")
    topic.append(b"1", sync=False)
    bucket.hook = away
    with pytest.raises(tiered.ColdStorageError, match="not published yet"):
        store.close()
    with pytest.raises(tiered.StoreClosed):
        topic.append(b"2", sync=False)
    bucket.hook = lambda request: None
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        assert values(store.topic("t")) == [b"0", b"1"]


def test_another_process_that_tiers_is_waited_for_and_nothing_is_shipped_twice(
    tmp_path: Path, clock: Clock
) -> None:
    """It holds the tiering lock; what it publishes meanwhile is found in the head; a lock for ever is an error."""
    bucket = WatchedBucket()
    with (
        open_at(tmp_path / "data", bucket, clock, settings=COLD) as store,
        open_at(tmp_path / "data", bucket, clock, settings=COLD, tierer=True) as beside,
    ):
        topic = store.create_topic("t")
        topic.append(b"0")
        waits = 0

        def pause(seconds: float) -> None:
            nonlocal waits
            waits += 1
            if publishes and waits == 3:
                tail = survey_tail(beside.tierer.claims, handle_of(beside, topic.opened.meta, 0))
                beside.tierer.handlers[ShipTail](tail[1][0])
            now[0] += seconds

        now = [0.0]
        store.context.publisher = Publisher(store.tierer.tails, pause=pause, monotonic=lambda: now[0])
        publishes, uploads = True, bucket.uploads()
        lock = FileLock.acquire(tmp_path / "data" / "tiering.lock", "the test")
        topic.append(b"1")
        assert (waits < 20, bucket.uploads()) == (True, uploads + 1)
        publishes = False
        with pytest.raises(tiered.ColdStorageError, match="tiering of the store") as caught:
            topic.append(b"2")
        assert caught.value.retryable
        assert 59 < now[0] < 70
        lock.release()
        topic.flush()
        assert published(bucket) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("taking", "name"),
    [(TieringLocks.passes, "passes.lock"), (FairLock.turn, "tiering.lock"), (FairLock._try, "tiering.lock")],
    ids=["passes", "turn", "try"],
)
def test_an_interrupt_leaves_the_locks_to_others(
    tmp_path: Path, clock: Clock, taking: Any, name: str
) -> None:
    """At every line that takes it, but a lock's own, where Python lets no signal in."""
    taking = getattr(taking, "__wrapped__", taking)
    code = taking.__code__
    lines, first = inspect.getsourcelines(code)
    stripped = [line.strip() for line in lines]
    taken = first + (stripped.index("yield") if "yield" in stripped else len(lines))
    left, previous = 0, sys.gettrace()

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code is not code or frame.f_lineno > taken:
            return None
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith(("with ", "self._passes = FileLock")):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    interrupted = 0
    with open_at(tmp_path / "data", WatchedBucket(), clock, settings=COLD) as store:
        while True:
            left = interrupted + 1
            sys.settrace(trace)
            try:
                with store.tierer.locks.passes(), store.tierer.locks.turn(lambda _: None):
                    pass
                break
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(previous)
            FileLock.acquire(tmp_path / "data" / name, "the test").release()
            FileLock.acquire(tmp_path / "data" / "tiering-next.lock", "the test").release()
    assert interrupted >= 3


def test_an_upload_that_came_to_nothing_is_no_acknowledgement(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is sealed and encoded again between the look at it and its upload: it is looked for once more."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        list_segments = partition_handle.list_segments

        def listed(directory: Path) -> Listing:
            found = list_segments(directory)
            monkeypatch.setattr(partition_handle, "list_segments", list_segments)
            rewrite_segment(store.context.host.fs, directory / str(found.segments[0]), Codec.ZSTD, 3)
            return found

        def upload_late(action: ShipTail) -> int | None:
            monkeypatch.undo()
            topic.roll()
            monkeypatch.setattr(partition_handle, "list_segments", listed)
            return store.tierer.handlers[ShipTail](action)

        monkeypatch.setitem(store.tierer.handlers, ShipTail, upload_late)
        topic.append(b"1")
        assert published(bucket) == [b"0", b"1"]


@pytest.mark.parametrize("passes", [False, True], ids=["an append", "a pass"])
def test_an_active_segment_may_be_sealed_and_encoded_again_before_it_is_read(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """Its file is opened when it is read, and by then it has another name: it is looked for once more."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings("cold", tail_interval="1s")) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        committer = store.tierer.claims.committer

        def sealed_meanwhile(*arguments: Any, **options: Any) -> Any:
            monkeypatch.undo()
            topic.roll()
            [first, _] = local_segments(tmp_path / "data", "t")
            path = tmp_path / "data" / "topics" / "t" / "0" / first
            rewrite_segment(store.context.host.fs, path, Codec.ZSTD, 3)
            return committer(*arguments, **options)

        monkeypatch.setattr(store.tierer.claims, "committer", sealed_meanwhile)
        if passes:
            topic.append(b"1", sync=True)
            assert store.tier((clock() + 10_000_000) // 1000).failed == ()
        else:
            topic.append(b"1")
        assert published(bucket) == [b"0", b"1"]


def test_what_another_process_published_and_evicted_stands_in_nobodys_way(
    tmp_path: Path, clock: Clock
) -> None:
    """The writer has not heard of it yet: what its disk lacks is no corruption."""
    bucket = WatchedBucket()
    evicts = tiered.Settings.model_validate(
        {"policies": {"default": {"offload": {"after": "0s"}, "local_retention": {"age": "0s"}}}}
    )
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        for value in (b"1", b"2"):
            topic.append(value, sync=False)
            topic.roll()
        with open_at(tmp_path / "data", bucket, clock, settings=evicts, tierer=True) as beside:
            for _ in range(2):
                beside.tier((clock() + 10**9) // 1000)
        assert len(local_segments(tmp_path / "data", "t")) == 1
        assert topic.append(b"3").offset == 3
    assert published(bucket) == [b"0", b"1", b"2", b"3"]


def test_at_exit_what_cannot_be_published_any_more_is_durable_in_every_partition(
    tmp_path: Path, clock: Clock
) -> None:
    """Once the interpreter ends, no upload can start the threads for its parts."""
    bucket = WatchedBucket()
    store = open_at(tmp_path / "data", bucket, clock, settings=COLD)
    topic = store.create_topic("t", partitions=2)
    for partition in range(2):
        topic.append(b"%d" % partition, partition=partition, sync=False)

    def no_threads(request: str) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    bucket.hook = no_threads
    with pytest.raises(tiered.ColdStorageError, match="not published at exit"):
        store.close()
    bucket.hook = lambda request: None
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        assert sorted(values(store.topic("t"))) == [b"0", b"1"]


def test_a_fenced_store_says_so(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=COLD) as store:
        topic = store.create_topic("t")
        topic.append(b"ours")
        tiered.restore("memory://watched", tmp_path / "elsewhere", host=host(bucket, clock)).close()
        for _ in range(2):
            with pytest.raises(tiered.Fenced):
                topic.append(b"too late")
    assert published(bucket) == [b"ours"]


def test_what_excludes_it(tmp_path: Path, clock: Clock) -> None:
    """No bucket, or a topic that is never offloaded; the store remembers its bucket."""
    with pytest.raises(tiered.ConfigError, match="waits for a bucket"):
        tiered.open(tmp_path / "data", settings=COLD)
    assert not (tmp_path / "data").exists()
    bucket = WatchedBucket()
    open_at(tmp_path / "data", bucket, clock).close()
    with tiered.open(tmp_path / "data", settings=COLD, host=host(bucket, clock)) as store:
        store.create_topic("t").append(b"1")
    assert published(bucket) == [b"1"]
    with (
        open_at(tmp_path / "data", bucket, clock, settings=settings("cold", after="off")) as store,
        pytest.raises(tiered.ConfigError, match="exclude each other"),
    ):
        store.topic("t").append(b"2")


# -- the promise itself ------------------------------------------------------------------------------

_CHILD = """
import json, sys, threading
import tiered
path, url, endpoint = sys.argv[1:]
settings = tiered.Settings.model_validate({
    "store": {"sync": "cold"}, "cold": {"endpoint_url": endpoint or None},
    "policies": {"default": {"roll": {"bytes": "16KiB"}, "offload": {"after": "0s", "tail_interval": "50ms"}}},
    "daemon": {"interval": "100ms"},
})
store = tiered.open(path, cold=url, settings=settings, daemon=True)
topic = store.create_topic("t", partitions=2, exist_ok=True)
turn = threading.Lock()

def work(number):
    for count in range(10**9):
        value = b"%d-%d" % (number, count) + bytes(200)
        appended = topic.append(value, partition=number % 2)
        with turn:
            print(json.dumps([*appended, value.decode()]), flush=True)

for number in range(4):
    threading.Thread(target=work, args=(number,)).start()
"""


@pytest.mark.parametrize(
    ("kind", "lives"), [("file", 2), pytest.param("s3", 12, marks=pytest.mark.slow)], ids=["file", "s3"]
)
def test_after_kill_9_and_without_the_disk_every_acknowledged_record_is_there(
    tmp_path: Path, kind: str, lives: int
) -> None:
    """A process appends on four threads beside its passes and is killed; its host is lost; the bucket has all."""
    with ExitStack() as stack:
        endpoint, url = "", f"file://{tmp_path}/bucket"
        if kind == "s3":
            import boto3

            endpoint, url = stack.enter_context(s3_process()).url, "s3://bucket/prefix"
            boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
        acknowledged: dict[tuple[int, int], str] = {}
        chosen = tiered.Settings.model_validate({"cold": {"endpoint_url": endpoint or None}})
        for life in range(lives):
            acknowledged |= killed_after(60 + 30 * life, tmp_path / "data", url, endpoint)
            shutil.rmtree(tmp_path / "data")
            with tiered.open(url, settings=chosen) as store:
                columns = ["partition", "offset", "value"]
                table = store.topic("t").scan(columns=columns).to_arrow()
                rows = [tuple(row.values()) for row in table.to_pylist()]
            there = {(partition, offset): value.decode() for partition, offset, value in rows}
            assert len(there) == len(rows)
            assert acknowledged.items() <= there.items()
            tiered.restore(url, tmp_path / "data", settings=chosen).close()


def killed_after(count: int, path: Path, url: str, endpoint: str) -> dict[tuple[int, int], str]:
    """Run a process until it acknowledged so many records, kill it, and return what it acknowledged."""
    process = fork_server.Popen(
        [sys.executable, "-c", _CHILD, str(path), url, endpoint],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if len(lines) == count:
            process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(lines) >= count
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return {(partition, offset): value for partition, offset, value in whole}
