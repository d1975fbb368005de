"""Each invariant holds for a sound partition and fails for each way to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.verified_store import Place
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.upkeep.rebuild import Candidate, choose
from tiered.format.manifest import ObjectEntry
from tiered.verify import invariants
from tiered.verify.findings import Findings
from tiered.verify.invariants import INVARIANTS, Evidence, check_partition
from tiered.verify.partitions import VerifiedTiers, check_partition_tiers
from tiered.warm.catalog import Catalog
from tiered.warm.filesystem import OsFileSystem


@pytest.fixture(scope="module")
def facts(sound: Place) -> Evidence:
    catalog = Catalog(OsFileSystem(), sound.data)
    tiers = VerifiedTiers(
        sound.data, open_object_store(f"file://{sound.bucket}"), catalog.open_store(create=False)
    )
    meta = catalog.read_topic("orders")
    return check_partition_tiers(tiers, meta, 0, sound.partition(), deep=False, findings=Findings())


def test_every_invariant_holds_for_a_sound_partition(facts: Evidence) -> None:
    assert check_partition(facts) == []
    assert facts.segments is not None
    assert facts.entries is not None
    assert (len(facts.segments), len(facts.entries)) == (5, 6)


def segment(facts: Evidence, place: int, **changes: object) -> Evidence:
    """Facts with one segment's look changed; ``header`` and ``about`` take changes of what they hold."""
    segments = list(facts.segments or ())
    look = segments[place]
    if "header" in changes and isinstance(changes["header"], dict):
        assert look.header is not None
        changes["header"] = replace(look.header, **changes["header"])
    if "about" in changes:
        assert look.footer is not None
        changes["footer"] = replace(look.footer, facts=look.footer.facts.evolve(**changes.pop("about")))  # type: ignore[arg-type]
    segments[place] = replace(look, **changes)  # type: ignore[arg-type]
    return replace(facts, segments=tuple(segments))


def entry(facts: Evidence, place: int, **changes: object) -> Evidence:
    entries = list(facts.entries or ())
    entries[place] = replace(entries[place], **changes)  # type: ignore[arg-type]
    return replace(facts, entries=tuple(entries))


def without(facts: Evidence, place: int) -> Evidence:
    segments = list(facts.segments or ())
    del segments[place]
    return replace(facts, segments=tuple(segments))


def head(facts: Evidence, **changes: object) -> Evidence:
    assert facts.head is not None
    return replace(facts, head=replace(facts.head, **changes))  # type: ignore[arg-type]


BROKEN: list[tuple[str, Callable[[Evidence], Evidence]]] = [
    ("offsets_are_contiguous", lambda f: without(f, 2)),
    ("offsets_are_contiguous", lambda f: replace(f, entries=(f.entries or ())[1:])),
    ("offsets_are_contiguous", lambda f: segment(f, 2, end_offset=90)),
    ("chain_is_unbroken", lambda f: segment(f, 3, header={"prev_origin_hash": "00" * 16})),
    ("footers_match_blocks", lambda f: segment(f, 2, content_hash="00" * 16)),
    ("footers_match_blocks", lambda f: segment(f, 2, about={"max_timestamp_us": 7})),
    ("footers_match_blocks", lambda f: segment(f, 2, blocks=(f.segments or ())[3].blocks)),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, header={"partition": 1})),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, header={"topic_id": uuid4()})),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, header={"store_id": uuid4()})),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, header={"schema_id": 3})),
    (
        "segments_are_of_this_partition",
        lambda f: segment(f, 1, header={"schema": pa.schema([("x", pa.int8())])}),
    ),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, about={"topic_id": uuid4()})),
    ("segments_are_of_this_partition", lambda f: segment(f, 1, about={"generation": 9})),
    ("only_the_newest_is_open", lambda f: replace(f, segments=())),
    ("only_the_newest_is_open", lambda f: replace(f, earlier_end=200)),
    ("start_is_within", lambda f: replace(f, start_offset=500)),
    ("start_is_within", lambda f: replace(f, start_offset=0)),
    ("epochs_are_monotone", lambda f: segment(f, 0, header={"writer_epoch": 99})),
    ("epochs_are_monotone", lambda f: segment(f, 0, header={"lineage_epoch": 99})),
    ("epochs_are_monotone", lambda f: replace(f, lineage=77)),
    ("head_is_whole", lambda f: head(f, store_id=uuid4())),
    ("head_is_whole", lambda f: head(f, partition=1)),
    ("head_is_whole", lambda f: head(f, schemas={0: "x"})),
    ("head_is_whole", lambda f: entry(f, 2, base_offset=25)),
    ("head_is_whole", lambda f: entry(f, 2, schema_id=4)),
    ("no_live_object_is_missing", lambda f: replace(f, sizes={})),
    (
        "no_live_object_is_missing",
        lambda f: replace(f, sizes={**(f.sizes or {}), (f.entries or ())[3].name: 1}),
    ),
    ("disk_and_bucket_agree", lambda f: entry(f, 4, segment_ids=(uuid4(),))),
    ("disk_and_bucket_agree", lambda f: entry(f, 5, origin_hash="00" * 16)),
    ("disk_and_bucket_agree", lambda f: entry(f, 5, generation=1, content_hash="00" * 16)),
    ("disk_and_bucket_agree", lambda f: entry(f, 5, end_offset=71)),
]


