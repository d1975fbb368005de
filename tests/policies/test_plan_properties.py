"""What holds of every plan, for any facts and any rules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.policy_model import NOW, SECOND, apply, policies, stores
from tiered.policies import (
    Compress,
    EvictLocal,
    Expire,
    Offload,
    Plan,
    Policy,
    Seal,
    SegmentFact,
    ShipTail,
    StoreFacts,
    make_plan,
)

ROUNDS_MAX = 4


def by_id(facts: StoreFacts) -> dict[object, SegmentFact]:
    return {item.segment_id: item for part in facts.partitions for item in part.segments}


def check_plan(facts: StoreFacts, plan: Plan) -> None:
    """The invariants that need nothing but the facts and the plan."""
    segments = by_id(facts)
    for action in plan.actions:
        assert action.reason
        assert action.bytes >= 0
        found = segments.get(action.segment_id)
        match action:
            case EvictLocal():
                assert found is not None
                assert found.in_manifest, "promise P5"
                assert found.sealed
                assert not found.newest
                assert facts.has_cold
            case Seal():
                assert found is not None
                assert found.newest
                assert not found.sealed
                assert found.record_count
            case Offload():
                assert found is not None
                assert found.sealed
                assert not found.in_manifest
            case Compress():
                assert found is not None
                assert found.sealed
                assert not found.newest
            case ShipTail():
                assert action.base_offset < action.end_offset
            case Expire():
                assert action.end_offset >= action.base_offset


def check_publishing(facts: StoreFacts, plan: Plan) -> None:
    """Neither a gap before what is published, nor anything that is not durable, nor anything expired."""
    for part in facts.partitions:
        published, start = part.published_offset, part.start_offset
        for action in plan.actions:
            if action.partition != part.partition:
                continue
            if isinstance(action, Expire):
                start = action.end_offset
                newest = next(item for item in part.segments if item.newest)
                assert start <= max(newest.base_offset, part.start_offset)
            elif isinstance(action, (Offload, ShipTail)):
                assert action.base_offset <= max(published, start)
                assert action.end_offset > start
                published = max(published, action.end_offset)
            if isinstance(action, ShipTail):
                assert action.base_offset >= max(part.published_offset, start)
                assert action.end_offset <= part.durable_offset


@settings(deadline=None)
@given(stores(), policies)
def test_invariants_of_a_plan(facts: StoreFacts, policy: Policy) -> None:
    plan = make_plan(facts, lambda _: policy, NOW)
    check_plan(facts, plan)
    check_publishing(facts, plan)
    assert not plan.notes


@settings(deadline=None)
@given(stores(), policies, st.data())
def test_eviction_is_safe_even_on_facts_that_make_no_sense(
    facts: StoreFacts, policy: Policy, data: st.DataObject
) -> None:
    """P5 rests on ``in_manifest`` alone: no other fact can make up for it."""
    flags = st.booleans()
    odd = replace(
        facts,
        partitions=tuple(
            replace(
                part,
                published_offset=data.draw(st.integers(0, 1000)),
                segments=tuple(
                    replace(item, in_manifest=data.draw(flags), sealed=data.draw(flags), cold_bytes=1 << 20)
                    for item in part.segments
                ),
            )
            for part in facts.partitions
        ),
    )
    check_plan(odd, make_plan(odd, lambda _: policy, NOW))


@settings(deadline=None)
@given(stores(), policies)
def test_planning_is_pure(facts: StoreFacts, policy: Policy) -> None:
    assert make_plan(facts, lambda _: policy, NOW) == make_plan(facts, lambda _: policy, NOW)


@settings(deadline=None, max_examples=300)
@given(stores(), policies)
def test_carrying_plans_out_comes_to_rest(facts: StoreFacts, policy: Policy) -> None:
    """At one instant a few passes reach a state in which nothing is left to do, and nothing is done twice."""
    seen: set[tuple[object, ...]] = set()
    for _ in range(ROUNDS_MAX):
        plan = make_plan(facts, lambda _: policy, NOW)
        check_plan(facts, plan)
        for action in plan.actions:
            done = (action.kind, action.partition, action.segment_id, action.base_offset, action.end_offset)
            assert done not in seen
            seen.add(done)
        facts = apply(facts, plan.actions, NOW)
    assert make_plan(facts, lambda _: policy, NOW).actions == ()


@settings(deadline=None)
@given(stores(), policies, st.integers(1, 10**6))
def test_what_expires_now_expires_later_too(facts: StoreFacts, policy: Policy, seconds: int) -> None:
    def start_offsets(now_us: int) -> dict[int, int]:
        plan = make_plan(facts, lambda _: policy, now_us)
        return {item.partition: item.end_offset for item in plan.actions if isinstance(item, Expire)}

    later = start_offsets(NOW + seconds * SECOND)
    for number, start in start_offsets(NOW).items():
        assert later[number] >= start


@settings(deadline=None)
@given(stores(), policies)
def test_nothing_expires_or_leaves_without_a_rule(facts: StoreFacts, policy: Policy) -> None:
    keep = policy.model_copy(
        update={"retention": Policy().retention, "local_retention": type(policy.local_retention)()}
    )
    for action in make_plan(replace(facts, disk_total_bytes=0), lambda _: keep, NOW).actions:
        assert not isinstance(action, EvictLocal)
        assert not isinstance(action, Expire) or action.base_offset == action.end_offset
