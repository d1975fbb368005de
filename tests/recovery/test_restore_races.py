"""A restore beside a host that is alive and busy: it succeeds, or leaves that host in charge."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.restores import BY_TAILS, Overtaken, by_tail_pass, offloaded
from tests.support.stores import committer_of, let_intent_lapse, open_store, stepwise, values
from tests.support.watched_bucket import URL, WatchedBucket, away, host, open_at, settings
from tiered.cold.manifest.restore_intent import INTENT_SECONDS
from tiered.cold.manifest.restores import POLL_SECONDS, IntentHolder, IntentWatch
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.errors import RestoreUnderWay
from tiered.tiering.claims import Claims
from tiered.tiering.publisher import LOCKED_SECONDS_MAX, Publisher
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import read_fence

COLD = settings("cold", tail_interval="off")


class Server(WatchedBucket):
    """A bucket with a clock that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.clock = lambda: self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, store: tiered.Store) -> tiered.Store:
        """Let a store go by the time of this test."""
        store.tierer.claims.store.restores = IntentWatch(monotonic=lambda: self.now)
        store.context.publisher = Publisher(
            store.tierer.tails, pause=lambda _: self.pass_(0.5), monotonic=lambda: self.now
        )
        return store

    def begun(self, restore_id: str = "1") -> IntentHolder:
        restoring = IntentHolder(StoreDocuments(self), restore_id, "ann@other", monotonic=lambda: self.now)
        restoring.begin()
        return restoring


def restored(server: Server, path: Path, clock: Clock) -> tiered.Store:
    return tiered.restore(URL, path, settings=COLD, host=host(server, clock))


def test_an_append_that_waits_to_be_published_goes_on_where_a_restore_died(
    tmp_path: Path, clock: Clock
) -> None:
    """It waits as long as the intent holds, by the clock of the bucket; appends that wait for the disk do not."""
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock, settings=COLD)) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        server.begun()
        server.pass_(POLL_SECONDS)
        begun = server.now
        topic.append(b"1", sync=True)
        assert server.now == begun
        topic.append(b"2")
        assert INTENT_SECONDS - POLL_SECONDS < server.now - begun < INTENT_SECONDS
        topic.append(b"3")
        store.create_topic("new").append(b"4")  # which takes the bucket back
    with restored(server, tmp_path / "new", clock) as store:
        assert values(store.topic("t")) == [b"0", b"1", b"2", b"3"]
        assert values(store.topic("new")) == [b"4"]


def test_an_append_that_waits_for_a_restore_too_long_fails_and_names_it(tmp_path: Path, clock: Clock) -> None:
    """What it appended is durable here, and published once nobody restores any more."""
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock, settings=COLD)) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        restoring = server.begun()
        server.pass_(POLL_SECONDS)
        begun = server.now

        def pause(_: float) -> None:
            server.pass_(0.5)
            restoring.check()

        store.context.publisher = Publisher(store.tierer.tails, pause=pause, monotonic=lambda: server.now)
        with pytest.raises(
            tiered.ColdStorageError,
            match="durable on this disk.*is being restored by ann@other.*do not append them again",
        ) as caught:
            topic.append(b"1")
        assert caught.value.retryable
        assert LOCKED_SECONDS_MAX <= server.now - begun < LOCKED_SECONDS_MAX + 2
        restoring.give_up()
        server.watch(store)
        topic.flush()
        assert topic.append(b"2").offset == 2
    with restored(server, tmp_path / "new", clock) as store:
        assert values(store.topic("t")) == [b"0", b"1", b"2"]


def test_a_pass_leaves_alone_what_publishes_and_fails_nothing(tmp_path: Path, clock: Clock) -> None:
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock)) as store:
        store.create_topic("t").append(b"0", sync=True)
        store.tier()
        server.begun()
        server.pass_(POLL_SECONDS)
        store.topic("t").append(b"1", sync=True)
        clock.advance(60)
        report = store.tier()
        assert (report.done, report.failed) == ((), ())
        assert {action.kind for action, _ in report.skipped} == {"ship_tail"}
        assert all("is being restored by ann@other" in why for _, why in report.skipped)
        with pytest.raises(tiered.ColdStorageError, match="is being restored"):
            store.delete_topic("t")
        server.pass_(INTENT_SECONDS + 2)
        assert [action.kind for action, _ in store.tier().done] == ["ship_tail"]
        assert not (tmp_path / "data" / "topics" / "t" / "0" / "fenced.json").exists()


