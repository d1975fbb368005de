"""The room on the disk of what was removed: nobody who read it keeps it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.stores import OFFLOAD_US, evict_all, open_store, stepwise, tier
from tiered.engine.host import Host
from tiered.engine.writers import BackgroundFlush
from tiered.reader import tiers


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "REMOVED_SECONDS", 0.0)


def segments(topic: tiered.Topic, count: int) -> None:
    for number in range(count):
        topic.append(b"%d" % number)
        topic.roll()


def kept(store: tiered.Store) -> list[str]:
    """Files that are gone, and that the store has mapped."""
    return [name for name in store.context.tiers._segments if not Path(name).exists()]


def test_what_another_process_evicts_is_let_go(tmp_path: Path, clock: Clock) -> None:
    """By the writer without a read, by a reader at its next one."""
    with (
        open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store,
        open_store(tmp_path / "data", None, clock, tierer=True) as daemon,
        open_store(tmp_path / "data", None, clock, read_only=True) as reader,
    ):
        segments(store.create_topic("t"), 3)
        for one in (store, reader):
            assert one.topic("t").scan().to_arrow().num_rows == 3
        evict_all(daemon, clock)
        assert len(kept(store)) == len(kept(reader)) == 3
        BackgroundFlush(store.context, store.open_topics.writers).run()
        reader.topic("t").offsets()
        assert kept(store) == kept(reader) == []


def test_what_a_pass_evicts_is_let_go_file_by_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the next action of the pass may need the room."""
    monkeypatch.setattr(tiers, "REMOVED_SECONDS", 1e9)
    disk, found = FailingDisk(), []

    def look(name: str, path: Path) -> None:
        if name == "sync_directory" and path.name == "0":
            found.append(kept(store))

    host = Host(clock=clock, fs=disk)
    with tiered.open(
        tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=stepwise(compress="off"), host=host
    ) as store:
        segments(store.create_topic("t"), 3)
        assert store.topic("t").scan().to_arrow().num_rows == 3
        disk.before = look
        evict_all(store, clock)
        assert found == [[]] * len(found)
        assert len(found) >= 3


def test_a_deleted_topic_is_let_go(tmp_path: Path, clock: Clock) -> None:
    """By the writer at once, by the daemon at its next pass."""
    with (
        open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store,
        open_store(tmp_path / "data", None, clock, tierer=True) as daemon,
    ):
        topic = store.create_topic("t", partitions=2)
        segments(topic, 3)
        assert topic.scan().to_arrow().num_rows == daemon.topic("t").scan().to_arrow().num_rows == 3
        tier(store, clock, OFFLOAD_US)
        assert store.tierer.claims._committers
        store.delete_topic("t")
        assert kept(store) == []
        held = store.context.tiers
        assert not any([held._segments, held._partitions, held._directories, held._listings])
        assert not store.tierer.claims._committers
        assert len(kept(daemon)) == 3
        daemon.tier()
        assert kept(daemon) == []


def test_a_store_that_served_is_let_go(tmp_path: Path, clock: Clock) -> None:
    """Once it is closed and nobody has it any more, as one that did not serve."""
    store = open_store(tmp_path / "data", None, clock)
    store.serve("127.0.0.1:0")
    store.close()
    left = weakref.ref(store)
    del store
    gc.collect()
    assert left() is None
