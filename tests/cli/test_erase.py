"""``tiered erase`` and ``tiered erasures``: what they count, ask, do and show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tiered
from tiered.cli import app
from tiered.cli.erase import read_lines
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.errors import ColdStorageError, CorruptionError

GRACE = "[sweep]\ngrace = '0s'\n"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with orders of three people, one of them in the bucket too."""
    monkeypatch.chdir(tmp_path)
    Path("tiered.toml").write_text(
        f"{GRACE}[store]\npath = 'data'\n[cold]\nurl = 'file://{tmp_path}/bucket'\n", encoding="utf-8"
    )
    with tiered.open("data", settings="tiered.toml") as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(9):
            orders.append(b"%d" % number, key="abc"[number % 3], partition=number % 2)
        store.create_topic("typed", schema=pa.schema([("user", pa.int64()), ("day", pa.date32())])).append(
            {"user": 7, "day": 3}
        )
    Path("keys.txt").write_text("b\nnobody\n\n", encoding="utf-8")
    return tmp_path


def run(*arguments: str, text: str = "") -> Any:
    found = CliRunner().invoke(app, [*arguments, "--config", "tiered.toml"], input=text, prog_name="tiered")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def test_lines_of_a_keys_file_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes("\ufeffann\r\nb\u2028ob\x0b\n\ncid".encode())
    assert read_lines(path) == ["ann", "b\u2028ob\x0b", "cid"]


