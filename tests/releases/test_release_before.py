"""The release before this one: its store opens here, and it opens what this one wrote, or refuses by name.

Its code comes from the history of the checkout. The golden store, which it wrote, is kept beside the tests, so that the
first half holds without a history as well.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.releases import life
from tests.support.stores import let_intent_lapse
from tests.support.table_reader import check_rows
from tiered.cold.manifest.restores import IntentHolder
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.warm.bucket_binding import read_binding, write_binding
from tiered.warm.filesystem import OsFileSystem

pytestmark = pytest.mark.extended

BEFORE = "f388993"
BEFORE_BATCHES = "56b3e51"
ROOT = Path(__file__).resolve().parents[2]
LIFE = Path(life.__file__)
GOLDEN = ROOT / "tests" / "data" / f"store-of-{BEFORE}.tar.gz"
GOLDEN_FOUND = json.loads((ROOT / "tests" / "data" / f"store-of-{BEFORE}.json").read_text())


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the release before, on a path of its own."""
    return code_of(BEFORE, tmp_path_factory)


@pytest.fixture(scope="module")
def before_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of a build that has transactions, and no batches of Spark in them."""
    return code_of(BEFORE_BATCHES, tmp_path_factory)


def code_of(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = subprocess.run(["git", "archive", commit, "tiered"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip(f"the history of this checkout does not have {commit}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run(code: Path, root: Path, *steps: str) -> list[dict[str, Any]]:
    """Go through steps of a store's life with the code of one release; return their answers."""
    environment = dict(os.environ) | {"PYTHONPATH": str(code)}
    done = subprocess.run(
        [sys.executable, str(LIFE), str(root), *steps],
        env=environment, cwd=root, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def sound(answer: dict[str, Any]) -> dict[str, Any]:
    """The digests of an answer that names no problem."""
    assert answer.get("problems") == [], answer
    topics: dict[str, Any] = answer["topics"]
    return topics


def unpack_golden(root: Path) -> None:
    """Put the store that the release before wrote into a folder."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(root, filter="data")
    place = replace(read_binding(root / "store"), url=f"file://{root}/bucket")
    write_binding(OsFileSystem(), root / "store", place)


def test_the_golden_store_is_read_and_goes_on(tmp_path: Path) -> None:
    unpack_golden(tmp_path)
    here, restored, appended = run(ROOT, tmp_path, "check", "check_restored", "append_to_restored")
    assert sound(here) == sound(restored) == GOLDEN_FOUND
    assert appended == {"offset": GOLDEN_FOUND["kept"][0]}


def test_both_releases_take_turns_at_one_store(tmp_path: Path, before: Path) -> None:
    wrote, first = run(before, tmp_path, "write:0", "check")
    assert wrote == {"failed": []}
    found, wrote, second = run(ROOT, tmp_path, "check", "write:1", "check")
    assert sound(found) == sound(first)
    assert wrote == {"failed": []}
    found, wrote, third, restored = run(before, tmp_path, "check", "write:2", "check", "check_restored:1")
    assert sound(found) == sound(second)
    assert wrote == {"failed": []}
    assert sound(third) == sound(restored)
    # All of it is in the bucket, and this release restores it, too.
    found, restored = run(ROOT, tmp_path, "check", "check_restored:2")
    assert sound(found) == sound(restored) == sound(third)
    rows = {name: count for name, (count, _) in sound(third).items()}
    assert rows == {"kept": 3 * life.ROWS, "records": 6 * life.ROWS - life.ROWS // 2, "typed": 15}


def test_filters_are_ignored_by_the_release_before_and_its_objects_have_none(
    tmp_path: Path, before: Path
) -> None:
    """It reads objects with filters by key, and goes on; this one then reads objects with and without."""
    wrote, here = run(ROOT, tmp_path, "write:0", "read_keys")
    assert wrote == {"failed": []}
    assert here["filtered"] > 0
    there, wrote, mixed = run(before, tmp_path, "read_keys", "write:1", "read_keys")
    assert there["rows"] == here["rows"]
    assert wrote == {"failed": []}
    both, wrote, after = run(ROOT, tmp_path, "read_keys", "write:2", "read_keys")
    assert both["rows"] == mixed["rows"] != here["rows"]
    assert wrote == {"failed": []}
    assert sum(after["rows"].values()) > sum(both["rows"].values())
    (there,) = run(before, tmp_path, "read_keys")
    assert there["rows"] == after["rows"]


@pytest.mark.parametrize(
    "order", ["restored here", pytest.param("restored by the release before", marks=pytest.mark.slow)]
)
def test_a_host_that_a_restore_left_behind_is_fenced_whatever_its_release(
    tmp_path: Path, before: Path, order: str
) -> None:
    host, restorer = (before, ROOT) if order == "restored here" else (ROOT, before)
    assert run(host, tmp_path, "write:0") == [{"failed": []}]
    found, appended = run(restorer, tmp_path, "check_restored", "append_to_restored")
    assert appended == {"offset": sound(found)["kept"][0]}
    (refused,) = run(host, tmp_path, "write:1")
    assert refused.get("error") == "Fenced" or any("fenced" in text for text in refused["failed"]), refused


def test_a_restore_that_was_cut_short_is_understood_by_both_releases(tmp_path: Path, before: Path) -> None:
    """The one before reads on, and restores; a store that it restored is the one that counts."""
    assert run(ROOT, tmp_path, "write:0") == [{"failed": []}]
    restoring = IntentHolder(StoreDocuments(open_object_store(f"file://{tmp_path}/bucket")), "1", "ann@host")
    assert restoring.begin() == 2
    (refused,) = run(ROOT, tmp_path, "write:1")
    assert "is being restored by ann@host" in str(refused)
    let_intent_lapse(tmp_path / "bucket")
    wrote, here = run(ROOT, tmp_path, "write:2", "check")
    assert wrote == {"failed": []}
    (restored,) = run(before, tmp_path, "check_restored")
    assert sound(restored) == sound(here)
    (refused,) = run(ROOT, tmp_path, "write:3")
    assert refused.get("error") == "Fenced" or any("fenced" in text for text in refused["failed"]), refused


def check_refused(release: Path, root: Path) -> None:
    """Check that a release refuses a store by name: here, from the bucket alone, and by a restore."""
    for refused in run(release, root, "write:1", "check", "read_bucket", "check_restored"):
        assert refused.get("error") == "UnsupportedFormat", refused
        assert "store.json" in refused["message"]


@pytest.mark.parametrize(("work", "count"), [("erase", "erased"), ("compact", "removed")])
def test_a_store_with_gaps_is_refused_by_the_release_before_everywhere(
    tmp_path: Path, before: Path, work: str, count: str
) -> None:
    """It would take gaps for damage, bring records back, or restore a time by objects that lack some.

    Here, from the bucket alone, and by a restore.
    """
    wrote, worked, here = run(ROOT, tmp_path, "write:0", work, "check")
    assert wrote == {"failed": []}
    assert worked[count] > 0
    sound(here)
    check_refused(before, tmp_path)
    (again,) = run(ROOT, tmp_path, "check")
    assert sound(again) == sound(here)


def test_the_release_before_leaves_a_live_table_alone(tmp_path: Path, before: Path) -> None:
    """It opens, appends, tiers, sweeps and restores its own store with a table; this release's table goes on after that."""
    pytest.importorskip("pyiceberg")
    unpack_golden(tmp_path)
    first, second, here = run(ROOT, tmp_path, "publish:7", "publish:3", "check")
    assert (first["version"], first["lag"], second["version"]) == (1, 0, 2)
    sound(here)
    (folder,) = (tmp_path / "bucket").glob("records/*/table")
    files = contents(folder)
    found, wrote, swept, after, bucket = run(
        before, tmp_path, "check", "write:2", "sweep", "check", "read_bucket"
    )
    assert sound(found) == sound(here)
    assert wrote == {"failed": []}
    assert swept["problems"] == []
    assert swept["deleted"] > 0
    assert bucket["rows"] == sound(after)["records"][0]
    assert contents(folder) == files
    again, checked = run(ROOT, tmp_path, "publish:5", "check")
    assert (again["version"], again["lag"]) == (3, 0)
    assert check_rows(folder / "metadata", "records") >= sound(checked)["records"][0]
    files = contents(folder)
    (restored,) = run(before, tmp_path, "check_restored")
    assert sound(restored) == sound(checked)
    assert contents(folder) == files


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a folder, and when it was written."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.*")}


