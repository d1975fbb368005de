"""Run one case in a process of its own, so that no case finds another's memory, threads or warm allocator."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from .cases import ACCELERATED, CASES
from .harness import CaseResult, run_case


def run_isolated(name: str, folder: Path, *, repeats: int, quick: bool) -> CaseResult:
    """Run the case of that name in a fresh process; its files go below `folder` and are gone afterwards."""
    # Read as the process imports the package: cases show the Python path, but for the one of the accelerated append.
    os.environ["TIERED_ACCELERATOR"] = "on" if name.endswith(ACCELERATED) else "off"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, name, folder, repeats, quick).result()


def _run(name: str, folder: Path, repeats: int, quick: bool) -> CaseResult:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return run_case(name, CASES[name], Path(own), repeats=repeats, quick=quick)
