"""The mutants of a module: each its code, and a name that survives when the module moves."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module.

    Attributes
    ----------
    name
        ``function:operator:number``, the number counting that operator's places in the function; without the module, so
        that it stays when the function moves.
    path
        The module, relative to the repository.
    line
        First line of the change, from 1.
    text
        That line as it stands, without its indentation.
    operator, occurrence
        What cosmic-ray needs to make it again.
    """

    name: str
    path: str
    line: int
    text: str
    operator: str
    occurrence: int

    def code(self, root: Path) -> str:
        """Return the module's code with the change."""
        changed = mutate_code((root / self.path).read_text(), OPERATORS[self.operator](), self.occurrence)
        assert changed is not None
        return changed


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Return every mutant of a module that compiles, in the order of its lines."""
    code = (root / path).read_text()
    lines = code.splitlines()
    functions = list(_functions(ast.parse(code)))
    found: list[tuple[int, str, str, int]] = []
    for operator, kind in OPERATORS.items():
        places = [place for node in ast_nodes(get_ast(code)) for place in kind().mutation_positions(node)]
        for occurrence, ((line, _), _) in enumerate(places):
            function = _innermost(functions, line)
            if function is not None and _compiles(code, operator, occurrence):
                found.append((line, function, operator, occurrence))
    numbers: Counter[tuple[str, str]] = Counter()
    mutants = []
    for line, function, operator, occurrence in sorted(found):
        numbers[function, operator] += 1
        name = f"{function}:{operator}:{numbers[function, operator]}"
        mutants.append(Mutant(name, path, line, lines[line - 1].strip(), operator, occurrence))
    return mutants


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and qualified name of each function below a node, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield child.body[0].lineno, child.end_lineno or child.lineno, name
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _innermost(functions: list[tuple[int, int, str]], line: int) -> str | None:
    names = [name for first, last, name in functions if first <= line <= last]
    return names[-1] if names else None


def _compiles(code: str, operator: str, occurrence: int) -> bool:
    changed = mutate_code(code, OPERATORS[operator](), occurrence)
    if changed is None or changed == code:
        return False
    try:
        compile(changed, "mutant", "exec")
    except SyntaxError:
        return False
    return True
