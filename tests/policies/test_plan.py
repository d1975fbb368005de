"""The plan, rule by rule, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

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
from tiered.policies.actions import (
    Action,
    Compress,
    Demote,
    EvictLocal,
    Expire,
    Offload,
    Promote,
    Scrub,
    Seal,
    ShipTail,
)
from tiered.policies.cost import COMMIT, Requests, estimate, upload_requests
from tiered.policies.facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts, ScrubFact, StoreFacts
from tiered.policies.plan import Plan, make_plan
from tiered.policies.policy import (
    PRESETS,
    CompressRule,
    LocalRetention,
    MergeRule,
    OffloadRule,
    Pin,
    Policy,
    PromoteRule,
    Retention,
    Roll,
    ScrubRule,
    StorageClass,
)
from tiered.policies.rules.promote import CopiesPlan

HOUR = timedelta(hours=1)
INERT = Policy(
    roll=Roll(age=None, bytes=None),
    compress=CompressRule(after=None),
    offload=OffloadRule(after=None, tail_interval=None),
    local_retention=LocalRetention(),
)


def rules(**changes: object) -> Policy:
    return INERT.model_copy(update=changes)


def plan(facts: StoreFacts | PartitionFacts, policy: Policy, now_us: int = NOW) -> Plan:
    facts = store(facts) if isinstance(facts, PartitionFacts) else facts
    return make_plan(facts, lambda _: policy, now_us)


def kinds(result: Plan) -> list[tuple[str, int, int]]:
    return [(item.kind, item.base_offset, item.end_offset) for item in result.actions]


# -- seal ----------------------------------------------------------------------------------------


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


# -- expire --------------------------------------------------------------------------------------


def test_expire_moves_the_start_offset_once_to_a_segment_boundary() -> None:
    facts = partition(
        published(1, 0, 10),
        segment(2, 10, 20),
        segment(3, 20, 30, last_append_us=NOW),
        active(4, 30, 40),
        start_offset=5,
    )
    (action,) = plan(facts, rules(retention=Retention(age=HOUR))).actions
    assert isinstance(action, Expire)
    assert (action.base_offset, action.end_offset) == (5, 20)
    assert action.bytes == (20 << 10) + (10 << 8)
    assert action.cold_bytes_delta == -(10 << 8)


def test_ages_count_from_the_last_append_unless_asked_otherwise() -> None:
    """Flights of 2013 do not expire on arrival."""
    facts = partition(segment(1, 0, 10, last_append_us=NOW, max_timestamp_us=0), active(2, 10, 20))
    assert kinds(plan(facts, rules(retention=Retention(age=HOUR)))) == []
    assert kinds(plan(facts, rules(retention=Retention(age=HOUR, by="timestamp")))) == [("expire", 0, 10)]


def test_retention_by_size_keeps_at_least_what_it_says() -> None:
    """As Kafka's: a segment goes only while what remains is no less than the limit."""
    facts = partition(segment(1, 0, 10), segment(2, 10, 20), active(3, 20, 30))
    assert kinds(plan(facts, rules(retention=Retention(bytes=20 << 10)))) == [("expire", 0, 10)]
    assert kinds(plan(facts, rules(retention=Retention(bytes=(20 << 10) + 1)))) == []
    assert kinds(plan(facts, rules(retention=Retention(bytes=1)))) == [("expire", 0, 20)]


def test_retention_by_size_counts_each_offset_once() -> None:
    """Local and cold copies, tails, lower generations and leftovers before the start do not add up."""
    tail = ColdObjectFact("tail", (UUID(int=2),), 20, 25, 10**9, NOW, NOW, tail=True)
    evicted = ColdObjectFact("data", (UUID(int=9),), 10, 15, 5 << 10, 0, 0)
    leftover = ColdObjectFact("old", (UUID(int=8),), 0, 10, 10**9, 0, 0)
    facts = partition(
        segment(1, 15, 20, generation=1, local_bytes=5 << 10),
        segment(1, 15, 20, generation=0, local_bytes=10**9),
        segment(2, 20, 30),
        active(3, 30, 40),
        start_offset=10,
        cold_objects=(tail, evicted, leftover),
    )
    assert [(item.base_offset, item.bytes >> 10) for item in facts.spans()] == [
        (10, 5),
        (15, 5),
        (20, 10),
        (30, 10),
    ]
    (action,) = plan(facts, rules(retention=Retention(bytes=30 << 10))).actions
    assert (action.kind, action.base_offset, action.end_offset) == ("expire", 10, 10)
    assert "before the start offset" in action.reason


