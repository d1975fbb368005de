"""The demo: its answers are checked, wrong ones end it with 1, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from typer.testing import CliRunner

import tiered
from tests.support.paths import ROOT
from tiered.cli import app
from tiered.demo import flights as demo_flights
from tiered.demo.flights import (
    KNOWN_ANSWERS,
    ROW_COUNT,
    KnownAnswer,
    answers,
    arrivals,
    as_records,
    load_flights,
    months,
)
from tiered.demo.spark_queries import _readable_errors

DEMO = [sys.executable, "-m", "tiered", "demo"]


def bare_environment(folder: Path) -> dict[str, str]:
    """What a newcomer's shell has: no AWS setting, no TIERED setting; temporary files go to `folder`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return {**kept, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


def test_what_is_known_of_the_flights() -> None:
    flights = load_flights()
    assert flights.num_rows == ROW_COUNT
    found = answers(flights)
    assert all(known.agrees(found[carrier]) for carrier, known in KNOWN_ANSWERS.items())
    assert not KnownAnswer(1, 2.0).agrees(KnownAnswer(2, 2.0))
    assert not KnownAnswer(1, 2.0).agrees(KnownAnswer(1, 2.0001))


@pytest.mark.extended
def test_the_flights_arrive_in_order_each_once() -> None:
    flights = load_flights()
    parts = [batch for month in range(1, 13) for batch in arrivals(months(flights, month, month))]
    assert pa.concat_tables(parts).equals(flights)
    records = [table for part in parts for table in as_records(part).values()]
    assert sum(table.num_rows for table in records) == ROW_COUNT
    assert (
        json.loads(records[0].column("value")[0].as_py())["dep_delay"]
        == flights.column("dep_delay")[0].as_py()
    )


@pytest.mark.extended
def test_the_fast_demo_passes_every_check_and_can_be_kept(tmp_path: Path) -> None:
    """What is kept is a store like any other, with its bucket in a directory."""
    kept = tmp_path / "kept"
    result = CliRunner().invoke(app, ["demo", "--fast", "--keep", str(kept)], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "FAIL" not in result.stdout
    assert len(re.findall(r"^ +PASS ", result.stdout, re.MULTILINE)) == 8
    assert "all 8 checks passed" in result.stdout
    for tier in ("hot    memory", "warm   segment files", "cold   Parquet in the bucket"):
        counts = re.findall(rf"{tier} +([\d,]+) +\d+% +[\d.]+MiB", result.stdout)
        assert len(counts) == 2
        assert all(int(count.replace(",", "")) > 20_000 for count in counts)
    with tiered.open(kept / "store", read_only=True) as store:
        assert store.topic("flights").scan(columns=["offset"]).to_arrow().num_rows == ROW_COUNT
        assert not any(item.problem for item in store.status())
    with tiered.open(f"file://{kept}/bucket") as bucket:
        assert bucket.topics() == ["departures", "flights"]
    again = CliRunner().invoke(app, ["demo", "--fast", "--keep", str(kept)])
    assert again.exit_code == 1
    assert "is not an empty directory" in again.stderr


@pytest.mark.slow
def test_a_wrong_answer_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(demo_flights.KNOWN_ANSWERS, "AA", KnownAnswer(32_729, 8.6))
    result = CliRunner().invoke(app, ["demo", "--fast"], catch_exceptions=False)
    assert result.exit_code == 1
    assert len(re.findall(r"^ +FAIL  AA: ", result.stdout, re.MULTILINE)) == 1
    assert "7 of 8 checks passed" in result.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("moto", ["--fast"], "needs moto; run: pip install 'tiered[server]'"),
        ("pyspark", [], "or: tiered demo --fast"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, module: str, arguments: list[str], message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_stays_ctrl_c_where_pyspark_fails_to_clean_up(tmp_path: Path) -> None:
    """Py4J is in the middle of a call then, and the next one finds no answer."""
    (tmp_path / "log").touch()
    with pytest.raises(KeyboardInterrupt), _readable_errors(tmp_path / "log"):
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JNetworkError("KnownAnswer from Java side is empty")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int, code: int) -> None:
    """No files, no server, no message."""
    process = subprocess.Popen(
        [*DEMO, "--fast"],
        env=bare_environment(tmp_path),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    url = b""
    while b"moto" not in url:
        url = process.stdout.readline()
        assert process.poll() is None
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
def test_the_whole_demo_in_a_newcomers_shell(tmp_path: Path) -> None:
    """With Spark, without any setting, with nothing on stderr."""
    result = subprocess.run(
        DEMO,
        env=bare_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(re.findall(r"^ +PASS ", result.stdout, re.MULTILINE)) == 14
    assert "FAIL" not in result.stdout
    assert "all 16 carriers agree with the input" in result.stdout
    assert not list(tmp_path.glob("tiered-demo-*"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("moment", [b"The same in Spark", b"SELECT"])
def test_ctrl_c_during_spark_leaves_no_java_behind(tmp_path: Path, moment: bytes) -> None:
    """While Java starts and while it works. Its end of our pipe is closed only when it has ended, too."""
    process = subprocess.Popen(
        DEMO,
        env=bare_environment(tmp_path),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    while moment not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(1)  # into the start of Java; any moment will do
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")
    assert not list(tmp_path.glob("tiered-demo-*"))
