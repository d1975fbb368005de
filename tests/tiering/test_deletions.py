"""A deletion that is killed, or of which the bucket does not hear: the topic is whole, or it is gone and the bucket follows."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from botocore.retries.standard import ExponentialBackoff

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.faulty_proxy import Proxy, Rule, proxying
from tests.support.paths import ROOT
from tests.support.stores import (
    EVICT_US,
    OFFLOAD_US,
    evict_all,
    in_threads,
    open_store,
    stepwise,
    tier,
    values,
)
from tiered.cold.manifest.store_documents import DELETE_AGAIN, DELETED, DELETED_IN_BUCKET, StoreDocuments
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.tiering.deletions import finish_deletions
from tiered.warm.catalog import deletions

NOBODY = "http://127.0.0.1:9"
NOT_FINISHED = "the deletion of topic 't' is not finished"

DELETES = """
    import os, sys, tiered
    from tests.support.stores import stepwise
    from tests.torture.steps import Steps
    steps = Steps(lambda _: None, "^before ", int(sys.argv[2]), "kill")
    tiered.open(sys.argv[1], settings=stepwise(), host=steps.host()).delete_topic("t")
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again without a pause."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    monkeypatch.setitem(StoreDocuments.__init__.__kwdefaults__, "sleep", lambda seconds: None)


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    with proxying(s3_endpoint) as proxy:
        yield proxy


def at(endpoint: str) -> tiered.Settings:
    return tiered.Settings.model_validate({**stepwise().to_json(), "cold": {"endpoint_url": endpoint}})


def with_a_topic(root: Path, url: str, clock: Clock, endpoint: str | None = None) -> tiered.Store:
    """An open store whose topic has a record in the bucket alone, one in both tiers, and one on the disk alone."""
    settings = stepwise() if endpoint is None else at(endpoint)
    store = open_store(root, url, clock, settings=settings)
    topic = store.create_topic("t")
    for value in (b"evicted", b"published"):
        topic.append(value, sync=True)
        topic.roll()
        tier(store, clock, EVICT_US if value == b"evicted" else OFFLOAD_US)
    tier(store, clock, EVICT_US)
    topic.append(b"here", sync=True)
    return store


def marks(url: str, name: str = "t") -> list[bool]:
    """Of every topic that ever had this name in the bucket, whether it has a tombstone."""
    store = open_object_store(url, ColdOptions())
    bucket = StoreDocuments(store)
    try:
        found = [bucket.read_topic(name, topic_id) for topic_id in bucket.topic_ids(name)]
        return sorted(DELETED in topic for topic in found if topic is not None)
    finally:
        store.close()


def hidden(root: Path) -> list[str]:
    """What lies beside the topics, without the id."""
    return sorted(path.name.partition("-")[0] for path in (root / "topics").glob(".*"))


def refuse_marks(proxy: Proxy, kind: str = "500") -> None:
    """From now on no document of a topic reaches the bucket."""
    proxy.rules.append(Rule(kind, "PUT", r"topic\.json"))


def cut_after_the_rename(root: Path) -> None:
    """What a kill leaves there."""
    (root / "topics" / "t").rename(root / "topics" / f".deleting-{uuid4()}")


