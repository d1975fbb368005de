"""Readers that began before an erasure, in the process of the writer: what they give once it is done."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_in_turn, run_passes
from tests.support.stores import open_store, stepwise
from tiered.hot.writer_requests import serve_requests
from tiered.store.interface import partition_turns

SETTINGS = stepwise(offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "1h"})
KEPT = [number for number in range(30) if number % 3 != 1]


def carry_out(store: tiered.Store, clock: Clock, days: Any) -> None:
    run_passes(store, clock, days)
    assert [x.state for x in store.erasures()] == ["done"]


def numbers(table: Any) -> list[int]:
    return [int(value) for value in table["value"].to_pylist()]


@pytest.mark.extended
@pytest.mark.parametrize("tier", ["hot", "warm", "cold"])
@pytest.mark.parametrize("passes", ["here", "elsewhere"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_scan_that_is_held_gives_no_erased_record(
    tmp_path: Path, url: str, clock: Clock, days: Any, tier: str, passes: str, begun: bool
) -> None:
    """Wherever its records lay when it was made, if some were read already, and whichever process runs the passes."""
    place = tmp_path / "data", url, clock
    store = open_store(*place, settings=SETTINGS)
    fill_in_turn(store)
    if tier != "hot":
        store.close()
        store = open_store(*place, settings=SETTINGS)
    with store:
        topic = store.topic("t")
        if tier == "cold":
            for _ in range(2):
                store.tier()
                clock.advance(2 * 3600)
        scan = topic.scan()
        assert scan.splits()[0].tier.value == tier
        if begun:
            for _ in range(3):
                assert numbers(scan.to_arrow()) == [*range(30)]
                assert [record.offset for record in topic.read(0, 1, 1)] == [1]
        topic.erase(["b"])
        if passes == "here":
            carry_out(store, clock, days)
        else:
            with open_store(*place, settings=SETTINGS, tierer=True) as other:
                for _ in range(4):
                    clock.advance(3600)
                    other.tier()
                    days(2)
                    other.sweep()
                    serve_requests(topic.opened.writer(0), store.context.commits.shorten_log)
                other.tier()
        assert [x.state for x in store.erasures()] == ["done"]
        for number in (30, 31):
            topic.append(b"%d" % number, key="b")
        assert numbers(scan.to_arrow()) == KEPT
        assert [record.offset for record in topic.read(0, 1, 1)] == [2]
        assert numbers(topic.scan().to_arrow()) == [*KEPT, 30, 31]
        later = topic.scan()
        topic.append(b"32", key="b")
        assert numbers(later.to_arrow()) == [*KEPT, 30, 31]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_consumer_reads_anew_what_it_read_ahead_long_ago(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch, one_by_one: bool
) -> None:
    """It may stay open for days beside a slow program, and an erasure may be done meanwhile."""
    monkeypatch.setattr(partition_turns, "AHEAD_SECONDS", 0.0)
    with (
        open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store,
        fill_in_turn(store).consumer("slow") as consumer,
    ):
        (first,) = consumer.poll(timeout=0, max_records=1)
        store.topic("t").erase(["b"])
        carry_out(store, clock, days)
        if one_by_one:
            rest = [int(record.value) for record in islice(consumer, len(KEPT) - 1)]
        else:
            rest = [number for batch in consumer.poll(timeout=0) for number in numbers(batch)]
        assert numbers(first) + rest == KEPT
        assert consumer.lag() == {0: 0}


def test_a_scan_of_blocks_of_which_some_are_later_gives_these(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """It was made between the call and the end."""
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        topic = fill_in_turn(store)
        topic.erase(["b"])
        for number in range(30, 33):
            topic.append(b"%d" % number, key="b")
        scan = topic.scan()
        (split,) = scan.splits()
        assert (split.tier.value, split.end_offset) == ("hot", 33)
        carry_out(store, clock, days)
        assert numbers(scan.to_arrow()) == [*KEPT, 30, 31, 32]


def test_a_ledger_that_is_damaged_ends_no_read(tmp_path: Path, url: str, clock: Clock) -> None:
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        topic = fill_in_turn(store)
        (tmp_path / "data" / "erasures.json").write_bytes(b"{")
        assert numbers(topic.scan().to_arrow()) == [*range(30)]
