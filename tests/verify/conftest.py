from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.stores import Place, build


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A sound store; tests that damage it put everything back."""
    return build(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def place(sound: Place, tmp_path: Path) -> Place:
    """A copy of it, to be damaged and repaired."""
    return sound.copy(tmp_path / "copy")
