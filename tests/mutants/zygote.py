"""A process that has imported what tests import, and forks for each run: a fork starts in no time.

It reads a line of JSON from standard input for each run, ``{"tests": […], "seconds": …, "each": …}``, and answers with one,
``{"end": …, "cpu": seconds, "by": the test that failed}``. The ends are ``passed``, ``failed`` (a test, or the import of
its module), ``died`` (the process), ``timeout``, and ``error`` where pytest does not know such a test. Nothing of the
package under test is imported before the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

_LIBRARIES = [
    "pytest", "_pytest.terminal", "pytest_timeout", "hypothesis", "hypothesis.stateful", "numpy", "pyarrow", "pyarrow.compute",
    "pyarrow.parquet", "pyarrow.flight", "pyarrow.ipc", "boto3", "botocore.session", "urllib3", "pydantic", "pydantic_settings",
    "pandas", "zstandard", "lz4.frame", "crc32c", "fsspec", "typer", "rich.console", "rich.table", "moto.server",
]  # fmt: skip
_OUTPUT, _FAILED = Path("mutant.out"), Path("mutant.failed")
_ENDS = {0: "passed", 1: "failed", 2: "failed", 3: "failed", 4: "error", 5: "error"}


class Noting:
    """A plugin of pytest that writes down which test failed: ids have blanks, so that the summary does not tell."""

    def pytest_runtest_logreport(self, report: object) -> None:
        self._note(report)

    def pytest_collectreport(self, report: object) -> None:
        self._note(report)

    def _note(self, report: object) -> None:
        if report.outcome == "failed" and not _FAILED.exists():  # type: ignore[attr-defined]
            _FAILED.write_text(report.nodeid)  # type: ignore[attr-defined]


def main() -> None:
    """Serve runs until standard input ends."""
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    # Else each fork looks at all of this once more, and copies its pages.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_run(**asked)), file=answers, flush=True)


def _run(tests: list[str], seconds: float, each: float) -> dict[str, object]:
    before = _cpu()
    _FAILED.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _become_pytest(tests, seconds, each)
    deadline = time.monotonic() + seconds
    status = None
    while status is None and time.monotonic() < deadline:
        done, found = os.waitpid(child, os.WNOHANG)
        status = found if done else None
        if status is None:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests started, too
    if status is None:
        os.waitpid(child, 0)
        end = "timeout"
    else:
        end = _ENDS.get(os.waitstatus_to_exitcode(status), "died")
    by = _FAILED.read_text() if end == "failed" and _FAILED.exists() else ""
    return {"end": end, "cpu": round(_cpu() - before, 2), "by": by}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _become_pytest(tests: list[str], seconds: float, each: float) -> None:
    import pytest

    code = 1
    try:
        os.setsid()
        # What goes round for ever waits for nothing: so much of the processor, no test needs.
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds / 2) + 1, resource.RLIM_INFINITY))
        output = os.open(_OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", f"--timeout={each}"]
        code = pytest.main([*options, *tests], plugins=[Noting()])
    finally:
        sys.stdout.flush()
        os._exit(int(code))


if __name__ == "__main__":
    main()
