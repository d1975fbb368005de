"""Each place that may hold erased records: the end of an erasure looks at it, and `tiered verify --erased` finds it there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.disks import ForgetfulDisk
from tests.support.erasure_passes import fill_named, run_passes
from tests.support.stores import open_store, stepwise
from tiered.cli import app
from tiered.cold.object_store.protocol import OldVersion, UnfinishedUpload
from tiered.errors import TopicNotFound
from tiered.format import manifest_changes
from tiered.survey import published_manifest
from tiered.survey.erasure_places import ErasurePlace, damaged_files
from tiered.tiering import erase_traces, table_passes
from tiered.verify.erasure_search import ErasedSearch
from tiered.warm.old_stage import STAGE_DIRECTORY

CANARY = "zoe-of-z"
RULES: dict[str, Any] = {"offload": {"after": "0s", "tail_interval": "off"}, "local_retention": {"age": "1h"}}


@pytest.fixture
def before(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A store whose erasure is done, beside an image of its directory and its bucket from before."""
    pytest.importorskip("pyiceberg")
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    settings = stepwise({"cache_path": str(tmp_path / "cache")}, **RULES, table={"every": "1m"})
    place = tmp_path / "data", url, clock
    with open_store(*place, settings=settings) as store:
        topic = store.create_topic("t", schema=schema, key="user")
        for number in range(20):
            topic.append({"user": (CANARY, "ann")[number % 2], "n": number})
            if number % 10 == 9:
                topic.roll()
        with store.transaction() as transaction:
            transaction.append("t", {"user": CANARY, "n": 20})
        store.topic("__transactions").publish()
        image = tmp_path / "image"
        shutil.copytree(tmp_path / "data", image / "data")
        for _ in range(2):
            store.tier()
            clock.advance(2 * 3600)
    with open_store(*place, settings=settings) as store:
        list(store.topic("t").read(0, 0, 1))
        store.context.tiers.fetcher.drain()
        for name in ("bucket", "cache"):
            shutil.copytree(tmp_path / name, image / name)
        erasure = store.topic("t").erase([CANARY])
        shutil.copytree(tmp_path / "data" / "erasures", image / "erasures")
        run_passes(store, clock, days, 6, hours=3)
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert files_with(tmp_path / "data", CANARY.encode()) == []
    assert files_with(tmp_path / "bucket", CANARY.encode()) == []
    return image, tmp_path


def search(place: Path | str, cold: str | None = None) -> list[str]:
    """Where the command finds something."""
    more = [] if cold is None else ["--cold", cold]
    found = CliRunner().invoke(
        app,
        ["verify", "--erased", "t", "--keys-file", "-", "--json", "--path", str(place), *more],
        input=f"{CANARY}\n",
    )
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    traces = json.loads(found.output)["traces"]
    assert found.exit_code == (1 if traces else 0)
    return [trace["where"] for trace in traces]


def back(image: Path, root: Path, pattern: str, to: Callable[[Path], Path] | None = None) -> list[Path]:
    """Copy files of the image to where they were, or elsewhere, if they are not there; return their new paths."""
    made = []
    for path in sorted(image.glob(pattern)):
        target = root / path.relative_to(image) if to is None else to(path)
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            made.append(target)
    assert made
    return made


PLANTS: dict[ErasurePlace, Callable[[Path, Path], list[Path]]] = {
    ErasurePlace.SEGMENTS: lambda image, root: back(image, root, "data/topics/t/0/*0-0.log"),
    ErasurePlace.DAMAGED: lambda image, root: back(
        image, root, "data/topics/__transactions/0/*.log",
        lambda path: root / "data/topics/__transactions/0" / f".damaged-{path.name}-1",
    ),
    ErasurePlace.STAGED: lambda image, root: back(
        image, root, "data/topics/t/0/*0-0.log", lambda path: root / "data/stage/query" / f"{path.name}.rows"
    ),
    ErasurePlace.LOG_FILES: lambda image, root: back(image, root, "data/topics/__transactions/0/*.log"),
    ErasurePlace.LOG_OBJECTS: lambda image, root: back(image, root, "bucket/__transactions/*/0/data/*.parquet"),
    ErasurePlace.OBJECTS: lambda image, root: back(image, root, "bucket/t/*/0/data/*.parquet"),
    ErasurePlace.TABLE: lambda image, root: back(image, root, "bucket/t/*/table/metadata/manifest-*.avro"),
    ErasurePlace.VALUES: lambda image, root: back(
        image, root, "erasures/*", lambda path: root / "data/erasures" / path.name
    ),
    ErasurePlace.COPIES: lambda image, root: back(
        image, root, "bucket/t/*/0/data/*.parquet",
        lambda path: root / "data/promoted" / path.relative_to(image / "bucket"),
    ),
    ErasurePlace.CACHES: lambda image, root: back(image, root, "cache/*"),
}  # fmt: skip


