"""The folder of a live table: numbered files of metadata, and the pointer to the newest one.

::

    table/metadata/v<N>.metadata.json     complete before it exists; created by If-None-Match, and that is the commit
    table/metadata/version-hint.text      the number N; replaced by compare-and-swap
    table/metadata/snap-….avro            the manifest list of a snapshot
    table/metadata/manifest-….avro        a manifest
    table/metadata/offsets-….json         offsets of a snapshot of more than 8 partitions

A writer may die between the creation of ``v<N+1>`` and the replacement of the pointer. So a reader of the folder goes on
from the pointer to the last file that exists, as Iceberg's own readers do, and a writer moves the pointer. No file that
is not committed has a numbered name.

Readers do not find versions behind a hole, where somebody deleted one or put an old pointer. A writer that begins finds them
by a listing and goes on after the last one: otherwise it would fill the hole, and readers would walk on to old rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ..cold.manifest.keys import table_prefix
from ..cold.object_store.protocol import ObjectStore, object_url
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound, PreconditionFailed
from .table_metadata import TAKE

HINT_FILE = "version-hint.text"
_NUMBERED = re.compile(r"v([1-9][0-9]{0,17})\.metadata\.json")
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Pointer:
    """The newest committed version, 0 if there is no table; the number in the hint (0: none) and the ETag of the hint."""

    version: int
    hint: int
    etag: str | None


class TableFolder:
    """The folder of one topic's table.

    Attributes
    ----------
    prefix
        The prefix of its files, with its slash.
    location
        The URL of the table.
    """

    def __init__(
        self, store: ObjectStore, topic: str, topic_id: UUID, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.store = store
        table = table_prefix(topic, topic_id)
        self.prefix = f"{table}metadata/"
        self.location = object_url(store, table).rstrip("/")
        self._sleep = sleep

    def url(self, version: int) -> str:
        """Return the URL of a version."""
        return object_url(self.store, self._key(version))

    def has_pointer(self) -> bool:
        """Return whether there is a pointer, as there is once a version was published.

        Raises
        ------
        ColdStorageError
        """
        try:
            self.store.stat(self._hint_key)
        except ObjectNotFound:
            return False
        return True

    def find(self) -> Pointer:
        """Find the newest version, as readers do.

        Raises
        ------
        CorruptionError
            The hint is no number.
        ColdStorageError
        """
        hinted = self._read_hint()
        # Without a hint, a listing tells a table whose first commit was cut short, or whose hint is lost.
        version = self._last_listed() if hinted is None else hinted[0]
        while self._exists(version + 1):
            version += 1
        return Pointer(version, *(hinted or (0, None)))

    def find_last(self, *, any_hint: bool = False) -> Pointer:
        """Find the last version that exists or that the hint names, also behind a hole.

        Parameters
        ----------
        any_hint
            Take a hint that is no number for 0.

        Raises
        ------
        CorruptionError
            The hint is no number.
        ColdStorageError
        """
        hint, etag = self._read_hint(any_hint=any_hint) or (0, None)
        return Pointer(max(hint, self._last_listed()), hint, etag)

    def versions(self) -> list[int]:
        """Return the numbers of the versions that exist, in their order.

        Raises
        ------
        ColdStorageError
        """
        return sorted(version for info in self.store.list(self.prefix) if (version := version_of(info.key)))

    def _last_listed(self) -> int:
        return max(self.versions(), default=0)

    def read(self, version: int) -> bytes:
        """Return the metadata of a version.

        Raises
        ------
        ObjectNotFound, ColdStorageError
        """
        return self.store.get(self._key(version)).data

    def commit(self, version: int, metadata: bytes) -> bool:
        """Create a version; False if another writer has created it.

        Raises
        ------
        ColdStorageError
            With ``retryable``: the outcome is unknown.
        """
        key, failure = self._key(version), None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.1 * 2**attempt)
            try:
                self.store.put(key, metadata, if_none_match=True)
                return True
            except ColdStorageError as error:
                if not error.retryable and not isinstance(error, PreconditionFailed):
                    raise
                failure = error
            try:
                return self.store.get(key).data == metadata
            except ObjectNotFound:
                continue  # a conflict, or an answer that was lost before it took effect
        raise ColdStorageError(f"outcome unknown: {self.url(version)} ({failure})", retryable=True)

    def point_to(self, version: int, etag: str | None) -> str | None:
        """Move the pointer to a committed version, unless it is there or beyond; return its ETag.

        None: the pointer is beyond, or the hint that was there is gone, and other files may be as well.

        Parameters
        ----------
        etag
            The ETag of the present hint; None if there is none.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        failure: ColdStorageError | None = None
        had_hint = etag is not None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.1 * 2**attempt)
            try:
                data = str(version).encode()
                return self.store.put(self._hint_key, data, if_match=etag, if_none_match=etag is None)
            except ColdStorageError as error:
                if not error.retryable and not isinstance(error, PreconditionFailed):
                    raise
                failure = error
            hinted = self._read_hint()
            if hinted is not None and hinted[0] >= version:
                return hinted[1] if hinted[0] == version else None
            if hinted is None and had_hint:
                return None
            etag = hinted[1] if hinted else None
        raise ColdStorageError(
            f"outcome unknown: {object_url(self.store, self._hint_key)} ({failure})", retryable=True
        )

    @property
    def _hint_key(self) -> str:
        return self.prefix + HINT_FILE

    def _key(self, version: int) -> str:
        return f"{self.prefix}v{version}.metadata.json"

    def _read_hint(self, *, any_hint: bool = False) -> tuple[int, str] | None:
        try:
            stored = self.store.get(self._hint_key)
        except ObjectNotFound:
            return None
        number = _number(stored.data)
        if number is None and any_hint:
            return 0, stored.etag
        if number is None:
            raise CorruptionError(
                f"{stored.data[:40]!r} is no version; {TAKE}", where=object_url(self.store, self._hint_key)
            )
        return number, stored.etag

    def _exists(self, version: int) -> bool:
        try:
            self.store.stat(self._key(version))
        except ObjectNotFound:
            return False
        return True


def _number(hint: bytes) -> int | None:
    text = hint.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def version_of(key: str) -> int:
    """Return the version in the key of a file of metadata; 0 for any other key."""
    match = _NUMBERED.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match else 0
