"""The live table of one topic: snapshots of its heads, committed one version after another.

One publication::

    state (known, or read: pointer ─▶ metadata ─▶ manifests) ─▶ heads ─▶ what changed ─▶ new manifests, their list
        ─▶ v<N+1>.metadata.json, If-None-Match   that is the commit; another writer's is found here, and all begins anew
        ─▶ version-hint.text, If-Match

- A snapshot names the objects of one set of heads, each record once. The heads are read after the state is known, so the
  next version is at least as new as the last one. After a version of its own, a process also takes heads that it has read
  or written since it had those of that version: they are no older.
- Nothing is committed from heads that were read longer ago than half the grace: the sweep may have deleted their objects.
- A publication that fails at any point leaves files that no version names. No reader sees them, and `table_sweep` deletes
  them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ..cold.manifest.leases import boot_seconds
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.protocol import ObjectStore
from ..errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, SchemaMismatch
from ..format.manifest import Head
from ..format.schema import schema_from_text
from ..format.topic_meta import TopicMeta
from .data_files import NamedObject, data_files
from .schema import iceberg_schema
from .summary_offsets import Offsets, read_offsets, write_offsets
from .table_folder import TableFolder
from .table_manifests import OffsetsByName, TableManifests
from .table_metadata import (
    TAKE,
    ForeignCommit,
    encode_metadata,
    expired,
    first_metadata,
    next_version,
    with_schema,
    with_snapshot,
)
from .table_range import TableRange, choose_end, tails_of
from .table_reader import TableReader

SLICE_OBJECTS = 5_000
"""Objects that one publication adds beyond the end of the last one; the first of many objects takes several."""

Whole = Callable[[Mapping[int, int], bool], bool]
"""Whether a table with these ends has each transaction wholly or not; the second argument says if it has all of the heads."""

_RACES_MAX = 5
_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Attributes
    ----------
    version, location
        The newest version of the table, and its URL.
    changed
        Whether this publication committed it.
    whole
        Whether the table has everything that the heads name; otherwise the next publication continues.
    objects, records
        What the table has.
    commits
        The commit of each head that the table was compared with.
    offsets
        The start offset and the end of each partition in the table.
    """

    version: int
    location: str
    changed: bool
    whole: bool
    objects: int
    records: int
    commits: Mapping[int, str]
    offsets: Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class _State:
    """The last version, as this process wrote or read it.

    Attributes
    ----------
    confirmed
        When it was known. If there are `ranges`, their heads were known by then.
    ranges
        What the version names of each partition; None after it was read, until it was compared as a whole.
    offsets
        See `TableRange.about`.
    is_ours
        Whether the newest version is the store's; otherwise the next one is made even if nothing else changed.
    """

    version: int
    etag: str | None
    metadata: Any
    confirmed: float
    manifests: TableManifests = field(default_factory=TableManifests)
    ranges: dict[int, TableRange] | None = None
    offsets: Offsets = field(default_factory=dict)
    is_ours: bool = True


