"""Copies of hot objects on the local disk, and moves into another storage class, on a whole store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import Killed
from tests.support.s3_server import s3_process
from tests.support.stores import open_store, values
from tests.support.watched_bucket import WatchedBucket, away, host
from tiered.cli.verify import open_tiers
from tiered.cold.fetch.local_copies import LocalCopies
from tiered.cold.object_store.options import ColdOptions
from tiered.policies.policy import Policy
from tiered.repair.repair import repair_store

VALUES = [os.urandom(1000) for _ in range(300)]


def settings(**rules: Any) -> tiered.Settings:
    default = {
        "roll": "off",
        "compress": "off",
        "offload": {"after": "0s", "tail_interval": "off"},
        "local_retention": {"age": "0s"},
        "merge": "off",
        "scrub": "off",
        **rules,
    }
    store = {"sync_interval": "1h", "cache_bytes": 0, "cache_memory_bytes": 0}
    return tiered.Settings.model_validate(
        {"store": store, "policies": {"default": default}, "sweep": {"every": "off"}}
    )


class Bucket(WatchedBucket):
    """Remembers the storage class of each connection."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[str] = []

    def connect(self, _url: str, options: ColdOptions) -> Bucket:
        self.classes.append(options.storage_class)
        return self

    def ranges(self) -> int:
        return sum(request.startswith("range") for request in self.asked)


def evicted(path: Path, bucket: Bucket, clock: Clock, **rules: Any) -> tiered.Store:
    """A store whose records are in the bucket alone, but for the newest file."""
    its = replace(host(bucket, clock), open_bucket=bucket.connect)
    store = tiered.open(path, cold="s3://watched/events", settings=settings(**rules), host=its)
    topic = store.create_topic("t", exist_ok=True)
    if not topic.offsets()[0].end:
        topic.append_many(VALUES)
        topic.roll()
        store.tier()
        store.tier()
        store.close()  # or its memory would serve every read
        return evicted(path, bucket, clock, **rules)
    return store


def age_marks(path: Path, seconds: float) -> None:
    """Let the counts and copies have been touched earlier."""
    for file in path.glob("promoted/**/*"):
        if file.is_file():
            at = file.stat().st_mtime - seconds
            os.utime(file, (at, at))


def kinds(report: tiered.TierReport) -> list[str]:
    assert not report.failed
    return [action.kind for action, _ in report.done]


@pytest.fixture
def now_clock(clock: Clock) -> Clock:
    """Counts and copies have the times of their files, so the store's clock must be about right."""
    import time

    clock.now_us = time.time_ns() // 1000
    return clock


def test_what_is_fetched_again_and_again_gets_a_copy_that_serves_every_read(
    tmp_path: Path, now_clock: Clock
) -> None:
    bucket = Bucket()
    promote = {"reads": 2, "within": "1h", "keep": "2h"}
    with evicted(tmp_path / "s", bucket, now_clock, promote=promote) as store:
        topic = store.topic("t")
        for _ in range(3):  # within one minute: counted once
            assert values(topic.scan()) == VALUES
        assert kinds(store.tier()) == []
        age_marks(tmp_path / "s", 61)
        assert values(topic.scan()) == VALUES
        assert kinds(store.tier()) == ["promote"]
        assert kinds(store.tier()) == []
        before = bucket.ranges()
        assert values(topic.scan()) == VALUES
        assert topic.scan(columns=["offset"]).to_arrow().num_rows == 300
        assert bucket.ranges() == before, "no read of a copy asks the bucket"

        (copy,) = (tmp_path / "s").glob("promoted/**/*.parquet")
        with copy.open("r+b") as file:
            file.seek(100)
            file.write(b"damaged")
        assert values(topic.scan()) == VALUES
        assert bucket.ranges() > before
        assert not copy.exists(), "a damaged copy is dropped, never believed"

        age_marks(tmp_path / "s", 61)
        values(topic.scan())
        age_marks(tmp_path / "s", 61)
        values(topic.scan())
        assert kinds(store.tier()) == ["promote"]
        age_marks(tmp_path / "s", 3 * 3600)
        assert kinds(store.tier()) == ["demote"]
        assert list((tmp_path / "s").glob("promoted/**/*.parquet")) == []

        values(topic.scan())
        store.delete_topic("t")
        store.tier()
        assert list((tmp_path / "s").glob("promoted/*/*")) == []


