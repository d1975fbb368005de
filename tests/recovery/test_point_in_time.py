"""`restore(at=…)`: the store as its bucket had it then, whatever happened since (promises P1, P6, P9)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiered
from tests.recovery.dying_host import Countdown, Killed, dying_host
from tests.support.clock import Clock
from tests.support.store_history import TAILS, History, State, head_of, state_of
from tests.support.stores import HOUR_US, let_intent_lapse, open_store
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.engine.host import Host
from tiered.format.manifest import Head, Origin
from tiered.recovery.point_in_time import LogPiece, LogView, view_at


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path)
    yield history
    history.store.close()


def eventful(history: History) -> None:
    """Tails, wholes that replace them, deletions, a restore, and a restore to a time."""
    history.append()
    history.ship()
    history.look()
    history.append()
    history.ship()
    history.look()
    history.seal()
    history.look()
    history.append(3)
    history.seal()
    history.look()
    history.delete(5)
    history.look()
    history.append()
    history.ship()
    history.look()
    history.restore()
    history.append()
    history.ship()
    history.look()
    history.restore(history.seen[1][0])
    history.append(1)
    history.ship()
    history.look()


def check(restored: tiered.Store, expected: State, *, deep: bool = False) -> None:
    """The same end and the same records; the start may lie further back, by what one segment's life hides."""
    found = state_of(restored)
    assert found.keys() == expected.keys()
    for name, partitions in expected.items():
        for partition, (start, records) in partitions.items():
            begin, had = found[name][partition]
            assert (begin <= start, had[start - begin :]) == (True, records), (name, partition)
    assert restored.verify(deep=deep).problems == ()


@pytest.mark.extended
def test_every_state_of_an_eventful_history_comes_back(history: History) -> None:
    """And goes on: the next offset is the end of then, in a lineage of its own; so does the bucket for its readers."""
    eventful(history)
    history.store.close()
    for at_us, expected in history.seen:
        with history.elsewhere(at_us) as store:
            check(store, expected)
            for partition, (start, records) in expected["t"].items():
                assert store.topic("t").append(b"next", partition=partition).offset == start + len(records)
            store.topic("t").flush()
            assert store.tier((history.clock() + HOUR_US) // 1000).failed == ()
            with tiered.open(store.context.tiers.locations.cold_url) as bucket:
                assert state_of(bucket) == state_of(store)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["append", "ship", "seal", "restore"]),
        st.tuples(st.just("delete"), st.integers(1, 6)),
        st.tuples(st.just("back"), st.integers(0, 20)),
    ),
    min_size=4,
    max_size=9,
)


def run_steps(history: History, steps: list[Any]) -> None:
    for step in steps:
        if step == "append":
            history.append(2)
            history.ship()
        elif isinstance(step, str):
            getattr(history, step)()
        elif step[0] == "delete":
            history.delete(step[1])
        else:
            history.restore(history.seen[step[1] % len(history.seen)][0])
        history.look()
        history.clock.advance(60)


def random_history(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], pick: int) -> None:
    history = History(tmp_path_factory.mktemp("history"))
    try:
        history.look()
        run_steps(history, steps)
        at_us, expected = history.seen[pick % len(history.seen)]
        history.store.close()
        with history.restored(at_us) as store:
            check(store, expected, deep=True)
    finally:
        history.store.close()
        shutil.rmtree(history.folder)


@pytest.mark.extended
@example(steps=["append", ("back", 0), "restore"], pick=2)  # of a lineage that wrote nothing
@example(steps=["append", ("back", 0), ("back", 1)], pick=2)  # undone then, and adopted again since
@example(
    steps=[("delete", 3), "append", "seal", ("back", 2), "append", "append"], pick=5
)  # its start had gone back
@example(  # its newest segment was sealed since, where a lineage that was undone had gone on
    steps=["append", "append", "restore", "append", ("back", 0), "append", "append", ("delete", 1), "seal"],
    pick=7,
)
@settings(max_examples=4)
@given(steps=STEPS, pick=st.integers(0, 20))
def test_any_state_of_any_history_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], pick: int
) -> None:
    random_history(tmp_path_factory, steps, pick)