class LiveTable:
    """The table of one topic. One thread at a time publishes.

    Parameters
    ----------
    manifest
        Returns the manifest of a partition.
    transactions
        Called before the heads are read; its result is called after that. None: the store has had no transaction.
    clock
        Microseconds since the epoch, for the times of snapshots.
    seconds
        The clock of `PartitionManifest.known_since`.
    """

    def __init__(
        self,
        store: ObjectStore,
        store_id: UUID,
        meta: TopicMeta,
        manifest: Callable[[int], PartitionManifest],
        *,
        transactions: Callable[[], Whole | None] = lambda: None,
        clock: Callable[[], int],
        seconds: Callable[[], float] = boot_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._topic_id = meta.topic_id
        self._manifest = manifest
        self._transactions = transactions
        self._clock = clock
        self._seconds = seconds
        self._folder = TableFolder(store, meta.name, meta.topic_id, sleep=sleep)
        self._reader = TableReader(store, meta.topic_id, self._folder)
        self._files = self._reader.files
        self._state: _State | None = None
        self._has_listed = False

    def publish(
        self, meta: TopicMeta, *, tails: bool, grace_seconds: float, take: bool = False
    ) -> Published | None:
        """Commit a snapshot of the heads, if they changed; return None if the topic has no head yet.

        Parameters
        ----------
        tails
            Whether to name the objects that a sealed segment will replace.
        take
            Go on from the heads after a commit of another program, or in a copied bucket.

        Raises
        ------
        ForeignCommit
            Another program has committed.
        ConfigError
            The bucket has no conditional writes, or was copied.
        SchemaMismatch
            Iceberg cannot have the columns of the topic.
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        half_grace = grace_seconds / 2
        if not self._store.conditional_writes:
            raise ConfigError(f"a table needs conditional writes, which {self._store.url} is used without")
        for _ in range(_RACES_MAX):
            # After an error the state is read again: a commit of unknown outcome may have landed.
            state, self._state = self._state, None
            if state is None or take or self._seconds() - state.confirmed > half_grace:
                state = self._read(take=take)
            since, whole = self._seconds(), self._transactions()
            if state.ranges is not None and whole is None:
                since = state.confirmed
            # Another process may have added partitions since this one read the topic.
            heads = self._heads(
                max([meta.partitions, *(1 + partition for partition in state.offsets)]), since
            )
            if not heads:
                return None
            following = self._next(state, meta, heads, tails, half_grace, whole)
            if following is None:
                self._state = state
                return self._published(state, heads, tails, changed=False)
            if self._seconds() - since > half_grace:
                raise ColdStorageError(
                    f"the heads of {meta.name} were read longer ago than half of sweep.grace", retryable=True
                )
            if self._folder.commit(following.version, encode_metadata(following.metadata, following.version)):
                following.etag = self._folder.point_to(following.version, state.etag)
                if following.etag is None:
                    # Readers find a later version, of another writer, or none: somebody changed the hint, or emptied the folder.
                    continue
                self._state = following
                return self._published(following, heads, tails, changed=True)
        raise ColdStorageError(
            f"other writers of {self._folder.location} won {_RACES_MAX} times", retryable=True
        )

    def _published(
        self, state: _State, heads: Mapping[int, Head], tails: bool, *, changed: bool
    ) -> Published:
        ranges = state.ranges or {}
        whole = all(
            ranges[partition].end >= (head.end_offset if tails else ranges[partition].tails)
            for partition, head in heads.items()
        )
        url = self._folder.url(state.version)
        commits = {partition: head.commit_id for partition, head in heads.items()}
        offsets = {partition: (start, end) for partition, (start, end, _) in state.offsets.items()}
        manifests = state.manifests
        return Published(
            state.version, url, changed, whole, manifests.objects, manifests.records, commits, offsets
        )

    # -- the last version ------------------------------------------------------------------------

    def _read(self, *, take: bool) -> _State:
        """Read the last version; move the pointer if its writer died before it did."""
        confirmed = self._seconds()
        # One listing: afterwards this process knows the last version, and finds those of other writers as readers do.
        listed = take or not self._has_listed
        pointer = self._folder.find_last(any_hint=take) if listed else self._folder.find()
        state = _State(pointer.version, pointer.etag, None, confirmed, is_ours=False)
        version = pointer.version
        while version:
            try:
                if self._read_version(state, version, take=take):
                    state.is_ours = version == pointer.version
                    if not pointer.hint:
                        self._check_lists(state.metadata, version)
                break
            except ForeignCommit:
                if not take:
                    raise
                version -= 1
            except CorruptionError:
                if not take:
                    raise
                # Nothing of a damaged file goes into the new table.
                return _State(pointer.version, pointer.etag, None, confirmed, is_ours=False)
        if pointer.hint != pointer.version and pointer.version:
            state.etag = self._folder.point_to(pointer.version, pointer.etag)
        self._has_listed = True
        return state

    def _read_version(self, state: _State, version: int, *, take: bool) -> bool:
        """Read a version into `state`; return False if it was made for another bucket, and a new table takes its place."""
        try:
            return self._read_files(state, version, take=take)
        except ObjectNotFound as error:
            where = self._folder.url(version)
            raise CorruptionError(
                f"the newest version of a table lacks a file ({error}); {TAKE}", where=where
            ) from None

    def _read_files(self, state: _State, version: int, *, take: bool) -> bool:
        try:
            metadata = self._reader.read(version)
        except ObjectNotFound:
            raise self._reader.missing(version) from None
        if take and metadata.location != self._folder.location:
            return False
        self._reader.check_location(metadata.location)
        snapshot = metadata.current_snapshot()
        if snapshot is not None:
            state.manifests = TableManifests.read(self._files, snapshot.manifest_list)
            state.offsets = read_offsets(
                self._store, self._folder.prefix, snapshot.summary.additional_properties
            )
        state.metadata = metadata
        return True

    def _check_lists(self, metadata: Any, version: int) -> None:
        """Check the lists of old snapshots too: without a hint, the folder may have been emptied."""
        there = {info.key for info in self._store.list(self._folder.prefix)}
        for snapshot in metadata.snapshots:
            if self._files.key(snapshot.manifest_list) not in there:
                where = self._folder.url(version)
                raise CorruptionError(
                    f"the newest version of a table lacks a file ({snapshot.manifest_list}); {TAKE}",
                    where=where,
                )

    # -- the next version ------------------------------------------------------------------------

    def _heads(self, partitions: int, since: float) -> dict[int, Head]:
        """Return the heads of all partitions that have one, each at least as new as at that time."""
        manifests = [self._manifest(partition) for partition in range(partitions)]
        loaded = [manifest.known_since(since) for manifest in manifests]
        unknown = [partition for partition, item in enumerate(loaded) if item is None]
        if unknown:
            with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="tiered-heads") as threads:
                read = threads.map(lambda partition: manifests[partition].load(), unknown)
                for partition, item in zip(unknown, read, strict=True):
                    loaded[partition] = item
        heads = {partition: item.head for partition, item in enumerate(loaded) if item is not None}
        for partition, head in heads.items():
            if head.store_id != self._store_id:
                where = self._manifest(partition).where(self._manifest(partition).keys.head)
                raise ColdStorageError(f"{where} belongs to store {head.store_id}")
        return heads

    def _next(
        self,
        state: _State,
        meta: TopicMeta,
        heads: Mapping[int, Head],
        tails: bool,
        kept_seconds: float,
        whole: Whole | None,
    ) -> _State | None:
        """Write the files of the next version, and return it; None if nothing changed."""
        missing = sorted(state.offsets.keys() - heads.keys())
        if missing:
            raise CorruptionError(
                f"head.json of partition {missing[0]} is missing, and the table has records of it",
                where=self._folder.location,
            )
        ranges = self._choose_ranges(state, heads, tails)
        gone, fresh = self._changes(state, ranges)
        clock_ms, schema = self._clock() // 1000, _schema_of(meta, heads)
        metadata = state.metadata or first_metadata(self._folder.location, self._topic_id, schema, clock_ms)
        now_ms = max(clock_ms, metadata.last_updated_ms)
        metadata = with_schema(metadata, schema)
        following = _State(
            state.version + 1, None, metadata, self._seconds(), state.manifests,
            ranges, {partition: item.about for partition, item in ranges.items()},
        )  # fmt: skip
        same = not gone and not fresh and following.offsets == state.offsets
        settled = state.is_ours and metadata is state.metadata
        if same and settled and not expired(metadata, clock_ms, kept_seconds):
            state.ranges, state.confirmed = ranges, following.confirmed
            return None
        if not same or metadata.current_snapshot_id is None:
            ends = {partition: item.end for partition, item in ranges.items()}
            has_all = all(end >= heads[partition].end_offset for partition, end in ends.items())
            # The first transaction of a store may have begun since.
            is_whole = whole(ends, has_all) if whole is not None else self._transactions() is None
            self._write_snapshot(following, gone, fresh, now_ms, is_whole=is_whole)
        url = self._folder.url(state.version) if state.version else None
        following.metadata = next_version(
            following.metadata, state.metadata or metadata, url, clock_ms, kept_seconds
        )
        return following

    def _choose_ranges(self, state: _State, heads: Mapping[int, Head], tails: bool) -> dict[int, TableRange]:
        ranges: dict[int, TableRange] = {}
        budget = SLICE_OBJECTS
        for partition, head in heads.items():
            manifest = self._manifest(partition)
            first_tail = tails_of(manifest, head)
            before = state.offsets.get(partition)
            end, budget = choose_end(
                head, head.end_offset if tails else first_tail, before[1] if before else None, budget
            )
            ranges[partition] = TableRange.of(manifest, head, end, first_tail)
        return ranges

    def _changes(
        self, state: _State, ranges: Mapping[int, TableRange]
    ) -> tuple[OffsetsByName, list[NamedObject]]:
        """Return the objects of the last version that are in no range, and the objects of the ranges that it lacks."""
        gone: OffsetsByName = {}
        fresh: list[NamedObject] = []
        named = state.manifests.names(self._files) if state.ranges is None else None
        for partition, table_range in ranges.items():
            manifest = self._manifest(partition)
            if named is None:
                missing, entries = table_range.changes(manifest, (state.ranges or {}).get(partition))
            else:
                missing = named.get(partition, {})
                entries = [
                    entry for entry in table_range.entries(manifest) if missing.pop(entry.name, None) is None
                ]
            if missing:
                gone[partition] = missing
            fresh += [NamedObject(partition, manifest.keys.data(entry.name), entry) for entry in entries]
        return gone, fresh

    def _write_snapshot(
        self,
        following: _State,
        gone: OffsetsByName,
        fresh: list[NamedObject],
        now_ms: int,
        *,
        is_whole: bool,
    ) -> None:
        """Write the manifests of a snapshot and their list, and add it to the metadata."""
        metadata, ranges, before = following.metadata, following.ranges or {}, following.manifests
        snapshot_id, number = metadata.new_snapshot_id(), metadata.next_sequence_number()
        following.manifests, removed = before.next(
            self._files,
            metadata,
            gone,
            data_files(self._store, metadata, fresh),
            {partition: item.tails for partition, item in ranges.items()},
            snapshot_id=snapshot_id,
            sequence_number=number,
        )
        objects, records = following.manifests.objects, following.manifests.records
        expected = sum(item.objects for item in ranges.values())
        if objects != expected:
            raise CorruptionError(
                f"the manifests have {objects} objects, and the heads {expected}", where=self._folder.location
            )
        manifest_list = self._files.write_list(
            following.manifests.files,
            snapshot_id=snapshot_id,
            parent_id=metadata.current_snapshot_id,
            sequence_number=number,
        )
        added_records = sum(item.entry.record_count for item in fresh)
        summary = {
            "added-data-files": str(len(fresh)),
            "deleted-data-files": str(removed),
            "added-records": str(added_records),
            "deleted-records": str(before.records + added_records - records),
            "total-data-files": str(objects),
            "total-records": str(records),
            "tiered.transactions": "whole" if is_whole else "parts",
            **write_offsets(self._store, self._folder.prefix, ranges),
        }
        following.metadata = with_snapshot(metadata, snapshot_id, manifest_list, summary, now_ms)


def _schema_of(meta: TopicMeta, heads: Mapping[int, Head]) -> Any:
    """Return the newest columns: the topic's, or those of an object that another process published since."""
    schemas = {number: text for head in heads.values() for number, text in head.schemas.items()}
    newest = max(schemas, default=-1)
    schema = schema_from_text(schemas[newest]) if newest > meta.schema_id else meta.schema
    try:
        return iceberg_schema(schema)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"topic {meta.name} gets no table: {error}") from None