def test_eviction_does_not_change_what_retention_by_size_counts() -> None:
    facts = store(partition(published(1, 0, 10), active(2, 10, 20)))
    evicted = apply(facts, plan(facts, rules(local_retention=LocalRetention(bytes=0))).actions, NOW)
    assert evicted.partitions[0].segments != facts.partitions[0].segments
    assert [item.bytes for item in evicted.partitions[0].spans()] == [
        item.bytes for item in facts.partitions[0].spans()
    ]


def test_a_merged_object_counts_for_the_offsets_that_no_segment_holds() -> None:
    merged = ColdObjectFact("merged", (UUID(int=1), UUID(int=2)), 0, 100, 1000, 0, 0)
    facts = partition(published(2, 60, 100), active(3, 100, 110), cold_objects=(merged,), start_offset=0)
    assert next((item.base_offset, item.end_offset, item.bytes) for item in facts.spans()) == (0, 60, 600)


def test_what_a_deletion_left_behind_is_removed_even_when_nothing_expires() -> None:
    facts = partition(segment(1, 0, 10), active(2, 10, 20), start_offset=10)
    assert kinds(plan(facts, INERT)) == [("expire", 10, 10)]
    assert kinds(plan(store(facts, has_cold=False), INERT)) == [("expire", 10, 10)]


def test_a_bucket_without_a_manifest_is_told_where_the_log_begins_once() -> None:
    """A restore would give the offsets before it again; where nothing is ever offloaded there is none to restore."""
    facts = store(partition(active(1, 0, 10), start_offset=10))
    policy = rules(offload=OffloadRule(after=HOUR))
    result = plan(facts, policy)
    (action,) = result.actions
    assert isinstance(action, Expire)
    assert (action.base_offset, action.end_offset, action.begins_manifest) == (10, 10, True)
    assert plan(apply(facts, result.actions, NOW), policy).actions == ()
    assert plan(facts, rules(offload=OffloadRule(after=None))).actions == ()
    assert plan(store(partition(active(1, 0, 10))), policy).actions == ()
    assert plan(replace(facts, has_cold=False), policy).actions == ()


def test_expired_segments_are_neither_offloaded_nor_evicted_nor_compressed() -> None:
    facts = partition(published(1, 0, 10), segment(2, 10, 20), active(3, 20, 30))
    policy = Policy(retention=Retention(age=HOUR))
    assert kinds(plan(facts, policy)) == [("expire", 0, 20)]


def test_what_follows_the_expired_is_offloaded_after_it() -> None:
    """Nothing was published before the start offset, so the manifest may begin there."""
    facts = partition(
        segment(1, 0, 10, last_append_us=NOW - 7200 * SECOND), segment(2, 10, 20), active(3, 20, 30)
    )
    policy = rules(retention=Retention(age=2 * HOUR), offload=OffloadRule(after=HOUR, tail_interval=None))
    assert kinds(plan(facts, policy)) == [("expire", 0, 10), ("offload", 10, 20)]


# -- offload and tail ----------------------------------------------------------------------------


def test_offload_goes_oldest_first_and_leaves_no_gap() -> None:
    facts = partition(
        published(1, 0, 10),
        segment(2, 10, 20),
        segment(3, 20, 30, last_append_us=NOW),
        segment(4, 30, 40),
        active(5, 40, 50),
    )
    offload = OffloadRule(after=HOUR, tail_interval=None)
    assert kinds(plan(facts, rules(offload=offload))) == [("offload", 10, 20)]
    assert kinds(plan(facts, rules(offload=offload), NOW + 3600 * SECOND)) == [
        ("seal", 40, 50),
        ("offload", 10, 20),
        ("offload", 20, 30),
        ("offload", 30, 40),
    ]
    assert kinds(plan(store(facts, has_cold=False), rules(offload=offload))) == []