@pytest.mark.slow
@given(steps=STEPS, pick=st.integers(0, 20))
@settings(max_examples=120)
def test_any_state_of_many_histories_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], pick: int
) -> None:
    random_history(tmp_path_factory, steps, pick)


def test_the_start_is_exact_where_a_segment_was_sealed_since_it_moved(history: History) -> None:
    """What retention had removed by then stays removed, though its objects are still there."""
    history.append(4)
    history.seal()
    history.delete(5)
    history.append()
    history.seal()
    history.look()
    history.delete(2)
    history.append()
    history.ship()
    history.store.close()
    at_us, expected = history.seen[-1]
    assert expected["t"][0][0] == 5
    with history.elsewhere(at_us) as store:
        assert state_of(store) == expected


def test_what_was_deleted_before_the_last_segment_of_then_was_sealed_comes_back(history: History) -> None:
    """The deletion that is to be undone stands in the footer of a segment whose records are older than it."""
    history.append(4)
    history.seal()
    history.append(3)
    history.topic.flush()
    history.look()
    at_us, expected = history.seen[-1]
    for partition in range(2):
        history.topic.delete_before(4, partition)
    history.clock.advance(60)
    history.seal()
    history.store.close()
    with history.elsewhere(at_us) as store:
        for partition, (start, had) in expected["t"].items():
            assert state_of(store)["t"][partition][0] == start == 0
            assert state_of(store)["t"][partition][1][: len(had)] == had


def test_a_damaged_orphan_is_in_the_way_only_where_it_may_be_needed(history: History) -> None:
    """A repair leaves the damaged object beside the one that it uploaded again; a tail goes with its whole."""
    history.append()
    history.ship()
    history.look()
    needed_us = history.seen[-1][0]
    history.append()
    history.ship()
    history.seal()
    history.look()
    history.append()
    history.ship()
    data = next((history.folder / "bucket").glob("t/*/0/data"))
    named = {entry.name for entry in head_of(history.url).inline}
    orphans = sorted(path for path in data.iterdir() if path.name not in named)
    assert len(orphans) > 1
    sound = orphans[0].read_bytes()
    orphans[0].write_bytes(b"damaged" * 100)
    history.store.close()
    with history.elsewhere(history.seen[-1][0]) as store:
        check(store, history.seen[-1][1])
    # Its footer, and a row, which only those find who read all of it.
    for damaged in (b"damaged" * 100, sound[:40] + bytes([sound[40] ^ 1]) + sound[41:]):
        orphans[0].write_bytes(damaged)
        files = [path for path in (history.folder / "bucket").rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in files}
        with pytest.raises(tiered.CorruptionError, match=orphans[0].name):
            history.restored(needed_us)
        assert before == {path: path.read_bytes() for path in files}, "the store that was there is fenced"


# -- the plan, by itself ---------------------------------------------------------------------------


def piece(text: str) -> LogPiece:
    """Return the piece of ``lineage:base-end@append``, an orphan; with a star the head names it."""
    lineage, base, end, append = map(int, re.split("[:@-]", text.rstrip("*")))
    named: Any = object() if text.endswith("*") else None
    return LogPiece(text, base, end, append, lineage, named, (int(named is not None),))


