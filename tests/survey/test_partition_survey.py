"""The survey of a partition: what it costs, what it keeps of an error, and that all views of it agree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.watched_bucket import WatchedBucket, away, open_at
from tiered.errors import ColdStorageError, CorruptionError
from tiered.format.block import BlockHeader
from tiered.monitor.figures import store_figures
from tiered.monitor.status_page import page_state
from tiered.survey.partition_survey import PartitionSurvey
from tiered.survey.plan_facts import partition_facts
from tiered.survey.published_manifest import known_published
from tiered.survey.scrub_state import Damage, ScrubState
from tiered.warm import segment_reader
from tiered.warm.partition_directory import write_fence
from tiered.warm.segment_reader import SegmentFile

PARTITIONS = 3


class _Page(NamedTuple):
    """The bounds of a page."""

    base_offset: int
    end_offset: int


@pytest.fixture
def bucket() -> WatchedBucket:
    return WatchedBucket()


@pytest.fixture
def store(tmp_path: Path, bucket: WatchedBucket, clock: Clock) -> Iterator[tiered.Store]:
    """Each partition has published segments and, in the active one, a record that the bucket lacks."""
    with open_at(tmp_path / "data", bucket, clock) as opened:
        topic = opened.create_topic("t", partitions=PARTITIONS)
        for _ in range(3):
            for partition in range(PARTITIONS):
                topic.append(b"published", partition=partition, sync=True)
            topic.roll()
        assert opened.tierer.tail_pass().report.failed == ()
        for partition in range(PARTITIONS):
            topic.append(b"not published", partition=partition, sync=True)
        clock.advance(7)
        yield opened


def surveys(store: tiered.Store, **options: Any) -> list[PartitionSurvey]:
    def unread(topic: str, error: tiered.TieredError) -> None:
        raise AssertionError(topic) from error

    return list(store.watched().survey.partitions(unread, **options))


def blocks(survey: PartitionSurvey) -> list[BlockHeader]:
    newest = survey.local.segments[-1]
    return [block.header for block in newest.blocks(newest.header.base_offset, newest.end_offset)]


@pytest.mark.parametrize(
    ("view", "listings", "requests"),
    [
        (lambda store: store.status(), 1, 1),
        (lambda store: store.plan(), 1, 1),
        (lambda store: store.tierer.lags(), 1, 0),
        (lambda store: store_figures(store.watched()), 1, 0),
        (lambda store: page_state(store.watched()), 2, 0),
    ],
    ids=["status", "plan", "lags", "figures", "page"],
)
def test_what_a_view_costs(
    store: tiered.Store,
    bucket: WatchedBucket,
    monkeypatch: pytest.MonkeyPatch,
    view: Callable[[tiered.Store], object],
    listings: int,
    requests: int,
) -> None:
    """One listing a partition, one more for the page, which plans too; one request where the bucket is asked."""
    real, listed = os.listdir, []
    directory = Path(store.url, "topics", "t")

    def listdir(path: Any) -> list[str]:
        listed.append(Path(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    before = len(bucket.asked)
    view(store)
    assert sum(path.parent == directory for path in listed) == listings * PARTITIONS
    assert len(bucket.asked) - before == requests * PARTITIONS


def test_a_survey_that_does_not_ask_opens_no_sealed_segment(
    store: tiered.Store, bucket: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no request either, and knows the end and the size of every file all the same."""
    store.context.tiers.release_segments()
    before = len(bucket.asked)
    monkeypatch.setattr(SegmentFile, "open", lambda *_, **__: pytest.fail("a segment was opened"))
    for survey in surveys(store, ask_bucket=False):
        folder = Path(store.url, "topics", "t", str(survey.partition))
        assert [(file.base_offset, file.end_offset) for file in survey.files] == [
            (0, 1),
            (1, 2),
            (2, 3),
            (3, 4),
        ]
        assert [file.bytes for file in survey.files][:3] == [
            path.stat().st_size for path in sorted(folder.glob("*.log"))[:3]
        ]
        assert (survey.known_end, survey.lineage_end, survey.local.segments) == (3, 3, ())
    assert len(bucket.asked) == before


