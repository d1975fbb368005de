"""The crash tests can fail: each mechanism that is taken out of the engine makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.check import Count, Sample, check
from tests.crash.scenarios import check_failed_sync, check_old_image, check_rot
from tests.crash.workload import record
from tests.support.disk_model import Rename
from tests.support.mutations import LATE, MUTATIONS, cut_at_any_damage, evict_by_offsets, retry_failed_sync
from tests.support.store_actor import Actor
from tests.support.tally import tally
from tests.support.topic_model import Violation


def first_rename(actor: Actor, text: str) -> int:
    """Index of the first operation that gives a name with `text` in it."""
    journal = actor.recorder.journal
    return next(i for i, op in enumerate(journal) if isinstance(op, Rename) and text in op.target)


@pytest.mark.extended
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_mechanism_is_noticed(name: str, tmp_path: Path) -> None:
    """Within the crashes that a quick run looks at, at least one violates a promise."""
    with MUTATIONS[name](), pytest.raises(Violation):
        actor = record(tmp_path / "life", "interval")
        begin = first_rename(actor, LATE[name]) if name in LATE else 0
        check(actor, Sample(seeds=0, begin=begin, pass_every=1000), Count())
    tally("mutations noticed", mutations=1)


def test_cutting_at_any_damage_is_noticed(tmp_path: Path) -> None:
    with cut_at_any_damage(), pytest.raises(Violation):
        check_rot(tmp_path, "interval")
    tally("mutations noticed", mutations=1)


def test_evicting_by_offsets_is_noticed(tmp_path: Path) -> None:
    with evict_by_offsets(), pytest.raises(Violation):
        check_old_image(tmp_path)
    tally("mutations noticed", mutations=1)


def test_retrying_a_failed_sync_is_noticed(tmp_path: Path) -> None:
    with retry_failed_sync(), pytest.raises(Violation):
        check_failed_sync(tmp_path)
    tally("mutations noticed", mutations=1)
