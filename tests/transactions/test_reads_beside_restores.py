"""Reads of several topics from the bucket while a restore to a time moves one head after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest

import tiered
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.disk_model import Image, Objects, Put
from tests.support.memory_store import MemoryStore
from tests.support.recorder import Recorder
from tests.transactions.lives import BUCKET, SHIPPED, host_of, opened
from tests.transactions.published_in_part import TOPICS, TRANSACTIONS, Ends, life
from tiered.cold.manifest.restore_intent import abandon_restore, intent_of
from tiered.cold.manifest.restores import IntentHolder
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.protocol import ObjectInfo
from tiered.engine.host import Host
from tiered.engine.open_topics import OpenTopic
from tiered.errors import RestoreUnderWay
from tiered.format.document import decode_document, encode_document
from tiered.format.manifest import Head, Origin
from tiered.recovery import restore
from tiered.transactions import log_topic
from tiered.transactions.log_records import read_records
from tiered.transactions.log_topic import LogTopic
from tiered.transactions.restored_log import UNKNOWN, cuts_of
from tiered.transactions.transaction_log import TransactionLog
from tiered.warm.catalog import TransactionsCut


@cache
def states(number: int) -> list[Objects]:
    return restore_of(number)


def restore_of(number: int) -> list[Objects]:
    """The bucket before a restore to just after a transaction, and after each of its writes."""
    with TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), Image(objects=life().objects))
        clock = Clock(life().clock_us + 1_000_000)
        at = life().times_us[number] // 1000
        host = host_of(recorder, clock)
        tiered.restore(BUCKET, recorder.root / "data", at=at, settings=SHIPPED, host=host).abandon()
        found = [dict(life().objects)]
        for op in recorder.journal:
            if isinstance(op, Put):
                found.append({**found[-1], op.key: (op.data, op.etag)})
        return found


class MovingBucket(MemoryStore):
    """A bucket that is in a later state from its request number `after` on."""

    url = "s3://bucket/prefix"

    def __init__(self, before: Objects, later: Objects, after: int) -> None:
        super().__init__()
        self.objects, self.later, self.after = before, later, after
        self.count = 0

    def _step(self) -> None:
        if self.count == self.after:
            self.objects = self.later
        self.count += 1

    def _find(self, key: str) -> tuple[bytes, str]:
        self._step()
        return super()._find(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._step()
        return super().list(prefix)

    def folders(self, prefix: str) -> list[str]:
        self._step()
        return super().folders(prefix)


def open_bucket(bucket: MovingBucket) -> Any:
    return tiered.open(BUCKET, host=Host(clock=Clock(life().clock_us), open_bucket=lambda *_: bucket))


def ends_of(snapshot: Any) -> Ends:
    return {(name, partition): end for name, own in snapshot.ends.items() for partition, end in own.items()}


def whole(ends: Ends) -> int:
    """Check that each transaction is before all ends or behind all; return how many are before."""
    for number, own in enumerate(life().ends):
        there = {ends[place] >= end for place, end in own.items()}
        assert len(there) == 1, f"a part of transaction {number}: {ends}"
        if there == {False}:
            return number
    return TRANSACTIONS


def seen(reader: Any) -> int:
    """How many transactions a snapshot has; -1 if it says that a restore is under way."""
    try:
        return whole(ends_of(reader.snapshot(TOPICS)))
    except RestoreUnderWay:
        return -1


@pytest.mark.extended
@pytest.mark.parametrize("number", [0, 2, 3])
def test_no_state_of_a_restore_shows_a_part(number: int) -> None:
    """A restore that is cut short leaves such a state for good. Each partition alone stays readable."""
    counts = []
    for state in states(number):
        with open_bucket(MovingBucket(state, state, 0)) as reader:
            counts.append(seen(reader))
            topic = reader.topic("second")
            assert topic.scan(1).to_arrow().num_rows >= 0
            if counts[-1] < 0:
                with pytest.raises(RestoreUnderWay, match="repeat it"):
                    topic.scan()
    assert counts[0] == TRANSACTIONS
    assert -1 in counts
    assert 0 <= counts[-1] <= number + 1


@pytest.mark.extended
def test_no_read_shows_a_part_whenever_a_restore_moves_on() -> None:
    """Each request of the snapshot may be the last before the bucket moves on, by one step or by many."""
    found = heads(states(2))
    pairs = [(found[i], found[j]) for j in range(len(found)) for i in range(j)]
    assert {-1, TRANSACTIONS} <= moving(thinned(pairs, 11))


def heads(found: list[Objects]) -> list[Objects]:
    """The states that differ in a head or in the intent from the one before."""
    names = [key for key in found[-1] if key.endswith(("head.json", "/store.json")) or key == "store.json"]
    return [
        state
        for before, state in zip([{}, *found], found, strict=False)
        if any(before.get(name) != state.get(name) for name in names)
    ]


def moving(pairs: list[tuple[Objects, Objects]]) -> set[int]:
    """What snapshots have that begin in one state of the bucket and end in another."""
    counts = set()
    for before, later in pairs:
        after, requests = 0, 1
        while after < requests:
            bucket = MovingBucket(before, before, 0)
            with open_bucket(bucket) as reader:
                bucket.later, bucket.after, bucket.count = later, after, 0
                counts.add(seen(reader))
                requests = bucket.count
            after += 1
    return counts


def of_epoch(head: Any) -> tuple[int, bool]:
    return (0 if head is None else head.lineage_epoch), False


STEPS: dict[str, tuple[int, int, int, Any, str, object]] = {
    "the log is moved first": (2, 0, 4, restore, "TRANSACTIONS_TOPIC", ""),
    "a reader looks for the restore": (3, 5, 5, TransactionLog, "check_all_moved", lambda _: None),
    "a read ends in the lineage in which it began": (2, 0, 5, LogTopic, "lineage_of", lambda *_: UNKNOWN),
    "the lineage says whether the log was moved": (2, 2, 5, log_topic, "lineage_in", of_epoch),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", STEPS)
def test_each_protective_step_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number, before, later, *patch = STEPS[name]
    with monkeypatch.context() as patched:
        patched.setattr(*patch)
        found = heads(restore_of(number))
        with pytest.raises(AssertionError, match="a part of transaction"):
            moving([(found[before], found[later])])


def test_a_reader_that_stays_open_forgets_what_a_restore_undid() -> None:
    """Neither transactions nor positions from before the restore."""
    found = states(2)
    bucket = MovingBucket(found[0], found[0], 0)
    with open_bucket(bucket) as reader:
        assert seen(reader) == TRANSACTIONS
        bucket.objects = found[-1]
        assert 0 <= seen(reader) <= 3
        assert [(item.consumer, item.offset) for item in reader.consumers()] == [("billing", 2)]


def test_every_restore_from_which_a_log_descends_has_undone_its_records_and_no_later_ones() -> None:
    """The second restore, to before the end of the first, made the log shorter: what it got since lies where undone records lay."""
    head = Head(
        store_id=UUID(int=1), topic_id=UUID(int=2), partition=0, epoch=9, lineages=((1, 0), (5, 60), (7, 40)), commit_id="",
        start_offset=0, end_offset=45,
        origins=(Origin(5, 5_000, 1, 60, 0), Origin(6, 5_500, 5, 70, 0), Origin(7, 7_000, 5, 40, 0)),
        cuts=((5, 4_000), (6, 4_500), (7, 6_000)),
    )  # fmt: skip
    assert cuts_of(head) == (TransactionsCut(6_000, 40), TransactionsCut(4_000, 40))
    assert cuts_of(replace(head, cuts=((5, 4_000),))) == (TransactionsCut(4_000, 40),)


def test_a_replay_during_which_a_restore_moved_the_log_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of records reads the head anew, as where an object is gone; positions have no other check."""
    found = states(2)
    bucket = MovingBucket(found[0], found[0], 0)

    def move_on(topic: OpenTopic, names: Sequence[str], start: int, end: int) -> Iterator[Any]:
        rows = list(read_records(topic, names, start, end))
        bucket.objects = found[-1]
        log_topic.offset_ranges(topic)
        yield from rows

    monkeypatch.setattr(log_topic, "read_records", move_on)
    with open_bucket(bucket) as reader:
        assert [(item.consumer, item.offset) for item in reader.consumers()] == [("billing", 2)]


