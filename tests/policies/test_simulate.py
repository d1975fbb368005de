"""What is simulated is what passes would do, one after the other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.policy_model import NOW, SECOND, active, partition, policies, segment, store, stores
from tiered.policies.facts import StoreFacts
from tiered.policies.forecast.simulate import simulate
from tiered.policies.plan import make_plan
from tiered.policies.policy import (
    CompressRule,
    LocalRetention,
    MergeRule,
    OffloadRule,
    Policy,
    Retention,
    Roll,
    ScrubRule,
)

HOUR_US = 3600 * SECOND
HOUR = timedelta(hours=1)


@settings(max_examples=25, deadline=None)
@given(stores(), policies, st.integers(0, 300), st.integers(0, 300))
def test_a_simulation_ends_at_rest_and_can_be_cut_anywhere(
    facts: StoreFacts, policy: Policy, first: int, second: int
) -> None:
    """To a time and on from there comes to the same as at once; nothing happens too early."""
    # A merge depends on what else has come by then; a scrub comes again and again.
    policy = policy.model_copy(update={"merge": MergeRule(after=None), "scrub": ScrubRule(every=None)})
    middle, end = NOW + first * HOUR_US, NOW + (first + second) * HOUR_US
    whole = simulate(facts, lambda _: policy, end)
    assert make_plan(whole.end, lambda _: policy, end).actions == ()
    assert all(NOW <= at_us <= end for at_us, _ in whole.steps)
    assert [at_us for at_us, _ in whole.steps] == sorted(at_us for at_us, _ in whole.steps)
    half = simulate(facts, lambda _: policy, middle)
    rest = simulate(half.end, lambda _: policy, end)
    assert rest.end.disk_free_bytes == whole.end.disk_free_bytes
    for left, right in zip(rest.end.partitions, whole.end.partitions, strict=True):
        assert left.start_offset == right.start_offset
        assert {x.base_offset for x in left.segments} == {x.base_offset for x in right.segments}
        assert [x.base_offset for x in left.objects] == [x.base_offset for x in right.objects]
        assert {x.name for x in left.copies} == {x.name for x in right.copies}


def test_each_step_has_its_time_and_groups_say_how_many() -> None:
    policy = Policy(
        roll=Roll(age=HOUR, bytes=None),
        compress=CompressRule(after=None),
        offload=OffloadRule(after=2 * HOUR, tail_interval=None),
        local_retention=LocalRetention(age=5 * HOUR),
        retention=Retention(age=24 * HOUR),
        scrub=ScrubRule(every=None),
    )
    fresh = {"last_append_us": NOW, "max_timestamp_us": NOW, "created_us": NOW}
    facts = store(
        partition(segment(1, 0, 10, **fresh), segment(2, 10, 20, **fresh), active(3, 20, 30, **fresh))
    )
    found = simulate(facts, lambda _: policy, NOW + 48 * HOUR_US)
    times = [(action.kind, action.base_offset, (at - NOW) // HOUR_US) for at, action in found.steps]
    assert times == [
        ("seal", 20, 1),
        ("offload", 0, 2),
        ("offload", 10, 2),
        ("offload", 20, 2),
        ("evict_local", 0, 5),
        ("evict_local", 10, 5),
        ("evict_local", 20, 5),
        ("expire", 0, 24),
    ]
    groups = [(item.kind, item.rule, item.count) for item in found.groups()]
    assert groups == [
        ("seal", "roll.age", 1),
        ("offload", "offload.after", 3),
        ("evict_local", "local_retention.age", 3),
        ("expire", "retention.age", 1),
    ]
    assert [(item.tier, item.before, item.after) for item in found.tiers] == [
        ("warm", 30 << 10, 0),
        ("cold", 0, 0),
    ]


def test_a_long_log_is_looked_at_at_fewer_times_and_ends_the_same() -> None:
    policy = Policy(
        roll=Roll(age=None), compress=CompressRule(after=None), offload=OffloadRule(after=HOUR),
        local_retention=LocalRetention(age=2 * HOUR), merge=MergeRule(after=None), scrub=ScrubRule(every=None),
    )  # fmt: skip
    sealed = [segment(i, i, i + 1, last_append_us=NOW + i * SECOND, created_us=NOW) for i in range(300)]
    facts = replace(store(partition(*sealed, active(1000, 300, 301))), now_us=NOW)
    found = simulate(facts, lambda _: policy, NOW + 100 * HOUR_US)
    assert len({at for at, _ in found.steps}) <= 110
    assert len(found.end.partitions[0].segments) == 1
    assert len([action for _, action in found.steps if action.kind == "offload"]) == 300
