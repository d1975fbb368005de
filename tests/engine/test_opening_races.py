"""A partition that is being opened while its topic is deleted, the store closed, the process forked or interrupted.

At whatever step the opening is: nothing is left of it that keeps a lock, and no record is accepted that is lost.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import tiered
from tests.engine.stepping import PATIENCE_SECONDS, Scene, Stopped
from tests.support.clock import Clock
from tests.support.stores import values
from tiered.warm.file_lock import FileLock
from tiered.warm.partition_directory import PARTITION_LOCK

MANY = 100


@pytest.fixture
def scene(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path / "data", clock, monkeypatch, "interval")


def at_each_step(scene: Scene, first_append: Callable[[int], Callable[[], object]]) -> Iterator[Stopped]:
    """Stop the n-th first append, which is ``first_append(n)``, at its n-th step."""
    for number in range(MANY):
        with scene.steps.stopped_at(number, first_append(number)) as stopped:
            if stopped is None:
                assert number > 8
                return
            yield stopped
    pytest.fail("an opening takes no end")


def outcome(stopped: Stopped) -> object:
    """Let it go on; return what the append returned, or the error that it raised."""
    stopped.go_on.set()
    return stopped.done.exception(PATIENCE_SECONDS) or stopped.done.result()


def asks_the_bucket(stopped: Stopped) -> bool:
    return stopped.step.startswith(("connect", "get"))


def append_to(topic: tiered.Topic, partition: int) -> Callable[[], tiered.Appended]:
    return lambda: topic.append({"value": b"%d" % partition}, partition=partition, sync=True)


def test_a_deletion_waits_for_the_disk_alone(scene: Scene) -> None:
    """Then the name is free for another topic, which has nothing of the old one."""
    with scene.open() as store, ThreadPoolExecutor(1, "beside") as beside:
        for stopped in at_each_step(scene, lambda _: append_to(scene.create_a(store, 1), 0)):
            deletion = beside.submit(store.delete_topic, "a")
            if asks_the_bucket(stopped):
                deletion.result(PATIENCE_SECONDS)
                assert isinstance(outcome(stopped), tiered.TopicNotFound)
            assert isinstance(outcome(stopped), tiered.Appended | tiered.TopicNotFound)
            deletion.result(PATIENCE_SECONDS)
            assert [path.name for path in (scene.path / "topics").iterdir()] == ["b"]
            again = scene.create_a(store, 1)
            append_to(again, 0)()
            assert values(again) == [b"0"]


def test_a_close_waits_for_the_disk_alone(scene: Scene) -> None:
    """What the append returned is there when the store is opened again; at once, as no lock is left."""
    store = scene.open()
    scene.create_a(store, MANY)
    store.close()
    stores: list[tiered.Store] = []

    def first_append(number: int) -> Callable[[], object]:
        stores.append(scene.open())
        return append_to(stores[-1].topic("a"), number)

    accepted: list[bytes] = []
    with ThreadPoolExecutor(1, "beside") as beside:
        for number, stopped in enumerate(at_each_step(scene, first_append)):
            closing = beside.submit(stores[-1].close)
            if asks_the_bucket(stopped):
                closing.result(PATIENCE_SECONDS)
            else:
                with pytest.raises(TimeoutError):
                    closing.result(0.02)  # or another process could meet the lock of the partition
            found = outcome(stopped)
            closing.result(PATIENCE_SECONDS)
            lock = scene.path / "topics" / "a" / str(number) / PARTITION_LOCK
            FileLock.acquire(lock, "the test").release()
            assert isinstance(found, tiered.Appended | tiered.StoreClosed)
            accepted += [b"%d" % number] * isinstance(found, tiered.Appended)
            with scene.open() as again:
                assert values(again.topic("a")) == accepted
    stores[-1].close()


def test_an_interrupt_leaves_the_partition_free(scene: Scene) -> None:
    with scene.open() as store:
        a = scene.create_a(store, MANY)
        for number, stopped in enumerate(at_each_step(scene, lambda number: append_to(a, number))):
            stopped.error = KeyboardInterrupt()
            assert isinstance(outcome(stopped), KeyboardInterrupt | tiered.Appended)
            append_to(a, number)()


@pytest.mark.extended
def test_a_forked_child_keeps_no_lock_and_waits_for_nobody(scene: Scene) -> None:
    with scene.open() as store:
        a = scene.create_a(store, MANY)
        for stopped in at_each_step(scene, lambda number: append_to(a, number)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                code = 3
                try:
                    code = found_in_the_child(scene.path, a)
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0, stopped.step
            assert isinstance(outcome(stopped), tiered.Appended)


def found_in_the_child(root: Path, topic: tiered.Topic) -> int:
    """Return the code to exit with: 0 where no lock is open, and every append is refused."""
    locks = {(item.stat().st_dev, item.stat().st_ino) for item in root.rglob("*.lock")}
    for number in range(3, 256):
        with suppress(OSError):
            status = os.fstat(number)
            if (status.st_dev, status.st_ino) in locks:
                return 1
    for partition in range(MANY):
        with suppress(tiered.StoreClosed):
            append_to(topic, partition)()
            return 2
    return 0