def test_the_first_claim_of_a_partition_waits_for_a_restore_that_began_a_moment_ago(
    tmp_path: Path, clock: Clock
) -> None:
    """The next look for one is not due yet."""
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock)) as store:
        meta = store.create_topic("t", partitions=2).opened.meta
        committer_of(store, meta, 0)
        server.begun()
        with pytest.raises(RestoreUnderWay, match="ann@other"):
            committer_of(store, meta, 1)
        assert not any(key.endswith("/1/head.json") for key in server.objects)
        assert read_fence(tmp_path / "data/topics/t/1") is None


@pytest.mark.parametrize("dies", [False, True])
def test_a_topic_that_a_restore_takes_over_while_it_is_announced(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """It waits for the restore, and is announced where that died: it is no reason to fence anything."""
    monkeypatch.setattr(Claims, "announce_partitions", lambda *_: None)  # the bucket did not answer then
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock)) as store:
        topic = store.create_topic("t")
        committer_of(store, topic.opened.meta, 0)
        topic.add_partitions(2)

        def begins(request: str) -> None:
            if request.startswith("get") and request.endswith("topic.json"):
                server.hook = lambda _: None
                lineage = server.begun().lineage
                StoreDocuments(server).adopt_topic("t", topic.opened.meta.topic_id, lineage)
                server.pass_(INTENT_SECONDS + 2 if dies else 0)

        server.hook = begins
        if dies:
            committer_of(store, topic.opened.meta, 1)
            announced = StoreDocuments(server).topic("t")
            assert announced is not None
            assert announced["partitions"] == 2
        else:
            with pytest.raises(RestoreUnderWay, match="ann@other"):
                committer_of(store, topic.opened.meta, 1)
        assert read_fence(tmp_path / "data/topics/t/1") is None


def test_a_restore_comes_through_beside_threads_that_publish_back_to_back(
    tmp_path: Path, clock: Clock
) -> None:
    """All that was acknowledged is in it; then each of them is told that it is fenced, and nothing else."""
    server = Server()
    acknowledged: list[list[bytes]] = [[], [], [], []]
    with ThreadPoolExecutor(4) as pool, open_at(tmp_path / "data", server, clock, settings=COLD) as store:
        server.watch(store)
        through = threading.Event()

        def pause(_: float) -> None:
            # Until the restore is through, time passes by requests alone: on a busy machine these threads would run the clock
            # beyond its intent while it waits for the processor.
            if through.wait(0.001):
                server.pass_(0.5)

        store.context.publisher = Publisher(store.tierer.tails, pause=pause, monotonic=lambda: server.now)
        # Time passes by itself here: each request takes some.
        server.hook = lambda _: server.pass_(0.01)
        topic = store.create_topic("t", partitions=4)
        for partition in range(4):
            topic.append(b"first", partition=partition)

        def appends(partition: int) -> Exception:
            number = 0
            while True:
                value = b"%d" % number
                try:
                    topic.append(value, partition=partition)
                except tiered.TieredError as error:
                    return error
                acknowledged[partition].append(value)
                number += 1

        busy = [pool.submit(appends, partition) for partition in range(4)]
        while not all(acknowledged):
            assert not any(item.done() for item in busy)
        with restored(server, tmp_path / "new", clock) as new:
            through.set()
            assert [type(item.result()) for item in busy] == [tiered.Fenced] * 4
            for partition in range(4):
                got = values(new.topic("t").scan(partitions=partition))
                assert got == [b"first", *acknowledged[partition]]
                new.topic("t").append(b"new", partition=partition)


# -- processes --------------------------------------------------------------------------------------

DIES = """
import os, signal, sys
import tiered
from tiered.cold.manifest.restores import IntentHolder
from tiered.cold.manifest.commit import Committer
from tests.support.stores import stepwise

owner, name = {"begin": (IntentHolder, "begin"), "claim": (Committer, "claim"), "finish": (IntentHolder, "finish")}[sys.argv[3]]
real = getattr(owner, name)

def step(self, **options):
    real(self, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, step)
tiered.restore(sys.argv[1], sys.argv[2], settings=stepwise())
"""


