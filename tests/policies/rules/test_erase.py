"""When an erasure seals, offloads and rewrites: never before the bucket has all that it concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.policies.policy_model import NOW, QUIET, active, object_fact, partition, published, segment, store
from tiered.policies.actions import Action
from tiered.policies.facts import ErasureFact, PartitionFacts
from tiered.policies.forecast.explain import explain
from tiered.policies.forecast.simulate import simulate
from tiered.policies.plan import make_plan
from tiered.policies.rules import erase

OPEN = (ErasureFact(7, 15, 0),)


def planned(facts: PartitionFacts, **changes: Any) -> tuple[Action, ...]:
    return make_plan(store(facts, **changes), lambda _: QUIET, NOW).actions


def kinds(facts: PartitionFacts, **changes: Any) -> list[str]:
    return [action.kind for action in planned(facts, **changes)]


FIRST, SECOND, LAST = published(1, 0, 10), published(2, 10, 20), active(3, 20, 25)
WHOLE = partition(
    FIRST, SECOND, LAST, published_start_offset=0, erasures=OPEN,
    objects=(object_fact(0, 10, FIRST), object_fact(10, 20, SECOND)),
)  # fmt: skip


def test_all_objects_up_to_the_horizon_are_checked_in_one_action() -> None:
    (action,) = planned(WHOLE)
    assert make_plan(store(WHOLE), lambda _: QUIET, NOW).upload_bytes == action.bytes > 0
    assert (action.kind, action.base_offset, action.end_offset) == ("erase", 0, 20)
    assert action.reason == "erasure 7 removes records before offset 15"
    assert action.publishes
    two = replace(WHOLE, erasures=(*OPEN, ErasureFact(8, 20, 10)))
    assert [action.reason for action in planned(two)] == ["2 erasures remove records"]


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("none is open", replace(WHOLE, erasures=()), []),
        ("all is checked", replace(WHOLE, erasures=(ErasureFact(7, 15, 15),)), []),
        ("the log begins behind it", replace(WHOLE, erasures=(ErasureFact(7, 0, 0),)), []),
        (
            "the active segment has such records",
            replace(WHOLE, erasures=(ErasureFact(7, 22, 0),)),
            ["seal"],
        ),
        (
            "a sealed one is not published",
            partition(
                FIRST, segment(2, 10, 20), LAST, published_start_offset=0, erasures=OPEN,
                objects=(object_fact(0, 10, FIRST),),
            ),
            ["offload"],
        ),
        (
            "the tail of it is published",
            partition(
                FIRST, segment(2, 10, 20), LAST, published_start_offset=0, published_offset=20, erasures=OPEN,
                objects=(object_fact(0, 10, FIRST), object_fact(10, 20, SECOND, sealed=False)),
            ),
            ["offload"],
        ),
        (
            "the manifest ends before the horizon, and no file is here",
            replace(WHOLE, published_offset=12),
            [],
        ),
        (
            "the segment of a tail was lost with its disk",
            partition(
                FIRST, LAST, published_start_offset=0, published_offset=20, erasures=OPEN,
                objects=(object_fact(0, 10, FIRST), object_fact(10, 20, SECOND, sealed=False)),
            ),
            ["erase"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_object_is_checked_only_when_nothing_else_is_due(
    name: str, facts: PartitionFacts, expected: list[str]
) -> None:
    assert kinds(facts) == expected


def test_a_large_partition_is_checked_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase, "RANGE_BYTES", 1)
    assert [(x.base_offset, x.end_offset) for x in planned(WHOLE)] == [(0, 10), (10, 20)]
    later = replace(WHOLE, erasures=(ErasureFact(7, 15, 10),))
    assert [(x.base_offset, x.end_offset) for x in planned(later)] == [(10, 20)]


def test_without_a_bucket_nothing_is_sealed_for_it() -> None:
    assert kinds(replace(WHOLE, erasures=(ErasureFact(7, 22, 0),)), has_cold=False) == []


def test_a_forecast_comes_to_its_end() -> None:
    found = simulate(store(WHOLE), lambda _: QUIET, NOW + 3_600_000_000, sweep_every=None)
    assert [action.kind for _, action in found.steps].count("erase") == 1


def test_an_explanation_names_what_is_due() -> None:
    (found,) = explain(store(WHOLE), lambda _: QUIET, NOW)
    assert [piece.next and piece.next.kind for piece in found.pieces][:2] == ["erase", "erase"]
    assert found.notes == ()


def test_an_explanation_names_what_waits_for_the_bucket() -> None:
    waiting = replace(WHOLE, erasures=(ErasureFact(7, 22, 0), ErasureFact(8, 15, 15)))
    (found,) = explain(store(waiting), lambda _: QUIET, NOW)
    assert found.notes == (
        "t/0: erasure 7 removes records before offset 22 once all of these are in the bucket",
    )
