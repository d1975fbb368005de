"""Where a store is being served, left in its directory, so that readers of the path find the writer by themselves.

``serving.json`` is there while a writer serves. It outlives a writer that was killed, a boot of the host and a copy of the
directory: so it is a hint, and who follows it makes sure that the server answers, and for this very directory.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..errors import ConfigError, CorruptionError, TieredError
from ..format.document import decode_document, encode_document
from ..host import Host
from ..settings import Settings
from ..warm.filesystem import FileSystem, read_whole, write_atomically
from .options import connect_options
from .place import directory_id
from .remote_store import RemoteStore, open_remote

SERVING_FILE = "serving.json"

_log = logging.getLogger("tiered.flight")


@dataclass(frozen=True, slots=True)
class Notice:
    """Who serves a directory.

    Attributes
    ----------
    directory_id
        Of the directory that is served; see `tiered.flight.place`.
    """

    location: str
    store_id: UUID
    directory_id: str | None


def post_notice(fs: FileSystem, root: Path, store_id: UUID, location: str) -> None:
    """Say that the store at `root` is served at `location`; without effect where the disk takes no more files."""
    values = {"location": location, "store_id": str(store_id), "directory_id": directory_id(root)}
    try:
        write_atomically(fs, root / SERVING_FILE, encode_document(values))
    except (TieredError, OSError) as error:
        _log.warning("readers of %s will not find its server %s by themselves: %s", root, location, error)


def remove_notice(fs: FileSystem, root: Path, location: str) -> None:
    """Take back what `post_notice` said, if no other server has said something since."""
    try:
        found = read_notice(root)
        if found is not None and found.location == location:
            fs.unlink(root / SERVING_FILE)
    except (TieredError, OSError) as error:
        _log.info("%s stays, and readers will find nobody there: %s", root / SERVING_FILE, error)


def read_notice(root: Path) -> Notice | None:
    """Return who serves the store at `root`, as far as its directory says so.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = root / SERVING_FILE
    try:
        values = decode_document(read_whole(path), where=str(path))
    except FileNotFoundError:
        return None
    try:
        place = values["directory_id"]
        return Notice(
            str(values["location"]), UUID(values["store_id"]), None if place is None else str(place)
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CorruptionError("no place of a server", where=str(path)) from None


def find_server(root: Path, settings: Settings) -> RemoteStore | None:
    """Connect to the writer that serves the directory `root`; None where none does, or it cannot be used from here.

    A server that does not answer, wants a token that this process has not, or serves something else, is logged as a warning:
    what the caller reads instead ends where the writer's last flush did.
    """
    try:
        notice = read_notice(root)
        if notice is None:
            return None
        here = directory_id(root)
        if here is None or notice.directory_id != here:
            raise ConfigError("that was another directory, or before this host was started")
        store = open_remote(
            notice.location, settings, Host(), connect_options(settings, None), read_only=True
        )
        if store.store_id != notice.store_id or store.directory_id != here:
            store.close()
            raise ConfigError("another store is served there now")
    except (TieredError, OSError) as error:
        _log.warning("%s: its server is not used, so this ends with what is durable: %s", root, error)
        return None
    return store
