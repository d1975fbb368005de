"""What is explained is what plans do, at the time that is said and not before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.policy_model import (
    NOW,
    SECOND,
    active,
    object_fact,
    partition,
    policies,
    published,
    segment,
    store,
    stores,
)
from tiered.policies.actions import Action, ChangeClass, Expire, Rewrite
from tiered.policies.facts import ColdObjectFact, ObjectFact, StoreFacts
from tiered.policies.forecast.explain import Explanation, OffsetRun, explain
from tiered.policies.plan import make_plan
from tiered.policies.policy import (
    CompressRule,
    LocalRetention,
    MergeRule,
    OffloadRule,
    Policy,
    Retention,
    ScrubRule,
)

HOUR = 3600 * SECOND


class Plans:
    """Plans from the same facts, for any time."""

    def __init__(self, facts: StoreFacts, policy: Policy) -> None:
        self._facts = facts
        self._policy = policy
        self._made: dict[int, tuple[Action, ...]] = {}

    def touching(self, now_us: int, of: Explanation, piece: OffsetRun) -> set[str]:
        """Which kinds of action the plan for that time has for a piece."""
        if now_us not in self._made:
            self._made[now_us] = make_plan(self._facts, lambda _: self._policy, now_us).actions
        return {action.kind for action in self._made[now_us] if touches(action, of, piece)}


def touches(action: Action, of: Explanation, piece: OffsetRun) -> bool:
    if action.whole_store or (action.topic, action.partition) != (of.topic, of.partition):
        return False
    if isinstance(action, Expire):
        return action.base_offset < action.end_offset and piece.end_offset <= action.end_offset
    if isinstance(action, (Rewrite, ChangeClass)):
        return action.base_offset < piece.end_offset and piece.base_offset < action.end_offset
    return action.segment_id is not None and action.segment_id == piece.segment_id


@settings(max_examples=max(60, settings().max_examples))
@given(stores(), policies, st.integers(0, 300), st.lists(st.integers(0, 800 * HOUR), max_size=3))
def test_the_next_action_is_in_the_plan_of_that_time_and_in_none_before(
    facts: StoreFacts, policy: Policy, hours: int, moments: list[int]
) -> None:
    """Looked at early enough that most of it is still to come."""
    check(replace(facts, disk_total_bytes=0), policy, NOW - hours * HOUR, moments)


def check(facts: StoreFacts, policy: Policy, start: int, moments: Sequence[int] = ()) -> list[Explanation]:
    """Compare what is explained at `start` with plans for then and later; return it."""
    found = explain(facts, lambda _: policy, start)
    plans = Plans(facts, policy)
    dues = {piece.next.due_us for item in found for piece in item.pieces if piece.next}
    times = {start, start + 20_000 * HOUR, *(start + at for at in moments), *dues, *(due - 1 for due in dues)}
    for item in found:
        for piece in item.pieces:
            until = piece.next.due_us if piece.next else start + 30_000 * HOUR
            for now_us in sorted(times):
                if start <= now_us < until:
                    assert plans.touching(now_us, item, piece) == set(), (now_us, piece)
            if piece.next:
                assert until >= start
                assert piece.next.kind in plans.touching(until, item, piece), piece
    return found


@given(stores(), policies)
def test_pieces_are_the_live_log_and_what_is_due_now_is_what_the_plan_says(
    facts: StoreFacts, policy: Policy
) -> None:
    """On a full disk too, where files leave before their time."""
    plans = Plans(facts, policy)
    for item in explain(facts, lambda _: policy, NOW):
        for left, right in pairwise(item.pieces):
            assert left.end_offset <= right.base_offset
        for piece in item.pieces:
            assert piece.base_offset < piece.end_offset
            steps = [piece.next, *piece.then] if piece.next else []
            assert [step.due_us for step in steps] == sorted(step.due_us for step in steps)
            due = plans.touching(NOW, item, piece)
            assert bool(due) == (piece.next is not None and piece.next.due_us == NOW)
            assert piece.next is None or not due or piece.next.kind in due


def test_what_is_in_the_way_is_so_until_it_expires() -> None:
    """A segment that is not in the bucket keeps those after it on the disk, as long as it is there."""
    policy = Policy(
        offload=OffloadRule(after=None),
        compress=CompressRule(after=None),
        local_retention=LocalRetention(age=timedelta(minutes=90)),
        retention=Retention(age=timedelta(hours=12)),
    )
    old = segment(1, 0, 10, last_append_us=NOW - 10 * HOUR)
    facts = store(partition(old, published(2, 10, 20), active(3, 20, 30)))
    (item,) = check(facts, policy, NOW)
    assert [piece.next and piece.next.text(NOW) for piece in item.pieces[:2]] == [
        "expire in 2h (retention.age 12h)",
        "evict_local in 2h (local_retention.age 1h30m)",
    ]


def test_what_is_offloaded_for_its_size_stands_in_nobody_s_way() -> None:
    """The first goes at once, so the second need not wait for the age of the first, which is younger."""
    policy = Policy(
        compress=CompressRule(after=None),
        offload=OffloadRule(after=timedelta(hours=1), tail_interval=None, bytes=15 << 10),
        scrub=ScrubRule(every=None),
    )
    young = segment(1, 0, 10, last_append_us=NOW)
    old = segment(2, 10, 20, last_append_us=NOW - HOUR * 5 // 6)
    (item,) = check(store(partition(young, old, active(3, 20, 30))), policy, NOW)
    assert [piece.next and piece.next.text(NOW) for piece in item.pieces[:2]] == [
        "offload now (size 20KiB, offload.bytes is 15KiB)",
        "offload in 10m (offload.after 1h)",
    ]


def test_a_merge_may_wait_until_an_older_object_is_left_to_retention() -> None:
    """The first two fill an object; once the first has a quarter of its time left, the other two do."""
    policy = Policy(
        retention=Retention(age=timedelta(hours=100)),
        merge=MergeRule(target_bytes=10, after=timedelta(0)),
        scrub=ScrubRule(every=None),
    )
    hours = (203.5, 206, 207)  # all in one tenth of the retention
    names = [UUID(int=number) for number in range(3)]
    stamps = [int(hour * HOUR) for hour in hours]
    objects = [ObjectFact(f"o{i}", 10 * i, 10 * i + 10, 4, stamps[i], stamps[i]) for i in range(3)]
    cold = [
        ColdObjectFact(f"o{i}", (names[i],), 10 * i, 10 * i + 10, 4, stamps[i], stamps[i]) for i in range(3)
    ]
    facts = partition(active(9, 30, 40), start_offset=0, cold_objects=tuple(cold), objects=tuple(objects))
    (item,) = check(store(facts), policy, NOW)
    nexts = [(piece.next.kind, piece.next.due_us) for piece in item.pieces[:3] if piece.next]
    assert nexts == [("merge", NOW), ("merge", NOW), ("merge", stamps[0] + 75 * HOUR)]


def test_a_segment_whose_object_is_damaged_says_why_it_stays() -> None:
    policy = Policy(local_retention=LocalRetention(age=timedelta(hours=6)))
    kept = published(1, 0, 10, codec="zstd")
    facts = store(partition(kept, active(3, 10, 20), objects=(object_fact(0, 10, kept, damaged=True),)))
    (item,) = explain(facts, lambda _: policy, NOW + 7 * HOUR)
    assert item.pieces[0].hold == "stays local: its object is damaged, see tiered verify --repair"
    assert item.pieces[0].next is None or item.pieces[0].next.kind != "evict_local"


def test_a_segment_of_each_kind() -> None:
    policy = Policy(
        offload=OffloadRule(after=timedelta(minutes=90), tail_interval=timedelta(hours=3)),
        local_retention=LocalRetention(age=timedelta(hours=6)),
        retention=Retention(age=timedelta(days=90)),
    )
    facts = store(partition(
        published(1, 0, 10, codec="zstd"), segment(2, 10, 20, codec="zstd"), active(3, 20, 30),
    ))  # fmt: skip
    (item,) = explain(facts, lambda _: policy, NOW)
    texts = [(piece.tiers, piece.next and piece.next.text(NOW)) for piece in item.pieces]
    assert texts == [
        (("warm", "cold"), "evict_local in 5h (local_retention.age 6h)"),
        (("warm",), "offload in 30m (offload.after 1h30m)"),
        (("warm",), "seal in 59m59s (roll.age 1h)"),
    ]
    assert [step.text(NOW) for step in item.pieces[1].then] == [
        "evict_local in 5h (local_retention.age 6h)",
        "expire in 89d23h (retention.age 90d)",
    ]
    late = explain(facts, lambda _: policy, NOW + 7 * HOUR)[0]
    assert [piece.hold for piece in late.pieces] == [
        "", "stays local: not in the bucket yet", "stays local: the newest file of its partition"
    ]  # fmt: skip
