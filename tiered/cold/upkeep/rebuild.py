"""Make a lost manifest again from what the objects say of themselves (promise P9).

What is planned is shown before it is published, because the objects do not know everything: records that
retention or ``delete_before`` removed since may reappear, and so may objects that were uploaded and never
published. Where two objects hold the same offsets, the one of the higher epoch wins, then the sealed one, then
the higher generation, then the one in another storage class: so a merged object wins over what it was made of, and a
moved one over what it was copied from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from uuid import UUID, uuid4

from ...errors import ColdStorageError, CorruptionError, ObjectNotFound, PreconditionFailed
from ...format.manifest import Head, ObjectEntry, Origin, PageRef
from ...format.manifest_changes import spill
from ...format.manifest_checks import check_head
from ...format.manifest_codec import encode_head, encode_page
from ...format.segment_facts import SegmentFacts
from ..manifest.commit import FIRST_LINEAGE, Committer
from ..manifest.keys import ObjectName, parse_object_name
from ..manifest.partition_manifest import PartitionManifest
from .inspect import rebuild_object

ASIDE_FOLDER = ".damaged"

# Claims that uploaded nothing left no trace of their epoch: a rebuilt head must lie above all of them.
_EPOCH_LEAP = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    """One object that was found, the epoch in its name, the lineage of its records, and the facts of its segments."""

    epoch: int
    entry: ObjectEntry
    lineage: int = FIRST_LINEAGE
    segments: tuple[SegmentFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A plan for a manifest.

    Attributes
    ----------
    head
        What would be published, but for its pages: every entry is inline.
    left_out
        Objects that it would not name, each with the reason.
    problems
        Why it must not be published; empty where it may.
    """

    head: Head
    left_out: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def choose(
    candidates: Iterable[Candidate], start_offset: int
) -> tuple[list[ObjectEntry], list[tuple[str, str]]]:
    """Choose the objects of a log that begins at `start_offset`; also return the others, with the reason."""
    chosen: list[ObjectEntry] = []
    left_out: list[tuple[str, str]] = []
    ranked = sorted(
        candidates,
        key=lambda item: (
            item.epoch, item.entry.sealed, item.entry.generation, item.entry.end_offset - item.entry.base_offset,
            item.entry.storage_class != "", item.entry.name,
        ),
        reverse=True,
    )  # fmt: skip
    for item in ranked:
        entry = item.entry
        if entry.end_offset <= start_offset:
            left_out.append((entry.name, f"it lies below the start offset {start_offset}"))
            continue
        rival = next(
            (
                other for other in chosen
                if other.base_offset < entry.end_offset and entry.base_offset < other.end_offset
            ),
            None,
        )  # fmt: skip
        if rival is None:
            chosen.append(entry)
        else:
            left_out.append((entry.name, f"{rival.name} holds its offsets"))
    return sorted(chosen, key=lambda entry: entry.base_offset), left_out


def plan_rebuild(
    cold: PartitionManifest,
    *,
    store_id: UUID,
    schemas: Mapping[int, str],
    lineage_epoch: int | None = None,
    start_offset: int | None = None,
    local: tuple[int, int] | None = None,
) -> Rebuilt:
    """Read every object of a partition and plan the manifest that names them; nothing is changed.

    Parameters
    ----------
    schemas
        Of the topic, as its document has them. Those that no object has are left out: the document in the bucket
        hears of a new one when a segment of it is to be uploaded.
    lineage_epoch
        The lineage that the caller's local data belong to; None for the first.
    start_offset
        Where the log begins, where the caller knows; else what the newest object knew when it was sealed.
    local
        From which offset on, and since when, the caller's local data are all of its lineage; None if there are none.
        What is of an older one beyond was undone by a restore.

    Raises
    ------
    ColdStorageError
        The bucket does not say what it has.
    """
    found: list[Candidate] = []
    left_out: list[tuple[str, str]] = []
    unreadable: list[ObjectName] = []
    for info in cold.store.list(cold.keys.data_prefix):
        name = parse_object_name(info.key.removeprefix(cold.keys.data_prefix))
        if name is None:
            continue
        try:
            entry, about = rebuild_object(cold.store, info.key)
            facts = about.facts
            if (facts.topic_id, facts.partition) != (cold.topic_id, cold.partition):
                raise CorruptionError("object of another topic or partition")
            found.append(Candidate(name.epoch, entry, _lineage_of(facts), about.segments))
        except CorruptionError as error:
            left_out.append((str(name), error.reason))
            unreadable.append(name)
    lineage = lineage_epoch or FIRST_LINEAGE
    beyond = local[0] if local is not None else 1 << 63
    undone = {item.entry.name for item in found if item.lineage < lineage and item.entry.end_offset > beyond}
    left_out += [(name, f"lineage {lineage} undid it") for name in sorted(undone)]
    live = [item for item in found if item.entry.name not in undone]
    known_start = start_offset
    if known_start is None:
        known_start = max((facts.start_offset for item in live for facts in item.segments), default=0)
    chosen, others = choose(live, known_start)
    begin = max(known_start, chosen[0].base_offset if chosen else known_start)
    epochs = [item.epoch for item in found]
    newest_schema = max((item.entry.schema_id for item in found), default=-1)
    end = chosen[-1].end_offset if chosen else begin
    lineages, origins = _history(found, lineage, local, begin, end)
    head = Head(
        store_id=store_id,
        topic_id=cold.topic_id,
        partition=cold.partition,
        epoch=max([lineage, *epochs]) + _EPOCH_LEAP,
        lineages=lineages,
        commit_id=uuid4().hex,
        start_offset=begin,
        end_offset=end,
        schemas={key: text for key, text in schemas.items() if key <= newest_schema},
        inline=tuple(chosen),
        rewinds=_rewinds(found, origins),
        origins=origins,
    )
    problems = [
        f"offsets {a.end_offset} to {b.base_offset} are in no object"
        for a, b in pairwise(chosen)
        if a.end_offset != b.base_offset
    ]
    problems += [
        f"{name} cannot be read, and no other object holds what it did; to give it up, move it out of the prefix"
        for name in unreadable
        if not any(
            item.base_offset <= max(name.base_offset, known_start) < item.end_offset for item in chosen
        )
    ]
    problems += _contested(found, chosen, lineage, known_start)
    problems += _going_back(found, chosen)
    problems += _broken_chain(found, chosen)
    problems += [] if problems else check_head(head)
    return Rebuilt(head, (*left_out, *others), tuple(problems))


