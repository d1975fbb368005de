"""What belongs to a store as a whole in its bucket: ``store.json`` and one ``topic.json`` a topic id."""

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
from ...format.document import decode_document, encode_document
from ..object_store.protocol import ObjectStore
from ..object_store.second_look import sound
from .keys import STORE_KEY, TOPIC_FILE, topic_folder, topic_key, topic_of_folder
from .restore_intent import BELIEVED_SECONDS_MAX, LINEAGE, Intent, given_up, intent_of

log = logging.getLogger("tiered.cold")

DELETED = "deleted_us"
DELETED_IN_BUCKET = "the topic was deleted in the bucket"
"""What is wrong with a topic that lives here and has a tombstone there."""

DELETE_AGAIN = "read what you still need of it, then delete it here again: tiered delete {name}"
"""What to do about that; ``name`` is to be filled in."""

_ATTEMPTS = 5

Believes = Callable[[Intent], float]
"""For how many seconds more an intent is believed, unless it is renewed; 0: no more."""


def _always(_: Intent) -> float:
    return BELIEVED_SECONDS_MAX


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

    def claim_store(self, store_id: UUID, lineage: int = 1, *, believes: Believes = _always) -> int:
        """Make this prefix the store's own, for ever; a repeat does nothing.

        A restore that was cut short, and whose intent is not believed any more, is given up: the store goes on.

        Parameters
        ----------
        lineage
            How often the store was restored before it became what the caller has, counted from 1.

        Returns
        -------
        int
            The lineage that the documents of the store bear. It is higher than `lineage` where a restore was given up.

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

        def change(current: dict[str, Any] | None, known: int) -> dict[str, Any]:
            if current is None:
                self._check_vacant()
                return _with_lineage({"id": str(store_id)}, lineage)
            owner = self._id(current)
            if owner != store_id:
                raise ConfigError(
                    f"{self.store.url} belongs to store {owner}, this is store {store_id}: give each its own prefix"
                )
            intent = intent_of(current, known)
            if intent is None or intent.of != lineage:
                self.check_lineage(STORE_KEY, current, lineage)
                return current
            if not intent.under_way:
                return current
            left = believes(intent)
            if left > 0:
                raise RestoreUnderWay(intent.told(self.store.url, left))
            log.warning("the restore by %s was cut short, so this store goes on", intent.holder)
            return given_up(current, intent)

        return max(lineage, self.change_store(change))

    def change_store(self, change: Callable[[dict[str, Any] | None, int], dict[str, Any]]) -> int:
        """Compare and swap ``store.json``; return the lineage that it bears then.

        Parameters
        ----------
        change
            Gets the document (None: there is none) and its lineage (0), and returns what it is to be; may be called
            several times.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """

        def changed(current: dict[str, Any] | None) -> dict[str, Any]:
            return change(current, 0 if current is None else self._lineage(STORE_KEY, current))

        return self._lineage(STORE_KEY, self.update(STORE_KEY, changed))

    def read_intent(self) -> Intent | None:
        """Return what ``store.json`` says of a restore, by one GET; None where it says nothing.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        found = self._read(STORE_KEY)
        return None if found is None else intent_of(found[0], self._lineage(STORE_KEY, found[0]))

    def read_store_id(self) -> UUID | None:
        """Return the id of the store that owns the prefix; None if nobody does.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        found = self._read(STORE_KEY)
        return None if found is None else self._id(found[0])

    def put_topic(self, topic: dict[str, Any], lineage: int = 1) -> None:
        """Create or bring up to date the document of a topic, given as ``topic.json`` has it.

        A topic only grows: partitions and schema versions are added, never taken away.

        Raises
        ------
        TopicNotFound
            This topic was deleted.
        Fenced
            The bucket knows more of the topic than the caller: another lineage went on with it.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(topic["name"], UUID(topic["id"]))

        def change(current: dict[str, Any] | None) -> dict[str, Any]:
            if current is None:
                return _with_lineage(topic, lineage)
            if DELETED in current:
                raise TopicNotFound(f"topic {topic['name']!r} ({topic['id']}) was deleted in the bucket")
            self.check_lineage(key, current, lineage)
            known, ours = current.get("schemas", []), topic["schemas"]
            if current.get("partitions", 0) > topic["partitions"] or known != ours[: len(known)]:
                raise Fenced(f"{self._where(key)} has partitions or schemas that this store does not know")
            return _with_lineage(topic, lineage)

        self.update(key, change)

    def adopt_topic(self, name: str, topic_id: UUID, lineage: int) -> dict[str, Any]:
        """Make a topic that of a new lineage, unless it is deleted, and return its document.

        Raises
        ------
        Fenced
            A still newer lineage has it.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(name, topic_id)

        def change(current: dict[str, Any] | None) -> dict[str, Any]:
            if current is None:
                raise CorruptionError(f"{TOPIC_FILE} vanished", where=self._where(key))
            self._check_of(current, name, topic_id)
            if DELETED in current:
                return current
            self.check_lineage(key, current, lineage)
            return _with_lineage(current, lineage)

        return self.update(key, change)

    def topics(self) -> dict[str, dict[str, Any]]:
        """Return the document of every topic by name, deleted ones left out: one listing a name.

        Raises
        ------
        CorruptionError
            A document does not verify, or two topics of one name live.
        UnsupportedFormat, ColdStorageError
        """
        found = {name: self.topic(name) for name in self.names()}
        return {name: topic for name, topic in found.items() if topic is not None}

    def topic(self, name: str) -> dict[str, Any] | None:
        """Return the document of the topic of this name; None where there is none, or it was deleted.

        Raises
        ------
        CorruptionError
            A document does not verify, or two topics of the name live.
        UnsupportedFormat, ColdStorageError
        """
        found: dict[str, Any] | None = None
        for topic_id in self.topic_ids(name):
            topic = self.read_topic(name, topic_id)
            if topic is None or DELETED in topic:
                continue
            key = topic_key(name, topic_id)
            known = self._lineage(key, found) if found else 0
            lineage = self._lineage(key, topic)
            if lineage < known:
                continue  # announced by what the store was before a restore, too late
            if found and lineage == known:
                raise CorruptionError(
                    f"two topics {name!r}: {found['id']} and {topic_id}", where=self._where(name)
                )
            found = topic
        return found

    def topic_ids(self, name: str) -> list[UUID]:
        """Return the ids of all topics that ever had this name and have objects left."""
        ids: list[UUID] = []
        for folder in self.store.folders(topic_folder(name)):
            try:
                ids.append(UUID(folder))
            except ValueError:
                continue  # not ours: a prefix may hold other things
        return ids

    def read_topic(self, name: str, topic_id: UUID) -> dict[str, Any] | None:
        """Return one topic's document, a deleted one with ``deleted_us`` in it; None if there is none.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        key = topic_key(name, topic_id)
        found = self._read(key)
        if found is None:
            return None
        self._check_of(found[0], name, topic_id)
        return found[0]

    def check_may_write_tombstone(self, name: str, topic_id: UUID, lineage: int = 1) -> None:
        """Raise what `tombstone` would find out, by one GET; nothing is written.

        Raises
        ------
        Fenced
            A newer lineage has the topic.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        topic = self.read_topic(name, topic_id)
        if topic is not None and DELETED not in topic:
            self.check_lineage(topic_key(name, topic_id), topic, lineage)

    def tombstone(self, name: str, topic_id: UUID, *, deleted_us: int, lineage: int = 1) -> None:
        """Mark a topic as deleted, before any object of it is; a repeat keeps the first time.

        A topic that never reached the bucket gets a tombstone too, so that no late upload makes it live.

        Raises
        ------
        Fenced
            A newer lineage has the topic.
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
        """Return the names of all topics that have a folder, deleted ones too."""
        return [name for folder in self.store.folders("") if (name := topic_of_folder(folder)) is not None]

    def _check_vacant(self) -> None:
        # store.json is written before anything else: where it is missing beside topics, it was lost.
        for name in self.names():
            if self.topic_ids(name):
                raise CorruptionError(
                    f"store.json is missing beside topic {name!r}", where=self._where(STORE_KEY)
                )

    def update(self, key: str, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> dict[str, Any]:
        """Compare and swap one document. A lost answer is settled by reading: equal content is success."""
        failure: ColdStorageError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.1 * 2**attempt)
            found = self._read(key)
            current = found[0] if found else None
            try:
                wanted = change(None if current is None else dict(current))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CorruptionError(
                    f"document does not decode ({error!r})", where=self._where(key)
                ) from None
            if wanted == current:
                return wanted
            data = encode_document(wanted)
            try:
                if self.store.conditional_writes:
                    self.store.put(
                        key, data, if_match=found[1] if found else None, if_none_match=found is None
                    )
                else:
                    self.store.put(key, data)
            except ColdStorageError as error:
                if not error.retryable and not isinstance(error, PreconditionFailed):
                    raise
                failure = error
            else:
                return wanted
        raise ColdStorageError(f"outcome unknown: {self._where(key)} ({failure})", retryable=True)

    def _read(self, key: str) -> tuple[dict[str, Any], str] | None:
        def look() -> tuple[dict[str, Any], str]:
            found = self.store.get(key)
            return decode_document(found.data, where=self._where(key)), found.etag

        try:
            return sound(look)
        except ObjectNotFound:
            return None

    def _check_of(self, values: dict[str, Any], name: str, topic_id: UUID) -> None:
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
        known = self._lineage(key, values)
        if known > lineage:
            raise Fenced(
                f"{self._where(key)} belongs to lineage {known}, this store to lineage {lineage}: it was restored "
                "elsewhere"
            )

    def _where(self, key: str) -> str:
        return f"{self.store.url.rstrip('/')}/{key}"


def _with_lineage(values: dict[str, Any], lineage: int) -> dict[str, Any]:
    """Return a document of a lineage; the first one is not written, as nothing was restored."""
    return {**values, LINEAGE: lineage} if lineage > 1 else values
