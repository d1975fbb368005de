"""No bytes crash, hang or bloat a parser, and none get anything out of it but data that is sound or a typed error.

Inputs run in a process of their own (`child`), with and without their checksums made right: a segmentation fault, an
abort inside Arrow or a hang is then a failed test that keeps its input.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.fuzz import seeds
from tests.fuzz.child import CORPUS, Current
from tests.fuzz.targets import TARGETS, check_arrays
from tests.support.budget import rounds, seconds_of
from tests.support.memory_store import MemoryStore
from tests.support.paths import ROOT
from tests.support.tally import tally
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.parquet import footer
from tiered.format.block import decode_body, decode_header
from tiered.format.manifest_codec import decode_head
from tiered.warm.segment_reader import SegmentFile

INPUTS = 60


def run_child(folder: Path, *options: object) -> dict[str, int]:
    """Run inputs; return how many of each target were tried."""
    command = [sys.executable, "-m", "tests.fuzz.child", str(folder), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        target, data = Current.read(folder / "current")
        kept = folder / f"{target}-crash"
        kept.write_bytes(data)
        pytest.fail(f"exit {done.returncode} of target {target}, input kept as {kept}: {done.stderr[-2000:]}")
    *findings, last = map(json.loads, done.stdout.splitlines())
    assert not findings, "\n".join(
        f"{item['target']} {item['path']}: {item['error']} {item['trace']}" for item in findings
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tried: dict[str, int] = last["tried"]
    return tried


@pytest.mark.extended
def test_inputs_that_were_found_once(tmp_path: Path) -> None:
    """The corpus: each file once broke something, or reaches code that nothing else does."""
    files = sorted(CORPUS.glob("*/*"))
    assert {path.parent.name for path in files} <= set(TARGETS)
    options = [item for path in files for item in ("--file", path)]
    assert sum(run_child(tmp_path, *options).values()) == len(files) > 0


def run_mutations(folder: Path, seed: int) -> None:
    for target, tried in run_child(folder, "--count", INPUTS, "--seed", seed).items():
        assert tried == INPUTS
        tally("fuzz", **{target: tried})


@pytest.mark.extended
def test_mutations_of_valid_inputs(tmp_path: Path) -> None:
    """Every kind of input, with edits at random; the same ones at every run."""
    run_mutations(tmp_path, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutations_of_valid_inputs(tmp_path: Path) -> None:
    """The same for minutes, with others at every run."""
    for dice in rounds(seconds_of(0.05)):
        run_mutations(tmp_path, dice.randrange(1, 1 << 32))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", list(TARGETS))
def test_guided_by_coverage(target: str, tmp_path: Path) -> None:
    """The same, steered by atheris to inputs that reach new code."""
    pytest.importorskip("atheris", reason="pip install '.[fuzz]'")
    seconds = round(seconds_of(0.07, len(TARGETS)))
    options = [target, tmp_path / "found", f"-max_total_time={seconds}", "-print_final_stats=1"]
    (tmp_path / "artifacts").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", *map(str, options), f"-artifact_prefix={tmp_path}/artifacts/"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (executed,) = [
        line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units")
    ]
    tally("fuzz", **{f"{target} guided": int(executed.split()[-1])})


# -- the harness itself -----------------------------------------------------------------------------


def test_seeds_are_valid(tmp_path: Path) -> None:
    """What mutations start from decodes to the end, so that small edits of it get far."""
    for i, data in enumerate(seeds.blocks()[:9]):
        batch = seeds.batches()[i // 3]
        found = decode_body(decode_header(data), pa.py_buffer(data), batch.schema)
        assert found.equals(batch)
    for data in seeds.segments():
        path = tmp_path / f"{0:020}-0.log"
        path.write_bytes(data)
        assert values_count(SegmentFile.open(path, use_mmap=False)) in (0, 2 * seeds.ROWS)
    for data in seeds.heads():
        decode_head(data, where="head")
    for data, entry, schema in seeds.objects():
        store = MemoryStore()
        store.objects["x.parquet"] = data, "etag"
        assert (
            sum(batch.num_rows for batch in read_object(store, "x.parquet", entry, schema)) == 2 * seeds.ROWS
        )


def values_count(segment: SegmentFile) -> int:
    """How many records a segment yields."""
    blocks = segment.blocks(segment.header.base_offset, segment.end_offset)
    return sum(len(segment.decode(block)[0]) for block in blocks)


def test_unsound_columns_are_noticed() -> None:
    """The check of what decodes sees an offset that points out of its column, which Arrow's plain check does not."""
    offsets = pa.array([0, 1 << 20, 3], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    array.validate()
    with pytest.raises(AssertionError, match="unsound"):
        check_arrays([array])


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["crash", "hang", "bomb", "error"])
def test_the_child_reports_what_it_must(fault: str, tmp_path: Path) -> None:
    """A harness that ran in the same process, or without limits, would not survive to tell."""
    script = tmp_path / "faulty.py"
    script.write_text(
        "import ctypes\n"
        "import pyarrow as pa\n"
        "from tests.fuzz import child, targets\n"
        "child.INPUT_SECONDS_MAX = 1\n"
        "def crash(data): ctypes.string_at(0)\n"
        "def hang(data):\n    while True: pass\n"
        "def bomb(data): pa.allocate_buffer(400 << 20)\n"
        "def error(data): raise MemoryError('x')\n"
        f"targets.TARGETS['chunk'] = targets.Target({fault}, lambda: (b'x',))\n"
        "child.end(child.main())\n"
    )
    command = [sys.executable, str(script), str(tmp_path), "--target", "chunk", "--count", "1"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if fault in ("crash", "hang"):
        assert done.returncode < 0
        assert Current.read(tmp_path / "current")[0] == "chunk"
    else:
        assert done.returncode == 1
        assert {"bomb": "allocated", "error": "MemoryError"}[fault] in done.stdout


def test_a_footer_that_was_parsed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader that looks at its column chunks is given up in the middle of a read, and must not stay for ever."""
    files: list[weakref.ref[footer._EmptyFile]] = []

    class Watched(footer._EmptyFile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            files.append(weakref.ref(self))

    monkeypatch.setattr(footer, "_EmptyFile", Watched)
    for tail in TARGETS["tail"].inputs():
        footer.parse_footer(memoryview(tail), where="object")
    gc.collect()
    assert files
    assert not any(file() for file in files)


def test_the_corpus_is_small() -> None:
    """It is for what was learnt, not for what a run collects."""
    files = list(CORPUS.glob("*/*"))
    assert len(files) < 100
    assert sum(path.stat().st_size for path in files) < 1 << 20
