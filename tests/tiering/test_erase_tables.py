"""A live table beside an erasure: its manifests have the bounds of columns, and each of them goes before the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.delegate import Delegate
from tests.support.stores import open_store, stepwise
from tiered.settings.sections import SweepSettings
from tiered.table.table_sweep import stale_files
from tiered.tiering import erasures, table_passes

pytest.importorskip("pyiceberg")

RULES = {"offload": {"after": "0s", "tail_interval": "off"}}
NEEDLE = b"zoe-of-z"


def settings(**rules: Any) -> tiered.Settings:
    """Settings with a sweep that deletes one object: it takes the orphans before the files of the table."""
    found = stepwise(**RULES, **rules)
    return found.model_copy(update={"sweep": SweepSettings(objects_max=1)})


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    with open_store(tmp_path / "data", url, clock, settings=settings(table={"every": "1m"})) as found:
        topic = found.create_topic("t", schema=pa.schema([("user", pa.string())]), key="user")
        append(topic, "ann", NEEDLE.decode())
        found.tier()
        yield found


def append(topic: tiered.Topic, *users: str) -> None:
    for user in users:
        topic.append({"user": user})
    topic.roll()


def manifests(folder: Path) -> list[Path]:
    """The manifests that show the erased value."""
    return [folder / name for name in files_with(folder, NEEDLE) if "/table/" in name]


def until_done(store: Any, clock: Clock, days: Callable[[float], None], erasure: tiered.Erasure) -> None:
    for _ in range(50):
        clock.advance(3600)
        store.tier()
        if erasure.state == "done":
            return
        days(2)
        store.sweep()
    raise AssertionError(erasure.waits_for)


def test_a_topic_that_goes_on_holds_up_no_erasure(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a pass looks at the table, objects of its newest version were replaced since."""
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    rules = stepwise(offload={"after": "0s", "tail_interval": "1s"}, table={"every": "1m"})
    with open_store(tmp_path / "data", url, clock, settings=rules) as store:
        topic = store.create_topic("t", schema=pa.schema([("user", pa.string())]), key="user")
        append(topic, "ann", NEEDLE.decode())
        store.tier()
        erasure = topic.erase([NEEDLE.decode()])
        for _ in range(8):
            topic.append({"user": "cid"})
            topic.flush()
            store.tierer.tail_pass()
            # The file system gives the times of this machine, and the bucket's clock goes ahead of it.
            written = set((tmp_path / "bucket").glob("t/*/table/metadata/*"))
            store.tierer.tables.run()
            for path in set((tmp_path / "bucket").glob("t/*/table/metadata/*")) - written:
                os.utime(path, (erasures.server_seconds(store.context.tiers.object_store),) * 2)
            topic.roll()
            clock.advance(2 * 86400)
            store.tierer.full_pass()
            days(2)
            store.sweep()
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert files_with(tmp_path, NEEDLE) == []


def test_a_version_that_the_listing_lacks_may_be_from_before(store: Any) -> None:
    class Lacking(Delegate):
        def list(self, prefix: str) -> Any:
            return (info for info in self.inner.list(prefix) if "/snap-" not in info.key)

    bucket, topic_id = store.context.tiers.object_store, store.topic("t").meta.topic_id
    traces = [
        list(stale_files(each, "t", topic_id, 1.0, set(), grace_seconds=0.0))
        for each in (bucket, Lacking(bucket))
    ]
    assert traces[0] == []
    assert ["names objects from before" in line for line in traces[1]] == [True]


def test_a_manifest_of_the_second_of_the_rewriting_is_waited_for(
    tmp_path: Path, store: Any, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers give whole seconds: it seems to be no older than the objects without the records."""
    real = erasures.server_seconds
    monkeypatch.setattr(erasures, "server_seconds", lambda bucket: float(int(real(bucket))))
    topic = store.topic("t")
    erasure = topic.erase([NEEDLE.decode()])
    for _ in range(2):
        store.tier()
    assert erasure.state == "sweeping"
    for path in manifests(tmp_path / "bucket"):
        os.utime(path, (erasure.entry.clean_us / 1e6,) * 2)
    append(topic, "cid")
    store.tier()
    until_done(store, clock, days, erasure)
    assert files_with(tmp_path, NEEDLE) == []


def test_a_publication_that_the_rewriting_overtakes_is_waited_for(
    tmp_path: Path, store: Any, clock: Clock, days: Any
) -> None:
    """It takes no lock of passes: an erasure comes between its read of the heads and its manifest."""
    topic = store.topic("t")
    append(topic, "bob")
    store.tierer.full_pass()
    found: list[tiered.Erasure] = []

    class Overtaken(Delegate):
        def put(self, key: str, data: Any, **conditions: Any) -> str:
            if "/manifest-" in key and not found:
                found.append(topic.erase([NEEDLE.decode()]))
                for _ in range(2):
                    store.tierer.full_pass()
                assert found[0].state == "sweeping"
            return self.inner.put(key, data, **conditions)

    files = store.tierer.tables._table(topic.meta).live._files
    files._store = Overtaken(files._store)
    before = set(manifests(tmp_path / "bucket"))
    assert store.tierer.tables.run().published
    (erasure,) = found
    (late,) = set(manifests(tmp_path / "bucket")) - before
    os.utime(late, (erasure.entry.clean_us / 1e6 + 3600,) * 2)  # no longer than half the grace
    append(topic, "cid")
    store.tier()
    until_done(store, clock, days, erasure)
    assert files_with(tmp_path, NEEDLE) == []
