"""The rebuild of a lost manifest from the facts in its objects (promise P9).

The plan is shown before it is published, because the objects do not know everything: records that retention or
``delete_before`` removed may reappear, and so may objects that were uploaded and never published.

If two objects hold the same offsets, the higher epoch wins, then the sealed object, then the higher generation, then the
longer range, then the object in another storage class. So a rewritten object wins over its sources, and a moved one over its
original. The exception is a cut, or a merge of one, above the start offset: a restore to an earlier time has undone the
deletion, so the sources win.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from uuid import UUID, uuid4

from ...errors import ColdStorageError, CorruptionError, ObjectNotFound, PreconditionFailed
from ...format.document import COMPACTION_FEATURE, ERASURES_FEATURE
from ...format.manifest import Head, ObjectEntry, Origin, PageRef
from ...format.manifest_changes import spill, unmarked
from ...format.manifest_checks import check_head
from ...format.manifest_codec import encode_head, encode_page
from ...format.segment_facts import SegmentFacts
from ..manifest.commit import FIRST_LINEAGE, Committer
from ..manifest.keys import ObjectName, parse_object_name
from ..manifest.partition_manifest import PartitionManifest
from .inspect import rebuild_object

DAMAGED_FOLDER = ".damaged"

# Claims that uploaded nothing left no trace of their epochs, and a rebuilt head must have a higher one.
_EPOCH_LEAP = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A readable object: the epoch in its name, the lineage of its records, and the facts of its segments."""

    epoch: int
    entry: ObjectEntry
    lineage: int = FIRST_LINEAGE
    segments: tuple[SegmentFacts, ...] = ()

    @property
    def compacted_offset(self) -> int:
        """The object may lack records that records before this offset supersede."""
        return max((facts.compacted_offset for facts in self.segments), default=0)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The plan of a rebuilt manifest.

    Attributes
    ----------
    head
        The head to publish, with every entry inline instead of on pages.
    left_out
        Objects that it would not name, each with the reason.
    problems
        Why it must not be published; empty if it may be.
    """

    head: Head
    left_out: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def choose(
    candidates: Iterable[Candidate], start_offset: int
) -> tuple[list[ObjectEntry], list[tuple[str, str]]]:
    """Choose the objects of a log that begins at `start_offset`; also return the others, with the reason."""
    left_out: list[tuple[str, str]] = []
    candidates = tuple(candidates)
    sources: dict[UUID, list[ObjectEntry]] = defaultdict(list)
    for entry in (candidate.entry for candidate in candidates):
        if entry.sealed:
            sources[entry.segment_ids[0]].append(entry)
    ranked = sorted(
        candidates,
        key=lambda candidate: (
            candidate.epoch,
            candidate.entry.sealed,
            candidate.entry.generation,
            candidate.entry.end_offset - candidate.entry.base_offset,
            candidate.entry.storage_class != "",
            candidate.entry.name,
        ),
        reverse=True,
    )
    chosen: list[ObjectEntry] = []  # by offset; no two of them overlap
    for entry in (candidate.entry for candidate in ranked):
        if entry.end_offset <= start_offset:
            left_out.append((entry.name, f"it lies below the start offset {start_offset}"))
            continue
        source = _cut_source(entry, sources) if start_offset < entry.base_offset else None
        if source is not None:
            left_out.append((entry.name, f"{source.name} also has the records before it"))
            continue
        index = bisect_left(chosen, entry.end_offset, key=lambda other: other.base_offset)
        if index and chosen[index - 1].end_offset > entry.base_offset:
            left_out.append((entry.name, f"{chosen[index - 1].name} holds its offsets"))
        else:
            chosen.insert(index, entry)
    return chosen, left_out


def _cut_source(entry: ObjectEntry, sources: Mapping[UUID, Sequence[ObjectEntry]]) -> ObjectEntry | None:
    """Return an object of whose records a rewrite, such as a cut or a merge of it, has only the last ones.

    Parameters
    ----------
    sources
        The sealed objects, by their last segment.
    """
    if not entry.sealed:
        return None
    others = (other for segment_id in entry.segment_ids for other in sources.get(segment_id, ()))
    return next(
        (
            other for other in others
            if other.base_offset < entry.base_offset < other.end_offset <= entry.end_offset
            and other.generation < entry.generation
        ),
        None,
    )  # fmt: skip


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
        The schemas in the topic's document. Schemas that no object uses are left out: the document in the bucket gets
        a new schema before the first segment with it is uploaded.
    lineage_epoch
        The lineage of the caller's local data; None for the first.
    start_offset
        Where the log begins, if the caller knows; otherwise the newest start offset in the objects' facts.
    local
        The offset and the time from which all of the caller's local data are of its lineage; None if there are none.
        A restore undid all records of an older lineage beyond that offset.

    Raises
    ------
    ColdStorageError
        The objects cannot be listed or read.
    """
    candidates, unreadable = _read_candidates(cold)
    left_out = [(str(name), reason) for name, reason in unreadable]
    lineage = lineage_epoch or FIRST_LINEAGE
    beyond = local[0] if local is not None else 1 << 63
    undone = {
        candidate.entry.name
        for candidate in candidates
        if candidate.lineage < lineage and candidate.entry.end_offset > beyond
    }
    left_out += [(name, f"lineage {lineage} undid it") for name in sorted(undone)]
    live = [candidate for candidate in candidates if candidate.entry.name not in undone]
    log_start = start_offset
    if log_start is None:
        log_start = max((facts.start_offset for candidate in live for facts in candidate.segments), default=0)
    chosen, others = choose(live, log_start)
    ahead = [item for item in live if chosen and item.compacted_offset > chosen[-1].end_offset]
    if ahead:
        # What supersedes their records is lost, so the objects that they were made from have the latest ones.
        left_out += [(item.entry.name, "records that replace some of its own are lost") for item in ahead]
        chosen, others = choose([item for item in live if item not in ahead], log_start)
    begin = max(log_start, chosen[0].base_offset if chosen else log_start)
    epochs = [candidate.epoch for candidate in candidates]
    newest_schema = max((candidate.entry.schema_id for candidate in candidates), default=-1)
    end = chosen[-1].end_offset if chosen else begin
    lineages, origins = _history(candidates, lineage, local, begin, end)
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
        rewinds=_rewinds(candidates, origins),
        origins=origins,
        features=_features(candidates, chosen),
    )
    problems = _missing_offsets(chosen, [name for name, _ in unreadable], log_start)
    problems += _contested_offsets(candidates, chosen, lineage, log_start)
    problems += _older_lineages(candidates, chosen)
    problems += _broken_chain(candidates, chosen)
    problems += [] if problems else check_head(head)
    return Rebuilt(head, (*left_out, *others), tuple(problems))


