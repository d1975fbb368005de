"""Every way in and every way out say the same, of any schema and any history; see `tests.torture.differential`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.budget import rounds, seconds_of
from tests.support.tally import tally
from tests.torture.differential import DifferentialMachine
from tiered.reader.scan import Scan

STEPS = 40


def run(profile: settings, number: int) -> None:
    counted = ("examples", "steps_total", "rows_compared", "refused")
    machine = type("Machine", (DifferentialMachine,), dict.fromkeys(counted, 0))
    try:
        run_state_machine_as_test(seed(number)(machine), settings=profile)
    finally:
        tally(
            "differential",
            histories=machine.examples,
            steps=machine.steps_total,
            rows_compared=machine.rows_compared,
            refused_alike=machine.refused,
        )


def profile(examples: int, **options: object) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_way_in_and_out_says_the_same() -> None:
    """For minutes, other histories at every run; the steps of one that fails are printed."""
    for dice in rounds(seconds_of(0.04)):
        run(profile(20), dice.randrange(1 << 32))


def twice() -> AbstractContextManager[object]:
    """A row of each batch of a scan is given a second time."""
    to_batches = Scan.to_batches

    def changed(self: Scan) -> Iterator[pa.RecordBatch]:
        for batch in to_batches(self):
            yield batch
            yield batch.slice(0, 1)

    return mock.patch.object(Scan, "to_batches", changed)


BROKEN: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "a row twice": twice,
    "a limit that is ignored": lambda: mock.patch("tiered.store.local_topic.plain_limit", return_value=None),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_wrong_answer_is_noticed(broken: str) -> None:
    options = {"phases": [Phase.generate], "report_multiple_bugs": False}
    with BROKEN[broken](), pytest.raises(AssertionError):
        run(profile(200, **options), 1)
    tally("mutations noticed", mutations=1)
