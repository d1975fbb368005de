"""Traces of erasures: whatever may still give back erased records after no manifest names them any more.

Each check looks at what is there, not at what should have happened. An erasure is done when no check finds anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from uuid import UUID

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.erasures import lost_values
from ..cold.manifest.keys import parse_object_name, topic_key, topic_prefix
from ..cold.manifest.store_documents import StoreDocuments
from ..cold.object_store.protocol import KeepsVersions
from ..cold.upkeep.inspect import read_facts, rebuild_entry
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import CorruptionError, ObjectNotFound
from ..format.erasure import LedgerEntry
from ..format.horizons import object_horizon
from ..format.predicate import In
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from ..survey.erasure_places import (
    ErasurePlace,
    copied_files,
    damaged_files,
    directories,
    named_objects,
    old_versions,
    replaced_files,
    staged_files,
    unfinished_uploads,
)
from ..table.table_sweep import stale_files
from ..warm.catalog import deletions, half_removed
from ..warm.writer_requests import REQUEST_FILE
from .erase_log import LogTraces
from .erased_rows import plain_values
from .local_actions import LocalActions
from .partition_handle import PartitionHandle

_Search = Callable[[LedgerEntry, TopicMeta | None], Iterator[str]]


class Traces:
    """Looks for traces of erasures in one open store.

    Attributes
    ----------
    log
        Looks for them in the transaction log.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, local: LocalActions) -> None:
        self._context = context
        self._topics = topics
        self._local = local
        self.log = LogTraces(context, topics)
        # Orphans that were read and have no such record; objects never change.
        self._clean: set[tuple[UUID, str]] = set()
        # The rows that an early build had staged, at the first look for an erasure.
        self._staged: dict[UUID, frozenset[Path]] = {}
        self.searches_here: dict[ErasurePlace, _Search] = {
            ErasurePlace.SEGMENTS: self._replaced,
            ErasurePlace.DAMAGED: self._damaged,
            ErasurePlace.STAGED: self._staged_rows,
            ErasurePlace.LOG_FILES: lambda erasure, _: self.log.here(erasure),
        }
        self.searches_in_bucket: dict[ErasurePlace, _Search] = {
            ErasurePlace.LOG_OBJECTS: lambda erasure, _: self.log.in_bucket(erasure),
            ErasurePlace.OBJECTS: self._objects,
            ErasurePlace.TABLE: self._table,
            ErasurePlace.UPLOADS: self._uploads,
            ErasurePlace.VERSIONS: self._versions,
            ErasurePlace.VALUES: self._values,
            ErasurePlace.COPIES: self._copies,
        }

    def here(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Yield what is left on this disk and in the memory of its writers, one line each; sends no request.

        Parameters
        ----------
        meta
            The erasure's topic; None if it was deleted.

        Raises
        ------
        CorruptionError, UnsupportedFormat, OSError
        """
        yield from self._changes(meta)
        for search in self.searches_here.values():
            yield from search(erasure, meta)

    def in_bucket(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Yield what is left in the bucket, one line each; old versions of objects that are gone are deleted.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        ObjectsHeld
            The bucket keeps old versions; the message says until when.
        """
        for search in self.searches_in_bucket.values():
            yield from search(erasure, meta)

    # -- this disk -------------------------------------------------------------------------------

    def _changes(self, meta: TopicMeta | None) -> Iterator[str]:
        """Yield what is under way: deletions of topics, and requests to writers in other processes to forget their blocks."""
        for deletion in deletions(self._root):
            yield f"the deletion of topic {deletion.name!r} is not finished"
        for path in half_removed(self._root):
            yield f"{path} has files of a deleted topic; a pass deletes them"
        for partition in range(0 if meta is None else meta.partitions):
            assert meta is not None
            handle = PartitionHandle.of(self._topics, meta, partition)
            if (handle.directory / REQUEST_FILE).exists() and not self._local.forget_recent(handle):
                yield f"the writer of {meta.name}/{partition}, another process, has not taken its request yet"

    @property
    def _root(self) -> Path:
        root = self._context.tiers.locations.root
        assert root is not None  # the ledger lies in it
        return root

    def _replaced(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        for _, _, directory in directories(self._context.tiers, self._topics_of(erasure, meta)):
            for path in replaced_files(directory):
                yield f"{path} was replaced; a pass deletes it"

    def _damaged(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Delete the damaged files that were put aside: they cannot be searched for records."""
        tiers, fs = self._context.tiers, self._context.fs
        for topic, _, directory in directories(tiers, self._topics_of(erasure, meta)):
            paths = damaged_files(directory)
            with tiers.hold_topic(topic) if paths else nullcontext():
                for path in paths:
                    fs.unlink(path)
                if paths:
                    fs.sync_directory(directory)
        yield from ()

    def _staged_rows(self, erasure: LedgerEntry, _: TopicMeta | None) -> Iterator[str]:
        staged = self._staged.setdefault(erasure.id, frozenset(staged_files(self._root)))
        for path in staged:
            if path.exists():
                yield f"{path} holds staged rows from before"

    def _copies(self, _: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Delete copies of objects that no head names; those of deleted topics go with each pass."""
        copied = [] if meta is None else copied_files(self._context.tiers, meta)
        live = named_objects(self._context.tiers, [meta]) if meta is not None and copied else set()
        for key, path in copied:
            copies = self._context.tiers.copies
            if copies is not None and path.name not in live:
                copies.drop(key)
        yield from ()

    def _topics_of(self, erasure: LedgerEntry, meta: TopicMeta | None) -> list[TopicMeta]:
        """Return the erasure's topic, and the transaction log if it may have rows of it."""
        log = self.log.log(erasure)
        return [item for item in (meta, None if log is None else log.meta) if item is not None]

    # -- the bucket ------------------------------------------------------------------------------

    def _objects(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        if meta is None:
            yield from self._of_deleted_topic(erasure)
        else:
            for partition in range(meta.partitions):
                yield from self._orphans(erasure, meta, partition)

    def _of_deleted_topic(self, erasure: LedgerEntry) -> Iterator[str]:
        tombstone = topic_key(erasure.topic, erasure.topic_id)
        for info in self._context.tiers.object_store.list(topic_prefix(erasure.topic, erasure.topic_id)):
            if info.key != tombstone:
                yield f"{info.key} of the deleted topic; a sweep deletes it"

    def _orphans(self, erasure: LedgerEntry, meta: TopicMeta, partition: int) -> Iterator[str]:
        """Yield the objects that no manifest names and that have a record of the erasure."""
        manifest = PartitionHandle.of(self._topics, meta, partition).manifest
        prefix = manifest.keys.data_prefix
        # Listed first: an object that is published in between is named by the head.
        listed = list(manifest.store.list(prefix))
        loaded = manifest.load()
        head = None if loaded is None else loaded.head
        named = set() if head is None else {entry.name for entry in manifest.entries(head)}
        for info in listed:
            name = info.key.removeprefix(prefix)
            parsed = parse_object_name(name)
            if parsed is None or name in named:
                continue
            if parsed.base_offset >= object_horizon(erasure, partition, parsed.epoch, head):
                continue
            if (erasure.id, info.key) in self._clean:
                continue
            try:
                held = self._holds(erasure, meta, info.key)
            except ObjectNotFound:
                continue  # swept since
            except CorruptionError:
                held = True
            if held:
                yield f"{info.key} is kept for sweep.grace; a sweep deletes it"
            else:
                self._clean.add((erasure.id, info.key))

    def _holds(self, erasure: LedgerEntry, meta: TopicMeta, key: str) -> bool:
        store, ledger = self._context.tiers.object_store, self._context.erasures
        assert ledger is not None
        facts = read_facts(store, key).facts
        schema = meta.schemas[facts.schema_id]
        if erasure.column not in schema.names:
            return False
        values = plain_values(ledger.read_values(erasure, schema.field(erasure.column).type))
        batches = read_object(
            store, key, rebuild_entry(store, key), schema, columns=["offset"],
            row_filter=RowFilter((In(erasure.column, values),)),
        )  # fmt: skip
        return any(batch.num_rows for batch in batches)

    def _table(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        if meta is None:
            return
        published = self._context.settings.policy_for(meta.name).table.every is not None
        for trace in stale_files(
            self._context.tiers.object_store, meta.name, meta.topic_id, erasure.clean_seconds,
            named_objects(self._context.tiers, [meta]),
            grace_seconds=self._context.settings.sweep.grace.total_seconds(),
        ):  # fmt: skip
            yield (
                f"{trace}, once the table is published again"
                if published
                else f"{trace}, but the table is not published any more: set table.every, or delete its folder"
            )

    def _uploads(self, erasure: LedgerEntry, _: TopicMeta | None) -> Iterator[str]:
        store = self._context.tiers.object_store
        for upload in unfinished_uploads(store, self._prefixes(erasure), erasure.clean_seconds):
            yield f"the unfinished upload of {upload.key}; a sweep aborts it"

    def _versions(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Delete old versions of objects that are gone."""
        store, prefixes = self._context.tiers.object_store, self._prefixes(erasure)
        named = partial(named_objects, self._context.tiers, self._topics_of(erasure, meta))
        doomed = list(old_versions(store, prefixes, named))
        if not doomed or not isinstance(store, KeepsVersions):
            return
        store.delete_versions(doomed)
        for item in old_versions(store, prefixes, named):
            yield f"the bucket keeps an old version of {item.key} that was deleted; the pass after the next sweep looks again"

    def _values(self, erasure: LedgerEntry, _: TopicMeta | None) -> Iterator[str]:
        store = self._context.tiers.object_store
        hold = store.hold_on(erasure.values_name) if isinstance(store, KeepsVersions) else ""
        if hold:
            yield f"the values of the erasure are kept by {hold}"
        for info in lost_values(StoreDocuments(store)):
            yield f"{info.key} has values that no open erasure has; a sweep deletes it"

    def _prefixes(self, erasure: LedgerEntry) -> list[str]:
        """Return the prefixes of the erasure's topic, which may be deleted, and of the transaction log."""
        log = self.log.log(erasure)
        prefixes = [topic_prefix(erasure.topic, erasure.topic_id)]
        return prefixes if log is None else [*prefixes, topic_prefix(log.meta.name, log.meta.topic_id)]
