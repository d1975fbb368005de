"""The two sides of a restore intent (`restore_intent`): the restore that holds it, and the store that pauses for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...errors import (
    ColdStorageError,
    ConfigError,
    CorruptionError,
    Fenced,
    RestoreUnderWay,
    StoreLocked,
    UnsupportedFormat,
)
from .keys import STORE_KEY
from .leases import server_seconds
from .restore_intent import INTENT_SECONDS_MAX, LINEAGE, RESTORE, Intent, abandon_restore, intent_of
from .store_documents import StoreDocuments

log = logging.getLogger("tiered.cold")

RENEW_SECONDS = 10.0
"""The shortest time between two renewals of an intent."""

POLL_SECONDS = 5.0
"""The shortest time between two reads of the intent by a running store that publishes."""

POLL_PAUSED_SECONDS = 1.0
"""The same for a store that pauses."""

_CUT_SECONDS = 1.0  # servers truncate modification times to seconds


class IntentHolder:
    """The holder of the intent of one restore; not thread-safe.

    Parameters
    ----------
    restore_id
        Identifies this restore and its repetitions in the same directory.
    holder
        User, host and process, as information for people.
    began_us
        The time of the lineages that it begins; 0 if that is not known.

    Attributes
    ----------
    restore_id
        As above.
    lineage
        The lineage of the restore; 0 before `begin`.
    """

    def __init__(
        self,
        bucket: StoreDocuments,
        restore_id: str,
        holder: str,
        *,
        began_us: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lineage = 0
        self._began_us = began_us
        self._bucket = bucket
        self.restore_id = restore_id
        self._holder = holder
        self._monotonic = monotonic
        self._written = 0.0

    def begin(self) -> int:
        """Begin a new lineage, announce the restore, and return the lineage.

        From then on the previous store publishes no new topic, and nothing at all while the intent is valid. `finish`
        fences that store.

        Raises
        ------
        ConfigError
            There is no store.
        StoreLocked
            Another restore is under way; the message names it.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        watch = IntentWatch(monotonic=self._monotonic)

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            if current is None:
                raise ConfigError(f"there is no store at {self._bucket.store.url}; check the URL")
            intent = intent_of(current, lineage)
            if intent is not None and intent.under_way and intent.id != self.restore_id:
                seconds_left = watch.left_seconds(self._bucket, intent)
                if seconds_left > 0:
                    raise StoreLocked(
                        f"{self._bucket.store.url} is being restored by {intent.holder}: wait until that is done. If it was "
                        f"cut short, repeat it in its directory, which needs no wait, or begin this one in {seconds_left:.0f} s"
                    )
            of = lineage if intent is None else intent.of
            # Clocks of hosts differ, so a later restore may date itself before.
            since_us = self._began_us if intent is None else min(self._began_us, intent.since_us)
            begun = Intent(lineage + 1, of, self.restore_id, holder=self._holder, since_us=since_us)
            return {**current, LINEAGE: begun.lineage, RESTORE: begun.to_json()}

        written = self._monotonic()
        self.lineage = self._bucket.change_store(change)
        self._written = written
        return self.lineage

    def check(self) -> None:
        """Raise unless this restore may go on; renew its intent if that is due.

        Raises
        ------
        Fenced
            Another restore has begun, or the intent was not renewed in time and the previous store went on.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        begun = self._monotonic()
        renew = begun - self._written >= RENEW_SECONDS

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            document, intent = self._own(current, lineage)
            renewed = replace(intent, renewals=intent.renewals + 1)
            return {**document, RESTORE: renewed.to_json()} if renew else document

        self._bucket.change_store(change)
        if renew:
            self._written = begun

    def finish(self) -> None:
        """Remove the intent: the restored store is in charge, and the previous store is fenced.

        Raises
        ------
        Fenced
            As in `check`.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            if current is not None and RESTORE not in current and lineage == self.lineage:
                return current  # an earlier attempt succeeded, and its answer was lost
            document, _ = self._own(current, lineage)
            return {name: value for name, value in document.items() if name != RESTORE}

        self._bucket.change_store(change)

    def give_up(self) -> None:
        """Abandon the restore, so that the previous store goes on at once; if this fails, the intent expires by itself."""

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            return abandon_restore(*self._own(current, lineage))

        with suppress(Fenced, ColdStorageError, CorruptionError, UnsupportedFormat):
            self._bucket.change_store(change)

    def _own(self, current: dict[str, Any] | None, lineage: int) -> tuple[dict[str, Any], Intent]:
        """Return the document and this restore's intent in it."""
        intent = None if current is None else intent_of(current, lineage)
        if current is None or intent is None or intent.id != self.restore_id:
            if intent is not None and not intent.under_way:
                why = "the intent of this restore expired, and the store went on where it was; repeat the restore"
            else:
                why = "the store was restored elsewhere since"
            raise Fenced(f"{self._bucket.store.url}/{STORE_KEY} belongs to lineage {lineage}: {why}")
        return current, intent