def test_a_hole_in_the_log_is_said_and_not_published_over() -> None:
    facts = partition(published(1, 0, 10), segment(2, 15, 20), active(3, 20, 30))
    result = plan(facts, rules(offload=OffloadRule(after=HOUR)))
    assert kinds(result) == []
    (note,) = result.notes
    assert "t/0: offsets 10 to 15 are neither published nor local" in note


def test_the_durable_tail_is_shipped_every_interval() -> None:
    facts = partition(published(1, 0, 10), active(2, 10, 30), durable_offset=25, published_offset=15)
    ship = OffloadRule(after=HOUR, tail_interval=timedelta(seconds=10))
    due = replace(facts, tail_shipped_us=NOW - 10 * SECOND)
    (action,) = plan(due, rules(offload=ship)).actions
    assert isinstance(action, ShipTail)
    assert (action.base_offset, action.end_offset, action.segment_id) == (15, 25, UUID(int=2))
    assert action.bytes == 10 << 10
    assert kinds(plan(replace(due, tail_shipped_us=NOW - 9 * SECOND), rules(offload=ship))) == []
    assert kinds(plan(replace(due, durable_offset=15), rules(offload=ship))) == []
    assert kinds(plan(due, rules(offload=OffloadRule(after=HOUR, tail_interval=None)))) == []


def test_a_sealed_segment_that_is_not_due_yet_is_shipped_as_a_tail_before_the_active_one() -> None:
    """Otherwise the bucket would be ``offload.after`` behind after each roll, or have a gap."""
    facts = partition(
        segment(1, 0, 10, last_append_us=NOW), active(2, 10, 20), published_offset=4, tail_shipped_us=0
    )
    result = plan(facts, rules(offload=OffloadRule(after=HOUR)))
    assert kinds(result) == [("ship_tail", 4, 10), ("ship_tail", 10, 20)]
    assert [item.segment_id for item in result.actions] == [UUID(int=1), UUID(int=2)]


def test_nothing_is_shipped_past_what_was_durable_when_the_facts_were_gathered() -> None:
    """A writer may seal between two looks at it; that is no hole in the log."""
    facts = partition(
        segment(1, 0, 10, last_append_us=NOW), active(2, 10, 20), durable_offset=5, tail_shipped_us=0
    )
    result = plan(facts, rules(offload=OffloadRule(after=HOUR)))
    assert kinds(result) == [("ship_tail", 0, 5)]
    assert result.notes == ()


def test_an_offload_replaces_the_tails_of_its_segment() -> None:
    tail = ColdObjectFact("tail", (UUID(int=1),), 0, 8, 3 << 10, NOW, NOW, tail=True)
    facts = partition(segment(1, 0, 10), active(2, 10, 10), published_offset=8, cold_objects=(tail,))
    (action,) = plan(facts, rules(offload=OffloadRule(after=HOUR))).actions
    assert isinstance(action, Offload)
    assert action.cold_bytes_delta == 7 << 10


# -- evict ---------------------------------------------------------------------------------------


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


# -- compress ------------------------------------------------------------------------------------


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


def test_compress_what_is_old_enough_and_not_encoded_as_asked() -> None:
    facts = partition(segment(1, 0, 10), segment(2, 10, 20, codec="zstd"), active(3, 20, 30))
    policy = rules(compress=CompressRule(codec="zstd", level=7, after=HOUR))
    (action,) = plan(facts, policy).actions
    assert isinstance(action, Compress)
    assert (action.base_offset, action.codec, action.level) == (0, "zstd", 7)
    assert kinds(plan(facts, policy, NOW - 1)) == []


def test_small_blocks_are_merged_once() -> None:
    small = segment(1, 0, 10, codec="zstd", block_count=100, raw_bytes=1 << 20)
    policy = rules(compress=CompressRule(codec="zstd", after=HOUR))
    assert kinds(plan(partition(small, active(2, 10, 20)), policy)) == [("compress", 0, 10)]
    for fine in (replace(small, generation=1), replace(small, block_count=4), replace(small, block_count=0)):
        assert kinds(plan(partition(fine, active(2, 10, 20)), policy)) == []


