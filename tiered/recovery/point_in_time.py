"""The log of a partition at an earlier time, from its objects; for `restore`.

The log only grows, so the log at a time T consists of the objects whose last record had been appended by T: objects that
the head names, and *orphans*, which the sweep keeps for its grace. Therefore T is at most the grace ago. The log at T is
that of the newest lineage that had begun by T; two lineages share one log up to some offset and nothing beyond. The page
docs/design/restore.md has the proof, and says how exact the end and the start of the log are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ..cold.manifest.keys import parse_object_name
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.inspect import read_facts, read_facts_of_entry, rebuild_entry
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound
from ..format.document import COMPACTION_FEATURE
from ..format.lineages import UNBOUNDED, shared_end
from ..format.manifest import Head, ObjectEntry, Origin
from ..format.segment_facts import SegmentFacts
from ..policies.rules.append_times import corrected_times

log = logging.getLogger("tiered.restore")

_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class LogPiece:
    """An object that may hold a part of the log at the time.

    Attributes
    ----------
    lineage
        Epoch of the lineage that wrote an orphan. An object that the head names belongs to the log of the newest lineage.
    entry
        The entry of an object that the head names; None for an orphan.
    rank
        Of two objects with one range, the one with the higher rank is the later one.
    compacted_offset
        The object may lack records that records before this offset supersede.
    compacted_us
        The time of that compaction; 0 if there was none.
    """

    name: str
    base_offset: int
    end_offset: int
    last_append_us: int
    lineage: int
    entry: ObjectEntry | None
    rank: tuple[int, ...]
    compacted_offset: int = 0
    compacted_us: int = 0


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at an earlier time, end exclusive.

    Attributes
    ----------
    pieces
        The objects of the log, end to end; the first may begin before the start offset.
    lineage
        Epoch of the lineage whose log it was.
    lineage_start
        The offset at which a lineage begins that continues this log.
    """

    start_offset: int
    end_offset: int
    lineage: int
    lineage_start: int
    pieces: tuple[LogPiece, ...]


def view_at(
    head: Head,
    pieces: Sequence[LogPiece],
    began_us: Mapping[int, int],
    at_us: int,
    where: str = "",
    *,
    beyond: bool = False,
) -> LogView:
    """Return the log at `at_us`; it begins with the oldest object that still exists.

    Parameters
    ----------
    head
        The present head.
    pieces
        All existing objects, named by the head or not.
    began_us
        The times at which lineages of `head` began, by epoch, as far as known.
    beyond
        Let the log end behind all its records of that time, with the first object that has a later one, if there is one.

    Raises
    ------
    ColdStorageError
        Records of that time are in no object.
    """
    undone = _undone_lineages(head, began_us, at_us)
    lineage = max(epoch for epoch, _ in head.lineages if epoch not in undone)
    origin = _origin(head, lineage)
    parts = [piece for piece in _parts(head, lineage, pieces) if piece.end_offset > origin.start_offset]
    later = {piece.last_append_us for piece in parts if piece.last_append_us > at_us} if beyond else ()
    rewound_us = max((us for _, us in head.rewinds if us <= at_us), default=0)

    def doubt(piece: LogPiece) -> tuple[bool, bool]:
        """Whether a compaction came later; and whether the log may lack it, undone by then or never published."""
        if not piece.compacted_offset:
            return False, False
        return piece.compacted_us > at_us, piece.entry is None or piece.compacted_us < rewound_us

    for end_us in (*sorted(later), at_us):
        chain = _complete_chain([piece for piece in parts if piece.last_append_us <= end_us], doubt, where)
        if chain and chain[-1].last_append_us > at_us:
            break
    if chain:
        start, end = chain[0].base_offset, chain[-1].end_offset
        known_start, known_end = max(head.start_offset, origin.start_offset), origin.end_offset
        if any(
            piece.base_offset == end < piece.end_offset <= known_end
            for piece in parts
            if piece.last_append_us > at_us
        ):
            known_end = end  # the old store published more before that restore claimed this head
        for low, high in ((known_start, start), (end, known_end)):
            if low < high:
                raise ColdStorageError(f"offsets {low} to {high} of {where} as they were are in no object")
    else:
        start = min((piece.base_offset for piece in pieces), default=head.start_offset)
        start = end = max(start, origin.end_offset)
    return LogView(start, end, lineage, min([end, *undone.values()]), chain)


