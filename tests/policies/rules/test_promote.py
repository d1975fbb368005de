"""Which objects have a copy on the disk."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.policies.planning import DAY_US, HOUR, plan, rules
from tests.policies.policy_model import NOW, SECOND, active, partition, store
from tiered.base.units import Floor
from tiered.policies.actions import Demote, Promote
from tiered.policies.facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts
from tiered.policies.policy import LocalRetention, MergeRule, Pin, Policy, PromoteRule
from tiered.policies.rules.promote import CopiesPlan


def test_copies_are_made_in_free_room_and_go_when_nobody_reads_them() -> None:
    names = [ObjectFact(f"o{i}", i, i + 1, 100, NOW, NOW, fetches=i + 1, fetched_us=NOW) for i in range(4)]
    away = [ColdObjectFact(f"o{i}", (), i, i + 1, 100, NOW, NOW) for i in range(3)]
    facts = partition(active(1, 4, 5), start_offset=0, objects=tuple(names), cold_objects=tuple(away))
    promote = PromoteRule(reads=1, keep=HOUR, within=HOUR, bytes=250)
    made = plan(facts, rules(promote=promote)).actions
    assert [(item.kind, item.base_offset) for item in made] == [("promote", 2), ("promote", 1)]
    for free, count in ((299, 0), (300, 1), (400, 2), (10_000, 2)):
        floor = LocalRetention(free_disk=Floor(bytes=100))
        roomy = store(facts, disk_total_bytes=1 << 20, disk_free_bytes=free)
        assert len(plan(roomy, rules(promote=promote, local_retention=floor)).actions) == count
    merged = plan(
        facts, rules(promote=promote, merge=MergeRule(after=timedelta(0), target_bytes=300))
    ).actions
    assert not {"o0", "o1", "o2"} & {item.name for item in merged if isinstance(item, Promote)}
    copies = (CopyFact("o2", 100, NOW), CopyFact("o1", 100, NOW))
    assert plan(replace(facts, copies=copies), rules(promote=promote)).actions == ()
    unread = tuple(replace(item, fetches=0, fetched_us=0) for item in names)
    later = plan(replace(facts, copies=copies, objects=unread), rules(promote=promote), NOW + 3600 * SECOND)
    assert [item.reason for item in later.actions] == ["not read for 1h >= promote.keep 1h"] * 2
    pin = Pin(since=datetime.fromtimestamp(0, UTC))
    pinned = plan(replace(facts, copies=copies), rules(pin=pin)).actions
    assert [(item.kind, item.base_offset) for item in pinned] == [("promote", 0)]
    short = store(replace(facts, copies=copies), disk_total_bytes=1 << 20, disk_free_bytes=0)
    assert [item.kind for item in plan(short, rules(promote=promote)).actions] == ["demote", "demote"]
    assert plan(short, rules(pin=pin)).actions == (), "what is pinned stays, and nothing is added"


def test_the_copy_of_a_damaged_object_stays() -> None:
    """It may be the only good one, and reads are served from it; neither age nor room ends it."""
    sound = ObjectFact("sound", 0, 1, 100, NOW - DAY_US, NOW)
    damaged = replace(sound, name="damaged", base_offset=1, end_offset=2, damaged=True)
    copies = (CopyFact("sound", 100, NOW - DAY_US), CopyFact("damaged", 100, NOW - DAY_US))
    facts = partition(active(1, 2, 3), start_offset=0, objects=(sound, damaged), copies=copies)
    short = store(facts, disk_total_bytes=1 << 20, disk_free_bytes=0)
    for found in (plan(facts, rules()), plan(short, rules(promote=PromoteRule(reads=1, bytes=50)))):
        assert [item.name for item in found.actions if isinstance(item, Demote)] == ["sound"]


def test_a_copy_whose_page_was_not_read_may_be_of_a_pinned_time() -> None:
    """Of a large manifest some pages stand for their objects; what else keeps no copy is known without them."""
    page = ObjectFact("page", 0, 900, 1 << 20, NOW, NOW, count=9)
    facts = PartitionFacts(
        "t", 0, 0, 900, 900, 900, (), objects=(page,), published_start_offset=0,
        copies=(CopyFact("object", 1 << 10, NOW),),
    )  # fmt: skip
    for pin, kept in (({"since": "2020-01-01"}, 1), ({}, 0)):
        copies = CopiesPlan(facts, Policy.model_validate({"pin": pin}), NOW, 0)
        assert (len(copies.kept), len(copies.dropped)) == (kept, 1 - kept)
