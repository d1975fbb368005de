"""The plan of a store by the rules of one test, and the little that these have in common."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.policies.policy_model import NOW, SECOND, store
from tiered.policies.facts import ObjectFact, PartitionFacts, StoreFacts
from tiered.policies.plan import Plan, make_plan
from tiered.policies.policy import CompressRule, LocalRetention, OffloadRule, Policy, Roll

HOUR = timedelta(hours=1)
DAY_US = 86_400 * SECOND
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


def objects(*sizes: int, **changes: object) -> tuple[ObjectFact, ...]:
    """Objects of one record each, a day old."""
    return tuple(
        replace(ObjectFact(f"o{i}", i, i + 1, size, NOW - DAY_US, NOW - DAY_US), **changes)  # type: ignore[arg-type]
        for i, size in enumerate(sizes)
    )
