"""Which objects are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.policies.planning import HOUR, kinds, objects, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, partition
from tiered.policies.facts import ObjectFact
from tiered.policies.policy import MergeRule, Retention, ScrubRule


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