@pytest.mark.parametrize(
    ("lineages", "began", "start", "pieces", "at", "expected"),
    [
        # start, end, where a new lineage begins, the pieces
        ("1:0", {}, 0, "1:0-4@1* 1:4-6@3*", 2, (0, 4, 4, "1:0-4@1*")),
        ("1:0", {}, 4, "1:0-4@1 1:4-6@3*", 2, (0, 4, 4, "1:0-4@1")),
        ("1:0", {}, 0, "1:0-6@3* 1:0-2@1 1:2-4@2", 2, (0, 4, 4, "1:0-2@1 1:2-4@2")),
        ("1:0", {}, 0, "1:0-6@3 1:0-2@1 1:2-6@3", 3, (0, 6, 6, "1:0-6@3")),  # the whole, not its tails
        # A merge that was never published, which a sweep may be about to delete.
        ("1:0", {}, 0, "1:0-4@1* 1:4-6@2* 1:0-6@2", 3, (0, 6, 6, "1:0-4@1* 1:4-6@2*")),
        ("1:0", {}, 0, "1:0-2@1 1:2-4@1* 1:4-6@2* 1:0-6@2", 3, (0, 6, 6, "1:0-2@1 1:2-4@1* 1:4-6@2*")),
        ("1:0", {}, 0, "1:3-6@3*", 2, (3, 3, 3, "")),  # nothing yet
        ("1:7", {}, 7, "", 2, (7, 7, 7, "")),
        ("1:0 2:4", {2: 3}, 0, "1:0-4@1* 1:4-9@2 2:4-5@4*", 5, (0, 5, 5, "1:0-4@1* 2:4-5@4*")),  # the fork is none of it
        ("1:0 2:4", {2: 3}, 0, "1:0-4@1* 1:4-9@2 2:4-5@4*", 2, (0, 9, 4, "1:0-4@1* 1:4-9@2")),  # a lineage is undone
        ("1:0 2:9 3:4", {2: 3, 3: 6}, 0, "1:0-4@1* 1:4-9@2 2:9-11@4 3:4-5@7*", 5,
         (0, 11, 4, "1:0-4@1* 1:4-9@2 2:9-11@4")),
        ("1:0 2:4 3:4", {3: 3}, 0, "1:0-4@1* 1:4-9@2", 3, (0, 4, 4, "1:0-4@1*")),  # what began before one that had begun
        ("1:0", {}, 0, "1:0-4@1* 1:6-8@2", 2, None),  # nothing says what 4 and 5 were
    ],
)  # fmt: skip
def test_the_log_of_a_time(
    lineages: str, began: dict[int, int], start: int, pieces: str, at: int, expected: Any
) -> None:
    rows = tuple((int(epoch), int(base)) for epoch, base in (row.split(":") for row in lineages.split()))
    head = Head(UUID(int=1), UUID(int=2), 0, 9, rows, "c", start_offset=start)
    found = [piece(text) for text in pieces.split()]
    if expected is None:
        with pytest.raises(tiered.ColdStorageError, match="are in no object"):
            view_at(head, found, began, at)
        return
    view = view_at(head, found, began, at)
    names = " ".join(item.name for item in view.pieces)
    assert (view.start_offset, view.end_offset, view.lineage_start, names) == expected


