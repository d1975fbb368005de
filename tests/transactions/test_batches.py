"""A batch of Spark is in all its topics once, or in none: through crashes anywhere, restores, and repetitions."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.disk_model import Image
from tests.support.recorder import Recorder
from tests.support.stores import let_go, stepwise
from tests.transactions.batch_life import (
    BATCHES,
    QUERY,
    BatchLife,
    batch_rows,
    batches_in,
    found_in,
    put,
    stage,
)
from tests.transactions.faults import FAULTS, Fault
from tests.transactions.lives import (
    BUCKET,
    SHIPPED,
    check_each,
    check_each_bucket,
    host_of,
    opened,
    restored_at,
)
from tiered.tiering.publish_actions import PublishActions
from tiered.transactions import log_renewal, staging
from tiered.transactions.commits import Commits
from tiered.transactions.completion import Completion
from tiered.transactions.log_renewal import LogRenewal


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row be a record, and the log be renewed often, as with large batches."""
    monkeypatch.setattr(staging, "RECORD_BYTES", 1)
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 5)
    monkeypatch.setattr(log_renewal, "RENEW_BYTES_MIN", 4096)


def all_of(numbers: range) -> Counter[Any]:
    return Counter(row for number in numbers for row in batch_rows(number))


def replay(store: Any, first: int) -> None:
    """Commit all batches from one on, as a query that comes back; then each is there once."""
    for number in range(first, BATCHES):
        put(store, number, again=True)
    found = found_in(store)
    wanted = all_of(range(BATCHES))
    assert Counter({row: count for row, count in found.items() if row[2][:1].isdigit()}) == wanted


def check(life: BatchLife, root: Path, image: Image, index: int) -> None:
    promised = [item.number for item in life.promises if item.index <= index]
    begun = [item.number for item in life.begun if item.index < index]
    recorder = Recorder(root, image)
    with opened(recorder, life.cold) as store:
        for topic, partitions in (("eu", 2), ("us", 1)):
            store.create_topic(topic, partitions=partitions, exist_ok=True)
        there = batches_in(found_in(store))
        assert len(promised) <= len(there) <= len(begun)
        assert there == list(range(len(there)))
        replay(store, max(0, len(promised) - 1))
    with tiered.open(root / "data", read_only=True, host=host_of(recorder)) as reader:
        assert batches_in(found_in(reader)) == list(range(BATCHES))


def check_crashes(life: BatchLife, folder: Path, every: int = 1) -> int:
    images = ((index, image) for index, _, image in life.crashes())
    return check_each(images, folder, every, partial(check, life))


@pytest.mark.extended
def test_a_crash_anywhere_leaves_no_part_of_a_batch(tmp_path: Path) -> None:
    assert check_crashes(BatchLife(tmp_path / "life"), tmp_path, every=14) > 200


