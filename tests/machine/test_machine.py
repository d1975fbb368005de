"""Any history of a store, with crashes, restores, twins, outages and held scans, keeps every promise (P1 to P11).

Several small machines find more in a minute than one that can do everything, as each of their histories goes deeper.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import tiered
from tests.machine.crashes import Crashes
from tests.machine.machine import StoreMachine
from tests.machine.mutations import MUTATIONS
from tests.machine.restores import Restores
from tests.machine.scans import Scans
from tests.support.budget import rounds, seconds_of
from tests.support.mutations import EVICT_EARLY, FLUSH_ONLY
from tests.support.tally import tally
from tests.support.topic_model import Violation

STEPS = 50
EXAMPLES = 6
MODES = ("always", "interval", "never")


class CrashesAndRestores(Restores, Crashes):
    """Also crashes in the middle of restores."""


class ScansAndRestores(Scans, Restores):
    """Also scans by a machine that was left behind."""


class ScansAndCrashes(Scans, Crashes):
    """Also scans of the bucket alone, which outlive the writer."""


class Everything(Scans, Restores, Crashes):
    """All of it."""


def run(kind: type[StoreMachine], sync: str, profile: settings) -> type[StoreMachine]:
    machine = type(f"{kind.__name__}_{sync}", (kind,), {"sync": sync, "steps_total": 0, "examples": 0})
    run_state_machine_as_test(machine, settings=profile)
    return machine


def run_and_count(kind: type[StoreMachine], sync: str, profile: settings) -> None:
    machine = run(kind, sync, profile)
    tally("state machine", steps=machine.steps_total, examples=machine.examples)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "sync"),
    [
        *((Crashes, mode) for mode in MODES),
        (CrashesAndRestores, "interval"),
        (ScansAndRestores, "interval"),
        (ScansAndCrashes, "always"),
    ],
)
def test_any_history_keeps_every_promise(kind: type[StoreMachine], sync: str) -> None:
    run_and_count(kind, sync, settings(max_examples=EXAMPLES, stateful_step_count=STEPS))


LONG = [
    *((Everything, mode) for mode in MODES),
    (CrashesAndRestores, "always"),
    (ScansAndRestores, "never"),
    (ScansAndCrashes, "interval"),
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "sync"), LONG)
def test_any_long_history_keeps_every_promise(kind: type[StoreMachine], sync: str) -> None:
    """Histories twice as long, for minutes, others at every run."""
    profile = settings(max_examples=20, stateful_step_count=2 * STEPS, database=None)
    for dice in rounds(seconds_of(0.10, len(LONG))):
        run_and_count(seed(dice.randrange(1 << 32))(kind), sync, profile)


# Which machine notices, and by what.
NOTICED: dict[str, tuple[type[StoreMachine], str, str]] = {
    EVICT_EARLY: (Crashes, "interval", "reads|are lost|in no tier"),
    FLUSH_ONLY: (Crashes, "always", "had been synced|are lost"),
    "a live object swept": (StoreMachine, "interval", "404|missing"),
    "offsets used again after a restore": (Restores, "interval", "was restored as"),
    "a scan that skips what is gone": (Scans, "interval", "a held scan"),
    "a tierer beside taken for a newer disk": (StoreMachine, "interval", "this disk at"),
}


# These take more than a few seconds to be drawn.
RARE = (
    EVICT_EARLY,
    "a live object swept",
    "a scan that skips what is gone",
    "a tierer beside taken for a newer disk",
)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in RARE else []) for name in MUTATIONS]
)
def test_a_missing_mechanism_is_noticed(name: str) -> None:
    """Within so many histories, always the same ones, one goes wrong."""
    kind, sync, words = NOTICED[name]
    profile = settings(
        max_examples=600,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with MUTATIONS[name](), pytest.raises((Violation, tiered.TieredError), match=words):
        run(kind, sync, profile)
    tally("mutations noticed", mutations=1)
