"""Transactions of a store with a bucket: its readers see no part of one, and a restore completes those that it finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.disk_model import Image
from tests.support.recorder import Recorder
from tests.support.stores import stepwise
from tests.transactions.lives import (
    BUCKET,
    ORDINARY,
    SHIPPED,
    Life,
    check_each_bucket,
    host_of,
    opened,
    parts_of,
    restored_at,
    rows_of,
)
from tiered.errors import ColdStorageError, CorruptionError
from tiered.recovery import restore
from tiered.tiering import publish_actions
from tiered.tiering.publish_actions import PublishActions
from tiered.transactions import log_renewal
from tiered.transactions.commits import Commits
from tiered.transactions.completion import Completion
from tiered.transactions.decision import Decision
from tiered.transactions.log_renewal import LogRenewal
from tiered.transactions.log_topic import LogTopic
from tiered.transactions.parts import Part, block_data
from tiered.transactions.transaction_rows import TransactionRows

EXTRA = 77
"""A transaction that a restored store commits."""


@pytest.fixture(autouse=True)
def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 7)


def whole(store: Any) -> list[int]:
    """Check that each transaction is there wholly or not; return those that are there."""
    found = rows_of(store)
    there = sorted({number for rows in found.values() for number in rows if number < ORDINARY} - {EXTRA})
    for number in there:
        held = {place: rows.count(number) for place, rows in found.items() if number in rows}
        assert held == parts_of(number)
    return there


def check(root: Path, image: Image) -> None:
    recorder = Recorder(root, image)
    host = host_of(recorder)
    if "store.json" not in image.objects and not any(key.endswith("store.json") for key in image.objects):
        return
    with tiered.open(BUCKET, host=host) as reader:
        seen = whole_snapshot(reader)
    with tiered.restore(BUCKET, root / "restored", settings=SHIPPED, host=host) as store:
        there = whole(store)
        assert there == list(range(len(there)))
        assert set(seen) <= set(there)
        if {"events", "sums"} <= set(store.topics()):
            with store.transaction("etl") as transaction:
                transaction.append("events", b"77", partition=1)
                transaction.append("sums", {"n": 77})
            assert rows_of(store)["events", 1][-1] == 77
        for topic in ("events", "__transactions", "sums"):
            if topic in store.open_topics.topic_names():
                store.topic(topic).flush()
                store.tierer.tails.publish(store.topic(topic).meta, 0)
                with tiered.open(BUCKET, host=host) as reader:
                    after = whole_snapshot(reader)
                    assert set(seen) <= set(after)


def whole_snapshot(store: Any) -> list[int]:
    """The same of one snapshot of both topics, as a reader of the bucket takes it."""
    topics = [topic for topic in ("events", "sums") if topic in store.topics()]
    snapshot = store.snapshot(topics)
    found: dict[tuple[str, int], list[int]] = {}
    for topic in topics:
        for row in snapshot.scan(topic).to_arrow().to_pylist():
            number = int(row["value" if topic == "events" else "n"])
            found.setdefault((topic, row["partition"]), []).append(number)
    there = sorted({number for rows in found.values() for number in rows if number < ORDINARY})
    for number in there:
        held = {place: rows.count(number) for place, rows in found.items() if number in rows}
        assert held == {place: count for place, count in parts_of(number).items() if place[0] in topics}
    return there


def check_buckets(life: Life, folder: Path, every: int = 1) -> int:
    """Check what moments leave in the bucket; return how many differ."""
    return check_each_bucket(life.crashes(), folder, every, check)


@pytest.mark.extended
def test_no_moment_of_the_bucket_has_a_part_of_a_transaction(tmp_path: Path) -> None:
    assert check_buckets(Life(tmp_path / "life", BUCKET), tmp_path, every=7) > 60


def check_times(life: Life, folder: Path) -> None:
    """A restore to each time has the transactions of that time, each whole, and no later one."""
    with opened(life.recorder, BUCKET, life.clock) as store:
        store.flush()
        store.tierer.tail_pass()
    objects = dict(life.recorder.bucket.objects)
    for number, time_us in enumerate(life.times_us):
        root = folder / f"at{number}"
        restored, host = restored_at(life, objects, root, time_us)
        with restored as store:
            assert whole(store) == list(range(number + 1))
            offsets = [item.offset for item in store.consumers() if item.partition == 0]
            assert offsets == [positions_of(life, number)]
            with store.transaction("etl") as transaction:
                transaction.append("events", b"77", partition=0)
                transaction.append("events", b"77", partition=1)
            store.flush()
            store.tierer.tail_pass()
        with tiered.open(BUCKET, host=host) as reader:
            found = rows_of(reader)
            assert (found["events", 0][-1], found["events", 1][-1]) == (77, 77)
        with tiered.open(root / "restored", settings=SHIPPED, host=host) as store:
            assert whole(store) == list(range(number + 1))
        shutil.rmtree(root)


def positions_of(life: Life, number: int) -> int:
    """The position in the first partition that the transaction with a number committed."""
    return life.positions[number]


@pytest.mark.extended
def test_a_restore_to_a_time_has_the_transactions_of_that_time(tmp_path: Path) -> None:
    check_times(Life(tmp_path / "life", BUCKET), tmp_path)


TIMES: dict[str, tuple[Any, str, Callable[..., object]]] = {
    "the log is restored beyond the time": (restore, "keeps_all_records", lambda *_: False),
    "later records are dropped": (LogTopic, "_find_cuts", lambda *_: ()),
    "a restored store completes transactions": (Completion, "complete", lambda *_: None),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", TIMES)
def test_each_protective_step_of_a_time_is_needed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A renewal, which comes at any time, would seal the log between two transactions.
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 1 << 14)
    monkeypatch.setattr(*TIMES[name])
    with pytest.raises(AssertionError):
        check_times(Life(tmp_path / "life", BUCKET), tmp_path)


STEPS: dict[str, tuple[Any, str, Callable[..., object]]] = {
    "the log is published before rows": (PublishActions, "_publish_log_first", lambda *_: None),
    "a restored store completes transactions": (Completion, "recover", lambda *_: None),
    "rows that got other offsets get another record": (LogRenewal, "rewrite_if_moved", lambda *_: None),
    "rows that are not published keep their records": (Completion, "_is_applied", lambda *_: True),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", STEPS)
def test_each_protective_step_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*STEPS[name])
    with pytest.raises(AssertionError):
        check_buckets(Life(tmp_path / "life", BUCKET), tmp_path, every=2)


def test_a_record_on_its_way_to_the_disk_is_published_first(tmp_path: Path) -> None:
    """A pass that meets a commit between its decision and its sync makes the record durable itself."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder, BUCKET) as store:
        topic = store.create_topic("events")
        topic.append(b"1")
        topic.flush()
        rows = TransactionRows()
        rows.add(topic.opened, b"2", None, None, None, None)
        (encoded,) = rows.encode()
        meta = topic.meta
        part = Part(meta.name, meta.topic_id, 0, 0, 1, 0, 1, 1, encoded.length)
        decision = Decision(None, "", ())
        store.transactions.decide([decision], lambda _: ([part], [block_data(encoded.bodies[0])]))
        assert store.tierer.tails.publish(meta, 0) == 1
        log = store.topic("__transactions")
        assert store.tierer.claims.known_end(log.meta, 0) == log.offsets()[0].end
    with tiered.restore(BUCKET, tmp_path / "life/restored", host=host_of(recorder)) as store:
        assert [row["value"] for row in store.topic("events").scan().to_arrow().to_pylist()] == [b"1", b"2"]