@pytest.mark.extended
def test_an_opening_appends_the_rows_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, some crash leaves a part of a batch."""
    monkeypatch.setattr(Completion, "complete", lambda *_: None)
    with pytest.raises(AssertionError):
        check_crashes(BatchLife(tmp_path / "life"), tmp_path, every=14)


def grow(store: Any, count: int) -> None:
    for _ in range(count):
        with store.transaction() as transaction:
            transaction.append("us", bytes(200))


@pytest.mark.parametrize("copied", [True, False])
def test_staged_rows_outlive_the_renewals_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, copied: bool
) -> None:
    """They hold back its start, or are appended again, so that one job that waits does not keep all that comes after it."""
    if not copied:
        monkeypatch.setattr(LogRenewal, "_append_staged", lambda *_: None)
    with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
        store.create_topic("eu", partitions=2)
        store.create_topic("us")
        rows = batch_rows(8)
        staged = [stage(store, rows[:3]), stage(store, rows[3:])]
        log = store.topic("__transactions")
        began = log.offsets()[0].start
        grow(store, 60)
        assert (log.offsets()[0].start > began + 20) is copied
    with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
        grow(store, 20)
        assert store.staging.commit(None, QUERY, 8, staged)
        assert batches_in(found_in(store)) == [8]
        grow(store, 40)
        assert store.topic("__transactions").offsets()[0].start > began + 60
        assert not put(store, 8)
    with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
        assert not put(store, 7)
        assert batches_in(found_in(store)) == [8]


@pytest.mark.extended
@pytest.mark.parametrize("kind", FAULTS)
def test_a_failed_operation_leaves_no_part_of_a_batch(kind: str, tmp_path: Path) -> None:
    """Whatever the error says, the batch is there wholly or not once the store is open again, and is taken again or known.

    After a full disk with room again, the second attempt succeeds in the same process.
    """
    error, names = FAULTS[kind]
    failures = 0
    for step in range(0, 400, 3):
        (tmp_path / f"{step}").mkdir()
        recorder = Recorder(tmp_path / f"{step}")
        store = opened(recorder)
        store.create_topic("eu", partitions=2)
        store.create_topic("us")
        assert put(store, 0)
        recorder.fault = fault = Fault(step, error, names)
        certain = [0]
        for number in range(1, 5):
            staged = []
            for _ in range(2):  # the second time as a driver that got an error, or no answer
                try:
                    staged = staged or [stage(store, batch_rows(number))]
                    store.staging.commit(None, QUERY, number, staged)
                    certain.append(number)
                    break
                except (tiered.TieredError, OSError):
                    failures += 1
        assert kind != "no room" or certain == [0, 1, 2, 3, 4]
        recorder.fault = None
        let_go(store)
        with tiered.open(tmp_path / f"{step}/data", settings=stepwise(offload="off")) as again:
            there = batches_in(found_in(again))
            assert set(certain) <= set(there)
            for number in range(5):
                if number not in there and number > max(there):
                    assert put(again, number)
                else:
                    assert not put(again, number)
            assert set(batches_in(found_in(again))) >= set(there)
        shutil.rmtree(tmp_path / f"{step}")
        if fault.left >= 0:
            break
    assert fault.left >= 0
    assert failures


def test_a_batch_that_may_not_be_durable_is_not_called_done(tmp_path: Path) -> None:
    """Its record is in the file after a failed sync, and a power cut may take it: the driver is not to go on."""
    recorder = Recorder(tmp_path)
    store = opened(recorder)
    store.create_topic("eu", partitions=2)
    store.create_topic("us")
    assert put(store, 1)
    staged = [stage(store, batch_rows(2))]
    recorder.fault = AllFail()
    for _ in range(2):
        with pytest.raises(tiered.PartitionPoisoned):
            store.staging.commit(None, QUERY, 2, staged)
    recorder.fault = None
    let_go(store)


class AllFail:
    """Lets every sync fail."""

    def __call__(self, name: str) -> None:
        if name == "sync":
            raise OSError(5, "Input/output error (injected)")


# -- the bucket --------------------------------------------------------------------------------------


def check_bucket(root: Path, image: Image) -> None:
    recorder = Recorder(root, image)
    host = host_of(recorder)
    if not any(key.endswith("store.json") for key in image.objects):
        return
    with tiered.open(BUCKET, host=host) as reader:
        seen = batches_in(found_in(reader))
    with tiered.restore(BUCKET, root / "restored", settings=SHIPPED, host=host) as store:
        for topic, partitions in (("eu", 2), ("us", 1)):
            store.create_topic(topic, partitions=partitions, exist_ok=True)
        there = batches_in(found_in(store))
        assert there == list(range(len(there)))
        assert set(seen) <= set(there)
        replay(store, 0)
        store.flush()
        store.tierer.tail_pass()
    with tiered.open(BUCKET, host=host) as reader:
        assert batches_in(found_in(reader)) == list(range(BATCHES))


def check_buckets(life: BatchLife, folder: Path, every: int = 1) -> int:
    return check_each_bucket(life.crashes(), folder, every, check_bucket)


@pytest.mark.extended
def test_no_moment_of_the_bucket_has_a_part_of_a_batch(tmp_path: Path) -> None:
    assert check_buckets(BatchLife(tmp_path / "life", BUCKET), tmp_path, every=6) > 30


BUCKET_STEPS: dict[str, tuple[Any, str, Callable[..., object]]] = {
    "the log is published before rows": (PublishActions, "_publish_log_first", lambda *_: None),
    "a restored store completes batches": (Completion, "recover", lambda *_: None),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", BUCKET_STEPS)
def test_each_protective_step_of_the_bucket_is_needed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BUCKET_STEPS[name])
    with pytest.raises(AssertionError):
        check_buckets(BatchLife(tmp_path / "life", BUCKET), tmp_path, every=2)


@pytest.mark.extended
def test_a_restore_to_a_time_has_the_batches_of_that_time(tmp_path: Path) -> None:
    life = BatchLife(tmp_path / "life", BUCKET)
    with opened(life.recorder, BUCKET, life.clock) as store:
        store.flush()
        store.tierer.tail_pass()
    objects = dict(life.recorder.bucket.objects)
    for number, time_us in enumerate(life.times_us):
        restored, _ = restored_at(life, objects, tmp_path / f"at{number}", time_us)
        with restored as store:
            assert batches_in(found_in(store)) == list(range(number + 1))
            # The query goes on where the restored store is.
            for again in range(BATCHES):
                assert put(store, again, again=True) is (again > number)
            assert batches_in(found_in(store)) == list(range(BATCHES))


# -- readers -----------------------------------------------------------------------------------------


def test_a_reader_sees_no_part_of_a_batch_that_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process, neither over partitions nor within one; one in the writer's process waits for the batch."""
    apply, seen = Commits._apply_batch, []

    def look() -> None:
        with tiered.open(tmp_path / "data", read_only=True) as reader:
            parts = [reader.topic(topic).scan(partitions=[0]).to_arrow().num_rows for topic in ("eu", "us")]
            seen.append([*parts, sum(found_in(reader).values())])

    def applied(self: Commits, held: Any, placing: Any, end: int, unsynced: Any) -> Any:
        for partition in held.values():
            watch(partition)
        return apply(self, held, placing, end, unsynced)

    def watch(partition: Any) -> None:
        append = partition.append

        def watched(*arguments: Any, **named: Any) -> None:
            append(*arguments, **named)
            partition.sync()
            look()

        partition.append = watched

    settings = stepwise({"block_bytes": "4KiB"}, offload="off")
    with tiered.open(tmp_path / "data", settings=settings) as store:
        store.create_topic("eu", partitions=2)
        store.create_topic("us")
        assert put(store, 0)
        store.flush()
        before = [len([row for row in batch_rows(0) if row[:2] == (topic, 0)]) for topic in ("eu", "us")]
        monkeypatch.setattr(Commits, "_apply_batch", applied)
        rows = [("eu", at % 2, b"%d" % at * 2000) for at in range(20)] + [("us", 0, b"u")]
        assert store.staging.commit(None, QUERY, 1, [stage(store, rows)])
    assert len(seen) > 4
    after = [before[0] + 10, before[1] + 1, len(batch_rows(0)) + 21]
    whole = [{first, last} for first, last in zip([*before, len(batch_rows(0))], after, strict=True)]
    assert all(count in counts for found in seen for count, counts in zip(found, whole, strict=True))
    assert seen[0] == [*before, len(batch_rows(0))]
