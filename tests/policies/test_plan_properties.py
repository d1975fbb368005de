"""What holds of every plan, for any facts and any rules."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.policies.policy_model import NOW, SECOND, active, apply, partition, policies, store, stores
from tiered.base.units import to_us
from tiered.policies.actions import (
    ChangeClass,
    Compress,
    Cut,
    Demote,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Promote,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from tiered.policies.facts import ObjectFact, PartitionFacts, SegmentFact, StoreFacts
from tiered.policies.plan import Plan, make_plan
from tiered.policies.policy import MergeRule, OffloadRule, Policy
from tiered.policies.rules.change_class import BYTES_PER_PASS
from tiered.policies.rules.merge import GROWTH, SEGMENTS_MAX

# A merge can wait for the pass after an offload, and what it makes for the one after that.
ROUNDS_MAX = 6
DAY = timedelta(days=1)
DAY_US = 86_400 * SECOND


def by_id(facts: StoreFacts) -> dict[object, SegmentFact]:
    return {item.segment_id: item for part in facts.partitions for item in part.segments}


def check_plan(facts: StoreFacts, plan: Plan, policy: Policy) -> None:
    """The invariants of each action by itself."""
    segments = by_id(facts)
    copies = {(part.partition, item.name) for part in facts.partitions for item in part.copies}
    objects = {(part.partition, item.name): item for part in facts.partitions for item in part.objects}
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
                assert not policy.pin.topic
                pinned = policy.pin.age
                assert pinned is None or plan.now_us - found.last_append_us >= to_us(pinned)
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
                assert found.local_bytes >= policy.compress.min_bytes
            case ShipTail():
                assert action.base_offset < action.end_offset
            case Expire():
                assert action.end_offset >= action.base_offset
                (part,) = (item for item in facts.partitions if item.partition == action.partition)
                if action.begins_manifest:
                    assert part.published_start_offset is None
                    assert action.end_offset > 0
            case ChangeClass():
                item = objects[action.partition, action.name]
                assert facts.has_classes
                assert item.sealed
                assert not item.damaged
                assert (item.storage_class or facts.storage_class) != action.storage_class
            case Promote():
                assert facts.has_cold
                assert (action.partition, action.name) not in copies
                assert not objects[action.partition, action.name].damaged
            case Demote():
                assert (action.partition, action.name) in copies
            case Cut():
                assert facts.has_cold
                check_cut(facts, policy, action)
            case Merge() | Scrub() | Sweep():
                assert facts.has_cold


def check_copies(facts: StoreFacts, plan: Plan, policy: Policy) -> None:
    """Copies stay within their bytes and leave the disk its floor; none is made and dropped at once."""
    made = [item for item in plan.actions if isinstance(item, Promote)]
    dropped = {(item.partition, item.name) for item in plan.actions if isinstance(item, Demote)}
    assert not dropped & {(item.partition, item.name) for item in made}
    if facts.disk_total_bytes and made:
        floor = policy.local_retention.free_disk
        least = 2 * floor.of(facts.disk_total_bytes) if floor else 0
        assert facts.disk_free_bytes - sum(item.bytes for item in made) >= least
    for part in facts.partitions:
        mine = [item for item in made if item.partition == part.partition]
        damaged = {item.name for item in part.objects if item.damaged}
        kept = [
            item.bytes
            for item in part.copies
            if item.name not in damaged and (part.partition, item.name) not in dropped
        ]
        if policy.pin.since is None:
            assert sum(kept) <= policy.promote.bytes
        if mine and not any("pinned" in item.reason for item in mine):
            assert sum(kept) + sum(item.bytes for item in mine) <= policy.promote.bytes


def check_relief(facts: StoreFacts, plan: Plan, policy: Policy) -> None:
    """While the disk is short all that may leave leaves, and not more; what frees it comes before uploads."""
    floor = policy.local_retention.free_disk
    least = floor.of(facts.disk_total_bytes) if floor else 0
    if facts.disk_free_bytes >= least or not facts.disk_total_bytes:
        return
    free = facts.disk_free_bytes
    short = [item for item in plan.actions if isinstance(item, (EvictLocal, Demote))]
    for action in sorted(short, key=lambda item: "disk free" in item.reason):
        if "disk free" in action.reason:
            assert free < least
        free += action.bytes
    for part in facts.partitions:
        kinds = [item.kind for item in plan.actions if item.partition == part.partition]
        last = max((i for i, kind in enumerate(kinds) if kind == "evict_local"), default=0)
        assert "offload" not in kinds[:last]


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
    check_plan(facts, plan, policy)
    check_publishing(facts, plan)
    check_copies(facts, plan, policy)
    check_relief(facts, plan, policy)
    moved = [item.bytes for item in plan.actions if isinstance(item, ChangeClass)]
    assert sum(moved[:-1]) <= BYTES_PER_PASS * len(facts.partitions)
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
    check_plan(odd, make_plan(odd, lambda _: policy, NOW), policy)


@settings(deadline=None)
@given(stores(), policies)
def test_planning_is_pure(facts: StoreFacts, policy: Policy) -> None:
    assert make_plan(facts, lambda _: policy, NOW) == make_plan(facts, lambda _: policy, NOW)


@settings(deadline=None, max_examples=80)
@given(stores(), policies)
def test_carrying_plans_out_comes_to_rest(facts: StoreFacts, policy: Policy) -> None:
    """At one instant a few passes reach a state in which nothing is left to do, and nothing is done twice."""
    seen: set[tuple[object, ...]] = set()
    copied: set[tuple[int, str]] = set()
    # A scrub may look at one object a pass.
    scrubbed = sum(len(part.objects) + len(part.segments) for part in facts.partitions)
    for _ in range(ROUNDS_MAX + scrubbed):
        plan = make_plan(facts, lambda _: policy, NOW)
        check_plan(facts, plan, policy)
        for action in plan.actions:
            # A copy of what was merged or moved since has another reason to go than room or use.
            if isinstance(action, (Promote, Demote)) and "not in the manifest" not in action.reason:
                assert (action.partition, action.name) not in copied, "no copy is made and dropped in turn"
                copied.add((action.partition, action.name))
            done = (
                action.kind, action.partition, action.segment_id, action.base_offset, action.end_offset,
                getattr(action, "name", None), getattr(action, "round", None),
            )  # fmt: skip
            assert done not in seen
            seen.add(done)
        facts = apply(facts, plan.actions, NOW)
    assert make_plan(facts, lambda _: policy, NOW).actions == ()


@settings(deadline=None)
@example(store(partition(active(1, 0, 10), start_offset=10)), Policy())
@example(store(partition(active(1, 0, 10), start_offset=10)), Policy(offload=OffloadRule(after=None)))
@given(stores(), policies)
def test_after_one_pass_the_bucket_knows_where_every_log_begins(facts: StoreFacts, policy: Policy) -> None:
    """Else a restore gives the offsets before it again. What is never to be offloaded is not told."""
    for part in apply(facts, make_plan(facts, lambda _: policy, NOW).actions, NOW).partitions:
        told = facts.has_cold and (
            policy.offload.after is not None or part.published_start_offset is not None
        )
        assert not told or (part.published_start_offset or 0) == part.start_offset
        assert not told or part.published_offset >= part.start_offset


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


# -- merge, scrub, sweep ---------------------------------------------------------------------------


def check_merge(part: PartitionFacts, policy: Policy, action: Merge, start: int) -> None:
    """Whole neighbours that are alike, small and sound, and not more of them than the target holds."""
    inputs = [item for item in part.objects if item.name in action.names]
    target = policy.merge.target_bytes
    assert target is not None
    assert tuple(item.name for item in inputs) == action.names
    assert len(inputs) >= 2
    assert (inputs[0].base_offset, inputs[-1].end_offset) == (action.base_offset, action.end_offset)
    assert all(left.end_offset == right.base_offset for left, right in pairwise(inputs))
    assert len({(item.schema_id, item.lineage) for item in inputs}) == 1
    assert all(item.sealed and not item.damaged and 2 * item.bytes < target for item in inputs)
    assert all(NOW - item.last_append_us >= to_us(policy.merge.after or DAY) for item in inputs)
    size = sum(item.bytes for item in inputs)
    assert size == action.bytes <= target
    assert sum(item.segment_count for item in inputs) <= SEGMENTS_MAX
    full = 2 * size >= min(target, (policy.retention.bytes or 1 << 60) // 10)
    full = full or 2 * sum(item.segment_count for item in inputs) >= SEGMENTS_MAX
    assert full or size >= GROWTH * max(item.bytes for item in inputs), "each rewriting pays"
    assert action.base_offset >= start
    if policy.retention.age is not None and policy.retention.by == "append":
        assert all(NOW - item.last_append_us < to_us(policy.retention.age) for item in inputs)


def check_cut(facts: StoreFacts, policy: Policy, action: Cut) -> None:
    """Of the sealed, sound object in which the published log begins, and of which enough was deleted."""
    (part,) = (item for item in facts.partitions if item.partition == action.partition)
    (item,) = (item for item in part.objects if (item.name,) == action.names)
    assert part.start_offset == part.published_start_offset == action.base_offset
    assert item.base_offset < action.base_offset < action.end_offset == item.end_offset
    assert item.sealed
    assert not item.damaged
    assert not item.storage_class
    assert policy.cut.deleted is not None
    deleted, whole = action.base_offset - item.base_offset, item.end_offset - item.base_offset
    assert deleted >= policy.cut.deleted * whole
    assert abs(action.bytes - item.bytes * (whole - deleted) / whole) <= 1
    assert action.cold_bytes_delta == action.bytes - item.bytes
    assert not [x for x in part.segments if x.base_offset < action.base_offset < x.end_offset]


@settings(deadline=None, max_examples=50)
@given(stores(), policies)
def test_merges_are_of_whole_neighbours_that_stay(facts: StoreFacts, policy: Policy) -> None:
    plan = make_plan(facts, lambda _: policy, NOW)
    for part in facts.partitions:
        mine = [item for item in plan.actions if item.partition == part.partition]
        start = max([part.start_offset, *(item.end_offset for item in mine if isinstance(item, Expire))])
        merges = [item for item in mine if isinstance(item, Merge)]
        for action in merges:
            check_merge(part, policy, action, start)
        assert all(left.end_offset <= right.base_offset for left, right in pairwise(merges))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=300), st.integers(100, 4000))
def test_a_record_is_rewritten_a_few_times_however_objects_come(sizes: list[int], target: int) -> None:
    """One object arrives after the other, each is merged as soon as a plan says so: bytes written stay bounded.

    And what is left small is little: fewer than `GROWTH` objects of a size, for each size that there can be.
    """
    policy = Policy(merge=MergeRule(target_bytes=target, after=timedelta(0)))
    written = 0
    facts = store(partition(active(1, 10**6, 10**6), start_offset=0))
    for number, size in enumerate(sizes):
        fresh = ObjectFact(f"o{number}", number, number + 1, size, NOW - DAY_US, 0)
        (part,) = facts.partitions
        facts = replace(facts, partitions=(replace(part, objects=(*part.objects, fresh)),))
        for _ in range(ROUNDS_MAX):
            merges = [
                item for item in make_plan(facts, lambda _: policy, NOW).actions if isinstance(item, Merge)
            ]
            if not merges:
                break
            written += sum(item.bytes for item in merges)
            facts = apply(facts, tuple(merges), NOW)
        else:
            raise AssertionError("merging does not come to rest")
    levels = 1 + max(0, math.ceil(math.log(target / min(sizes), GROWTH)))
    assert written <= (levels + 1) * sum(sizes)
    small = [item for item in facts.partitions[0].objects if 2 * item.bytes < target]
    large = len(facts.partitions[0].objects) - len(small)
    assert len(small) <= (large + 1) * GROWTH * (levels + 1)


@settings(deadline=None)
@given(stores(), policies)
def test_a_round_of_scrubbing_looks_at_every_object_once(facts: StoreFacts, policy: Policy) -> None:
    """Pass by pass, in order, never more than the budget but for one object; then it rests until the next is due."""
    every = policy.scrub.every
    facts = replace(facts, has_cold=True, disk_total_bytes=0)
    keep = policy.model_copy(update={"merge": MergeRule(after=None), "retention": Policy().retention})
    seen: dict[int, list[tuple[int, int]]] = {item.partition: [] for item in facts.partitions}
    fresh = replace(facts, partitions=tuple(replace(item, scrub=None) for item in facts.partitions))
    late = NOW + 10**15
    for _ in range(10):
        due = [x for x in make_plan(fresh, lambda _: keep, late).actions if isinstance(x, Scrub)]
        for action in due:
            assert action.round == 1
            assert action.bytes <= keep.scrub.bytes_per_pass or action.requests.reads == 1
            seen[action.partition].append((action.base_offset, action.end_offset))
        fresh = apply(fresh, tuple(due), late)
    for part in fresh.partitions:
        objects = [x for x in part.objects if x.sealed and x.end_offset > part.start_offset]
        spans = seen[part.partition]
        if every is None or not objects:
            assert spans == []
            continue
        assert (spans[0][0], spans[-1][1]) == (objects[0].base_offset, objects[-1].end_offset)
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        assert part.scrub is not None
        assert part.scrub.finished_us == late


def test_a_sweep_is_due_once_in_its_interval_whatever_the_clock_did() -> None:
    facts = store(partition(active(1, 0, 1)), swept_us=NOW)

    def due(now_us: int, every: timedelta | None = DAY, **changes: object) -> list[str]:
        changed = replace(facts, **changes)  # type: ignore[arg-type]
        plan = make_plan(changed, lambda _: Policy(), now_us, sweep_every=every)
        return [item.reason for item in plan.actions if isinstance(item, Sweep)]

    assert due(NOW + DAY_US - 1) == []
    assert due(NOW + DAY_US) == ["age 1d >= sweep.every 1d"]
    assert due(NOW - DAY_US + 1) == []
    assert len(due(NOW - DAY_US)) == 1
    assert due(NOW + DAY_US, None) == due(NOW + DAY_US, has_cold=False) == due(NOW, swept_us=None) == []
