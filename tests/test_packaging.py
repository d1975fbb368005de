"""What is built holds the whole package and nothing else, whatever became of the links at the top level."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("hatchling")
pytest.importorskip("build")
# Each process that runs one of these tests builds everything that they look at.
pytestmark = pytest.mark.xdist_group("packaging")

LINKS = ("hot", "warm", "cold", "policies")
DATA = "tiered/_data/flights.parquet"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def package_files() -> set[str]:
    """Files of the package as git knows them; outside a git checkout, as they are on disk."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "tiered"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    names = set(listed.stdout.split()) if listed.returncode == 0 else set()
    if not names:
        names = {str(path.relative_to(ROOT)) for path in (ROOT / "tiered").rglob("*") if path.is_file()}
    return {name for name in names if "__pycache__" not in name and (ROOT / name).exists()}


def checkout(folder: Path, links: str) -> Path:
    """Copy what a build reads; the links as links, missing, or as the files git writes where it cannot link."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_tiered.py"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    for name in ("tiered", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKS:
        if links == "links":
            (folder / name).symlink_to(f"tiered/{name}")
        elif links == "files":
            (folder / name).write_text(f"tiered/{name}")
    return folder


def contents(archive: Path) -> set[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {member.name.partition("/")[2] for member in sdist.getmembers() if not member.isdir()}


@pytest.fixture(scope="module", params=["links", "missing", "files"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An sdist, the wheel built from it, and the wheel built from the checkout."""
    folder = tmp_path_factory.mktemp(request.param)
    source = checkout(folder / "source", request.param)
    build = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir")
    run(*build, folder / "by way of sdist", source, cwd=folder)
    run(*build, folder / "direct", "--wheel", source, cwd=folder)
    (sdist,) = (folder / "by way of sdist").glob("*.tar.gz")
    (from_sdist,) = (folder / "by way of sdist").glob("*.whl")
    (direct,) = (folder / "direct").glob("*.whl")
    return {"sdist": sdist, "wheel from sdist": from_sdist, "wheel": direct}


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["sdist", "wheel from sdist", "wheel"])
def test_every_file_of_the_package_is_in(built: dict[str, Path], kind: str) -> None:
    expected = package_files()
    assert {"tiered/errors.py", "tiered/py.typed"} <= expected
    expected.add("examples/flights.parquet" if kind == "sdist" else DATA)
    assert expected - contents(built[kind]) == set()


@pytest.mark.parametrize("kind", ["wheel from sdist", "wheel"])
def test_a_wheel_puts_no_other_name_into_site_packages(built: dict[str, Path], kind: str) -> None:
    names = contents(built[kind])
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops - {"pyspark_tiered.py"} == {"tiered"}
    inside = {name for name in names if name.startswith("tiered/")}
    assert inside == package_files() | {DATA}


def test_an_sdist_holds_none_of_the_links(built: dict[str, Path]) -> None:
    tops = {name.partition("/")[0] for name in contents(built["sdist"])}
    assert tops.isdisjoint(LINKS)


@pytest.mark.extended
def test_an_installed_wheel_works_from_anywhere(built: dict[str, Path], tmp_path: Path) -> None:
    """In a venv that sees this one's libraries, but not this checkout; beside a user's own `hot.py`."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    with zipfile.ZipFile(built["wheel from sdist"]) as wheel:
        wheel.extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "hot.py").write_text("raise ImportError('the user\\'s own module was imported')")
    program = (
        "import sys, tiered.hot, tiered.warm, tiered.cold, tiered.policies, tiered.demo.flights_file as bundled;"
        "import importlib.metadata as metadata;"
        "assert metadata.version('tiered') == '0.1.0';"
        "assert bundled.flights_path().stat().st_size == 3_150_723;"
        "print(bundled.__file__, bundled.flights_path(), sep='\\n')"
    )
    printed = run(python, "-c", program, cwd=tmp_path, PYTHONPATH="").split("\n")
    assert [Path(line) for line in printed if line] == [
        (site / "tiered" / "demo" / "flights_file.py").resolve(),
        (site / "tiered" / "_data" / "flights.parquet").resolve(),
    ]


def imported_modules(source: str) -> set[str]:
    """Names of the top-level modules that a source imports when it is itself imported."""
    names: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
        only_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not only_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes.extend(ast.iter_child_nodes(node))
    return names - set(sys.stdlib_module_names)


def test_every_library_that_is_imported_is_declared() -> None:
    """An undeclared one works until some other package stops to bring it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    declared = {name.split(">")[0].split("[")[0].lower().replace("_", "-") for name in needed}
    distributions = packages_distributions()
    undeclared = {}
    for path in (ROOT / "tiered").rglob("*.py"):
        for module in imported_modules(path.read_text()):
            owners = {name.lower().replace("_", "-") for name in distributions.get(module, [module])}
            if not owners & declared:
                undeclared[f"{path.relative_to(ROOT)}: {module}"] = owners
    assert undeclared == {}
