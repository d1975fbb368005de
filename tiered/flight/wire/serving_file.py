"""``serving.json``: the file in a store's directory that names its server, by which readers of the directory find it.

``serving.json`` exists while a writer serves, and ``serving.lock`` is held while its socket is open. The file outlives a
killed writer, a boot of the host and a copy of the directory, so it is only a hint. A client that uses it checks that the
named server holds ``serving.lock``, if it may read the lock, and that the process which answers is that server (`proof`).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID
from weakref import WeakKeyDictionary

from ...errors import ConfigError, CorruptionError, TieredError
from ...warm.catalog import SERVING_FILE
from ...warm.document_file import find_document, write_document
from ...warm.file_lock import FileLock, facts_of_holder
from ...warm.filesystem import FileSystem
from .directory_id import directory_id
from .instance import Instance

if TYPE_CHECKING:
    from ...store.local_store import LocalStore

SERVING_LOCK = "serving.lock"
_log = logging.getLogger("tiered.flight")
# A reader that tests whether the lock is held holds it for a moment.
_LOCK_SECONDS = 5.0
# Messages show the address; the name of a host has at most 253 characters.
_LOCATION_MAX = 400


@dataclass(frozen=True, slots=True)
class ServingFile:
    """The contents of ``serving.json``.

    Attributes
    ----------
    directory_id
        The id of the served directory; see `flight.wire.directory_id`.
    instance, asks_token, secret
        See `Instance`. A server of an earlier release does not write them.
    """

    location: str
    store_id: UUID
    directory_id: str | None
    instance: str | None = None
    asks_token: bool = False
    secret: str | None = field(default=None, repr=False)

    @property
    def server(self) -> Instance:
        """The run of the server that wrote the file.

        Raises
        ------
        ConfigError
        """
        if self.instance is None:
            raise ConfigError(
                f"the server at {self.location} is of an earlier release, which cannot show that it is the one: upgrade "
                "it, or name its URL instead of the directory"
            )
        return Instance(self.instance, self.asks_token, self.secret)


class Posting:
    """The ``serving.json`` of a running server, and the lock that it holds meanwhile; `post_notice` makes one."""

    def __init__(self, fs: FileSystem, root: Path, lock: FileLock) -> None:
        self._fs = fs
        self._root = root
        self._lock = lock

    @classmethod
    def post(
        cls, fs: FileSystem, root: Path, store_id: UUID, location: str, instance: Instance
    ) -> Self | None:
        """Write ``serving.json`` below `root` and take the lock; None if that fails, as on a full disk."""
        values = {
            "location": location,
            "store_id": str(store_id),
            "directory_id": directory_id(root),
            "instance": instance.id,
            "asks_token": instance.asks_token,
            "secret": instance.secret,
        }
        lock = None
        try:
            lock = FileLock.acquire(
                root / SERVING_LOCK,
                f"the notice of who serves {root}",
                wait_seconds=_LOCK_SECONDS,
                facts={"instance": instance.id},
            )
            write_document(fs, root / SERVING_FILE, values)
        except (TieredError, OSError) as error:
            if lock is not None:
                lock.release()
            _log.warning("readers of %s will not find its server %s by themselves: %s", root, location, error)
            return None
        return cls(fs, root, lock)

    def withdraw(self) -> None:
        """Delete ``serving.json``, before the socket is closed."""
        if self._lock.held:
            try:
                self._fs.unlink(self._root / SERVING_FILE)
            except OSError as error:
                _log.info("%s stays: %s", self._root / SERVING_FILE, error)

    def release(self) -> None:
        """Release the lock, once the socket is closed."""
        self._lock.release()

    def abandon(self) -> None:
        """In a forked child: leave the lock to the parent."""
        self._lock.abandon()


_posted: WeakKeyDictionary[LocalStore, Posting] = WeakKeyDictionary()
_posting = threading.Lock()


def post_notice(store: LocalStore, location: str, instance: Instance) -> Posting | None:
    """Name this server in the store's ``serving.json``, in place of an earlier server of the same store.

    Without effect for a store that is open for reading: its server has nothing that readers do not find themselves.
    """
    root = store.context.tiers.locations.root
    if root is None or store.writer_lock is None:
        return None
    with _posting:
        before = _posted.pop(store, None)
        if before is not None:
            before.withdraw()
            before.release()
        posting = Posting.post(store.context.fs, root, store.store_id, location, instance)
        if posting is not None:
            _posted[store] = posting
        return posting


def read_notice(root: Path) -> ServingFile | None:
    """Return the contents of ``serving.json`` below `root`, unchecked; None if there is no such file.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = root / SERVING_FILE
    values = find_document(path)
    if values is None:
        return None
    texts = [values.get(name) for name in ("directory_id", "instance", "secret")]
    try:
        if len(values["location"]) > _LOCATION_MAX or not all(isinstance(text, str | None) for text in texts):
            raise ValueError("an address or an id is none")
        directory, instance, secret = texts
        return ServingFile(
            str(values["location"]),
            UUID(values["store_id"]),
            directory,
            instance,
            bool(values.get("asks_token", False)),
            secret,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CorruptionError("no place of a server", where=str(path)) from None


def standing_notice(root: Path) -> ServingFile | None:
    """Return the ``serving.json`` of a running server of the directory `root`; None if there is none, or if its server has ended.

    Raises
    ------
    ConfigError
        The file was written for another directory.
    CorruptionError, UnsupportedFormat, OSError
    """
    notice = read_notice(root)
    if notice is None:
        return None
    here = directory_id(root)
    if here is None or notice.directory_id != here:
        raise ConfigError("that was another directory, or before this host was started")
    if notice.instance is not None:
        try:
            holder = facts_of_holder(root / SERVING_LOCK)
        except PermissionError:
            return notice  # the lock of another user; the server itself must prove that it runs
        if holder is None or holder.get("instance") != notice.instance:
            _log.info("%s is of a server that has ended", root / SERVING_FILE)
            return None
    return notice