def test_the_facts_of_an_active_segment_are_those_of_its_blocks(
    store: tiered.Store, bucket: WatchedBucket, tmp_path: Path, clock: Clock
) -> None:
    """By the state of its writer, by a scan in another process, and by the blocks themselves."""
    store.topic("t").append(b"later", partition=0, sync=True)
    (read,) = [blocks(item) for item in surveys(store, ask_bucket=True) if item.partition == 0]
    times = [header.append_us for header in read]
    assert times == [clock() - 7_000_000, clock()]
    with open_at(tmp_path / "data", bucket, clock, read_only=True) as beside:
        for opened in (store, beside):
            newest = partition_facts(surveys(opened, ask_bucket=True)[0]).segments[-1]
            assert (newest.created_us, newest.last_append_us, newest.codec) == (*times, "none")


def test_a_status_maps_no_block_of_an_active_segment(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of partitions, that would be most of its work."""
    store.topic("t").roll()
    for partition in range(PARTITIONS):
        store.topic("t").append(b"first", partition=partition, sync=True)
    store.status()  # opens the sealed ones
    monkeypatch.setattr(segment_reader, "map_bytes", lambda *_: pytest.fail("blocks were mapped"))
    assert [row.problem for row in store.status()] == [""] * PARTITIONS


def test_all_views_agree_about_the_lag(store: tiered.Store, clock: Clock) -> None:
    """Status, which asks the bucket; figures, which do not; and the tail pass that ships it."""
    status = [(row.lag_records, row.lag_seconds) for row in store.status()]
    figures = [row.lag for row in store_figures(store.watched())]
    assert status == [(1, 7.0)] * PARTITIONS
    assert figures == store.tierer.lags() == list(store.tierer.tail_pass().lags.values())
    assert [(lag.records, lag.segments, lag.seconds(clock())) for lag in figures if lag] == [(1, 1, 7.0)] * 3
    assert [row.lag and row.lag.records for row in store_figures(store.watched())] == [0] * PARTITIONS


def test_what_cannot_be_read_hides_nothing_else(store: tiered.Store, bucket: WatchedBucket) -> None:
    """A damaged file, and then a bucket that does not answer: the survey keeps what the other tier says."""
    path = sorted(Path(store.url, "topics", "t", "1").glob("*.log"))[1]
    path.write_bytes(bytes(100))
    store.context.tiers.release_segments()
    sound, damaged, _ = surveys(store, ask_bucket=True)
    assert (sound.disk_error, len(sound.local.segments)) == (None, 4)
    assert isinstance(damaged.disk_error, CorruptionError)
    assert (damaged.lineage_end, damaged.hot and damaged.hot.records) == (3, 4)
    bucket.hook = away
    before = len(bucket.asked)
    first, _, third = surveys(store, ask_bucket=True)
    assert isinstance(first.bucket_error, ColdStorageError)
    assert third.bucket_error is first.bucket_error, "a bucket that does not answer is asked once"
    assert (third.published, len(third.local.segments)) == (None, 4)
    assert len(bucket.asked) - before <= 2


def test_a_plan_reads_nothing_more_of_a_fenced_partition(store: tiered.Store, bucket: WatchedBucket) -> None:
    """Status does, and says what is on this disk only."""
    write_fence(store.context.fs, Path(store.url, "topics", "t", "1"), "because of a test")
    before = len(bucket.asked)
    fenced = surveys(store, ask_bucket=True, for_plan=True)[1]
    assert (fenced.fence, fenced.local.segments, fenced.published) == ("because of a test", (), None)
    assert len(bucket.asked) - before == PARTITIONS - 1
    assert store.status().partitions[1].problem.endswith("offsets 3 to 4 are on this disk only")


def test_damage_counts_as_long_as_the_manifest_may_name_the_object(store: tiered.Store) -> None:
    """By its name, or within a page that was not read; all of it where the manifest is not known."""
    survey = surveys(store, ask_bucket=True)[0]
    published = survey.published
    assert published is not None
    assert published.head is not None
    named = published.entries[0]
    damage = [
        Damage(name, "a reason", None, base, base + 1, 0)
        for name, base in ((named.name, named.base_offset), ("replaced.parquet", 1))
    ]
    survey = replace(survey, scrub=ScrubState(damaged=tuple(damage)))
    assert survey.damaged == (damage[0],)
    assert replace(survey, published=None).damaged == tuple(damage)
    page = replace(published, entries=(), unread=(_Page(0, 2),))  # type: ignore[arg-type]
    assert replace(survey, published=page).damaged == tuple(damage)
    page = replace(published, entries=(), unread=(_Page(2, 3),))  # type: ignore[arg-type]
    assert replace(survey, published=page).damaged == ()
    assert known_published(published.head, None).entries == published.entries, "the head has them all"
