"""A live table is verified: what readers of it would miss, get twice or not find is a problem, and nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tests.support.table_reader import folder_of, newest, path_of
from tiered.cold.object_store.file_store import FileStore
from tiered.errors import CorruptionError
from tiered.table.table_folder import TableFolder
from tiered.table.table_manifests import NamedFile
from tiered.verify import tables
from tiered.verify.report import Item, Problem


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2)
        for turn in range(3):
            for number in range(10):
                topic.append(b"%d" % number, partition=number % 2)
            topic.roll()
            if turn == 1:
                topic.delete_before(7, 0)
            tier(store, clock, OFFLOAD_US)
        topic.append(b"tail", partition=1, sync=True)
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        store.tierer.tables.run()  # type: ignore[attr-defined]
        yield store


def problems(store: tiered.Store) -> list[Problem]:
    return [item for item in store.verify().problems if item.item is Item.TABLE]


def test_a_sound_table_has_no_problem(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """By the store, by a reader of the bucket, without a hint, and after the topic has changed."""
    assert store.verify().ok
    with tiered.open(f"file://{tmp_path}/bucket") as reader:
        assert reader.verify().ok
    (folder_of(tmp_path / "bucket", "t") / "version-hint.text").unlink()
    store.topic("t").append(b"more", sync=True)
    store.tierer.tail_pass()  # type: ignore[attr-defined]
    assert store.verify().ok
    store.create_topic("other").append(b"x", sync=True)
    assert store.verify().ok


def test_an_object_that_only_the_table_names(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """The log has replaced it, and queries of the table still read it."""
    tail = tail_of(tmp_path / "bucket")
    store.topic("t").append(b"more", partition=1, sync=True)
    store.tierer.tail_pass()  # type: ignore[attr-defined]
    content = tail.read_bytes()
    tail.write_bytes(content[:-1])
    (found,) = problems(store)
    assert f"has {len(content) - 1} bytes, and {len(content)} in the table" in found.reason
    assert found.where.endswith(tail.name)
    tail.unlink()
    (found,) = problems(store)
    assert found.reason == "an object of the table is missing"
    assert found.offsets == (15, 16)


def tail_of(bucket: Path) -> Path:
    return max((bucket / "t").glob("*/1/data/*.parquet"), key=lambda path: path.name)


def test_an_object_that_a_listing_lacks_is_asked_for(
    store: tiered.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the server's 404 says that it is not there (promise P10)."""
    tail, listed = tail_of(tmp_path / "bucket"), FileStore.list
    monkeypatch.setattr(
        FileStore,
        "list",
        lambda self, prefix: (info for info in listed(self, prefix) if not info.key.endswith(tail.name)),
    )
    assert problems(store) == []