@pytest.mark.parametrize(
    ("origins", "pieces", "at", "expected"),
    [
        # Lineage 2 took over 0-4 of lineage 1, lineage 3 all of it: start, end, the pieces
        ("2@5<1:0-4 3@7<1:0-9", "1:0-4@1* 1:4-9@2*", 3, (0, 9, "1:0-4@1* 1:4-9@2*")),
        ("2@5<1:0-4 3@7<1:0-9", "1:0-4@1* 1:4-9@2*", 6, (0, 4, "1:0-4@1*")),
        ("2@5<1:0-4 3@7<1:0-9", "1:0-4@1* 1:4-9@2*", 8, (0, 9, "1:0-4@1* 1:4-9@2*")),
        # What it had adopted is an orphan again; without what a head of an early release does not say, it is nothing's.
        ("2@5<1:0-4 3@7<1:0-9", "1:0-4@1* 1:4-9@2", 8, (0, 9, "1:0-4@1* 1:4-9@2")),
        ("", "1:0-4@1* 1:4-9@2", 8, (0, 4, "1:0-4@1*")),
        ("", "1:0-4@1* 1:4-9@2*", 8, (0, 9, "1:0-4@1* 1:4-9@2*")),
        # All had been removed: swept, or not yet.
        ("2@5<1:9-9 3@7<2:9-9", "", 8, (9, 9, "")),
        ("2@5<1:9-9 3@7<2:9-9", "1:0-4@1", 8, (9, 9, "")),
        ("2@5<1:9-9 3@7<1:0-4", "1:0-4@1* 2:9-11@5", 6, (9, 11, "2:9-11@5")),
        ("2@5<1:0-4 3@7<1:0-9", "1:0-4@1*", 8, None),  # gone, and had not been removed
        # Lineage 1 had published 4-6 before the restore that began at 5 claimed this head: at 6, and at 5.
        ("2@5<1:0-6", "1:0-4@1* 1:4-6@6* 2:6-9@8*", 6, (0, 6, "1:0-4@1* 1:4-6@6*")),
        ("2@5<1:0-6", "1:0-4@1* 1:4-6@6* 2:6-9@8*", 5, (0, 4, "1:0-4@1*")),
        ("2@5<1:0-9", "1:0-4@1* 2:4-11@8*", 5, None),  # merged since, and what it had taken over is gone
    ],
)  # fmt: skip
def test_the_log_of_a_time_that_was_undone(origins: str, pieces: str, at: int, expected: Any) -> None:
    fields = [map(int, re.split("[@<:-]", row)) for row in origins.split()]
    rows = tuple(Origin(epoch, began, parent, end, start) for epoch, began, parent, start, end in fields)
    lineages, rewinds = ((1, 0), (2, 4), (3, 4)), ((2, 5), (3, 7))
    head = Head(UUID(int=1), UUID(int=2), 0, 9, lineages, "c", rewinds=rewinds, origins=rows)
    found = [piece(text) for text in pieces.split()]
    if expected is None:
        with pytest.raises(tiered.ColdStorageError, match="4 to 9 .* are in no object"):
            view_at(head, found, dict(head.rewinds), at)
        return
    view = view_at(head, found, dict(head.rewinds), at)
    names = " ".join(item.name for item in view.pieces)
    assert (view.start_offset, view.end_offset, names) == expected


@pytest.mark.parametrize(
    ("compacted", "rewound_us", "expected"),
    [
        # name: when it was compacted; a star: the head names it. The time is 6.
        ("whole:0 first:9*", 0, "whole"),
        ("whole:0 first:5*", 0, "first"),
        ("whole:0 first:5*", 7, "first"),  # undone and adopted again, both later
        ("whole:0 first:3*", 4, "whole"),  # undone by then, for all that is known
        ("whole:0 first:5 second:9*", 0, "whole"),  # the first may never have been published
        ("first:5 second:9*", 0, "first"),
        ("second:9*", 0, "second"),
    ],
)
def test_the_log_of_a_time_before_a_compaction(compacted: str, rewound_us: int, expected: str) -> None:
    named: Any = object()
    found = [
        LogPiece(
            name, 0, 4, 1, 1, named if star else None, (int(bool(star)), int(us)), 4 * (us != "0"), int(us)
        )
        for name, us, star in re.findall(r"(\w+):(\d+)(\*?)", compacted)
    ]
    rewinds = ((2, rewound_us),) if rewound_us else ()
    lineages = ((1, 0), (2, 4)) if rewound_us else ((1, 0),)
    head = Head(UUID(int=1), UUID(int=2), 0, 9, lineages, "c", rewinds=rewinds)
    assert [item.name for item in view_at(head, found, dict(rewinds), 6).pieces] == [expected]