def _parts(head: Head, lineage: int, pieces: Iterable[LogPiece]) -> list[LogPiece]:
    """Return the pieces that were part of the log of `lineage` at any time."""
    shared = {epoch: shared_end(head, epoch, lineage) for epoch, _ in head.lineages}
    # Heads of early releases do not say what a restore adopted.
    complete = {origin.epoch for origin in head.origins}.issuperset(epoch for epoch, _ in head.rewinds)
    shared_now = shared[head.lineage_epoch] if complete else UNBOUNDED

    def shared_of(piece: LogPiece) -> int:
        if piece.entry is not None:
            return shared_now
        # A segment from before the first claim has no lineage.
        return shared[max((epoch for epoch in shared if epoch <= piece.lineage), default=min(shared))]

    return [piece for piece in pieces if piece.end_offset <= shared_of(piece)]


def _origin(head: Head, lineage: int) -> Origin:
    """Return the origin of a lineage; an empty one for the first lineage, and in heads of early releases."""
    return next((origin for origin in head.origins if origin.epoch == lineage), Origin(lineage, 0, 0, 0, 0))


def _undone_lineages(head: Head, began_us: Mapping[int, int], at_us: int) -> dict[int, int]:
    """Return the lineages that had not begun at `at_us`, with their offsets; the first lineage always had."""
    undone: dict[int, int] = {}
    earliest = 1 << 62  # of this lineage and all later ones
    for epoch, start in reversed(head.lineages[1:]):
        earliest = min(earliest, began_us.get(epoch, earliest))
        if earliest > at_us:
            undone[epoch] = start
    return undone


def _complete_chain(
    pieces: Sequence[LogPiece], doubt: Callable[[LogPiece], tuple[bool, bool]], where: str
) -> tuple[LogPiece, ...]:
    """Return the longest chain, without compacted objects that lack records which the log still had at its end.

    A compacted object lacks records that later ones supersede. The original object has them, and stays for the grace of the
    sweep. If the log ends before the later records, only the original will do. Otherwise the original is preferred if there
    is a `doubt` about the compaction; if it is gone, the log still has the latest record of each key.

    Raises
    ------
    ColdStorageError
        An original that is needed is gone.
    """
    chain = _longest_chain(pieces, doubt)
    end = chain[-1].end_offset if chain else 0
    complete = [piece for piece in pieces if piece.compacted_offset <= end]
    if len(complete) == len(pieces):
        return chain
    chain = _longest_chain(complete, doubt)
    reached = chain[-1].end_offset if chain else min(piece.base_offset for piece in pieces)
    if reached < end:
        raise ColdStorageError(f"offsets {reached} to {end} of {where} as they were are in no object")
    return chain


def _longest_chain(
    pieces: Iterable[LogPiece], doubt: Callable[[LogPiece], tuple[bool, bool]]
) -> tuple[LogPiece, ...]:
    """Return the chain of pieces, end to end, with the highest end and then the lowest start.

    Of two such chains, take the one with less of the log in objects that were compacted later, and then in those of which
    there is a `doubt`. Then take the one with fewer records in orphans: an orphan with the records of a named object was never
    published, and a sweep may be about to delete it. Then take the one with fewer pieces: an object that replaces others
    covers all of them, so this chain is the later one.
    """
    best: dict[int, tuple[tuple[int, ...], tuple[int, ...], LogPiece]] = {}
    for piece in sorted(pieces, key=lambda item: (item.base_offset, item.end_offset)):
        before = best.get(piece.base_offset)
        start, later, perhaps, adopted, length = before[0] if before else (piece.base_offset, 0, 0, 0, 0)
        count = piece.end_offset - piece.base_offset
        is_later, may_be = doubt(piece)
        later += count * is_later
        perhaps += count * may_be
        adopted += count if piece.entry is None else 0
        cost = start, later, perhaps, adopted, length + 1
        other = best.get(piece.end_offset)
        if other is None or (cost, other[1]) < (other[0], piece.rank):
            best[piece.end_offset] = cost, piece.rank, piece
    chain: list[LogPiece] = []
    end = max(best, default=-1)
    while end in best:
        chain.append(best[end][2])
        end = chain[-1].base_offset
    return tuple(reversed(chain))


