"""A lease keeps what its snapshot names from the sweep, whoever dies, is late, or writes nonsense; and no longer."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cold.swept_store import GRACE, KEYS, Process, SweptStore, data_names
from tests.support.manifest_values import TOPIC
from tiered.cold.manifest.keys import LEASES_PREFIX, topic_prefix
from tiered.cold.manifest.leases import LEASE_SECONDS_MAX, Lease, is_lease, oldest_lease, server_seconds
from tiered.cold.upkeep.sweep import PartitionSweeper, SweepRules, sweep_deleted_topic, sweep_leases
from tiered.errors import ColdStorageError, ConfigError

SECONDS = 1000.0


class Coarse(SweptStore):
    """Modification times are cut to seconds, as S3 cuts them."""

    def put(self, key: str, data: object, **condition: object) -> str:
        etag = super().put(key, data, **condition)
        self.modified[key] = float(int(self.now))
        return etag


@pytest.fixture
def store() -> Coarse:
    return Coarse()


def take(store: SweptStore, seconds: float = SECONDS) -> Lease:
    return Lease.take(store, seconds=seconds, holder="job", monotonic=lambda: store.now)


def sweep(process: Process) -> None:
    """As `StoreSweep` does it: the clock, then the leases, then the partition."""
    now = server_seconds(process.store)
    leased = oldest_lease(process.store, now)
    rules = SweepRules(now, process.grace, leased_since_seconds=leased)
    sweep_leases(process.store, rules)
    sweeper = PartitionSweeper(process.partition, rules, dict(process.marks))
    sweeper.sweep(process.committer)
    process.marks = sweeper.marks


def process_of(store: SweptStore) -> Process:
    process = Process(store)
    process.committer.claim()
    return process


def replace_all(process: Process) -> None:
    """Merge everything into one new object, so that all others become orphans."""
    loaded = process.partition.load()
    assert loaded is not None
    from dataclasses import replace

    entries = process.partition.entries(loaded.head)
    ids = tuple(dict.fromkeys(item for entry in entries for item in entry.segment_ids))
    fresh = process.upload(loaded.head.end_offset, base=0)
    process.publish(replace(fresh, segment_ids=ids, generation=9))


def names(process: Process) -> set[str]:
    loaded = process.partition.load()
    return {entry.name for entry in process.partition.entries(loaded.head)} if loaded else set()


STEPS = ["append", "merge", "sweep", "sweep", "lease", "renew", 0.3, 0.9, GRACE, SECONDS / 3, SECONDS / 2]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(STEPS), min_size=12, max_size=40))
def test_whatever_happens_a_snapshot_under_a_lease_stays_whole(steps: list[str | float]) -> None:
    """Merges, sweeps, time and renewals in any order; and once the lease is over, orphans go."""
    store = Coarse()
    process = process_of(store)
    process.append()
    lease: Lease | None = None
    held: set[str] = set()
    for step in steps:
        match step:
            case "append":
                process.append()
            case "merge":
                replace_all(process)
            case "sweep":
                sweep(process)
            case float():
                store.now += step
            case "lease" if lease is None or lease.left_seconds <= 0:
                lease = take(store)
                held = names(process)
            case "renew" if lease is not None:
                if lease.left_seconds > 0:
                    lease.renew()
                else:
                    with pytest.raises(ColdStorageError, match="may have ended"):
                        lease.renew()
        if lease is not None and lease.left_seconds > 0:
            assert held <= data_names(store)
        assert names(process) <= data_names(store)
    store.now += LEASE_SECONDS_MAX + 2 * GRACE
    for _ in range(2):
        sweep(process)
        store.now += 2 * GRACE
    assert data_names(store) == names(process)
    assert not [key for key in store.objects if key.startswith(LEASES_PREFIX)]


def test_a_lease_that_says_nothing_sensible_keeps_everything_until_it_must_have_ended(store: Coarse) -> None:
    process = process_of(store)
    process.append()
    key = f"{LEASES_PREFIX}{uuid4()}.json"
    store.put(key, b'{"seconds": 1e9}')
    replace_all(process)
    for _ in range(3):
        store.now += LEASE_SECONDS_MAX / 4
        sweep(process)
        assert len(data_names(store)) == 2
    store.now += LEASE_SECONDS_MAX
    sweep(process)
    assert len(data_names(store)) == 1


def test_leases_that_cannot_be_read_are_unknown_and_released_ones_are_gone(store: Coarse) -> None:
    assert oldest_lease(store, store.now) is None
    first = take(store)
    store.now += 10
    second = take(store)
    assert oldest_lease(store, store.now) == first.taken_seconds == 1000
    store.now += 10
    first.renew()
    store.now += SECONDS - 5
    assert oldest_lease(store, store.now) == 1000, "a renewed one still covers what it covered"
    second.release()
    with pytest.raises(ColdStorageError):
        second.renew()
    with pytest.raises(ConfigError):
        take(store, LEASE_SECONDS_MAX + 1)
    store.fault = lambda verb, key: "lost" if verb == "get" else None
    with pytest.raises(ColdStorageError):
        oldest_lease(store, store.now)


def test_a_topic_may_be_called_like_the_folder(store: Coarse) -> None:
    assert is_lease(f"leases/{uuid4()}.json")
    for key in (
        f"leases/{uuid4()}/topic.json",
        "leases/x.json",
        f"lease/{uuid4()}.json",
        f"leases/{uuid4()}",
    ):
        assert not is_lease(key)
        store.put(key, b"x")
    assert oldest_lease(store, store.now) is None
    sweep_leases(store, SweepRules(1e12, 0.0))
    assert len(store.objects) == 3 + 1


def test_a_deleted_topic_stays_for_the_lease_of_its_reader(store: Coarse) -> None:
    prefix = topic_prefix("t", TOPIC)
    store.put(KEYS.data("a"), b"x")
    lease = take(store)
    store.put(f"{prefix}topic.json", b"tombstone")
    store.now += 2 * GRACE
    for due in (0, 1):
        rules = SweepRules(store.now, GRACE, leased_since_seconds=oldest_lease(store, store.now))
        assert len(sweep_deleted_topic(store, "t", TOPIC, rules, dry_run=False).deleted) == due
        if not due:
            lease.release()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock of this system counts its sleep")
def test_a_lease_ends_while_the_machine_sleeps(store: Coarse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock goes on meanwhile; Linux's monotonic one does not."""
    slept = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: 100.0 + slept[0] * (clock == time.CLOCK_BOOTTIME)
    )
    lease = Lease.take(store, seconds=SECONDS)
    assert lease.left_seconds > 0
    slept[0] = SECONDS
    assert lease.left_seconds <= 0
