"""Histories in which the machine found something, each as short as it gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tiered
from tests.machine.machine import EXPIRE_US, TAIL_US
from tests.machine.world import World
from tests.support.stores import EVICT_US, OFFLOAD_US
from tests.support.tally import tally


@pytest.fixture
def world() -> Iterator[World]:
    world = World("interval", "0s")
    tally("state machine", examples=1)
    try:
        yield world
    finally:
        world.close()


def test_what_another_process_published_is_not_behind_the_writer(world: World) -> None:
    """A tierer syncs what the writer has only written, and ships it: the writer's disk has it all the same."""
    life = world.life
    life.create("orders")
    life.batch("orders", 1, 2, 3)
    with life.tierer() as tierer:
        life.pass_(TAIL_US, tierer)
    assert life.published == {("orders", 0): 3}
    life.sweep()
    life.append("orders", 4)
    life.pass_(OFFLOAD_US)
    life.scan()


def test_the_new_lineage_removes_nothing_of_the_old_one(world: World) -> None:
    """Its retention does not reach what the old disk alone has: that is read there, and reported."""
    old = world.life
    old.create("orders")
    old.append("orders", *range(5))
    old.roll("orders")
    old.pass_(OFFLOAD_US)
    old.pass_(EVICT_US)
    old.append("orders", 5, 6, 7)
    old.flush()
    world.restore(keep=True, skew_seconds=0)
    new = world.life
    new.append("orders", *range(100, 120))
    new.roll("orders")
    new.pass_(OFFLOAD_US)
    new.delete_before("orders", 20)
    new.pass_(TAIL_US)
    old.store.close()
    old.open()
    for _ in range(2):
        world.check_twin()
        with pytest.raises(tiered.Fenced):
            old.pass_(TAIL_US)
    assert old.store.topic("orders").scan().offsets == {0: (5, 8)}
    (row,) = old.store.status()
    assert (row.start_offset, row.end_offset, row.lag_records, row.warm.records) == (5, 8, 3, 3)
    assert "offsets 5 to 8 are on this disk only" in row.problem


def test_retention_in_another_process_leaves_no_hole(world: World) -> None:
    """Where only the writer may move the start offset on disk, the bucket says it, before a file goes."""
    life = world.life
    life.create("orders")
    life.append("orders", 1, 2, 3, sync=True)
    life.roll("orders")
    with life.tierer() as tierer:
        life.pass_(EXPIRE_US, tierer)
    life.scan()
    life.close()
    life.open()
    life.append("orders", 4)
    life.scan()
    assert life.store.topic("orders").scan().offsets == {0: (3, 4)}
    life.pass_(OFFLOAD_US)
    life.verify(deep=True)


@pytest.mark.parametrize("beside", [False, True])
def test_what_was_deleted_before_it_was_shipped_is_no_beginning_of_a_restored_log(
    world: World, beside: bool
) -> None:
    """Nothing was uploaded, so that there was no manifest to say where the log had come to."""
    life = world.life
    life.create("orders", partitions=2)
    life.append("orders", 1, 2, 3, partition=1)
    life.delete_before("orders", 3, partition=1)
    if beside:
        with life.tierer() as tierer:
            life.pass_(TAIL_US, tierer)
    else:
        life.pass_(TAIL_US)
    assert life.published == {("orders", 1): 3}
    world.restore(keep=False, skew_seconds=0)
    world.life.scan()


def test_a_restored_topic_gets_no_partition_while_the_bucket_is_away(world: World) -> None:
    world.life.create("orders")
    world.life.append("orders", 1)
    world.life.roll("orders")
    world.life.pass_(OFFLOAD_US)
    world.restore(keep=False, skew_seconds=0)
    for away in (True, False):
        world.cloud.away = away
        world.life.add_partition("orders")
        assert len(world.life.topics()["orders"].logs) == (1 if away else 2)
    world.life.append("orders", 2)
    world.life.scan()
