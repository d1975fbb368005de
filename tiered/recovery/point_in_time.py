"""The log of a partition as it was at an earlier time, from what objects say of themselves; for `restore`.

A bucket keeps no earlier heads. It needs none: the log only grows, so what it was at a time T is told by the objects whose
last record had been appended by T. Those that the head names now are the prefix of its entries. Beyond them, and
before them, the *orphans* tell: tails that a whole segment replaced since, objects that retention or ``delete_before``
removed, those of a log that another restore to a time had cut. The sweep leaves each for its grace, and so::

    now - grace <= T   ⇒   what the head named at T was unnamed, if it was, less than the grace ago   ⇒   it is there,
                           and no sweep, however long it stalled, holds it for due

That is why nothing older than the grace is asked for: an orphan of before may be deleted by a sweep that has
chosen it and stands still between its last look and its DELETE. Within the grace, adopting orphans breaks
no promise of the sweep (P6).

How exact it is. The end: the last object that had been appended to by T, hence by the interval at which tails are
shipped, or by segments where they are not. The start: as the newest object knew it that was sealed by T, so what
``delete_before`` or retention removed in the life of one segment before T may be back; of two, where nothing was
appended to the newest one since. Never what had been removed before the lineage of T began.

Lineages. The log at T is that of the newest lineage that had begun by T. Each has one log, which only grows: what it wrote,
after what it took over from another one. The head says of each when it began, and whose log it took over up to which
offset (`Origin`), so lineages are a tree, and any two of them share one log up to some offset and nothing beyond. What the
head names is of the newest one's log, an orphan of the one's that wrote it: either was part of the log at T as far
as the two logs are the same. It may be that it was undone since, adopted, and undone once more.

The new lineage begins where the log leaves the one that it had last: at the restored end, or
where a lineage begins that is undone. So a disk of any older lineage finds in the bucket exactly what is its own.
That is why the start of a lineage does not tell what it took over. Of heads of early releases it is all that there is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from ..cold.manifest.keys import parse_object_name, topic_key
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.restore_intent import LINEAGE
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..cold.upkeep.inspect import read_facts, rebuild_entry
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound
from ..format.lineages import UNBOUNDED, shared_end
from ..format.manifest import Head, ObjectEntry, Origin
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..policies.rules.append_times import corrected_times

log = logging.getLogger("tiered.restore")

_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class LogPiece:
    """An object that may hold a part of the log as it was.

    Attributes
    ----------
    lineage
        Epoch of the lineage that wrote an orphan; what the head names is of the newest one's log, whoever wrote it.
    entry
        Of an object that the head names; None for an orphan.
    rank
        Which of two objects of one range is the later one.
    """

    name: str
    base_offset: int
    end_offset: int
    last_append_us: int
    lineage: int
    entry: ObjectEntry | None
    rank: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A log as it was, end exclusive.

    Attributes
    ----------
    pieces
        Which hold it, end to end; the first may begin before the start offset.
    lineage
        Epoch of the lineage whose log it was.
    lineage_start
        Where a lineage begins that goes on from this log.
    """

    start_offset: int
    end_offset: int
    lineage: int
    lineage_start: int
    pieces: tuple[LogPiece, ...]


def view_at(
    head: Head, pieces: Sequence[LogPiece], began_us: Mapping[int, int], at_us: int, where: str = ""
) -> View:
    """Return the log at `at_us`, from where the objects that are left reach back to.

    Parameters
    ----------
    head
        As it is now.
    pieces
        Every object that is left, named or not.
    began_us
        When lineages of `head` began, by epoch, as far as known.

    Raises
    ------
    ColdStorageError
        Records of that time are in no object.
    """
    undone = _undone(head, began_us, at_us)
    lineage = max(epoch for epoch, _ in head.lineages if epoch not in undone)
    origin = _origin(head, lineage)
    chain = _longest(
        piece
        for piece in _parts(head, lineage, pieces)
        if piece.last_append_us <= at_us and piece.end_offset > origin.start_offset
    )
    if chain:
        start, end = chain[0].base_offset, chain[-1].end_offset
        known_start = max(head.start_offset, origin.start_offset)
        for low, high in ((known_start, start), (end, origin.end_offset)):
            if low < high:
                raise ColdStorageError(f"offsets {low} to {high} of {where} as they were are in no object")
    else:
        start = min((piece.base_offset for piece in pieces), default=head.start_offset)
        start = end = max(start, origin.end_offset)
    return View(start, end, lineage, min([end, *undone.values()]), chain)