def _read_candidates(cold: PartitionManifest) -> tuple[list[Candidate], list[tuple[ObjectName, str]]]:
    """Read every object of a partition; return the candidates, and the unreadable objects with the reason."""
    candidates: list[Candidate] = []
    unreadable: list[tuple[ObjectName, str]] = []
    for info in cold.store.list(cold.keys.data_prefix):
        name = parse_object_name(info.key.removeprefix(cold.keys.data_prefix))
        if name is None:
            continue
        try:
            entry, about = rebuild_object(cold.store, info.key)
            facts = about.facts
            if (facts.topic_id, facts.partition) != (cold.topic_id, cold.partition):
                raise CorruptionError("object of another topic or partition")
            candidates.append(Candidate(name.epoch, entry, _lineage_of(facts), about.segments))
        except CorruptionError as error:
            unreadable.append((name, error.reason))
    return candidates, unreadable


def _missing_offsets(
    chosen: Sequence[ObjectEntry], unreadable: Sequence[ObjectName], log_start: int
) -> list[str]:
    """Return the gaps between the chosen objects, and the unreadable objects whose records no chosen object has."""
    gaps = [
        f"offsets {a.end_offset} to {b.base_offset} are in no object"
        for a, b in pairwise(chosen)
        if a.end_offset != b.base_offset
    ]
    lost = [
        f"{name} cannot be read, and no other object holds what it did; to give it up, move it out of the prefix"
        for name in unreadable
        if not any(
            entry.base_offset <= max(name.base_offset, log_start) < entry.end_offset for entry in chosen
        )
    ]
    return gaps + lost


