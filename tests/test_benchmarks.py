"""The benchmark harness runs and reports; how fast anything was is asserted nowhere."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Bench, Case, Sample, Target, Variant, run_case
from benchmarks.history import last_run, record, regressions
from benchmarks.peers import MissingPeerError
from benchmarks.report import to_json, to_markdown
from benchmarks.scaling import Sheet
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def little_garbage() -> None:
    """The harness collects before each variant, which here goes through all that earlier tests left."""
    gc.freeze()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.extended
def test_a_quick_run_reports_every_variant_of_its_case(tmp_path: Path) -> None:
    """`--quick` runs the real case in a child process, and leaves nothing in the folder it was given."""
    done = run("--quick", "--repeats", "2", "--only", "point-read", "--folder", str(tmp_path), "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["environment"]["CPUs"].isdecimal()
    (case,) = report["cases"]
    assert (case["case"], case["rounds"]) == ("point-read", 2)
    assert len(case["variants"]) >= 3
    for variant in case["variants"]:
        assert 0 < variant["value"]["low"] <= variant["value"]["median"] <= variant["value"]["high"]
    assert [variant["advantage"] is None for variant in case["variants"]].count(True) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_an_unknown_case_is_refused_with_the_names_of_those_there_are() -> None:
    done = run("--only", "teleport")
    assert done.returncode == 2
    assert "append-batch" in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("part", [["--quick"], ["--only", "open"]])
def test_the_documentation_is_never_written_from_a_part_of_the_cases(part: list[str]) -> None:
    done = run("--write-docs", *part)
    assert done.returncode == 2
    assert "--write-docs wants every case at full size" in done.stderr


def a_case(values: dict[str, list[float]], **more: Any) -> Case:
    """A case whose variants bring their samples along."""
    left = {name: iter(samples) for name, samples in values.items()}
    variants = tuple(
        Variant(name, lambda _, name=name: Sample(next(left[name]), {"MiB": 5.0}))  # type: ignore[misc]
        for name in values
    )
    return Case("A title", "records/s", variants, warm_up=False, **more)


def run_here(case: Case, folder: Path, **options: Any) -> Any:
    return run_case("name", lambda _: case, folder, **({"repeats": 3, "quick": False} | options))


def test_ratios_are_taken_within_a_round(tmp_path: Path) -> None:
    """A machine that slows down between two rounds changes no ratio."""
    case = a_case({"ours": [100, 10, 1], "peer": [50, 5, 0.5]})
    ours, peer = run_here(case, tmp_path).variants
    assert (ours.advantage, ours.value.median, ours.also) == (None, 10, {"MiB": 5})
    assert (peer.advantage.low, peer.advantage.median, peer.advantage.high) == (2, 2, 2)


def test_where_less_is_better_the_advantage_is_turned_round(tmp_path: Path) -> None:
    case = a_case({"ours": [10, 10, 10], "peer": [40, 40, 40]}, higher_is_better=False)
    assert run_here(case, tmp_path).variants[1].advantage.median == 4


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("ours", 2, against="peer"), True),
        (Target("ours", 2.1, against="peer"), False),
        (Target("ours", 100, at_most=True), True),
        (Target("ours", 99, at_most=True), False),
        (Target("ours", 5, figure="MiB"), True),
        (Target("ours", 6, figure="MiB"), False),
    ],
)
def test_a_target_is_judged_by_its_median_and_by_three_rounds_of_four(
    tmp_path: Path, target: Target, met: bool
) -> None:
    """One round of four may miss; a bound that the median only touches is missed by half the rounds."""
    case = a_case({"ours": [1, 100, 100, 400], "peer": [1, 50, 50, 100]}, targets=(target,))
    (result,) = run_here(case, tmp_path, repeats=4).targets
    assert result.met is met


def test_a_target_that_half_the_rounds_miss_is_not_met(tmp_path: Path) -> None:
    case = a_case({"ours": [90, 100, 100, 99]}, targets=(Target("ours", 99.5),))
    (result,) = run_here(case, tmp_path, repeats=4).targets
    assert (result.measured.median, result.met) == (99.5, False)


def test_a_peer_that_cannot_run_is_named_on_the_page(tmp_path: Path) -> None:
    def prepare() -> str:
        raise MissingPeerError("Kafka needs Java and Maven; mvn is not installed")

    def build(bench: Bench) -> Case:
        assert bench.peer(lambda: "a peer") == "a peer"
        assert bench.peer(prepare) is None
        return a_case({"ours": [1, 2, 3]})

    result = run_case("name", build, tmp_path, repeats=3, quick=False)
    assert "Not run: Kafka needs Java and Maven; mvn is not installed." in to_markdown({}, [result], 3)


def test_the_record_of_runs_shows_what_got_worse(tmp_path: Path) -> None:
    """Only a target all of whose rounds are worse than all of the last run's is named."""
    target = Target("ours", 1, against="peer")
    before, worse, spread = (
        run_here(a_case({"ours": ours, "peer": [1, 1, 1]}, targets=(target,)), tmp_path)
        for ours in ([5, 6, 7], [2, 3, 4], [4, 5, 6])
    )
    path = tmp_path / "history.jsonl"
    assert last_run(path) == {}
    assert regressions(worse, last_run(path)) == []
    record({"CPUs": "2"}, [before], path)
    (sentence,) = regressions(worse, last_run(path))
    assert sentence.startswith("WORSE than on ")
    assert sentence.endswith(": ours ÷ peer: 3, it was 6")
    assert regressions(spread, last_run(path)) == []
    record({"CPUs": "2"}, [worse], path)
    assert regressions(worse, last_run(path)) == []