def _history(
    found: Sequence[Candidate], lineage: int, local: tuple[int, int] | None, begin: int, end: int
) -> tuple[tuple[tuple[int, int], ...], tuple[Origin, ...]]:
    """Return the lineages up to the caller's, and whose log each of them went on from, as far as objects tell.

    A lineage begins with the first segment that it wrote, which a restore makes; `local` is where and when the caller's
    first one does. What an older one wrote after that offset was undone, and is an orphan that no later restore to a
    time may take for the log.
    """
    first: dict[int, tuple[int, int]] = {}
    for facts in (facts for item in found for facts in item.segments):
        epoch = _lineage_of(facts)
        if epoch <= lineage:
            known = first.get(epoch, (facts.base_offset, facts.created_us))
            first[epoch] = min(known[0], facts.base_offset), min(known[1], facts.created_us)
    if local is not None:
        first.setdefault(lineage, local)
    origins = tuple(
        Origin(epoch, first[epoch][1], before, first[epoch][0], 0)
        for before, epoch in pairwise(sorted(first))
    )
    rows = [(epoch, first[epoch][0]) for epoch in sorted(first)] or [(lineage, begin)]
    # One that wrote nothing has no time: then it is as in a head of an early release.
    rows += [(lineage, end)] if rows[-1][0] != lineage else []
    return tuple(rows), origins


def _rewinds(found: Sequence[Candidate], origins: Sequence[Origin]) -> tuple[tuple[int, int], ...]:
    """Return the lineages that an older one has records beyond, with the times: a restore went back by them."""
    return tuple(
        (origin.epoch, origin.began_us)
        for origin in origins
        if any(item.lineage < origin.epoch and item.entry.end_offset > origin.end_offset for item in found)
    )


def _lineage_of(facts: SegmentFacts) -> int:
    # A segment that was begun before the first claim names none.
    return max(facts.lineage_epoch, FIRST_LINEAGE)


def _broken_chain(found: Sequence[Candidate], chosen: Sequence[ObjectEntry]) -> Iterator[str]:
    """Yield what does not follow by its hash: an object that was undone may fill the place of one that is lost."""
    segments = {item.entry.name: item.segments for item in found}
    for left, right in pairwise(chosen):
        named = segments[right.name][0].prev_origin_hash if left.sealed and segments[right.name] else ""
        if named and left.origin_hash and named != left.origin_hash:
            yield f"{right.name} does not follow {left.name}: the one that it did is lost"


def _going_back(found: Sequence[Candidate], chosen: Sequence[ObjectEntry]) -> Iterator[str]:
    """Yield what is of an older lineage than the records before it: a restore undid it, and what followed is lost."""
    lineages = {item.entry.name: item.lineage for item in found}
    for left, right in pairwise(chosen):
        if lineages[right.name] < lineages[left.name]:
            yield (
                f"{right.name} is of lineage {lineages[right.name]}, and follows lineage {lineages[left.name]}, which "
                "had undone it; to give it up, move it out of the prefix"
            )