@pytest.mark.extended
def test_a_canary_that_is_put_back_after_the_end_is_found(before: tuple[Path, Path]) -> None:
    """In each place; by the bucket alone, with its ledger, in those of the bucket."""
    image, root = before
    url = f"file://{root}/bucket"
    for name, plant in PLANTS.items():
        assert search(root / "data") == [], name
        assert search(url) == [], name
        made = plant(image, root)
        found = search(root / "data")
        assert found, name
        for where in found:
            path = Path(where.removeprefix("file://"))
            assert any(item == path or path in item.parents for item in made), where
        in_bucket = name in (ErasurePlace.OBJECTS, ErasurePlace.LOG_OBJECTS, ErasurePlace.TABLE)
        assert search(url) == (found if in_bucket else []), name
        for path in made:
            path.unlink()
    (note,) = (root / "data" / "caches").iterdir()
    note.write_bytes(b"?")
    assert search(root / "data") == [str(root / "data")]


class Versioned:
    """A bucket that keeps versions and unfinished uploads of the time before, and of later."""

    def __init__(self, store: Any, prefix: str, times: tuple[float, ...] = (1.0, 1e12)) -> None:
        self._store = store
        self._prefix = prefix
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def old_versions(self, prefix: str) -> Iterator[OldVersion]:
        for seconds in self._times:
            yield OldVersion(f"{prefix}0/data/{seconds:.0f}.parquet", "v", seconds)
            yield OldVersion(f"{prefix}0/head.json", "v", seconds)

    def delete_versions(self, versions: Any) -> None:
        raise AssertionError

    def hold_on(self, key: str) -> str:
        raise AssertionError

    def version_rule(self) -> None:
        raise AssertionError

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        for seconds in self._times:
            yield UnfinishedUpload(f"{prefix}0/data/{seconds:.0f}.parquet", "u", seconds)

    def abort_upload(self, upload: Any) -> None:
        raise AssertionError


