"""Both sides of a restore's intent (`intent`): the restore that holds it, and a running store that pauses for it."""

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
from .restore_intent import BELIEVED_SECONDS_MAX, LINEAGE, RESTORE, Intent, given_up, intent_of
from .store_documents import StoreDocuments

log = logging.getLogger("tiered.cold")

RENEW_SECONDS = 10.0
"""How often a restore renews its intent at most."""

LOOK_SECONDS = 5.0
"""How often a running store looks for an intent at most, while it publishes."""

LOOK_AGAIN_SECONDS = 1.0
"""The same while it pauses."""

_CUT_SECONDS = 1.0  # modification times are cut to seconds


class Restoring:
    """The intent of one restore. Not to be shared by threads.

    Parameters
    ----------
    restore_id
        Of this restore, and of its repetitions in the same directory.
    holder
        For people: user, host, process.

    Attributes
    ----------
    restore_id
        As above.
    lineage
        The one that it began; 0 before `begin`.
    """

    def __init__(
        self,
        bucket: StoreDocuments,
        restore_id: str,
        holder: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lineage = 0
        self._bucket = bucket
        self.restore_id = restore_id
        self._holder = holder
        self._monotonic = monotonic
        self._written = 0.0

    def begin(self) -> int:
        """Count one restore more, announce it, and return its lineage.

        The store as it was before publishes no new topic from then on, and nothing at all as long as it believes the
        intent; `finish` fences it.

        Raises
        ------
        ConfigError
            There is no store.
        StoreLocked
            Another restore is under way; the message names it.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        others = Restores(monotonic=self._monotonic)

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            if current is None:
                raise ConfigError(f"there is no store at {self._bucket.store.url}; check the URL")
            intent = intent_of(current, lineage)
            if intent is not None and intent.under_way and intent.id != self.restore_id:
                left = others.left_seconds(self._bucket, intent)
                if left > 0:
                    raise StoreLocked(
                        f"{self._bucket.store.url} is being restored by {intent.holder}: wait until that is done. If it was "
                        f"cut short, repeat it where it was, which needs no wait, or begin this one in {left:.0f} s"
                    )
            of = lineage if intent is None else intent.of
            begun = Intent(lineage + 1, of, self.restore_id, holder=self._holder)
            return {**current, LINEAGE: begun.lineage, RESTORE: begun.to_json()}

        written = self._monotonic()
        self.lineage = self._bucket.change_store(change)
        self._written = written
        return self.lineage

    def check(self) -> None:
        """Make sure that this restore may go on, and renew its intent in time.

        Raises
        ------
        Fenced
            Another restore began since, or the store went on, as the intent was not renewed in time.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        begun = self._monotonic()
        renew = begun - self._written >= RENEW_SECONDS

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            found, intent = self._own(current, lineage)
            renewed = replace(intent, renewals=intent.renewals + 1)
            return {**found, RESTORE: renewed.to_json()} if renew else found

        self._bucket.change_store(change)
        if renew:
            self._written = begun

    def finish(self) -> None:
        """Make the lineage that of the store, which fences what the store was before.

        Raises
        ------
        Fenced
            As `check`.
        CorruptionError, UnsupportedFormat, ColdStorageError
        """

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            if current is not None and RESTORE not in current and lineage == self.lineage:
                return current  # the answer of an attempt before was lost
            found, _ = self._own(current, lineage)
            return {name: value for name, value in found.items() if name != RESTORE}

        self._bucket.change_store(change)

    def give_up(self) -> None:
        """Let the store go on that was to be fenced, at once; without an answer the intent runs out by itself."""

        def change(current: dict[str, Any] | None, lineage: int) -> dict[str, Any]:
            return given_up(*self._own(current, lineage))

        with suppress(Fenced, ColdStorageError, CorruptionError, UnsupportedFormat):
            self._bucket.change_store(change)

    def _own(self, current: dict[str, Any] | None, lineage: int) -> tuple[dict[str, Any], Intent]:
        """Return the document and our intent in it."""
        intent = None if current is None else intent_of(current, lineage)
        if current is None or intent is None or intent.id != self.restore_id:
            if intent is not None and not intent.under_way:
                why = "the intent of this restore ran out, and the store went on where it was; repeat the restore"
            else:
                why = "the store was restored elsewhere since"
            raise Fenced(f"{self._bucket.store.url}/{STORE_KEY} belongs to lineage {lineage}: {why}")
        return current, intent


class Restores:
    """Tells a running store whether it is being restored elsewhere. Thread-safe.

    Parameters
    ----------
    monotonic
        Seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()  # never held during a request
        self._next_look = float("-inf")
        self._told: str | None = None
        self._first_seen: tuple[Intent, float] | None = None
        self._dead: Intent | None = None

    def check(self, bucket: StoreDocuments) -> None:
        """Raise as long as nothing may be published; asks the bucket at most every `LOOK_SECONDS`, by one GET.

        A bucket that does not answer, or a damaged document, says nothing: the head says who may publish.

        Raises
        ------
        RestoreUnderWay
        """
        with self._lock:
            due = self._monotonic() >= self._next_look
            if due:
                self._next_look = self._monotonic() + LOOK_SECONDS  # the others go by what is known meanwhile
        if due:
            self._note(self._look(bucket))
        if (told := self._told) is not None:
            raise RestoreUnderWay(told)

    def looked(self) -> None:
        """Take note that the document was read just now, and no intent was believed."""
        self._note(None)

    def left_seconds(self, bucket: StoreDocuments, intent: Intent) -> float:
        """Return for how long an intent is believed unless it is renewed; 0: no more.

        By the bucket's clock, which takes four requests to learn, once that has run out none any more. A clock that makes no sense is not asked
        for more than `BELIEVED_SECONDS_MAX` of our own.

        Raises
        ------
        ColdStorageError
        """
        now = self._monotonic()
        with self._lock:
            if intent == self._dead:
                return 0.0
            if self._first_seen is None or self._first_seen[0] != intent:
                self._first_seen = intent, now
            seen_seconds = now - self._first_seen[1]
        modified = bucket.store.stat(STORE_KEY).modified_seconds
        age = server_seconds(bucket.store) - modified
        left = min(
            intent.seconds + _CUT_SECONDS - age, BELIEVED_SECONDS_MAX, BELIEVED_SECONDS_MAX - seen_seconds
        )
        if left > 0 and age >= -BELIEVED_SECONDS_MAX:
            return left
        with self._lock:
            self._dead = intent  # as long as it is not renewed
        return 0.0

    def _look(self, bucket: StoreDocuments) -> str | None:
        try:
            intent = bucket.read_intent()
            if intent is None or not intent.under_way:
                return None
            left = self.left_seconds(bucket, intent)
        except (ColdStorageError, CorruptionError, UnsupportedFormat) as error:
            log.info("whether the store is being restored elsewhere is not known: %s", error)
            return None
        return intent.told(bucket.store.url, left) if left > 0 else None

    def _note(self, told: str | None) -> None:
        with self._lock:
            if told is not None and self._told is None:
                log.warning("%s", told)
            elif told is None and self._told is not None:
                log.warning("no restore is under way any more")
            self._told = told
            self._next_look = self._monotonic() + (LOOK_SECONDS if told is None else LOOK_AGAIN_SECONDS)