def test_a_publication_and_a_sweep_beside_the_check_are_no_problem(
    store: tiered.Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep deletes the tail that only the earlier version names, which is being checked."""
    tail, check = tail_of(tmp_path / "bucket"), tables._check_present

    def moved(*arguments: Any) -> None:
        if tail.exists():
            store.topic("t").roll()
            tier(store, clock, OFFLOAD_US)
            tail.unlink()
        check(*arguments)

    monkeypatch.setattr(tables, "_check_present", moved)
    assert problems(store) == []
    assert not tail.exists()


def test_versions_that_come_faster_than_the_check_are_unknown(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with a version that is the newest no longer, may be the work of a sweep."""

    def moved(*_: Any) -> None:
        store.topic("t").append(b"more", sync=True)
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        store.tierer.tables.run()  # type: ignore[attr-defined]
        raise tiered.CorruptionError("an object of the table is missing")

    monkeypatch.setattr(tables, "_check_present", moved)
    report = store.verify()
    assert [item for item in report.problems if item.item is Item.TABLE] == []
    assert ["a later version came while each of 5 was checked" in item.reason for item in report.unknown] == [
        True
    ]


def lists(folder: Path) -> Path:
    values = json.loads(newest(folder).read_text())
    return path_of(values["snapshots"][-1]["manifest-list"])


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "a list is gone": (lambda folder: lists(folder).unlink(), "is missing|gone"),
    "a list is damaged": (lambda folder: lists(folder).write_bytes(b"Obj\x01damaged"), "checksum"),
    "a version is gone": (lambda folder: newest(folder).unlink(), "metadata that is gone"),
    "a version is damaged": (lambda folder: newest(folder).write_bytes(b"{"), "decode|JSON"),
    "the hint is no number": (lambda folder: (folder / "version-hint.text").write_text("x"), "is no version"),
    "another end": (
        lambda folder: newest(folder).write_text(
            newest(folder).read_text().replace('"tiered.offsets.0":"7-15"', '"tiered.offsets.0":"7-16"')
        ),
        "says that partition 0 ends at 16, and its objects end at 15",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_table(name: str, store: tiered.Store, tmp_path: Path) -> None:
    spoil, reason = SPOILT[name]
    spoil(folder_of(tmp_path / "bucket", "t"))
    found = problems(store)
    assert len(found) == 1
    assert re.search(reason, f"{found[0]}")
    assert "tiered table TOPIC --take" in str(found[0])


def test_a_commit_of_another_program_is_not_checked(store: tiered.Store, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "bucket", "t")
    version = int((folder / "version-hint.text").read_text())
    (folder / f"v{version + 1}.metadata.json").write_bytes(newest(folder).read_bytes())
    assert problems(store) == []
    (unknown,) = store.verify().unknown
    assert "committed by another program" in unknown.reason


def numbered(folder: Path, version: int) -> Path:
    return folder / f"v{version}.metadata.json"


@pytest.fixture
def seven(store: tiered.Store, tmp_path: Path) -> Path:
    """The folder of a table with seven versions or more, and the pointer at the fifth."""
    while not numbered(folder := folder_of(tmp_path / "bucket", "t"), 7).exists():
        store.topic("t").append(b"more", sync=True)
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        store.tierer.tables.run()  # type: ignore[attr-defined]
    (folder / "version-hint.text").write_text("5")
    return folder


def test_readers_that_begin_stop_at_a_hole(seven: Path, store: tiered.Store, tmp_path: Path) -> None:
    """Until the next process that publishes, or ``--take``, moves the pointer beyond the hole."""
    assert problems(store) == []
    numbered(seven, 6).unlink()
    (found,) = problems(store)
    assert found.where.endswith("/v6.metadata.json")
    assert found.reason == "version 6 of the table is missing, and readers do not find version 7 after that"
    assert str(found).endswith("; tiered table TOPIC --take leads them to it")
    meta = store.topic("t").meta
    store.tierer.tables.publish(meta, take=True)  # type: ignore[attr-defined]
    (found,) = problems(store)
    assert found.reason.endswith("is missing, and programs that have version 5 open find no later one")
    numbered(seven, 4).unlink()
    assert [item.reason.partition(" of")[0] for item in problems(store)] == ["version 4", "version 6"]
    numbered(seven, 5).unlink()
    assert [item.reason.partition(" of")[0] for item in problems(store)] == ["versions 4 to 6"]
    for version in range(1, 4):  # as a sweep does, after the grace
        numbered(seven, version).unlink()
    assert problems(store) == []
    with tiered.open(f"file://{tmp_path}/bucket") as reader:
        assert reader.verify().ok


def test_a_pointer_before_versions_that_a_sweep_has_deleted(seven: Path, store: tiered.Store) -> None:
    (seven / "version-hint.text").write_text("1")
    for version in range(1, 6):
        numbered(seven, version).unlink()
    (found,) = problems(store)
    assert "the pointer of a table names metadata that is gone" in found.reason


def test_a_version_that_is_being_swept_is_no_hole(
    seven: Path, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing beside a sweep shows some of its deletions, in any order."""
    (seven / "version-hint.text").write_text("7")
    version = numbered(seven, 2)
    version.rename(version.with_suffix(".away"))
    listed = TableFolder.versions

    def during(folder: TableFolder) -> list[int]:
        found = listed(folder)
        numbered(seven, 1).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(TableFolder, "versions", during)
    assert problems(store) == []


def test_rows_that_are_twice_or_not_there() -> None:
    def files(*ranges: tuple[int, int]) -> list[NamedFile]:
        return [NamedFile(0, base, end, "u/x", 1) for base, end in ranges]

    tables._check_rows(0, 3, 9, files((3, 5), (5, 9)), "w")
    tables._check_rows(0, 3, 3, [], "w")
    for ranges, reason in (
        (((3, 5), (6, 9)), "lacks records of partition 0"),
        (((3, 5), (4, 9)), "has twice records of partition 0"),
        (((4, 9),), "lacks"),
        (((3, 8),), "ends at 9, and its objects end at 8"),
    ):
        with pytest.raises(CorruptionError, match=reason):
            tables._check_rows(0, 3, 9, files(*ranges), "w")
