"""When an active segment is sealed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.policies.planning import HOUR, kinds, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, apply, partition, segment, store
from tiered.base.units import Floor
from tiered.policies.facts import PartitionFacts
from tiered.policies.policy import LocalRetention, OffloadRule, Pin, Retention, Roll


def test_seal_by_size() -> None:
    facts = partition(active(1, 0, 10))
    assert kinds(plan(facts, rules(roll=Roll(bytes=10 << 10, age=None)))) == [("seal", 0, 10)]
    assert kinds(plan(facts, rules(roll=Roll(bytes=11 << 10, age=None)))) == []


def test_seal_by_age_counts_from_the_first_append() -> None:
    facts = partition(active(1, 0, 10, created_us=NOW - 3600 * SECOND))
    assert [item.reason for item in plan(facts, rules(roll=Roll(age=HOUR, bytes=None))).actions] == [
        "age 1h >= roll.age 1h"
    ]
    assert kinds(plan(facts, rules(roll=Roll(age=HOUR, bytes=None)), NOW - 1)) == []


def test_an_empty_segment_is_never_sealed() -> None:
    facts = partition(active(1, 5, 5, created_us=0, last_append_us=0, max_timestamp_us=0))
    policy = rules(roll=Roll(age=HOUR, bytes=1), retention=Retention(age=HOUR))
    assert kinds(plan(facts, policy)) == []


def test_the_last_records_of_an_idle_partition_are_sealed_to_expire() -> None:
    facts = partition(segment(1, 0, 10), active(2, 10, 20, last_append_us=NOW - 3600 * SECOND))
    policy = rules(retention=Retention(age=HOUR))
    first = plan(facts, policy)
    assert kinds(first) == [("seal", 10, 20), ("expire", 0, 10)]
    assert kinds(plan(apply(store(facts), first.actions, NOW), policy)) == [("expire", 10, 20)]


def test_an_expired_active_segment_stays_open_while_something_is_kept_before_it() -> None:
    young = segment(1, 0, 10, max_timestamp_us=NOW)
    facts = partition(young, active(2, 10, 20, max_timestamp_us=0))
    assert kinds(plan(facts, rules(retention=Retention(age=HOUR, by="timestamp")))) == []


def test_without_tail_shipping_an_idle_active_segment_is_sealed_to_be_offloaded() -> None:
    facts = partition(active(1, 0, 10, last_append_us=NOW - 3600 * SECOND))
    offload = OffloadRule(after=HOUR, tail_interval=None)
    first = plan(facts, rules(offload=offload))
    assert kinds(first) == [("seal", 0, 10)]
    assert kinds(plan(apply(store(facts), first.actions, NOW), rules(offload=offload))) == [
        ("offload", 0, 10)
    ]
    assert kinds(plan(store(facts, has_cold=False), rules(offload=offload))) == []


def test_on_a_short_disk_large_active_segments_are_sealed_as_far_as_is_needed() -> None:
    """Nothing else of them ever leaves: with many partitions they fill a disk before one of them is due."""

    def part(number: int, mib: int) -> PartitionFacts:
        size = {"local_bytes": mib << 20, "partition": number}
        return partition(active(10 * number, 0, 30, **size), partition=number)

    policy = rules(
        offload=OffloadRule(after=HOUR, tail_interval=None),
        local_retention=LocalRetention(free_disk=Floor(bytes=100 << 20)),
    )
    facts = store(
        part(1, 20), part(2, 50), part(3, 1), part(4, 30), disk_total_bytes=1 << 30, disk_free_bytes=30 << 20
    )
    sealed = [(item.kind, item.partition) for item in plan(facts, policy).actions]
    assert sorted(sealed) == [("seal", 2), ("seal", 4)]
    assert plan(facts, policy).actions[0].reason == "30MiB of disk free < local_retention.free_disk 100MiB"
    after = apply(facts, plan(facts, policy).actions, NOW)
    assert [item.kind for item in plan(after, policy).actions] == ["offload"] * 2, "what is on its way counts"


def test_on_a_short_disk_an_active_segment_that_would_not_leave_or_is_small_stays() -> None:
    large, floor = {"local_bytes": 50 << 20}, LocalRetention(free_disk=Floor(bytes=100 << 20))
    short: dict[str, Any] = {"disk_total_bytes": 1 << 30, "disk_free_bytes": 1 << 20}
    facts = store(partition(active(1, 0, 30, **large)), **short)
    for change in (
        {"offload": OffloadRule(after=None, tail_interval=None)},
        {"pin": Pin(topic=True)},
        {"pin": Pin(age=HOUR)},
    ):
        assert kinds(plan(facts, rules(local_retention=floor, **change))) == []
    here = rules(offload=OffloadRule(after=HOUR, tail_interval=None), local_retention=floor)
    assert kinds(plan(replace(facts, has_cold=False), here)) == []
    small = store(partition(active(1, 0, 30, local_bytes=(1 << 20) - 1)), **short)
    assert kinds(plan(small, here)) == []