class Model:
    """One partition's bucket without its bytes: what it holds, what the head names, and its log after every step."""

    def __init__(self) -> None:
        self.head = Head(UUID(int=1), UUID(int=2), 0, 1, ((1, 0),), "c")
        self.log: tuple[
            str, ...
        ] = ()  # by offset from 0, also of what was deleted: which object was the first with it
        self.named: list[str] = []
        self.objects: dict[str, tuple[LogPiece, tuple[str, ...]]] = {}
        self.now_us = 0
        self.seen: list[tuple[int, tuple[str, ...], int]] = []

    def run(self, step: str, number: int) -> None:
        self.now_us += 1
        getattr(self, step)(number)
        self.seen.append((self.now_us, self.log, self.head.start_offset))

    def append(self, count: int) -> None:
        name = f"{len(self.objects)}"
        self.log += (name,) * count
        self.named.append(self._add(name, self.log[-count:], len(self.log), self.now_us))

    def lose(self, count: int) -> None:
        """Upload what is never published, as a restore comes in between."""
        name = f"{len(self.objects)}"
        self._add(name, (name,) * count, len(self.log) + count, self.now_us)
        self.restore(0)

    def merge(self, number: int) -> None:
        if len(self.named) > 1:
            at = number % (len(self.named) - 1)
            pair = [self.objects[name] for name in self.named[at : at + 2]]
            newest = max(piece.last_append_us for piece, _ in pair)
            records = sum((found for _, found in pair), ())
            name = f"{len(self.objects)}"
            self.named[at : at + 2] = [
                self._add(name, records, pair[-1][0].end_offset, newest, pair[-1][0].lineage)
            ]

    def delete(self, count: int) -> None:
        start = min(self.head.start_offset + count, len(self.log))
        self.head = replace(self.head, start_offset=start, end_offset=len(self.log))
        self.named = [name for name in self.named if self.objects[name][0].end_offset > start]

    def restore(self, _: int) -> None:
        self._begin(self.head.lineage_epoch, len(self.log), self.head.start_offset)

    def back(self, number: int) -> None:
        at_us, log, start = self.seen[number % len(self.seen)] if self.seen else (0, (), 0)
        view = self.view(at_us)
        self.log = log
        self.named = [item.name for item in view.pieces if item.end_offset > start]
        self._begin(view.lineage, view.lineage_start, start)

    def view(self, at_us: int) -> LogView:
        named: Any = object()
        pieces = [
            replace(item, entry=named if name in self.named else None, rank=(int(name in self.named),))
            for name, (item, _) in self.objects.items()
        ]
        return view_at(self.head, pieces, {row.epoch: row.began_us for row in self.head.origins}, at_us)

    def _begin(self, parent: int, begin: int, start: int) -> None:
        epoch, end = self.head.epoch + 1, len(self.log)
        origin = Origin(epoch, self.now_us, parent, end, start)
        lineages = (*self.head.lineages, (epoch, begin))
        origins = (*self.head.origins, origin)
        self.head = replace(
            self.head, epoch=epoch, lineages=lineages, origins=origins, start_offset=start, end_offset=end
        )

    def _add(
        self, name: str, records: tuple[str, ...], end: int, newest: int, lineage: int | None = None
    ) -> str:
        lineage = lineage or self.head.lineage_epoch
        self.objects[name] = (LogPiece(name, end - len(records), end, newest, lineage, None, (0,)), records)
        return name


@example(
    steps=[("append", 1), ("append", 2), ("back", 0), ("back", 1), ("delete", 0)]
)  # undone, and adopted again
@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "merge", "delete", "restore", "back", "back", "lose"]),
            st.integers(1, 20),
        ),
        max_size=15,
    )
)
def test_the_log_of_any_time_however_often_it_went_back(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for step in steps:
        model.run(*step)
    for at_us, log, start in model.seen:
        view = model.view(at_us)
        records = sum((model.objects[item.name][1] for item in view.pieces), ())
        assert view.end_offset == len(log)
        assert view.start_offset <= start
        assert records == log[view.start_offset :]


# -- topics ----------------------------------------------------------------------------------------


def test_topics_that_were_deleted_or_replaced_since_come_back(history: History) -> None:
    """A deleted one, one whose name another took; one that is newer stays, without its records."""
    for name in ("gone", "replaced"):
        history.store.create_topic(name).append(b"old")
        history.store.topic(name).flush()
    history.ship()
    history.look()
    at_us, expected = history.seen[-1]
    for name in ("gone", "replaced"):
        history.store.delete_topic(name)
    for name in ("replaced", "newer"):
        history.store.create_topic(name).append(b"new")
        history.store.topic(name).flush()
    history.ship()
    history.look()
    history.store.close()
    with history.elsewhere(at_us) as store:
        assert state_of(store) == {**expected, "newer": {0: (0, [])}}
        assert store.topic("gone").append(b"on").offset == 1
        store.topic("gone").flush()
        assert store.tier((history.clock() + HOUR_US) // 1000).failed == ()
        store.sweep()
        with tiered.open(store.context.tiers.locations.cold_url) as bucket:
            assert state_of(bucket) == state_of(store)
            documents = StoreDocuments(bucket.context.tiers.object_store)
            found = [documents.read_topic("replaced", item) for item in documents.topic_ids("replaced")]
            assert sorted("deleted_us" in (topic or {}) for topic in found) == [False, True]
    # To the present, nothing of that happens.
    with history.elsewhere(history.seen[-1][0]) as store:
        assert state_of(store) == history.seen[-1][1]


def test_what_was_adopted_is_swept_by_nobody_and_what_was_left_out_goes(history: History) -> None:
    """Objects that were orphans are live again (promise P6); those of after are orphans from now on."""
    history.append(4)
    history.seal()
    history.look()
    at_us, expected = history.seen[-1]
    history.delete(9)
    history.append()
    history.ship()
    assert history.topic.offsets()[0].start == 5
    history.restore(at_us)
    check(history.store, expected)
    no_grace = TAILS.model_copy(update={"sweep": TAILS.sweep.model_copy(update={"grace": timedelta(0)})})
    path = history.folder / f"store-{history.stores}"
    history.store.close()
    with open_store(path, None, history.clock, settings=no_grace) as store:
        store.sweep()  # notes since when they are orphans
        assert store.sweep().objects > 0
        check(store, expected)


# -- kills, races, refusals ------------------------------------------------------------------------

STRIDES = pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.slow)])


