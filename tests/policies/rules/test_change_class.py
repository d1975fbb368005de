"""Which objects move to another storage class."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.policies.planning import DAY_US, HOUR, plan, rules
from tests.policies.policy_model import NOW, active, partition, store
from tiered.policies.facts import ObjectFact
from tiered.policies.policy import MergeRule, Policy, Retention, StorageClass


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
