"""Consumers, snapshots and readers that stay open while a restore takes their log back: behind a server, in the directory, and in the bucket."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise
from tiered import aio
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.engine.host import Host
from tiered.errors import OffsetOutOfRange, PositionLost
from tiered.flight.server import actions
from tiered.format.schema import TRANSACTIONS_TOPIC
from tiered.store.interface.follow import follow_partitions
from tiered.tiering.claims import Claims

restores: Any = sys.modules["tiered.recovery.restore"]  # the package has a function of this name
KINDS = ["served", "read_only", "bucket"]
TAKEN_BACK = "a restore took the log back"


class Life:
    """A store with ten records of which a restore brings back five, and a reader that stays open across the restore."""

    def __init__(self, kind: str, root: Path, clock: Clock) -> None:
        self.kind, self.root, self.clock = kind, root, clock
        self.bucket = f"file://{root}/bucket"
        self.store = open_store(root / "data", self.bucket, clock)
        self.store.create_topic("effects")
        self.topic = self.store.create_topic("orders")
        self.at: int | None = self._add(b"old", 5)
        self._add(b"lost", 5)
        self.server = self.store.serve("127.0.0.1:0") if kind == "served" else None
        self.reader = self._reader()

    def _add(self, tag: bytes, rows: int) -> int:
        topic = self.store.topic("orders")
        topic.append_many([b"%s%d" % (tag, i) for i in range(rows)])
        topic.publish()
        with self.store.transaction() as transaction:
            transaction.append("effects", tag)
        self.store.topic("effects").publish()
        at = self.clock() // 1000 + 1
        self.clock.advance(60)
        return at

    def _reader(self) -> tiered.Store:
        if self.server is not None:
            return tiered.open(self.server.location)
        return (
            tiered.open(self.root / "data", read_only=True)
            if self.kind == "read_only"
            else tiered.open(self.bucket)
        )

    def lose_the_rest(self) -> None:
        """Append three records that are never published, and restore everything else."""
        self.store.topic("orders").append_many([b"never%d" % i for i in range(3)])
        self.store.flush()
        self.at = None

    def publish_positions(self) -> None:
        self.store.topic(TRANSACTIONS_TOPIC).publish()

    def restore(self, rows: int = 12) -> None:
        """Lose the directory, restore it, and append to it."""
        address = None if self.server is None else self.server.location.removeprefix("grpc://")
        self.store.close()
        tiered.restore(
            self.bucket, self.root / "back", at=self.at, settings=stepwise(), host=Host(clock=self.clock)
        ).close()
        shutil.rmtree(self.root / "data")
        (self.root / "back").rename(self.root / "data")
        self.store = open_store(self.root / "data", self.bucket, self.clock)
        if rows:
            self._add(b"new", rows)
        if address is not None:
            self.server = self.store.serve(address)

    def consumer(self, **options: Any) -> tiered.Consumer:
        return self.reader.topic("orders").consumer("billing", **options)

    def close(self) -> None:
        self.reader.close()
        self.store.close()


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Iterator[Callable[[str], Life]]:
    lives: list[Life] = []

    def made(kind: str) -> Life:
        lives.append(Life(kind, tmp_path, clock))
        return lives[-1]

    yield made
    for life in lives:
        life.close()


def values(consumer: tiered.Consumer, **options: Any) -> list[bytes]:
    return [value for batch in consumer.poll(5, **options) for value in batch["value"].to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_was_taken_back_is_noticed(begin: Callable[[str], Life], kind: str) -> None:
    life = begin(kind)
    consumer, earliest, latest, before = (
        life.consumer(),
        life.consumer(on_rewind="earliest"),
        life.consumer(on_rewind="latest"),
        life.consumer(),
    )
    for reader in (consumer, earliest, latest):
        assert len(values(reader)) == 10
    assert values(before, max_records=3) == [b"old0", b"old1", b"old2"]
    life.restore()
    for _ in range(2):
        with pytest.raises(PositionLost, match=TAKEN_BACK) as lost:
            consumer.poll(5)
        assert (lost.value.partition, lost.value.offset, lost.value.start, lost.value.end) == (0, 10, 0, 17)
    consumer.seek({0: 5})
    assert values(consumer)[:2] == [b"new0", b"new1"]
    assert values(earliest)[:6] == [b"old0", b"old1", b"old2", b"old3", b"old4", b"new0"]
    assert latest.poll(0) == []
    assert latest.position() == {0: 17}


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_that_the_restored_log_has_goes_on(begin: Callable[[str], Life], kind: str) -> None:
    life = begin(kind)
    consumer = life.consumer()
    consumer.seek({0: 5})
    life.restore()
    assert values(consumer)[:2] == [b"new0", b"new1"]
    if kind == "served":
        life.store.topic("orders").consumer("billing")  # the session was not in the bucket
        with pytest.raises(tiered.Fenced):
            consumer.commit()


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_shorter_than_the_position_is_noticed(begin: Callable[[str], Life], kind: str) -> None:
    life = begin(kind)
    consumer = life.consumer()
    assert len(values(consumer)) == 10
    life.restore(rows=1)
    with pytest.raises(PositionLost, match=TAKEN_BACK):
        consumer.poll(0)


def test_no_position_of_the_lost_log_is_committed(begin: Callable[[str], Life]) -> None:
    """Whatever is to follow: the server compares, as the client has not read since."""
    life = begin("served")
    consumer = life.consumer(on_rewind="latest")
    assert len(values(consumer)) == 10
    life.restore()
    for offsets in (None, {0: 7}):
        with pytest.raises(PositionLost, match="Nothing was committed"):
            consumer.commit(offsets)
        with (
            pytest.raises(PositionLost, match="Nothing was committed"),
            life.reader.transaction("etl") as transaction,
        ):
            transaction.append("effects", b"of the lost log")
            transaction.commit_position(consumer, offsets)
    assert life.store.topic("effects").offsets()[0].end == 2


def at_the_end(life: Life) -> tiered.Consumer:
    """A consumer whose position behind all records is in the bucket, and of these not all are."""
    life.lose_the_rest()
    consumer = life.consumer(on_rewind="latest")
    assert len(values(consumer)) == 13
    consumer.commit()
    life.publish_positions()
    return consumer


def test_positions_that_do_not_move_are_compared_too(begin: Callable[[str], Life]) -> None:
    """They were stored before the restore, and the session is in the bucket: nothing but the lineage tells."""
    life = begin("served")
    consumer = at_the_end(life)
    life.restore()
    for work in (consumer.commit, lambda: transfer(life, consumer)):
        with pytest.raises(PositionLost, match="Nothing was committed"):
            work()
    assert life.store.topic("effects").offsets()[0].end == 3


def transfer(life: Life, consumer: tiered.Consumer) -> None:
    with life.reader.transaction() as transaction:
        transaction.append("effects", b"of the lost log")
        transaction.commit_position(consumer)


def test_positions_of_a_coroutine_that_do_not_move_are_compared_too(begin: Callable[[str], Life]) -> None:
    life = begin("served")
    life.lose_the_rest()

    async def run() -> None:
        async with aio.open(life.server.location) as store:
            consumer = await (await store.topic("orders")).consumer("billing", on_rewind="latest")
            assert sum(batch.num_rows for batch in await consumer.poll(5)) == 13
            await consumer.commit()
            life.publish_positions()
            life.restore()
            consumer.sync.poll(0)
            with pytest.raises(PositionLost):
                await consumer.commit()
            with pytest.raises(PositionLost):
                async with store.transaction() as transaction:
                    await transaction.append("effects", b"of the lost log")
                    transaction.commit_position(consumer)

    asyncio.run(run())
    assert life.store.topic("effects").offsets()[0].end == 3


def test_a_position_at_the_same_offset_of_the_restored_log_is_stored(begin: Callable[[str], Life]) -> None:
    """Otherwise the next session would skip what came meanwhile."""
    life = begin("served")
    consumer = at_the_end(life)
    life.restore(rows=3)
    assert consumer.poll(0) == []
    assert consumer.position() == {0: 13}
    consumer.commit()
    life.store.topic("orders").append(b"after", sync=True)
    assert values(life.consumer(on_rewind="latest")) == [b"after"]


@pytest.mark.parametrize("again", [False, True], ids=["lost once", "lost twice"])
def test_positions_in_a_partition_that_was_lost_are_lost(
    begin: Callable[[str], Life], monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """It was added, and its positions were published; the topic's document, with the number of partitions, was not."""
    monkeypatch.setattr(Claims, "announce_partitions", lambda *_: None)
    life = begin("served")
    life.lose_the_rest()
    for _ in range(1 + again):
        life.store.topic("orders").add_partitions(2)
        life.store.topic("orders").append_many([{"value": b"lost", "partition": 1} for _ in range(5)])
        life.store.flush()
        consumer = life.consumer(partitions=1, on_rewind="latest")
        consumer.seek({1: 5})
        consumer.commit()
        life.publish_positions()
        life.restore(rows=0)
    topic = life.store.topic("orders")
    assert topic.partitions == 1
    topic.add_partitions(2)
    topic.append_many([{"value": b"new%d" % i, "partition": 1} for i in range(7)])
    topic.flush()
    with pytest.raises(PositionLost, match="Nothing was committed"):
        consumer.commit({1: 5})
    with pytest.raises(PositionLost, match=TAKEN_BACK):
        life.consumer(partitions=1)
    assert values(life.consumer(partitions=1, on_rewind="earliest"))[0] == b"new0"


