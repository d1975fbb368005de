"""A store comes back from its bucket alone, appends on densely, and the old one is fenced (promises P1, P9)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.recovery.dying_host import Countdown, Killed, dying_host
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.restores import offloaded, restored
from tests.support.scripted_server import refusing
from tests.support.store_history import head_of
from tests.support.stores import (
    EVICT_US,
    HOUR_US,
    evict_all,
    handle_of,
    let_intent_lapse,
    local_segments,
    open_store,
    stepwise,
    tier,
    values,
)
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tiered.cold.object_store.protocol import Bytes
from tiered.warm.partition_directory import read_lineage

TYPED = pa.schema([("carrier", pa.string()), ("delay", pa.int64())])


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.extended
def test_everything_that_was_offloaded_is_there_and_appends_go_on(
    tmp_path: Path, clock: Clock, url: str
) -> None:
    """Topics, schemas, partitions, start offsets and records; the next offset is the bucket's end."""
    with open_store(tmp_path / "data", url, clock) as store:
        records = store.create_topic("records", partitions=3)
        typed = store.create_topic("typed", schema=TYPED, key="carrier")
        store.create_topic("never-offloaded")
        store.create_topic("gone").append(b"x")
        for number in range(20):
            records.append(b"%d" % number, partition=number % 2)
        typed.append_batch(pa.table({"carrier": ["UA", "AA"], "delay": [1, None]}))
        typed.roll()
        typed.add_columns(pa.schema([("plane", pa.string())]))
        typed.append_batch(pa.table({"carrier": ["DL"], "delay": [3], "plane": ["N1"]}))
        records.delete_before(4, partition=0)
        for topic in (records, typed, store.topic("gone")):
            topic.roll()
        evict_all(store, clock)
        store.delete_topic("gone")
        store_id = store.store_id
        before = {name: store.topic(name).scan().to_arrow() for name in ("records", "typed")}
    shutil.rmtree(tmp_path / "data")

    with restored(url, tmp_path / "data", clock) as store:
        assert store.store_id == store_id
        assert store.topics() == ["records", "typed"]
        for name, table in before.items():
            assert store.topic(name).scan().to_arrow().equals(table)
        assert store.topic("typed").schema.names == ["carrier", "delay", "plane"]
        records = store.topic("records")
        assert {p: tuple(r)[1:] for p, r in records.offsets().items()} == {0: (4, 10), 1: (0, 10), 2: (0, 0)}
        assert records.append(b"next", partition=0) == (0, 10)
        assert records.append(b"next", partition=1) == (1, 10)
        assert records.append(b"first", partition=2) == (2, 0)
        store.topic("typed").append({"carrier": "B6", "delay": 4, "plane": None})
        with pytest.raises(tiered.OffsetOutOfRange):
            records.scan(partitions=[0], start_offset=3)
        for name in store.topics():
            store.topic(name).roll()
        evict_all(store, clock)
    with open_store(tmp_path / "data", None, clock) as store, tiered.open(url) as bucket:
        for name in store.topics():
            assert bucket.topic(name).scan().to_arrow().equals(store.topic(name).scan().to_arrow())
        assert len(values(store.topic("records"))) == 19


def test_no_record_is_downloaded(tmp_path: Path, clock: Clock, url: str) -> None:
    """Cold stays cold: one empty segment a partition."""
    offloaded(tmp_path / "data", url, clock, count=1000)
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock) as store:
        (row,) = store.status()
        assert (row.warm.records, row.cold.records, row.lag_records, row.problem) == (0, 1000, 0, "")
        assert local_segments(tmp_path / "data", "t") == ["00000000000000001000-0.log"]
        assert tier(store, clock, EVICT_US).done == ()


def test_a_shipped_tail_is_the_end_of_the_log(tmp_path: Path, clock: Clock, url: str) -> None:
    """The segment it belongs to is never sealed; the new one begins where the tail ends."""
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"a"] * 5)
        topic.flush()
        tier(store, clock, HOUR_US)
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock, settings=settings) as store:
        topic = store.topic("t")
        assert topic.append(b"b").offset == 5
        topic.roll()
        evict_all(store, clock)
        assert values(topic) == [b"a"] * 5 + [b"b"]