@pytest.mark.extended
def test_a_deletion_that_is_killed_at_any_step_loses_nothing_and_is_finished(
    tmp_path: Path, clock: Clock
) -> None:
    """Before each change of the disk and each request in turn, by SIGKILL.

    Never does a topic live here that is dead in the bucket. Where it lives it goes on, and then the disk is lost.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole, gone, unheard = 0, 0, 0
    for step in range(1, 60):
        root, url = tmp_path / f"data-{step}", f"file://{tmp_path}/bucket-{step}"
        with_a_topic(root, url, clock).close()
        command = [sys.executable, "-c", textwrap.dedent(DELETES), str(root), str(step)]
        done = fork_server.run(command, env=environment, timeout=60, check=False)
        assert done.returncode in (0, -9)
        with tiered.open(root, read_only=True) as beside:
            lives = beside.topics() == ["t"]
            assert beside.verify(deep=True).problems == ()
            waiting = beside.status().deletions
        assert marks(url) == [True] or lives or waiting == ("t",)
        assert not (lives and marks(url) == [True])
        unheard += waiting == ("t",) and marks(url) == [False]
        with open_store(root, None, clock) as store:
            assert hidden(root) == []
            assert store.status().deletions == ()
            assert marks(url) == [not lives]
            whole, gone = whole + lives, gone + (not lives)
            topic = store.topic("t") if lives else store.create_topic("t")
            topic.append(b"more")
            topic.roll()
            evict_all(store, clock)
            assert store.verify(deep=True).problems == ()
        shutil.rmtree(root)
        with tiered.restore(url, tmp_path / f"back-{step}", settings=stepwise()) as store:
            old = [b"evicted", b"published", b"here"] if lives else []
            assert values(store.topic("t")) == [*old, b"more"]
        if done.returncode == 0:
            break
    else:
        pytest.fail("a deletion takes more steps than this test tries")
    assert min(whole, gone, unheard) > 2


def test_what_does_not_hear_of_a_deletion_beforehand_keeps_it_from_beginning(
    tmp_path: Path, clock: Clock, s3_bucket: str
) -> None:
    """Nobody answers, so nobody knows whether the topic is still this store's."""
    with_a_topic(tmp_path / "data", s3_bucket, clock).close()
    with open_store(tmp_path / "data", None, clock, settings=at(NOBODY)) as store:
        with pytest.raises(tiered.ColdStorageError, match="did not answer"):
            store.delete_topic("t")
        store.topic("t").append(b"more", sync=True)
        assert hidden(tmp_path / "data") == []
    with open_store(tmp_path / "data", None, clock, settings=at(os.environ["AWS_ENDPOINT_URL"])) as store:
        assert values(store.topic("t")) == [b"evicted", b"published", b"here", b"more"]
        store.delete_topic("t")
    assert marks(s3_bucket) == [True]