def _history(
    candidates: Sequence[Candidate], lineage: int, local: tuple[int, int] | None, begin: int, end: int
) -> tuple[tuple[tuple[int, int], ...], tuple[Origin, ...]]:
    """Return the lineages up to the caller's, and their origins, as far as the objects show them.

    A lineage begins with its first segment, which a restore makes; `local` is the offset and time of the caller's first
    segment. Records that an older lineage wrote beyond that offset were undone. They are orphans, and no later restore to a
    time may take them for the log.
    """
    first: dict[int, tuple[int, int]] = {}
    for facts in (facts for candidate in candidates for facts in candidate.segments):
        epoch = _lineage_of(facts)
        if epoch <= lineage:
            offset, time_us = first.get(epoch, (facts.base_offset, facts.created_us))
            first[epoch] = min(offset, facts.base_offset), min(time_us, facts.created_us)
    if local is not None:
        first.setdefault(lineage, local)
    origins = tuple(
        Origin(epoch, first[epoch][1], before, first[epoch][0], 0)
        for before, epoch in pairwise(sorted(first))
    )
    rows = [(epoch, first[epoch][0]) for epoch in sorted(first)] or [(lineage, begin)]
    # A lineage that wrote nothing has no time, and so no origin, as in heads of early releases.
    rows += [(lineage, end)] if rows[-1][0] != lineage else []
    return tuple(rows), origins


def _features(candidates: Sequence[Candidate], chosen: Sequence[ObjectEntry]) -> tuple[str, ...]:
    compacted = {item.entry.name for item in candidates if item.compacted_offset}
    sparse = [entry.name for entry in chosen if entry.lacks_records]
    features = {COMPACTION_FEATURE if name in compacted else ERASURES_FEATURE for name in sparse}
    return tuple(sorted(features))


def _rewinds(candidates: Sequence[Candidate], origins: Sequence[Origin]) -> tuple[tuple[int, int], ...]:
    """Return the lineages, with their times, that began before the end of an older one: restores to an earlier time."""
    return tuple(
        (origin.epoch, origin.began_us)
        for origin in origins
        if any(
            candidate.lineage < origin.epoch and candidate.entry.end_offset > origin.end_offset
            for candidate in candidates
        )
    )


def _lineage_of(facts: SegmentFacts) -> int:
    # A segment that was begun before the first claim has no lineage.
    return max(facts.lineage_epoch, FIRST_LINEAGE)


def _broken_chain(candidates: Sequence[Candidate], chosen: Sequence[ObjectEntry]) -> Iterator[str]:
    """Yield the breaks in the chain of hashes: an undone object may be in the place of a lost one."""
    segments = {candidate.entry.name: candidate.segments for candidate in candidates}
    for left, right in pairwise(chosen):
        expected = segments[right.name][0].prev_origin_hash if left.sealed and segments[right.name] else ""
        if expected and left.origin_hash and expected != left.origin_hash:
            yield f"{right.name} does not follow {left.name}: the one that it did is lost"


def _older_lineages(candidates: Sequence[Candidate], chosen: Sequence[ObjectEntry]) -> Iterator[str]:
    """Yield objects of an older lineage than their predecessor's: a restore undid them, and their successor is lost."""
    lineages = {candidate.entry.name: candidate.lineage for candidate in candidates}
    for left, right in pairwise(chosen):
        if lineages[right.name] < lineages[left.name]:
            yield (
                f"{right.name} is of lineage {lineages[right.name]}, and follows lineage {lineages[left.name]}, which "
                "had undone it; to give it up, move it out of the prefix"
            )


def _contested_offsets(
    candidates: Sequence[Candidate], chosen: Sequence[ObjectEntry], lineage: int, start_offset: int
) -> Iterator[str]:
    """Yield offsets of several lineages: a restore to a time may have undone the newer one, if it is not the caller's."""
    lineages = {candidate.entry.name: candidate.lineage for candidate in candidates}
    for other in candidates:
        for entry in chosen:
            low = max(entry.base_offset, other.entry.base_offset, start_offset)
            high = min(entry.end_offset, other.entry.end_offset)
            if low < high and lineages[entry.name] not in (other.lineage, lineage):
                yield (
                    f"lineages {lineages[entry.name]} and {other.lineage} both have offsets {low} to {high}, "
                    "and which one was undone is not known"
                )


