"""What leaves the disk, and what stays whatever the rules say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.policies.planning import HOUR, INERT, kinds, plan, rules
from tests.policies.policy_model import (
    NOW,
    SECOND,
    active,
    apply,
    object_fact,
    partition,
    published,
    segment,
    store,
)
from tiered.base.units import Floor
from tiered.policies.actions import EvictLocal
from tiered.policies.facts import ObjectFact, PartitionFacts
from tiered.policies.policy import LocalRetention, OffloadRule, Pin


def test_eviction_by_age_takes_only_what_is_published_under_its_id() -> None:
    facts = partition(
        published(1, 0, 10), segment(2, 10, 20, cold_bytes=999), published(3, 20, 30), active(4, 30, 40)
    )
    policy = rules(local_retention=LocalRetention(age=HOUR))
    assert kinds(plan(facts, policy)) == [("evict_local", 0, 10)]
    assert kinds(plan(facts, policy, NOW - 1)) == []
    assert kinds(plan(store(facts, has_cold=False), policy)) == []


def test_what_the_bucket_has_damaged_stays_on_the_disk() -> None:
    """It may be the only good copy, until the object is repaired; on a disk that runs full too."""
    segments = [published(number, 10 * number, 10 * number + 10) for number in range(3)]
    objects = [object_fact(item.base_offset, item.end_offset, item) for item in segments]
    facts = partition(*segments, active(9, 30, 40), objects=tuple(objects))
    policy = rules(local_retention=LocalRetention(age=HOUR, free_disk=Floor(1 << 40)))
    full = {"disk_total_bytes": 1 << 41, "disk_free_bytes": 1}
    assert len(kinds(plan(store(facts, **full), policy))) == 3
    objects[1] = replace(objects[1], damaged=True)
    facts = replace(facts, objects=tuple(objects))
    assert kinds(plan(store(facts, **full), policy)) == [("evict_local", 0, 10)]


def test_damage_is_not_looked_for_once_more_for_each_segment() -> None:
    """There may be thousands of segments, and of objects."""

    class Looks(tuple[ObjectFact, ...]):
        count = 0

        def __iter__(self) -> Iterator[ObjectFact]:
            self.count += 1
            return super().__iter__()

    found = []
    for segment_count in (2, 20):
        segments = [published(number, 10 * number, 10 * number + 10) for number in range(segment_count)]
        looks = Looks(object_fact(item.base_offset, item.end_offset, item) for item in segments)
        plan(partition(*segments, active(99, 10 * segment_count, 999), objects=looks), rules())
        found.append(looks.count)
    assert found[0] == found[1]


def test_eviction_by_size_takes_the_oldest_until_it_fits() -> None:
    facts = partition(*(published(n, 10 * n, 10 * n + 10) for n in range(4)), active(9, 40, 50))
    policy = rules(local_retention=LocalRetention(bytes=35 << 10))
    assert kinds(plan(facts, policy)) == [("evict_local", 0, 10), ("evict_local", 10, 20)]


def test_the_newest_file_stays_whatever_the_rules_say() -> None:
    facts = partition(published(1, 0, 10, newest=True, last_append_us=0))
    policy = rules(local_retention=LocalRetention(age=timedelta(0), bytes=0))
    assert kinds(plan(store(facts, disk_total_bytes=1 << 40), policy)) == []


def test_a_nearly_full_disk_evicts_the_oldest_of_all_partitions() -> None:
    def part(number: int, hours: int) -> PartitionFacts:
        old = {"last_append_us": NOW - hours * 3600 * SECOND, "partition": number}
        return partition(
            published(10 * number + 1, 0, 10, **old),
            published(10 * number + 2, 10, 20, **old),
            active(10 * number + 3, 20, 30, partition=number),
            partition=number,
        )

    facts = store(part(0, 2), part(1, 5), disk_total_bytes=1000 << 10, disk_free_bytes=25 << 10)
    result = plan(facts, INERT)
    assert [(item.kind, item.partition, item.base_offset) for item in result.actions] == [
        ("evict_local", 0, 0),
        ("evict_local", 1, 0),
        ("evict_local", 1, 10),
    ]
    assert result.actions[0].reason == "25KiB of disk free < local_retention.free_disk 50KiB"
    assert kinds(plan(replace(facts, disk_free_bytes=50 << 10), INERT)) == []
    assert kinds(plan(apply(facts, result.actions, NOW), INERT)) == []


def test_on_a_full_disk_an_outdated_file_goes_once_and_older_ones_go_too() -> None:
    """It lies behind one that only the full disk evicts."""
    facts = partition(
        published(1, 0, 10), published(2, 10, 20, outdated=True), published(3, 20, 30), active(4, 30, 40)
    )
    policy = rules(local_retention=LocalRetention(free_disk=Floor(bytes=25 << 10)))
    full = store(facts, disk_total_bytes=1 << 20, disk_free_bytes=10 << 10)
    evicted = [item for item in plan(full, policy).actions if isinstance(item, EvictLocal)]
    assert [(item.base_offset, item.reason[:25]) for item in evicted] == [
        (10, "it has records that were "),
        (0, "10KiB of disk free < loca"),
    ]


def test_on_a_short_disk_what_frees_it_comes_first_and_the_young_are_offloaded() -> None:
    """Each topic has its own floor; a partition that frees nothing waits for one that does."""
    old = {"last_append_us": NOW - 7200 * SECOND}
    first = partition(segment(1, 0, 10, last_append_us=NOW), active(2, 10, 20))
    second = partition(
        published(11, 0, 10, **old, partition=1), segment(12, 10, 20, last_append_us=NOW, partition=1),
        active(13, 20, 30, partition=1), partition=1,
    )  # fmt: skip
    policy = rules(
        offload=OffloadRule(after=HOUR, tail_interval=None),
        local_retention=LocalRetention(free_disk=Floor(bytes=100 << 10)),
    )
    short = store(first, second, disk_total_bytes=1 << 20, disk_free_bytes=50 << 10)
    actions = plan(short, policy).actions
    assert [(item.kind, item.partition) for item in actions] == [
        ("evict_local", 1),
        ("offload", 1),
        ("offload", 0),
    ]
    assert actions[1].reason == "50KiB of disk free < local_retention.free_disk 100KiB"
    roomy = replace(short, disk_free_bytes=100 << 10)
    assert plan(roomy, policy).actions == ()
    off = policy.model_copy(update={"local_retention": LocalRetention(free_disk=None)})
    assert plan(short, off).actions == ()


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        (Pin(), [("evict_local", 0, 10), ("evict_local", 10, 20)]),
        (Pin(age=2 * HOUR), [("evict_local", 0, 10)]),
        (Pin(topic=True), []),
    ],
)
def test_what_is_pinned_stays_whatever_the_limits_say(pin: Pin, expected: list[object]) -> None:
    facts = partition(
        published(1, 0, 10, last_append_us=NOW - 3 * 3600 * SECOND),
        published(2, 10, 20, last_append_us=NOW - 3600 * SECOND),
        active(3, 20, 30),
    )
    policy = rules(local_retention=LocalRetention(bytes=0), pin=pin)
    assert kinds(plan(facts, policy)) == expected
    full = store(facts, disk_total_bytes=1 << 30, disk_free_bytes=0)
    assert kinds(plan(full, policy.model_copy(update={"local_retention": LocalRetention()}))) == expected
