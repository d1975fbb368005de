"""The documentation holds: its code runs, its output is real, its links lead somewhere, its reference is complete."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import subprocess
import tomllib
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import Any

import boto3
import pytest
import typer
from typer.testing import CliRunner

import tiered
from tests.support.paths import ROOT
from tiered.cli import app

DOCS = ROOT / "docs"
GENERATED = ("api.md", "cli.md", "metrics.md")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.glob("**/*.md")])
BUCKET = "my-bucket"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^][]*\]\(([^()\s]+)\)")
_VOLATILE = re.compile(r"\b\d[\d,.]*([KMG]iB|B| m?s|m?s)\b")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `output` is the block ``text`` right after it."""

    page: Path
    language: str
    text: str
    line: int
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    blocks = []
    for number, match in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        follows = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(
            Block(page, match[1], match[2], line, after[2] if after is not None and follows else None)
        )
    return blocks


def runs(page: Path) -> bool:
    return any(block.language in ("python", "console") for block in blocks_of(page))


def needs_spark(page: Path) -> bool:
    return any("tiered.spark" in block.text for block in blocks_of(page) if block.language == "python")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNING = [page for page in PAGES if runs(page)]


@pytest.fixture
def workplace(tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory and an empty bucket of the name that the pages use."""
    monkeypatch.chdir(tmp_path)
    bucket = boto3.resource("s3", endpoint_url=s3_endpoint).Bucket(BUCKET)
    bucket.create()
    bucket.objects.all().delete()
    return tmp_path


@pytest.fixture
def odd_workplace(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same below a name that URLs would quote; nothing may be left beside it."""
    folder = workplace / "my wörk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    assert list(workplace.iterdir()) == [folder]


def check_output(block: Block, expected: str, got: str) -> None:
    """Compare but for white space, the length of rules, sizes and times, and what ``...`` stands for."""
    shown, real = (_VOLATILE.sub("#", re.sub("─+", "─", text)) for text in (expected, got))
    if not OutputChecker().check_output(shown, real, ELLIPSIS | NORMALIZE_WHITESPACE):
        pytest.fail(
            f"{names(block.page)} line {block.line} shows\n{expected}\nbut it is\n{got}", pytrace=False
        )


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    printed = io.StringIO()
    # The empty lines give tracebacks the page's own line numbers.
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    with redirect_stdout(printed):
        exec(code, namespace)
    if block.output is not None:
        check_output(block, block.output, printed.getvalue())
    else:
        assert not printed.getvalue(), (
            f"{names(block.page)} line {block.line} prints, and the page does not show it"
        )


def run_console(block: Block) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.replace("\\\n", " ").partition("\n")
        code, got = run_command(command)
        failed = f"{names(block.page)} line {block.line}: {command}\n{got}"
        assert code == (1 if "error: " in expected else 0), failed
        if expected.strip():
            check_output(block, expected, got)


def run_command(command: str) -> tuple[int, str]:
    """Run a pipeline; ``tiered …`` runs in this process, everything else in a shell."""
    code, text = 0, ""
    for stage in command.split(" | "):
        own = re.fullmatch(r"((?:[A-Z_]+=\S+ +)*)tiered (.*)", stage.strip())
        if own is None:
            done = subprocess.run(stage, shell=True, input=text, capture_output=True, text=True, check=False)
            code, text = done.returncode, done.stdout + done.stderr
            continue
        variables = dict(part.split("=", 1) for part in own[1].split())
        result = CliRunner().invoke(app, shlex.split(own[2]), input=text, env=variables, prog_name="tiered")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        code, text = result.exit_code, result.output
    return code, text


def run_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python":
            run_python(block, namespace)
        elif block.language == "console":
            run_console(block)
        elif block.language == "toml":
            tiered.Settings.model_validate(tomllib.loads(block.text))
            if "# tiered.toml" in block.text:
                Path("tiered.toml").write_text(block.text, encoding="utf-8")


@pytest.mark.extended
@pytest.mark.parametrize("page", [page for page in RUNNING if not needs_spark(page)], ids=names)
def test_code_and_commands_do_what_the_page_shows(page: Path, odd_workplace: None) -> None:
    """Every block of Python and every command runs, in order, and prints what stands below it."""
    run_page(page)


@pytest.mark.extended
@pytest.mark.parametrize("page", [page for page in RUNNING if needs_spark(page)], ids=names)
def test_spark_code_does_what_the_page_shows(page: Path, workplace: Path, spark: Any) -> None:
    """The same for the pages with Spark in them."""
    run_page(page)


@pytest.mark.parametrize("page", [page for page in PAGES if not runs(page)], ids=names)
def test_settings_on_other_pages_are_valid(page: Path) -> None:
    """Every block of TOML is a settings file that the store accepts."""
    for block in blocks_of(page):
        if block.language == "toml":
            tiered.Settings.model_validate(tomllib.loads(block.text))


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    shown = re.search(r'^Prints::\n\n(.*?)^"""', path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown is not None, f"{path.name} does not say what it prints"
    block = Block(path, "python", "", 1, None)
    check_output(block, re.sub(r"^    ", "", shown[1], flags=re.MULTILINE), capsys.readouterr().out)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "spark" not in path.name], ids=names)
