"""A process that has imported what tests import, and forks for each run: a fork starts in no time.

It reads a line of JSON from standard input for each run, ``{"tests": […], "seconds": …}``, and answers with one,
``{"end": "passed" | "failed" | "timeout" | "none", "cpu": seconds, "by": the test that failed}``. Nothing of the package
under test is imported before the fork.
"""

from __future__ import annotations

import contextlib
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
    "zstandard", "lz4.frame", "crc32c", "fsspec", "typer", "rich.console", "rich.table", "moto.server",
]  # fmt: skip


def main() -> None:
    """Serve runs until standard input ends."""
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_run(asked["tests"], asked["seconds"])), file=answers, flush=True)


def _run(tests: list[str], seconds: float) -> dict[str, object]:
    before = _cpu()
    output = "mutant.out"
    child = os.fork()
    if child == 0:
        _become_pytest(tests, output)
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
    with Path(output).open(errors="replace") as file:
        failed = [line.split()[1] for line in file if line.startswith(("FAILED ", "ERROR "))]
    if status is None:
        end = "timeout"
    else:
        end = {0: "passed", 5: "none"}.get(os.waitstatus_to_exitcode(status), "failed")
    return {"end": end, "cpu": round(_cpu() - before, 2), "by": failed[0] if failed else ""}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _become_pytest(tests: list[str], output: str) -> None:
    import pytest

    code = 1
    try:
        os.setsid()
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", *tests])
    finally:
        sys.stdout.flush()
        os._exit(int(code))


if __name__ == "__main__":
    main()