def _parts(head: Head, lineage: int, pieces: Iterable[LogPiece]) -> list[LogPiece]:
    """Return the pieces that are part of the log of `lineage`, of any time."""
    shared = {epoch: shared_end(head, epoch, lineage) for epoch, _ in head.lineages}
    # Of a head of an early release nobody knows what a restore adopted.
    said = {origin.epoch for origin in head.origins}.issuperset(epoch for epoch, _ in head.rewinds)
    shared_now = shared[head.lineage_epoch] if said else UNBOUNDED

    def shared_of(piece: LogPiece) -> int:
        if piece.entry is not None:
            return shared_now
        # A segment that was begun before the first claim names no lineage.
        return shared[max((epoch for epoch in shared if epoch <= piece.lineage), default=min(shared))]

    return [piece for piece in pieces if piece.end_offset <= shared_of(piece)]


def _origin(head: Head, lineage: int) -> Origin:
    """Return where a lineage came from: from nothing, if it is the first or a head of an early release does not say."""
    return next((origin for origin in head.origins if origin.epoch == lineage), Origin(lineage, 0, 0, 0, 0))


def _undone(head: Head, began_us: Mapping[int, int], at_us: int) -> dict[int, int]:
    """Return the lineages that had not begun yet, with their offsets; the first one always had."""
    undone: dict[int, int] = {}
    earliest = 1 << 62  # of this lineage and all later ones
    for epoch, start in reversed(head.lineages[1:]):
        earliest = min(earliest, began_us.get(epoch, earliest))
        if earliest > at_us:
            undone[epoch] = start
    return undone


def _longest(pieces: Iterable[LogPiece]) -> tuple[LogPiece, ...]:
    """Return the chain of pieces, end to end, that reaches farthest, then farthest back.

    Of two, the one with fewer records of orphans: an orphan that would do for what the head names was never
    published, and a sweep may be about to delete it. Then the one with fewer pieces: whatever replaces objects covers
    all of each, so that is the later one.
    """
    best: dict[int, tuple[tuple[int, int, int], tuple[int, ...], LogPiece]] = {}
    for piece in sorted(pieces, key=lambda item: (item.base_offset, item.end_offset)):
        before = best.get(piece.base_offset)
        start, adopted, length = before[0] if before else (piece.base_offset, 0, 0)
        adopted += piece.end_offset - piece.base_offset if piece.entry is None else 0
        cost = start, adopted, length + 1
        known = best.get(piece.end_offset)
        if known is None or (cost, known[1]) < (known[0], piece.rank):
            best[piece.end_offset] = cost, piece.rank, piece
    chain: list[LogPiece] = []
    end = max(best, default=-1)
    while end in best:
        chain.append(best[end][2])
        end = chain[-1].base_offset
    return tuple(reversed(chain))