def test_a_restored_store_can_be_restored_again(tmp_path: Path, clock: Clock, url: str) -> None:
    offloaded(tmp_path / "data", url, clock, count=2)
    for turn in range(3):
        shutil.rmtree(tmp_path / "data")
        with restored(url, tmp_path / "data", clock) as store:
            assert store.topic("t").append(b"turn %d" % turn).offset == 2 + turn
            store.topic("t").roll()
            evict_all(store, clock)
    lineages = head_of(url).lineages
    assert [start for _, start in lineages] == [0, 2, 3, 4]
    with tiered.open(url) as bucket:
        assert values(bucket.topic("t")) == [b"0", b"1", b"turn 0", b"turn 1", b"turn 2"]


class NoConditions(WatchedBucket):
    """A server that ignores conditions."""

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        return super().put(key, data)


def test_a_bucket_without_conditional_writes_is_not_restored(tmp_path: Path, clock: Clock) -> None:
    """Nobody would notice a running host that commits between two steps of the restore."""
    bucket = NoConditions()
    good = WatchedBucket()
    good.objects = bucket.objects
    with open_at(tmp_path / "old", good, clock) as store:
        store.create_topic("t").append(b"x", sync=True)
        store.tierer.tail_pass()
    before = dict(bucket.objects)
    with pytest.raises(tiered.ConfigError, match='cold.conditional_writes = "off"'):
        tiered.restore(URL, tmp_path / "new", host=host(bucket, clock))
    assert bucket.objects == before
    assert not (tmp_path / "new").exists()


# -- kills -----------------------------------------------------------------------------------------


def steps_of_a_restore(url: str, path: Path, clock: Clock) -> int:
    count = Countdown(-1)
    tiered.restore(url, path, settings=stepwise(), host=dying_host(clock, count)).close()
    return -1 - count.left


@pytest.mark.extended
def test_a_restore_killed_at_any_step_is_finished_by_the_next(tmp_path: Path, clock: Clock) -> None:
    """It opens only once it is whole, and whichever restore finishes, all records are there, once."""
    template = tmp_path / "template"
    with open_store(tmp_path / "data", f"file://{template}", clock) as store:
        topic = store.create_topic("t", partitions=2)
        for number in range(6):
            topic.append(b"%d" % number, partition=0)
        topic.delete_before(2)
        topic.roll()
        evict_all(store, clock)
    shutil.copytree(template, tmp_path / "counted")
    steps = steps_of_a_restore(f"file://{tmp_path}/counted", tmp_path / "whole", clock)
    assert steps > 50
    for step in thinned(range(steps), 5):
        bucket, path = tmp_path / f"bucket-{step}", tmp_path / f"path-{step}"
        shutil.copytree(template, bucket)
        url = f"file://{bucket}"
        with pytest.raises(Killed):
            tiered.restore(url, path, settings=stepwise(), host=dying_host(clock, Countdown(step)))
        if (path / "store.json").exists():
            store = open_store(path, None, clock)
        else:
            if (path / "restoring.json").exists():
                for options in ({}, {"read_only": True}, {"tierer": True}):
                    with pytest.raises(tiered.ConfigError, match="cut short"):
                        tiered.open(path, **options)  # type: ignore[arg-type]
            store = restored(url, path, clock)
        with store:
            topic = store.topic("t")
            assert values(topic) == [b"2", b"3", b"4", b"5"]
            assert topic.append(b"next", partition=0).offset == 6
            assert topic.append(b"next", partition=1).offset == 0
            topic.roll()
            evict_all(store, clock)
        with tiered.open(url) as reader:
            assert values(reader.topic("t")) == [b"2", b"3", b"4", b"5", b"next", b"next"]
        shutil.rmtree(bucket)
        shutil.rmtree(path)


