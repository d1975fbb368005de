"""What goes to the bucket, and when: sealed segments and tails."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from tests.policies.planning import HOUR, kinds, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, partition, published, segment, store
from tiered.policies.actions import Offload, ShipTail
from tiered.policies.facts import ColdObjectFact
from tiered.policies.policy import OffloadRule


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


def test_offload_by_size_takes_the_oldest_until_the_rest_may_wait() -> None:
    parts = [segment(i, 10 * i, 10 * i + 10, last_append_us=NOW) for i in range(3)]
    facts = partition(*parts, active(9, 30, 40))
    policy = rules(offload=OffloadRule(after=HOUR, tail_interval=None, bytes=20 << 10))
    assert kinds(plan(facts, policy)) == [("offload", 0, 10)]
    assert plan(facts, policy).actions[0].reason == "size 30KiB, offload.bytes is 20KiB"
    assert kinds(plan(store(facts, has_cold=False), policy)) == []