def test_nothing_is_published_behind_a_log_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore would find a part of the transaction; the next pass tries again."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder, BUCKET) as store:
        topic = store.create_topic("events")
        with store.transaction() as transaction:
            transaction.append("events", b"1")
        store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(publish_actions, "survey_tail", lambda *_: (None, []))
            with pytest.raises(ColdStorageError, match="nothing of the partition was published") as failed:
                store.tierer.tails.publish(topic.meta, 0)
            assert failed.value.retryable
        assert not any(key.endswith(".parquet") for key in recorder.bucket.objects)
        assert store.tierer.tails.publish(topic.meta, 0) == 1


def test_rows_do_not_wait_for_a_log_that_is_published_beyond_their_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows in the log may be damaged, or not be this store's any more."""

    def damaged(*_: object) -> None:
        raise CorruptionError("damaged (injected)")

    (tmp_path / "life").mkdir()
    with opened(Recorder(tmp_path / "life"), BUCKET) as store:
        topic = store.create_topic("events")
        with store.transaction() as transaction:
            transaction.append("events", b"1")
        store.flush()
        assert store.tierer.tails.publish(store.topic("__transactions").meta, 0)
        monkeypatch.setattr(publish_actions, "survey_tail", damaged)
        assert store.tierer.tails.publish(topic.meta, 0) == 1


