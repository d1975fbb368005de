"""A small pure model of a store: random facts, and what each action does to them."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from uuid import UUID

from hypothesis import strategies as st

from tiered.base.units import Floor
from tiered.policies.actions import (
    Action,
    ChangeClass,
    Compress,
    Cut,
    Demote,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Promote,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from tiered.policies.facts import (
    ColdObjectFact,
    CopyFact,
    ObjectFact,
    PartitionFacts,
    ScrubFact,
    SegmentFact,
    StoreFacts,
)
from tiered.policies.policy import (
    CompressRule,
    CutRule,
    LocalRetention,
    MergeRule,
    OffloadRule,
    Pin,
    Policy,
    PromoteRule,
    Retention,
    Roll,
    ScrubRule,
    StorageClass,
)

SECOND = 1_000_000
NOW = 1_000_000 * SECOND
QUIET = Policy(
    offload=OffloadRule(after="30d", tail_interval="off"),  # type: ignore[arg-type]
    merge=MergeRule(after="off"),  # type: ignore[arg-type]
    scrub=ScrubRule(every="off"),  # type: ignore[arg-type]
    compress=CompressRule(after="off"),  # type: ignore[arg-type]
    local_retention=LocalRetention(age="off", bytes="off", free_disk="off"),  # type: ignore[arg-type]
)
"""Nothing moves soon."""


def segment(number: int, base: int, end: int, **changes: object) -> SegmentFact:
    """A sealed local segment, an hour old, of one KiB a record, unless `changes` say otherwise."""
    fact = SegmentFact(
        topic="t",
        partition=0,
        segment_id=UUID(int=number),
        base_offset=base,
        end_offset=end,
        record_count=end - base,
        local_bytes=(end - base) << 10,
        cold_bytes=0,
        generation=0,
        codec="none",
        sealed=True,
        newest=False,
        in_manifest=False,
        created_us=NOW - 7200 * SECOND,
        last_append_us=NOW - 3600 * SECOND,
        max_timestamp_us=NOW - 3600 * SECOND,
    )
    return replace(fact, **changes)  # type: ignore[arg-type]


def published(number: int, base: int, end: int, **changes: object) -> SegmentFact:
    """A segment that is in the manifest too."""
    return segment(number, base, end, **{"in_manifest": True, "cold_bytes": (end - base) << 8, **changes})


def active(number: int, base: int, end: int, **changes: object) -> SegmentFact:
    """The segment that is appended to."""
    fresh = {"created_us": NOW - SECOND, "last_append_us": NOW, "max_timestamp_us": NOW}
    return segment(number, base, end, **{"sealed": False, "newest": True, **fresh, **changes})


def partition(*segments: SegmentFact, **changes: object) -> PartitionFacts:
    """A partition of these segments, durable to its end, published as far as they say."""
    covered = [item.end_offset for item in segments if item.in_manifest]
    facts = PartitionFacts(
        topic="t",
        partition=0,
        start_offset=min(item.base_offset for item in segments),
        end_offset=max(item.end_offset for item in segments),
        durable_offset=max(item.end_offset for item in segments),
        published_offset=max(covered, default=0),
        segments=segments,
        last_append_us=max(item.last_append_us for item in segments),
        tail_shipped_us=NOW,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def store(*partitions: PartitionFacts, **changes: object) -> StoreFacts:
    """A store with a cold tier."""
    return replace(StoreFacts(partitions, has_cold=True, now_us=NOW), **changes)  # type: ignore[arg-type]


# -- what actions do -----------------------------------------------------------------------------


def apply(facts: StoreFacts, actions: tuple[Action, ...], now_us: int) -> StoreFacts:
    """Return the facts after all `actions` succeeded, in their order."""
    for action in actions:
        parts = []
        for item in facts.partitions:
            mine = (item.topic, item.partition) == (action.topic, action.partition)
            parts.append(_apply_one(item, action, now_us) if mine else item)
        before, after = (sum(_local(item) for item in group) for group in (facts.partitions, parts))
        facts = replace(
            facts,
            partitions=tuple(parts),
            disk_free_bytes=facts.disk_free_bytes + before - after,
            swept_us=now_us if isinstance(action, Sweep) else facts.swept_us,
        )
    return facts


def _local(item: PartitionFacts) -> int:
    return sum(x.local_bytes for x in item.segments) + sum(x.bytes for x in item.copies)


def _apply_one(facts: PartitionFacts, action: Action, now_us: int) -> PartitionFacts:
    rest = tuple(item for item in facts.segments if item.segment_id != action.segment_id)
    found = [item for item in facts.segments if item.segment_id == action.segment_id]
    match action:
        case Seal():
            (old,) = found
            fresh = active(
                old.segment_id.int + 1000, old.end_offset, old.end_offset, topic=old.topic,
                partition=old.partition, local_bytes=0, created_us=now_us, last_append_us=now_us,
            )  # fmt: skip
            return replace(facts, segments=(*rest, replace(old, sealed=True, newest=False), fresh))
        case Expire():
            end = action.end_offset
            return replace(
                facts,
                start_offset=end,
                published_offset=max(facts.published_offset, end),
                published_start_offset=_begun(facts, action.begins_manifest, end),
                segments=tuple(item for item in facts.segments if item.end_offset > end or item.newest),
                cold_objects=tuple(item for item in facts.cold_objects if item.end_offset > end),
                objects=tuple(item for item in facts.objects if item.end_offset > end),
            )
        case Offload():
            (old,) = found
            return replace(
                facts,
                published_offset=max(facts.published_offset, old.end_offset),
                published_start_offset=_begun(facts, True, facts.start_offset),
                segments=(*rest, replace(old, in_manifest=True, cold_bytes=old.local_bytes // 4)),
                cold_objects=tuple(x for x in facts.cold_objects if old.segment_id not in x.segment_ids),
                objects=_spliced(facts, object_fact(old.base_offset, old.end_offset, old)),
            )
        case ShipTail():
            (old,) = found
            tail = ColdObjectFact(
                f"tail-{action.base_offset}", (old.segment_id,), action.base_offset, action.end_offset,
                action.bytes // 4, old.last_append_us, old.max_timestamp_us, tail=True,
            )  # fmt: skip
            return replace(
                facts,
                published_offset=action.end_offset,
                published_start_offset=_begun(facts, True, facts.start_offset),
                tail_shipped_us=now_us,
                cold_objects=(*facts.cold_objects, tail),
                objects=_spliced(
                    facts, object_fact(action.base_offset, action.end_offset, old, sealed=False)
                ),
            )
        case EvictLocal():
            (old,) = found
            name = next((x.name for x in facts.objects if x.end_offset > old.base_offset), "data")
            cold = ColdObjectFact(
                name, (old.segment_id,), old.base_offset, old.end_offset,
                old.cold_bytes, old.last_append_us, old.max_timestamp_us,
            )  # fmt: skip
            return replace(facts, segments=rest, cold_objects=(*facts.cold_objects, cold))
        case Compress():
            (old,) = found
            smaller = replace(
                old, codec=action.codec, generation=old.generation + 1, local_bytes=old.local_bytes // 2
            )
            return replace(facts, segments=(*rest, smaller))
        case Merge():
            inputs = [item for item in facts.objects if item.name in action.names]
            assert tuple(item.name for item in inputs) == action.names
            merged = replace(
                inputs[-1],
                name=f"merged-{'+'.join(action.names)}",
                base_offset=inputs[0].base_offset,
                # A little smaller than its parts, as each has a footer.
                bytes=sum(item.bytes for item in inputs) * 9 // 10,
                last_append_us=max(item.last_append_us for item in inputs),
                max_timestamp_us=max(item.max_timestamp_us for item in inputs),
                segment_count=sum(item.segment_count for item in inputs),
            )
            return replace(facts, objects=_spliced(facts, merged))
        case Cut():
            (whole,) = (item for item in facts.objects if item.name in action.names)
            assert whole.base_offset < action.base_offset < whole.end_offset == action.end_offset
            part = replace(
                whole, name=f"{whole.name}-cut", base_offset=action.base_offset, bytes=action.bytes
            )
            return replace(facts, objects=_spliced(facts, part))
        case ChangeClass():
            (moved,) = (item for item in facts.objects if item.name == action.name)
            fresh = replace(moved, name=f"{action.name}'", storage_class=action.storage_class)
            return replace(facts, objects=_spliced(facts, fresh))
        case Promote():
            copy = CopyFact(action.name, action.bytes, now_us)
            return replace(facts, copies=(*facts.copies, copy))
        case Demote():
            return replace(
                facts,
                copies=tuple(item for item in facts.copies if item.name != action.name),
                objects=tuple(
                    replace(item, fetches=0) if item.name == action.name else item for item in facts.objects
                ),
            )
        case Scrub():
            begun = facts.scrub is not None and facts.scrub.round == action.round
            started = facts.scrub.started_us if begun and facts.scrub else now_us
            over = now_us if action.completes else 0
            reached = 0 if action.completes else action.end_offset
            return replace(facts, scrub=ScrubFact(action.round, started, over, reached))
    raise AssertionError(action)


def _begun(facts: PartitionFacts, begins: bool, start_offset: int) -> int | None:
    """Return where the manifest begins, once an action moved it up or began it."""
    known = facts.published_start_offset
    if known is None:
        return start_offset if begins else None
    return max(known, start_offset)


def object_fact(base: int, end: int, of: SegmentFact, **changes: object) -> ObjectFact:
    """The object of a segment, or of a piece of one."""
    values: dict[str, object] = {
        "name": f"{of.segment_id.int}-{base}-{end}",
        "bytes": (end - base) << 8,
        "last_append_us": of.last_append_us,
        "max_timestamp_us": of.max_timestamp_us,
    }
    return ObjectFact(base_offset=base, end_offset=end, **{**values, **changes})  # type: ignore[arg-type]


def _spliced(facts: PartitionFacts, fresh: ObjectFact) -> tuple[ObjectFact, ...]:
    rest = [
        item
        for item in facts.objects
        if item.end_offset <= fresh.base_offset or item.base_offset >= fresh.end_offset
    ]
    return tuple(sorted([*rest, fresh], key=lambda item: item.base_offset))


# -- random facts and policies -------------------------------------------------------------------

_AGES = st.integers(0, 200).map(lambda hours: timedelta(hours=hours))
_LATER = st.integers(1, 200).map(lambda hours: timedelta(hours=hours))
_SIZES = st.integers(1, 400).map(lambda kib: kib << 10)


def _maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


policies = st.builds(
    Policy,
    roll=st.builds(Roll, age=_maybe(_LATER), bytes=_maybe(_SIZES)),
    compress=st.builds(
        CompressRule, codec=st.sampled_from(["none", "lz4", "zstd"]), after=_maybe(_AGES),
        min_bytes=st.sampled_from([0, 20 << 10]),
    ),
    offload=st.builds(OffloadRule, after=_maybe(_AGES), tail_interval=_maybe(_AGES), bytes=_maybe(_SIZES)),
    local_retention=st.builds(
        LocalRetention, age=_maybe(_AGES), bytes=_maybe(_SIZES),
        free_disk=st.sampled_from([None, Floor(percent=Fraction(5)), Floor(bytes=150 << 10)]),
    ),
    retention=st.builds(
        Retention, age=_maybe(_LATER), bytes=_maybe(_SIZES), by=st.sampled_from(["append", "timestamp"])
    ),
    merge=st.builds(MergeRule, target_bytes=_maybe(_SIZES), after=_maybe(_AGES)),
    cut=st.builds(CutRule, deleted=st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])),
    scrub=st.builds(ScrubRule, every=_maybe(_LATER), bytes_per_pass=_SIZES),
    storage_class=st.builds(StorageClass, after=_maybe(_LATER)),
    promote=st.builds(PromoteRule, reads=_maybe(st.integers(1, 3)), within=_LATER, keep=_LATER, bytes=_SIZES),
    pin=st.builds(
        Pin, age=_maybe(_LATER), topic=st.sampled_from([False] * 4 + [True]),
        since=_maybe(_LATER.map(lambda ago: datetime.fromtimestamp(NOW / SECOND, UTC) - ago)),
    ),
)  # fmt: skip


@st.composite
def partitions(draw: st.DrawFn, number: int = 0) -> PartitionFacts:
    """A partition as a real store would show it: evicted, published, sealed and active parts in order."""
    counts = draw(st.lists(st.integers(1, 100), min_size=1, max_size=8))
    evicted = draw(st.integers(0, len(counts) - 1))
    in_manifest = draw(st.integers(evicted, len(counts) - 1))
    age = draw(st.integers(0, 100))
    objects, segments, offset = [], [], 0
    ages = []
    for _ in counts:
        ages.append(age)
        age += draw(st.integers(0, 60))
    ages.reverse()
    for index, count in enumerate(counts):
        end, last = offset + count, NOW - ages[index] * 3600 * SECOND
        stamp = last - draw(st.integers(-5, 500)) * 3600 * SECOND
        times = {"created_us": last - 1800 * SECOND, "last_append_us": last, "max_timestamp_us": stamp}
        identity = number * 10_000 + index
        if index < evicted:
            objects.append(
                ColdObjectFact(
                    f"e{number}-{index}", (UUID(int=identity),), offset, end, count << 8, last, stamp
                )
            )
        else:
            newest = index == len(counts) - 1
            state = {
                "partition": number,
                "newest": newest,
                "sealed": not newest or draw(st.booleans()),
                "codec": draw(st.sampled_from(["none", "lz4", "zstd"])),
                "generation": draw(st.integers(0, 1)),
                "block_count": count,
                "raw_bytes": count << draw(st.integers(10, 20)),
                **times,
            }
            make = published if index < in_manifest else segment
            segments.append(make(identity, offset, end, **state))
        offset = end
    # One draw for all of them: a draw for each takes longer than the tests.
    chance = random.Random(draw(st.integers(0, 1 << 20)))
    entries = [
        ObjectFact(
            f"e{number}-{index}", item.base_offset, item.end_offset, counts[index] << chance.randint(6, 12),
            item.last_append_us, item.max_timestamp_us, chance.choice([1, 1, 100]), chance.choice([0] * 5 + [1]),
            1 + (index > chance.randint(0, 20)), damaged=chance.random() < 0.1,
            storage_class=chance.choice(["", "", "STANDARD_IA"]), min_timestamp_us=item.max_timestamp_us - SECOND,
            fetches=chance.randint(0, 3), fetched_us=NOW - chance.randint(0, 200) * 3600 * SECOND,
        )
        for index, item in enumerate([*objects, *segments][:in_manifest])
    ]  # fmt: skip
    reached = sum(counts[:in_manifest])
    shipped = draw(st.integers(0, counts[in_manifest]))
    if shipped:
        tail = UUID(int=number * 10_000 + in_manifest)
        objects.append(
            ColdObjectFact(f"tail{number}", (tail,), reached, reached + shipped, 99, NOW, NOW, tail=True)
        )
        entries.append(ObjectFact(f"tail{number}", reached, reached + shipped, 99, NOW, NOW, sealed=False))
    copies = tuple(
        CopyFact(item.name, item.bytes, NOW - chance.randint(0, 200) * 3600 * SECOND)
        for item in [*entries, ObjectFact(f"gone{number}", 0, 1, 50 << 10, 0, 0)]
        if chance.random() < 0.2 and item.sealed
    )
    start_offset = draw(st.sampled_from([0, 0, draw(st.integers(0, offset))]))
    has_manifest = bool(reached + shipped) or draw(st.booleans())
    return PartitionFacts(
        copies=copies,
        topic="t",
        partition=number,
        start_offset=start_offset,
        published_start_offset=draw(st.sampled_from([0, start_offset])) if has_manifest else None,
        end_offset=offset,
        durable_offset=draw(st.integers(offset - counts[-1], offset)),
        published_offset=reached + shipped,
        segments=tuple(segments),
        cold_objects=tuple(objects),
        last_append_us=NOW - ages[-1] * 3600 * SECOND,
        tail_shipped_us=NOW - draw(st.integers(0, 100)) * 3600 * SECOND,
        objects=tuple(entries),
        scrub=draw(st.none() | _scrubs),
    )


_scrubs = st.builds(
    ScrubFact,
    round=st.integers(1, 9),
    started_us=st.integers(0, 300).map(lambda hours: NOW - hours * 3600 * SECOND),
    finished_us=st.sampled_from([0, NOW]),
    next_offset=st.integers(0, 900),
)


@st.composite
def stores(draw: st.DrawFn) -> StoreFacts:
    """A store of up to three partitions, with and without a cold tier, on a disk that may be full."""
    count = draw(st.integers(1, 3))
    return StoreFacts(
        partitions=tuple(draw(partitions(number)) for number in range(count)),
        disk_free_bytes=draw(st.integers(0, 200 << 10)),
        disk_total_bytes=draw(st.sampled_from([0, 2 << 20])),
        has_cold=draw(st.booleans()),
        now_us=NOW,
        swept_us=draw(st.sampled_from([None, 0, NOW, 2 * NOW])),
        has_classes=draw(st.booleans()),
    )