def test_an_example_prints_what_it_says(
    path: Path, odd_workplace: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file of examples/ runs in an empty directory."""
    run_example(path, capsys)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "spark" in path.name], ids=names)
def test_a_spark_example_prints_what_it_says(
    path: Path, workplace: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same with Spark."""
    run_example(path, capsys)


@pytest.mark.parametrize("name", GENERATED)
def test_the_reference_is_what_the_generator_makes_now(name: str) -> None:
    """A changed docstring or help text comes with its page: run ``make docs``."""
    made: dict[str, str] = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert (DOCS / name).read_text(encoding="utf-8") == made[name], "run make docs"


def test_each_table_of_a_docstring_is_one_on_its_page() -> None:
    """Text between two tables of options is text, and the second one has its own head."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| Option\b.*\n(.*)$", text, re.MULTILINE) == ["|---|---|"] * 3


def test_every_command_and_option_is_documented() -> None:
    """Nothing of the command line is missing from its page, and the page names nothing that is not there."""
    group: Any = typer.main.get_command(app)
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^## `tiered ([\w-]+)`", text, re.MULTILINE) == list(group.commands)
    for name, command in group.commands.items():
        section = text.partition(f"## `tiered {name}`")[2].partition("\n## ")[0]
        missing = [
            flag
            for item in command.params
            for flag in item.opts
            if flag.startswith("--") and flag not in section
        ]
        assert missing == []


def test_every_public_name_is_documented() -> None:
    """The API page has each exported name."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    headings = {match.strip("`") for match in _HEADING.findall(text)}
    missing = [name for name in tiered.__all__ if not {name, f"tiered.{name}"} & headings]
    assert missing == ["__version__"]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        kept = "".join(c for c in plain if c in " -_" or unicodedata.category(c)[0] in "LN")
        slug = kept.replace(" ", "-")
        found[slug if slug not in found else f"{slug}-{found[slug]}"] = 1
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository, and every anchor a heading of it."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(link)
    assert broken == []


def linked_from(page: Path) -> set[Path]:
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / link.partition("#")[0]).resolve() for link in links if not link.startswith("#")}


def test_every_page_is_on_the_map() -> None:
    """docs/index.md leads to every page of docs/ itself, and to an index of each of its folders that names the rest."""
    home = DOCS / "index.md"
    indexes = {folder: folder / "index.md" for folder in (page.parent for page in DOCS.glob("**/*.md"))}
    assert {*indexes.values()} - {home} <= linked_from(home)
    missing = [
        names(page)
        for page in DOCS.glob("**/*.md")
        if page not in linked_from(indexes[page.parent]) | {*indexes.values()}
    ]
    assert missing == []


def test_the_list_of_decisions_has_their_numbers_and_titles() -> None:
    """Line by line, in order: a title that is changed is changed in both places."""
    decisions = sorted((DOCS / "adr").glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in decisions]
    listed = re.findall(
        r"^(\d+)\. \[(.*)\]\((.*)\)$", (DOCS / "adr" / "index.md").read_text("utf-8"), re.MULTILINE
    )
    assert [(f"# {number}. {title}", name) for number, title, name in listed] == [
        (title, page.name) for title, page in zip(titles, decisions, strict=True)
    ]


_PATH = re.compile(r"`((?:benchmarks|docs|examples|terraform|tests|tiered)/[\w./-]*)`")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=names)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """Paths from the root of the repository; what the pages say of the code is about files that exist."""
    text = page.read_text(encoding="utf-8")
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []
