"""`read(follow=True)` of a store that was opened by its bucket's URL: new heads, outages, retention, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.delegate import Delegate
from tests.support.stores import HOUR_US, open_store, stepwise
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.errors import ColdStorageError

TAILS = stepwise(offload={"after": "4h", "tail_interval": "1s"})


class Ended(Exception):
    pass


class Bucket(Delegate):
    """An object store that counts the reads of heads, and fails those reads that a test says."""

    def __init__(self, inner: Any, fails: list[ColdStorageError]) -> None:
        super().__init__(inner)
        self.fails, self.heads, self.fails_at = fails, 0, ""

    def _fail(self) -> None:
        if self.fails:
            raise self.fails.pop()

    def get(self, key: str) -> Any:
        if key.endswith("head.json"):
            self.heads += 1
            self._fail()
        return self.inner.get(key)

    def get_ranges(self, key: str, ranges: Any) -> Any:
        self._fail()
        self._fail_at(key)
        return self.inner.get_ranges(key, ranges)

    def get_range(self, key: str, start: int, length: int) -> Any:
        self._fail_at(key)
        return self.inner.get_range(key, start, length)

    def _fail_at(self, key: str) -> None:
        if self.fails_at and self.fails_at in key:
            self.fails_at = ""
            raise ColdStorageError("no answer", retryable=True)


class Scene:
    """A writer and a reader of its bucket; whenever the reader pauses, the next step is taken."""

    def __init__(self, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.writer = open_store(folder / "data", url, self.clock, settings=TAILS)
        self.topic = self.writer.create_topic("t")
        self.fails: list[ColdStorageError] = []
        self.steps: list[Callable[[], object]] = []
        self.pauses: list[float] = []
        self.publish(b"0", b"1")
        self.bucket = Bucket(open_object_store(url), self.fails)
        self.reader = tiered.open(url, host=Host(open_bucket=lambda *_: self.bucket))  # type: ignore[arg-type,return-value]
        monkeypatch.setattr(self.reader.lifecycle, "pause", self.pause)

    def publish(self, *values: bytes) -> None:
        for value in values:
            self.topic.append(value)
        self.topic.flush()
        assert self.writer.tier((self.clock() + HOUR_US) // 1000).failed == ()

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self.steps:
            raise Ended
        self.steps.pop(0)()

    def follow(self) -> list[bytes]:
        found = []
        with pytest.raises(Ended):
            for record in self.reader.topic("t").read(follow=True):
                assert record.offset == len(found)
                found.append(record.value)
        return found


@pytest.fixture
def scene(tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(tmp_path, s3_bucket, monkeypatch)
    yield scene
    scene.reader.close()
    scene.writer.close()


def test_it_follows_new_heads_at_one_get_a_look(scene: Scene) -> None:
    """Tails, wholes that replace them, and nothing at all: each look is one GET, every two seconds."""

    def seal() -> None:
        scene.topic.roll()
        scene.publish()

    scene.steps = [lambda: scene.publish(b"2"), seal, lambda: None, lambda: scene.publish(b"3", b"4")]
    scene.bucket.heads = 0
    assert scene.follow() == [b"0", b"1", b"2", b"3", b"4"]
    assert scene.pauses == [2.0] * 5
    assert scene.bucket.heads == 5


def test_outages_are_waited_out_and_no_record_comes_twice(scene: Scene) -> None:
    """Whether the head fails or an object; the waits grow, and begin anew once a record came through."""

    def outage(count: int) -> Callable[[], None]:
        return lambda: scene.fails.extend(ColdStorageError("no answer", retryable=True) for _ in range(count))

    def both() -> None:
        scene.publish(b"2")
        outage(8)()

    scene.steps = [both, *[lambda: None] * 8, outage(1), lambda: scene.publish(b"3")]
    assert scene.follow() == [b"0", b"1", b"2", b"3"]
    assert scene.pauses == [2.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 2.0, 2.0, 2.0]


def test_it_goes_on_in_the_middle_of_a_snapshot(scene: Scene) -> None:
    """The first object was read and given out when the second one fails."""
    scene.topic.append_many([b"%d" % number for number in range(2, 10_000)])
    scene.publish()
    scene.publish(b"10000")
    scene.bucket.fails_at = "/data/00000000000000010000-"
    scene.steps = [lambda: None]
    assert scene.follow() == [b"%d" % number for number in range(10_001)]
    assert scene.bucket.fails_at == ""


def test_what_no_waiting_cures_is_raised(scene: Scene) -> None:
    scene.steps = [lambda: scene.fails.append(ColdStorageError("refused"))]
    with pytest.raises(ColdStorageError, match="refused"):
        list(scene.reader.topic("t").read(follow=True))
    scene.steps, scene.pauses = [], []
    scene.fails.append(ColdStorageError("no answer", retryable=True))
    with pytest.raises(ColdStorageError, match="no answer"):
        list(scene.reader.topic("t").read())
    assert scene.pauses == []


def test_columns_and_partitions_that_are_added_reach_a_handle(tmp_path: Path, clock: Clock) -> None:
    """As they do beside the writer: neither a scan nor whoever follows needs another handle."""
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=TAILS) as writer:
        topic = writer.create_topic("t", schema=pa.schema([("n", pa.int64())]))

        def publish(row: dict[str, Any], partition: int) -> None:
            topic.append(row, partition=partition, sync=True)
            assert writer.tier((clock() + HOUR_US) // 1000).failed == ()

        publish({"n": 1}, 0)
        with tiered.open(url) as reader:
            handle = reader.topic("t")
            following = handle.read(0, follow=True)
            assert next(following).value == {"n": 1}
            topic.add_columns(pa.schema([("city", pa.string())]))
            topic.add_partitions(2)
            for partition in (0, 1):
                publish({"n": 2, "city": "Bern"}, partition)
            reader.lifecycle.pause = lambda _: None  # type: ignore[method-assign]
            assert next(following).value == {"n": 2, "city": "Bern"}
            assert handle.scan().to_arrow()["city"].to_pylist() == [None, "Bern", "Bern"]
            assert handle.partitions == 2
            writer.delete_topic("t")
            with pytest.raises(tiered.TopicNotFound):
                handle.scan()


def test_retention_that_overtakes_is_said(scene: Scene) -> None:
    """Promise P8: never skipped."""

    def expire() -> None:
        scene.publish(b"2", b"3")
        scene.topic.roll()
        scene.topic.delete_before(4)
        scene.publish(b"4")

    scene.steps = [expire]
    with pytest.raises(tiered.OffsetOutOfRange) as raised:
        list(scene.reader.topic("t").read(follow=True))
    assert (raised.value.start, raised.value.end) == (4, 5)


def test_closing_the_store_ends_it_at_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.engine.read._FOLLOW_BUCKET_SECONDS", 120)
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=TAILS) as writer:
        writer.create_topic("t").append(b"0")
        writer.topic("t").flush()
        assert writer.tier((clock() + HOUR_US) // 1000).failed == ()
    reader, seen, raised = tiered.open(url), threading.Event(), []

    def follow() -> None:
        try:
            for _ in reader.topic("t").read(follow=True):
                seen.set()
        except tiered.StoreClosed as error:
            raised.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    assert seen.wait(20)
    reader.close()
    thread.join(30)  # less than one pause
    assert not thread.is_alive()
    assert raised
