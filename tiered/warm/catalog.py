"""The store's documents: ``store.json`` and the ``topic.json`` of each topic."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from ..errors import ConfigError, CorruptionError, FileUnreadable, TieredError, TopicNotFound
from ..format.document import FEATURES
from ..format.schema import is_topic_name
from ..format.timestamps import to_datetime
from ..format.topic_meta import TopicMeta
from .bucket_binding import read_binding
from .document_file import read_document, write_document
from .file_lock import directory_lock
from .file_value_cache import FileValueCache
from .filesystem import FileSystem, ReadErrors, device_errors, file_status
from .rights import apply_root_rights

_CHANGE_SECONDS_MAX = 30.0
STORE_FILE = "store.json"
STORE_LOCK = "writer.lock"
"""Held by the one process that writes a store, in the store's directory."""
RESTORING_FILE = "restoring.json"
TOPIC_FILE = "topic.json"
TOPICS_DIRECTORY = "topics"
TRANSACTIONS_CUTS = "transactions_cuts"
"""The key of the list of `TransactionsCut` in ``store.json``."""
_ONLY_CUT = "transactions_cut"  # of early builds, which knew the last one alone
SERVING_FILE = "serving.json"
# No topic's name begins with a dot, so every release ignores these directories.
DELETING, _DELETED = ".deleting-", ".deleted-"


class TransactionsCut(NamedTuple):
    """The records of the transaction log that a restore to a time has undone.

    Attributes
    ----------
    at_us
        The time of the restore.
    end_offset
        Where the restored log ended: records before it that are later than `at_us` do not count.
    """

    at_us: int
    end_offset: int

    def undoes(self, offset: int, timestamp: datetime) -> bool:
        """Whether the restore has undone the record at an offset, appended at a time."""
        return offset < self.end_offset and timestamp > to_datetime(self.at_us)