def test_a_pinned_time_is_copied_without_a_read_and_a_kill_leaves_nothing_half_written(
    tmp_path: Path, now_clock: Clock
) -> None:
    bucket = Bucket()
    with evicted(tmp_path / "s", bucket, now_clock, pin={"since": "2020-01-01"}) as store:
        assert len(list((tmp_path / "s").glob("promoted/**/*.parquet"))) == 0

        def kill(request: str) -> None:
            if request.startswith("range"):
                raise Killed

        bucket.hook = kill
        with pytest.raises(Killed):
            store.tier()
        bucket.hook = lambda request: None
        (left := (tmp_path / "s/promoted/x.parquet.1.tmp")).write_bytes(b"of a killed pass")
        left.rename(next((tmp_path / "s").glob("promoted/**/data")) / left.name)
        assert kinds(store.tier()) == ["promote"]
        names = [file.name for file in (tmp_path / "s").glob("promoted/**/*") if file.is_file()]
        assert len(names) == 1
        assert names[0].endswith(".parquet")


def test_no_copy_where_the_chunks_fail(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "promoted")

    def chunks() -> Any:
        yield b"first"
        raise tiered.ColdStorageError("gone", retryable=True)

    with pytest.raises(tiered.ColdStorageError):
        copies.write("t/data/o", chunks())
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    assert copies.read("t/data/o", 0, 5) is None


RULE = {"storage_class": {"name": "STANDARD_IA", "after": "2h"}}


def test_an_old_object_moves_once_whatever_kills_the_pass(tmp_path: Path, clock: Clock) -> None:
    """Killed before each of its requests in turn; then what is there is read, and nothing is left to do."""
    bucket = Bucket()
    store = evicted(tmp_path / "s", bucket, clock, **RULE)
    clock.advance(2 * 3600)
    (action,) = store.plan().actions
    assert (action.kind, action.reason) == (
        "change_class",
        "age 2h >= storage_class.after 2h, to STANDARD_IA",
    )
    assert store.plan().cost.monthly_usd < 0
    for number in range(40):
        with bucket.killing_before(number):
            store.tier()
            break
        assert values(store.topic("t").scan()) == VALUES
        store.close()
        store = evicted(tmp_path / "s", bucket, clock, **RULE)
    else:
        raise AssertionError("it never comes to an end")
    bucket.hook = lambda request: None
    assert number > 5
    assert "STANDARD_IA" in bucket.classes
    cold = store.context.tiers.cold(store.topic("t").opened.meta, 0)
    loaded = cold.load()
    assert loaded is not None
    assert [entry.storage_class for entry in cold.entries(loaded.head)] == ["STANDARD_IA"]
    assert values(store.topic("t").scan()) == VALUES
    assert store.plan().actions == ()
    assert not store.verify(deep=True).problems
    store.close()
    other = tiered.restore(
        "s3://watched/events", tmp_path / "r", host=replace(host(bucket, clock), open_bucket=bucket.connect)
    )
    with other:
        assert values(other.topic("t").scan()) == VALUES


@pytest.mark.extended
def test_a_rebuilt_manifest_knows_in_which_class_an_object_is(tmp_path: Path, clock: Clock) -> None:
    """Else the rule would move it once more, and pay for that again."""
    with s3_process() as server:
        cold = {"endpoint_url": server.url, "region": "us-east-1"}
        chosen = settings(**RULE).to_json()
        chosen["store"]["path"] = str(tmp_path / "s")
        its = tiered.Settings.model_validate({**chosen, "cold": cold})
        with open_store(tmp_path / "s", "s3://bucket/prefix", clock, settings=its) as store:
            topic = store.create_topic("t")
            topic.append_many(VALUES)
            topic.roll()
            assert kinds(store.tier()) == ["offload"]
            now_ms = clock() // 1000 + 2 * 3_600_000
            assert kinds(store.tier(now_ms)) == ["evict_local", "change_class"]
            partition = store.context.tiers.cold(topic.opened.meta, 0)
            partition.store.delete([partition.keys.head])
        assert [item.result for item in repair_store(open_tiers(its), rebuild_manifest=True).repairs] == [
            "done"
        ]
        with open_store(tmp_path / "s", None, clock, settings=its) as store:
            assert kinds(store.tier(now_ms)) == []
            loaded = store.context.tiers.cold(store.topic("t").opened.meta, 0).load()
            assert loaded is not None
            assert [entry.storage_class for entry in loaded.head.inline] == ["STANDARD_IA"]


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "damaged"])
def test_a_damaged_object_is_uploaded_again_from_its_copy(tmp_path: Path, clock: Clock, sound: bool) -> None:
    """The local segment was evicted: the copy is the only good one, unless it is damaged too."""
    pinned = settings(pin={"since": "2020-01-01"})
    its = tiered.Settings.model_validate({**pinned.to_json(), "store": {"path": str(tmp_path / "s")}})
    with open_store(tmp_path / "s", f"file://{tmp_path}/bucket", clock, settings=its) as store:
        topic = store.create_topic("t")
        topic.append_many(VALUES)
        topic.roll()
        while store.tier().done:
            pass
    spoilt = [next((tmp_path / "bucket").rglob("*.parquet"))]
    spoilt += [] if sound else [next((tmp_path / "s/promoted").rglob("*.parquet"))]
    for path in spoilt:
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    report = repair_store(open_tiers(its), deep=True)
    with open_store(tmp_path / "s", None, clock, settings=its) as store:
        if sound:
            assert "from its local copy" in report.repairs[0].action
            assert store.verify(deep=True).problems == ()
            assert values(store.topic("t")) == VALUES
        else:
            assert [item.result for item in report.repairs] == ["refused"]
            assert "row group fails its checksum" in report.repairs[0].why


