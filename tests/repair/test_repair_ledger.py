"""A damaged ledger of erasures stops every pass. It is found, and taken again from its other copy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.repair.repairs import done, spoil
from tests.support.damage import Damage, cut, flipped
from tiered.cli.verify import open_tiers
from tiered.errors import CorruptionError, TieredError
from tiered.repair.repair import repair_store
from tiered.settings.settings import Settings
from tiered.verify.verifier import verify_store

RULES = {"offload": {"after": "0s", "tail_interval": "off"}}
SETTINGS = tiered.Settings.model_validate({"policies": {"default": RULES}, "sweep": {"grace": "0s"}})
DAMAGES = pytest.mark.parametrize("damage", [cut(40), flipped(60), cut(0)], ids=["cut", "flipped", "empty"])


def open_it(root: Path) -> tiered.Store:
    return tiered.open(root / "data", cold=f"file://{root}/bucket", settings=SETTINGS)


def access(root: Path) -> Any:
    return open_tiers(Settings.model_validate({"store": {"path": str(root / "data")}}))


def states(root: Path, passes: int = 0) -> list[str]:
    """The state of each erasure, after so many passes that may fail."""
    with open_it(root) as store:
        for _ in range(passes):
            with suppress(TieredError):
                store.tier()
            with suppress(TieredError):
                store.sweep()
        return [erasure.state for erasure in store.erasures()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with an erasure that is done, and one that is open."""
    with open_it(tmp_path) as store:
        topic = store.create_topic("t")
        for number in range(9):
            topic.append(b"%d" % number, key="abc"[number % 3])
        topic.erase(["a"])
    assert states(tmp_path, 4) == ["done"]
    with open_it(tmp_path) as store:
        store.topic("t").append(b"9", key="b")
        store.topic("t").erase(["b"])
        store.tier()
    assert states(tmp_path) == ["done", "rewriting"]
    return tmp_path


@DAMAGES
@pytest.mark.parametrize("place", ["data", "bucket"])
def test_it_is_taken_from_the_other_copy(root: Path, place: str, damage: Damage) -> None:
    path = root / place / "erasures.json"
    spoilt = spoil(path, damage)
    if place == "bucket":
        assert states(root, 3) == ["done", "rewriting"]  # it waits, and says for what
    else:
        with pytest.raises(CorruptionError):
            states(root, 3)
    (problem,) = verify_store(access(root)).problems
    assert problem.where == (str(path) if place == "data" else f"file://{path}")
    report = repair_store(access(root))
    assert report.problems == ()
    (repair,) = done(report)
    assert Path(repair.kept.removeprefix("file://")).read_bytes() == spoilt
    assert states(root, 4) == ["done", "done"]


def test_both_copies_are_damaged(root: Path) -> None:
    for place in ("data", "bucket"):
        spoil(root / place / "erasures.json", cut(40))
    report = repair_store(access(root))
    assert [problem.where.rpartition("/")[2] for problem in report.problems] == ["erasures.json"] * 2
    assert [repair.result for repair in report.repairs] == ["refused"] * 2


def test_a_call_that_no_pass_has_brought_to_the_bucket_is_to_be_made_again(root: Path) -> None:
    with open_it(root) as store:
        store.topic("t").erase(["c"])
    spoil(root / "data" / "erasures.json", cut(40))
    (repair,) = done(repair_store(access(root)))
    assert repair.why == "one that was called here after the last pass is not among them: call it again"
    assert states(root) == ["done", "rewriting"]
    with open_it(root) as store:
        store.topic("t").erase(["c"])
    assert states(root, 4) == ["done"] * 3


def test_a_ledger_of_a_store_that_was_restored_elsewhere_is_not_taken(root: Path) -> None:
    with tiered.restore(f"file://{root}/bucket", root / "elsewhere", settings=SETTINGS):
        pass
    spoil(root / "data" / "erasures.json", cut(40))
    refused = [item for item in repair_store(access(root)).repairs if item.where.endswith("erasures.json")]
    assert [(item.result, "restored elsewhere" in item.why) for item in refused] == [("refused", True)]
