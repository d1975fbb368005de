"""What may still give back the records of an erasure, after no manifest names them any more.

Each check answers by what is there, not by what should have happened. An erasure is done when none finds anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.keys import parse_object_name, topic_key, topic_prefix
from ..cold.object_store.protocol import KeepsUnfinished, KeepsVersions
from ..cold.upkeep.inspect import read_facts, rebuild_entry
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import CorruptionError, ObjectNotFound
from ..format.erasure import LedgerEntry
from ..format.predicate import In
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from ..table.table_sweep import stale_files
from ..warm.catalog import deletions
from ..warm.old_stage import STAGE_DIRECTORY
from ..warm.writer_requests import REQUEST_FILE
from .erase_actions import horizon_of, plain_values
from .erase_log import LogTraces
from .local_actions import LocalActions
from .partition_handle import PartitionHandle

_DAMAGED_PREFIX = ".damaged-"


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
        yield from self._files(erasure, meta)
        yield from self.log.here(erasure)

    def in_bucket(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        """Yield what is left in the bucket, one line each; old versions of objects that are gone are deleted.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        ObjectsHeld
            The bucket keeps old versions; the message says until when.
        """
        yield from self.log.in_bucket(erasure)
        if meta is None:
            yield from self._of_deleted_topic(erasure)
        else:
            for partition in range(meta.partitions):
                yield from self._orphans(erasure, meta, partition)
            yield from self._table(erasure, meta)
        yield from self._uploads_and_versions(erasure)
        store = self._context.tiers.object_store
        hold = store.hold_on(erasure.values_name) if isinstance(store, KeepsVersions) else ""
        if hold:
            yield f"the values of the erasure are kept by {hold}"

    # -- this disk -------------------------------------------------------------------------------

    def _files(self, erasure: LedgerEntry, meta: TopicMeta | None) -> Iterator[str]:
        root = self._context.tiers.locations.root
        assert root is not None
        for deletion in deletions(root):
            yield f"the deletion of topic {deletion.name!r} is not finished"
        staged = self._staged.setdefault(erasure.id, frozenset((root / STAGE_DIRECTORY).glob("*/*.rows")))
        for path in staged:
            if path.exists():
                yield f"{path} holds staged rows from before"
        if meta is None:
            return
        for partition in range(meta.partitions):
            handle = PartitionHandle.of(self._topics, meta, partition)
            # What was replaced or could not be repaired: it cannot be searched for records.
            for path in sorted(handle.directory.glob(f"{_DAMAGED_PREFIX}*")):
                with handle.hold_topic():
                    self._context.fs.unlink(path)
            if (handle.directory / REQUEST_FILE).exists() and not self._local.forget_recent(handle):
                yield f"the writer of {meta.name}/{partition}, another process, has not taken its request yet"

    # -- the bucket ------------------------------------------------------------------------------

    def _of_deleted_topic(self, erasure: LedgerEntry) -> Iterator[str]:
        tombstone = topic_key(erasure.topic, erasure.topic_id)
        for info in self._context.tiers.object_store.list(topic_prefix(erasure.topic, erasure.topic_id)):
            if info.key != tombstone:
                yield f"{info.key} of the deleted topic; a sweep deletes it"

    def _orphans(self, erasure: LedgerEntry, meta: TopicMeta, partition: int) -> Iterator[str]:
        """Yield the objects that no manifest names and that have a record of the erasure."""
        manifest = PartitionHandle.of(self._topics, meta, partition).manifest
        called = erasure.called_horizons
        # What a restore has undone reaches up to the horizon at the call.
        horizon = max(horizon_of(erasure, partition), called[partition] if partition < len(called) else 0)
        prefix = manifest.keys.data_prefix
        # Listed first: an object that is published in between is named by the head.
        listed = list(manifest.store.list(prefix))
        loaded = manifest.load()
        named = {entry.name for entry in manifest.entries(loaded.head)} if loaded is not None else set()
        for info in listed:
            name = info.key.removeprefix(prefix)
            parsed = parse_object_name(name)
            if parsed is None or name in named or parsed.base_offset >= horizon:
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

    def _table(self, erasure: LedgerEntry, meta: TopicMeta) -> Iterator[str]:
        published = self._context.settings.policy_for(meta.name).table.every is not None
        for found in stale_files(
            self._context.tiers.object_store, meta.name, meta.topic_id, _seconds(erasure), self._live(meta)
        ):
            yield (
                f"{found}, once the table is published again"
                if published
                else f"{found}, but the table is not published any more: set table.every, or delete its folder"
            )

    def _live(self, meta: TopicMeta) -> set[str]:
        """Return the names of all objects that the heads of a topic name."""
        names: set[str] = set()
        for partition in range(meta.partitions):
            manifest = PartitionHandle.of(self._topics, meta, partition).manifest
            loaded = manifest.load()
            if loaded is not None:
                names.update(entry.name for entry in manifest.entries(loaded.head))
        return names

    def _uploads_and_versions(self, erasure: LedgerEntry) -> Iterator[str]:
        """Yield unfinished uploads; delete old versions, which are of objects that are gone: no name is used twice."""
        store = self._context.tiers.object_store
        log = self.log.log(erasure)
        prefixes = [topic_prefix(erasure.topic, erasure.topic_id)]
        if log is not None:
            prefixes.append(topic_prefix(log.meta.name, log.meta.topic_id))
        for prefix in prefixes:
            if isinstance(store, KeepsUnfinished):
                for upload in store.unfinished_uploads(prefix):
                    if upload.begun_seconds < _seconds(erasure):
                        yield f"the unfinished upload of {upload.key}; a sweep aborts it"
            if isinstance(store, KeepsVersions):
                doomed = [
                    item for item in store.old_versions(prefix) if _has_rows(item.key.removeprefix(prefix))
                ]
                if doomed:
                    store.delete_versions(doomed)


def _has_rows(name: str) -> bool:
    """Whether an object below a topic's prefix may hold values of rows: data, or a file of the live table."""
    return "/data/" in name or name.startswith("table/")


def _seconds(erasure: LedgerEntry) -> float:
    return (erasure.clean_us or 0) / 1e6