def rewind_head(
    cold: PartitionManifest,
    head: Head,
    at_us: int,
    now_us: int,
    verified: dict[str, ObjectEntry],
    *,
    beyond: bool = False,
) -> Head:
    """Return `head`, whose newest lineage the caller has begun, with the log at `at_us`; change nothing.

    The orphans in that log are read whole and verified, because the manifest has no checksums of them any more.

    Parameters
    ----------
    verified
        The entries of orphans that were verified before, by name; the function adds those that it verifies.
    beyond
        See `view_at`.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    *earlier, (epoch, _) = head.lineages
    origins = tuple(origin for origin in head.origins if origin.epoch != epoch)
    began_us = _origin(head, epoch).began_us
    before = replace(head, lineages=tuple(earlier), origins=origins)
    named = cold.entries(head)
    orphans = _orphans(cold, before, named, at_us)
    began = _lineage_starts(cold, before, named, orphans.values())
    # The named entries are one log. The log of an orphan is unknown here.
    times = corrected_times(((entry.end_offset, entry.last_append_us) for entry in named), now_us)
    compacted = _compactions(cold, head, named)
    pieces = [
        _live_piece(entry, times[entry.end_offset, entry.last_append_us], *compacted.get(entry.name, (0, 0)))
        for entry in named
    ]
    pieces += [_orphan_piece(name, facts) for name, facts in orphans.items()]
    where = cold.where(cold.keys.prefix)
    view = view_at(before, pieces, began, at_us, where, beyond=beyond)
    origin = _origin(before, view.lineage)
    parts = _parts(before, view.lineage, pieces)
    start = max(view.start_offset, _start_at(cold, view, origin, parts, orphans, at_us))
    start = min(start, view.end_offset)
    chain = [piece for piece in view.pieces if piece.end_offset > start]
    fresh = [piece.name for piece in chain if piece.entry is None and piece.name not in verified]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        entries = pool.map(lambda name: rebuild_entry(cold.store, cold.keys.data(name)), fresh)
        verified.update(zip(fresh, entries, strict=True))
    return replace(
        head,
        start_offset=start,
        end_offset=view.end_offset,
        lineages=(*earlier, (epoch, view.lineage_start)),
        rewinds=(*head.rewinds, (epoch, began_us)),
        cuts=(*head.cuts, (epoch, at_us)) if beyond else head.cuts,
        origins=(*origins, Origin(epoch, began_us, view.lineage, view.end_offset, start)),
        pages=(),
        inline=tuple(piece.entry or verified[piece.name] for piece in chain),
        # Orphans may have records that were erased or compacted since.
        erased=(),
        compaction=None,
    )


def begins_after(cold: PartitionManifest, head: Head, at_us: int) -> bool:
    """Whether a log has records now, but none of its objects was complete at `at_us`, so that a restore empties it.

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
    """Return the facts of all orphans, from their footers.

    Raises
    ------
    CorruptionError
        An orphan is damaged, and may be needed.
    """
    prefix = cold.keys.data_prefix
    known = {entry.name for entry in named}
    names = [info.key.removeprefix(prefix) for info in cold.store.list(prefix)]
    wanted = [name for name in names if name not in known and parse_object_name(name) is not None]

    def read(name: str) -> SegmentFacts | None:
        try:
            return read_facts(cold.store, prefix + name).facts
        except ObjectNotFound:
            return None  # swept since the listing, so it was an orphan for longer than the grace
        except CorruptionError as error:
            if not _is_replaced(name, head, named, at_us):
                raise
            log.warning("left out, as another object has its records: %s", error)
            return None

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return {
            name: facts
            for name, facts in zip(wanted, pool.map(read, wanted), strict=True)
            if facts is not None and (facts.topic_id, facts.partition) == (cold.topic_id, cold.partition)
        }


