"""Versions that readers do not find, since one before them is gone or the pointer is old: the next writer goes on after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.table_reader import newest
from tests.table.place import Place

pytest.importorskip("pyiceberg")
from tests.support.engines import TableEngine


def set_back(folder: Path) -> None:
    (folder / "version-hint.text").write_text("5")


def lose_one(folder: Path) -> None:
    """The one after that of the pointer."""
    set_back(folder)
    (folder / "v6.metadata.json").unlink()


def lose_the_first(folder: Path) -> None:
    """As a sweep does, and then the pointer comes from an old copy."""
    for version in range(1, 6):
        (folder / f"v{version}.metadata.json").unlink()
    (folder / "version-hint.text").write_text("1")


def lose_all_between(folder: Path) -> None:
    lose_one(folder)
    lose_the_first(folder)


HOLES: dict[str, Callable[[Path], None]] = {
    "pointer set back": set_back,
    "one version lost": lose_one,
    "pointer to a version that was swept": lose_the_first,
    "a wide hole": lose_all_between,
}


@pytest.fixture
def seven(place: Place) -> Place:
    """A place whose table has seven versions."""
    for start in range(0, 70, 10):
        place.append(range(start, start + 10), tails=True)
        place.publish()
    return place


@pytest.mark.extended
@pytest.mark.parametrize("changed", [False, True], ids=["unchanged", "changed"])
@pytest.mark.parametrize("damage", HOLES.values(), ids=HOLES)
def test_a_new_process_goes_on_after_the_last_version(
    seven: Place, damage: Callable[[Path], None], changed: bool
) -> None:
    damage(seven.folder)
    if changed:
        seven.append(range(70, 80), tails=True)
    assert seven.publish(seven.another()).version == 7 + changed
    assert newest(seven.folder).name == f"v{7 + changed}.metadata.json"
    assert seven.check() == 70 + 10 * changed


@pytest.mark.parametrize("damage", HOLES.values(), ids=HOLES)
def test_a_process_that_goes_on_mends_the_pointer(seven: Place, damage: Callable[[Path], None]) -> None:
    damage(seven.folder)
    seven.append(range(70, 80), tails=True)
    assert seven.publish().version == 8
    assert seven.check() == 80


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["duckdb", pytest.param("spark", marks=pytest.mark.xdist_group("spark"))])
def test_engines_before_and_after(seven: Place, kind: str) -> None:
    """They read the version before the hole, and then the newest one."""
    engine = TableEngine(kind)
    try:
        location = f"file://{seven.folder.parent}"
        lose_one(seven.folder)
        assert len(engine.read(location, ["offset"])) == 50
        seven.append(range(70, 80), tails=True)
        seven.publish(seven.another())
        assert len(engine.read(location, ["offset"])) == 80
    finally:
        engine.close()