@pytest.mark.parametrize("kind", ["served", "read_only"])
@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("told", [True, False])
def test_readers_of_a_partition_that_was_lost_and_has_other_records_notice_it(
    begin: Callable[[str], Life], monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, *, told: bool
) -> None:
    """The bucket knows the partition before it takes records, or begins a lineage when it is added again."""
    life = begin(kind)
    with monkeypatch.context() as outage:
        if not told:
            outage.setattr(StoreDocuments, "put_topic", unreachable)
        life.store.topic("orders").add_partitions(2)
    life.store.topic("orders").append_many([{"value": b"lost", "partition": 1} for _ in range(5)])
    life.lose_the_rest()
    topic = life.reader.topic("orders")
    consumer = topic.consumer("billing", partitions=1)
    assert len(values(consumer)) == 5
    followers = [topic.read(1, 0, follow=True), follow_partitions(topic, None)]  # type: ignore[arg-type]
    assert [record.value for record in islice(followers[0], 5)] == [b"lost"] * 5
    assert len(list(islice(followers[1], 18))) == 18
    snapshot = life.reader.snapshot(["orders"])
    life.restore(rows=0)
    topic = life.store.topic("orders")
    assert topic.partitions == 1 + told
    topic.add_partitions(2)
    topic.append_many([{"value": b"new%d" % i, "partition": 1} for i in range(rows)])
    topic.flush()
    with pytest.raises(PositionLost, match=TAKEN_BACK):
        consumer.poll(0)
    for records in followers:
        with pytest.raises(PositionLost, match=TAKEN_BACK):
            next(records)
    with pytest.raises(PositionLost, match=TAKEN_BACK):
        snapshot.scan("orders")