def rewound(
    cold: PartitionManifest, head: Head, at_us: int, now_us: int, verified: dict[str, ObjectEntry]
) -> Head:
    """Return `head`, whose newest lineage the caller has just begun, with the log as it was at `at_us`.

    Orphans that it needs are read as a whole and verified, since what the manifest said of them is lost. Changes nothing.

    Parameters
    ----------
    verified
        Of orphans that were read before, by name, which no other object has; those that are read now are added.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    *earlier, (epoch, _) = head.lineages
    origins = tuple(origin for origin in head.origins if origin.epoch != epoch)
    before = replace(head, lineages=tuple(earlier), origins=origins)
    named = cold.entries(head)
    orphans = _orphans(cold, before, named, at_us)
    began = _began(cold, before, named, orphans.values())
    # One log; of an orphan nobody knows which one's.
    times = corrected_times(((entry.end_offset, entry.last_append_us) for entry in named), now_us)
    pieces = [_named(entry, times[entry.end_offset, entry.last_append_us]) for entry in named]
    pieces += [_orphan(name, facts) for name, facts in orphans.items()]
    where = cold.where(cold.keys.prefix)
    view = view_at(before, pieces, began, at_us, where)
    origin = _origin(before, view.lineage)
    parts = _parts(before, view.lineage, pieces)
    start = max(view.start_offset, _known_start(cold, view, origin, parts, orphans, at_us))
    start = min(start, view.end_offset)
    chain = [piece for piece in view.pieces if piece.end_offset > start]
    fresh = [piece.name for piece in chain if piece.entry is None and piece.name not in verified]
    began_us = max(now_us, head.committed_us)
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        entries = pool.map(lambda name: rebuild_entry(cold.store, cold.keys.data(name)), fresh)
        verified.update(zip(fresh, entries, strict=True))
    return replace(
        head,
        start_offset=start,
        end_offset=view.end_offset,
        lineages=(*earlier, (epoch, view.lineage_start)),
        rewinds=(*head.rewinds, (epoch, began_us)),
        origins=(*origins, Origin(epoch, began_us, view.lineage, view.end_offset, start)),
        pages=(),
        inline=tuple(piece.entry or verified[piece.name] for piece in chain),
    )


def begins_after(cold: PartitionManifest, head: Head, at_us: int) -> bool:
    """Whether a log has records now and no object of it was complete at `at_us`, so that it would be empty.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    named = cold.entries(head)
    if not named or any(entry.last_append_us <= at_us for entry in named):
        return False
    return all(facts.last_append_us > at_us for facts in _orphans(cold, head, named, at_us).values())


def _orphans(
    cold: PartitionManifest, head: Head, named: Sequence[ObjectEntry], at_us: int
) -> dict[str, SegmentFacts]:
    """Return what the objects say that the head does not name; only the footer of each is read.

    Raises
    ------
    CorruptionError
        One is damaged, and may be needed.
    """
    prefix = cold.keys.data_prefix
    known = {entry.name for entry in named}
    names = [info.key.removeprefix(prefix) for info in cold.store.list(prefix)]
    wanted = [name for name in names if name not in known and parse_object_name(name) is not None]

    def look(name: str) -> SegmentFacts | None:
        try:
            return read_facts(cold.store, prefix + name).facts
        except ObjectNotFound:
            return None  # swept since it was listed, hence long unnamed
        except CorruptionError as error:
            if not _is_replaced(name, head, named, at_us):
                raise
            log.warning("left out, as another object has its records: %s", error)
            return None

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        found = zip(wanted, pool.map(look, wanted), strict=True)
        return {
            name: facts
            for name, facts in found
            if facts is not None and (facts.topic_id, facts.partition) == (cold.topic_id, cold.partition)
        }


def _is_replaced(name: str, head: Head, named: Sequence[ObjectEntry], at_us: int) -> bool:
    """Whether the head names what has all records of an orphan, and had them by then.

    In one lineage the log only grows, and whatever replaces an object covers all of it. Where a lineage began since,
    what it cut off may have reached farther than what is named now.
    """
    parsed = parse_object_name(name)
    assert parsed is not None
    return parsed.epoch >= head.lineage_epoch and any(
        entry.base_offset <= parsed.base_offset < entry.end_offset and entry.last_append_us <= at_us
        for entry in named
    )


def _began(
    cold: PartitionManifest, head: Head, named: Sequence[ObjectEntry], orphans: Iterable[SegmentFacts]
) -> dict[int, int]:
    """Return when lineages began: as the head says, or the first object of each that is left."""
    said = dict(head.rewinds) | {origin.epoch: origin.began_us for origin in head.origins}
    first = [
        next((entry for entry in named if entry.base_offset >= start), None)
        for epoch, start in head.lineages[1:]
        if epoch not in said
    ]
    known = [read_facts(cold.store, cold.keys.data(entry.name)).facts for entry in first if entry is not None]
    began: dict[int, int] = {}
    for facts in (*known, *orphans):
        began[facts.lineage_epoch] = min(facts.created_us, began.get(facts.lineage_epoch, facts.created_us))
    # The better word: an object merged across the border of two lineages was created before the later one began.
    return began | said


