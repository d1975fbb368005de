"""The course of erasures: the ledger here and in the bucket, and the proof that nothing gives the records back any more.

::

    called ──▶ rewriting ──▶ sweeping ──▶ done
       │          │             │           └ the values are deleted, in the bucket first
       └──────────┴─────────────┴─▶ given up, by an operator, if the values are lost here and in the bucket
       │          │             └ until no trace is left: orphans, old versions, unfinished uploads, old table files, the
       │          │               transaction log, damaged files, deleted topics, caches
       │          └ `erase_actions` rewrites objects, until every head says that its partition is checked
       └ the ledger and the values are on this disk; the next pass brings them to the bucket

The two copies of the ledger are joined and never shortened. Whatever they say, this disk may be an old image: a rule of each
pass deletes segments whose objects lack records (`policies.rules.evict`), and no erasure is done while there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from ..base.units import format_duration, to_us
from ..cold.fetch.cache_folders import CacheFolders
from ..cold.manifest.erasures import (
    drop_values,
    exchange_ledger,
    get_values,
    put_values,
    read_ledger,
    stored_values,
)
from ..cold.manifest.leases import server_seconds
from ..cold.manifest.store_documents import StoreDocuments
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import (
    ColdStorageError,
    ConfigError,
    CorruptionError,
    FileUnreadable,
    ObjectsHeld,
    TieredError,
    as_tiered_error,
)
from ..format.document import ERASURES_FEATURE
from ..format.erasure import LedgerEntry, decode_values, horizon_in, merge_ledgers
from ..format.manifest import Head
from ..format.timestamps import to_datetime
from ..format.topic_meta import TopicMeta
from ..warm.bucket_binding import read_binding
from .claims import Claims
from .erase_actions import first_offset, record_erasures
from .erase_traces import Traces
from .erased_rows import mark_of
from .local_actions import LocalActions
from .partition_handle import PartitionHandle
from .pauses import Pauses
from .sweep_state import read_swept

log = logging.getLogger("tiered.erasures")

_DAY_US = to_us(timedelta(days=1))


@dataclass(slots=True)
class _State:
    """What this process has done since it opened the store."""

    exchanged: bool = False
    # The erasures that have ended in the bucket's ledger.
    ended: frozenset[UUID] = frozenset()
    # Why the bucket does not delete the values of erasures that have ended.
    undeleted: TieredError | None = None
    # The open erasures whose values are here and in the bucket.
    ready: set[UUID] = field(default_factory=set)
    # The open erasures without values, and why.
    lost: dict[UUID, CorruptionError] = field(default_factory=dict)
    # The time of the last sweep before the bucket was searched, and the first trace there; empty if there is none.
    in_bucket: dict[UUID, tuple[int | None, str]] = field(default_factory=dict)
    # When the log last said that an erasure is late.
    warned_us: dict[UUID, int] = field(default_factory=dict)


class Erasures:
    """The erasures of one open store. A pass calls this under the locks of full passes."""

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        local: LocalActions,
        pauses: Pauses,
    ) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._local = local
        self._pauses = pauses
        self._traces = Traces(context, topics, local)
        self._state = _State()

    # -- the ledger ------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Bring the ledger and the values of open erasures to the bucket, and those of the bucket to this disk.

        Without erasures this costs one request for each opening of the store. An erasure whose values are lost delays no other:
        `advance` returns it as an error.

        Raises
        ------
        ConfigError, Fenced, DiskFull, CorruptionError, UnsupportedFormat, ColdStorageError
        """
        ledger = self._context.erasures
        if ledger is None or not self._context.tiers.has_cold:
            return
        ours = ledger.read()
        exchanged = self._state.exchanged and self._state.undeleted is None
        if exchanged and not any(item.is_open for item in ours):
            return
        root = self._context.tiers.locations.root
        if not ours and (root is None or not read_binding(root).claimed):
            return
        # The documents of the bucket say first that there are erasures.
        if not self._claims.store.check_owner():
            if root is None or read_binding(root).claimed or not any(item.is_open for item in ours):
                self._state.exchanged = False  # also if the bucket had them once
                return
            # A topic without records would never begin them.
            self._claims.store.claim()
        store = self._context.tiers.object_store
        documents = StoreDocuments(store)
        stored = self._put_values(documents, ours)
        if ours:
            ready = [
                item.not_called_after(stored.get(item.values_name)) for item in ours if self._may_go_on(item)
            ]
            merged = exchange_ledger(documents, ready, self._claims.store.documents_lineage)
        else:
            owner = documents.read_store()
            merged = read_ledger(documents) if owner is not None and ERASURES_FEATURE in owner[1] else ()
        # A restore writes the ledger without values.
        here = {item.id for item in ours if self._may_go_on(item)}
        both = merge_ledgers(ours, merged)
        self._adopt([item for item in both if item.id not in here])
        ended = self._state.ended = _ended(merged)
        open_here = {item.id for item in ours if item.is_open}
        drops = not exchanged or not open_here.isdisjoint(ended)
        if drops and ended and not self._drop_stored(merged):
            # They do not end here, either; the others go on.
            merged = tuple(item for item in merged if item.is_open or item.id not in open_here)
        if both != ours:
            ledger.change(lambda present: merge_ledgers(present, merged))
        if drops:
            ledger.drop_values()
        self._state.exchanged = True

    def _drop_stored(self, ledger: Sequence[LedgerEntry]) -> bool:
        """Delete the stored values of erasures that have ended; return False if the bucket does not."""
        self._state.undeleted = None
        try:
            drop_values(self._context.tiers.object_store, ledger)
        except ObjectsHeld as held:
            log.warning("values of erasures that have ended stay: %s", held)
            if held.rule_days is not None:
                self._state.undeleted = held
        except ColdStorageError as error:
            self._state.undeleted = error
        return self._state.undeleted is None

    def _put_values(self, documents: StoreDocuments, erasures: Sequence[LedgerEntry]) -> Mapping[str, float]:
        """Upload the values that the bucket lacks; a sweep may have deleted those of a new call as lost ones.

        Return the names of those that it had, and when each was stored.
        """
        self._state.ready.clear()
        self._state.lost.clear()
        store = documents.store
        stored = stored_values(store) if any(item.is_open for item in erasures) else {}
        if any(item.is_open and item.values_name not in stored for item in erasures):
            # A process that died, or the bucket, may have kept this disk from recording the end.
            self._state.ended = _ended(read_ledger(documents))
        for erasure in erasures:
            # Those of an erasure that has ended in the bucket are there to be deleted.
            goes_on = erasure.is_open and erasure.id not in self._state.ended
            data = self._values_here(erasure) if goes_on else None
            if data is not None:
                if erasure.values_name not in stored:
                    put_values(store, erasure, data)
                self._state.ready.add(erasure.id)
        return stored

    def _values_here(self, erasure: LedgerEntry) -> bytes | None:
        """Return the values of an open erasure on this disk; None if they are not there as they were."""
        ledger = self._context.erasures
        assert ledger is not None  # the erasure is from there
        try:
            data = ledger.values_bytes(erasure)
            if data is not None:
                self._check_values(erasure, data)
        except CorruptionError as error:
            log.warning("the values of erasure %d on this disk are damaged: %s", erasure.number, error)
            return None
        return data

    def _values_in_bucket(self, erasure: LedgerEntry) -> bytes:
        """Return the values of an open erasure in the bucket.

        Raises
        ------
        CorruptionError
            They are lost: not there as they were.
        ColdStorageError
        """
        try:
            data = get_values(self._context.tiers.object_store, erasure)
            self._check_values(erasure, data)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}. Nothing more can be erased for erasure {erasure.number}: erase the same values again, and give this "
                f"one up by 'tiered erasures --give-up {erasure.number}', or put them back"
            ) from None
        return data

    def _check_values(self, erasure: LedgerEntry, data: bytes) -> None:
        """Raise `CorruptionError` unless these may be the values of the erasure: anyone may write to a bucket."""
        meta = self._meta(erasure)
        if meta is None:
            return  # the topic was deleted
        if erasure.column not in meta.schema.names:
            raise CorruptionError(
                f"erasure {erasure.number} names column {erasure.column!r}, which topic {meta.name} does not have",
                where=erasure.values_name,
            )
        kind = meta.schema.field(erasure.column).type
        decode_values(data, kind, erasure.values, where=erasure.values_name)

    def _may_go_on(self, erasure: LedgerEntry) -> bool:
        """Whether an erasure needs no values any more, or has them here and in the bucket."""
        return not erasure.is_open or erasure.id in self._state.ready

    def give_up(self, erasure: LedgerEntry) -> LedgerEntry:
        """Give up an erasure whose values are lost; return it as the ledger then has it. The bucket has to answer.

        Raises
        ------
        ConfigError
            It has ended, or its values are there.
        Fenced, DiskFull, CorruptionError, UnsupportedFormat, ColdStorageError
        """
        ledger = self._context.erasures
        assert ledger is not None  # the erasure is from there
        name = f"erasure {erasure.number}"
        if not erasure.is_open:
            raise ConfigError(f"{name} is {erasure.state}: there is nothing to give up")
        claimed = self._claims.store.check_owner()
        if not self._is_lost(erasure):
            raise ConfigError(
                f"{name} has its values, and passes carry it out; only without them it can be given up"
            )
        gone = replace(erasure, given_up_us=self._context.clock())
        if claimed:
            return self._record(gone)
        ledger.change(lambda present: merge_ledgers(present, [gone]))
        ledger.drop_values()
        return gone

    def _is_lost(self, erasure: LedgerEntry) -> bool:
        if self._values_here(erasure) is not None:
            return False
        try:
            self._values_in_bucket(erasure)
        except CorruptionError:
            return True
        return False

    def begin_pass(self) -> list[TieredError]:
        """Bring open erasures to the bucket before a pass carries them out; return the error, if there is one."""
        ledger = self._context.erasures
        try:
            if ledger is not None and any(item.is_open and ledger.has_values(item) for item in ledger.read()):
                self.exchange()
        except (TieredError, OSError) as error:
            return [as_tiered_error(error)]
        return []

    def _adopt(self, fresh: Sequence[LedgerEntry]) -> None:
        """Take over erasures that this disk did not know, or whose values it lacks; fetch the values."""
        if fresh:
            self._context.catalog.add_feature(ERASURES_FEATURE)
        ledger = self._context.erasures
        assert ledger is not None
        for erasure in fresh:
            if erasure.is_open and self._meta(erasure) is None:
                self._state.ready.add(erasure.id)  # the topic was deleted, and its records go without values
            elif erasure.is_open:
                try:
                    data = self._values_in_bucket(erasure)
                except CorruptionError as error:
                    self._state.lost[erasure.id] = error
                else:
                    ledger.write_values(erasure, data)
                    self._state.ready.add(erasure.id)

    # -- the end ---------------------------------------------------------------------------------

    def advance(self) -> list[TieredError]:
        """Move each open erasure on as far as it can be proven; return the errors."""
        ledger = self._context.erasures
        problems: list[TieredError] = []
        if ledger is None or not self._context.tiers.has_cold:
            return problems
        # Why the ledgers were not exchanged.
        apart = "the bucket has nothing of this store, as the passes' errors say"
        if not self._state.exchanged or self._state.undeleted is not None or self._state.lost:
            # Values that were lost may be back.
            try:
                self.exchange()
            except (TieredError, OSError) as error:
                problems.append(as_tiered_error(error))
                apart = f"{type(error).__name__}: {error}"
        undeleted = self._state.undeleted and self._awaited(self._state.undeleted, problems)
        waiting: dict[UUID, str] = {}
        for erasure in ledger.read():
            lost = self._state.lost.get(erasure.id)
            if erasure.is_open and not self._state.exchanged:
                waiting[erasure.id] = apart
            elif erasure.is_open and lost is not None:
                waiting[erasure.id] = str(lost)
                problems.append(lost)
            elif erasure.is_open and self._may_go_on(erasure):
                try:
                    waiting[erasure.id] = self._advance(erasure)
                except ObjectsHeld as held:
                    waiting[erasure.id] = self._awaited(held, problems)
                except (TieredError, OSError) as error:
                    waiting[erasure.id] = f"{type(error).__name__}: {error}"
                    problems.append(as_tiered_error(error))
            # An erasure that was called since the exchange waits for the next one. The others have ended in the bucket, which
            # does not delete their values.
            elif erasure.is_open and undeleted:
                waiting[erasure.id] = undeleted
        return problems + self._note(lambda erasure: waiting.get(erasure.id, ""))

    def note_away(self, error: TieredError) -> list[TieredError]:
        """Note that all open erasures wait for a bucket that does not answer; return the errors of that."""
        return self._note(lambda erasure: f"{type(error).__name__}: {error}" if erasure.is_open else "")

    def note_paused(self) -> list[TieredError]:
        """Note that all open erasures wait for the end of a pause; return the errors of that."""
        return self._note(lambda _: "")

    def _note(self, wait: Callable[[LedgerEntry], str]) -> list[TieredError]:
        """Write what each erasure waits for; return the errors."""
        ledger = self._context.erasures
        try:
            if ledger is not None:
                entries = ledger.read()
                waiting = {item.id: self._paused(item, wait(item)) for item in entries}
                self._warn_of_late(entries, waiting)
                ledger.note_waiting(waiting)
        except (TieredError, OSError) as error:
            return [as_tiered_error(error)]
        return []

    def _paused(self, erasure: LedgerEntry, wait: str) -> str:
        """Return what an erasure waits for, after the pause that it waits for first."""
        pause = self._pauses.of(erasure.topic) if erasure.is_open and self._meta(erasure) else None
        if pause is None:
            return wait
        return f"topic {erasure.topic} is {pause}; tiered resume ends that" + (
            f"; then: {wait}" if wait else ""
        )

    def _warn_of_late(self, erasures: Sequence[LedgerEntry], waiting: Mapping[UUID, str]) -> None:
        """Log each day what is open beyond its deadline."""
        now_us = self._context.clock()
        for item in erasures:
            since_us = self._state.warned_us.get(item.id)
            due = since_us is None or not 0 <= now_us - since_us < _DAY_US
            if item.is_late(now_us) and due:
                self._state.warned_us[item.id] = now_us
                log.warning(
                    "erasure %d of %s is late: it was to be done by %s; it waits: %s",
                    item.number,
                    item.topic,
                    to_datetime(item.deadline_us),
                    waiting.get(item.id) or "for the next pass",
                )

    def _awaited(self, error: TieredError, problems: list[TieredError]) -> str:
        """Return an error as what an erasure waits for; it is a problem, too, unless the bucket itself ends it in time."""
        if isinstance(error, ObjectsHeld):
            within = self._context.settings.erase.within
            if error.rule_days is None or timedelta(days=error.rule_days) < within:
                return str(error)
            text = f"{error}: that is not within erase.within ({format_duration(within)}); grant them s3:DeleteObjectVersion"
            error = ObjectsHeld(text)
        problems.append(error)
        return str(error)

    def _advance(self, erasure: LedgerEntry) -> str:
        """Move an erasure on; return what it waits for, empty if it is done."""
        if erasure.clean_us is None or self._may_look(erasure):
            # Also later: a restore to a time may have brought objects back.
            waiting, rows = self._unchecked(erasure)
            if waiting:
                return waiting
        if erasure.clean_us is None:
            # By the clock of the bucket, with which the times of its objects are compared.
            now_us = int(server_seconds(self._context.tiers.object_store) * 1e6)
            now_us = max(now_us, erasure.outdated_us + 1)
            erasure = self._record(replace(erasure, rewritten_us=now_us, rows=rows))
            log.info(
                "erasure %d: %d records of %s are in no manifest any more",
                erasure.number,
                rows,
                erasure.topic,
            )
        meta = self._meta(erasure)
        self._shorten_log(erasure)
        trace = next(self._traces.here(erasure, meta), None)
        if trace is None and self._may_look(erasure):
            swept = self._swept()
            self._state.in_bucket[erasure.id] = swept, next(self._traces.in_bucket(erasure, meta), "")
        trace = trace or self._state.in_bucket[erasure.id][1]
        if trace:
            return trace
        failure = self._empty_caches()
        if failure:
            return failure
        # In this order: after a crash the next pass deletes values that were left.
        self._record(replace(erasure, done_us=self._context.clock()))
        log.info("erasure %d of %s is done", erasure.number, erasure.topic)
        return ""

    def _shorten_log(self, erasure: LedgerEntry) -> None:
        end = self._traces.log.end(erasure)
        if self._context.lifecycle.writes:
            self._context.commits.shorten_log(end)
            return
        log = self._traces.log.log(erasure)
        if log is not None and log.local().start_offset < end:
            self._local.ask_to_shorten(log, end)

    def _empty_caches(self) -> str:
        """Empty the caches of cold data: this process's, and all folders of this host. Return why that fails, or nothing."""
        root = self._context.tiers.locations.root
        assert root is not None
        try:
            self._context.tiers.fetcher.clear()
            CacheFolders(root, self._context.fs).empty()
        except (OSError, CorruptionError, FileUnreadable) as error:
            return f"a cache of cold data cannot be emptied: {error}"
        return ""

    def _may_look(self, erasure: LedgerEntry) -> bool:
        """Whether to look into the bucket: once, and again after each sweep, as only a sweep deletes."""
        searched = self._state.in_bucket.get(erasure.id)
        return searched is None or searched[0] != self._swept()

    def _swept(self) -> int | None:
        root = self._context.tiers.locations.root
        assert root is not None  # the ledger lies in it
        return read_swept(root)

    def _record(self, erasure: LedgerEntry) -> LedgerEntry:
        """Write an erasure's state to the bucket, then here; delete the values of one that has ended."""
        (recorded,) = record_erasures(self._context, self._claims, [erasure])
        if not recorded.is_open:
            assert self._context.erasures is not None  # the erasure is from there
            self._context.erasures.drop_values()
        return recorded

    def _unchecked(self, erasure: LedgerEntry) -> tuple[str, int]:
        """Return the first partition that is unchecked or has an older file, and why; and how many records were removed.

        The text is empty, and the count complete, if there is no such partition.
        """
        rows = 0
        for handle, horizon in self._partitions(erasure):
            loaded = handle.manifest.load()
            head = None if loaded is None else loaded.head
            mark = mark_of(head, erasure)
            rows += mark.rows
            first = handle.local().start_offset if head is None else first_offset(handle, head)
            checked = max(mark.offset, first)
            if checked < horizon:
                place = f"{handle.meta.name}/{handle.partition}"
                return f"{place} is checked up to offset {checked} of {horizon}", rows
            old = _old_file(handle, head, horizon)
            if old:
                return f"{old}; a pass deletes it", rows
        return "", rows

    def _partitions(self, erasure: LedgerEntry) -> Iterator[tuple[PartitionHandle, int]]:
        meta = self._meta(erasure)
        if meta is not None:
            for partition in range(meta.partitions):
                yield (
                    PartitionHandle.of(self._topics, meta, partition),
                    horizon_in(erasure.horizons, partition),
                )

    def _meta(self, erasure: LedgerEntry) -> TopicMeta | None:
        """Return the erasure's topic; None once it was deleted."""
        if erasure.topic not in self._topics.topic_names():
            return None
        meta = self._topics.meta(erasure.topic)
        return meta if meta.topic_id == erasure.topic_id else None


def _ended(ledger: Sequence[LedgerEntry]) -> frozenset[UUID]:
    return frozenset(item.id for item in ledger if not item.is_open)


def _old_file(handle: PartitionHandle, head: Head | None, horizon: int) -> str:
    """Name a local file with records below a horizon that its object lacks, or that precede the log; empty if there is none.

    An old image of the disk has files of the first kind. A pass that was cut short leaves files of the second kind.
    """
    local = handle.local()
    start = local.start_offset if head is None else head.start_offset
    for segment in local.segments:
        base, end = segment.header.base_offset, min(segment.end_offset, horizon)
        if base < end and segment.end_offset <= start:
            return f"{segment.path} lies in front of the log"
        entries = handle.manifest.entries(head, base, end) if base < end and head is not None else ()
        if any(entry.lacks_records for entry in entries):
            return f"{segment.path} is older than its object"
    return ""