@pytest.mark.parametrize("leaves_out", [True, False])
def test_a_reader_leaves_out_that_an_undone_record_says_a_transaction_is_applied(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, leaves_out: bool
) -> None:
    """The log reaches beyond the time, and the rows of a partition came with later ones, which are undone."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder, BUCKET, clock) as store:
        for topic in TOPICS:
            store.create_topic(topic)
        with store.transaction() as transaction:
            for topic in TOPICS:
                transaction.append(topic, b"t")
        store.flush()
        store.tierer.tails.publish(store.topic("second").meta, 0)
        at = clock.advance(60) // 1000
        clock.advance(60)
        store.topic("First").append(b"later")
        store.flush()
        store.tierer.tail_pass()
    with opened(recorder, BUCKET, clock) as store:
        store.tierer.tail_pass()
    clock.advance(60)
    host = host_of(Recorder(tmp_path, Image(objects=recorder.bucket.objects)), clock)
    tiered.restore(BUCKET, tmp_path / "new", at=at, settings=SHIPPED, host=host).abandon()
    if not leaves_out:
        monkeypatch.setattr(LogTopic, "_find_cuts", lambda *_: ())
    with tiered.open(BUCKET, host=host) as reader:
        ends = reader.snapshot(TOPICS).ends
        assert (ends == {"First": {0: 0}, "second": {0: 0}}) is leaves_out


def cut_short() -> Objects:
    """The bucket after a restore died with one head moved, and the store before it went on."""
    found = dict(heads(states(3))[5])
    values = decode_document(found["store.json"][0], where="store.json")
    intent = intent_of(values, values["lineage"])
    assert intent is not None
    found["store.json"] = encode_document(abandon_restore(values, intent)), "etag-of-abandoned"
    return found


def test_a_reader_says_that_a_restore_was_cut_short() -> None:
    with open_bucket(MovingBucket(cut_short(), {}, -1)) as reader:
        with pytest.raises(RestoreUnderWay, match="was cut short") as failed:
            reader.snapshot(TOPICS)
        assert not failed.value.retryable


@pytest.mark.parametrize("ahead", [None, 3_600_000])
def test_a_restore_does_not_go_on_from_one_that_was_cut_short(tmp_path: Path, ahead: int | None) -> None:
    """Some heads are at a time and others are not: the newest state has parts of transactions, as any since that restore."""
    recorder = Recorder(tmp_path, Image(objects=cut_short()))
    host = host_of(recorder, Clock(life().clock_us + 7_200_000_000))
    at = None if ahead is None else life().clock_us // 1000 + ahead
    with pytest.raises(tiered.ConfigError, match="some partitions are at .* and others are not"):
        tiered.restore(BUCKET, recorder.root / "data", at=at, settings=SHIPPED, host=host)
    assert recorder.bucket.objects == cut_short()
    for number in (3, 1):
        path, at = recorder.root / f"{number}", life().times_us[number] // 1000
        with tiered.restore(BUCKET, path, at=at, settings=SHIPPED, host=host) as store:
            assert whole(ends_of(store.snapshot(TOPICS))) == number + 1


@pytest.mark.parametrize("ahead", [None, 3_600_000])
@pytest.mark.parametrize("release", ["this", "an early one"])
def test_a_restore_that_dies_after_one_that_was_finished_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int | None, release: str
) -> None:
    """Nothing of the bucket is half moved, and reads go on. Early releases do not write when a restore began."""
    recorder, clock = Recorder(tmp_path, Image(objects=states(2)[-1])), Clock(life().clock_us + 7_200_000_000)
    host, at = host_of(recorder, clock), None if ahead is None else life().clock_us // 1000 + ahead

    def again() -> tiered.Store:
        return tiered.restore(BUCKET, recorder.root / "data", at=at, settings=SHIPPED, host=host)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(restore._Restore, "_topic", dies)
        again()
    objects = recorder.bucket.objects
    if release == "an early one":
        values = decode_document(objects["store.json"][0], where="store.json")
        del values["restore"]["since_us"]
        objects["store.json"] = encode_document(values), "etag-of-an-early-release"
    with open_bucket(MovingBucket(objects, {}, -1)) as reader:
        assert seen(reader) == (-1 if release == "an early one" else 2)  # the third is published in part
    if release == "an early one":
        with pytest.raises(tiered.ConfigError, match="was not finished"):
            again()
    else:
        with again() as store:
            assert whole(ends_of(store.snapshot(TOPICS))) == 3


@pytest.mark.parametrize("began_us", [1, 1 << 60])
def test_a_restore_over_one_that_was_cut_short_is_no_excuse_for_its_parts(
    tmp_path: Path, began_us: int
) -> None:
    """It began later, by any clock, and has moved nothing yet."""
    documents = StoreDocuments(Recorder(tmp_path, Image(objects=cut_short())).bucket)
    before = documents.read_intent()
    assert before is not None
    assert before.since_us
    IntentHolder(documents, "1", "ann@other", began_us=began_us).begin()
    after = documents.read_intent()
    assert after is not None
    assert after.since_us == min(before.since_us, began_us)
    with open_bucket(MovingBucket(documents.store.objects, {}, -1)) as reader:  # type: ignore[attr-defined]
        assert seen(reader) == -1