def test_partitions_are_added_while_the_bucket_does_not_answer(
    begin: Callable[[str], Life], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life = begin("read_only")
    with monkeypatch.context() as outage:
        outage.setattr(StoreDocuments, "put_topic", unreachable)
        life.store.topic("orders").add_partitions(2)
        assert "partitions of topic 'orders'" in caplog.text
    life.store.topic("orders").append_many([{"value": b"kept", "partition": 1}])
    life.store.topic("orders").publish()
    life.at = None
    life.restore(rows=0)
    assert life.store.topic("orders").offsets()[1].end == 1


def test_a_snapshot_of_a_bucket_has_no_scan_of_a_head_that_a_restore_takes_back_just_now(
    begin: Callable[[str], Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lineage does not show it yet, and less than the snapshot would have a part of its transactions."""
    life = begin("bucket")
    snapshot, found = life.reader.snapshot(["orders", "effects"]), []
    made = restores._Restore._segment

    def seen(self: Any, directory: Path, meta: Any, *arguments: Any) -> None:
        made(self, directory, meta, *arguments)
        if meta.name == "orders":
            with pytest.raises(PositionLost, match=TAKEN_BACK) as lost:
                snapshot.scan("orders")
            found.append((lost.value.offset, lost.value.end))

    monkeypatch.setattr(restores._Restore, "_segment", seen)
    life.restore()
    assert found == [(10, 5)]


def unreachable(*_: Any, **__: Any) -> None:
    raise tiered.ColdStorageError("no answer (injected)", retryable=True)


def test_a_restore_between_the_offsets_and_the_rows_is_noticed(
    begin: Callable[[str], Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    life = begin("served")
    consumer = life.consumer()
    consumer.seek({0: 7})
    real = actions.ACTIONS["wait"]

    def old_end(*arguments: Any) -> dict[str, Any]:
        return real(*arguments) | {"end": 10}

    life.restore()
    monkeypatch.setitem(
        actions.ACTIONS, "wait", lambda store, given: old_end(store, {**given, "lineage": None})
    )
    with pytest.raises(PositionLost, match=TAKEN_BACK):
        consumer.poll(0)


def test_a_coroutine_commits_no_position_of_the_lost_log(begin: Callable[[str], Life]) -> None:
    """The consumer in its thread has gone on in the restored log; what was returned is of the lost one."""
    life = begin("served")

    async def run() -> None:
        async with aio.open(life.server.location) as store:
            topic = await store.topic("orders")
            consumer = await topic.consumer("billing", on_rewind="earliest")
            assert sum(batch.num_rows for batch in await consumer.poll(5)) == 10
            life.restore()
            consumer.sync.poll(5)
            with pytest.raises(PositionLost):
                await consumer.commit()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_of_the_lost_log_has_no_scans(begin: Callable[[str], Life], kind: str) -> None:
    """Its ends would be those of other records."""
    life = begin(kind)
    snapshot = life.reader.snapshot(["orders", "effects"])
    life.restore()
    with pytest.raises(PositionLost, match=TAKEN_BACK) as lost:
        snapshot.scan("orders")
    assert (lost.value.partition, lost.value.offset, lost.value.start, lost.value.end) == (0, 10, 0, 17)
    assert life.reader.snapshot(["orders"]).scan("orders").to_arrow().num_rows == 17


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_and_a_reader_that_the_restored_log_has_go_on(
    begin: Callable[[str], Life], kind: str
) -> None:
    life = begin(kind)
    snapshot, records = life.reader.snapshot(["orders"]), life.reader.topic("orders").read(follow=True)
    held = life.reader.topic("orders").scan()
    assert [next(records).offset for _ in range(10)] == list(range(10))
    life.lose_the_rest()
    life.restore()
    scan = snapshot.scan("orders")
    assert scan.offsets == {0: (0, 10)}
    assert scan.to_arrow().equals(held.to_arrow())
    assert scan.to_arrow().num_rows == 10
    assert next(records).value == b"new0"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_follows_a_lost_log_ends(begin: Callable[[str], Life], kind: str) -> None:
    life = begin(kind)
    topic = life.reader.topic("orders")
    readers = [
        topic.read(follow=True),
        topic.read(0, 4, follow=True),
        follow_partitions(topic, None),  # type: ignore[arg-type]
    ]
    for records, rows in zip(readers, (10, 6, 10), strict=True):
        assert len(list(islice(records, rows))) == rows
    life.restore()
    for records in readers:
        with pytest.raises(PositionLost, match=TAKEN_BACK) as lost:
            next(records)
        assert (lost.value.partition, lost.value.offset) == (0, 10)


def test_a_scan_that_a_server_planned_ends_with_its_log(begin: Callable[[str], Life]) -> None:
    """Another run of the server has other records at its offsets, but the same before the restore."""
    life = begin("served")
    topic = life.reader.topic("orders")
    whole, common = topic.scan(), topic.scan(end_offset=5)
    life.restore()
    with pytest.raises(OffsetOutOfRange, match="another lineage"):
        whole.to_arrow()
    assert common.to_arrow()["value"].to_pylist() == [b"old%d" % i for i in range(5)]
