"""The plan as a whole: the life of a segment, and what a plan says of itself."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tests.policies.planning import HOUR, kinds, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, apply, partition, segment, store
from tiered.policies.actions import Action, EvictLocal, Expire, Offload, Seal
from tiered.policies.cost import COMMIT, Requests, estimate, upload_requests
from tiered.policies.plan import Plan, make_plan
from tiered.policies.policy import PRESETS, OffloadRule, Policy, Retention


def test_the_default_policy_takes_a_segment_through_its_life() -> None:
    """Hour by hour: sealed, offloaded, compressed, evicted, and never deleted."""
    facts = store(partition(active(1, 0, 10, created_us=NOW), tail_shipped_us=0))
    lived: list[tuple[int, str]] = []
    for minutes in (0, 5, 60, 61, 71, 7 * 60, 30 * 24 * 60):
        now = NOW + minutes * 60 * SECOND
        for _ in range(4):
            actions = plan(facts, Policy(), now).actions
            lived += [(minutes, item.kind) for item in actions]
            facts = apply(facts, actions, now)
    assert lived == [
        (0, "ship_tail"),
        (60, "seal"),
        (60, "offload"),
        (60, "compress"),
        (7 * 60, "evict_local"),
        (30 * 24 * 60, "scrub"),
    ]
    assert facts.partitions[0].start_offset == 0


@pytest.mark.parametrize("policy", [Policy(), *PRESETS.values()])
def test_every_preset_offloads_and_evicts(policy: Policy) -> None:
    facts = store(partition(active(1, 0, 10)))
    late = NOW + 30 * 24 * 3600 * SECOND
    seen: list[Action] = []
    for _ in range(4):
        actions = plan(facts, policy, late).actions
        seen += actions
        facts = apply(facts, actions, late)
    assert {Seal, Offload, EvictLocal} <= {type(item) for item in seen}
    assert not any(isinstance(item, Expire) for item in seen)


def test_totals_rows_and_json() -> None:
    big = segment(1, 0, 10, local_bytes=1 << 30)
    result = plan(partition(big, active(2, 10, 10)), rules(offload=OffloadRule(after=HOUR)))
    parts = (1 << 30) // (8 << 20)
    assert result.requests == Requests(writes=parts + 2 + 2, reads=2)
    assert result.upload_bytes == result.bytes == 1 << 30
    assert result.cost.monthly_usd == pytest.approx(0.023)
    assert result.cost.one_off_usd == pytest.approx((132 * 0.005 + 2 * 0.0004) / 1000)
    assert result.describe() == [
        ("offload", "t", "0", "[0, 10)", "1GiB", "134", "age 1h >= offload.after 1h"),
    ]
    assert len(result.describe()[0]) == len(Plan.COLUMNS)
    values = json.loads(json.dumps(result.to_json()))
    assert values["totals"]["actions"] == {"offload": 1}
    assert values["actions"][0]["segment_id"] == str(UUID(int=1))
    assert str(result.actions[0]) == "offload t/0 [0, 10) 1GiB: age 1h >= offload.after 1h"


def test_now_is_when_the_facts_were_gathered_unless_said() -> None:
    facts = store(partition(segment(1, 0, 10), active(2, 10, 20)), now_us=NOW - 1)
    policy = rules(retention=Retention(age=HOUR))
    assert make_plan(facts, lambda _: policy).actions == ()
    assert kinds(make_plan(facts, lambda _: policy, NOW)) == [("expire", 0, 10)]


def test_costs() -> None:
    assert upload_requests(0) == upload_requests(8 << 20) == Requests(1, 1)
    assert upload_requests((8 << 20) + 1) == Requests(4, 1)
    assert COMMIT + Requests(1, 1) == Requests(3, 2)
    counted = {
        "PutObject": 2,
        "UploadPart": 3,
        "ListObjectsV2": 1,
        "HeadObject": 1,
        "GetObject": 4,
        "DeleteObjects": 9,
    }
    assert Requests.of(counted) == Requests(6, 5)
    assert estimate(Requests(1000, 1000), 1 << 30, "STANDARD_IA").one_off_usd == pytest.approx(0.011)
    assert estimate(Requests(), -(1 << 30)).monthly_usd == pytest.approx(-0.023)