class Catalog:
    """The documents under one store's directory."""

    def __init__(self, fs: FileSystem, root: Path) -> None:
        self._fs = fs
        self.root = root
        self._documents: FileValueCache[TopicMeta] = FileValueCache()
        self._features: FileValueCache[frozenset[str]] = FileValueCache()

    def make_root(self) -> None:
        """Create the store's directory if it does not exist; only its owner has access.

        Raises
        ------
        ConfigError, DiskFull
        """
        try:
            self._fs.make_root(self.root)
        except OSError as error:
            raise ConfigError(
                f"cannot create a store at {self.root}: {error.strerror}; choose another path"
            ) from None

    def open_store(self, *, create: bool) -> UUID:
        """Return the store's id; with `create`, create a store if there is none.

        Raises
        ------
        ConfigError
            There is no store at the path.
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        try:
            values = read_document(path)
        except (FileNotFoundError, NotADirectoryError):
            if (self.root / RESTORING_FILE).exists():
                raise ConfigError(
                    f"a restore into {self.root} was cut short; run tiered restore with the same path again"
                ) from None
            if not create:
                raise ConfigError(
                    f"there is no store at {self.root}; check the path, or make one: tiered create TOPIC"
                ) from None
            if (self.root / TOPICS_DIRECTORY).exists():
                raise CorruptionError("store.json is missing beside topics/", where=str(path)) from None
            return self._create_store(path)
        try:
            return UUID(values["id"])
        except (KeyError, ValueError, TypeError, AttributeError):
            raise CorruptionError("store.json has no id", where=str(path)) from None

    def apply_root_rights(self) -> None:
        """Give all files the rights of the store's directory; only the holder of its lock may call this."""
        apply_root_rights(self.root, self.root / TOPICS_DIRECTORY)

    def remove_serving_file(self) -> None:
        """Remove the file of a server that was killed; only the holder of the store's lock may call this."""
        path = self.root / SERVING_FILE
        if path.exists():
            self._fs.unlink(path)

    def lineage(self) -> int:
        """Return the number of the store's lineage: 1, and one more after each restore.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        value = read_document(path).get("lineage", 1)
        if type(value) is not int or not 1 <= value < 1 << 63:
            raise CorruptionError("store.json has no lineage", where=str(path))
        return value

    def features(self) -> frozenset[str]:
        """Return the features that the store uses; a release that does not know one of them refuses the store.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE

        def read() -> frozenset[str]:
            return frozenset(read_document(path).get(FEATURES, ()))

        return self._features.read(str(path), read)

    def gained(self, feature: str) -> bool:
        """Whether the store has a feature by now; `engine.catalog.BucketCatalog` asks its bucket for it."""
        return feature in self.features()

    def add_feature(self, name: str) -> None:
        """Say durably that the store uses a feature; several threads and processes may call this.

        Raises
        ------
        DiskFull, StoreLocked, CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        with directory_lock(self.root, wait_seconds=_CHANGE_SECONDS_MAX):
            values = read_document(path)
            if name not in values.get(FEATURES, ()):
                values[FEATURES] = sorted({*values.get(FEATURES, ()), name})
                write_document(self._fs, path, values)

    def transactions_cuts(self) -> tuple[TransactionsCut, ...]:
        """Return the cuts of the transaction log, which say which of its records do not count.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        values = read_document(path)
        only = values.get(_ONLY_CUT)
        try:
            cuts = tuple(
                TransactionsCut(**row) for row in values.get(TRANSACTIONS_CUTS, [only] if only else ())
            )
        except TypeError:
            raise CorruptionError(f"{TRANSACTIONS_CUTS} are none", where=str(path)) from None
        if not all(type(item) is int and 0 <= item < 1 << 63 for cut in cuts for item in cut):
            raise CorruptionError(f"{TRANSACTIONS_CUTS} are none", where=str(path))
        return cuts

    def _create_store(self, path: Path) -> UUID:
        store_id = uuid4()
        write_document(self._fs, path, {"id": str(store_id)})
        return store_id

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted.

        Raises
        ------
        CorruptionError
            The folder of the topics is missing, and the bucket has records of the store.
        """
        return sorted(name for name in self._listed() if is_topic_name(name) and self._has_document(name))

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name, without a look at the others.

        Raises
        ------
        CorruptionError
            As `topics` does.
        """
        if self._has_document(name):
            # A file system that ignores case has a path for each spelling of the name, and one entry.
            return name in self._listed()
        if not (self.root / TOPICS_DIRECTORY).is_dir():
            self._listed()  # raises if the folder was lost
        return False

    def _listed(self) -> list[str]:
        folder = self.root / TOPICS_DIRECTORY
        try:
            with ReadErrors(folder):
                return os.listdir(folder)
        except FileNotFoundError:
            if read_binding(self.root).claimed:
                raise CorruptionError(
                    "topics/ is missing, and the bucket has records of this store (bring the folder back, or restore "
                    "the bucket into an empty directory)",
                    where=str(folder),
                ) from None
            return []

    def _has_document(self, name: str) -> bool:
        """Whether something has the name of the document. If it is no regular file, the read says so: no topic vanishes."""
        # Called for every topic; a Path takes four times as long.
        path = f"{self.root}/{TOPICS_DIRECTORY}/{name}/{TOPIC_FILE}"
        try:
            file_status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except FileUnreadable as error:
            if error.errno != errno.ELOOP:
                raise
        return True

    def topic_directory(self, name: str) -> Path:
        """Return the directory of a topic; `name` has been checked."""
        return self.root / TOPICS_DIRECTORY / name

    def partition_directory(self, name: str, partition: int) -> Path:
        """Return the directory of a partition."""
        return self.topic_directory(name) / str(partition)

    def read_topic(self, name: str) -> TopicMeta:
        """Return a topic's document; see `read_topic`."""
        try:
            path = f"{self.root}/{TOPICS_DIRECTORY}/{name}/{TOPIC_FILE}"
            return self._documents.read(path, lambda: read_topic(self.root, name))
        except (FileNotFoundError, NotADirectoryError):
            return read_topic(self.root, name)

    def write_topic(self, meta: TopicMeta) -> None:
        """Store a topic's document durably, after the directories of its partitions.

        Raises
        ------
        DiskFull, Backpressure
        TieredError
            The disk failed.
        """
        path = self.topic_directory(meta.name) / TOPIC_FILE
        with device_errors(path):
            for partition in range(meta.partitions):
                self._fs.make_directory(self.partition_directory(meta.name, partition))
            write_document(self._fs, path, meta.to_json())

    def begin_deletion(self, name: str, before_rename: Callable[[], None] = lambda: None) -> None:
        """Delete a topic on this disk by one durable rename; `deletions` lists it until `end_deletion`.

        Parameters
        ----------
        before_rename
            Called when no other thread or process changes the topic's directory.

        Raises
        ------
        StoreLocked
            Another thread or process changes the topic's directory; see `hold_topic`. Nothing was done.
        """
        directory = self.topic_directory(name)
        with directory_lock(directory, wait_seconds=0):
            before_rename()
            self._fs.rename(directory, directory.with_name(f"{DELETING}{uuid4()}"))
        self.sync_deletions()

    def sync_deletions(self) -> None:
        """Make all begun deletions durable, also those of a process that was killed before its sync."""
        self._fs.sync_directory(self.root / TOPICS_DIRECTORY)

    def end_deletion(self, deletion: Deletion) -> None:
        """Remove the files of a deleted topic; another process may do so at the same time."""
        doomed = deletion.directory.with_name(f"{_DELETED}{uuid4()}")
        try:
            self._fs.rename(deletion.directory, doomed)
        except FileNotFoundError:
            return  # another process was faster
        # Without this sync a power cut could leave a deletion to finish without the document that names its topic.
        self._fs.sync_directory(doomed.parent)
        self._remove_files(doomed)

    def remove_deleted(self) -> None:
        """Remove the files of deletions that were killed while they removed files."""
        for doomed in half_removed(self.root):
            self._remove_files(doomed)

    def _remove_files(self, doomed: Path) -> None:
        for base, directories, files in os.walk(doomed, topdown=False):
            for file in files:
                self._fs.unlink(Path(base) / file)
            for inner in directories:
                self._remove_directory(Path(base) / inner)
        self._remove_directory(doomed)

    def _remove_directory(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process removed it
            self._fs.remove_directory(path)

    def check_vacant(self, name: str) -> None:
        """Raise `CorruptionError` if a directory without a topic.json holds segments."""
        for path in self.topic_directory(name).glob("*/*.log"):
            raise CorruptionError(
                "topic.json is missing beside segments", where=str(path.parent.parent / TOPIC_FILE)
            )


def read_topic(root: Path, name: str) -> TopicMeta:
    """Return a topic's document in the store at `root`.

    Raises
    ------
    TopicNotFound, CorruptionError, UnsupportedFormat
    """
    path = root / TOPICS_DIRECTORY / name / TOPIC_FILE
    try:
        values = read_document(path)
    except (FileNotFoundError, NotADirectoryError):
        raise TopicNotFound(f"no topic {name!r} in {root}; create it first") from None
    meta = TopicMeta.from_json(values, where=str(path))
    if meta.name != name:
        raise CorruptionError(f"this is the document of topic {meta.name!r}", where=str(path))
    return meta


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic that is deleted on this disk; its tombstone may not be in the bucket yet.

    Attributes
    ----------
    directory
        The renamed directory with the topic's files.
    meta
        The topic's document, or the error of reading it.
    """

    directory: Path
    meta: TopicMeta | TieredError

    @property
    def name(self) -> str:
        """The name of the topic, or of the directory if the document cannot be read."""
        return self.meta.name if isinstance(self.meta, TopicMeta) else self.directory.name


def deletions(root: Path) -> list[Deletion]:
    """Return the unfinished deletions in the store at `root`."""
    unfinished = []
    folder = root / TOPICS_DIRECTORY
    names = [name for name in os.listdir(folder) if name.startswith(DELETING)] if folder.is_dir() else []
    for directory in map(folder.joinpath, sorted(names)):
        path = directory / TOPIC_FILE
        meta: TopicMeta | TieredError
        try:
            meta = TopicMeta.from_json(read_document(path), where=str(path))
        except TieredError as error:
            meta = error
        except (FileNotFoundError, NotADirectoryError):
            if not directory.exists():
                continue  # another process finished it
            meta = CorruptionError("is missing", where=str(path))
        unfinished.append(Deletion(directory, meta))
    return unfinished


def half_removed(root: Path) -> list[Path]:
    """Return the directories of deleted topics whose files are being removed, or were when their process was killed."""
    return sorted((root / TOPICS_DIRECTORY).glob(f"{_DELETED}*"))


def check_not_deleted(root: Path, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` if the topic was deleted from the store at `root`; a new topic may have its name."""
    try:
        present = read_topic(root, meta.name)
    except TopicNotFound:
        if not (root / STORE_FILE).exists():
            return  # the store is on another host, so a missing topic proves nothing
        raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
    if present.topic_id != meta.topic_id:
        raise TopicNotFound(
            f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
        )


@contextmanager
def hold_topic(root: Path, meta: TopicMeta) -> Iterator[None]:
    """Make deletions in all processes wait while the directory of a topic is changed.

    A thread without a writer's lock needs this to change files by path: a deletion may have renamed the directory, and a
    new topic may have its name. Hold it for a few operations of the disk. Not re-entrant.

    Raises
    ------
    TopicNotFound
        The topic was deleted; a new topic may have its name.
    StoreLocked
        Another change of the topic took more than half a minute.
    CorruptionError, UnsupportedFormat, Backpressure
    """
    with ExitStack() as locks:
        try:
            directory = root / TOPICS_DIRECTORY / meta.name
            locks.enter_context(directory_lock(directory, wait_seconds=_CHANGE_SECONDS_MAX))
        except FileNotFoundError:
            raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
        # After the lock: a deletion locks the directory before it renames it. So if the path is still this topic's, the
        # locked directory is, too.
        check_not_deleted(root, meta)
        yield
