"""The operators do what their examples show, and each mutant has a name of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="of the extra `mutants`")

from cosmic_ray.mutating import mutate_code

from tests.mutants.making import mutants_of
from tests.mutants.operators import OPERATORS

EXAMPLES = [(name, example) for name, kind in OPERATORS.items() for example in kind.examples()]

MODULE = '''\
def flush(fs, fd):
    """Sync."""
    if fs.dirty:
        fs.sync(fd)
    fs.sync(fd)
    log.info("synced")
'''


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_an_operator_does_what_its_example_shows(name: str, example: object) -> None:
    changed = mutate_code(
        example.pre_mutation_code,  # type: ignore[attr-defined]
        OPERATORS[name](**(example.operator_args or {})),  # type: ignore[attr-defined]
        example.occurrence,  # type: ignore[attr-defined]
    )

    assert changed == example.post_mutation_code  # type: ignore[attr-defined]


def test_mutants_are_named_by_function_and_operator_and_messages_stay(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)

    found = mutants_of(tmp_path, "m.py")

    assert [(item.name, item.line, item.text) for item in found] == [
        ("flush:never:1", 3, "if fs.dirty:"),
        ("flush:remove:1", 4, "fs.sync(fd)"),
        ("flush:remove:2", 5, "fs.sync(fd)"),
    ]
    assert found[1].code(tmp_path) == MODULE.replace("        fs.sync(fd)", "        pass")