@pytest.mark.parametrize(
    ("local", "offload", "compressed"),
    [
        (timedelta(hours=2), HOUR, True),
        (timedelta(hours=1, minutes=30), HOUR, False),
        (timedelta(hours=1, minutes=30), None, True),
        (None, HOUR, True),
    ],
)
def test_what_leaves_the_disk_soon_is_not_compressed(
    local: timedelta | None, offload: timedelta | None, compressed: bool
) -> None:
    policy = rules(
        compress=CompressRule(after=HOUR),
        local_retention=LocalRetention(age=local),
        offload=OffloadRule(after=offload, tail_interval=None),
    )
    actions = plan(partition(segment(1, 0, 10), active(2, 10, 20)), policy).actions
    assert any(isinstance(item, Compress) for item in actions) is compressed


@pytest.mark.parametrize("pin", [Pin(topic=True), Pin(age=3 * HOUR)])
def test_what_is_pinned_for_long_is_compressed_however_short_its_time_else(pin: Pin) -> None:
    policy = rules(
        compress=CompressRule(after=HOUR), local_retention=LocalRetention(age=timedelta(0)), pin=pin
    )
    facts = partition(published(1, 0, 10), active(2, 10, 20))
    assert kinds(plan(facts, policy)) == [("compress", 0, 10)]


# -- the life of a segment, and what the plan says -----------------------------------------------


def test_the_default_policy_takes_a_segment_through_its_life() -> None:
    """Hour by hour: sealed, offloaded, compressed, evicted, and never deleted."""
    facts = store(partition(active(1, 0, 10, created_us=NOW), tail_shipped_us=0))
    lived: list[tuple[int, str]] = []
    for minutes in (0, 5, 60, 61, 71, 7 * 60, 30 * 24 * 60):
        now = NOW + minutes * 60 * SECOND
        for _ in range(4):
            actions = plan(facts, Policy(), now).actions
            lived += [(minutes, item.kind) for item in actions]
            facts = apply(facts, actions, now)
    assert lived == [
        (0, "ship_tail"),
        (60, "seal"),
        (60, "offload"),
        (60, "compress"),
        (7 * 60, "evict_local"),
        (30 * 24 * 60, "scrub"),
    ]
    assert facts.partitions[0].start_offset == 0


@pytest.mark.parametrize("policy", [Policy(), *PRESETS.values()])
def test_every_preset_offloads_and_evicts(policy: Policy) -> None:
    facts = store(partition(active(1, 0, 10)))
    late = NOW + 30 * 24 * 3600 * SECOND
    seen: list[Action] = []
    for _ in range(4):
        actions = plan(facts, policy, late).actions
        seen += actions
        facts = apply(facts, actions, late)
    assert {Seal, Offload, EvictLocal} <= {type(item) for item in seen}
    assert not any(isinstance(item, Expire) for item in seen)


def test_totals_rows_and_json() -> None:
    big = segment(1, 0, 10, local_bytes=1 << 30)
    result = plan(partition(big, active(2, 10, 10)), rules(offload=OffloadRule(after=HOUR)))
    parts = (1 << 30) // (8 << 20)
    assert result.requests == Requests(writes=parts + 2 + 2, reads=2)
    assert result.upload_bytes == result.bytes == 1 << 30
    assert result.cost.monthly_usd == pytest.approx(0.023)
    assert result.cost.one_off_usd == pytest.approx((132 * 0.005 + 2 * 0.0004) / 1000)
    assert result.describe() == [
        ("offload", "t", "0", "[0, 10)", "1GiB", "134", "age 1h >= offload.after 1h"),
    ]
    assert len(result.describe()[0]) == len(Plan.COLUMNS)
    values = json.loads(json.dumps(result.to_json()))
    assert values["totals"]["actions"] == {"offload": 1}
    assert values["actions"][0]["segment_id"] == str(UUID(int=1))
    assert str(result.actions[0]) == "offload t/0 [0, 10) 1GiB: age 1h >= offload.after 1h"


def test_now_is_when_the_facts_were_gathered_unless_said() -> None:
    facts = store(partition(segment(1, 0, 10), active(2, 10, 20)), now_us=NOW - 1)
    policy = rules(retention=Retention(age=HOUR))
    assert make_plan(facts, lambda _: policy).actions == ()
    assert kinds(make_plan(facts, lambda _: policy, NOW)) == [("expire", 0, 10)]


