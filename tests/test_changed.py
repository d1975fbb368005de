"""`make check` chooses the tests of what changed, the nearest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.changed import ALWAYS, chosen
from tests.support.paths import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file, text in {
        "cold/manifest/test_commit.py": "from tests.support.buckets import bucket\n",
        "cold/fetch/test_fetcher.py": "",
        "cold/manifest/test_head.py": "",
        "hot/test_row_buffer.py": "from tests.support import buckets\n",
        "torture/test_life.py": "from tiered.cold.manifest.commit import Committer\n",
        "docs/test_docs.py": "",
    }.items():
        path = tmp_path / "tests" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "tiered/cold/manifest/commit.py",
            [
                "tests/cold/manifest/test_commit.py",
                *ALWAYS,
                "tests/torture/test_life.py",
                "tests/cold/fetch/test_fetcher.py",
                "tests/cold/manifest/test_head.py",
            ],
        ),
        ("tests/hot/test_row_buffer.py", ["tests/hot/test_row_buffer.py", *ALWAYS]),
        (
            "tests/support/buckets.py",
            [*ALWAYS, "tests/cold/manifest/test_commit.py", "tests/hot/test_row_buffer.py"],
        ),
        ("tests/hot/test_gone.py", [*ALWAYS]),
        ("docs/style.md", [*ALWAYS, "tests/docs/test_docs.py"]),
        ("tiered/errors.py", [*ALWAYS]),
    ],
)
def test_a_file_leads_to_its_tests(tree: Path, file: str, expected: list[str]) -> None:
    """Tests that bear its name come first, those that hold for every change next."""
    assert chosen([file], tree) == expected


@pytest.mark.extended
def test_each_package_has_tests_that_a_change_of_it_leads_to() -> None:
    """In a folder of its name, or where one of its modules is imported."""
    packages: dict[str, list[str]] = {}
    for path in (ROOT / "tiered").rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 2:
            packages.setdefault(parts[1], []).append("/".join(parts))
    assert [name for name, files in packages.items() if len(chosen(files)) <= len(ALWAYS)] == []