def publish_rebuilt(cold: PartitionManifest, planned: Head, clock: Callable[[], int]) -> str:
    """Publish a planned head in place of a lost or damaged one; return the URL of the damaged one's copy, or ``""``.

    Raises
    ------
    PreconditionFailed
        A head has appeared since.
    ColdStorageError
        With ``retryable``: it is unknown whether the head was published; read it.
    """
    head = spill(planned, cold)
    damaged_url, etag = "", None
    try:
        damaged = cold.store.get(cold.keys.head)
    except ObjectNotFound:
        pass
    else:
        try:
            cold.load()
        except CorruptionError:
            damaged_url, etag = save_damaged(cold, cold.keys.head, damaged.data), damaged.etag
        else:
            raise PreconditionFailed(f"{cold.where(cold.keys.head)} is there again")
    newest = max((entry.last_append_us for entry in planned.inline), default=0)
    data = encode_head(replace(head, committed_us=max(clock(), newest)))
    try:
        cold.store.put(cold.keys.head, data, if_match=etag, if_none_match=etag is None)
    except ColdStorageError as error:
        if not (error.retryable or isinstance(error, PreconditionFailed)) or not _is_published(cold, head):
            raise
    return damaged_url


def _is_published(cold: PartitionManifest, head: Head) -> bool:
    """Whether a head was published although the answer was lost, or was that of a refused repetition."""
    try:
        loaded = cold.load()
    except (ColdStorageError, CorruptionError):
        return False
    ids = (loaded.head.commit_id, *loaded.head.previous_commit_ids) if loaded is not None else ()
    return head.commit_id in ids


def save_damaged(cold: PartitionManifest, key: str, data: bytes) -> str:
    """Save a copy of a damaged object outside of all topics, and return its URL."""
    name = f"{DAMAGED_FOLDER}/{uuid4()}-{key.rpartition('/')[2]}"
    cold.store.put(name, data, if_none_match=True)
    return cold.where(name)


def rebuild_page(committer: Committer, ref: PageRef) -> PageRef:
    """Rebuild a damaged or missing page of a sound head from its objects, and publish it under a new name.

    Raises
    ------
    CorruptionError
        The objects do not yield a page like the one that the head names.
    Fenced, ColdStorageError
    """
    cold = committer.partition
    candidates = []
    for info in cold.store.list(cold.keys.data_prefix):
        name = parse_object_name(info.key.removeprefix(cold.keys.data_prefix))
        if name is not None and ref.base_offset <= name.base_offset < ref.end_offset:
            try:
                entry, about = rebuild_object(cold.store, info.key)
            except CorruptionError:
                continue
            # An object that reaches beyond the page was never on it; it may be an unpublished merge.
            if entry.end_offset <= ref.end_offset:
                candidates.append(Candidate(name.epoch, entry, _lineage_of(about.facts)))
    loaded = cold.load()
    entries = next(_possible_pages(candidates, ref, loaded.head), None) if loaded is not None else None
    if entries is None:
        raise CorruptionError(
            "the objects do not yield the page", where=cold.where(cold.keys.page(ref.name)),
            offsets=(ref.base_offset, ref.end_offset),
        )  # fmt: skip
    fresh = cold.save_page(entries)

    def change(head: Head) -> Head:
        if ref not in head.pages:
            raise ColdStorageError(f"the manifest does not name page {ref.name} any more")
        pages = tuple(fresh if page == ref else page for page in head.pages)
        # It may name objects from before an erasure or a compaction, unless it has the bytes of the page before.
        same = (fresh.crc, fresh.bytes) == (ref.crc, ref.bytes)
        return replace(head if same else unmarked(head, ref.base_offset), pages=pages)

    committer.commit(change)
    return fresh


def _possible_pages(
    candidates: Sequence[Candidate], ref: PageRef, head: Head
) -> Iterator[tuple[ObjectEntry, ...]]:
    """Yield the possible contents of a page. If a restore to a time undid lineages, the page's own bytes must match."""
    epochs = [epoch for epoch, _ in head.lineages]
    # A restore undoes consecutive lineages; the first try is that none was undone.
    runs = [(), *(epochs[i:j] for i, j in combinations(range(len(epochs) + 1), 2))] if head.rewinds else [()]
    for undone in runs:
        live = [candidate for candidate in candidates if candidate.lineage not in undone]
        entries, _ = choose(live, head.start_offset)
        whole = (
            bool(entries)
            and entries[0].base_offset <= max(head.start_offset, ref.base_offset)
            and entries[-1].end_offset == ref.end_offset
            and all(a.end_offset == b.base_offset for a, b in pairwise(entries))
        )
        if whole and (not head.rewinds or encode_page(ref.name, tuple(entries))[0] == ref):
            yield tuple(entries)