def test_a_case_may_ask_for_fewer_rounds_and_its_resources_are_closed(tmp_path: Path) -> None:
    closed = []

    def build(bench: Bench) -> Case:
        bench.exit.callback(closed.append, True)
        return a_case({"ours": [1, 2, 3]}, rounds_max=1)

    assert run_case("name", build, tmp_path, repeats=3, quick=False).rounds == 1
    assert closed == [True]


def test_the_page_and_the_json_hold_what_was_measured(tmp_path: Path) -> None:
    """The page has one section a case, one row a variant, and says which targets were missed."""
    target = Target("ours", 3, against="peer")
    result = run_here(
        a_case({"ours": [100] * 3, "peer": [50] * 3}, targets=(target,), note="Read this."), tmp_path
    )
    page = to_markdown({"CPUs": "2"}, [result], 3)
    assert "## A title" in page
    assert "| peer | 50 | 2 | 5 MiB |" in page
    assert "- MISSED: ours ÷ peer: at least 3; measured 2" in page
    assert "Read this." in page
    assert "CPUs 2." in page
    assert json.loads(to_json({}, [result]))["cases"][0]["variants"][1]["value"]["median"] == 50


@pytest.mark.extended
def test_the_pace_of_many_tails_is_measured_beside_two_bare_writes() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.tails",
        "many",
        "--json",
        "--partitions",
        "8",
        "--topics",
        "4",
    ]
    done = subprocess.run(
        [*command, "--latency", "0.001", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["partitions"], row["latency, ms"], row["requests"]) == (8, 1.0, 2.0)
    assert 0 < row["of two bare writes"] < row["CPU of it, ms"]


def test_a_growth_beyond_that_of_the_size_is_marked() -> None:
    """Work for one thing should stay the same, work over all of them may grow as they do."""
    sheet = Sheet("Topics", (10, 100, 1_000))
    sheet.each["append"] = [1.0, 1.1, 2.2]
    sheet.all["scan"] = [1.0, 9.0, 900.0]
    lines = sheet.lines()
    assert lines[1] == "|  |  | 10 | 100 | 1,000 | growth |"
    assert "| append | each | 1 | 1.1 | 2.2 | 1.1, 2.0 **!** |" in lines
    assert "| scan | all | 1 | 9 | 900 | 9.0, 100.0 **!** |" in lines
