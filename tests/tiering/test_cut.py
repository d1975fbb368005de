"""The object in which the log begins is rewritten without its deleted records, and no live record is ever in doubt."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import Killed
from tests.support.stores import HOUR_US, open_store, tier
from tests.support.watched_bucket import WatchedBucket
from tests.support.watched_bucket import host as watched
from tests.tiering.merged_store import (
    PARTS,
    bits,
    cold_of,
    entries_of,
    fill,
    head_of,
    kinds,
    merging,
    names_in,
    offload_all,
)
from tiered.cli.verify import open_tiers
from tiered.cold.manifest.keys import parse_object_name
from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep.inspect import read_facts
from tiered.cold.upkeep.rebuild import plan_rebuild
from tiered.engine.host import Host
from tiered.errors import ColdStorageError
from tiered.monitor.explain import explain_topic
from tiered.policies.policy import OffloadRule
from tiered.repair.repair import repair_store
from tiered.tiering.rewriter import rewrite

CUT = {"cut": {"deleted": 0.25}, "merge": "off"}


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Any:
    with open_store(tmp_path / "data", url, clock, settings=merging(**CUT)) as found:
        yield found


def test_the_first_object_is_cut_once_enough_of_it_is_deleted(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    """Read by the writer, from the bucket, by a snapshot of before, after a sweep, and from what a restore made."""
    topic = fill(store)
    offload_all(store, clock)
    before, small = bits(topic.scan()), entries_of(url)
    topic.delete_before(62)
    assert kinds(tier(store, clock, 3 * HOUR_US)) == ["expire"]
    assert kinds(tier(store, clock, 3 * HOUR_US)) == [], "12 of 50 are less than a quarter"
    topic.delete_before(63)
    with tiered.open(url) as elsewhere, tiered.open(url) as uncached:
        old, unread = (reader.topic("t").scan(start_offset=62) for reader in (elsewhere, uncached))
        assert [x.kind for x in store.plan().actions] == ["expire"], (
            "the manifest says first where the log begins"
        )
        tier(store, clock, 0)
        (action,) = store.plan().actions
        assert (action.kind, action.base_offset, action.end_offset) == ("cut", 63, 100)
        assert action.reason == "26% of the object is deleted >= cut.deleted 25%"
        assert store.plan().upload_bytes == action.bytes < small[1].bytes
        assert store.plan().cost.monthly_usd < 0
        (piece, *_) = explain_topic(store.watched(), "t").partitions[0].pieces
        assert (piece.next.kind, piece.next.why) == ("cut", action.reason)
        assert kinds(tier(store, clock, 0)) == ["cut"]
        assert kinds(tier(store, clock, 0)) == []
        first, *rest = entries_of(url)
        assert (first.base_offset, first.end_offset, first.record_count) == (63, 100, 37)
        assert parse_object_name(first.name).base_offset == 63
        assert rest == small[2:]
        assert (first.segment_ids, first.origin_hash) == (small[1].segment_ids, small[1].origin_hash)
        assert names_in(url) == {first.name, *(entry.name for entry in small)}
        assert bits(topic.scan()) == before[63:]
        assert bits(old) == before[62:]
        store.sweep()
        store.sweep()
        assert names_in(url) == {first.name, *(entry.name for entry in rest)}
        assert bits(elsewhere.topic("t").scan()) == before[63:]
        with pytest.raises(tiered.OffsetOutOfRange):
            unread.to_arrow()
    assert store.verify(deep=True).problems == ()
    store.close()
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(url, tmp_path / "data", settings=merging(**CUT), host=Host(clock=clock)) as again:
        assert bits(again.topic("t").scan()) == before[63:]
        assert again.topic("t").offsets()[0].start == 63
        assert again.verify(deep=True).problems == ()


@pytest.mark.parametrize(
    ("rules", "share"),
    [
        ({}, None),
        ({"table": {"every": "1m"}}, 0.25),
        ({"table": {"every": "1m"}, "cut": "off"}, None),
        ({"table": {"every": "1m"}, "cut": {"deleted": 0}}, 0),
        ({"table": "off", "cut": {"deleted": 0.5}}, 0.5),
    ],
)
def test_a_topic_with_a_table_is_cut_unless_its_policy_says_otherwise(
    rules: dict[str, Any], share: float | None
) -> None:
    settings = tiered.Settings.model_validate({"policies": {"default": rules}})
    assert settings.policy_for("t").cut_share == share
    again = tiered.Settings.model_validate({"policies": {"default": {}, "t": rules}})
    assert again.policy_for("t").cut_share == share
    assert pickle.loads(pickle.dumps(again)).policy_for("t").cut_share == share


def test_a_merged_object_is_cut_and_merged_again_without_the_segments_that_are_gone(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    settings = merging(cut={"deleted": 0})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill(store)
        offload_all(store, clock)
        before = bits(topic.scan())
        tier(store, clock, 5 * HOUR_US)
        (large,) = entries_of(url)
        topic.delete_before(120)
        tier(store, clock, 5 * HOUR_US)
        assert kinds(tier(store, clock, 5 * HOUR_US)) == ["cut"]
        (part,) = entries_of(url)
        assert (part.base_offset, part.end_offset, part.generation) == (120, 400, 2)
        assert set(part.segment_ids) < set(large.segment_ids)
        assert len(part.segment_ids) == PARTS - 2
        cold = cold_of(url)
        segments = read_facts(cold.store, cold.keys.data(part.name)).segments
        assert [(x.base_offset, x.end_offset) for x in segments] == [
            (120, 150), *((i, i + 50) for i in range(150, 400, 50))
        ]  # fmt: skip
        fill(store, 4 * PARTS)
        offload_all(store, clock)
        while tier(store, clock, 9 * HOUR_US).done:
            pass
        assert len(entries_of(url)) == 1
        assert len(bits(topic.scan())) == 280 + 4 * PARTS * 50
        assert bits(topic.scan(end_offset=400)) == before[120:]
        assert store.verify(deep=True).problems == ()


def test_a_local_file_that_reaches_below_the_start_holds_the_cut_back(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """It is evicted, compared and repaired by an object with all of its offsets (promise P5)."""
    settings = merging(**CUT, local_retention={"age": "8h"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill(store)
        tier(store, clock, 0)
        before = bits(topic.scan())
        topic.delete_before(80)
        assert kinds(tier(store, clock, 5 * HOUR_US)) == ["expire"]
        assert kinds(tier(store, clock, 5 * HOUR_US)) == []
        assert store.verify(deep=True).problems == ()
        assert kinds(tier(store, clock, 9 * HOUR_US)) == ["evict_local"] * (PARTS - 1)
        assert kinds(tier(store, clock, 9 * HOUR_US)) == ["cut"]
        assert bits(topic.scan()) == before[80:]


@pytest.mark.extended
def test_a_cut_may_be_killed_before_each_of_its_requests(tmp_path: Path, clock: Clock) -> None:
    """Then every record is there, the next pass cuts, and a sweep leaves what the manifest names and nothing else."""
    bucket = WatchedBucket()
    options = {"settings": merging(**CUT), "host": watched(bucket, clock)}

    def opened() -> tiered.Store:
        return tiered.open(tmp_path / "s", cold="memory://watched", **options)

    store = opened()
    topic = fill(store, 3)
    before = bits(topic.scan())
    offload_all(store, clock)
    topic.delete_before(80)
    tier(store, clock, 0)
    image, objects = tmp_path / "image", dict(bucket.objects)
    store.close()
    shutil.copytree(tmp_path / "s", image)
    number = reached = 0
    while number == reached:
        shutil.rmtree(tmp_path / "s")
        shutil.copytree(image, tmp_path / "s")
        bucket.objects.clear()
        bucket.objects.update(objects)
        store = opened()
        with bucket.killing_before(number):
            store.tier()
            reached -= 1  # it came to the end
        reached += 1
        assert bits(store.topic("t").scan()) == before[80:]
        store.close()
        with opened() as store:
            assert bits(store.topic("t").scan()) == before[80:]
            while store.tier().done:
                pass
            assert [x.base_offset for x in head_in(store).inline] == [80, 100]
            store.sweep()
            store.sweep()
            assert len([key for key in bucket.objects if key.endswith(".parquet")]) == 2
            assert bits(store.topic("t").scan()) == before[80:]
            assert store.verify(deep=True).problems == ()
        number += 1
    assert number > 8


def head_in(store: tiered.Store) -> Any:
    loaded = store.context.tiers.cold(store.topic("t").opened.meta, 0).load()
    assert loaded is not None
    return loaded.head


@pytest.mark.parametrize("start", [90, 130])
@pytest.mark.parametrize("moment", ["while it is written", "before it is committed"])
def test_the_start_offset_may_move_while_a_cut_runs(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, moment: str, start: int
) -> None:
    """Within the object, or beyond it: nothing that was deleted comes back, nothing live goes."""
    topic = fill(store)
    offload_all(store, clock)
    before = bits(topic.scan())
    topic.delete_before(70)
    tier(store, clock, 0)

    def move(committer: Any) -> None:
        topic.delete_before(start)
        committer.raise_start_offset(start)

    def slow(committer: Any, *inputs: Any, **options: Any) -> int:
        if moment == "while it is written":
            move(committer)
            return rewrite(committer, *inputs, **options)
        commit = committer.commit

        def late(change: Any) -> Any:
            committer.commit = commit
            move(committer)
            return commit(change)

        committer.commit = late
        return rewrite(committer, *inputs, **options)

    with monkeypatch.context() as patch:
        patch.setattr("tiered.tiering.object_actions.rewrite", slow)
        tier(store, clock, 0)
    assert bits(topic.scan()) == before[start:]
    while tier(store, clock, 0).done:
        pass
    assert entries_of(url)[0].base_offset == start
    assert bits(topic.scan()) == before[start:]
    assert store.verify(deep=True).problems == ()


@pytest.mark.parametrize("fault", ["a value", "a row"])
def test_a_cut_that_differs_from_the_live_records_is_not_published(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """What it would replace is the only copy."""
    topic = fill(store)
    offload_all(store, clock)
    topic.delete_before(70)
    tier(store, clock, 0)
    entries = entries_of(url)

    def careless(upload: Any, schema: Any, rows: Any, facts: Any, **options: Any) -> Any:
        def spoilt() -> Any:
            for batch in rows:
                columns = list(batch.columns)
                columns[0] = pa.array([*columns[0].to_pylist()[:-1], "other"])
                if fault == "a row":
                    columns = [column[:-1] for column in columns]
                yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

        return write_object(upload, schema, spoilt(), facts, **options)

    monkeypatch.setattr("tiered.cold.upkeep.rewrite.write_object", careless)
    ((action, message),) = store.tier(clock() // 1000).failed
    assert action.kind == "cut"
    assert message.startswith("CorruptionError: ")
    assert entries_of(url) == entries


def test_a_committer_that_knows_of_no_deletion_refuses_a_cut(
    store: tiered.Store, url: str, clock: Clock
) -> None:
    """The start offset that counts is the manifest's at the time of the commit."""
    from tests.support.stores import committer_of

    topic = fill(store)
    offload_all(store, clock)
    entries = entries_of(url)
    with pytest.raises(ColdStorageError, match="cover only a part"):
        meta = topic.opened.meta
        rewrite(committer_of(store, meta, 0), entries[:1], meta, OffloadRule(), start_offset=20)
    assert entries_of(url) == entries


