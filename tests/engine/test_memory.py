"""What a store keeps in memory is bounded, whatever was appended and however much is read."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon of /proc")

MIB = 1 << 20
COMMON = """
    import re, sys, tiered, pyarrow as pa
    def resident():
        # Pages of mapped files are not counted: the kernel takes them back when it needs them.
        return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    path, cold, amount, hot = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    settings = tiered.Settings.model_validate({"store": {"hot_bytes": hot}, "policies": {"default": {
        "roll": {"bytes": "64MiB"}, "compress": {"after": "off"},
        "offload": {"after": "0s"}, "local_retention": {"age": "0s"}}}})
    store = tiered.open(path, cold=cold, settings=settings)
    topic = store.create_topic("t")
    topic.append(b"warm up")
    topic.scan().to_arrow()
"""
SCAN = """
    piece = pa.table({"value": [b"%0100d" % i for i in range(10_000)]})
    while topic.append_batch(piece)[-1].end * 100 < amount:
        pass
    if cold_tier:
        topic.roll()
        for _ in range(2):
            assert not store.tier().failed
    before, peak, rows = resident(), 0, 0
    for batch in topic.scan().to_batches():
        rows += batch.num_rows
        peak = max(peak, resident())
    assert rows == topic.offsets()[0].end
    print(peak - before)
"""
APPEND = """
    before = resident()
    for i in range(amount):
        topic.append(b"%0100d" % i)
    topic.flush()
    print(resident() - before)
"""


def growth(tmp_path: Path, text: str, amount: int, hot: str, *, cold_tier: bool = False) -> int:
    """Bytes by which a process grew, as its script says."""
    code = textwrap.dedent(COMMON) + f"cold_tier = {cold_tier}\n" + textwrap.dedent(text)
    arguments = [tmp_path / "data", f"file://{tmp_path}/bucket", amount, hot]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = fork_server.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize(
    ("cold_tier", "limit"), [(False, 100 * MIB), (True, 200 * MIB)], ids=["warm", "cold"]
)
def test_a_scan_holds_a_few_batches(tmp_path: Path, cold_tier: bool, limit: int) -> None:
    """What is read ahead, not what was read, which takes 350 MiB; four CPUs decode five row groups of 16 MiB ahead."""
    assert growth(tmp_path, SCAN, 300 * MIB, "8MiB", cold_tier=cold_tier) < limit


def test_appended_records_leave_the_hot_bytes_behind(tmp_path: Path) -> None:
    """Blocks wait longer to be written where other work has the processors, so the bound is that of the long run."""
    assert growth(tmp_path, APPEND, 400_000, "16MiB") < (16 + 100) * MIB


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cold_tier", [False, True], ids=["warm", "cold"])
def test_a_scan_of_two_gigabytes_stays_below_300_mib(tmp_path: Path, cold_tier: bool) -> None:
    assert growth(tmp_path, SCAN, 2048 * MIB, "256MiB", cold_tier=cold_tier) < 300 * MIB


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_million_records_leave_hot_bytes_and_100_mib_at_most(tmp_path: Path) -> None:
    assert growth(tmp_path, APPEND, 10_000_000, "256MiB") < 356 * MIB