def test_a_pause_holds_from_the_next_action_of_a_pass_that_runs(tmp_path: Path, clock: Clock) -> None:
    bucket = Bucket()
    with evicted(tmp_path / "s", bucket, clock) as store:
        topic = store.topic("t")
        for value in (b"a", b"b", b"c"):
            topic.append(value, sync=True)
            topic.roll()
        assert [action.kind for action in store.plan().actions] == ["offload"] * 3

        def pause(request: str) -> None:
            if request.startswith("put") and request.endswith(".parquet"):
                store.tierer.pauses.pause("t", "looking")

        bucket.hook = pause
        report = store.tier()
        bucket.hook = lambda request: None
        assert kinds(report) == ["offload"], "what is under way is finished"
        assert len(report.skipped) == 2
        assert all("looking" in why for _, why in report.skipped)
        store.tierer.pauses.resume("t")
        assert kinds(store.tier())[:2] == ["offload", "offload"]


def test_a_short_disk_offloads_early_and_evicts_but_not_what_is_pinned(tmp_path: Path, clock: Clock) -> None:
    class Disk:
        total, free = 1 << 30, 1 << 20

    bucket = Bucket()
    rules = {"offload": {"after": "1d", "tail_interval": "off"}, "local_retention": {"free_disk": "10%"}}
    its = replace(host(bucket, clock), open_bucket=bucket.connect, disk_usage=lambda _: Disk())
    chosen = settings(**rules)
    pinned = {
        **chosen.policies,
        "pinned": chosen.policies["default"].model_copy(
            update={"pin": Policy().pin.model_copy(update={"topic": True})}
        ),
    }
    chosen = chosen.model_copy(update={"policies": pinned})
    with tiered.open(tmp_path / "s", cold="s3://watched/events", settings=chosen, host=its) as store:
        for name in ("t", "pinned"):
            topic = store.create_topic(name)
            topic.append_many(VALUES)
            topic.roll()
        assert sorted(kinds(store.tier())) == ["offload", "offload"]
        report = store.tier()
        assert [(action.kind, action.topic) for action, _ in report.done] == [("evict_local", "t")]
        assert "free_disk" in report.done[0][0].reason
        assert values(store.topic("t").scan()) == VALUES
        assert kinds(store.tier()) == []


def test_a_long_pass_on_a_short_disk_evicts_what_it_has_published(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan evicts nothing that it publishes itself: carried out for hours, it would leave appends without room."""

    class Disk:
        total, free = 1 << 30, 1 << 20

    seconds = [0.0]
    monkeypatch.setattr("tiered.policies.replan.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    bucket = Bucket()
    chosen = settings(local_retention={"free_disk": "10%"})
    its = replace(host(bucket, clock), open_bucket=bucket.connect, disk_usage=lambda _: Disk())
    with tiered.open(tmp_path / "s", cold="s3://watched/events", settings=chosen, host=its) as store:
        topic = store.create_topic("t")
        for _ in range(3):
            topic.append_many(VALUES)
            topic.roll()

        def slow(request: str) -> None:
            seconds[0] += 31 * request.endswith(".parquet")

        bucket.hook = slow
        report = store.tier()
        assert [(action.kind, action.base_offset) for action, _ in report.done] == [
            ("offload", 0), ("evict_local", 0), ("offload", 300), ("evict_local", 300), ("offload", 600)
        ]  # fmt: skip
        assert (report.failed, report.skipped) == ((), ())


def test_copies_stay_while_the_bucket_is_away(tmp_path: Path, clock: Clock) -> None:
    """What its manifest names is unknown then, which is not "nothing" (promise P10)."""
    bucket = Bucket()
    with evicted(tmp_path / "data", bucket, clock, pin={"since": "2020-01-01"}) as store:
        store.tier()
        copies = store.context.tiers.copies
        assert copies is not None
        prefix = store.context.tiers.cold(store.topic("t").opened.meta, 0).keys.data_prefix
        held = set(copies.survey(prefix).copies)
        assert held
        bucket.hook = away
        report, problems = store.tierer.full_pass()
        assert (report.done, len(problems)) == ((), 1)
        assert set(copies.survey(prefix).copies) == held
        bucket.hook = lambda request: None
