"""A bucket that is missing, refuses or does not answer stops nothing but itself, and says what to do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_named
from tests.support.scripted_server import Answer, Request, refusal, refusing, serving
from tests.support.stores import EVICT_US, OFFLOAD_US, local_segments, open_store, stepwise, tier, values
from tests.support.watched_bucket import WatchedBucket, away, open_at
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.engine.host import Host
from tiered.format import manifest_changes

SECONDS_MAX = 30.0


def settings_of(endpoint: str) -> tiered.Settings:
    plain = stepwise().to_json()
    return tiered.Settings.model_validate({**plain, "cold": {"endpoint_url": endpoint}})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat without the pauses, which were nine tenths of these tests' time."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    for kind in (Committer, StoreDocuments):
        monkeypatch.setitem(kind.__init__.__kwdefaults__, "sleep", lambda seconds: None)


TROUBLES = {
    "missing bucket": (
        "NoSuchBucket",
        404,
        "bucket nowhere does not exist: create it or correct cold.url",
        False,
    ),
    "denied": ("AccessDenied", 403, "403 AccessDenied.*credentials are those given", False),
    "unknown key": ("InvalidAccessKeyId", 403, "access key is unknown there; credentials are", False),
    "wrong secret": ("SignatureDoesNotMatch", 403, "secret key does not fit the access key", False),
    "dead endpoint": ("", 0, "check that it is up and reachable", True),
}


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, bool]]:
    """Endpoint, words of its error, whether a retry can help."""
    code, status, words, retryable = TROUBLES[request.param]
    if not status:
        yield "http://127.0.0.1:9", words, retryable
        return
    with refusing(status, code) as endpoint:
        yield endpoint, words, retryable


def test_a_bucket_in_trouble_leaves_the_local_store_alone(
    tmp_path: Path, clock: Clock, trouble: tuple[str, str, bool]
) -> None:
    """Appends, scans and closes go on; tier, plan and status tell, in bounded time; no file is touched."""
    endpoint, words, retryable = trouble
    started = time.monotonic()
    with open_store(tmp_path / "data", "s3://nowhere/p", clock, settings=settings_of(endpoint)) as store:
        topic = store.create_topic("t", partitions=3)
        topic.append(b"1", partition=0)
        topic.roll()
        files = local_segments(tmp_path / "data", "t")
        for call in (store.tier, store.plan):
            with pytest.raises(tiered.ColdStorageError, match=words) as caught:
                call((clock() + EVICT_US) // 1000)
            assert caught.value.retryable is retryable
        assert len(local_segments(tmp_path / "data", "t")) == len(files)
        topic.append(b"2", partition=0)
        assert values(topic) == [b"1", b"2"]
        rows = store.status().partitions
        assert [row.published_offset for row in rows] == [None] * 3
        assert words.split(".*")[0].split("; ")[0] in rows[0].problem
    with pytest.raises(tiered.ColdStorageError, match=words):
        tiered.open("s3://nowhere/p", settings=settings_of(endpoint))
    assert time.monotonic() - started < SECONDS_MAX


def test_appends_go_on_where_no_credentials_can_be_had(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile, role or helper that fails after a restart is the bucket's trouble, not the writer's."""
    settings = settings_of("http://127.0.0.1:9")
    with open_store(tmp_path / "data", "s3://nowhere/p", clock, settings=settings) as store:
        store.create_topic("t").append(b"1")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with open_store(tmp_path / "data", None, clock, settings=settings) as store:
        store.topic("t").append(b"2")
        with pytest.raises(tiered.ColdStorageError, match=r"profile \(nobody\).*AWS_PROFILE"):
            store.tier()
        assert values(store.topic("t")) == [b"1", b"2"]