def test_a_store_with_transactions_is_refused_by_the_release_before(tmp_path: Path, before: Path) -> None:
    """It would not complete a transaction after a crash: here, from the bucket alone, and by a restore."""
    *wrote, here = run(ROOT, tmp_path, "write:0", "transact", "check")
    assert wrote == [{"failed": []}] * 2
    sound(here)
    check_refused(before, tmp_path)
    (again,) = run(ROOT, tmp_path, "check")
    assert sound(again) == sound(here)


def test_a_store_with_batches_is_refused_by_name_and_one_with_transactions_is_not(
    tmp_path: Path, before_batches: Path
) -> None:
    """An earlier build would forget the rows that a batch names."""
    assert run(before_batches, tmp_path, "write:0", "transact") == [{"failed": []}] * 2
    *wrote, here = run(ROOT, tmp_path, "transact", "transact", "check")
    assert wrote == [{"failed": []}] * 2
    (found,) = run(before_batches, tmp_path, "check")
    assert sound(found) == sound(here)
    batch, again, here = run(ROOT, tmp_path, "write_batch:3", "write_batch:2", "check")
    assert (batch, again) == ({"committed": True, "failed": []}, {"committed": False, "failed": []})
    for refused in run(before_batches, tmp_path, "write:1", "check", "read_bucket", "check_restored:2"):
        assert refused.get("error") == "UnsupportedFormat", refused
        assert "staged" in refused["message"]
    (restored,) = run(ROOT, tmp_path, "check_restored:3")
    assert sound(restored) == sound(here)


def test_each_release_appends_through_a_server_of_the_other(tmp_path: Path, before: Path) -> None:
    """One record at a time, of producers too; what one of them announces and the other does not know changes nothing."""
    answers = []
    for server, client in ((ROOT, ROOT), (ROOT, before), (before, ROOT)):
        root = tmp_path / str(len(answers))
        root.mkdir()
        environment = dict(os.environ) | {"PYTHONPATH": str(server)}
        command = [sys.executable, str(LIFE), str(root), "serve"]
        with subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) as serving:
            assert serving.stdin is not None
            assert serving.stdout is not None
            assert json.loads(serving.stdout.readline()) == {}
            answers.append(run(client, root, "append_there:0", "append_there:1"))
            serving.stdin.close()
            assert json.loads(serving.stdout.readline()) == {}
        assert [answer["rows"] for answer in answers[-1]] == [
            {"records": 3 * rows, "typed": rows} for rows in (life.ROWS, 2 * life.ROWS)
        ]
        (there,) = run(ROOT, root, "check")
        assert {name: count for name, (count, _) in sound(there).items()} == answers[-1][-1]["rows"]
    assert answers[0] == answers[1] == answers[2]