def test_a_keys_file_has_no_more_keys_than_one_erasure_takes(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(b"k\n" * 1_000_001)
    with pytest.raises(tiered.ConfigError, match="has more than 1,000,000 keys; divide them among several"):
        read_lines(path)
    path.write_bytes(b"k\n\n" * 1_000_000)
    assert len(read_lines(path)) == 1_000_000


def test_from_a_dry_run_to_the_end(data: Path) -> None:
    assert "nothing was ever erased" in run("erasures").output
    found = run("erase", "orders", "--keys-file", "keys.txt", "--dry-run")
    assert found.output.startswith("topic orders: 3 records would be erased; 0 objects of 0B")
    run("tier")
    found = run("erase", "orders", "--keys-file", "-", "--dry-run", "--json", text="b\n")
    assert json.loads(found.output)["objects"] == 2, "the shipped tail of each partition"
    found = run("erase", "orders", "--keys-file", "keys.txt")
    assert found.exit_code == 1
    assert "needs --yes without a terminal; nothing was done" in found.output
    found = run("erase", "orders", "--keys-file", "keys.txt", "--reason", "DSAR-1", "--yes", "--json")
    assert found.exit_code == 0
    made = json.loads(found.output)
    assert (made["number"], made["values"], made["column"], made["state"]) == (1, 2, "key", "rewriting")
    assert "nobody" not in found.output
    waits = []
    for _ in range(4):
        run("tier")
        waits.append("\nerasure 1 waits: " in run("erasures").output)
        run("sweep")
    assert (waits[0], waits[-1]) == (True, False)
    (entry,) = json.loads(run("erasures", "--json").output)["erasures"]
    assert (entry["state"], entry["rows"], entry["reason"]) == ("done", 3, "DSAR-1")
    shown = run("erasures")
    assert (shown.exit_code, "DSAR-1" in shown.output, "done 20" in shown.output) == (0, True, True)
    with tiered.open("data", settings="tiered.toml", read_only=True) as store:
        assert {bytes(key) for key in store.topic("orders").scan().to_arrow()["key"].to_pylist()} == {
            b"a",
            b"c",
        }


def test_a_search_finds_what_should_be_gone_wherever_it_is(data: Path) -> None:
    """In segments, in objects, and in objects that no manifest names any more; not what was appended later."""

    def search(*more: str, text: str = "b\nnobody\n") -> Any:
        return run("verify", "--erased", "orders", "--keys-file", "-", *more, text=text)

    def places(found: Any) -> list[tuple[str, int | None]]:
        traces = json.loads(found.output)["traces"]
        return [(Path(trace["where"]).parent.name, trace["records"]) for trace in traces]

    found = search("--json")
    assert (found.exit_code, places(found)) == (1, [("0", 1), ("1", 2)])
    with tiered.open("data", settings="tiered.toml") as store:
        store.topic("orders").roll()
    run("tier")
    assert places(search("--json")) == [("0", 1), ("1", 2), ("data", 1), ("data", 2)]
    assert run("erase", "orders", "--keys-file", "keys.txt", "--yes").exit_code == 0
    run("tier")
    run("tier")
    found = search()
    assert found.exit_code == 1
    assert found.output.count("parquet: ") == 2, "objects that a sweep deletes"
    assert "topic orders: 2 places with such records" in found.output
    with tiered.open("data", settings="tiered.toml") as store:
        store.topic("orders").append(b"later", key="b")
    for _ in range(3):
        run("sweep")
        run("tier")
    found = search()
    assert found.exit_code == 0, found.output
    assert "topic orders: 0 places with such records; " in found.output
    assert search(text="a\n").exit_code == 1
    (data / "data/topics/orders/0/.damaged-1-x.log").write_bytes(b"?")
    assert "cannot be searched" in search().output
    bucket = ("--path", f"file://{data}/bucket")
    assert (
        "0 places"
        in run(
            "verify", "--erased", "typed", "--column", "user", "--keys-file", "-", *bucket, text="8"
        ).output
    )
    for arguments in (
        ("--erased", "orders"),
        ("--keys-file", "keys.txt"),
        ("--erased", "orders", "--deep", "--keys-file", "-"),
    ):
        assert "--erased TOPIC needs --keys-file" in run("verify", *arguments).output


def test_values_are_read_by_the_type_of_the_column(data: Path) -> None:
    for column, line in (("user", "7"), ("day", "1970-01-04")):
        arguments = ("erase", "typed", "--column", column, "--keys-file", "-", "--dry-run")
        assert "1 record would be erased" in run(*arguments, text=line).output
    for column, line, message in (
        ("user", "seven", "a key does not fit column 'user' of type int64"),
        ("nope", "1", "no column 'nope'"),
    ):
        found = run("erase", "typed", "--column", column, "--keys-file", "-", "--dry-run", text=line)
        assert (found.exit_code, message in found.output) == (1, True)
    assert "no key; name the column" in run("erase", "typed", "--keys-file", "-", text="1").output


def test_what_cannot_be_erased_is_one_line(data: Path) -> None:
    Path("empty.txt").write_text("\n", encoding="utf-8")
    Path("latin.txt").write_bytes(b"\xff\n")
    for arguments, message in (
        (("--keys-file", "empty.txt"), "without values erases nothing"),
        (("--keys-file", "latin.txt"), "latin.txt is not text in UTF-8"),
        (("--keys-file", "missing.txt"), "missing.txt: No such file"),
    ):
        for flag in ("--yes", "--dry-run"):
            found = run("erase", "orders", *arguments, flag)
            assert (found.exit_code, message in found.output) == (1, True), found.output
            assert found.output.count("\n") == 1
    Path("tiered.toml").write_text(
        Path("tiered.toml").read_text(encoding="utf-8").replace("'0s'", "'40d'"), encoding="utf-8"
    )
    found = run("erase", "orders", "--keys-file", "keys.txt", "--yes")
    assert "erase.within (30d) is shorter than an erasure takes" in found.output
    assert "warning: erase.within" in run("config", "check").output
    Path("tiered.toml").write_text(
        "[erase]\nwithin = '1h'\n" + Path("tiered.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert run("config", "check").exit_code == 1


def test_a_search_for_no_keys_finds_no_fault_with_nothing(data: Path) -> None:
    """An empty file, as of a pipe that failed, is a mistake, and no proof."""
    found = CliRunner().invoke(app, ["verify", "--erased", "orders", "--keys-file", "-"], input="\n")
    assert (found.exit_code, "a search without keys finds nothing" in found.output) == (1, True)


def test_a_dry_run_says_what_is_not_in_the_bucket_yet(data: Path) -> None:
    """Their objects are made first, and are not among those that are counted."""
    with tiered.open("data", settings="tiered.toml") as store:
        store.topic("orders").append(b"new", key="b", partition=0)
    found = run("erase", "orders", "--keys-file", "keys.txt", "--dry-run").output
    new = json.loads(run("erase", "orders", "--keys-file", "keys.txt", "--dry-run", "--json").output)
    assert new["not_offloaded"] > 0
    assert f"{new['not_offloaded']} record" in found.splitlines()[1]
    assert "not in the bucket yet: passes offload them first" in found


def test_a_ledger_that_cannot_be_read_is_a_problem_of_status(data: Path) -> None:
    run("erase", "orders", "--keys-file", "keys.txt", "--yes")
    Path("data/erasures.json").write_text("{}", encoding="utf-8")
    found = run("status")
    assert (found.exit_code, "the ledger of erasures cannot be read: document" in found.output) == (1, True)
    assert "in bucket to" in found.output


def test_one_that_is_late_is_an_exit_code(data: Path) -> None:
    with Path("tiered.toml").open("a", encoding="utf-8") as file:
        file.write("[erase]\nwithin = '3d'\n")
    assert run("erase", "orders", "--keys-file", "keys.txt", "--yes").exit_code == 0
    assert run("erasures").exit_code == 0
    ledger = data / "data" / "erasures.json"
    with tiered.open("data", settings="tiered.toml") as store:
        late = store.erasures()[0].entry.called_us
        store.context.erasures.change(
            lambda known: tuple(type(item)(**{**_fields(item), "deadline_us": late - 1}) for item in known)
        )
    assert ledger.exists()
    found = run("erasures")
    assert found.exit_code == 1
    assert "erasure 1 is late: it was to be done by " in found.output
    assert (
        "erasure 1 of topic orders is late: it is rewriting, and was to be done by " in run("status").output
    )


@pytest.mark.parametrize(
    "error",
    [
        ColdStorageError("cannot get head.json: no route to host", retryable=True),
        ColdStorageError("cannot get head.json: AccessDenied"),
        CorruptionError("row group fails its checksum", where="an object"),
    ],
)
def test_an_erasure_is_called_while_records_cannot_be_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, error: tiered.TieredError
) -> None:
    """It is on the disk, and a pass brings it to the bucket."""

    def away(_: PartitionManifest) -> None:
        raise error

    run("tier")
    with monkeypatch.context() as patch:
        patch.setattr(PartitionManifest, "load", away)
        assert run("erase", "orders", "--keys-file", "keys.txt", "--dry-run").exit_code == 1
        found = run("erase", "orders", "--keys-file", "keys.txt", "--yes")
        assert found.exit_code == 0, found.output
        assert f"the records are not counted: {error}" in found.output
        assert "erasure 1 of topic orders: its records will go with the next passes; done by " in found.output
    for _ in range(3):
        run("tier")
    (erasure,) = json.loads(run("erasures", "--json").output)["erasures"]
    assert (erasure["state"], erasure["rows"]) != ("rewriting", 0)


def _fields(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def test_a_dry_run_counts_what_is_then_erased(data: Path) -> None:
    """Records that were deleted before lie in an object still; they go, and are no records of the log."""
    with tiered.open("data", settings="tiered.toml") as store:
        orders = store.topic("orders")
        for number in range(20):
            orders.append(b"later", key="abc"[number % 3], partition=0)
        orders.roll()
        store.tier()
        orders.delete_before(12, 0)
        for _ in range(2):
            orders.append(b"latest", key="b", partition=0)
    found = json.loads(run("erase", "orders", "--keys-file", "keys.txt", "--dry-run", "--json").output)
    run("erase", "orders", "--keys-file", "keys.txt", "--yes")
    for _ in range(4):
        run("tier")
        run("sweep")
    (entry,) = json.loads(run("erasures", "--json").output)["erasures"]
    assert (entry["state"], entry["rows"]) == ("done", found["records"])


def test_an_erasure_whose_values_are_lost_is_given_up(data: Path) -> None:
    run("erase", "orders", "--keys-file", "keys.txt", "--yes")
    found = run("erasures", "--give-up", "1", "--yes")
    assert found.exit_code == 1
    assert "erasure 1 has its values, and passes carry it out" in found.output
    run("tier")
    for place in ("data", "bucket"):
        shutil.rmtree(data / place / "erasures")
    run("tier")
    found = run("erasures")
    assert "give this one up by 'tiered erasures --give-up 1'" in " ".join(found.output.split())
    assert run("erasures", "--give-up", "1").exit_code == 1, "nobody is asked without a terminal"
    found = run("erasures", "--give-up", "1", "--yes")
    assert found.output == "erasure 1 of topic orders is given up: its records may be there\n"
    found = run("erasures")
    assert (found.exit_code, "given up 20" in found.output, " waits: " in found.output) == (0, True, False)
    found = run("erasures", "--give-up", "7", "--yes")
    assert "has no erasure 7; see tiered erasures" in found.output