def test_a_bucket_that_does_not_answer_is_asked_by_the_first_append_alone(
    tmp_path: Path, clock: Clock
) -> None:
    """Each partition that is opened would wait for it else; one whose head is damaged says nothing of the next one."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=3)
        for partition in range(3):
            topic.append(b"1", partition=partition)
        topic.flush()
        clock.advance(20)
        store.tier()

    def asked_by_appends() -> int:
        with open_at(tmp_path / "data", bucket, clock) as store:
            bucket.asked.clear()
            for partition in range(3):
                store.topic("t").append(b"2", partition=partition)
            found = len({request for request in bucket.asked if request.endswith("head.json")})
            bucket.hook = lambda request: None
        return found

    assert asked_by_appends() == 3
    bucket.hook = away
    assert asked_by_appends() == 1
    [head] = [key for key in bucket.objects if key.endswith("/0/head.json")]
    bucket.objects[head] = (b"{", "damaged")
    assert asked_by_appends() == 3


def test_a_page_of_the_manifest_that_cannot_be_read_keeps_no_append_out(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has said by then that the bucket is not ahead."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        for _ in range(2):
            topic.append(b"1")
            topic.roll()
        tier(store, clock, OFFLOAD_US)

    def without_pages(request: str) -> None:
        if "/pages/" in request:
            away(request)

    bucket.hook = without_pages
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert store.topic("t").append(b"2").offset == 2
        assert any("/pages/" in request for request in bucket.asked)
        bucket.hook = lambda request: None


def test_local_rules_go_on_without_the_bucket(tmp_path: Path, clock: Clock) -> None:
    """Re-encoding needs no bucket; what does is left for later, and nothing is evicted."""
    settings = settings_of("http://127.0.0.1:9")
    with open_store(tmp_path / "data", "s3://nowhere/p", clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x" * 100] * 1000)
        topic.roll()
        with pytest.raises(tiered.ColdStorageError):
            store.tier((clock() + EVICT_US) // 1000)
        assert local_segments(tmp_path / "data", "t")[0].endswith("-1.log")
        assert len(values(topic)) == 1000


def test_a_bucket_that_went_away_is_never_read_as_empty(
    tmp_path: Path, clock: Clock, s3_endpoint: str, s3_bucket: str
) -> None:
    """Rows that only the bucket has are an error while it is away, and rows again afterwards (promise P10)."""
    with open_store(tmp_path / "data", s3_bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"cold")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        tier(store, clock, EVICT_US)
        topic.append(b"local")

    def answer(request: Request) -> Answer:
        return refusal(503, "SlowDown")

    with (
        serving(answer) as (endpoint, _),
        open_store(tmp_path / "data", None, clock, settings=settings_of(endpoint)) as store,
    ):
        topic = store.topic("t")
        assert values(topic.scan(start_offset=1)) == [b"local"]
        with pytest.raises(tiered.ColdStorageError) as caught:
            topic.scan()
        assert caught.value.retryable
        assert topic.append(b"more").offset == 2
        assert topic.offsets()[0] == (0, 0, 3)
    with open_store(tmp_path / "data", None, clock, settings=settings_of(s3_endpoint)) as store:
        assert values(store.topic("t")) == [b"cold", b"local", b"more"]


def test_an_unreachable_bucket_is_not_said_to_be_up_to_date(tmp_path: Path, clock: Clock) -> None:
    """An alert on the lag must not turn green because the bucket is down."""
    settings = settings_of("http://127.0.0.1:9")
    with open_store(tmp_path / "data", "s3://nowhere/p", clock, settings=settings) as store:
        store.create_topic("t").append(b"v", sync=True)
        clock.advance(60)
        (row,) = store.status().partitions
        assert row.lag_records != 0


def test_a_mistyped_bucket_can_be_corrected_while_it_holds_nothing(tmp_path: Path, clock: Clock) -> None:
    """The error of a missing bucket says: correct cold.url. Then that must be possible."""
    with (
        refusing(404, "NoSuchBucket") as endpoint,
        open_store(tmp_path / "data", "s3://mistyped/p", clock, settings=settings_of(endpoint)) as store,
    ):
        store.create_topic("t").append(b"v")
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert values(bucket.topic("t")) == [b"v"]


def test_an_old_copy_of_a_store_does_not_append(tmp_path: Path, clock: Clock) -> None:
    """Its offsets were given to other records since: the bucket is ahead of it, so it is fenced."""
    cold = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", cold, clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"first"] * 3)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
    shutil.copytree(tmp_path / "data", tmp_path / "old")
    with open_store(tmp_path / "data", cold, clock) as store:
        store.topic("t").append_many([b"second"] * 3)
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
    (tmp_path / "data").rename(tmp_path / "another-host")
    with open_store(tmp_path / "old", cold, clock) as old:
        for _ in range(2):
            with pytest.raises(tiered.Fenced, match="bucket ends at offset 6, this disk at 3"):
                old.topic("t").append(b"other")
        assert values(old.topic("t")) == [b"first"] * 3
    with tiered.open(cold) as bucket:
        assert values(bucket.topic("t")) == [b"first"] * 3 + [b"second"] * 3


def test_a_damaged_partition_does_not_stop_the_pass_of_the_others(tmp_path: Path, clock: Clock) -> None:
    """P11: what cannot be read is said at the end; the rest has been offloaded by then, and status shows both."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        for name in ("damaged", "sound"):
            store.create_topic(name).append(b"v", sync=True)
            store.topic(name).append(b"w", sync=True)
        store.topic("sound").roll()
    (active,) = (tmp_path / "data" / "topics" / "damaged" / "0").glob("*.log")
    content = bytearray(active.read_bytes())
    content[content.index(b"TBLK") + 200] ^= 1
    active.write_bytes(content)
    with open_store(tmp_path / "data", None, clock) as store:
        with pytest.raises(tiered.CorruptionError, match="had been synced"):
            tier(store, clock, OFFLOAD_US)
        assert any("had been synced" in note for note in store.plan().notes)
        by_topic = {row.topic: row for row in store.status()}
        assert by_topic["sound"].published_offset == 2
        assert "had been synced" in by_topic["damaged"].problem
        assert values(store.topic("sound")) == [b"v", b"w"]