@STRIDES
def test_a_restore_to_a_time_killed_at_any_step_is_finished_by_the_next(
    history: History, stride: int
) -> None:
    """Of the same time; another one is refused in that directory once the first may have changed a head."""
    history.append()
    history.seal()
    history.look()
    at_us, expected = history.seen[-1]
    history.delete(2)
    history.append()
    history.ship()
    history.look()
    newest = history.seen[-1][1]
    history.store.close()
    count = Countdown(-1)
    history.elsewhere(at_us, host=dying_host(history.clock, count)).close()
    steps = -1 - count.left
    assert steps > 60
    marks: set[bool] = set()
    for step in range(0, steps, stride):
        copy, path = history.folder / f"copy-of-{step}", history.folder / f"path-{step}"
        shutil.copytree(history.folder / "bucket", copy)
        options: dict[str, Any] = {"at": at_us // 1000, "settings": TAILS}
        with pytest.raises(Killed):
            tiered.restore(f"file://{copy}", path, host=dying_host(history.clock, Countdown(step)), **options)
        host = Host(clock=history.clock)
        if (path / "restoring.json").exists():
            begun = "lineage" in json.loads((path / "restoring.json").read_text())
            marks.add(begun)
            if begun:
                with pytest.raises(tiered.ConfigError, match="was cut short"):
                    tiered.restore(f"file://{copy}", path, settings=TAILS, host=host)
            else:
                other, elsewhere = history.folder / f"other-{step}", history.folder / f"elsewhere-{step}"
                shutil.copytree(copy, other)
                shutil.copytree(path, elsewhere)
                with tiered.restore(f"file://{other}", elsewhere, settings=TAILS, host=host) as store:
                    check(store, newest)
        if (path / "store.json").exists():
            store = open_store(path, None, history.clock, settings=TAILS)
        else:
            store = tiered.restore(f"file://{copy}", path, host=host, **options)
        with store:
            check(store, expected)
            assert store.topic("t").append(b"next", partition=0).offset == len_of(expected["t"][0])
    assert stride > 1 or marks == {False, True}


def test_a_restore_that_was_cut_short_says_to_which_time_it_was(history: History) -> None:
    """To the microsecond: a duration before now, as the command line takes it, is another time when it is repeated."""
    history.append()
    history.seal()
    history.look()
    history.store.close()
    path, host = history.folder / "path", Host(clock=history.clock)
    at = datetime.fromtimestamp(history.seen[-1][0] / 1e6, UTC) + timedelta(microseconds=7)
    tiered.restore(history.url, path, at=at, settings=TAILS, host=host).close()
    (path / "store.json").rename(path / "restoring.json")
    with pytest.raises(tiered.ConfigError, match="was cut short") as refused:
        tiered.restore(history.url, path, at=at + timedelta(seconds=1), settings=TAILS, host=host)
    (said,) = re.findall(r"restore to (\S+) was", str(refused.value))
    tiered.restore(history.url, path, at=datetime.fromisoformat(said), settings=TAILS, host=host).close()


def len_of(partition: tuple[int, list[bytes]]) -> int:
    return partition[0] + len(partition[1])


@STRIDES
def test_of_two_restores_that_race_the_later_one_wins_in_every_partition(
    history: History, stride: int
) -> None:
    """Whichever step of the first the second overtakes: the first is fenced everywhere, the second nowhere."""
    history.append()
    history.seal()
    history.store.close()
    count = Countdown(-1)
    history.elsewhere(None, host=dying_host(history.clock, count)).close()
    for step in range(0, -1 - count.left, stride):
        copy = history.folder / f"race-{step}"
        shutil.copytree(history.folder / "bucket", copy)
        second: list[tiered.Store] = []

        def overtake(left: list[int] = [step], copy: Path = copy, second: list[Any] = second) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] == -1:
                let_intent_lapse(copy)  # the first stands still for as long
                second.append(history.restored(None, f"file://{copy}"))

        try:
            first = history.restored(None, f"file://{copy}", host=dying_host(history.clock, overtake))  # type: ignore[arg-type]
        except tiered.Fenced:
            first = None
        with second[0] as winner:
            later = first is not None and winner.context.catalog.lineage() < first.context.catalog.lineage()
            loser, winner = (winner, first) if later else (first, winner)
            for partition in range(2):
                if loser is not None:
                    with pytest.raises(tiered.Fenced):
                        loser.topic("t").append(b"lost", partition=partition)
                winner.topic("t").append(b"won", partition=partition)
            winner.topic("t").flush()
            assert winner.tier((history.clock() + HOUR_US) // 1000).failed == ()
            with tiered.open(f"file://{copy}") as bucket:
                assert state_of(bucket) == state_of(winner)
            if first is not None:
                first.close()


def test_times_that_cannot_be_had_are_refused(history: History) -> None:
    """And nothing changes."""
    history.append()
    history.ship()
    before = head_of(history.url)
    day_us = 24 * HOUR_US
    for at, words in (
        (history.clock.now_us // 1000 + 1, "in the future"),
        (history.clock.now_us // 1000 - day_us // 1000 - 1, "sweep.grace = 1d"),
        (datetime(2025, 1, 1), "no time zone"),
        ("yesterday", "aware datetime"),
    ):
        with pytest.raises(tiered.ConfigError, match=words):
            tiered.restore(
                history.url, history.new_path(), at=at, settings=TAILS, host=Host(clock=history.clock)
            )
    assert head_of(history.url) == before


def test_over_s3_and_by_the_time_of_the_oldest_moment(tmp_path: Path, clock: Clock, s3_bucket: str) -> None:
    """Before its first record a log was empty, and begins at its first offset."""
    with open_store(tmp_path / "data", s3_bucket, clock, settings=TAILS) as store:
        topic = store.create_topic("t")
        began_us = clock.now_us
        clock.advance(60)
        topic.append_many([b"a"] * 3)
        topic.flush()
        assert store.tier((clock() + HOUR_US) // 1000).failed == ()
    host = Host(clock=clock)
    clock.advance(60)
    with tiered.restore(s3_bucket, tmp_path / "new", at=began_us // 1000, settings=TAILS, host=host) as store:
        assert state_of(store) == {"t": {0: (0, [])}}
        assert store.topic("t").append(b"b").offset == 0
    # And back: what was left out is still there.
    at = (clock.now_us - 30_000_000) // 1000
    with tiered.restore(s3_bucket, tmp_path / "newer", at=at, settings=TAILS, host=host) as store:
        assert state_of(store) == {"t": {0: (0, [b"a"] * 3)}}