def _contested(
    found: Sequence[Candidate], chosen: Sequence[ObjectEntry], lineage: int, start_offset: int
) -> Iterator[str]:
    """Yield what is of several lineages: a restore to a time may have undone the newer one, unless it is our own."""
    lineages = {item.entry.name: item.lineage for item in found}
    for other in found:
        for entry in chosen:
            low = max(entry.base_offset, other.entry.base_offset, start_offset)
            high = min(entry.end_offset, other.entry.end_offset)
            if low < high and lineages[entry.name] not in (other.lineage, lineage):
                yield (
                    f"lineages {lineages[entry.name]} and {other.lineage} both have offsets {low} to {high}, "
                    "and which one was undone is not known"
                )


def publish_rebuilt(cold: PartitionManifest, planned: Head, clock: Callable[[], int]) -> str:
    """Publish a planned head in the place of a lost or damaged one; return where the damaged one is kept, or ``""``.

    Raises
    ------
    PreconditionFailed
        A head has appeared since.
    ColdStorageError
        With ``retryable``: whether it was published is unknown; look again.
    """
    head = spill(planned, cold)
    kept, etag = "", None
    try:
        damaged = cold.store.get(cold.keys.head)
    except ObjectNotFound:
        pass
    else:
        try:
            cold.load()
        except CorruptionError:
            kept, etag = set_aside(cold, cold.keys.head, damaged.data), damaged.etag
        else:
            raise PreconditionFailed(f"{cold.where(cold.keys.head)} is there again")
    newest = max((entry.last_append_us for entry in planned.inline), default=0)
    data = encode_head(replace(head, committed_us=max(clock(), newest)))
    try:
        cold.store.put(cold.keys.head, data, if_match=etag, if_none_match=etag is None)
    except ColdStorageError as error:
        if not (error.retryable or isinstance(error, PreconditionFailed)) or not _landed(cold, head):
            raise
    return kept


def _landed(cold: PartitionManifest, head: Head) -> bool:
    """Whether a head was published although the answer says nothing, or that of a repetition says no."""
    try:
        found = cold.load()
    except (ColdStorageError, CorruptionError):
        return False
    ids = (found.head.commit_id, *found.head.previous_commit_ids) if found is not None else ()
    return head.commit_id in ids


def set_aside(cold: PartitionManifest, key: str, data: bytes) -> str:
    """Keep a copy of a damaged object where no reader looks, and return its URL."""
    name = f"{ASIDE_FOLDER}/{uuid4()}-{key.rpartition('/')[2]}"
    cold.store.put(name, data, if_none_match=True)
    return cold.where(name)


def rebuild_page(committer: Committer, ref: PageRef) -> PageRef:
    """Make a damaged or missing page of a sound head again from its objects, and publish it under a new name.

    Raises
    ------
    CorruptionError
        The objects do not give all that the head says of the page.
    Fenced, ColdStorageError
    """
    cold = committer.partition
    found = []
    for info in cold.store.list(cold.keys.data_prefix):
        name = parse_object_name(info.key.removeprefix(cold.keys.data_prefix))
        if name is not None and ref.base_offset <= name.base_offset < ref.end_offset:
            try:
                entry, about = rebuild_object(cold.store, info.key)
            except CorruptionError:
                continue
            # What reaches beyond the page was never on it: a merge that was not published, for one.
            if entry.end_offset <= ref.end_offset:
                found.append(Candidate(name.epoch, entry, _lineage_of(about.facts)))
    loaded = cold.load()
    entries = next(_pages_of(found, ref, loaded.head), None) if loaded is not None else None
    if entries is None:
        raise CorruptionError(
            "the objects do not give the page again", where=cold.where(cold.keys.page(ref.name)),
            offsets=(ref.base_offset, ref.end_offset),
        )  # fmt: skip
    fresh = cold.save_page(entries)

    def change(head: Head) -> Head:
        if ref not in head.pages:
            raise ColdStorageError(f"the manifest does not name page {ref.name} any more")
        return replace(head, pages=tuple(fresh if item == ref else item for item in head.pages))

    committer.commit(change)
    return fresh


def _pages_of(found: Sequence[Candidate], ref: PageRef, head: Head) -> Iterator[tuple[ObjectEntry, ...]]:
    """Yield what a page may have held. Where a restore to a time undid lineages, exactly the same bytes prove it."""
    epochs = [epoch for epoch, _ in head.lineages]
    # What is undone at once are lineages that follow each other; first none.
    runs = [(), *(epochs[i:j] for i, j in combinations(range(len(epochs) + 1), 2))] if head.rewinds else [()]
    for undone in runs:
        entries, _ = choose([item for item in found if item.lineage not in undone], head.start_offset)
        whole = (
            bool(entries)
            and entries[0].base_offset <= max(head.start_offset, ref.base_offset)
            and entries[-1].end_offset == ref.end_offset
            and all(a.end_offset == b.base_offset for a, b in pairwise(entries))
        )
        if whole and (not head.rewinds or encode_page(ref.name, tuple(entries))[0] == ref):
            yield tuple(entries)