def test_status_tells_that_records_are_in_no_tier(tmp_path: Path, clock: Clock) -> None:
    """A manifest that is gone is no empty bucket: what was evicted is missing, and not merely late."""
    with open_store(tmp_path / "data", (tmp_path / "bucket").as_uri(), clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"cold"] * 3)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        tier(store, clock, EVICT_US)
        assert [row.problem for row in store.status()] == [""]
        next((tmp_path / "bucket").rglob("head.json")).unlink()
        (row,) = store.status()
        assert "offsets 0 to 3 are neither in the bucket nor in a local file" in row.problem


def test_a_pass_says_that_a_manifest_was_lost_and_what_to_run(tmp_path: Path, clock: Clock) -> None:
    """All of it is in the bucket, so there is nothing to do but to say so; the other partition goes on."""
    with open_store(tmp_path / "data", (tmp_path / "bucket").as_uri(), clock) as store:
        topic = store.create_topic("t", partitions=2)
        for number in range(2):
            topic.append(b"v", partition=number)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        tier(store, clock, EVICT_US)
        head = next((tmp_path / "bucket").glob("t/*/0/head.json"))
        content = head.read_bytes()
        head.unlink()
        topic.append(b"more", partition=1)
        topic.roll()
        with pytest.raises(
            tiered.CorruptionError, match=r"is missing \(run tiered verify --repair\) in .*/0/head.json"
        ):
            store.tier((clock() + OFFLOAD_US) // 1000)
        assert [row.published_offset for row in store.status()][1] == 2
        assert any("tiered verify --repair" in note for note in store.plan().notes)
        head.write_bytes(content)
        tier(store, clock, OFFLOAD_US)


def test_a_topic_that_was_deleted_after_a_restore_elsewhere_is_not_lost(tmp_path: Path, clock: Clock) -> None:
    """The store that was left behind is fenced, and has nothing to repair."""
    url = (tmp_path / "bucket").as_uri()
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"v")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        with tiered.restore(url, tmp_path / "other", host=Host(clock=clock)) as other:
            other.delete_topic("t")
        next((tmp_path / "bucket").glob("t/*/0/head.json")).unlink()  # as the sweep does in its time
        assert "restored elsewhere" in next(iter(store.status())).problem
        with pytest.raises(tiered.Fenced, match="restored elsewhere"):
            store.tier(clock() // 1000)
        with pytest.raises(tiered.Fenced, match="restored elsewhere"):
            topic.append(b"more", sync=True)


def test_no_manifest_is_begun_over_objects(tmp_path: Path, clock: Clock) -> None:
    """Head and ``lineage.json`` are both lost: a first head would make the next sweep's orphans of all records."""
    with open_store(tmp_path / "data", (tmp_path / "bucket").as_uri(), clock) as store:
        topic = store.create_topic("t")
        for _ in range(2):
            topic.append(b"v")
            topic.roll()
            tier(store, clock, OFFLOAD_US)
            tier(store, clock, EVICT_US)
    next((tmp_path / "bucket").rglob("head.json")).unlink()
    next((tmp_path / "data").rglob("lineage.json")).unlink()
    with open_store(tmp_path / "data", None, clock) as store:
        store.topic("t").append(b"v")
        store.topic("t").roll()
        ((_, message),) = store.tierer.tail_pass().report.failed
        assert "head.json is missing beside the objects that it named" in message
    assert list((tmp_path / "bucket").rglob("head.json")) == []


def test_a_pass_says_that_records_are_in_no_tier(tmp_path: Path, clock: Clock) -> None:
    """Nothing after them is offloaded any more, which is no "nothing to do"; the other partition goes on."""
    with open_store(tmp_path / "data", (tmp_path / "bucket").as_uri(), clock) as store:
        topic = store.create_topic("t", partitions=2)
        for number in (0, 0, 1):
            topic.append(b"v", partition=number)
            topic.roll()
    (tmp_path / "data" / "topics" / "t" / "0" / local_segments(tmp_path / "data", "t")[0]).unlink()
    with open_store(tmp_path / "data", None, clock) as store:
        with pytest.raises(tiered.CorruptionError, match="offsets 0 to 1 are neither published nor local"):
            store.tier((clock() + OFFLOAD_US) // 1000)
        assert [row.published_offset for row in store.status()] == [0, 1]


def test_a_bucket_that_is_away_is_asked_by_the_first_of_many_topics_alone(
    tmp_path: Path, clock: Clock
) -> None:
    """Each request takes all its retries: three live tables took six minutes more, for a status and for a pass."""
    bucket = WatchedBucket()
    default = {"roll": {"bytes": "256MiB", "age": "off"}, "table": {"every": "1m"}}
    settings = tiered.Settings.model_validate({"policies": {"default": default}})
    with open_at(tmp_path / "data", bucket, clock, settings=settings) as store:
        for name in ("a", "b", "c"):
            store.create_topic(name).append(b"1", sync=True)
        store.tier()
    with open_at(tmp_path / "data", bucket, clock, settings=settings) as store:
        bucket.hook = away
        for call, asked in ((store.status, 1), (store.tierer.run_once, 1), (store.tierer.tables.run, 1)):
            bucket.asked.clear()
            found = call()
            probes = bucket.asked.count("get store.json")
            assert len(bucket.asked) - probes == asked, call
            assert probes in (1, 2)
            if call is store.status:
                assert ["no route to host" in table.problem for table in found.tables] == [True] * 3
            elif call is store.tierer.tables.run:
                assert list(found.problems) == ["a", "b", "c"]
        bucket.hook = lambda request: None


def test_an_erasure_waits_for_a_bucket_that_is_away_and_says_so(tmp_path: Path, clock: Clock) -> None:
    """Also one that was called meanwhile, and beyond its deadline; then it goes on."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = fill_named(store)
        clock.advance(9 * 3600)
        store.tier()
        bucket.hook = away
        erasure = topic.erase(["b"])
        clock.advance(31 * 86_400)
        with pytest.raises(tiered.ColdStorageError, match="no route to host"):
            store.tier()
        assert "no route to host" in erasure.waits_for
        (line,) = store.status().erasures
        assert line.endswith(f"it waits: {erasure.waits_for}")
        bucket.hook = lambda request: None
        for _ in range(2):
            store.tier()
        assert erasure.state == "sweeping"
        assert "no route to host" not in erasure.waits_for
