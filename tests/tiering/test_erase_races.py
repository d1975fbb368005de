"""A process that rewrites objects stands still while the store is restored elsewhere and erases records, and then goes on.

Whatever it had read before, nothing of that is named by a manifest again, and no other record is lost.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_in_turn, run_passes
from tests.support.stores import committer_of, stepwise
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at, published
from tiered.format.predicate import In, Not
from tiered.format.row_filter import RowFilter
from tiered.policies.actions import Erase
from tiered.tiering.rewriter import change_class, rewrite

RULES: dict[str, dict[str, Any]] = {
    "whole for a tail": {"offload": {"after": "0s", "tail_interval": "1s"}},
    "tail": {"offload": {"after": "4h", "tail_interval": "1s"}},
    "merge": {"merge": {"after": "1h", "target_bytes": "1MiB"}},
    "cut": {"cut": {"deleted": 0.1}, "local_retention": {"age": "1h"}},
    "compaction": {"compact_keys": {"after": "1h", "dirty": 1e-9}},
}
"""What the process that stands still does."""


def settings(rule: str | None = None) -> tiered.Settings:
    base = {"offload": {"after": "0s", "tail_interval": "off"}}
    rules = stepwise(**{**base, **(RULES[rule] if rule else {})}).to_json()
    return tiered.Settings.model_validate({**rules, "sweep": {"grace": "0s", "every": "off"}})


def rows(store: tiered.Store) -> list[tuple[int, bytes]]:
    table = store.topic("t").scan(columns=["offset", "value"]).to_arrow()
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def holding(folder: Path, bucket: WatchedBucket) -> list[str]:
    """The objects with erased records; the bucket is written into the folder for that."""
    for key, (data, _) in bucket.objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files_with(folder, b"<of b>")


@pytest.mark.extended
@pytest.mark.parametrize("place", ["object", "head"])
@pytest.mark.parametrize("rule", RULES)
def test_what_was_read_before_an_erasure_is_not_published_after_it(
    tmp_path: Path, clock: Clock, days: Callable[[float], None], rule: str, place: str
) -> None:
    bucket = WatchedBucket()
    bucket.clock = lambda: clock() / 1e6
    with open_at(tmp_path / "a", bucket, clock, settings=settings(rule)) as store:
        topic = store.create_topic("t")
        for number in range(60):
            key = "abc"[number % 3]
            topic.append(f"<of {key}> {number}".encode(), key=key)
            if number % 10 == 9:
                clock.advance(60)
                if rule == "whole for a tail":
                    topic.flush()
                    store.tierer.tail_pass()
                topic.roll()
                if rule != "whole for a tail":
                    store.tier()
        if rule == "cut":
            topic.delete_before(4)
        for number in range(60, 63):
            topic.append(f"<of {'abc'[number % 3]}> {number}".encode(), key="abc"[number % 3])
        topic.flush()
        clock.advance(2 * 3600)
    first = open_at(tmp_path / "a", bucket, clock, settings=settings(rule))
    stands, goes_on = threading.Event(), threading.Event()
    # The objects in question begin in the first segment; a tail is the last one.
    is_object = re.compile(r"put t/.*/data/0{18}" + ("60" if rule == "tail" else "0[0-9]")).match
    written = False

    def hook(request: str) -> None:
        nonlocal written
        if stands.is_set():
            return
        is_place = is_object(request) if place == "object" else written and request.endswith("head.json")
        written = written or bool(is_object(request))
        if is_place:
            stands.set()
            goes_on.wait(60)

    def work() -> None:
        try:
            first.tierer.tail_pass()
            for _ in range(3):
                first.tierer.run_once()
                clock.advance(2 * 3600)
        finally:
            stands.set()

    bucket.hook = hook
    thread = threading.Thread(target=work)
    thread.start()
    assert stands.wait(60)
    assert thread.is_alive(), "it came to this place"
    with tiered.restore(URL, tmp_path / "b", host=host(bucket, clock), settings=settings()) as second:
        before = rows(second)
        assert len(before) >= 56
        assert holding(tmp_path / "before", bucket)
        erasure = second.topic("t").erase(["b"])
        for _ in range(8):
            second.tierer.run_once()
            clock.advance(3600)
            days(2)
            second.sweep()
            if erasure.state == "done":
                break
        assert (erasure.state, erasure.waits_for) == ("done", "")
        goes_on.set()
        thread.join(60)
        assert not thread.is_alive()
        bucket.hook = lambda request: None
        kept = [row for row in before if b"<of b>" not in row[1]]
        assert rows(second) == kept
        clock.advance(3600)
        days(2)
        second.sweep()
        second.tierer.run_once()
        days(2)
        second.sweep()
        assert rows(second) == kept
        assert holding(tmp_path / "after", bucket) == []
        assert second.verify(deep=True).problems == ()
    first.abandon()


@pytest.mark.parametrize("kind", ["merge", "cut", "class"])
def test_a_rewriting_of_what_was_erased_meanwhile_is_not_published(
    tmp_path: Path, clock: Clock, kind: str
) -> None:
    """Also in one process, whose commits no epoch tells apart."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings()) as store:
        topic = fill_in_turn(store, 20)
        store.tier()
        committer, rule = committer_of(store, topic.meta, 0), settings().policy_for("t").offload
        first, second = committer.partition.entries(committer.last_head())
        keep = RowFilter((Not(In("key", (b"b",))),))
        erased: list[int] = []

        def hook(request: str) -> None:
            if request.endswith(".parquet") and request.startswith("put ") and not erased:
                erased.append(0)
                erased.append(rewrite(committer, [first], topic.meta, rule, row_filter=keep))

        bucket.hook = hook
        if kind == "merge":
            size = rewrite(committer, [first, second], topic.meta, rule)
        elif kind == "cut":
            size = rewrite(committer, [first], topic.meta, rule, start_offset=5)
        else:
            size = change_class(committer, first, bucket, "")
        assert (size, erased[1] > 0) == (0, True)
    assert published(bucket) == [b"%d" % number for number in range(20) if number >= 10 or number % 3 != 1]