def test_costs() -> None:
    assert upload_requests(0) == upload_requests(8 << 20) == Requests(1, 1)
    assert upload_requests((8 << 20) + 1) == Requests(4, 1)
    assert COMMIT + Requests(1, 1) == Requests(3, 2)
    counted = {
        "PutObject": 2,
        "UploadPart": 3,
        "ListObjectsV2": 1,
        "HeadObject": 1,
        "GetObject": 4,
        "DeleteObjects": 9,
    }
    assert Requests.of(counted) == Requests(6, 5)
    assert estimate(Requests(1000, 1000), 1 << 30, "STANDARD_IA").one_off_usd == pytest.approx(0.011)
    assert estimate(Requests(), -(1 << 30)).monthly_usd == pytest.approx(-0.023)


# -- merge and scrub -----------------------------------------------------------------------------

DAY_US = 86_400 * SECOND


def objects(*sizes: int, **changes: object) -> tuple[ObjectFact, ...]:
    """Objects of one record each, a day old."""
    return tuple(
        replace(ObjectFact(f"o{i}", i, i + 1, size, NOW - DAY_US, NOW - DAY_US), **changes)  # type: ignore[arg-type]
        for i, size in enumerate(sizes)
    )


def merged(facts: tuple[ObjectFact, ...], start: int = 0, **rule: object) -> list[tuple[int, int]]:
    values: dict[str, object] = {"target_bytes": 100, "after": HOUR, **rule}
    retention = values.pop("retention", Retention())
    policy = rules(merge=MergeRule.model_validate(values), retention=retention, scrub=ScrubRule(every=None))
    part = partition(active(1, 1000, 1000), start_offset=start, objects=facts)
    return [(low, high) for kind, low, high in kinds(plan(part, policy)) if kind == "merge"]


def test_what_is_merged() -> None:
    """Fill the target from the left; of the rest, what grows fourfold; a large one parts its neighbours."""
    small = objects(10, 10, 10, 10)
    assert merged(small) == [(0, 4)]
    assert merged(small[:3]) == []
    assert merged(objects(*[10] * 23)) == [(0, 10), (10, 20)]
    assert merged(objects(40, 9)) == []
    assert merged(objects(40, 10)) == [(0, 2)]
    assert merged(objects(10, 10, 50, 10, 10, 10, 10)) == [(3, 7)]
    assert merged(objects(1, 1, 1, 1, 40, 2, 1)) == [(0, 4)]
    assert merged(objects(1, 1, 1, 1, segment_count=100)) == [(0, 2), (2, 4)]


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_id": 1},
        {"lineage": 2},
        {"sealed": False},
        {"damaged": True},
        {"last_append_us": NOW},
        {"bytes": 50},
    ],
    ids=str,
)
def test_what_parts_those_that_are_merged(changes: dict[str, object]) -> None:
    found = objects(*[10] * 9)
    odd = replace(found[4], **changes)  # type: ignore[arg-type]
    assert merged((*found[:4], odd, *found[5:])) == [(0, 4), (5, 9)]


def test_what_is_not_worth_merging() -> None:
    """Not what begins before the start offset, what is younger than the rule says, or what retention takes soon."""
    found = objects(*[10] * 8)
    assert merged(found, start=1) == [(1, 8)]
    assert (
        merged(found, after=2 * 24 * HOUR)
        == merged(found, after="off")
        == merged(found, target_bytes="off")
        == []
    )
    assert merged(found, retention=Retention(age=30 * HOUR)) == []
    assert merged(found, retention=Retention(age=40 * HOUR)) == [(0, 8)]
    spread = tuple(
        replace(x, last_append_us=x.last_append_us + i * 3600 * SECOND) for i, x in enumerate(found)
    )
    parts = merged(spread, retention=Retention(age=40 * HOUR))
    assert parts
    assert all(high - low <= 4 for low, high in parts), "what lies within a tenth of the retention"
    # The oldest quarter of what retention by bytes keeps goes next, and no object is more than a tenth of it.
    assert merged(objects(*[10] * 80), retention=Retention(bytes=1000))[0][0] == 6
    assert MergeRule.model_validate("off") == MergeRule(target_bytes=None, after=None)