def test_old_versions_and_uploads_from_before_are_found(
    before: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket in a folder has neither."""
    _, root = before
    monkeypatch.setattr(
        ErasedSearch, "_store", property(lambda self: Versioned(self._tiers.object_store, "t/"))
    )
    places = search(root / "data")
    found = [where for where in places if "/erasures/" not in where]
    assert [where.rpartition("/")[2] for where in found] == ["1.parquet"] * 4
    assert len(places) > len(found), "old versions of values, too"
    assert {"/__transactions/" in where for where in found} == {True, False}


def test_the_version_of_an_object_that_was_published_during_the_listing_stays(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And deleted by somebody: it is all that is left of live records."""
    published, deleted = {"0.parquet"}, []

    class Listing(Versioned):
        def old_versions(self, prefix: str) -> Iterator[OldVersion]:
            for number in range(3):
                yield OldVersion(f"{prefix}0/data/{number}.parquet", "v", 1.0)
                published.add("2.parquet")

        def delete_versions(self, versions: Any) -> None:
            deleted.extend(item.key.rpartition("/")[2] for item in versions)

    monkeypatch.setattr(erase_traces, "named_objects", lambda *_: set(published))
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        entry, tiers = topic.erase(["b"]).entry, store.context.tiers
        monkeypatch.setattr(tiers, "_object_store", Listing(tiers.object_store, "t/"))
        left = [*store.tierer.erasures._traces.searches_in_bucket[ErasurePlace.VERSIONS](entry, topic.meta)]
    assert deleted == ["1.parquet"]
    assert ["/1.parquet that was deleted" in line for line in left] == [True]


def test_an_upload_of_the_second_of_the_rewriting_is_waited_for(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers give whole seconds: it seems to have begun no earlier."""
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        entry = replace(topic.erase(["b"]).entry, rewritten_us=10_000_000)
        tiers = store.context.tiers
        monkeypatch.setattr(tiers, "_object_store", Versioned(tiers.object_store, "t/", (9.0, 10.0, 11.0)))
        found = [*store.tierer.erasures._traces.searches_in_bucket[ErasurePlace.UPLOADS](entry, topic.meta)]
    assert [line.partition(";")[0].rpartition("/")[2] for line in found] == ["9.parquet", "10.parquet"]


def test_the_end_of_an_erasure_and_the_search_look_at_every_place(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        traces = store.tierer.erasures._traces
        ends = {*traces.searches_here, *traces.searches_in_bucket, ErasurePlace.CACHES}
        assert ends == set(ErasurePlace)
        search = ErasedSearch(store.context.tiers, topic.meta, None, grace_seconds=0)  # type: ignore[arg-type]
        assert set(search.searches) == set(ErasurePlace)
        assert set(PLANTS) == set(ErasurePlace) - {ErasurePlace.UPLOADS, ErasurePlace.VERSIONS}


def test_the_next_end_deletes_what_it_finds(
    before: tuple[Path, Path], url: str, clock: Clock, days: Any
) -> None:
    """Of what it cannot search, or what is of no use any more; also of the transaction log."""
    image, root = before
    made = [
        path
        for place in (ErasurePlace.DAMAGED, ErasurePlace.COPIES, ErasurePlace.CACHES)
        for path in PLANTS[place](image, root)
    ]
    settings = stepwise({"cache_path": str(root / "other")}, **RULES, promote={"reads": 1})
    with open_store(root / "data", url, clock, settings=settings) as store:
        with store.transaction() as transaction:
            transaction.append("t", {"user": CANARY, "n": 20})
        erasure = store.topic("t").erase([CANARY])
        run_passes(store, clock, days, 6, hours=3)
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert [path for path in made if path.exists()] == []


def test_damaged_files_are_gone_after_a_power_cut(tmp_path: Path, url: str, clock: Clock) -> None:
    """The erasure may be recorded as done by then."""
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        entry = topic.erase(["b"]).entry
        damaged = tmp_path / "data/topics/t/0/.damaged-0.log-1"
        damaged.write_bytes(b"<of b>")
        disk = ForgetfulDisk(tmp_path / "data/topics/t/0")
        store.context.fs = disk
        assert [*store.tierer.erasures._traces.searches_here[ErasurePlace.DAMAGED](entry, topic.meta)] == []
        disk.cut_power()
        assert not damaged.exists()


def test_damaged_files_of_a_topic_that_took_the_name_stay(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure's topic is deleted while its files are looked for."""
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        entry = topic.erase(["b"]).entry
        damaged = tmp_path / "data/topics/t/0/.damaged-0.log-1"
        damaged.write_bytes(b"")

        def meanwhile(directory: Path) -> list[Path]:
            found = damaged_files(directory)
            if found:
                store.delete_topic("t")
                store.create_topic("t")
                damaged.write_bytes(b"of another topic")
            return found

        monkeypatch.setattr(erase_traces, "damaged_files", meanwhile)
        with pytest.raises(TopicNotFound):
            list(store.tierer.erasures._traces.searches_here[ErasurePlace.DAMAGED](entry, topic.meta))
        assert damaged.exists()


def test_copies_of_objects_that_no_head_names_go_at_the_end(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes over a large manifest leave them: a page that was not read may name any object."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)
    monkeypatch.setattr(published_manifest, "SMALL_MANIFEST_PAGES", 0)
    monkeypatch.setattr(published_manifest, "_MERGEABLE_PAGES", 0)
    settings = stepwise(**RULES, promote={"reads": 1})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill_named(store, 14)
        for _ in range(2):
            store.tier()
            clock.advance(2 * 3600)
        copies, manifest = store.context.tiers.copies, store.context.tiers.cold(topic.meta, 0)
        before = [manifest.keys.data(entry.name) for entry in manifest.entries(manifest.load().head)]
        data = {key: manifest.store.get(key).data for key in before}
        erasure = topic.erase(["b"])
        store.tier()
        assert erasure.state == "sweeping"
        # A promotion that was under way beside the rewriting ends.
        for key in before:
            copies.write(key, [data[key]])
        live = manifest.keys.data(manifest.entries(manifest.load().head)[0].name)
        copies.write(live, [manifest.store.get(live).data])
        store.tier()
        assert all((tmp_path / "data/promoted" / key).exists() for key in before)
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert files_with(tmp_path, b"<of b>") == []
        assert (tmp_path / "data/promoted" / live).exists()


def test_rows_that_an_early_build_had_staged_are_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None]
) -> None:
    """Those that were there at the first look."""
    with open_store(tmp_path / "data", url, clock, settings=stepwise(**RULES)) as store:
        erasure = fill_named(store).erase(["b"])
        folder = tmp_path / "data" / STAGE_DIRECTORY / "job"
        folder.mkdir(parents=True)
        (folder / "0.rows").write_bytes(b"<of b> staged")
        run_passes(store, clock, days)
        assert erasure.state == "sweeping"
        assert erasure.waits_for == f"{folder / '0.rows'} holds staged rows from before"
        (folder / "1.rows").write_bytes(b"of later")
        (folder / "0.rows").unlink()
        run_passes(store, clock, days)
        assert erasure.state == "done"