@pytest.mark.parametrize(
    ("name", "broken"), BROKEN, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BROKEN)]
)
def test_an_invariant_finds_each_way_to_break_it(
    facts: Evidence, name: str, broken: Callable[[Evidence], Evidence]
) -> None:
    problems = list(getattr(invariants, name)(broken(facts)))
    assert problems
    for problem in problems:
        assert problem.reason
        assert problem.where


def test_every_invariant_is_tried() -> None:
    assert {item.__name__ for item in INVARIANTS} == {name for name, _ in BROKEN}


def test_what_is_not_known_is_not_judged(facts: Evidence) -> None:
    """Without the bucket's word nothing that it may have is called lost (promise P10)."""
    blind = replace(facts, head=None, entries=None, sizes=None, earlier_end=None)
    assert check_partition(blind) == []
    assert check_partition(without(blind, 2)) == []
    assert check_partition(replace(blind, start_offset=None, segments=None)) == []


def candidate(epoch: int, base: int, end: int, *, sealed: bool = True, generation: int = 0) -> Candidate:
    name = f"{epoch}-{base}-{end}-{sealed}-{generation}"
    entry = ObjectEntry(
        name, base, end, end - base, 0, 0, 0, (UUID(int=base),), generation, sealed, 10, 0, 5, 0
    )
    return Candidate(epoch, entry)


@pytest.mark.parametrize(
    ("found", "start", "chosen"),
    [
        ([(1, 0, 10), (1, 10, 20)], 0, [(0, 10), (10, 20)]),
        ([(1, 0, 10), (2, 0, 12)], 0, [(0, 12)]),
        ([(1, 0, 10), (1, 10, 20)], 10, [(10, 20)]),
        ([(1, 0, 10), (1, 5, 9, False), (1, 9, 10, False)], 0, [(0, 10)]),
        ([(5, 0, 15), (5, 0, 10, False), (7, 10, 20)], 0, [(0, 10), (10, 20)]),
    ],
    ids=["all", "higher epoch", "below the start", "tails of a sealed one", "a fenced tierer's late upload"],
)
def test_a_rebuild_chooses_the_highest_epoch(
    found: list[tuple[int, ...]], start: int, chosen: list[tuple[int, int]]
) -> None:
    candidates = [candidate(item[0], item[1], item[2], sealed=len(item) < 4) for item in found]
    entries, left_out = choose(candidates, start)
    assert [(item.base_offset, item.end_offset) for item in entries] == chosen
    assert len(entries) + len(left_out) == len(found)


def test_a_rebuild_prefers_the_higher_generation() -> None:
    entries, _ = choose(
        [candidate(1, 0, 10), candidate(1, 0, 10, generation=2), candidate(1, 0, 10, generation=1)], 0
    )
    assert [item.generation for item in entries] == [2]


def test_the_facade_has_the_report(sound: Place) -> None:
    with tiered.open(sound.data, read_only=True) as store:
        assert isinstance(store.verify(), tiered.VerifyReport)
