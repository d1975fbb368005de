"""Metrics say what was done, exactly; a scrape asks the bucket nothing and waits for no writer."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("prometheus_client")

import tiered
from tests.monitor.scenes import families, requests_of, run, scene, scraped
from tests.support.clock import Clock
from tests.support.s3_server import S3Process
from tiered.base.histogram import Durations
from tiered.monitor.metrics import METRICS
from tiered.policies.cost import Requests, estimate
from tiered.policies.executor import TierReport
from tiered.tiering.pass_history import RECENT_ERRORS_MAX, PassHistory
from tiered.tiering.reports import PassEvent

HOUR = 3600.0


def live(store: tiered.Store, passes: object, clock: Clock) -> None:
    """Let a store do one of everything: append, tail, evict, read cold, scrub."""
    topic = store.create_topic("t", partitions=2)
    for partition in range(2):
        topic.append_many([{"value": b"x" * 100, "partition": partition} for _ in range(50)])
    topic.flush()
    topic.consumer("billing").commit({0: 10})
    run(passes)  # type: ignore[arg-type]
    topic.roll()
    for _ in range(3):
        clock.advance(HOUR + 1)
        run(passes)  # type: ignore[arg-type]
    clock.advance(86_400)
    run(passes)  # type: ignore[arg-type]
    store.context.memory = type(store.context.memory)(0)
    for writer in store.open_topics.writers():
        writer.recent.clear()
    topic.scan().to_arrow()


def test_every_metric_is_exported_explained_and_documented(
    tmp_path: Path, s3_bucket: str, clock: Clock
) -> None:
    """What a busy store exports is the catalogue, with its kinds, labels and HELP, and all of it is on the page."""
    pytest.importorskip("pyiceberg")
    rules = {"table": {"every": "1m"}, "compact_keys": {"after": "0s"}}
    with scene(tmp_path / "data", s3_bucket, clock, **rules) as (store, passes):
        live(store, passes, clock)
        store.tierer.tables.run()
        store.open_topics.writers()[0].active._poison(OSError("the disk is gone"))
        found = families(store, passes)
        with pytest.raises(tiered.PartitionPoisoned):
            store.close()
    assert set(found) == {metric.name.removesuffix("_total") for metric in METRICS}
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert metric.help.endswith(".")
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(metric.labels), metric.name
        assert f"| `{metric.name}` |" in text
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def test_figures_are_what_was_done(
    tmp_path: Path, s3_bucket: str, clock: Clock, fast_server: S3Process
) -> None:
    """Records, bytes, syncs, requests, actions, reads and cost of a store whose every step is known."""
    fast_server.reset()
    with scene(tmp_path / "data", s3_bucket, clock) as (store, passes):
        topic = store.create_topic("t")
        topic.append_many([b"x" * 100] * 70)
        topic.flush()
        topic.append(b"y", sync=True)
        size = (
            store.open_topics.writers()[0].active_file[2]
            - store.open_topics.writers()[0].active.segment.header.length
        )
        run(passes)
        topic.roll()
        for _ in range(3):
            clock.advance(HOUR + 1)
            run(passes)
        store.open_topics.writers()[0].recent.clear()
        for _ in range(3):
            assert len(topic.scan().to_arrow()) == 71
            store.context.tiers.fetcher.drain()  # what was fetched comes to the disk's cache on a thread
        found, asked = scraped(store, passes), requests_of(fast_server)
        assert found["tiered_appended_records_total", "partition=0", "topic=t"] == 71
        assert found["tiered_appended_bytes_total", "partition=0", "topic=t"] == size
        assert found["tiered_flush_seconds_count",] == 2
        assert found["tiered_fsync_seconds_count",] == 2
        assert 0 < found["tiered_fsync_seconds_sum",] <= found["tiered_flush_seconds_sum",]
        assert found["tiered_actions_total", "action=ship_tail", "outcome=done"] == 1
        assert found["tiered_actions_total", "action=evict_local", "outcome=done"] == 1
        assert found["tiered_pass_seconds_count", "pass=full"] == 4
        assert found["tiered_pass_failures_total", "pass=full"] == 0
        assert found["tiered_pass_last_success_timestamp_seconds", "pass=full"] == clock() / 1e6
        assert found["tiered_read_splits_total", "tier=cold"] == 3
        assert found["tiered_cache_misses_total",] > 0
        hits = sum(found["tiered_cache_hits_total", f"cache={name}"] for name in ("memory", "disk"))
        assert (hits > 0, found["tiered_cache_hit_bytes_total",] > 0) == (True, True)
        assert found["tiered_tier_records", "tier=cold", "topic=t"] == 71
        assert found["tiered_tier_segments", "tier=cold", "topic=t"] == 1
        check_requests(found, asked)


def check_requests(found: dict[tuple[str, ...], float], asked: dict[str, int]) -> None:
    """Requests, errors and their cost are what the server counted."""
    errors = {key[1:]: value for key, value in found.items() if key[0] == "tiered_cold_errors_total"}
    refused = {"NoSuchKey": 0.0, "PreconditionFailed": 0.0}
    for (kind, _), value in errors.items():
        refused[kind.removeprefix("kind=")] += value
    assert refused == {name: asked.pop(name, 0) for name in refused}
    requests = {
        key[1].removeprefix("operation="): value
        - sum(n for (_, place), n in errors.items() if place == key[1])
        for key, value in found.items()
        if key[0] == "tiered_cold_requests_total"
    }
    assert {name: count for name, count in requests.items() if count} == asked
    assert errors["kind=NoSuchKey", "operation=GetObject"] > 0
    sent = {key[1][10:]: int(value) for key, value in found.items() if key[0] == "tiered_cold_requests_total"}
    assert found["tiered_cost_dollars_estimate_total",] == pytest.approx(
        estimate(Requests.of(sent), 0).one_off_usd
    )


def test_lag_is_what_the_bucket_lacks(tmp_path: Path, clock: Clock) -> None:
    """Unknown until a pass has asked; then by records, bytes, segments and age, with no request to say so."""
    with scene(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as (store, passes):
        topic = store.create_topic("t", partitions=2)
        topic.append(b"first", partition=0, sync=True)
        before = scraped(store, passes)
        assert before["tiered_publication_unknown_partitions", "topic=t"] == 1
        # An alert asks how long ago that was, and tails may be off.
        assert before["tiered_pass_last_success_timestamp_seconds", "pass=full"] == 0
        assert ("tiered_pass_last_success_timestamp_seconds", "pass=tails") not in before
        assert ("tiered_oldest_unpublished_seconds",) not in before
        run(passes)
        settled = scraped(store, passes)
        assert settled["tiered_publication_unknown_partitions", "topic=t"] == 0
        assert settled["tiered_copy_lag_records", "topic=t"] == 0
        for value in (b"a", b"b"):
            topic.append(value, partition=0, sync=True)
            topic.roll()
            clock.advance(5)
        topic.append(b"c", partition=1, sync=True)
        found = scraped(store, passes)
        files = [path.stat().st_size for path in sorted((tmp_path / "data/topics/t/0").glob("*.log"))]
        assert found["tiered_copy_lag_records", "topic=t"] == 3
        assert found["tiered_copy_lag_segments", "topic=t"] == 3
        active = store.open_topics.writers()[1].active_file[2]
        # The first segment holds one published record and one that is not.
        assert found["tiered_copy_lag_bytes", "topic=t"] == files[0] // 2 + files[1] + active
        assert found["tiered_copy_lag_seconds", "topic=t"] == 10
        assert found["tiered_oldest_unpublished_seconds",] == 10
        run(passes)
        assert scraped(store, passes)["tiered_oldest_unpublished_seconds",] == 0


def test_what_is_not_compacted_yet_is_counted(tmp_path: Path, clock: Clock) -> None:
    rules = {"offload": {"after": "0s"}, "compact_keys": {"after": "1h", "dirty": 1e-9}}
    with scene(tmp_path / "data", f"file://{tmp_path}/bucket", clock, **rules) as (store, passes):
        topic = store.create_topic("t")
        for key in "aab":
            topic.append(b"state", key=key)
        assert ("tiered_dirty_offsets", "topic=t") not in scraped(store, passes)
        topic.roll()
        run(passes)
        assert scraped(store, passes)["tiered_dirty_offsets", "topic=t"] == 3
        clock.advance(HOUR)
        run(passes)
        assert scraped(store, passes)["tiered_dirty_offsets", "topic=t"] == 0


def test_a_reader_claims_no_lag_by_what_it_saw_once(tmp_path: Path, clock: Clock) -> None:
    """A process that does not publish cannot know what another one has published since."""
    with scene(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as (store, passes):
        topic = store.create_topic("t")
        topic.append(b"x", sync=True)
        run(passes)
        with tiered.open(tmp_path / "data", read_only=True) as reader:
            reader.topic("t").scan().to_arrow()
            reader.status()
            found = scraped(reader)
            assert found["tiered_tier_records", "tier=cold", "topic=t"] == 1
            assert ("tiered_copy_lag_records", "topic=t") not in found


def test_a_scrape_asks_the_bucket_nothing_and_waits_for_no_writer(
    tmp_path: Path, s3_bucket: str, clock: Clock, fast_server: S3Process
) -> None:
    """Also while a writer hangs over a disk that does not answer."""
    with scene(tmp_path / "data", s3_bucket, clock) as (store, passes):
        topic = store.create_topic("t")
        topic.append(b"x", sync=True)
        run(passes)
        before = requests_of(fast_server)
        (writer,) = store.open_topics.writers()
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(len(scraped(store, passes))), daemon=True)
        with writer._sync_lock, writer.blocks.write_lock:
            thread.start()
            thread.join(30)
        assert results
        assert results[0] > 50
        assert requests_of(fast_server) == before


def test_a_closed_store_can_be_scraped(tmp_path: Path, clock: Clock) -> None:
    """The last scrape of a process that ends still has its counters."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        store.create_topic("t").append(b"x", sync=True)
    assert scraped(store)["tiered_appended_records_total", "partition=0", "topic=t"] == 1


