"""Restore: a local store again, from its bucket alone, that appends on in a new lineage (promises P1, P9).

The order, and what a kill after each step leaves behind::

    1  look     every topic, head and page is read and verified   nothing has changed
    2  mark     <path>/restoring.json, with an id of the restore   <path> does not open as a store; a repeat starts over
    3  begin    store.json in the bucket: one lineage more, and    the old store publishes nothing while the intent holds,
                the intent with the id; the mark gets the lineage  and no new topic or partition before it took over
    4  adopt    each topic.json in the bucket: the new lineage     the old store cannot grow or delete the topic
    5  claim    each head: next epoch, a lineage from its end on   the old store is fenced in that partition
       rewind   each head, if `at` is given: as it was then        records since are in no head; a repeat does the same
    6  write    topic.json, lineage.json, start.json and an empty segment that begins at the lineage's offset
    7  finish   store.json in the bucket: the intent goes          the old store is fenced as a whole
    8  name     restoring.json becomes store.json, by one rename   it is a store

A repeat begins one more lineage, which fences the one that was cut short. Its claims added rows to the lineages and
nothing else, so no record is lost by it. A second restore is refused while the intent of the first holds. If it does not,
as the first stands still, they race and get a lineage each, and the higher one wins, in every partition: the lower one
looks at store.json between a head that it read and its PUT, so whatever it still claims the higher one claims after it.
The lower one ends at step 4, 5 or 7; neither can publish what the other does not know.

A restore that fails gives its intent up, one that dies lets it run out. Then the old store goes on with every partition that
was not claimed yet: it takes store.json back by a lineage of its own, which ends a restore that only stood still. The claims
do not wait for that store to pause. They race it (`Committer.claim`), as it looks for an intent every few seconds
only, and a release that does not know of intents never does.

The empty segment carries the end offset, as every newest file does: the next record gets exactly the offset at which the
new lineage began, and everything before it is read from the bucket.

What the old host had acknowledged and not offloaded is not in the new store. It stays readable on the old disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from ..base.units import format_duration, to_us
from ..cold.manifest.commit import Committer, next_lineage
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.restores import IntentHolder
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..cold.object_store.options import check_url
from ..cold.object_store.probe import check_conditional_writes
from ..cold.upkeep.inspect import read_facts_of_entry
from ..engine.host import Host
from ..engine.locations import cold_options
from ..errors import ColdStorageError, ConfigError, CorruptionError, Fenced, SchemaMismatch, StoreLocked
from ..format.document import decode_document, encode_document
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_checks import check_entries
from ..format.producers import states_before
from ..format.schema import schema_to_text
from ..format.segment_facts import ProducerState
from ..format.timestamps import timestamp_us, to_datetime
from ..format.topic_meta import TopicMeta
from ..hot.recovery import first_header
from ..opening import WRITER_LOCK, load_settings, open_store, plain_path
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..tiering.pauses import whoami
from ..warm.bucket_binding import COLD_FILE, BucketBinding, write_binding
from ..warm.catalog import RESTORING_FILE, STORE_FILE, TOPICS_DIRECTORY, Catalog
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem, write_atomically
from ..warm.mount_check import check_local
from ..warm.partition_directory import write_lineage, write_start_offset
from ..warm.segment_writer import SegmentWriter
from .point_in_time import TopicAt, begins_after, revive_topic, rewound, topics_at

log = logging.getLogger("tiered.restore")

# What an empty file system brings along, and what a restore makes before its mark.
_NOTHING = {"lost+found", WRITER_LOCK, f".{RESTORING_FILE}.tmp"}
_HALF_DONE = {RESTORING_FILE, COLD_FILE, f".{COLD_FILE}.tmp", TOPICS_DIRECTORY}


def restore(
    url: str,
    path: str | os.PathLike[str],
    *,
    at: object = None,
    settings: Settings | str | os.PathLike[str] | None = None,
    host: Host | None = None,
) -> Store:
    """Make a local store again from its bucket, and open it for writing.

    No records are downloaded: what was offloaded is read from the bucket. The next append gets the offset at which
    the bucket ends. The store that wrote to the bucket before is fenced: at its next pass it finds the new lineage,
    and its appends raise `Fenced`. What it had not offloaded stays readable on its disk, and only there.

    A restore that was cut short is repeated with the same arguments; until then the directory does not open.

    A partition of which the bucket had nothing at the time is empty then; that is logged before anything is changed.

    Parameters
    ----------
    url
        Where the bucket is, as in ``tiered.open(cold=…)``; the restored store remembers it.
    path
        A directory that is empty or not there yet.
    at
        Aware datetime, or integer milliseconds since the epoch: the store as it was then. The records of every
        object whose last record had been appended by then are back, also those that retention, ``delete_before``
        or `Store.delete_topic` removed since; later ones are left out, and the next append takes their offsets. It goes back
        ``sweep.grace`` at most: so long the sweep leaves what nothing names.
    settings
        `Settings`, or the path of a ``tiered.toml``. Policies are part of it, not of the bucket.

    Raises
    ------
    ConfigError
        There is no store at the URL, the directory is not empty, or `at` is too long ago or still to come.
    CorruptionError, UnsupportedFormat
        A document, head or page of the bucket is damaged, or, with `at`, an object that is needed and that nothing
        names. Nothing has changed.
    Fenced
        This restore stood still for so long that another one, or the store that it was to fence, went on.
    StoreLocked
        Another restore is under way, or somebody works in the directory; the message names who, and for how long at most.
    ColdStorageError
        The bucket failed, or a running store committed first for a minute, in which case the message says what to do.
        The store that was to be fenced goes on with what was not claimed yet.
    DiskFull
    """
    settings = load_settings(settings)
    host = host or Host()
    root = Path(plain_path(path)).absolute()
    check_local(root)
    place = _place(url, settings)
    at_us = None if at is None else _moment(at, settings, host)
    with closing(host.open_bucket(url, cold_options(settings, place))) as object_store:
        bucket = StoreDocuments(object_store)
        _check_empty(root)
        verified: dict[str, ObjectEntry] = {}
        store_id = _look(bucket, at_us, host.clock(), verified)
        check_conditional_writes(object_store)
        _Restore(bucket, store_id, root, place, host, at_us, verified).run()
    return open_store(root, cold=url, settings=settings, host=host)


def _place(url: str, settings: Settings) -> BucketBinding:
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError('a restore takes the URL of a bucket such as "s3://bucket/prefix"')
    check_url(url)
    known = settings.cold.url
    if known is not None and known.rstrip("/") != url.rstrip("/"):
        raise ConfigError(f"the settings have their cold tier at {known}, not at {url}; give the same URL")
    return BucketBinding(url, settings.cold.endpoint_url, settings.cold.region, claimed=True)


def _moment(at: object, settings: Settings, host: Host) -> int:
    try:
        at_us = timestamp_us(at)
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None
    now_us, grace_us = host.clock(), to_us(settings.sweep.grace)
    if at_us > now_us:
        raise ConfigError(f"{to_datetime(at_us)} is still to come; leave the time out to get all there is")
    if at_us < now_us - grace_us:
        raise ConfigError(
            f"{to_datetime(at_us)} is more than sweep.grace = {format_duration(grace_us)} ago: a sweep may be removing what "
            "is needed. If none has run since, say so by a longer grace in the settings"
        )
    return at_us


def _iso(at_us: int) -> str:
    return to_datetime(at_us).isoformat().replace("+00:00", "Z")


def _look(bucket: StoreDocuments, at_us: int | None, now_us: int, verified: dict[str, ObjectEntry]) -> UUID:
    """Return the store's id, once everything that a restore builds upon was read and verified.

    What the restore will empty, as `at_us` lies before its first record, is logged. The orphans that come back are
    added to `verified`.
    """
    emptied: list[str] = []
    store_id = bucket.read_store_id()
    if store_id is None:
        raise ConfigError(f"there is no store at {bucket.store.url}; check the URL")
    for topic in _topics(bucket, at_us):
        meta = topic.meta
        for partition in range(meta.partitions):
            cold = PartitionManifest(bucket.store, meta.name, meta.topic_id, partition)
            loaded = cold.load()
            if loaded is None and any(bucket.store.list(cold.keys.prefix)):
                # The first claim makes it, before anything is uploaded: just now, or it was lost.
                loaded = cold.load()
                if loaded is None:
                    where = cold.where(cold.keys.head)
                    raise CorruptionError("head.json is missing beside objects", where=where)
            if loaded is not None:
                _check_manifest(cold, loaded.head, meta, store_id)
                if at_us is not None and begins_after(cold, loaded.head, at_us):
                    emptied.append(f"{meta.name}/{partition}")
                if at_us is not None and loaded.head.committed_us > at_us:
                    rewound(cold, next_lineage(loaded.head, now_us), at_us, now_us, verified)
    if at_us is not None and emptied:
        when = _iso(at_us)
        log.warning("nothing of %s was in the bucket by %s: it will be empty", ", ".join(emptied), when)
    return store_id


def _topics(bucket: StoreDocuments, at_us: int | None) -> Iterator[TopicAt]:
    """Yield the topics that are not deleted, or were not at the time."""
    for name in bucket.names():
        for topic_id in bucket.topic_ids(name):
            # Its tombstone stays, and nothing is written before its document.
            if bucket.read_topic(name, topic_id) is None:
                raise CorruptionError(
                    "topic.json is missing beside objects", where=f"{bucket.store.url}/{name}/{topic_id}"
                )
    if at_us is not None:
        yield from topics_at(bucket, at_us)
        return
    for topic in bucket.topics().values():
        yield TopicAt(_meta(bucket, topic))


def _meta(bucket: StoreDocuments, topic: dict[str, Any]) -> TopicMeta:
    return TopicMeta.from_json(topic, where=f"{bucket.store.url}/{topic.get('name')}/topic.json")


def _check_manifest(cold: PartitionManifest, head: Head, meta: TopicMeta, store_id: UUID) -> None:
    where = cold.where(cold.keys.head)
    entries = [entry for ref in head.pages for entry in cold.load_page(ref)]
    problems = check_entries(head, [*entries, *head.inline])
    if head.store_id != store_id:
        problems.append(f"it belongs to store {head.store_id}")
    for schema_id, text in head.schemas.items():
        if schema_id >= len(meta.schemas) or schema_to_text(meta.schemas[schema_id]) != text:
            problems.append(f"schema {schema_id} is not the topic's")
    if problems:
        raise CorruptionError(f"manifest contradicts itself: {problems[0]}", where=where)


def _check_empty(root: Path) -> None:
    """Refuse a directory that holds anything but what an earlier restore, cut short, had made.

    Raises
    ------
    ConfigError
    """
    try:
        names = {path.name for path in root.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigError(f"{root} is no directory; choose another path") from None
    ours = _NOTHING | _HALF_DONE if RESTORING_FILE in names else _NOTHING
    if names - ours:
        raise ConfigError(
            f"{root} is not empty (it holds {min(names - ours)}); a store is restored into an empty directory"
        )


class _Restore:
    """The steps that change something."""

    def __init__(
        self, bucket: StoreDocuments, store_id: UUID, root: Path, place: BucketBinding, host: Host,
        at_us: int | None, verified: dict[str, ObjectEntry],
    ) -> None:  # fmt: skip
        self._bucket = bucket
        self._at_us = at_us
        self._verified = verified
        self._store_id = store_id
        self._place = place
        self._host = host
        self._fs: FileSystem = host.fs
        self._catalog = Catalog(host.fs, root)
        self._root = root

    def run(self) -> None:
        self._catalog.make_root()
        lock = FileLock.acquire(self._root / WRITER_LOCK, f"the store {self._root}")
        try:
            _check_empty(self._root)
            restoring = self._begin(self._begun())
            try:
                self._write(restoring)
                restoring.finish()
            except BaseException:
                restoring.give_up()
                raise
            self._fs.rename(self._root / RESTORING_FILE, self._root / STORE_FILE)
            self._fs.sync_directory(self._root)
        finally:
            lock.release()

    def _begin(self, begun: dict[str, Any] | None) -> IntentHolder:
        """Announce the restore, under the id that is on the disk by then: so a repeat knows its own intent."""
        known = (begun or {}).get("restore")
        restore_id = known if isinstance(known, str) else str(uuid4())
        if known != restore_id:
            self._mark(restore_id, (begun or {}).get("lineage"))
        restoring = IntentHolder(self._bucket, restore_id, f"{whoami()} (process {os.getpid()})")
        try:
            restoring.begin()
        except StoreLocked:
            if begun is None:
                self._fs.unlink(self._root / RESTORING_FILE)
            raise
        return restoring

    def _write(self, restoring: IntentHolder) -> None:
        self._mark(restoring.restore_id, restoring.lineage)
        self._clear()
        write_binding(self._fs, self._root, self._place)
        self._fs.make_directory(self._root / TOPICS_DIRECTORY)
        for topic in _topics(self._bucket, self._at_us):
            self._topic(topic, restoring)

    def _mark(self, restore_id: str, lineage: int | None = None) -> None:
        begun = {} if lineage is None else {"lineage": lineage}
        mark = {"id": str(self._store_id), **begun, "at_us": self._at_us, "restore": restore_id}
        write_atomically(self._fs, self._root / RESTORING_FILE, encode_document(mark))

    def _begun(self) -> dict[str, Any] | None:
        """Return the mark of a restore that was cut short here; None where there was none.

        Raises
        ------
        ConfigError
            It was one to another time, which may be in some heads already.
        """
        path = self._root / RESTORING_FILE
        try:
            mark = decode_document(path.read_bytes(), where=str(path))
        except FileNotFoundError:
            return None
        begun = mark.get("at_us")
        if "lineage" in mark and begun != self._at_us:
            asked = "of the newest state" if begun is None else f"to {_iso(begun)}"
            raise ConfigError(
                f"a restore {asked} was cut short in {self._root}: repeat that one, or restore into another directory"
            )
        return mark

    def _clear(self) -> None:
        """Remove what an earlier restore, cut short, had made; its mark last."""
        for base, directories, files in os.walk(self._root / TOPICS_DIRECTORY, topdown=False):
            for file in files:
                self._fs.unlink(Path(base) / file)
            for inner in directories:
                self._fs.remove_directory(Path(base) / inner)
        self._fs.unlink(self._root / COLD_FILE)

    def _topic(self, found: TopicAt, restoring: IntentHolder) -> None:
        lineage = restoring.lineage
        if found.deleted or found.rivals:
            revive_topic(self._bucket, found, lineage, self._host.clock())
        topic = self._bucket.adopt_topic(found.meta.name, found.meta.topic_id, lineage)
        if DELETED in topic:
            return
        meta = _meta(self._bucket, topic)
        self._catalog.write_topic(meta)
        for partition in range(meta.partitions):
            self._partition(meta, partition, restoring)

    def _partition(self, meta: TopicMeta, partition: int, restoring: IntentHolder) -> None:
        cold = PartitionManifest(self._bucket.store, meta.name, meta.topic_id, partition)
        committer = Committer(cold, self._store_id, clock=self._host.clock)
        before = cold.load() if self._at_us is not None else None
        # Looked at between the head and its PUT: else a restore that was overtaken would fence the one that overtook.
        epoch = self._claim(committer, restoring)
        head = committer.survey()[0].head
        _check_manifest(cold, head, meta, self._store_id)
        if dict(head.lineages)[epoch] != head.end_offset:
            raise Fenced(f"{cold.where(cold.keys.head)} went on without us")
        at_us = self._at_us
        if at_us is not None and not _unchanged_since(before.head if before else None, head, at_us):
            head = committer.commit(
                lambda claimed: rewound(cold, claimed, at_us, self._host.clock(), self._verified)
            )
        end = head.end_offset
        directory = self._catalog.partition_directory(meta.name, partition)
        write_lineage(self._fs, directory, epoch)
        if head.start_offset:
            write_start_offset(self._fs, directory, head.start_offset)
        last = cold.entries(head, end - 1, end)
        self._segment(directory, meta, partition, epoch, end, last[-1] if last else None)

    def _claim(self, committer: Committer, restoring: IntentHolder) -> int:
        try:
            return committer.claim(begin_lineage=True, check=restoring.check)
        except ColdStorageError as error:
            if not error.retryable:
                raise
            raise ColdStorageError(
                f"{error}. The restore was given up. A store that publishes pauses for one, unless its release is older than "
                "this: stop its writer and its daemon, or take their access to the bucket away, and repeat this with "
                "the same arguments",
                retryable=True,
            ) from error

    def _segment(
        self,
        directory: Path,
        meta: TopicMeta,
        partition: int,
        epoch: int,
        base: int,
        last: ObjectEntry | None,
    ) -> None:
        """Write the empty segment that carries the end offset."""
        # Ages count by a clock that never goes back.
        created_us = max(self._host.clock(), last.last_append_us if last else 0)
        cold = PartitionManifest(self._bucket.store, meta.name, meta.topic_id, partition)
        header = first_header(
            self._store_id,
            meta,
            partition,
            base,
            created_us,
            lineage_epoch=epoch,
            prev_origin_hash=last.origin_hash if last and last.sealed else "",
            producers=_producers(cold, last, base),
        )
        SegmentWriter.create(self._fs, directory, header).close()


def _producers(cold: PartitionManifest, last: ObjectEntry | None, end: int) -> tuple[ProducerState, ...]:
    """Return the idempotent producers that the newest object knows; none where there is no object."""
    if last is None:
        return ()
    # The log may have only a part of the object.
    return states_before(read_facts_of_entry(cold.store, cold.keys.data(last.name), last)[-1].producers, end)


def _unchanged_since(before: Head | None, claimed: Head, at_us: int) -> bool:
    """Whether nothing was published since `at_us` but our own claim."""
    if before is None:
        return claimed.previous_commit_ids == ()
    return claimed.previous_commit_ids[:1] == (before.commit_id,) and before.committed_us <= at_us