def killed_restore(url: str, path: Path, after: str) -> None:
    """A restore in a process of its own, which is killed."""
    done = fork_server.run(
        [sys.executable, "-c", DIES, url, str(path), after],
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)}, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("after", ["begin", "claim"])
def test_a_restore_that_is_killed_leaves_the_host_in_charge(tmp_path: Path, clock: Clock, after: str) -> None:
    """Of what was not claimed yet, at once after the intent ran out, in the process that runs and in the next one."""
    bucket, url = tmp_path / "bucket", f"file://{tmp_path}/bucket"
    now = 0.0
    policies = stepwise(offload={"after": "4h", "tail_interval": "1ms"})

    def opened() -> tiered.Store:
        store = tiered.open(tmp_path / "data", cold=url, settings=policies, host=Host(clock=clock))
        store.tierer.claims.store.restores = IntentWatch(monotonic=lambda: now)
        return store

    def kept(store: tiered.Store, value: bytes) -> list[str]:
        """Append to both partitions and tier; return what came of it."""
        told = []
        for partition in (0, 1):
            try:
                store.topic("t").append(value, partition=partition, sync=True)
            except tiered.Fenced as error:
                told.append(str(error))
        clock.advance(60)
        # Of two actions that ask at once, the later one goes by what was known before.
        with suppress(RestoreUnderWay):
            store.tierer.claims.store.check_restores()
        report, problems = store.tierer.full_pass()
        return (
            told + [why for _, why in (*report.failed, *report.skipped)] + [str(error) for error in problems]
        )

    def in_bucket() -> dict[int, list[Any]]:
        with tiered.open(url, host=Host(clock=clock)) as far:
            return {item: values(far.topic("t").scan(partitions=item)) for item in (0, 1)}

    with opened() as store:
        store.create_topic("t", partitions=2)
        assert kept(store, b"0") == []
        killed_restore(url, tmp_path / "new", after)
        now += POLL_SECONDS
        told = kept(store, b"1")
        assert any("is being restored by" in text for text in told)
        assert in_bucket() == {0: [b"0"], 1: [b"0"]}
        let_intent_lapse(bucket)
        now += POLL_SECONDS
        told = kept(store, b"2")
        free = {0, 1} if after == "begin" else {1}
        assert bool(told) == (after == "claim")
        assert all("fenced" in text for text in told)
        for partition, found in in_bucket().items():
            assert found == ([b"0", b"1", b"2"] if partition in free else [b"0"])
    with opened() as store:
        store.create_topic("later").append(b"new", sync=True)
        told = kept(store, b"3")
        assert all("fenced" in text for text in told)
        assert values(store.topic("later")) == [b"new"]
    with tiered.restore(url, tmp_path / "new", settings=stepwise()) as new:
        for partition, found in in_bucket().items():
            assert values(new.topic("t").scan(partitions=partition)) == found
            assert found == ([b"0", b"1", b"2", b"3"] if partition in free else [b"0"])
        assert values(new.topic("later")) == [b"new"]