def test_the_log_is_published_though_a_topic_of_its_rows_is_deleted_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "life").mkdir()
    with opened(Recorder(tmp_path / "life"), BUCKET) as store:
        metas = [store.create_topic(name).meta for name in ("events", "sums")]
        with store.transaction() as transaction:
            for meta in metas:
                transaction.append(meta.name, b"1")
        store.flush()
        store.delete_topic("events")
        monkeypatch.setattr(Commits, "participants", lambda _: metas)
        assert store.tierer.tails.publish(store.topic("__transactions").meta, 0) == 1


def test_a_paused_participant_keeps_its_transactions_in_the_log(tmp_path: Path) -> None:
    """Readers of the bucket see none of them, a restore completes all, and the log is not cut before they are published."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    wanted = [b"%d" % number for number in range(20)]

    def seen_in(store: Any) -> list[list[bytes]]:
        snapshot = store.snapshot(["events", "sums"])
        return [snapshot.scan(topic).to_arrow()["value"].to_pylist() for topic in ("events", "sums")]

    with opened(recorder, BUCKET) as store:
        store.create_topic("events")
        store.create_topic("sums")
        store.pause("sums")
        for value in wanted:  # more than the log holds before it is shortened
            with store.transaction() as transaction:
                transaction.append("events", value)
                transaction.append("sums", value)
        store.flush()
        store.tierer.tail_pass()
        host = host_of(Recorder(tmp_path, Image(objects=dict(recorder.bucket.objects))))
        with tiered.open(BUCKET, host=host) as reader:
            assert reader.topic("events").offsets()[0].end == 20
            assert seen_in(reader) == [[], []]
        with tiered.restore(BUCKET, tmp_path / "restored", settings=stepwise(), host=host) as restored:
            assert seen_in(restored) == [wanted, wanted]
        store.resume("sums")
        store.tierer.tail_pass()
        with tiered.open(BUCKET, host=host_of(recorder)) as reader:
            assert seen_in(reader) == [wanted, wanted]


def test_a_reader_from_before_the_first_transaction_sees_no_part_of_it(tmp_path: Path) -> None:
    """Nothing but `store.json` says that there are transactions now."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder, BUCKET) as store:
        topic = store.create_topic("events", partitions=2)
        topic.append(b"1", partition=0)
        topic.flush()
        store.tierer.tail_pass()
        with tiered.open(BUCKET, host=host_of(recorder)) as reader:
            seen = [reader.topic("events").scan().to_arrow()["value"].to_pylist()]
            with store.transaction() as transaction:
                for partition in (0, 1):
                    transaction.append("events", b"2", partition=partition)
            store.flush()
            for partition in (0, 1):
                store.tierer.tails.publish(topic.meta, partition)
                seen.append(reader.topic("events").scan().to_arrow()["value"].to_pylist())
    assert seen == [[b"1"], [b"1"], [b"1", b"2", b"2"]]