def test_what_was_merged_while_its_records_were_erased_is_not_called_checked(
    tmp_path: Path, clock: Clock, days: Callable[[float], None]
) -> None:
    """The manifest names the merged object, which has the records still."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings()) as store:
        topic = fill_in_turn(store, 20)
        store.tier()
        committer, rule = committer_of(store, topic.meta, 0), settings().policy_for("t").offload
        erasure = topic.erase(["b"])
        merged: list[int] = []

        def hook(request: str) -> None:
            if request.endswith(".parquet") and request.startswith("put ") and not merged:
                merged.append(0)
                entries = committer.partition.entries(committer.last_head())
                merged.append(rewrite(committer, entries, topic.meta, rule))

        bucket.hook = hook
        ((action, error),) = store.tier().failed
        assert (action.kind, "does not name" in error, merged[1] > 0) == ("erase", True, True)
        run_passes(store, clock, days)
        assert (erasure.state, erasure.rows) == ("done", 7)
    assert published(bucket) == [b"%d" % number for number in range(20) if number % 3 != 1]


def test_a_range_behind_one_that_was_not_checked_is_not_called_checked(
    tmp_path: Path, clock: Clock, days: Callable[[float], None]
) -> None:
    """The action for the range before it may have failed, and a mark says so of all that lies before it."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings()) as store:
        topic: Any = fill_in_turn(store, 20)
        store.tier()
        erasure = topic.erase(["b"])
        store.tierer.erasures.exchange()
        action = Erase(
            topic="t", partition=0, segment_id=None, base_offset=10, end_offset=20, bytes=0, reason="a test"
        )
        assert store.tierer.handlers[Erase](action) == 0
        run_passes(store, clock, days)
        assert (erasure.state, erasure.rows) == ("done", 7)
    assert published(bucket) == [b"%d" % number for number in range(20) if number % 3 != 1]