def test_a_scrub_begins_again_and_goes_on() -> None:
    part = partition(active(1, 1000, 1000), start_offset=2, objects=objects(*[10] * 6))
    policy = rules(merge=MergeRule(after=None), scrub=ScrubRule(every=24 * HOUR, bytes_per_pass=25))

    def found(scrub: ScrubFact | None, now_us: int = NOW) -> list[tuple[int, int, int, bool, bool]]:
        actions = plan(replace(part, scrub=scrub), policy, now_us).actions
        return [
            (x.base_offset, x.end_offset, x.round, x.deep, x.completes)
            for x in actions
            if isinstance(x, Scrub)
        ]

    assert found(None) == [(2, 4, 1, False, False)]
    assert found(None, NOW - 1) == []
    assert found(ScrubFact(1, NOW, 0, 4)) == [(4, 6, 1, False, True)]
    assert found(ScrubFact(3, NOW - DAY_US, NOW, 0)) == [(2, 4, 4, True, False)]
    assert found(ScrubFact(3, NOW - DAY_US + 1, NOW, 0)) == found(ScrubFact(3, NOW + 1, NOW, 0)) == []
    assert found(ScrubFact(3, NOW + 2 * DAY_US, NOW, 0)) == [(2, 4, 4, True, False)]
    assert found(ScrubFact(3, NOW, 0, 900)) == []


# -- pressure, pins, classes, copies -------------------------------------------------------------


def test_offload_by_size_takes_the_oldest_until_the_rest_may_wait() -> None:
    parts = [segment(i, 10 * i, 10 * i + 10, last_append_us=NOW) for i in range(3)]
    facts = partition(*parts, active(9, 30, 40))
    policy = rules(offload=OffloadRule(after=HOUR, tail_interval=None, bytes=20 << 10))
    assert kinds(plan(facts, policy)) == [("offload", 0, 10)]
    assert plan(facts, policy).actions[0].reason == "size 30KiB, offload.bytes is 20KiB"
    assert kinds(plan(store(facts, has_cold=False), policy)) == []


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


def test_small_files_are_not_compressed_and_the_target_block_decides_what_is_small() -> None:
    facts = partition(segment(1, 0, 10, codec="zstd", block_count=2, raw_bytes=200 << 10), active(2, 10, 20))
    rule = CompressRule(codec="zstd", after=timedelta(0))
    (action,) = plan(facts, rules(compress=rule.model_copy(update={"block_bytes": 2 << 20}))).actions
    assert isinstance(action, Compress)
    assert action.block_bytes == 2 << 20
    assert kinds(plan(facts, rules(compress=rule.model_copy(update={"block_bytes": 200 << 10})))) == []
    assert kinds(plan(facts, rules(compress=rule.model_copy(update={"min_bytes": 11 << 10})))) == []


def test_objects_move_once_if_they_are_large_and_stay_long_enough() -> None:
    def policy(**retention: object) -> Policy:
        moved = StorageClass(name="STANDARD_IA", after=HOUR)
        return rules(storage_class=moved, retention=Retention(**retention), merge=MergeRule(after=None))

    old = ObjectFact("old", 0, 10, 1 << 20, NOW - DAY_US, NOW - DAY_US)
    small = replace(old, name="small", base_offset=10, end_offset=20, bytes=100 << 10)
    moved = replace(old, name="moved", base_offset=20, end_offset=30, storage_class="STANDARD_IA")
    facts = store(partition(active(1, 30, 40), start_offset=0, objects=(old, small, moved)), has_classes=True)
    (action,) = plan(facts, policy()).actions
    assert (action.kind, action.bytes, action.cold_bytes_delta) == ("change_class", 1 << 20, 0)
    assert plan(facts, policy()).cost.monthly_usd == pytest.approx((0.0125 - 0.023) / 1024)
    assert plan(facts, policy(age=timedelta(days=30))).actions == (), "billed for 30 days, kept for 29"
    assert len(plan(facts, policy(age=timedelta(days=31))).actions) == 1
    assert plan(replace(facts, has_classes=False), policy()).actions == ()
    both = store(
        partition(
            active(1, 30, 40), start_offset=10,
            objects=(replace(moved, name="a", base_offset=10, end_offset=20), moved),
        )
    )  # fmt: skip
    merging = rules(merge=MergeRule(after=HOUR, target_bytes=4 << 20))
    assert plan(both, merging).actions == (), "what was moved is not merged"
    assert plan(replace(facts, storage_class="STANDARD_IA"), policy()).actions == ()