@pytest.mark.parametrize("kind", ["reset after", "500 after"])
def test_an_answer_to_the_tombstone_that_is_lost_is_looked_up(
    tmp_path: Path, clock: Clock, s3_bucket: str, proxy: Proxy, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with with_a_topic(tmp_path / "data", s3_bucket, clock, proxy.url) as store:
        proxy.rules.append(Rule(kind, "PUT", r"topic\.json", times=1))
        with caplog.at_level(logging.WARNING):
            store.delete_topic("t")
        said = [record.getMessage() for record in caplog.records if record.name.startswith("tiered")]
        assert (said, proxy.struck[kind]) == ([], 1)
        assert (hidden(tmp_path / "data"), store.status().deletions) == ([], ())
    assert marks(s3_bucket) == [True]


def test_a_topic_is_gone_though_the_bucket_does_not_hear_of_it(
    tmp_path: Path, clock: Clock, s3_bucket: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """For all who have the disk; its name is taken until the bucket has heard."""
    root = tmp_path / "data"
    with with_a_topic(root, s3_bucket, clock, proxy.url) as store:
        old = store.topic("t")
        refuse_marks(proxy)
        with caplog.at_level(logging.WARNING, "tiered.deletions"):
            store.delete_topic("t")
        assert NOT_FINISHED in caplog.text
        assert hidden(root) == [".deleting"]
        with pytest.raises(tiered.TopicNotFound):
            old.append(b"lost")
        with pytest.raises(tiered.TopicNotFound):
            store.delete_topic("t")
        with pytest.raises(tiered.ColdStorageError, match=NOT_FINISHED) as refused:
            store.create_topic("t")
        assert refused.value.retryable
        assert "tiered tier" in str(refused.value)
        with tiered.open(root, read_only=True, settings=at(proxy.url)) as beside:
            assert beside.topics() == store.topics() == []
            assert beside.status().deletions == store.status().deletions == ("t",)
            assert store.status().to_json()["deletions"] == ("t",)
            report = beside.verify(deep=True)
        assert report.problems == ()
        assert [NOT_FINISHED in str(item) for item in report.unknown] == [True]
        store.sweep()
        with pytest.raises(tiered.ColdStorageError, match=NOT_FINISHED):
            store.tier()
        assert marks(s3_bucket) == [False]
        proxy.rules.clear()
        new = store.create_topic("t")
        assert marks(s3_bucket) == [True]
        assert hidden(root) == []
        new.append(b"new")
        new.roll()
        evict_all(store, clock)
        assert values(new) == [b"new"]
        assert marks(s3_bucket) == [False, True]
        assert store.verify(deep=True).problems == ()


def test_a_pass_goes_on_with_it_unless_the_store_is_paused(
    tmp_path: Path, clock: Clock, s3_bucket: str
) -> None:
    """Of whatever process."""
    root = tmp_path / "data"
    with_a_topic(root, s3_bucket, clock).close()
    with open_store(root, None, clock, tierer=True) as store:
        cut_after_the_rename(root)
        store.pause()
        store.tier()
        assert marks(s3_bucket) == [False]
        store.resume()
        store.tier()
        assert marks(s3_bucket) == [True]
        assert hidden(root) == []


def test_a_store_opens_at_once_without_a_bucket_that_could_hear(
    tmp_path: Path, clock: Clock, s3_bucket: str
) -> None:
    """And goes on with all other topics."""
    root = tmp_path / "data"
    with with_a_topic(root, s3_bucket, clock) as store:
        store.create_topic("other").append(b"v", sync=True)
    cut_after_the_rename(root)
    begun = time.monotonic()
    with open_store(root, None, clock, settings=at(NOBODY)) as store:
        assert time.monotonic() - begun < 10
        assert store.topics() == ["other"]
        store.topic("other").append(b"w", sync=True)
        with pytest.raises(tiered.ColdStorageError, match=NOT_FINISHED):
            store.create_topic("t")
        assert store.create_topic("third").append(b"v") == (0, 0)
    assert marks(s3_bucket) == [False]
    with open_store(root, None, clock, settings=at(os.environ["AWS_ENDPOINT_URL"])) as store:
        assert (marks(s3_bucket), hidden(root)) == ([True], [])
        assert values(store.topic("other")) == [b"v", b"w"]


def test_several_that_go_on_at_once_do_it_once(tmp_path: Path, clock: Clock, s3_bucket: str) -> None:
    root = tmp_path / "data"
    with (
        with_a_topic(root, s3_bucket, clock) as store,
        open_store(root, None, clock, tierer=True) as beside,
    ):
        cut_after_the_rename(root)
        found: list[object] = []
        works = [
            lambda it=it: found.append(finish_deletions(it.tierer.claims, it.context.catalog))
            for it in (store, beside, store, beside)
        ]
        in_threads(*works)
        assert found == [{}] * 4
        assert (marks(s3_bucket), hidden(root)) == ([True], [])


def test_a_deletion_that_a_restore_overtook_ends_here_alone(
    tmp_path: Path, clock: Clock, s3_bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The bucket is another store's by then, in which the topic lives."""
    root = tmp_path / "data"
    with_a_topic(root, s3_bucket, clock).close()
    cut_after_the_rename(root)
    with tiered.restore(s3_bucket, tmp_path / "back", settings=stepwise()) as restored:
        with caplog.at_level(logging.WARNING, "tiered.deletions"), open_store(root, None, clock) as store:
            assert (store.topics(), hidden(root)) == ([], [])
        assert "is deleted on this disk only" in caplog.text
        assert marks(s3_bucket) == [False]
        assert values(restored.topic("t")) == [b"evicted", b"published"]


def test_a_deletion_that_says_no_more_of_which_topic_it_is_is_named_by_its_place(
    tmp_path: Path, clock: Clock
) -> None:
    root = tmp_path / "data"
    with_a_topic(root, f"file://{tmp_path}/bucket", clock).close()
    cut_after_the_rename(root)
    document = next((root / "topics").glob(".deleting-*")) / "topic.json"
    document.write_bytes(document.read_bytes()[:-9])
    for missing in (False, True):
        if missing:
            document.unlink()
        with open_store(root, None, clock) as store:
            assert store.status().deletions == (document.parent.name,)
            assert str(document) in [item.where for item in store.verify()]
            with pytest.raises(tiered.CorruptionError, match="not finished"):
                store.tier()


def test_a_deletion_without_a_bucket_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    """Also where it was cut short."""
    for cut in (False, True):
        with open_store(tmp_path / "data", None, clock) as store:
            store.create_topic("t").append(b"old", sync=True)
            if not cut:
                store.delete_topic("t")
        if cut:
            cut_after_the_rename(tmp_path / "data")
            assert [item.name for item in deletions(tmp_path / "data")] == ["t"]
        with open_store(tmp_path / "data", None, clock) as store:
            assert (hidden(tmp_path / "data"), store.topics()) == ([], [])


# -- what earlier releases left --------------------------------------------------------------------


def dead_in_the_bucket_alone(root: Path, url: str, clock: Clock) -> None:
    """What a kill within a deletion by an earlier release left: the tombstone came first."""
    with with_a_topic(root, url, clock) as store:
        topic = store.topic("t")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        topic.append(b"more", sync=True)
        bucket = StoreDocuments(store.context.tiers.object_store)
        bucket.tombstone("t", topic.opened.meta.topic_id, deleted_us=clock())


@pytest.mark.extended
@pytest.mark.parametrize("ahead_us", [OFFLOAD_US, EVICT_US], ids=["offload", "evict"])
def test_a_topic_that_is_dead_in_the_bucket_alone_is_fenced(
    tmp_path: Path, clock: Clock, s3_bucket: str, ahead_us: int
) -> None:
    """What it published would be swept; all that it has stays readable, and it can be deleted again."""
    root, advice = tmp_path / "data", DELETE_AGAIN.format(name="t")
    dead_in_the_bucket_alone(root, s3_bucket, clock)
    with open_store(root, None, clock) as store:
        topic = store.topic("t")
        if ahead_us == OFFLOAD_US:
            topic.roll()
        files = set((root / "topics/t/0").glob("*.log"))
        report = store.tier((clock() + ahead_us) // 1000)
        assert {action.kind for action, _ in report.done} <= {"seal", "compress"}
        assert ["Fenced" in why and advice in why for _, why in report.failed] == [True]
        assert files <= set((root / "topics/t/0").glob("*.log"))
        with pytest.raises(tiered.Fenced, match=DELETED_IN_BUCKET):
            topic.append(b"lost", sync=True)
        assert advice in store.status().partitions[0].problem
        assert values(topic) == [b"evicted", b"published", b"here", b"more"]
        problems = store.verify().problems
        assert [(item.reason, item.advice) for item in problems] == [(DELETED_IN_BUCKET, advice)]
    with open_store(root, None, clock) as store:
        store.delete_topic("t")
        new = store.create_topic("t")
        new.append(b"new")
        new.roll()
        evict_all(store, clock)
        assert values(new) == [b"new"]
        assert store.verify(deep=True).problems == ()


# -- commands --------------------------------------------------------------------------------------


def command(root: Path, *arguments: str) -> tuple[int, str, str]:
    done = fork_server.run(
        [sys.executable, "-m", "tiered", *arguments, "--path", str(root)],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_command_says_what_is_not_finished(
    tmp_path: Path, clock: Clock, s3_bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    with_a_topic(root, s3_bucket, clock, proxy.url).close()
    monkeypatch.setenv("TIERED_COLD__ENDPOINT_URL", proxy.url)
    refuse_marks(proxy, "403")
    code, output, errors = command(root, "delete", "t", "--yes", "--json")
    assert (code, json.loads(output)["deleted_records"], NOT_FINISHED in errors) == (0, 3, True)
    assert "topic t is not finished" in command(root, "status")[1]
    assert json.loads(command(root, "status", "--json")[1])["deletions"] == ["t"]
    code, _, errors = command(root, "verify")
    assert (code, NOT_FINISHED in errors) == (1, True)
    proxy.rules.clear()
    assert command(root, "tier")[0] == 0
    assert "not finished" not in command(root, "status")[1]
    assert marks(s3_bucket) == [True]
