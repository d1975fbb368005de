"""The check of a bucket before its restore: every topic, head and page that the restore needs is read and verified."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..cold.manifest.commit import next_lineage
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.store_documents import StoreDocuments
from ..errors import ConfigError, CorruptionError
from ..format.document import TRANSACTIONS_FEATURE
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_checks import check_entries
from ..format.schema import TRANSACTIONS_TOPIC, schema_to_text
from ..format.timestamps import to_datetime
from ..format.topic_meta import TopicMeta
from ..transactions.restored_log import unfinished_restore
from .point_in_time import begins_after, rewind_head
from .topics_at_time import TopicAt, topics_at

log = logging.getLogger("tiered.restore")


@dataclass(frozen=True, slots=True)
class VerifiedBucket:
    """What `verify_bucket` found.

    Attributes
    ----------
    committed_us
        The time of the last commit of any head; 0 if there is none.
    orphans
        The entries of the orphans that the time of the restore needs, by name.
    """

    store_id: UUID
    committed_us: int
    orphans: dict[str, ObjectEntry]


def verify_bucket(bucket: StoreDocuments, at_us: int | None, now_us: int) -> VerifiedBucket:
    """Verify all documents and manifests that a restore needs.

    Logs the partitions that the restore will empty, because they had no objects at `at_us`.

    Raises
    ------
    ConfigError
        There is no store at the URL, or a restore to a time was cut short, and `at_us` is not before it.
    CorruptionError, UnsupportedFormat
        A document, head, page or needed orphan is damaged or missing.
    ColdStorageError
    """
    emptied: list[str] = []
    orphans: dict[str, ObjectEntry] = {}
    committed_us = 0
    store = bucket.read_store()
    if store is None:
        raise ConfigError(f"there is no store at {bucket.store.url}; check the URL")
    store_id, features = store
    for topic in restored_topics(bucket, at_us):
        meta = topic.meta
        for partition in range(meta.partitions):
            cold = PartitionManifest(bucket.store, meta.name, meta.topic_id, partition)
            loaded = cold.load()
            if loaded is None and any(bucket.store.list(cold.keys.prefix)):
                # The first claim makes the head, before anything is uploaded. It may have been made just now.
                loaded = cold.load()
                if loaded is None:
                    where = cold.where(cold.keys.head)
                    raise CorruptionError("head.json is missing beside objects", where=where)
            if loaded is not None:
                committed_us = max(committed_us, loaded.head.committed_us)
                check_manifest(cold, loaded.head, meta, store_id)
                if keeps_all_records(meta, features):
                    _check_all_moved(bucket, loaded.head, at_us)
                if at_us is not None and begins_after(cold, loaded.head, at_us):
                    emptied.append(f"{meta.name}/{partition}")
                if at_us is not None and loaded.head.committed_us > at_us:
                    claimed = next_lineage(loaded.head, now_us)
                    rewind_head(
                        cold, claimed, at_us, now_us, orphans, beyond=keeps_all_records(meta, features)
                    )
    if at_us is not None and emptied:
        when = utc_text(at_us)
        log.warning("nothing of %s was in the bucket by %s: it will be empty", ", ".join(emptied), when)
    return VerifiedBucket(store_id, committed_us, orphans)


def _check_all_moved(bucket: StoreDocuments, log: Head, at_us: int | None) -> None:
    """Raise `ConfigError` if a restore to a time moved some heads and not others, and the state at `at_us` would have both."""
    if unfinished_restore(bucket.store, log) is None:
        return
    if at_us is None or at_us >= dict(log.rewinds)[log.epoch]:
        then = utc_text(dict(log.cuts)[log.epoch])
        raise ConfigError(
            f"a restore of {bucket.store.url} to {then} was not finished, so that some partitions are at that time and others are not: "
            "restore to that time again, or to any from before that restore"
        )


def restored_topics(bucket: StoreDocuments, at_us: int | None) -> Iterator[TopicAt]:
    """Yield the topics that are not deleted now, or with `at_us`, were not deleted then."""
    for name in bucket.names():
        for topic_id in bucket.topic_ids(name):
            # A topic's document is written first, and after a deletion its tombstone stays.
            if bucket.read_topic(name, topic_id) is None:
                raise CorruptionError(
                    "topic.json is missing beside objects", where=f"{bucket.store.url}/{name}/{topic_id}"
                )
    if at_us is not None:
        yield from topics_at(bucket, at_us)
        return
    for topic in bucket.topics().values():
        yield TopicAt(topic_meta(bucket, topic))


def topic_meta(bucket: StoreDocuments, topic: dict[str, Any]) -> TopicMeta:
    """Return the metadata in a ``topic.json`` of the bucket."""
    return TopicMeta.from_json(topic, where=f"{bucket.store.url}/{topic.get('name')}/topic.json")


def check_manifest(cold: PartitionManifest, head: Head, meta: TopicMeta, store_id: UUID) -> None:
    """Raise `CorruptionError` if a manifest contradicts itself, the topic or the store."""
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


def keeps_all_records(meta: TopicMeta, features: frozenset[str]) -> bool:
    """Whether a log is restored with all its records of a time; the opening of the store drops its later records."""
    return meta.name == TRANSACTIONS_TOPIC and TRANSACTIONS_FEATURE in features


def utc_text(at_us: int) -> str:
    """Return a time as text, such as ``2026-01-31T12:00:00Z``."""
    return to_datetime(at_us).isoformat().replace("+00:00", "Z")
