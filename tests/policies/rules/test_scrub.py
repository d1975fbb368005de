"""Which objects are checked, round after round."""

from __future__ import annotations

from dataclasses import replace

from tests.policies.planning import DAY_US, HOUR, objects, plan, rules
from tests.policies.policy_model import NOW, active, partition
from tiered.policies.actions import Scrub
from tiered.policies.facts import ScrubFact
from tiered.policies.policy import MergeRule, ScrubRule


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
