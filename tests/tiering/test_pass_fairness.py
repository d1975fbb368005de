"""A writer whose appends wait for the bucket, and passes of another process: each has its turn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.stores import stepwise
from tests.support.watched_bucket import WatchedBucket, open_at, settings
from tiered.daemon.health import Health
from tiered.daemon.pass_watch import WatchedWork
from tiered.settings.schedule import jittered_interval
from tiered.tiering import tiering_locks
from tiered.tiering.pass_loop import PassLoop
from tiered.warm.fair_lock import FairLock
from tiered.warm.file_lock import FileLock

WRITER = """
import sys, threading
import tiered
path, cold = sys.argv[1:]
chosen = tiered.Settings.model_validate({
    "store": {"sync": "cold", "sync_interval": "1h"},
    "policies": {"default": {"roll": {"bytes": "64KiB", "age": "off"}}},
})
store = tiered.open(path, cold=cold, settings=chosen)
topic = store.create_topic("t", partitions=4)
def work(partition):
    while True:
        topic.append(bytes(9000), partition=partition)
        if threading.current_thread() is threads[0]:
            print(partition, flush=True)
threads = [threading.Thread(target=work, args=(partition,), daemon=True) for partition in range(4)]
for thread in threads:
    thread.start()
sys.stdin.read()
"""


@contextmanager
def busy_writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, four threads of which append with sync="cold"; each acknowledged one of the first is a line."""
    process = fork_server.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "data"), f"file://{tmp_path}/bucket"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def passes_beside(tmp_path: Path) -> list[str]:
    """Kinds of the actions that one pass did; it fails where one had no turn."""
    rules = {
        "offload": {"after": "0s", "tail_interval": "off"},
        "local_retention": {"age": "0s", "bytes": "off"},
        "retention": {"age": "1s"},
        "compress": "off",
    }
    with tiered.open(tmp_path / "data", settings=stepwise(**rules), tierer=True) as store:
        deadline = time.monotonic() + 60
        done: list[str] = []
        while not {"offload", "evict_local"} <= set(done):
            assert time.monotonic() < deadline, done
            report, problems = store.tierer.full_pass()
            assert [text for _, text in report.failed if "StoreLocked" in text] == []
            assert [item for item in problems if isinstance(item, tiered.StoreLocked)] == []
            done += [action.kind for action, _ in report.done]
        return done


def test_a_busy_writer_leaves_a_pass_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pass leaves the writer its own: appends are acknowledged all the while."""
    monkeypatch.setattr(tiering_locks, "TURN_SECONDS_MAX", 20.0)
    with busy_writer(tmp_path) as writer:
        assert passes_beside(tmp_path)
        assert writer.poll() is None
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()


def test_who_does_not_look_at_the_waiting_place_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that makes it fair, taken away from one side: the pass would not have its turn."""
    lock = FairLock(tmp_path / "lock", tmp_path / "next.lock", "the work")
    waiting = FairLock(tmp_path / "lock", tmp_path / "next.lock", "the work")
    mine, other, third = object(), object(), object()
    assert lock._begin(mine) is None
    assert waiting._begin(other) is not None
    lock._end(mine)
    assert lock._begin(third) is not None
    monkeypatch.setattr(FairLock, "_others_wait", lambda self: False)
    lock._next_path = tmp_path / "elsewhere.lock"
    assert lock._begin(third) is None


def test_passes_that_are_locked_out_are_counted_and_said(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz says so after three, and half a minute; the metric counts; the first that has its turn ends it."""
    monkeypatch.setattr(tiering_locks, "TURN_SECONDS_MAX", 0.0)
    bucket, now = WatchedBucket(), 0.0
    health = Health(60, lambda: now)
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        health.set_unready("")
        passes = PassLoop(
            WatchedWork(store.tierer, health), store.topics, store.context.settings.policy_for,
            schedule=jittered_interval(1.0, draw=lambda: 0.5), clock=clock, monotonic=lambda: clock() / 1e6,
            draw=lambda: 0.5,
        )  # fmt: skip
        passes.run_due()
        topic.append(b"1", sync=True)
        other = FileLock.acquire(tmp_path / "data" / "tiering.lock", "an older release's pass")
        for number in range(1, 5):
            clock.advance(40)
            now += 12.0
            passes.run_due()
            kinds = passes.kinds()
            assert (kinds["full"].in_vain, kinds["tails"].in_vain) == (number, number)
            ready = health.unready()
            assert [text.split(":")[0] for text in ready] == (
                []
                if now - 12 < 30
                else ["4 tails passes did nothing for 36 s", "4 full passes did nothing for 36 s"]
            )
        assert f"is held by process {os.getpid()}" in ready[0]
        assert health.problems() == []
        other.release()
        clock.advance(60)
        passes.run_due()
        kinds = passes.kinds()
        assert (kinds["full"].in_vain, kinds["tails"].in_vain, health.unready()) == (0, 0, [])


def test_one_process_at_a_time_runs_passes(tmp_path: Path, clock: Clock) -> None:
    """Also between its actions; an append that waits for the bucket is none, and has its turn."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings("cold")) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside, beside.tierer.locks.passes():
            with pytest.raises(tiered.StoreLocked, match="tiering of the store"):
                store.tier()
            topic.append(b"1")
        assert store.tier().failed == ()