def test_what_was_cut_short_is_no_part_of_the_next_restore(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """Between the two, another machine was restored and went on."""
    offloaded(tmp_path / "data", file_url, clock)
    step = 0
    while not local_segments(tmp_path / "new", "t"):
        step += 1
        with pytest.raises(Killed):
            tiered.restore(
                file_url, tmp_path / "new", settings=stepwise(), host=dying_host(clock, Countdown(step))
            )
    let_intent_lapse(tmp_path / "bucket")
    with restored(file_url, tmp_path / "between", clock) as store:
        store.topic("t").append(b"between")
        store.topic("t").roll()
        evict_all(store, clock)
    with restored(file_url, tmp_path / "new", clock) as store:
        assert local_segments(tmp_path / "new", "t") == ["00000000000000000011-0.log"]
        assert values(store.topic("t"))[-1] == b"between"


# -- refusals --------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_an_empty_directory_is_taken(tmp_path: Path, clock: Clock, file_url: str) -> None:
    offloaded(tmp_path / "data", file_url, clock)
    before = contents(tmp_path / "bucket")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path, words in (("data", "is not empty"), ("other", "notes.txt"), ("file", "no directory")):
        with pytest.raises(tiered.ConfigError, match=words):
            restored(file_url, tmp_path / path, clock)
    assert contents(tmp_path / "other") == {"notes.txt": b"mine"}
    assert contents(tmp_path / "bucket") == before
    with open_store(tmp_path / "data", None, clock) as store:
        assert store.topic("t").append(b"on").offset == 10
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    restored(file_url, tmp_path / "mount", clock).close()


@pytest.mark.parametrize(
    "url", ["./data", "", "s3://", "nothing://x", "s3:/key:hush@b/p", "s3://key:hush@b/p"]
)
def test_what_is_no_bucket_is_refused(tmp_path: Path, clock: Clock, url: str) -> None:
    elsewhere = tiered.Settings.model_validate({"cold": {"url": "s3://elsewhere/p"}})
    for chosen in (None, elsewhere):
        with pytest.raises(tiered.ConfigError) as caught:
            restored(url, tmp_path / "new", clock, settings=chosen)
        assert "hush" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_bucket_without_a_store_and_one_that_is_not_there(
    tmp_path: Path, clock: Clock, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tiered.ConfigError, match="no store at"):
        restored(s3_bucket, tmp_path / "new", clock)
    with refusing(404, "NoSuchBucket") as endpoint, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(tiered.ColdStorageError, match="does not exist"):
            restored("s3://no-such-bucket-at-all/p", tmp_path / "new", clock)
    other = stepwise().to_json() | {"cold": {"url": "s3://elsewhere/p"}}
    with pytest.raises(tiered.ConfigError, match="elsewhere"):
        restored(s3_bucket, tmp_path / "new", clock, settings=tiered.Settings.model_validate(other))
    assert not (tmp_path / "new").exists()


def paged(path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offload so that the manifest has pages."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 2)
    with open_store(path, url, clock) as store:
        topic = store.create_topic("t")
        for number in range(8):
            topic.append(b"%d" % number)
            topic.roll()
        evict_all(store, clock)
        assert head_of(url).pages


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[str, Callable[[Path], None], type[tiered.TieredError]]] = {
    "store.json": ("store.json", flip, tiered.CorruptionError),
    "topic.json": ("t/*/topic.json", flip, tiered.CorruptionError),
    "no topic.json": ("t/*/topic.json", Path.unlink, tiered.CorruptionError),
    "head": ("t/*/0/head.json", flip, tiered.CorruptionError),
    "page": ("t/*/0/pages/*", flip, tiered.CorruptionError),
    "no page": ("t/*/0/pages/*", Path.unlink, tiered.ColdStorageError),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_bucket_is_refused_and_nothing_changes(
    tmp_path: Path, clock: Clock, file_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither here nor there: the old store can still go on."""
    paged(tmp_path / "data", file_url, clock, monkeypatch)
    pattern, damage, error = DAMAGE[kind]
    damage(next((tmp_path / "bucket").glob(pattern)))
    before = contents(tmp_path / "bucket")
    with pytest.raises(error):
        restored(file_url, tmp_path / "new", clock)
    assert not (tmp_path / "new").exists()
    assert contents(tmp_path / "bucket") == before


def test_a_head_that_is_gone_is_refused_where_its_objects_are_left(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """A new head would begin at offset 0 and give out offsets twice (promises P1, P10)."""
    offloaded(tmp_path / "data", file_url, clock)
    next((tmp_path / "bucket").glob("t/*/0/head.json")).unlink()
    with pytest.raises(tiered.CorruptionError, match=r"head\.json is missing beside objects"):
        restored(file_url, tmp_path / "new", clock)
    assert not (tmp_path / "new").exists()


def test_the_lineages_are_where_they_belong(tmp_path: Path, clock: Clock, s3_bucket: str) -> None:
    """On disk and in the head, so that a later restore fences this disk too; in the header of the first segment."""
    offloaded(tmp_path / "old", s3_bucket, clock, count=4)
    with restored(s3_bucket, tmp_path / "new", clock) as store:
        assert read_lineage(tmp_path / "new" / "topics" / "t" / "0") == head_of(s3_bucket).lineages[-1][0]
        store.topic("t").append(b"x")
        store.topic("t").roll()
        (sealed, *_) = handle_of(store, store.topic("t").opened.meta, 0).local().segments
        assert sealed.header.lineage_epoch == head_of(s3_bucket).lineages[-1][0]
    assert head_of(s3_bucket).lineages[-1][1] == 4