def test_copies_are_made_in_free_room_and_go_when_nobody_reads_them() -> None:
    names = [ObjectFact(f"o{i}", i, i + 1, 100, NOW, NOW, fetches=i + 1, fetched_us=NOW) for i in range(4)]
    away = [ColdObjectFact(f"o{i}", (), i, i + 1, 100, NOW, NOW) for i in range(3)]
    facts = partition(active(1, 4, 5), start_offset=0, objects=tuple(names), cold_objects=tuple(away))
    promote = PromoteRule(reads=1, keep=HOUR, within=HOUR, bytes=250)
    made = plan(facts, rules(promote=promote)).actions
    assert [(item.kind, item.base_offset) for item in made] == [("promote", 2), ("promote", 1)]
    for free, count in ((299, 0), (300, 1), (400, 2), (10_000, 2)):
        floor = LocalRetention(free_disk=Floor(bytes=100))
        roomy = store(facts, disk_total_bytes=1 << 20, disk_free_bytes=free)
        assert len(plan(roomy, rules(promote=promote, local_retention=floor)).actions) == count
    merged = plan(
        facts, rules(promote=promote, merge=MergeRule(after=timedelta(0), target_bytes=300))
    ).actions
    assert not {"o0", "o1", "o2"} & {item.name for item in merged if isinstance(item, Promote)}
    copies = (CopyFact("o2", 100, NOW), CopyFact("o1", 100, NOW))
    assert plan(replace(facts, copies=copies), rules(promote=promote)).actions == ()
    unread = tuple(replace(item, fetches=0, fetched_us=0) for item in names)
    later = plan(replace(facts, copies=copies, objects=unread), rules(promote=promote), NOW + 3600 * SECOND)
    assert [item.reason for item in later.actions] == ["not read for 1h >= promote.keep 1h"] * 2
    pin = Pin(since=datetime.fromtimestamp(0, UTC))
    pinned = plan(replace(facts, copies=copies), rules(pin=pin)).actions
    assert [(item.kind, item.base_offset) for item in pinned] == [("promote", 0)]
    short = store(replace(facts, copies=copies), disk_total_bytes=1 << 20, disk_free_bytes=0)
    assert [item.kind for item in plan(short, rules(promote=promote)).actions] == ["demote", "demote"]
    assert plan(short, rules(pin=pin)).actions == (), "what is pinned stays, and nothing is added"


def test_the_copy_of_a_damaged_object_stays() -> None:
    """It may be the only good one, and reads are served from it; neither age nor room ends it."""
    sound = ObjectFact("sound", 0, 1, 100, NOW - DAY_US, NOW)
    damaged = replace(sound, name="damaged", base_offset=1, end_offset=2, damaged=True)
    copies = (CopyFact("sound", 100, NOW - DAY_US), CopyFact("damaged", 100, NOW - DAY_US))
    facts = partition(active(1, 2, 3), start_offset=0, objects=(sound, damaged), copies=copies)
    short = store(facts, disk_total_bytes=1 << 20, disk_free_bytes=0)
    for found in (plan(facts, rules()), plan(short, rules(promote=PromoteRule(reads=1, bytes=50)))):
        assert [item.name for item in found.actions if isinstance(item, Demote)] == ["sound"]


def test_a_copy_whose_page_was_not_read_may_be_of_a_pinned_time() -> None:
    """Of a large manifest some pages stand for their objects; what else keeps no copy is known without them."""
    page = ObjectFact("page", 0, 900, 1 << 20, NOW, NOW, count=9)
    facts = PartitionFacts(
        "t", 0, 0, 900, 900, 900, (), objects=(page,), published_start_offset=0,
        copies=(CopyFact("object", 1 << 10, NOW),),
    )  # fmt: skip
    for pin, kept in (({"since": "2020-01-01"}, 1), ({}, 0)):
        copies = CopiesPlan(facts, Policy.model_validate({"pin": pin}), NOW, 0)
        assert (len(copies.kept), len(copies.dropped)) == (kept, 1 - kept)