def test_a_restore_that_is_killed_once_all_is_its_own_is_repeated_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    """In its own directory; elsewhere, too, as it holds nothing any more."""
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "data", cold=url, settings=stepwise(), host=Host(clock=clock)) as store:
        store.create_topic("t").append(b"0", sync=True)
        store.topic("t").roll()
        store.tier((clock() + 5 * 3_600_000_000) // 1000)
    killed_restore(url, tmp_path / "new", "finish")
    with pytest.raises(tiered.ConfigError, match="cut short"):
        tiered.open(tmp_path / "new")
    with tiered.restore(url, tmp_path / "new", settings=stepwise()) as new:
        assert values(new.topic("t")) == [b"0"]


def test_a_second_restore_beside_a_live_one_is_refused_and_leaves_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    """Not even a mark: another time, or another bucket, can be restored there."""
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "data", cold=url, settings=stepwise(), host=Host(clock=clock)) as store:
        store.create_topic("t").append(b"0", sync=True)
        store.topic("t").roll()
        store.tier((clock() + 5 * 3_600_000_000) // 1000)
    restoring = IntentHolder(StoreDocuments(open_object_store(url)), "1", "ann@other (process 5)")
    restoring.begin()
    with pytest.raises(tiered.StoreLocked, match=r"is being restored by ann@other \(process 5\): wait"):
        tiered.restore(url, tmp_path / "new", settings=stepwise())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["writer.lock"]
    restoring.finish()
    tiered.restore(url, tmp_path / "new", settings=stepwise()).close()


def test_a_restore_that_fails_lets_the_host_go_on_at_once(tmp_path: Path, clock: Clock) -> None:
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock, settings=COLD)) as store:
        topic = store.create_topic("t")
        topic.append(b"0")

        def refuses(request: str) -> None:
            if request.startswith("put") and request.endswith("topic.json"):
                away(request)

        server.hook = refuses
        with pytest.raises(tiered.ColdStorageError):
            restored(server, tmp_path / "new", clock)
        server.hook = lambda _: None
        server.pass_(POLL_SECONDS)
        begun = server.now
        topic.append(b"1")
        assert server.now == begun


def test_a_restore_that_never_comes_first_says_what_to_do(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever commits does not pause: a release before this one."""
    server = Server()
    with server.watch(open_at(tmp_path / "data", server, clock, settings=COLD)) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        monkeypatch.setattr(IntentWatch, "check", lambda *_: None)
        monkeypatch.setattr("tiered.cold.manifest.commit.CLAIM_SECONDS", 0.05)
        inside = False

        def before(request: str) -> None:
            nonlocal inside
            if request.startswith("put") and request.endswith("head.json") and not inside:
                inside = True
                topic.append(b"x")
                inside = False

        server.hook = before
        with pytest.raises(
            tiered.ColdStorageError, match="first, .* times.*stop its writer and its daemon.*repeat this"
        ):
            restored(server, tmp_path / "new", clock)
        server.hook = lambda _: None
        topic.append(b"on it goes")


def test_of_two_restores_that_race_one_goes_on(tmp_path: Path, clock: Clock, file_url: str) -> None:
    """The one that began first, and stood still for so long, ends with `Fenced`, and its directory is no store."""
    offloaded(tmp_path / "data", file_url, clock)

    fs = Overtaken(file_url, tmp_path, clock)
    with pytest.raises(tiered.Fenced, match="restored elsewhere"):
        tiered.restore(file_url, tmp_path / "first", settings=stepwise(), host=Host(clock=clock, fs=fs))
    with pytest.raises(tiered.ConfigError, match="cut short"):
        tiered.open(tmp_path / "first")
    assert fs.second is not None
    fs.second.close()


class Watched(OsFileSystem):
    """The files of a restore during which something happens: after it has read the bucket, and before it changes it."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens: Callable[[], object] | None = happens

    def rename(self, source: Path, target: Path) -> None:
        if target.name == "restoring.json" and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        super().rename(source, target)


def test_what_the_host_publishes_while_a_restore_begins_is_no_loss_for_a_later_restore(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """That one goes back to a time at which the first had begun, and the records were not there."""
    with open_store(tmp_path / "data", file_url, clock, settings=BY_TAILS) as store:
        topic = store.create_topic("t")

        def publish(value: bytes) -> None:
            topic.append(value)
            topic.flush()
            clock.advance(2)
            by_tail_pass(store, clock)

        publish(b"1")
        begun_us = clock.advance(2)

        def go_on() -> None:
            clock.advance(2)
            publish(b"2")

        fs = Watched(go_on)
        with tiered.restore(
            file_url, tmp_path / "first", settings=BY_TAILS, host=Host(clock=clock, fs=fs)
        ) as first:
            assert values(first.topic("t")) == [b"1", b"2"]
        store.abandon()
    at = begun_us // 1000 + 1000
    with tiered.restore(
        file_url, tmp_path / "second", at=at, settings=BY_TAILS, host=Host(clock=clock)
    ) as second:
        assert values(second.topic("t")) == [b"1"]
        assert second.topic("t").append(b"next") == (0, 1)
