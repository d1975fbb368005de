"""When a partition is compacted, and up to where: never where the only copy of records is on the disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.policies.policy_model import (
    NOW,
    QUIET,
    SECOND,
    active,
    object_fact,
    partition,
    published,
    segment,
    store,
)
from tiered.format.manifest import Compaction
from tiered.policies.facts import PartitionFacts
from tiered.policies.forecast.explain import explain
from tiered.policies.forecast.simulate import simulate
from tiered.policies.plan import make_plan
from tiered.policies.policy import CompactKeysRule, MergeRule, Pin, Policy

DAY = 86_400 * SECOND
RULE = CompactKeysRule(after="30m", dirty=0.5)  # type: ignore[arg-type]
KEYED = QUIET.model_copy(update={"compact_keys": RULE})


def kinds(facts: PartitionFacts, policy: Policy = KEYED, **changes: Any) -> list[tuple[Any, ...]]:
    actions = make_plan(store(facts, **changes), lambda _: policy, NOW).actions
    return [
        (x.kind, x.base_offset, x.end_offset, x.tombstone_offset) if x.kind == "compact" else (x.kind,)  # type: ignore[attr-defined]
        for x in actions
    ]


FIRST, SECOND_, LAST = published(1, 0, 10), published(2, 10, 20), active(3, 20, 25)
OBJECTS = (object_fact(0, 10, FIRST), object_fact(10, 20, SECOND_))
WHOLE = partition(
    FIRST, SECOND_, LAST, published_start_offset=0, objects=OBJECTS, compaction=Compaction()
)  # fmt: skip


def test_all_sealed_and_offloaded_objects_are_compacted_at_once() -> None:
    assert kinds(WHOLE) == [("compact", 0, 20, 0)]
    plan = make_plan(store(WHOLE), lambda _: KEYED, NOW)
    (action,) = plan.actions
    assert plan.upload_bytes == action.bytes > 0
    assert action.reason == "100% of the objects is new >= compact_keys.dirty 50%"
    assert action.publishes


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("the topic has no key", replace(WHOLE, compaction=None), []),
        ("all is clean", replace(WHOLE, compaction=Compaction(20, 20, 20)), []),
        ("half of it is new", replace(WHOLE, compaction=Compaction(10, 10, 10)), [("compact", 0, 20, 0)]),
        (
            "the deletion is not published",
            replace(WHOLE, start_offset=5),
            [("expire",)],
        ),
        (
            "the second one is too young",
            replace(
                WHOLE,
                objects=(OBJECTS[0], replace(OBJECTS[1], last_append_us=NOW - 60 * SECOND)),
            ),
            [("compact", 0, 10, 0)],
        ),
        (
            "the first one is damaged",
            replace(WHOLE, segments=(LAST,), start_offset=0, objects=(replace(OBJECTS[0], damaged=True), OBJECTS[1])),
            [],
        ),
        (
            "the second segment is not published",
            partition(
                FIRST, segment(2, 10, 20, last_append_us=NOW), LAST, published_start_offset=0, objects=OBJECTS[:1],
                compaction=Compaction(), published_offset=10,
            ),
            [("compact", 0, 10, 0)],
        ),
        (
            "one that was begun goes on",
            replace(WHOLE, compaction=Compaction(0, 15, 10)),
            [("compact", 10, 15, 0)],
        ),
        (
            "one that was begun ends beyond what may be compacted now",
            replace(WHOLE, compaction=Compaction(0, 22, 10)),
            [],
        ),
        (
            "retention took what one had begun with",
            replace(
                WHOLE, start_offset=10, published_start_offset=10, compaction=Compaction(0, 10, 5), objects=OBJECTS[1:]
            ),
            [("expire",), ("compact", 10, 20, 0)],
        ),
        (
            "tombstones are old enough",
            replace(WHOLE, compaction=Compaction(20, 20, 20, 18, NOW - DAY)),
            [("compact", 0, 20, 18)],
        ),
        (
            "tombstones are a second too young",
            replace(WHOLE, compaction=Compaction(20, 20, 20, 18, NOW - DAY + SECOND)),
            [],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_compacted(name: str, facts: PartitionFacts, expected: list[tuple[Any, ...]]) -> None:
    assert kinds(facts) == expected


def test_pinned_segments_stay_as_they_are() -> None:
    pinned = KEYED.model_copy(update={"pin": Pin(age="1d")})  # type: ignore[arg-type]
    assert kinds(WHOLE, pinned) == []
    assert kinds(replace(WHOLE, segments=(LAST,)), pinned) == [("compact", 0, 20, 0)]


def test_without_a_bucket_or_a_rule_nothing_is_compacted() -> None:
    assert kinds(WHOLE, has_cold=False) == []
    assert kinds(WHOLE, QUIET) == []


def test_objects_are_merged_once_they_are_compacted() -> None:
    both = KEYED.model_copy(update={"merge": MergeRule(after="1s", target_bytes="10KiB")})  # type: ignore[arg-type]
    assert kinds(WHOLE, both) == [("compact", 0, 20, 0)]
    assert kinds(replace(WHOLE, compaction=Compaction(20, 20, 20)), both) == [("merge",)]


def test_a_forecast_comes_to_its_end() -> None:
    found = simulate(store(WHOLE), lambda _: KEYED, NOW + 5 * DAY, sweep_every=None)
    at = [(when - NOW) // DAY for when, action in found.steps if action.kind == "compact"]
    assert at == [0, 1]  # the second one is for the tombstones


def test_an_explanation_names_what_is_due() -> None:
    (found,) = explain(store(WHOLE), lambda _: KEYED, NOW)
    assert [piece.next and piece.next.kind for piece in found.pieces][:2] == ["compact", "compact"]


def test_the_state_after_a_compaction() -> None:
    begun = Compaction(10, 20, 20)
    assert begun.done(NOW) == Compaction(20, 20, 20, 20, NOW)
    waiting = replace(begun, tombstone_offset=10, tombstone_us=5)
    assert waiting.done(NOW) == Compaction(20, 20, 20, 10, 5)
    assert replace(waiting, removed_offset=10).done(NOW) == Compaction(20, 20, 20, 20, NOW)
    only = Compaction(20, 20, 20, 20, 5, 20)
    assert only.done(NOW) == Compaction(20, 20, 20)