def test_damage_stops_the_cut_and_is_not_tried_again(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    topic = fill(store)
    offload_all(store, clock)
    topic.delete_before(70)
    tier(store, clock, 0)
    entries = entries_of(url)
    victim = next((tmp_path / "bucket").rglob(entries[0].name))
    content = bytearray(victim.read_bytes())
    content[entries[0].row_groups[0].length // 2] ^= 1
    victim.write_bytes(content)
    ((action, message),) = store.tier(clock() // 1000).failed
    assert action.kind == "cut"
    assert entries[0].name in message
    (row,) = store.status()
    assert entries[0].name in row.damaged[0]
    tier(store, clock, 0)
    assert entries_of(url) == entries


@pytest.mark.parametrize("undone", [False, True], ids=["the deletion holds", "a restore undid it"])
def test_a_rebuilt_manifest_begins_where_the_log_does(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, undone: bool
) -> None:
    """The cut and its source are both there. Where the log begins before the cut, the source has what the cut lacks."""
    topic = fill(store)
    offload_all(store, clock)
    before = bits(topic.scan())
    topic.delete_before(70)
    tier(store, clock, 0)
    source = entries_of(url)[0]
    assert kinds(tier(store, clock, 0)) == ["cut"]
    head, cold = head_of(url), cold_of(url)
    start = 50 if undone else 70
    planned = plan_rebuild(cold, store_id=head.store_id, schemas=head.schemas, start_offset=start)
    assert planned.problems == ()
    assert planned.head.start_offset == start
    assert planned.head.inline == ((source, *head.inline[1:]) if undone else head.inline)
    if undone:
        return
    next((tmp_path / "bucket").rglob("head.json")).unlink()
    path = tmp_path / "data"
    store.close()
    its = tiered.Settings.model_validate({"store": {"path": str(path)}})
    report = repair_store(open_tiers(its), rebuild_manifest=True)
    assert [item.result for item in report.repairs] == ["done"]
    with open_store(path, None, clock, settings=merging(**CUT)) as again:
        assert bits(again.topic("t").scan()) == before[70:]
        assert kinds(tier(again, clock, 0)) == []


def test_a_rebuild_after_a_restore_undid_the_deletion_prefers_the_sources_to_a_merge_of_the_cut(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """The merge has the highest generation, and lacks the records below the cut, which are live again."""
    settings = merging("2d", cut={"deleted": 0})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill(store)
        offload_all(store, clock)
        before, small = bits(topic.scan()), entries_of(url)
        clock.advance(60)
        at = clock() // 1000
        topic.delete_before(70)
        clock.advance(60)
        assert "cut" in kinds(tier(store, clock, 0)) + kinds(tier(store, clock, 0))
        tier(store, clock, 5 * HOUR_US)
        (merged,) = entries_of(url)
        assert (merged.base_offset, merged.end_offset) == (70, PARTS * 50)
    path = tmp_path / "then"
    with tiered.restore(url, path, at=at, settings=settings, host=Host(clock=clock)) as then:
        then.tier(clock() // 1000)
    assert entries_of(url) == small
    next((tmp_path / "bucket").rglob("head.json")).unlink()
    its = tiered.Settings.model_validate({"store": {"path": str(path)}})
    report = repair_store(open_tiers(its), rebuild_manifest=True)
    assert [item.result for item in report.repairs] == ["done"]
    assert entries_of(url) == small
    with open_store(path, None, clock, settings=settings) as again:
        assert bits(again.topic("t").scan()) == before


def test_a_restore_to_a_time_before_the_deletion_has_the_deleted_records(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    """The source of the cut is in the bucket still; the newest state has the cut."""
    topic = fill(store)
    offload_all(store, clock)
    before = bits(topic.scan())
    clock.advance(3600)
    at = clock() // 1000
    clock.advance(3600)
    topic.delete_before(70)
    tier(store, clock, 0)
    assert kinds(tier(store, clock, 0)) == ["cut"]
    store.close()
    for name, when, start in (("now", None, 70), ("then", at, 0)):
        with tiered.restore(url, tmp_path / name, at=when, host=Host(clock=clock)) as again:
            assert bits(again.topic("t").scan()) == before[start:]
            assert again.verify(deep=True).problems == ()


def test_a_cut_on_a_page_of_many(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries below the start offset are on its page, too."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr("tiered.format.manifest_changes.PAGE_ENTRIES_MAX", 4)
    topic = fill(store, 2 * PARTS)
    offload_all(store, clock)
    before = bits(topic.scan())
    pages = head_of(url).pages
    assert pages[0].count > 2
    start = pages[0].end_offset - 20
    topic.delete_before(start)
    tier(store, clock, 0)
    assert kinds(tier(store, clock, 0)) == ["cut"]
    after = head_of(url).pages
    assert (after[0].base_offset, after[0].count) == (start, 1)
    assert replace(after[0], name="") != replace(pages[0], name="")
    assert after[1:] == pages[1:]
    assert bits(topic.scan()) == before[start:]
    assert store.verify(deep=True).problems == ()


def test_a_killed_cut_leaves_an_orphan_that_a_sweep_takes(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(store)
    offload_all(store, clock)
    topic.delete_before(70)
    tier(store, clock, 0)
    named = {entry.name for entry in entries_of(url)}

    def killed(self: object, change: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("tiered.cold.manifest.commit.Committer.commit", killed)
        with pytest.raises(Killed):
            store.tier((clock() + HOUR_US) // 1000)
    assert {entry.name for entry in entries_of(url)} == named
    assert kinds(tier(store, clock, 0)) == ["cut"]
    for _ in range(2):
        store.sweep()
    assert names_in(url) == {entry.name for entry in entries_of(url)}
