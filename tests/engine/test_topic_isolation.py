"""While anything is done to one topic, at whatever request or operation of the disk it hangs, all others go on.

Each test does one thing to topic ``a`` on a thread that stops at every step. At each of them appends, flushes, the
background flush, a first append to another partition and `Store.topic` have to come to their end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.engine.stepping import PATIENCE_SECONDS, Scene
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, values
from tiered.reader import tiers


@pytest.fixture(params=["interval", "cold"])
def scene(request: Any, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # Else a connection is used again, and "connect" is no step of what is tested.
    monkeypatch.setattr(tiers, "_SPARE_SECONDS", 0)
    return Scene(tmp_path / "data", clock, monkeypatch, request.param)


def nobody_waits(scene: Scene, store: tiered.Store, work: Callable[[], object]) -> list[str]:
    """Do `work`; return its steps, at each of which the others went on."""
    taken: list[str] = []
    with ThreadPoolExecutor(5, "beside") as beside:
        for step in scene.steps.each(work):
            if step not in taken:  # else it is the same for another object or file
                taken.append(step)
                try:
                    check_others(store, beside, next(scene.new, 0), len(taken))
                except TimeoutError:
                    pytest.fail(f"somebody waits for: {step}")
    return taken


def check_others(store: tiered.Store, beside: ThreadPoolExecutor, partition: int, number: int) -> None:
    """Raise `TimeoutError` where one of the others has to wait.

    Under ``sync="cold"`` the appends publish, for which the `partition` and the topic are claimed the first time.
    """
    b = store.topic("b")
    writer = b.opened.writers[0]

    def flushed_in_the_background() -> None:
        offset = b.append(b"v", partition=0, sync=False).offset
        assert writer.wait_beyond(offset, PATIENCE_SECONDS)

    def appended_and_flushed() -> None:
        b.append(b"v", partition=0)
        writer.flush()

    works: list[Callable[[], object]] = [
        flushed_in_the_background,
        appended_and_flushed,
        lambda: b.append(b"v", partition=partition),
        lambda: store.create_topic(f"b{min(number, 12)}", exist_ok=True).append(b"v"),
        lambda: store.topic("b"),
    ]
    for wait in [beside.submit(work) for work in works]:
        wait.result(PATIENCE_SECONDS)


def verbs(steps: list[str]) -> set[str]:
    return {step.partition(" ")[0] for step in steps}


def test_for_an_opening(scene: Scene) -> None:
    """Of a partition with a segment, of one without, and with a bucket that was never asked before."""
    scene.open().close()
    with scene.open() as store:
        a = store.topic("a")
        for partition in (0, 1):
            steps = nobody_waits(
                scene, store, lambda p=partition: a.append({"value": b"2"}, partition=p, sync=False)
            )
            assert verbs(steps) >= {"connect", "get", "open", "sync"}


def test_for_a_claim(scene: Scene) -> None:
    """What nobody has announced yet is announced, claimed and published."""
    with scene.open() as store:
        store.tier()  # has the prefix
        c = store.create_topic("c")
        work = c.flush if scene.sync == "cold" else store.tierer.tail_pass
        c.append(b"1", sync=False)
        steps = nobody_waits(scene, store, work)
        assert any(step.startswith("put") and step.endswith("topic.json") for step in steps)
        assert any(step.startswith("put") and step.endswith("head.json") for step in steps)


@pytest.mark.extended
def test_for_changes_of_a_topic(scene: Scene) -> None:
    with scene.open() as store:
        a = store.topic("a")
        works: list[Callable[[], object]] = [
            a.roll,
            lambda: store.create_topic("c", partitions=2),
            lambda: a.add_partitions(5),
            lambda: a.add_columns(pa.schema([("more", pa.int64())])),
            lambda: a.producer("p"),
            lambda: a.delete_before(1, 0),
        ]
        a.append({"value": b"2"}, partition=2)
        for work in works:
            assert {"open", "sync", "rename"} & verbs(nobody_waits(scene, store, work))


def test_for_a_deletion(scene: Scene) -> None:
    with scene.open() as store:
        store.topic("a").append({"value": b"2"}, partition=1)
        steps = nobody_waits(scene, store, lambda: store.delete_topic("a"))
        assert {"put", "rename", "unlink", "remove_directory"} <= verbs(steps)
        assert "a" not in store.topics()


@pytest.mark.extended
def test_for_a_pass(scene: Scene) -> None:
    """Seals, uploads, compresses, evicts, expires and sweeps."""
    with scene.open() as store:
        a = store.topic("a")
        done: set[str] = set()
        for ahead_us in (5 * HOUR_US, 9 * HOUR_US, 40 * HOUR_US):
            a.append({"value": b"2"}, partition=0)
            a.roll()

            def tier(ahead_us: int = ahead_us) -> None:
                report = store.tier((scene.clock() + ahead_us) // 1000)
                assert report.failed == ()
                done.update(action.kind for action, _ in report.done if action.topic == "a")

            nobody_waits(scene, store, tier)
        assert done >= {"compress", "offload", "evict_local", "expire"}


@pytest.mark.extended
def test_for_who_looks(scene: Scene) -> None:
    with scene.open() as store:
        works: list[Callable[[], object]] = [
            store.status, store.plan, lambda: store.sweep(dry_run=True), lambda: values(store.topic("a")),
            store.verify, store.flush, store.tierer.drop_deleted, store.context.tiers.release_removed,
        ]  # fmt: skip
        for work in works:
            nobody_waits(scene, store, work)
