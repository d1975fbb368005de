"""The topics of a bucket at an earlier time, and the revival of deleted ones; for `restore`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..cold.manifest.keys import topic_key
from ..cold.manifest.restore_intent import LINEAGE
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..errors import CorruptionError
from ..format.topic_meta import TopicMeta


@dataclass(frozen=True, slots=True)
class TopicAt:
    """A topic at an earlier time; `rivals` are the topics that got its name later."""

    meta: TopicMeta
    deleted: bool = False
    rivals: tuple[UUID, ...] = ()


def topics_at(bucket: StoreDocuments, at_us: int) -> Iterator[TopicAt]:
    """Yield the topics of an earlier time, deleted since or not, and later topics whose names were free then.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    live = bucket.topics()
    for name in bucket.names():
        documents = [bucket.read_topic(name, topic_id) for topic_id in bucket.topic_ids(name)]
        # A topic that was deleted before it reached the bucket has a tombstone and no document.
        topics = [topic for topic in documents if topic is not None and "created_us" in topic]
        where = f"{bucket.store.url}/{name}/topic.json"
        if not all(
            type(topic.get(item, 1)) is int for topic in topics for item in ("created_us", DELETED, LINEAGE)
        ):
            raise CorruptionError("a time or a lineage is no number", where=where)
        then = [
            topic
            for topic in topics
            if topic["created_us"] <= at_us and topic.get(DELETED, at_us + 1) > at_us
        ]
        chosen = max(
            then, key=lambda topic: (topic.get(LINEAGE, 1), topic["created_us"]), default=live.get(name)
        )
        if chosen is not None:
            rivals = [
                UUID(topic["id"]) for topic in topics if DELETED not in topic and topic["id"] != chosen["id"]
            ]
            yield TopicAt(TopicMeta.from_json(chosen, where=where), DELETED in chosen, tuple(rivals))


def revive_topic(bucket: StoreDocuments, topic: TopicAt, lineage: int, now_us: int) -> None:
    """Revive a deleted topic in a new lineage, then delete the topics that took its name.

    In between, readers see the topic with the higher lineage.

    Raises
    ------
    Fenced
        A newer lineage owns the topic.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    key = topic_key(topic.meta.name, topic.meta.topic_id)

    def change(current: dict[str, Any] | None) -> dict[str, Any]:
        if current is None:
            raise CorruptionError("topic.json vanished", where=f"{bucket.store.url}/{key}")
        bucket.check_lineage(key, current, lineage)
        return {name: value for name, value in current.items() if name != DELETED} | {LINEAGE: lineage}

    if topic.deleted:
        bucket.update(key, change)
    for rival in topic.rivals:
        bucket.tombstone(topic.meta.name, rival, deleted_us=now_us, lineage=lineage)