class IntentWatch:
    """A running store's watch for restores elsewhere; thread-safe.

    Parameters
    ----------
    monotonic
        Seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()  # never held during a request
        self._next_poll = float("-inf")
        self._message: str | None = None
        self._first_seen: tuple[Intent, float] | None = None
        self._expired: Intent | None = None

    def check(self, bucket: StoreDocuments) -> None:
        """Raise while nothing may be published; reads the intent at most every `POLL_SECONDS`, by one GET.

        If the bucket does not answer, or the document is damaged, nothing is raised: the head decides who may publish.

        Raises
        ------
        RestoreUnderWay
        """
        with self._lock:
            due = self._monotonic() >= self._next_poll
            if due:
                # Meanwhile other threads use the last message.
                self._next_poll = self._monotonic() + POLL_SECONDS
        if due:
            self._set_message(self._read_message(bucket))
        if (message := self._message) is not None:
            raise RestoreUnderWay(message)

    def clear(self) -> None:
        """End the pause: the caller has just read the document, and it has no valid intent."""
        self._set_message(None)

    def left_seconds(self, bucket: StoreDocuments, intent: Intent) -> float:
        """Return how long an intent, or one that was written over it meanwhile, is valid unless it is renewed; else 0.

        The bucket's clock decides, which takes five requests; an intent that is known to have expired takes none. If that
        clock is implausible, the intent expires after `INTENT_SECONDS_MAX` of the local clock.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        now = self._monotonic()
        with self._lock:
            if intent == self._expired:
                return 0.0
            if self._first_seen is None or self._first_seen[0] != intent:
                self._first_seen = intent, now
            seen_seconds = now - self._first_seen[1]
        modified = bucket.store.stat(STORE_KEY).modified_seconds
        age = server_seconds(bucket.store) - modified
        seconds_left = min(
            intent.seconds + _CUT_SECONDS - age, INTENT_SECONDS_MAX, INTENT_SECONDS_MAX - seen_seconds
        )
        if seconds_left > 0 and age >= -INTENT_SECONDS_MAX:
            current = bucket.read_intent()
            if current == intent:
                return seconds_left
            # The time was that of another document.
            return self.left_seconds(bucket, current) if current is not None and current.under_way else 0.0
        with self._lock:
            self._expired = intent  # a renewed intent is not equal to it
        return 0.0

    def _read_message(self, bucket: StoreDocuments) -> str | None:
        try:
            intent = bucket.read_intent()
            if intent is None or not intent.under_way:
                return None
            seconds_left = self.left_seconds(bucket, intent)
        except (ColdStorageError, CorruptionError, UnsupportedFormat) as error:
            log.info("cannot read whether the store is being restored elsewhere: %s", error)
            return None
        return intent.message(bucket.store.url, seconds_left) if seconds_left > 0 else None

    def _set_message(self, message: str | None) -> None:
        with self._lock:
            if message is not None and self._message is None:
                log.warning("%s", message)
            elif message is None and self._message is not None:
                log.warning("no restore is under way any more")
            self._message = message
            self._next_poll = self._monotonic() + (POLL_SECONDS if message is None else POLL_PAUSED_SECONDS)
