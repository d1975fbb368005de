"""The documents of a store in its bucket: ``store.json``, and one ``topic.json`` for each topic id."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ...errors import (
    ColdStorageError,
    ConfigError,
    CorruptionError,
    Fenced,
    ObjectNotFound,
    PreconditionFailed,
    RestoreUnderWay,
    TopicNotFound,
)
from ...format.document import FEATURES, decode_document, encode_document
from ..object_store.protocol import ObjectStore, object_url
from ..object_store.rereads import reread_on_damage
from .keys import STORE_KEY, TOPIC_FILE, topic_folder, topic_key, topic_of_folder
from .restore_intent import INTENT_SECONDS_MAX, LINEAGE, Intent, abandon_restore, intent_of

log = logging.getLogger("tiered.cold")

DELETED = "deleted_us"
DELETED_IN_BUCKET = "the topic was deleted in the bucket"
"""The problem of a local topic that has a tombstone in the bucket."""

DELETE_AGAIN = "read what you still need of it, then delete it here again: tiered delete {name}"
"""The remedy; fill in ``name``."""

_ATTEMPTS = 5

LeftSeconds = Callable[[Intent], float]
"""Returns how long an intent is still valid unless it is renewed; 0 if it has expired."""


class NoStore(Exception):
    """The prefix belongs to no store yet; `StoreDocuments.claim_store` raises it if the caller asks for it."""


def _always_valid(_: Intent) -> float:
    return INTENT_SECONDS_MAX


class StoreDocuments:
    """The documents of one store under its prefix.

    Parameters
    ----------
    sleep
        Waits so many seconds between attempts.
    """

    def __init__(self, store: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self._sleep = sleep

    def claim_store(
        self,
        store_id: UUID,
        lineage: int = 1,
        *,
        left_seconds: LeftSeconds = _always_valid,
        may_begin: bool = True,
        features: frozenset[str] = frozenset(),
    ) -> int:
        """Make this prefix the store's own, permanently; a repeat does nothing.

        A restore whose intent has expired is abandoned, and the store goes on.

        Parameters
        ----------
        lineage
            The number of restores behind the caller's store, counted from 1.
        may_begin
            Whether to claim a prefix that belongs to no store yet; False raises `NoStore`.
        features
            What a reader must know; the document gets those that it lacks.

        Returns
        -------
        int
            The lineage in the documents of the store; higher than `lineage` if a restore was abandoned.

        Raises
        ------
        ConfigError
            Another store owns the prefix.
        Fenced
            The store was restored elsewhere since.
        RestoreUnderWay
            It is being restored elsewhere.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """

        def change(current: dict[str, Any] | None, bucket_lineage: int) -> dict[str, Any]:
            if current is None:
                if not may_begin:
                    raise NoStore
                self._check_vacant()
                return _with_features(with_lineage({"id": str(store_id)}, lineage), features)
            owner = self._id(current)
            if owner != store_id:
                raise ConfigError(
                    f"{self.store.url} belongs to store {owner}, this is store {store_id}: give each its own prefix"
                )
            intent = intent_of(current, bucket_lineage)
            if intent is None or intent.of != lineage:
                self.check_lineage(STORE_KEY, current, lineage)
                return _with_features(current, features)
            if not intent.under_way:
                return _with_features(current, features)
            left = left_seconds(intent)
            if left > 0:
                raise RestoreUnderWay(intent.message(self.store.url, left))
            log.warning("the restore by %s was cut short, so this store goes on", intent.holder)
            return _with_features(abandon_restore(current, intent), features)

        return max(lineage, self.change_store(change))

    def change_store(self, change: Callable[[dict[str, Any] | None, int], dict[str, Any]]) -> int:
        """Compare and swap ``store.json``; return its new lineage.

        Parameters
        ----------
        change
            Takes the document and its lineage (None and 0 if there is none), and returns the new document; may be called
            several times.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """

        def changed(current: dict[str, Any] | None) -> dict[str, Any]:
            return change(current, 0 if current is None else self._lineage(STORE_KEY, current))

        return self._lineage(STORE_KEY, self.update(STORE_KEY, changed))

    def read_intent(self) -> Intent | None:
        """Read the restore intent in ``store.json`` by one GET; None if there is none.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        stored = self._read(STORE_KEY)
        return None if stored is None else intent_of(stored[0], self._lineage(STORE_KEY, stored[0]))

    def read_store_id(self) -> UUID | None:
        """Read the id of the store that owns the prefix; None if no store does.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        store = self.read_store()
        return None if store is None else store[0]

    def read_store(self) -> tuple[UUID, frozenset[str]] | None:
        """Read the id and the features of the store that owns the prefix; None if no store does.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        stored = self._read(STORE_KEY)
        return None if stored is None else (self._id(stored[0]), frozenset(stored[0].get(FEATURES, ())))

    def read(self, key: str) -> dict[str, Any] | None:
        """Read one document; None if there is none.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        stored = self._read(key)
        return None if stored is None else stored[0]

    def put_topic(self, topic: dict[str, Any], lineage: int = 1) -> None:
        """Create or update the document of a topic, given as the content of ``topic.json``.

        A topic only grows: partitions and schema versions are added, never removed.

        Raises
        ------
        TopicNotFound
            This topic was deleted.
        Fenced
            The bucket's document has more partitions or schemas: another lineage went on with the topic.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(topic["name"], UUID(topic["id"]))

        def change(current: dict[str, Any] | None) -> dict[str, Any]:
            if current is None:
                return with_lineage(topic, lineage)
            if DELETED in current:
                raise TopicNotFound(f"topic {topic['name']!r} ({topic['id']}) was deleted in the bucket")
            self.check_lineage(key, current, lineage)
            known, ours = current.get("schemas", []), topic["schemas"]
            if current.get("partitions", 0) > topic["partitions"] or known != ours[: len(known)]:
                raise Fenced(f"{self._where(key)} has partitions or schemas that this store does not know")
            return with_lineage(topic, lineage)

        self.update(key, change)

    def adopt_topic(self, name: str, topic_id: UUID, lineage: int) -> dict[str, Any]:
        """Give a topic a new lineage unless it is deleted, and return its document.

        Raises
        ------
        Fenced
            A newer lineage owns it.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(name, topic_id)

        def change(current: dict[str, Any] | None) -> dict[str, Any]:
            if current is None:
                raise CorruptionError(f"{TOPIC_FILE} vanished", where=self._where(key))
            self._check_identity(current, name, topic_id)
            if DELETED in current:
                return current
            self.check_lineage(key, current, lineage)
            return with_lineage(current, lineage)

        return self.update(key, change)

    def topics(self) -> dict[str, dict[str, Any]]:
        """Read the documents of all topics that are not deleted, by name: one listing for each name.

        Raises
        ------
        CorruptionError
            A document fails verification, or two topics of one name are live.
        UnsupportedFormat, ColdStorageError
        """
        topics = ((name, self.topic(name)) for name in self.names())
        return {name: topic for name, topic in topics if topic is not None}

    def topic(self, name: str) -> dict[str, Any] | None:
        """Read the document of the topic of this name; None if there is none or it was deleted.

        Raises
        ------
        CorruptionError
            A document fails verification, or two topics of the name are live.
        UnsupportedFormat, ColdStorageError
        """
        newest: dict[str, Any] | None = None
        newest_lineage = 0
        for topic_id in self.topic_ids(name):
            topic = self.read_topic(name, topic_id)
            if topic is None or DELETED in topic:
                continue
            lineage = self._lineage(topic_key(name, topic_id), topic)
            if lineage < newest_lineage:
                continue  # announced too late, by the store before a restore
            if newest and lineage == newest_lineage:
                raise CorruptionError(
                    f"two topics {name!r}: {newest['id']} and {topic_id}", where=self._where(name)
                )
            newest, newest_lineage = topic, lineage
        return newest

    def topic_ids(self, name: str) -> list[UUID]:
        """List the ids of all topics that ever had this name and still have objects."""
        ids: list[UUID] = []
        for folder in self.store.folders(topic_folder(name)):
            try:
                ids.append(UUID(folder))
            except ValueError:
                continue  # not a topic: other things may lie under the prefix
        return ids

    def read_topic(self, name: str, topic_id: UUID) -> dict[str, Any] | None:
        """Read one topic's document; None if there is none. That of a deleted topic has the field ``deleted_us``.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(name, topic_id)
        stored = self._read(key)
        if stored is None:
            return None
        self._check_identity(stored[0], name, topic_id)
        return stored[0]

    def check_may_write_tombstone(self, name: str, topic_id: UUID, lineage: int = 1) -> None:
        """Raise if `tombstone` would, by one GET; nothing is written.

        Raises
        ------
        Fenced
            A newer lineage owns the topic.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        topic = self.read_topic(name, topic_id)
        if topic is not None and DELETED not in topic:
            self.check_lineage(topic_key(name, topic_id), topic, lineage)

    def tombstone(self, name: str, topic_id: UUID, *, deleted_us: int, lineage: int = 1) -> None:
        """Mark a topic as deleted, before any object of it is deleted; a repeat keeps the first time.

        A topic that never reached the bucket gets a tombstone too, so that a late upload cannot revive it.

        Raises
        ------
        Fenced
            A newer lineage owns the topic.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(name, topic_id)

        def change(current: dict[str, Any] | None) -> dict[str, Any]:
            if current is None:
                current = {"name": name, "id": str(topic_id)}
            if DELETED not in current:
                self.check_lineage(key, current, lineage)
            return {DELETED: deleted_us, **current}

        self.update(key, change)

    def names(self) -> list[str]:
        """List the names of all topics that have a folder, including deleted ones."""
        return [name for folder in self.store.folders("") if (name := topic_of_folder(folder)) is not None]

    def _check_vacant(self) -> None:
        # store.json is written before anything else: if there are topics without it, it was lost.
        for name in self.names():
            if self.topic_ids(name):
                raise CorruptionError(
                    f"store.json is missing beside topic {name!r}", where=self._where(STORE_KEY)
                )

    def update(self, key: str, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> dict[str, Any]:
        """Compare and swap one document. After a lost answer the document is read again: equal content is success."""
        failure: ColdStorageError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.1 * 2**attempt)
            stored = self._read(key)
            current = stored[0] if stored else None
            try:
                changed = change(None if current is None else dict(current))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CorruptionError(
                    f"document does not decode ({error!r})", where=self._where(key)
                ) from None
            if changed == current:
                return changed
            data = encode_document(changed)
            try:
                if self.store.conditional_writes:
                    self.store.put(
                        key, data, if_match=stored[1] if stored else None, if_none_match=stored is None
                    )
                else:
                    self.store.put(key, data)
            except ColdStorageError as error:
                if not error.retryable and not isinstance(error, PreconditionFailed):
                    raise
                failure = error
            else:
                return changed
        raise ColdStorageError(f"outcome unknown: {self._where(key)} ({failure})", retryable=True)

    def _read(self, key: str) -> tuple[dict[str, Any], str] | None:
        def read() -> tuple[dict[str, Any], str]:
            stored = self.store.get(key)
            return decode_document(stored.data, where=self._where(key)), stored.etag

        try:
            return reread_on_damage(read)
        except ObjectNotFound:
            return None

    def _check_identity(self, values: dict[str, Any], name: str, topic_id: UUID) -> None:
        if values.get("id") != str(topic_id) or values.get("name") != name:
            raise CorruptionError(
                f"{TOPIC_FILE} is of another topic", where=self._where(topic_key(name, topic_id))
            )

    def _id(self, values: dict[str, Any]) -> UUID:
        try:
            return UUID(values["id"])
        except (KeyError, ValueError, TypeError, AttributeError):
            raise CorruptionError("store.json has no id", where=self._where(STORE_KEY)) from None

    def _lineage(self, key: str, values: dict[str, Any]) -> int:
        value = values.get(LINEAGE, 1)
        if type(value) is not int or value < 1:
            raise CorruptionError(f"{value!r} is no lineage", where=self._where(key))
        return value

    def check_lineage(self, key: str, values: dict[str, Any], lineage: int) -> None:
        """Raise `Fenced` if a document belongs to a later lineage."""
        known = self._lineage(key, values)
        if known > lineage:
            raise Fenced(
                f"{self._where(key)} belongs to lineage {known}, this store to lineage {lineage}: it was restored "
                "elsewhere"
            )

    def _where(self, key: str) -> str:
        return object_url(self.store, key)


def with_lineage(values: dict[str, Any], lineage: int) -> dict[str, Any]:
    """Return `values` with a lineage; the first lineage is not written."""
    return {**values, LINEAGE: lineage} if lineage > 1 else values


def _with_features(values: dict[str, Any], features: frozenset[str]) -> dict[str, Any]:
    """Return `values` with features that they lack; a document without any has no such key."""
    merged = features.union(values.get(FEATURES, ()))
    return {**values, FEATURES: sorted(merged)} if merged else values
