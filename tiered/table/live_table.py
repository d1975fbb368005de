"""The live table of one topic: snapshots of its heads, committed one version after another.

One publication::

    state (known, or read: pointer ─▶ metadata ─▶ manifests) ─▶ heads ─▶ what changed ─▶ new manifests, their list
        ─▶ v<N+1>.metadata.json, If-None-Match   that is the commit; another writer's is found here, and all begins anew
        ─▶ version-hint.text, If-Match

- A snapshot names the objects of one set of heads, each record once. The heads are read after the state is known, so who
  commits is at least as new as the last version.
- A manifest with fewer than `CLOSED_OBJECTS` entries is *open*: the next publication writes its entries again. The others
  never change, except that one is rewritten when an object of it is gone.
- Nothing is committed from heads that were read longer ago than half the grace: the sweep may have deleted their objects.
- A publication that fails at any point leaves files that no version names. No reader sees them; no sweep removes them yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ..cold.manifest.leases import boot_seconds
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.object_store.rereads import reread_on_damage
from ..errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound
from ..format.document import decode_document, encode_document
from ..format.manifest import Head
from ..format.schema import schema_from_text
from ..format.topic_meta import TopicMeta
from .avro_files import AvroFiles
from .data_files import NamedObject, data_files
from .schema import OFFSET_ID, iceberg_schema
from .table_folder import TableFolder
from .table_metadata import (
    ANEW,
    ForeignCommit,
    decode_metadata,
    encode_metadata,
    expired,
    first_metadata,
    next_version,
    with_schema,
    with_snapshot,
)
from .table_range import TableRange, choose_end, tails_of

CLOSED_OBJECTS = 500
"""The number of entries from which a manifest is no longer rewritten at each publication."""

SLICE_OBJECTS = 5_000
"""Objects that one publication adds beyond the end of the last one; the first of many objects takes several."""

_SUMMARY_PARTITIONS = 8
_RACES_MAX = 5
_CONNECTIONS = 8
_Offsets = Mapping[int, list[int]]
_Gone = dict[int, dict[str, tuple[int, int]]]


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
    """

    version: int
    location: str
    changed: bool
    whole: bool
    objects: int
    records: int
    commits: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest, and the range of offsets of its objects by partition."""

    file: Any
    ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, file: Any, entries: Iterable[Any]) -> _Manifest:
        ranges: dict[int, tuple[int, int]] = {}
        for entry in entries:
            partition, base, end = _place(entry)
            low, high = ranges.get(partition, (base, end))
            ranges[partition] = min(low, base), max(high, end)
        return cls(file, ranges)

    def may_have(self, gone: _Gone) -> bool:
        return any(
            base < self.ranges[partition][1] and end > self.ranges[partition][0]
            for partition in gone.keys() & self.ranges.keys()
            for base, end in gone[partition].values()
        )


@dataclass(slots=True)
class _State:
    """The last version, as this process wrote or read it.

    Attributes
    ----------
    open, open_file
        The entries of the open manifest, and the manifest.
    ranges
        What the version names of each partition; None after it was read, until it was compared as a whole.
    offsets
        See `TableRange.about`.
    """

    version: int
    etag: str | None
    metadata: Any
    confirmed: float
    closed: list[_Manifest] = field(default_factory=list)
    open: list[Any] = field(default_factory=list)
    open_file: Any = None
    ranges: dict[int, TableRange] | None = None
    offsets: _Offsets = field(default_factory=dict)

    @property
    def files(self) -> list[Any]:
        files = [manifest.file for manifest in self.closed]
        return files if self.open_file is None else [*files, self.open_file]

    @property
    def objects(self) -> int:
        return sum(file.added_files_count + file.existing_files_count for file in self.files)

    @property
    def records(self) -> int:
        return sum(file.added_rows_count + file.existing_rows_count for file in self.files)


class LiveTable:
    """The table of one topic. One thread at a time publishes.

    Parameters
    ----------
    manifest
        Returns the manifest of a partition.
    clock
        Microseconds since the epoch, for the times of snapshots.
    seconds
        A clock for durations that also runs while the machine is suspended.
    """

    def __init__(
        self,
        store: ObjectStore,
        store_id: UUID,
        meta: TopicMeta,
        manifest: Callable[[int], PartitionManifest],
        *,
        clock: Callable[[], int],
        seconds: Callable[[], float] = boot_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._topic_id = meta.topic_id
        self._manifest = manifest
        self._clock = clock
        self._seconds = seconds
        self._folder = TableFolder(store, meta.name, meta.topic_id, sleep=sleep)
        self._files = AvroFiles(store, self._folder.prefix)
        self._state: _State | None = None

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
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if not self._store.conditional_writes:
            raise ConfigError(f"a table needs conditional writes, which {self._store.url} is used without")
        for _ in range(_RACES_MAX):
            # After an error the state is read again: a commit of unknown outcome may have landed.
            state, self._state = self._state, None
            if state is None or self._seconds() - state.confirmed > grace_seconds / 2:
                state = self._read(take=take)
            begun = self._seconds()
            heads = self._heads(meta.partitions)
            if not heads:
                return None
            following = self._next(state, meta, heads, tails, grace_seconds)
            if following is None:
                self._state = state
                return self._published(state, heads, tails, changed=False)
            if self._seconds() - begun > grace_seconds / 2:
                raise ColdStorageError(
                    f"the heads of {meta.name} were read longer ago than half of sweep.grace", retryable=True
                )
            if self._folder.commit(following.version, encode_metadata(following.metadata, following.version)):
                following.etag = self._folder.point_to(following.version, state.etag)
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
        return Published(state.version, url, changed, whole, state.objects, state.records, commits)

    # -- the last version ------------------------------------------------------------------------

    def _read(self, *, take: bool) -> _State:
        """Read the last version; move the pointer if its writer died before it did."""
        confirmed, pointer = self._seconds(), self._folder.find()
        state = _State(pointer.version, pointer.etag, None, confirmed)
        version = pointer.version
        while version:
            try:
                metadata = reread_on_damage(partial(self._read_version, version))
            except ObjectNotFound:
                if take:
                    break  # no version of ours is left
                raise CorruptionError(
                    "the pointer of a table names metadata that is gone", where=self._folder.url(version)
                ) from None
            except ForeignCommit:
                if not take:
                    raise
                version -= 1
                continue
            if metadata.location != self._folder.location:
                if take:
                    break
                raise ConfigError(
                    f"the table in {self._folder.location} was made for {metadata.location}: a copied bucket needs a "
                    f"new table; {ANEW}"
                )
            state.metadata = metadata
            self._read_manifests(state)
            break
        if pointer.hint != pointer.version and pointer.version:
            state.etag = self._folder.point_to(pointer.version, pointer.etag)
        return state

    def _read_version(self, version: int) -> Any:
        data, where = self._folder.read(version), self._folder.url(version)
        return decode_metadata(data, version, self._topic_id, where=where)

    def _read_manifests(self, state: _State) -> None:
        snapshot = state.metadata.current_snapshot()
        if snapshot is None:
            return
        state.offsets = self._offsets(snapshot.summary.additional_properties)
        for file in self._files.read_list(snapshot.manifest_list):
            entries = self._files.read_manifest(file)
            if len(entries) < CLOSED_OBJECTS and state.open_file is None:
                state.open, state.open_file = entries, file
            else:
                state.closed.append(_Manifest.of(file, entries))

    def _offsets(self, summary: Mapping[str, str]) -> _Offsets:
        """Return the offsets in a summary, or in the document that it names."""
        url = summary.get("tiered.offsets-file")
        if url is None:
            prefix = "tiered.offsets."
            return {
                int(name.removeprefix(prefix)): [
                    *map(int, value.split("-")),
                    int(summary[f"tiered.begins.{name.removeprefix(prefix)}"]),
                ]
                for name, value in summary.items()
                if name.startswith(prefix)
            }
        document = decode_document(self._store.get(self._files.key(url)).data, where=url)
        return {int(key): value["offsets"] for key, value in document["partitions"].items()}

    # -- the next version ------------------------------------------------------------------------

    def _heads(self, partitions: int) -> dict[int, Head]:
        """Read the heads of all partitions that have one."""
        with ThreadPoolExecutor(min(_CONNECTIONS, partitions), thread_name_prefix="tiered-heads") as threads:
            loaded = list(threads.map(lambda partition: self._manifest(partition).load(), range(partitions)))
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
        grace_seconds: float,
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
        now_ms, schema = self._clock() // 1000, _schema_of(meta, heads)
        metadata = state.metadata or first_metadata(self._folder.location, self._topic_id, schema, now_ms)
        now_ms = max(now_ms, metadata.last_updated_ms)
        metadata = with_schema(metadata, schema)
        following = _State(
            state.version + 1, None, metadata, self._seconds(), state.closed, state.open, state.open_file,
            ranges, {partition: item.about for partition, item in ranges.items()},
        )  # fmt: skip
        same = not gone and not fresh and following.offsets == state.offsets
        if same and metadata is state.metadata and not expired(metadata, now_ms, grace_seconds):
            state.ranges, state.confirmed = ranges, following.confirmed
            return None
        if not same or metadata.current_snapshot_id is None:
            self._write_snapshot(following, gone, fresh, now_ms)
        url = self._folder.url(state.version) if state.version else None
        following.metadata = next_version(
            following.metadata, state.metadata or metadata, url, now_ms, grace_seconds
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

    def _changes(self, state: _State, ranges: Mapping[int, TableRange]) -> tuple[_Gone, list[NamedObject]]:
        """Return what the last version names and the ranges do not, and what it does not name yet."""
        gone: _Gone = {}
        fresh: list[NamedObject] = []
        named = self._named(state) if state.ranges is None else None
        for partition, item in ranges.items():
            manifest = self._manifest(partition)
            if named is None:
                missing, entries = item.changes(manifest, (state.ranges or {}).get(partition))
            else:
                missing = named.get(partition, {})
                entries = [entry for entry in item.entries(manifest) if missing.pop(entry.name, None) is None]
            if missing:
                gone[partition] = missing
            fresh += [NamedObject(partition, manifest.keys.data(entry.name), entry) for entry in entries]
        return gone, fresh

    def _named(self, state: _State) -> _Gone:
        """Return all objects that a version names, by partition and name."""
        named: _Gone = {}
        for entries in (state.open, *(self._files.read_manifest(item.file) for item in state.closed)):
            for entry in entries:
                partition, base, end = _place(entry)
                named.setdefault(partition, {})[_name(entry)] = base, end
        return named

    def _write_snapshot(self, following: _State, gone: _Gone, fresh: list[NamedObject], now_ms: int) -> None:
        """Write the manifests of a snapshot and their list, and add it to the metadata."""
        metadata, ranges = following.metadata, following.ranges or {}
        before = following.objects, following.records
        snapshot_id, number = metadata.new_snapshot_id(), metadata.next_sequence_number()
        pool, removed = self._reopen(following, gone)
        pool += self._added(metadata, fresh, snapshot_id, number)
        if removed or fresh or following.open_file is None:
            self._write_manifests(following, pool, ranges, snapshot_id, number)
        expected = sum(item.objects for item in ranges.values())
        if following.objects != expected:
            raise CorruptionError(
                f"the manifests have {following.objects} objects, and the heads {expected}",
                where=self._folder.location,
            )
        manifest_list = self._files.write_list(
            following.files,
            snapshot_id=snapshot_id,
            parent_id=metadata.current_snapshot_id,
            sequence_number=number,
        )
        added_records = sum(item.entry.record_count for item in fresh)
        summary = {
            "added-data-files": str(len(fresh)),
            "deleted-data-files": str(removed),
            "added-records": str(added_records),
            "deleted-records": str(before[1] + added_records - following.records),
            "total-data-files": str(following.objects),
            "total-records": str(following.records),
            **self._summary_offsets(ranges),
        }
        following.metadata = with_snapshot(metadata, snapshot_id, manifest_list, summary, now_ms)

    def _reopen(self, following: _State, gone: _Gone) -> tuple[list[Any], int]:
        """Return the entries that are written again, and how many are left out; take their manifests out of the version."""
        pool: list[Any] = []
        removed = 0
        closed: list[_Manifest] = []
        for manifest in following.closed:
            entries = self._files.read_manifest(manifest.file) if manifest.may_have(gone) else []
            live = [entry for entry in entries if not _is_gone(entry, gone)]
            if len(live) == len(entries):
                closed.append(manifest)
            else:
                pool += live
                removed += len(entries) - len(live)
        following.closed = closed
        live = [entry for entry in following.open if not _is_gone(entry, gone)]
        return [*pool, *live], removed + len(following.open) - len(live)

    def _added(self, metadata: Any, fresh: list[NamedObject], snapshot_id: int, number: int) -> list[Any]:
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=snapshot_id,
                sequence_number=number,
                file_sequence_number=number,
                data_file=file,
            )
            for file in data_files(self._store, metadata, fresh)
        ]

    def _write_manifests(
        self,
        following: _State,
        pool: list[Any],
        ranges: Mapping[int, TableRange],
        snapshot_id: int,
        number: int,
    ) -> None:
        """Close manifests with the entries that stay, and write the rest as the open one."""
        from pyiceberg.manifest import ManifestEntryStatus

        def write(entries: list[Any]) -> Any:
            metadata = following.metadata
            file = self._files.write_manifest(
                entries, metadata.schema(), metadata.spec(), snapshot_id=snapshot_id, sequence_number=number
            )
            for entry in entries:
                entry.status = ManifestEntryStatus.EXISTING
            return file

        rest = sorted((entry for entry in pool if _stays(entry, ranges)), key=_place)
        tails = [entry for entry in pool if not _stays(entry, ranges)]
        while len(rest) >= CLOSED_OBJECTS:
            size = CLOSED_OBJECTS if len(rest) >= 2 * CLOSED_OBJECTS else len(rest)
            part, rest = rest[:size], rest[size:]
            following.closed.append(_Manifest.of(write(part), part))
        following.open = [*rest, *tails]
        following.open_file = write(following.open) if following.open else None

    def _summary_offsets(self, ranges: Mapping[int, TableRange]) -> dict[str, str]:
        if len(ranges) > _SUMMARY_PARTITIONS:
            partitions = {
                str(partition): {"offsets": item.about, "commit": item.head.commit_id}
                for partition, item in ranges.items()
            }
            key = f"{self._folder.prefix}offsets-{uuid4()}.json"
            self._store.put(key, encode_document({"partitions": partitions}))
            return {"tiered.offsets-file": object_url(self._store, key)}
        summary: dict[str, str] = {}
        for partition, item in ranges.items():
            start, end, begins = item.about
            summary[f"tiered.offsets.{partition}"] = f"{start}-{end}"
            summary[f"tiered.begins.{partition}"] = str(begins)
            summary[f"tiered.commit.{partition}"] = item.head.commit_id
        return summary


def _place(entry: Any) -> tuple[int, int, int]:
    """Return partition, base offset and end offset of an entry's object."""
    file = entry.data_file
    base, last = (
        int.from_bytes(bounds[OFFSET_ID], "little", signed=True)
        for bounds in (file.lower_bounds, file.upper_bounds)
    )
    return file.partition[0], base, last + 1


def _name(entry: Any) -> str:
    name: str = entry.data_file.file_path.rpartition("/")[2]
    return name


def _is_gone(entry: Any, gone: _Gone) -> bool:
    return _name(entry) in gone.get(entry.data_file.partition[0], ())


def _stays(entry: Any, ranges: Mapping[int, TableRange]) -> bool:
    partition, base, _ = _place(entry)
    return partition not in ranges or base < ranges[partition].tails


def _schema_of(meta: TopicMeta, heads: Mapping[int, Head]) -> Any:
    """Return the newest columns: of the topic, or of an object that another process published since it was read."""
    schemas = {number: text for head in heads.values() for number, text in head.schemas.items()}
    newest = max(schemas, default=-1)
    return iceberg_schema(schema_from_text(schemas[newest]) if newest > meta.schema_id else meta.schema)
