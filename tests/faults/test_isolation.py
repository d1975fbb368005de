"""One part of the bucket in trouble stops nothing but itself (promise P11), and damage in it stops no append."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.stores import EVICT_US, OFFLOAD_US, stepwise, values
from tiered.cold.object_store.fsspec_store import FsspecStore
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, CorruptionError, ObjectNotFound
from tiered.monitor.figures import store_figures


class Ailing(FaultyStore):
    """Every request for a key that `ails` picks fails in the same way."""

    error: Callable[[str], ColdStorageError] | None = None

    def __init__(self, inner: FsspecStore) -> None:
        super().__init__(inner)
        self.ails: Callable[[str, str], bool] = lambda verb, key: True

    def _meet(self, verb: str, key: str) -> str | None:
        if self.error is not None and self.ails(verb, key):
            raise self.error(f"cannot {verb} {self.url}/{key}: as told")
        return super()._meet(verb, key)


@pytest.fixture
def bucket() -> Ailing:
    return Ailing(FsspecStore(f"memory://{uuid4().hex}"))


def open_store(path: Path, clock: Clock, bucket: Ailing) -> tiered.Store:
    host = Host(clock=clock, open_bucket=lambda url, options: bucket)
    return tiered.open(path, cold=bucket.url, settings=stepwise(), host=host)


TROUBLES = {
    "throttled": lambda words: ColdStorageError(words, retryable=True),
    "denied": ColdStorageError,
    "gone": ObjectNotFound,
}


@pytest.mark.extended
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("what", ["head.json", "/pages/"])
def test_a_partition_whose_manifest_cannot_be_read_stops_no_other(
    tmp_path: Path, clock: Clock, bucket: Ailing, trouble: str, what: str
) -> None:
    """The partitions after it are offloaded in the same pass, and status knows of them."""
    with open_store(tmp_path / "data", clock, bucket) as store:
        topic = store.create_topic("t", partitions=4)
        for _ in range(4):
            for partition in range(4):
                topic.append(b"v", partition=partition)
            topic.roll()
            store.tier((clock() + OFFLOAD_US) // 1000)
        for partition in range(4):
            topic.append(b"v", partition=partition)
        topic.roll()
    with open_store(tmp_path / "data", clock, bucket) as store:
        bucket.error = TROUBLES[trouble]
        bucket.ails = lambda verb, key: "/1/" in key and what in key
        lost = (trouble, what) == ("gone", "head.json")
        with pytest.raises(CorruptionError if lost else ColdStorageError, match=f"/1/.*{what.strip('/')}"):
            store.tier((clock() + OFFLOAD_US) // 1000)
        published = {row.partition: row.published_offset for row in store.status().partitions}
        assert [published[partition] for partition in (0, 2, 3)] == [5, 5, 5]
        bucket.error = None
        store.tier((clock() + OFFLOAD_US) // 1000)
        assert {row.published_offset for row in store.status().partitions} == {5}


def test_a_damaged_head_stops_no_append(tmp_path: Path, clock: Clock, bucket: Ailing) -> None:
    """Whether the bucket is ahead cannot be told, as when it does not answer; the tierer reports the damage."""
    with open_store(tmp_path / "data", clock, bucket) as store:
        store.create_topic("t").append(b"v")
        store.topic("t").roll()
        store.tier((clock() + OFFLOAD_US) // 1000)
    (head,) = [info.key for info in bucket.inner.list("") if info.key.endswith("/head.json")]
    content = bucket.inner.get(head).data
    bucket.inner.put(head, content[:-30] + b"#" + content[-29:])
    with open_store(tmp_path / "data", clock, bucket) as store:
        assert store.topic("t").append(b"w", sync=True).offset == 1
        with pytest.raises(CorruptionError, match=r"head\.json"):
            store.tier((clock() + OFFLOAD_US) // 1000)
        assert values(store.topic("t")) == [b"v", b"w"]


def test_a_topic_whose_document_is_damaged_stops_no_other(
    tmp_path: Path, clock: Clock, bucket: Ailing
) -> None:
    """Full passes and tails go on with the rest, figures and status say it."""
    with open_store(tmp_path / "data", clock, bucket) as store:
        for name in "abc":
            store.create_topic(name).append(b"v")
            store.topic(name).roll()
    document = tmp_path / "data" / "topics" / "b" / "topic.json"
    document.write_bytes(document.read_bytes()[:-9])
    with open_store(tmp_path / "data", clock, bucket) as store:
        with pytest.raises(CorruptionError, match=r"b/topic\.json"):
            store.tier((clock() + OFFLOAD_US) // 1000)
        for name in "ac":
            store.topic(name).append(b"w", sync=True)
        found = store.tierer.tail_pass()
        assert [str(place) for place in found.problems] == ["('b', 0)"]
        rows = {row.topic: row for row in store.status()}
        assert [rows[name].published_offset for name in "abc"] == [2, None, 2]
        assert "topic.json" in rows["b"].problem
        assert ["topic.json" in row.problem for row in store_figures(store.watched())] == [False, True, False]
        assert len(store.tierer.lags()) == 2


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_live_object_that_stays_away_is_an_error_and_no_hole(
    tmp_path: Path, clock: Clock, bucket: Ailing, trouble: str
) -> None:
    """P8, P10: rows before and after it are read, those in it raise, and are there again when it is."""
    with open_store(tmp_path / "data", clock, bucket) as store:
        topic = store.create_topic("t")
        for value in (b"a", b"b", b"c"):
            topic.append(value)
            topic.roll()
        store.tier((clock() + OFFLOAD_US) // 1000)
        store.tier((clock() + EVICT_US) // 1000)
    with open_store(tmp_path / "data", clock, bucket) as store:
        topic = store.topic("t")
        bucket.error = TROUBLES[trouble]
        bucket.ails = lambda verb, key: "/data/00000000000000000001-" in key
        with pytest.raises((ColdStorageError, CorruptionError), match="/data/00000000000000000001-.*as told"):
            topic.scan().to_arrow()
        before = len(bucket.operations)
        assert values(topic.scan(start_offset=2)) == [b"c"]
        assert values(topic.scan(end_offset=1)) == [b"a"]
        assert len(bucket.operations) - before < 20
        bucket.error = None
        assert values(topic) == [b"a", b"b", b"c"]


def test_a_lost_head_is_no_empty_log(tmp_path: Path, clock: Clock, bucket: Ailing) -> None:
    """P10: who has the bucket alone sees objects that nothing names, and says so."""
    with open_store(tmp_path / "data", clock, bucket) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"v", partition=0)
        topic.roll()
        store.tier((clock() + OFFLOAD_US) // 1000)
    host = Host(clock=clock, open_bucket=lambda url, options: bucket)
    with tiered.open(bucket.url, host=host) as seen:
        assert values(seen.topic("t")) == [b"v"]
        (head,) = [info.key for info in bucket.inner.list("") if info.key.endswith("/0/head.json")]
        bucket.inner.delete([head])
        with pytest.raises(CorruptionError, match=r"0/head\.json"):
            seen.topic("t").scan().to_arrow()
        assert values(seen.topic("t").scan(partitions=[1])) == []


def test_a_probe_whose_deletion_failed_is_swept_and_a_topic_of_that_name_is_not(
    tmp_path: Path, clock: Clock, bucket: Ailing
) -> None:
    """What asks the server a question leaves nothing behind for ever."""
    bucket.error = TROUBLES["throttled"]
    bucket.ails = lambda verb, key: verb == "delete"
    with open_store(tmp_path / "data", clock, bucket) as store:
        store.create_topic("probe").append(b"v")
        store.topic("probe").roll()
        assert store.tier((clock() + OFFLOAD_US) // 1000).failed
        bucket.error = None
        store.tier((clock() + OFFLOAD_US) // 1000)

    def probes() -> list[str]:
        return [info.key for info in bucket.inner.list("probe/") if info.key.count("/") == 1]

    assert len(probes()) == 1
    settings = tiered.Settings.model_validate({**stepwise().to_json(), "sweep": {"grace": "0s"}})
    host = Host(clock=clock, open_bucket=lambda url, options: bucket)
    with tiered.open(tmp_path / "data", settings=settings, host=host) as store:
        live = {info.key for info in bucket.inner.list("probe/")} - {*probes()}
        store.sweep()
        assert probes() == []
        assert {info.key for info in bucket.inner.list("probe/")} == live