def _is_replaced(name: str, head: Head, named: Sequence[ObjectEntry], at_us: int) -> bool:
    """Whether an object that the head names has all records of an orphan, and had them at `at_us`.

    Within one lineage the log only grows, and an object that replaces another one covers all of it. If a lineage began
    since, the part that it cut off may have had a higher end than the present log. A compacted object lacks records of it.
    """
    parsed = parse_object_name(name)
    assert parsed is not None
    return parsed.epoch >= head.lineage_epoch and any(
        entry.base_offset <= parsed.base_offset < entry.end_offset
        and entry.last_append_us <= at_us
        and (
            COMPACTION_FEATURE not in head.features
            or entry.record_count == entry.end_offset - entry.base_offset
        )
        for entry in named
    )


def _lineage_starts(
    cold: PartitionManifest, head: Head, named: Sequence[ObjectEntry], orphans: Iterable[SegmentFacts]
) -> dict[int, int]:
    """Return the times at which lineages began: from the head, or else from the first existing object of each."""
    stored = dict(head.rewinds) | {origin.epoch: origin.began_us for origin in head.origins}
    first = [
        next((entry for entry in named if entry.base_offset >= start), None)
        for epoch, start in head.lineages[1:]
        if epoch not in stored
    ]
    live = [read_facts(cold.store, cold.keys.data(entry.name)).facts for entry in first if entry is not None]
    began: dict[int, int] = {}
    for facts in (*live, *orphans):
        began[facts.lineage_epoch] = min(facts.created_us, began.get(facts.lineage_epoch, facts.created_us))
    # The head is more exact: an object merged across two lineages was created before the later one began.
    return began | stored


def _start_at(
    cold: PartitionManifest,
    view: LogView,
    origin: Origin,
    parts: Sequence[LogPiece],
    orphans: Mapping[str, SegmentFacts],
    at_us: int,
) -> int:
    """Return the start offset in the newest object of the lineage that was sealed at `at_us`, or that of its origin.

    A segment that was sealed later may have been sealed after the deletion that the restore undoes. A segment was sealed
    when the next one was created, which is known if a part of the log is in the next one.
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
            # An orphan that is a tail has the start offset 0, which says nothing.
            if sealed and (facts.start_offset or piece.entry is not None):
                return facts.start_offset
        followers = [piece]
    return origin.start_offset


def _compactions(
    cold: PartitionManifest, head: Head, named: Sequence[ObjectEntry]
) -> dict[str, tuple[int, int]]:
    """Return up to which offset, and when, the named objects that lack records were compacted, from their footers."""
    if COMPACTION_FEATURE not in head.features:
        return {}
    sparse = [entry for entry in named if entry.record_count < entry.end_offset - entry.base_offset]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        facts = pool.map(
            lambda entry: read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry), sparse
        )
        return {
            entry.name: (
                max(segment.compacted_offset for segment in segments),
                max(segment.compacted_us for segment in segments),
            )
            for entry, segments in zip(sparse, facts, strict=True)
        }


def _live_piece(
    entry: ObjectEntry, last_append_us: int, compacted_offset: int, compacted_us: int
) -> LogPiece:
    return LogPiece(
        entry.name, entry.base_offset, entry.end_offset, last_append_us, 0, entry, (1,),
        compacted_offset, compacted_us,
    )  # fmt: skip


def _orphan_piece(name: str, facts: SegmentFacts) -> LogPiece:
    parsed = parse_object_name(name)
    assert parsed is not None
    rank = (0, len(facts.replaces), facts.generation, parsed.epoch)
    return LogPiece(
        name, facts.base_offset, facts.end_offset, facts.last_append_us, facts.lineage_epoch, None, rank,
        facts.compacted_offset, facts.compacted_us,
    )  # fmt: skip
