"""What retention takes, and what its limits count."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tests.policies.planning import HOUR, INERT, kinds, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, apply, partition, published, segment, store
from tiered.policies.actions import Expire
from tiered.policies.facts import ColdObjectFact
from tiered.policies.policy import LocalRetention, OffloadRule, Policy, Retention


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
