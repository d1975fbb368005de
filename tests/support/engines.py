"""Engines that read Iceberg tables, each a process in an environment of its own, which is made on first use.

The versions that the tests of this environment need are not those for which the engines' extensions exist. The
environments stay in ``build/engines``. Where one cannot be had, as without a network, the test is skipped and says so.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT


class Kind(NamedTuple):
    """What an engine is made of: packages, an artifact of Maven, and the programs that it needs."""

    packages: tuple[str, ...]
    artifact: str | None = None
    programs: tuple[str, ...] = ()


DUCKDB = "1.5.5"
KINDS = {
    "duckdb": Kind(
        (
            f"duckdb=={DUCKDB}",
            *(f"duckdb-extension-{name}=={DUCKDB}" for name in ("avro", "iceberg", "httpfs", "delta")),
        )
    ),
    "spark": Kind(
        ("pyspark==4.1.4", "pyarrow", "pandas"),
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        ("java", "mvn"),
    ),
}

_READER = Path(__file__).with_name("engine_reader.py")
_FOLDER = ROOT / "build" / "engines"


class TableEngine:
    """A running engine; tables are read by their location alone, so it finds the newest version itself.

    Parameters
    ----------
    kind
        One of `KINDS`. The test is skipped if it cannot be had.
    options
        What a session of Spark is told besides, made of the folder of its package.
    """

    def __init__(self, kind: str, options: Callable[[Path], Mapping[str, str]] = lambda _: {}) -> None:
        self.kind = kind
        folder = _environment(kind)
        told = {
            name: value
            for spark in folder.glob("lib/python*/site-packages/pyspark")
            for name, value in options(spark).items()
        }
        self._out = Path(tempfile.mkdtemp(prefix="tiered-engine-"))
        self._process = subprocess.Popen(
            [folder / "bin" / "python", _READER, kind, folder, self._out, json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(self._out / "log").open("w"),
            cwd=self._out, text=True,
        )  # fmt: skip
        self._number = 0
        self._answer()

    def read(self, location: str, columns: list[str]) -> pa.Table:
        """Return columns of a table, in no order; ``timestamp`` as microseconds since the epoch."""
        self._number += 1
        out = self._out / f"{self._number}.parquet"
        self._ask(location=location, columns=columns, out=str(out))
        table = pq.read_table(out)
        out.unlink()
        return table

    def execute(self, statement: str) -> list[Any]:
        """Return the rows of a statement of SQL."""
        rows: list[Any] = self._ask(statement=statement)["rows"]
        return rows

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        shutil.rmtree(self._out)

    def _ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.kind} ended: {(self._out / 'log').read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"{self.kind}: {answer['error']}"
        return answer


def _environment(kind: str) -> Path:
    """Return the folder of an engine's environment, made if it is not there."""
    packages, artifact, programs = KINDS[kind]
    folder, stamp = _FOLDER / kind, json.dumps(KINDS[kind])
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{kind} needs {program}, which is not installed")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, and others wait
        done = folder / "made-of.json"
        if done.exists() and done.read_text() == stamp:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        _get(kind, [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages])
        if artifact is not None:
            options = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder / 'jars'}"]
            _get(kind, ["mvn", "--quiet", "--batch-mode", "dependency:copy", *options])
        done.write_text(stamp)
    return folder


def _get(kind: str, command: list[Any]) -> None:
    got = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if got.returncode:
        said = (got.stderr or got.stdout).strip().splitlines()
        pytest.skip(f"{kind} cannot be had here: {said[-1] if said else got.returncode}")