def _known_start(
    cold: PartitionManifest,
    view: View,
    origin: Origin,
    parts: Sequence[LogPiece],
    orphans: Mapping[str, SegmentFacts],
    at_us: int,
) -> int:
    """Return the start offset as the newest object of the lineage knew it that was sealed by then, or its origin.

    What was sealed later may have been so after the very deletion that is to be undone. A segment was sealed when the
    next one was created, and that was by then where a part of the log is of it.
    """

    def facts_of(piece: LogPiece) -> SegmentFacts:
        if piece.entry is None:
            return orphans[piece.name]
        return read_facts(cold.store, cold.keys.data(piece.name)).facts

    followers = [piece for piece in parts if piece.base_offset == view.end_offset]
    for piece in reversed(view.pieces):
        if piece.base_offset < origin.end_offset:
            break
        if piece.entry is None or piece.entry.sealed:
            facts = facts_of(piece)
            sealed = any(
                item.segment_id != facts.segment_id and item.created_us <= at_us
                for item in map(facts_of, followers)
            )
            # Of an orphan that is a tail nothing else is known.
            if sealed and (facts.start_offset or piece.entry is not None):
                return facts.start_offset
        followers = [piece]
    return origin.start_offset


def _named(entry: ObjectEntry, last_append_us: int) -> LogPiece:
    return LogPiece(entry.name, entry.base_offset, entry.end_offset, last_append_us, 0, entry, (1,))


def _orphan(name: str, facts: SegmentFacts) -> LogPiece:
    parsed = parse_object_name(name)
    assert parsed is not None
    rank = (0, len(facts.replaces), facts.generation, parsed.epoch)
    return LogPiece(
        name, facts.base_offset, facts.end_offset, facts.last_append_us, facts.lineage_epoch, None, rank
    )


@dataclass(frozen=True, slots=True)
class TopicAt:
    """A topic of a time; `rivals` bear its name now and did not then."""

    meta: TopicMeta
    deleted: bool = False
    rivals: tuple[UUID, ...] = ()


def topics_at(bucket: StoreDocuments, at_us: int) -> Iterator[TopicAt]:
    """Yield the topics as they were, deleted since or not, and those that were created since under free names.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    live = bucket.topics()
    for name in bucket.names():
        found = [bucket.read_topic(name, topic_id) for topic_id in bucket.topic_ids(name)]
        # A topic that was deleted before it reached the bucket has a tombstone and nothing else.
        known = [topic for topic in found if topic is not None and "created_us" in topic]
        where = f"{bucket.store.url}/{name}/topic.json"
        if not all(
            type(topic.get(item, 1)) is int for topic in known for item in ("created_us", DELETED, LINEAGE)
        ):
            raise CorruptionError("a time or a lineage is no number", where=where)
        then = [
            topic for topic in known if topic["created_us"] <= at_us and topic.get(DELETED, at_us + 1) > at_us
        ]
        chosen = max(
            then, key=lambda topic: (topic.get(LINEAGE, 1), topic["created_us"]), default=live.get(name)
        )
        if chosen is not None:
            rivals = [
                UUID(topic["id"]) for topic in known if DELETED not in topic and topic["id"] != chosen["id"]
            ]
            yield TopicAt(TopicMeta.from_json(chosen, where=where), DELETED in chosen, tuple(rivals))


def revive_topic(bucket: StoreDocuments, topic: TopicAt, lineage: int, now_us: int) -> None:
    """Make a deleted topic that of a new lineage, then delete those that took its name.

    In between, the higher lineage is the one that readers see.

    Raises
    ------
    Fenced
        A still newer lineage has it.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    key = topic_key(topic.meta.name, topic.meta.topic_id)

    def change(current: dict[str, Any] | None) -> dict[str, Any]:
        if current is None:
            raise CorruptionError("topic.json vanished", where=f"{bucket.store.url}/{key}")
        bucket.check_lineage(key, current, lineage)
        return {name: value for name, value in current.items() if name != DELETED} | {LINEAGE: lineage}

    if topic.deleted:
        bucket.update(key, change)
    for rival in topic.rivals:
        bucket.tombstone(topic.meta.name, rival, deleted_us=now_us, lineage=lineage)
