"""Small objects become large ones, and nobody who reads, restores, kills or sweeps meanwhile notices."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import Killed
from tests.support.stores import HOUR_US, committer_of, open_store, tier
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
from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep.inspect import read_facts, read_facts_of_entry
from tiered.cold.upkeep.rebuild import plan_rebuild, publish_rebuilt, rebuild_page
from tiered.cold.upkeep.rewrite import rewrite_objects
from tiered.engine.host import Host
from tiered.errors import ColdStorageError
from tiered.format.manifest import Head
from tiered.policies.policy import OffloadRule
from tiered.repair.repair import repair_store
from tiered.tiering.rewriter import rewrite as merge_and_publish


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Any:
    with open_store(tmp_path / "data", url, clock, settings=merging()) as found:
        yield found


def test_small_objects_are_merged_once_and_read_as_before(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    """By the writer, from the bucket, by a snapshot of before, from what a restore made, and by bounds."""
    topic = fill(store)
    offload_all(store, clock)
    before = bits(topic.scan())
    small = entries_of(url)
    assert len(small) == PARTS
    with tiered.open(url) as elsewhere:
        old = elsewhere.topic("t").scan()
        plan = store.plan((clock() + 5 * HOUR_US) // 1000)
        assert [item.kind for item in plan.actions] == ["merge"]
        assert plan.upload_bytes == sum(entry.bytes for entry in small)
        assert plan.requests.reads > PARTS
        assert kinds(tier(store, clock, 5 * HOUR_US)) == ["merge"]
        assert kinds(tier(store, clock, 5 * HOUR_US)) == []
        (large,) = entries_of(url)
        assert large.segment_ids[0] == small[-1].segment_ids[0]
        assert set(large.segment_ids) == {entry.segment_ids[0] for entry in small}
        assert large.bytes < sum(entry.bytes for entry in small)
        assert (large.origin_hash, large.last_append_us) == (small[-1].origin_hash, small[-1].last_append_us)
        assert names_in(url) == {large.name, *(entry.name for entry in small)}
        assert bits(topic.scan()) == before
        assert bits(old) == before, "a snapshot of before reads the objects that were replaced"
        assert bits(elsewhere.topic("t").scan(start_offset=77, end_offset=222)) == before[77:222]
        # What was replaced goes, and a snapshot that outlived the grace finds the same records elsewhere.
        assert store.sweep().objects == PARTS or store.sweep().objects == PARTS
        assert names_in(url) == {large.name}
        assert bits(old) == before
    assert store.verify(deep=True).problems == ()
    store.close()
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(url, tmp_path / "data", settings=merging(), host=Host(clock=clock)) as again:
        assert bits(again.topic("t").scan()) == before
        fill(again, 2)
        offload_all(again, clock)
        assert len(bits(again.topic("t").scan())) == len(before) + 100
        assert again.verify(deep=True).problems == ()
        assert again.plan((clock() + 5 * HOUR_US) // 1000).actions == ()


def test_the_facts_of_every_segment_stay_in_the_object(store: tiered.Store, url: str, clock: Clock) -> None:
    """Through two merges, on several pages; and an object of one segment says what it always said."""
    fill(store)
    offload_all(store, clock)
    cold = cold_of(url)
    small = entries_of(url)
    before = [
        item for entry in small for item in read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry)
    ]
    assert [read_facts(cold.store, cold.keys.data(entry.name)).merged for entry in small] == [()] * PARTS
    tier(store, clock, 5 * HOUR_US)
    clock.advance(3600)
    fill(store, 3 * PARTS)
    offload_all(store, clock)
    tier(store, clock, 5 * HOUR_US)
    tier(store, clock, 5 * HOUR_US)
    (large,) = entries_of(url)
    after = read_facts_of_entry(cold.store, cold.keys.data(large.name), large)
    assert list(after[:PARTS]) == before
    assert len(after) == 4 * PARTS
    assert [item.base_offset for item in after] == list(range(0, 4 * PARTS * 50, 50))
    assert large.generation == 2


def test_a_merge_that_dies_before_its_commit_leaves_an_orphan_and_nothing_else(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(store)
    offload_all(store, clock)
    before, head = bits(topic.scan()), head_of(url)

    def killed(self: object, change: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("tiered.cold.manifest.commit.Committer.commit", killed)
        with pytest.raises(Killed):
            store.tier((clock() + 5 * HOUR_US) // 1000)
    assert head_of(url) == head
    (orphan,) = names_in(url) - {entry.name for entry in head.inline}
    # Status and retention by bytes count what is named, and nothing left over.
    (row,) = store.status()
    assert (row.cold.segments, row.cold.bytes) == (PARTS, sum(entry.bytes for entry in head.inline))
    assert bits(topic.scan()) == before
    tier(store, clock, 5 * HOUR_US)
    (large,) = entries_of(url)
    assert large.name != orphan
    assert bits(topic.scan()) == before
    (row,) = store.status()
    assert (row.cold.segments, row.cold.bytes) == (1, large.bytes)
    gone = {key for _ in range(2) for part in store.sweep().parts for key in part.deleted}
    assert orphan in {key.rpartition("/")[2] for key in gone}
    assert names_in(url) == {large.name}
    assert bits(topic.scan()) == before


@pytest.mark.parametrize("moment", ["while it is written", "before it is committed"])
def test_the_start_offset_may_move_while_a_merge_runs(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Within the first input, or beyond all of them: nothing that was deleted comes back."""
    topic = fill(store)
    offload_all(store, clock)
    for offset in (70, PARTS * 50):
        if offset > 70:
            clock.advance(3600)
            fill(store)
            offload_all(store, clock)
            clock.advance(10 * 3600)

        def meddling(committer: Any, *inputs: Any, offset: int = offset, **options: Any) -> int:
            if moment == "while it is written":
                topic.delete_before(offset)
                committer.raise_start_offset(offset)
                return merge_and_publish(committer, *inputs, **options)
            commit = committer.commit

            def late(change: Any) -> Head:
                committer.commit = commit
                topic.delete_before(offset)
                committer.raise_start_offset(offset)
                return commit(change)

            committer.commit = late
            return merge_and_publish(committer, *inputs, **options)

        before = bits(topic.scan())
        start = topic.offsets()[0].start
        with monkeypatch.context() as patch:
            patch.setattr("tiered.tiering.object_actions.rewrite", meddling)
            store.tier((clock() + 5 * HOUR_US) // 1000)
        assert topic.offsets()[0].start == offset
        assert bits(topic.scan()) == before[offset - start :]
        assert store.verify(deep=True).problems == ()


def test_a_segment_that_is_still_here_is_evicted_and_counted_by_its_part_of_a_merged_object(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """P5 asks for the id and the range; retention by bytes counts a record once, in whichever tier."""
    settings = merging(local_retention={"age": "8h"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill(store)
        tier(store, clock, 0)
        before = bits(topic.scan())
        tier(store, clock, 5 * HOUR_US)
        (large,) = entries_of(url)
        (facts,), _ = store.tierer.survey.gather([], fence=False)
        assert all(item.in_manifest for item in facts.segments[:-1])
        assert abs(sum(span.bytes for span in facts.spans()) - large.bytes) < PARTS
        assert store.verify(deep=True).problems == ()
        assert kinds(tier(store, clock, 9 * HOUR_US)) == ["evict_local"] * PARTS
        assert bits(topic.scan()) == before
    with open_store(
        tmp_path / "data", None, clock, settings=merging(retention={"bytes": large.bytes // 2})
    ) as store:
        # The merged object is one span now: half of it cannot go.
        assert tier(store, clock, 9 * HOUR_US).done == ()
        assert bits(store.topic("t").scan()) == before


def test_damage_stops_the_merge_and_is_not_tried_again(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    fill(store)
    offload_all(store, clock)
    entries = entries_of(url)
    victim = next((tmp_path / "bucket").rglob(entries[2].name))
    content = bytearray(victim.read_bytes())
    content[entries[2].row_groups[0].length // 2] ^= 1
    victim.write_bytes(content)
    report = store.tier((clock() + 5 * HOUR_US) // 1000)
    ((action, message),) = report.failed
    assert action.kind == "merge"
    assert entries[2].name in message
    assert entries_of(url) == entries
    (row,) = store.status()
    assert entries[2].name in row.damaged[0]
    # Its neighbours on one side are enough for an object of their own.
    report = store.tier((clock() + 5 * HOUR_US) // 1000)
    assert [(item.base_offset, item.end_offset) for item, _ in report.done] == [(150, 400)]
    assert report.failed == ()
    assert len(entries_of(url)) == 4


@pytest.mark.parametrize("fault", ["a value", "a row", "two rows"])
def test_a_merged_object_that_differs_from_what_it_was_made_of_is_not_published(
    store: tiered.Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever encodes wrongly: what is replaced may be the only copy."""
    fill(store)
    offload_all(store, clock)
    entries = entries_of(url)

    def careless(upload: Any, schema: Any, rows: Any, facts: Any, **options: Any) -> Any:
        def spoilt() -> Any:
            for number, batch in enumerate(rows):
                columns = list(batch.columns)
                if number == 3:
                    names = columns[0].to_pylist()
                    if fault == "a value":
                        columns[0] = pa.array([*names[:-1], "other"])
                    elif fault == "two rows":
                        columns[0] = pa.array([*names[:-2], names[-1], names[-2]])
                    else:
                        columns = [column[:-1] for column in columns]
                yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

        less = facts.evolve(record_count=facts.record_count - (fault == "a row"))
        return write_object(upload, schema, spoilt(), less, **options)

    monkeypatch.setattr("tiered.cold.upkeep.rewrite.write_object", careless)
    ((action, message),) = store.tier((clock() + 5 * HOUR_US) // 1000).failed
    assert action.kind == "merge"
    assert message.startswith("CorruptionError: ")
    assert entries_of(url) == entries
    (row,) = store.status()
    assert row.damaged == ()


def test_a_lost_manifest_names_the_merged_object_again(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    """It and what it replaced hold the same offsets in one epoch: the higher generation wins."""
    topic = fill(store)
    offload_all(store, clock)
    before = bits(topic.scan())
    tier(store, clock, 5 * HOUR_US)
    head = head_of(url)
    cold = cold_of(url)
    next((tmp_path / "bucket").rglob("head.json")).unlink()
    planned = plan_rebuild(cold, store_id=head.store_id, schemas=head.schemas)
    assert planned.problems == ()
    assert planned.head.inline == head.inline
    assert len(planned.left_out) == PARTS
    publish_rebuilt(cold, planned.head, clock)
    with tiered.open(url) as elsewhere:
        assert bits(elsewhere.topic("t").scan()) == before


@pytest.mark.parametrize("damaged", ["object", "segment"])
def test_a_repair_takes_one_copy_from_the_other(tmp_path: Path, url: str, clock: Clock, damaged: str) -> None:
    """A merged object is uploaded again as its segments; a segment is fetched out of the merged object."""
    with open_store(tmp_path / "data", url, clock, settings=merging(local_retention={"age": "8h"})) as store:
        before = bits(fill(store).scan())
        tier(store, clock, 0)
        tier(store, clock, 5 * HOUR_US)
        (large,) = entries_of(url)
    segment = sorted((tmp_path / "data/topics/t/0").glob("*.log"))[3]
    path = next((tmp_path / "bucket").rglob(large.name)) if damaged == "object" else segment
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    report = repair_store(
        open_tiers(tiered.Settings.model_validate({"store": {"path": str(tmp_path / "data")}})), deep=True
    )
    assert [item.result for item in report.repairs] == ["done"]
    assert report.problems == ()
    assert len(entries_of(url)) == (PARTS if damaged == "object" else 1)
    with open_store(tmp_path / "data", None, clock, read_only=True, settings=merging()) as store:
        assert bits(store.topic("t").scan()) == before


def test_pages_are_merged_over_and_made_again_although_an_unpublished_merge_reaches_beyond(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs on several pages; then a lost page, beside an orphan that begins on it and ends on the next."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr("tiered.format.manifest_changes.PAGE_ENTRIES_MAX", 2)
    topic = fill(store, 2 * PARTS)
    offload_all(store, clock)
    before, small = bits(topic.scan()), entries_of(url)
    committer = committer_of(store, topic.opened.meta, 0)
    assert len(head_of(url).pages) > 4
    merge_and_publish(committer, small[3:9], topic.opened.meta, OffloadRule())
    entries = entries_of(url)
    assert [entry.base_offset // 50 for entry in entries] == [0, 1, 2, 3, *range(9, 2 * PARTS)]
    head = head_of(url)
    cold, ref = committer.partition, head.pages[1]
    inputs = cold.entries(head, ref.base_offset, ref.end_offset + 1)
    name = committer.new_object_name(ref.base_offset)
    rewrite_objects(cold, inputs, topic.opened.meta.schema, name)
    committer.release([name])
    next((tmp_path / "bucket").rglob(ref.name)).unlink()
    fresh = rebuild_page(committer, ref)
    assert (fresh.base_offset, fresh.end_offset, fresh.count) == (ref.base_offset, ref.end_offset, ref.count)
    assert bits(topic.scan()) == before
    assert store.verify(deep=True).problems == ()


def test_a_pass_sweeps_once_in_its_interval(tmp_path: Path, url: str, clock: Clock) -> None:
    """The interval counts from the first pass, through restarts; a sweep by hand counts too."""
    clock.now_us = time.time_ns() // 1_000_000 * 1000
    values_ = merging().to_json()
    settings = tiered.Settings.model_validate({**values_, "sweep": {"grace": "0s", "every": "1d"}})

    def swept(ahead_hours: int) -> int:
        with open_store(tmp_path / "data", url, clock, settings=settings) as store:
            return kinds(tier(store, clock, ahead_hours * HOUR_US)).count("sweep")

    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        fill(store)
        offload_all(store, clock)
        tier(store, clock, 5 * HOUR_US)
        assert len(names_in(url)) == PARTS + 1
        (sweep,) = (
            item for item in store.plan((clock() + 24 * HOUR_US) // 1000).actions if item.kind == "sweep"
        )
        assert sweep.reason == "age 1d >= sweep.every 1d"
        assert sweep.requests.writes > 0
    assert [swept(hours) for hours in (23, 24, 25, 48)] == [0, 1, 0, 1]
    assert len(names_in(url)) == 1
    clock.advance(72 * 3600)
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        store.sweep()
    assert [swept(hours) for hours in (23, 24)] == [0, 1]
    (tmp_path / "data" / "swept.json").write_bytes(b"torn")
    assert swept(24) == 1
    (tmp_path / "data" / "swept.json").unlink()
    (tmp_path / "data" / "swept.json").mkdir()  # it cannot be read, nor be replaced
    assert [swept(24), swept(24)] == [1, 1]


def test_a_sweep_that_cannot_look_at_a_partition_fails_once_in_its_interval(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiered.Settings.model_validate(
        {**merging().to_json(), "sweep": {"grace": "0s", "every": "1d"}}
    )
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        fill(store)
        offload_all(store, clock)

        def refuses(self: object) -> None:
            raise ColdStorageError("cannot list: 503", retryable=True)

        monkeypatch.setattr(
            "tiered.cold.upkeep.sweep.PartitionSweeper.sweep", lambda self, committer: refuses(self)
        )
        report = store.tier((clock() + 30 * HOUR_US) // 1000)
        assert [(item.kind, message) for item, message in report.failed] == [
            ("sweep", "ColdStorageError: t/0: ColdStorageError: cannot list: 503")
        ]
        assert store.tier((clock() + 30 * HOUR_US) // 1000).failed == ()
