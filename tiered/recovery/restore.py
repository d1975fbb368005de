"""The restore of a local store from its bucket; it continues the log in a new lineage (promises P1, P9).

The steps, and the state after a kill between two of them::

    1  verify   every topic, head and page is read and verified    nothing has changed
    2  mark     <path>/restoring.json, with the restore's id       <path> does not open as a store; a repeat starts over
    3  begin    store.json in the bucket: one lineage more and     the old store publishes nothing while the intent holds,
                the intent with the id; the mark has the lineage   and no new topic or partition until it takes over
    4  adopt    each topic.json in the bucket: the new lineage     the old store cannot grow or delete the topic
    5  claim    each head: next epoch, a lineage from its end on   the old store is fenced in that partition
       rewind   each head, with `at`: the log at that time,        later records are in no head; a repeat does the same
                without what open erasures remove
       revive   a topic that was deleted since: its topic.json     until then no reader sees it, and a repeat knows that
    6  write    topic.json, lineage.json, start.json and an empty segment that begins at the lineage's offset
    7  finish   store.json in the bucket: the intent is removed    the old store is fenced as a whole
    8  name     restoring.json is renamed to store.json            the directory is a store

The page docs/design/restore.md explains repeats and races. Records that the old host had acknowledged and not offloaded
are not in the new store; they stay readable on the old disk.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..base.caller import whoami
from ..base.units import format_duration, to_us
from ..cold.manifest.commit import Committer
from ..cold.manifest.erasures import adopt_ledger, stored_values
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.restores import IntentHolder
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..cold.object_store.options import check_url
from ..cold.object_store.probe import check_conditional_writes
from ..cold.upkeep.inspect import read_facts_of_entry
from ..engine.host import Host
from ..engine.locations import cold_options
from ..errors import ColdStorageError, ConfigError, Fenced, SchemaMismatch, StoreLocked
from ..format.document import (
    ERASURES_FEATURE,
    FEATURES,
)
from ..format.erasure import LEDGER_FILE
from ..format.manifest import Head, ObjectEntry
from ..format.producers import states_before
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.segment_facts import ProducerState
from ..format.timestamps import timestamp_us, to_datetime
from ..format.topic_meta import TopicMeta
from ..hot.recovery import first_header
from ..opening import load_settings, open_store, plain_path
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..transactions.restored_log import cuts_of
from ..warm.bucket_binding import COLD_FILE, BucketBinding, write_binding
from ..warm.catalog import (
    RESTORING_FILE,
    STORE_FILE,
    STORE_LOCK,
    TOPICS_DIRECTORY,
    TRANSACTIONS_CUTS,
    Catalog,
    TransactionsCut,
)
from ..warm.document_file import find_document, write_document
from ..warm.erasure_ledger import ErasureLedger
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem
from ..warm.mount_check import check_local
from ..warm.partition_directory import write_lineage, write_start_offset
from ..warm.segment_writer import SegmentWriter
from .bucket_check import (
    VerifiedBucket,
    check_manifest,
    keeps_all_records,
    restored_topics,
    topic_meta,
    utc_text,
    verify_bucket,
)
from .completed_ends import CompletedEnds
from .due_erasures import DueErasures
from .point_in_time import rewind_head
from .topics_at_time import TopicAt, revive_topic

log = logging.getLogger("tiered.restore")

# Files of an empty file system, and files that a restore makes before its mark.
_NOTHING = {"lost+found", STORE_LOCK, f".{RESTORING_FILE}.tmp"}
_BEGAN = "began_us"
_OF_ERASURES = {LEDGER_FILE, f".{LEDGER_FILE}.tmp"}
_HALF_DONE = {RESTORING_FILE, COLD_FILE, f".{COLD_FILE}.tmp", TOPICS_DIRECTORY} | _OF_ERASURES


def restore(
    url: str,
    path: str | os.PathLike[str],
    *,
    at: object = None,
    settings: Settings | str | os.PathLike[str] | None = None,
    host: Host | None = None,
) -> Store:
    """Make a local store from its bucket, and open it for writing.

    No records are downloaded; offloaded records are read from the bucket. The next append gets the offset at which the
    bucket ends. The restore fences the store that wrote to the bucket before: at its next pass it finds the new lineage,
    and its appends raise `Fenced`. Records that it had not offloaded stay readable on its disk only.

    Repeat an interrupted restore with the same arguments; until then the directory does not open.

    With `at`, a partition that had no objects at that time becomes empty; a warning names it before anything changes.

    Parameters
    ----------
    url
        URL of the bucket, as in ``tiered.open(cold=…)``; the restored store remembers it.
    path
        A directory that is empty or does not exist.
    at
        Aware datetime, or integer milliseconds since the epoch: restore the state at this time. The new store has the
        records of every object whose last record had been appended by then, also those that retention, ``delete_before``
        or `Store.delete_topic` removed later. It lacks later records; the next append takes their offsets. The time is at
        most ``sweep.grace`` ago, because the sweep keeps orphans for so long.
    settings
        `Settings`, or the path of a ``tiered.toml``. They hold the policies; the bucket does not.

    Raises
    ------
    ConfigError
        There is no store at the URL, the directory is not empty, or `at` is too long ago or in the future. Or a restore to a
        time was not finished, which left some partitions at that time, and `at` is not before it.
    CorruptionError, UnsupportedFormat
        A document, head or page of the bucket is damaged, or an orphan that `at` needs. Nothing has changed.
    Fenced
        This restore stood still so long that another restore, or the old store, continued.
    StoreLocked
        Another restore is under way, or another process uses the directory; the message names it, and how long it may take.
    ColdStorageError
        The bucket failed, or a running store committed first for a minute; the message says what to do. The old store
        continues the partitions that were not claimed.
    DiskFull
    """
    settings = load_settings(settings)
    host = host or Host()
    root = Path(plain_path(path)).absolute()
    check_local(root)
    binding = _check_binding(url, settings)
    at_us = None if at is None else _check_time(at, settings, host)
    with closing(host.open_bucket(url, cold_options(settings, binding))) as object_store:
        bucket = StoreDocuments(object_store)
        _check_empty(root)
        verified = verify_bucket(bucket, at_us, host.clock())
        check_conditional_writes(object_store)
        _Restore(bucket, verified, at_us, root, binding, settings, host).run()
    return open_store(root, cold=url, settings=settings, host=host)


def _check_binding(url: str, settings: Settings) -> BucketBinding:
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError('a restore takes the URL of a bucket such as "s3://bucket/prefix"')
    check_url(url)
    other = settings.cold.url
    if other is not None and other.rstrip("/") != url.rstrip("/"):
        raise ConfigError(f"the settings have their cold tier at {other}, not at {url}; give the same URL")
    return BucketBinding(url, settings.cold.endpoint_url, settings.cold.region, claimed=True)


def _check_time(at: object, settings: Settings, host: Host) -> int:
    try:
        at_us = timestamp_us(at)
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None
    now_us, grace_us = host.clock(), to_us(settings.sweep.grace)
    if at_us > now_us:
        raise ConfigError(
            f"{to_datetime(at_us)} is in the future; leave the time out to restore the newest state"
        )
    if at_us < now_us - grace_us:
        raise ConfigError(
            f"{to_datetime(at_us)} is more than sweep.grace = {format_duration(grace_us)} ago: a sweep may be removing "
            "objects that are needed. If no sweep has run since, set a longer grace in the settings"
        )
    return at_us


def _check_empty(root: Path) -> None:
    """Raise `ConfigError` if a directory has other files than those of an interrupted restore."""
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
    """The steps of a restore that change the bucket or the disk."""

    def __init__(
        self, bucket: StoreDocuments, verified: VerifiedBucket, at_us: int | None, root: Path, binding: BucketBinding,
        settings: Settings, host: Host,
    ) -> None:  # fmt: skip
        self._bucket = bucket
        self._at_us = at_us
        # One time for all partitions: at any other time, all of them are before this restore or all are in it. The clock of another
        # host never dates it before the last commit.
        self._began_us = max(host.clock(), verified.committed_us)
        self._orphans = verified.orphans
        self._store_id = verified.store_id
        self._features: frozenset[str] = frozenset()
        self._cuts: tuple[TransactionsCut, ...] = ()
        self._ends = CompletedEnds(rewound=at_us is not None)
        self._binding = binding
        self._settings = settings
        self._host = host
        self._fs: FileSystem = host.fs
        self._catalog = Catalog(host.fs, root)
        self._root = root

    def run(self) -> None:
        self._catalog.make_root()
        lock = FileLock.acquire(self._root / STORE_LOCK, f"the store {self._root}")
        try:
            _check_empty(self._root)
            intent = self._begin(self._read_mark())
            self._due = DueErasures(self._bucket, self._settings, intent.check)
            try:
                self._write(intent)
                intent.finish()
            except BaseException:
                intent.give_up()
                raise
            if self._cuts:
                self._write_mark(intent.restore_id, intent.lineage)
            self._fs.rename(self._root / RESTORING_FILE, self._root / STORE_FILE)
            self._fs.sync_directory(self._root)
        finally:
            lock.release()

    def _begin(self, mark: dict[str, Any] | None) -> IntentHolder:
        """Announce the restore with the id that is on the disk by then, so that a repeat recognises its own intent."""
        stored = (mark or {}).get("restore")
        restore_id = stored if isinstance(stored, str) else str(uuid4())
        if stored != restore_id:
            self._write_mark(restore_id, (mark or {}).get("lineage"))
        if mark is not None and self._has_moved(mark):
            self._began_us = mark[_BEGAN]
        holder = f"{whoami()} (process {os.getpid()})"
        intent = IntentHolder(self._bucket, restore_id, holder, began_us=self._began_us)
        try:
            intent.begin()
        except StoreLocked:
            if mark is None:
                self._fs.unlink(self._root / RESTORING_FILE)
            raise
        return intent

    def _topics(self) -> list[TopicAt]:
        topics = restored_topics(self._bucket, self._at_us)
        # The transaction log first: by its head, readers know that others are being moved (`transactions.restored_log`).
        return sorted(topics, key=lambda topic: topic.meta.name != TRANSACTIONS_TOPIC)

    def _has_moved(self, mark: dict[str, Any]) -> bool:
        """Whether the interrupted restore of this mark has moved the first head. Its repeat then dates the others as that one."""
        if type(mark.get(_BEGAN)) is not int or "lineage" not in mark or not (topics := self._topics()):
            return False
        meta = topics[0].meta
        first = PartitionManifest(self._bucket.store, meta.name, meta.topic_id, 0).load()
        return first is not None and mark[_BEGAN] in {origin.began_us for origin in first.head.origins}

    def _write(self, intent: IntentHolder) -> None:
        store = self._bucket.read_store()
        assert store is not None  # it has the intent
        # Read only now: the old store may have got its first erasure while the bucket was verified.
        self._features = store[1]
        self._write_mark(intent.restore_id, intent.lineage)
        self._clear()
        write_binding(self._fs, self._root, self._binding)
        self._fs.make_directory(self._root / TOPICS_DIRECTORY)
        for topic in self._topics():
            self._topic(topic, intent)
        if ERASURES_FEATURE in self._features:
            # Before the store can be opened: later appends take the offsets of lost records, and no earlier erasure may
            # concern them.
            erasures = adopt_ledger(self._bucket, self._ends.limit, intent.lineage)
            # An erasure that has ended stays open here until a pass has deleted its values from the bucket.
            left = stored_values(self._bucket.store)
            # Here too, so that the next erasure gets a number of its own.
            ErasureLedger(self._fs, self._root).begin(
                tuple(item.not_ended() if item.values_name in left else item for item in erasures)
            )

    def _write_mark(self, restore_id: str, lineage: int | None = None) -> None:
        begun = {} if lineage is None else {"lineage": lineage}
        mark: dict[str, Any] = {
            "id": str(self._store_id),
            **begun,
            "at_us": self._at_us,
            _BEGAN: self._began_us,
            "restore": restore_id,
        }
        if self._features:
            mark[FEATURES] = sorted(self._features)
        if self._cuts:
            mark[TRANSACTIONS_CUTS] = [cut._asdict() for cut in self._cuts]
        write_document(self._fs, self._root / RESTORING_FILE, mark)

    def _read_mark(self) -> dict[str, Any] | None:
        """Return the mark of an interrupted restore into this directory; None if there was none.

        Raises
        ------
        ConfigError
            The interrupted restore has another time, and may have changed some heads.
        """
        mark = find_document(self._root / RESTORING_FILE)
        if mark is None:
            return None
        at_us = mark.get("at_us")
        if "lineage" in mark and at_us != self._at_us:
            kind = "of the newest state" if at_us is None else f"to {utc_text(at_us)}"
            raise ConfigError(
                f"a restore {kind} was cut short in {self._root}: repeat that one, or restore into another directory"
            )
        return mark

    def _clear(self) -> None:
        """Remove the files of an interrupted restore, except its mark."""
        for base, directories, files in os.walk(self._root / TOPICS_DIRECTORY, topdown=False):
            for file in files:
                self._fs.unlink(Path(base) / file)
            for inner in directories:
                self._fs.remove_directory(Path(base) / inner)
        for name in (COLD_FILE, *_OF_ERASURES):
            self._fs.unlink(self._root / name)

    def _topic(self, topic: TopicAt, intent: IntentHolder) -> None:
        meta, lineage = topic.meta, intent.lineage
        if not topic.deleted:
            document = self._bucket.adopt_topic(meta.name, meta.topic_id, lineage)
            if DELETED in document:
                return
            meta = topic_meta(self._bucket, document)
        self._catalog.write_topic(meta)
        for partition in range(meta.partitions):
            self._partition(meta, partition, intent, revived=topic.deleted)
        if topic.deleted or topic.rivals:
            # Readers see it from here on, so its heads come first; the tombstone tells a repeat that nobody could read them.
            revive_topic(self._bucket, topic, lineage, self._began_us)

    def _partition(self, meta: TopicMeta, partition: int, intent: IntentHolder, *, revived: bool) -> None:
        cold = PartitionManifest(self._bucket.store, meta.name, meta.topic_id, partition)
        committer = Committer(cold, self._store_id, clock=self._host.clock)
        before = cold.load() if self._at_us is not None else None
        # The claim checks the intent between the head and its PUT: otherwise an overtaken restore would fence the other.
        epoch = self._claim(committer, intent)
        head = committer.survey()[0].head
        check_manifest(cold, head, meta, self._store_id)
        if dict(head.lineages)[epoch] != head.end_offset:
            raise Fenced(f"{cold.where(cold.keys.head)} was changed by another store during this restore")
        at_us = self._at_us
        if at_us is not None:
            head = self._at(head, at_us, meta, committer, before.head if before else None, revived=revived)
        end = head.end_offset
        if keeps_all_records(meta, self._features):
            self._cuts = cuts_of(head)
            if ERASURES_FEATURE in self._features:
                self._ends.add_log(cold, head, meta, self._cuts)
        directory = self._catalog.partition_directory(meta.name, partition)
        write_lineage(self._fs, directory, epoch)
        if head.start_offset:
            write_start_offset(self._fs, directory, head.start_offset)
        entries = cold.entries(head, end - 1, end)
        last = entries[-1] if entries else None
        producers = _producers(cold, last, end)
        self._ends.add(meta, partition, head, producers)
        self._segment(directory, meta, partition, epoch, end, last, producers)

    def _at(
        self,
        head: Head,
        at_us: int,
        meta: TopicMeta,
        committer: Committer,
        before: Head | None,
        *,
        revived: bool,
    ) -> Head:
        """Publish the log at `at_us` without what open erasures remove; return the head, which is `head` if nothing changes."""
        unchanged, erasing = _unchanged_since(before, head, at_us), ERASURES_FEATURE in self._features
        if unchanged and not (revived and erasing):
            return head
        cold, beyond = committer.partition, keeps_all_records(meta, self._features)
        readable = cold.entries(head) if erasing and not revived else ()
        # The log may begin in the middle of an object.
        named = frozenset(entry.name for entry in readable if entry.base_offset >= head.start_offset)

        def change(claimed: Head) -> Head:
            if not unchanged:
                now_us = self._host.clock()
                claimed = rewind_head(cold, claimed, at_us, now_us, self._orphans, beyond=beyond)
            return self._due.carried_out(claimed, named, meta, committer) if erasing else claimed

        return committer.commit(change)

    def _claim(self, committer: Committer, intent: IntentHolder) -> int:
        try:
            return committer.claim(begin_lineage=True, began_us=self._began_us, check=intent.check)
        except ColdStorageError as error:
            if not error.retryable:
                raise
            raise ColdStorageError(
                f"{error}. The restore was given up: a running store of an older release publishes without a pause: stop its "
                "writer and its daemon, or remove their access to the bucket, and repeat this with the same arguments",
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
        producers: tuple[ProducerState, ...],
    ) -> None:
        """Write the empty segment that holds the end offset."""
        # Append times must not decrease along the log.
        created_us = max(self._host.clock(), last.last_append_us if last else 0)
        header = first_header(
            self._store_id,
            meta,
            partition,
            base,
            created_us,
            lineage_epoch=epoch,
            prev_origin_hash=last.origin_hash if last and last.sealed else "",
            producers=producers,
        )
        SegmentWriter.create(self._fs, directory, header).close()


def _producers(cold: PartitionManifest, last: ObjectEntry | None, end: int) -> tuple[ProducerState, ...]:
    """Return the idempotent producers in the newest object; none without an object."""
    if last is None:
        return ()
    # The log may end within the object.
    return states_before(read_facts_of_entry(cold.store, cold.keys.data(last.name), last)[-1].producers, end)


def _unchanged_since(before: Head | None, claimed: Head, at_us: int) -> bool:
    """Whether nothing but this restore's claim was published since `at_us`."""
    if before is None:
        return claimed.previous_commit_ids == ()
    return claimed.previous_commit_ids[:1] == (before.commit_id,) and before.committed_us <= at_us