def test_a_damaged_partition_is_counted_and_the_rest_is_measured(tmp_path: Path, clock: Clock) -> None:
    """One file that cannot be read takes no other figure with it."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        topic = store.create_topic("t", partitions=2)
        for partition in range(2):
            topic.append(b"x", partition=partition, sync=True)
    path = next((tmp_path / "data/topics/t/1").glob("*.log"))
    path.write_bytes(b"\0" * 10)
    with tiered.open(tmp_path / "data", read_only=True) as store:
        found = scraped(store)
    assert found["tiered_unreadable_partitions", "topic=t"] == 1
    assert found["tiered_tier_records", "tier=warm", "topic=t"] == 1


def test_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store works without prometheus-client, and says what metrics need."""
    with scene(tmp_path / "data", None, clock) as (store, _):
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(tiered.ConfigError, match=r"pip install 'tiered\[daemon\]'"):
            store.metrics()


def test_durations_fall_into_the_bucket_whose_bound_they_reach() -> None:
    """A bound is inclusive, as Prometheus has it."""
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.10001, 1.0, 7.0):
        durations.observe(seconds)
    assert durations.distribution.counts == (2, 2, 1)
    assert durations.distribution.total_seconds == pytest.approx(8.25001)


def test_recent_errors_are_few_and_say_how_often() -> None:
    """The newest first; one that repeats is listed once; a pass that could not begin is a failure."""
    history = PassHistory()
    for number in range(RECENT_ERRORS_MAX + 10):
        history.record(PassEvent("full", number, 0.0, TierReport(), (f"DiskFull: {number}", "Same: old")))
    history.record(PassEvent("tails", 1000, 1.0, None, ()))
    counts = history.counts
    assert len(counts.errors) == RECENT_ERRORS_MAX
    assert (counts.errors[0].message, counts.errors[0].count) == ("Same: old", RECENT_ERRORS_MAX + 10)
    assert counts.errors[1].message == f"DiskFull: {RECENT_ERRORS_MAX + 9}"
    assert counts.failures == {"full": RECENT_ERRORS_MAX + 10, "tails": 1, "tables": 0}
    assert counts.last_success_us == {}
