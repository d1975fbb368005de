"""Operators that take a protective step away, in the form that cosmic-ray gives its own.

cosmic-ray changes operators and constants. What keeps data safe is mostly a statement that is there at all: a sync, a
check, a lock. These operators remove one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import parso.python.tree as tree  # before cosmic_ray, which imports parso the other way round
from cosmic_ray.operators import boolean_replacer, comparison_operator_replacement, unary_operator_replacement
from cosmic_ray.operators.break_continue import ReplaceBreakWithContinue
from cosmic_ray.operators.operator import Example, Operator

Position = tuple[tuple[int, int], tuple[int, int]]

_SAYS_ONLY = re.compile(r"(_?log|warnings|self\._log)\.|self\._counters\.|self\._counts\.")
"""Statements that tell and count: nothing depends on them but what people read."""


def _leaf(text: str, at: Any) -> Any:
    return tree.Name(text, at.start_pos, prefix=at.get_first_leaf().prefix)


class _Replacing(Operator):
    """An operator that replaces one child of a node by a word."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for index, _ in self._points(node):
            yield node.children[index].start_pos, node.children[index].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        child, word = list(self._points(node))[index]
        node.children[child] = _leaf(word, node.children[child])
        return node

    def _points(self, node: Any) -> Iterator[tuple[int, str]]:
        raise NotImplementedError


class RemoveStatement(_Replacing):
    """Remove a call whose result nobody uses, a ``raise``, a ``del``, or the setting of an attribute."""

    def _points(self, node: Any) -> Iterator[tuple[int, str]]:
        if node.type != "simple_stmt":
            return
        statement = node.children[0]
        code = statement.get_code(include_prefix=False)
        if _SAYS_ONLY.match(code):
            return
        calls = statement.type == "atom_expr" and statement.children[-1].get_code().startswith("(")
        sets = statement.type == "expr_stmt" and re.match(
            r"[\w.]+(\.\w+|\[[^]]*\])(, [\w.]+)* ([-+|&]?=) ", code
        )
        raises = statement.type == "raise_stmt" or code == "raise"
        if (
            calls
            or raises
            or statement.type == "del_stmt"
            or (sets and tree.search_ancestor(node, "funcdef").name.value != "__init__")
        ):
            yield 0, "pass"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("fs.sync(fd)\n", "pass\n"),
            Example("if x:\n    raise OSError(1)\n", "if x:\n    pass\n"),
            Example("def f(self):\n    self.fault = fault\n", "def f(self):\n    pass\n"),
        )


class NeverTaken(_Replacing):
    """Let the condition of an ``if`` or ``while`` be false."""

    def _points(self, node: Any) -> Iterator[tuple[int, str]]:
        if node.type in ("if_stmt", "while_stmt"):
            for index, child in enumerate(node.children):
                if child.type == "keyword" and child.value in ("if", "elif", "while"):
                    yield index + 1, "False"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("if x > 1:\n    pass\n", "if False:\n    pass\n"),)


class WithoutContext(Operator):
    """Run the body of a ``with`` without its lock, or whatever it holds."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "with_stmt" and len(node.children) == 4 and node.children[1].type != "with_item":
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.children[0] = _leaf("if", node.children[0])
        node.children[1] = _leaf("True", node.children[1])
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("with lock:\n    pass\n", "if True:\n    pass\n"),)


class SwapMembership(Operator):
    """``in`` for ``not in``, and the reverse."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "comparison" and node.children[1].get_code().split() in (["in"], ["not", "in"]):
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        was = node.children[1]
        node.children[1] = _leaf("not in" if was.get_code().split() == ["in"] else "in", was)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a in b", "a not in b"), Example("a not in b", "a in b"))


class CatchNothing(_Replacing):
    """Let an ``except`` catch nothing."""

    def _points(self, node: Any) -> Iterator[tuple[int, str]]:
        if node.type == "except_clause":
            yield 1, "()"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("try: pass\nexcept (a.B, C) as e: pass", "try: pass\nexcept () as e: pass"),)


class SwapAndOr(_Replacing):
    """``or`` for ``and``, and the reverse."""

    def _points(self, node: Any) -> Iterator[tuple[int, str]]:
        if node.type in ("and_test", "or_test"):
            for index in range(1, len(node.children), 2):
                yield index, "or" if node.type == "and_test" else "and"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a and b", "a or b"),)


def _comparison(name: str) -> type[Operator]:
    return getattr(comparison_operator_replacement, f"ReplaceComparisonOperator_{name}")


OPERATORS: dict[str, type[Operator]] = {
    "remove": RemoveStatement,
    "never": NeverTaken,
    "without": WithoutContext,
    "membership": SwapMembership,
    "and-or": SwapAndOr,
    "< <=": _comparison("Lt_LtE"),
    "<= <": _comparison("LtE_Lt"),
    "> >=": _comparison("Gt_GtE"),
    ">= >": _comparison("GtE_Gt"),
    "== !=": _comparison("Eq_NotEq"),
    "!= ==": _comparison("NotEq_Eq"),
    "is not": _comparison("Is_IsNot"),
    "not is": _comparison("IsNot_Is"),
    "drop not": unary_operator_replacement.ReplaceUnaryOperator_Delete_Not,
    "true false": boolean_replacer.ReplaceTrueWithFalse,
    "false true": boolean_replacer.ReplaceFalseWithTrue,
    "except": CatchNothing,
    "break": ReplaceBreakWithContinue,
}
