"""The store's own documents: ``store.json`` and each topic's ``topic.json``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from ..errors import ConfigError, CorruptionError, TieredError, TopicNotFound
from ..format.document import decode_document, encode_document
from ..format.schema import (
    is_topic_name,
)
from ..format.topic_meta import TopicMeta
from .bucket_binding import read_binding
from .file_lock import directory_lock
from .filesystem import FileSystem, read_whole, write_atomically
from .known_files import KnownFiles
from .rights import follow_root

_CHANGE_SECONDS_MAX = 30.0
STORE_FILE = "store.json"
RESTORING_FILE = "restoring.json"
TOPIC_FILE = "topic.json"
TOPICS_DIRECTORY = "topics"
SERVING_FILE = "serving.json"
# No topic's name begins with a dot: nobody looks at these, whatever his release.
DELETING, _DELETED = ".deleting-", ".deleted-"


class Catalog:
    """The documents under one store's directory."""

    def __init__(self, fs: FileSystem, root: Path) -> None:
        self._fs = fs
        self.root = root
        self._documents: KnownFiles[TopicMeta] = KnownFiles()

    def make_root(self) -> None:
        """Create the store's directory, for its owner alone, where there is none.

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
        """Return the store's id; create the store where there is none and `create` allows it.

        Raises
        ------
        ConfigError
            There is no store at the path.
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        try:
            values = decode_document(read_whole(path), where=str(path))
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

    def follow_root(self) -> None:
        """Bring the store in line with the mode and group of its directory; only the holder of its lock may call it."""
        follow_root(self.root, self.root / TOPICS_DIRECTORY)

    def remove_notice(self) -> None:
        """Remove what a server that was killed has left in the directory; only who opens it for writing may call it."""
        path = self.root / SERVING_FILE
        if path.exists():
            self._fs.unlink(path)

    def lineage(self) -> int:
        """Return how often the store was restored before it became this one, counted from 1.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        path = self.root / STORE_FILE
        value = decode_document(read_whole(path), where=str(path)).get("lineage", 1)
        if type(value) is not int or not 1 <= value < 1 << 63:
            raise CorruptionError("store.json has no lineage", where=str(path))
        return value

    def _create_store(self, path: Path) -> UUID:
        store_id = uuid4()
        write_atomically(self._fs, path, encode_document({"id": str(store_id)}))
        return store_id

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted.

        Raises
        ------
        CorruptionError
            Their folder is missing, and was there: the bucket has something of them.
        """
        folder = self.root / TOPICS_DIRECTORY
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            if read_binding(self.root).claimed:
                raise CorruptionError(
                    "topics/ is missing, and the bucket has records of this store (bring the folder back, or restore "
                    "the bucket into an empty directory)",
                    where=str(folder),
                ) from None
            return []
        names = [name for name in names if is_topic_name(name)]
        return sorted(name for name in names if (self.topic_directory(name) / TOPIC_FILE).is_file())

    def topic_directory(self, name: str) -> Path:
        """Return where a topic lies; `name` has been checked."""
        return self.root / TOPICS_DIRECTORY / name

    def partition_directory(self, name: str, partition: int) -> Path:
        """Return where a partition lies."""
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
        try:
            for partition in range(meta.partitions):
                self._fs.make_directory(self.partition_directory(meta.name, partition))
            write_atomically(self._fs, path, encode_document(meta.to_json()))
        except OSError as error:
            raise TieredError(
                f"the disk failed ({error.strerror}) at {path}; open the store again to see what it holds"
            ) from error

    def begin_deletion(self, name: str, first: Callable[[], None] = lambda: None) -> None:
        """Delete a topic for everybody here, by one durable rename; what is left is among `deletions`.

        Parameters
        ----------
        first
            Done once nobody changes the topic's directory any more.

        Raises
        ------
        StoreLocked
            Somebody changes the topic's directory; see `kept`. Nothing was done.
        """
        directory = self.topic_directory(name)
        with directory_lock(directory, wait_seconds=0):
            first()
            self._fs.rename(directory, directory.with_name(f"{DELETING}{uuid4()}"))
        self.sync_deletions()

    def sync_deletions(self) -> None:
        """Make the deletions that have begun durable, also those of a process that was killed before it could."""
        self._fs.sync_directory(self.root / TOPICS_DIRECTORY)

    def end_deletion(self, deletion: Deletion) -> None:
        """Remove the files of a topic whose deletion has begun; another process may do so at the same time."""
        doomed = deletion.directory.with_name(f"{_DELETED}{uuid4()}")
        try:
            self._fs.rename(deletion.directory, doomed)
        except FileNotFoundError:
            return  # another one was faster
        # Or a power cut could leave a deletion that is to be finished, and nothing that says of which topic.
        self._fs.sync_directory(doomed.parent)
        self._remove_files(doomed)

    def remove_deleted(self) -> None:
        """Remove the files that deletions left behind which were killed while they removed them."""
        for doomed in (self.root / TOPICS_DIRECTORY).glob(f"{_DELETED}*"):
            self._remove_files(doomed)

    def _remove_files(self, doomed: Path) -> None:
        for base, directories, files in os.walk(doomed, topdown=False):
            for file in files:
                self._fs.unlink(Path(base) / file)
            for inner in directories:
                self._remove_directory(Path(base) / inner)
        self._remove_directory(doomed)

    def _remove_directory(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process removes the same
            self._fs.remove_directory(path)

    def check_vacant(self, name: str) -> None:
        """Raise `CorruptionError` where segments lie under a name that has no topic.json."""
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
        data = read_whole(path)
    except (FileNotFoundError, NotADirectoryError):
        raise TopicNotFound(f"no topic {name!r} in {root}; create it first") from None
    meta = TopicMeta.from_json(decode_document(data, where=str(path)), where=str(path))
    if meta.name != name:
        raise CorruptionError(f"this is the document of topic {meta.name!r}", where=str(path))
    return meta


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic that is deleted here, and of which the bucket may not know that yet.

    Attributes
    ----------
    directory
        Where its files lie until then.
    meta
        Its document, or what is wrong with that.
    """

    directory: Path
    meta: TopicMeta | TieredError

    @property
    def name(self) -> str:
        """Of the topic; of the directory, where the document does not say."""
        return self.meta.name if isinstance(self.meta, TopicMeta) else self.directory.name


def deletions(root: Path) -> list[Deletion]:
    """Return the deletions that have begun in the store at `root` and are not finished."""
    found = []
    for directory in sorted((root / TOPICS_DIRECTORY).glob(f"{DELETING}*")):
        path = directory / TOPIC_FILE
        meta: TopicMeta | TieredError
        try:
            meta = TopicMeta.from_json(decode_document(read_whole(path), where=str(path)), where=str(path))
        except TieredError as error:
            meta = error
        except OSError as error:
            if not directory.exists():
                continue  # finished since it was listed
            if isinstance(error, FileNotFoundError):
                meta = CorruptionError("is missing", where=str(path))
            else:
                meta = TieredError(f"{path} cannot be read ({error.strerror})")
        found.append(Deletion(directory, meta))
    return found


def check_not_deleted(root: Path, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` where the store at `root` has not this topic any more, but perhaps one of its name."""
    try:
        found = read_topic(root, meta.name)
    except TopicNotFound:
        if not (root / STORE_FILE).exists():
            return  # not the host of the store: what is not here may be elsewhere
        raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
    if found.topic_id != meta.topic_id:
        raise TopicNotFound(
            f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
        )


@contextmanager
def hold_topic(root: Path, meta: TopicMeta) -> Iterator[None]:
    """Keep a topic from being deleted, by any process, while its directory is changed; a deletion waits.

    Whoever changes a directory by its path after it was looked up, and holds no writer's lock, does so within this:
    by then the name may be another topic's. To be held for a few operations of the disk; not re-entrant.

    Raises
    ------
    TopicNotFound
        It was deleted, and perhaps another created under its name.
    StoreLocked
        Another change of it took over half a minute.
    CorruptionError, UnsupportedFormat, Backpressure
    """
    with ExitStack() as held:
        try:
            directory = root / TOPICS_DIRECTORY / meta.name
            held.enter_context(directory_lock(directory, wait_seconds=_CHANGE_SECONDS_MAX))
        except FileNotFoundError:
            raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
        # Now: what is renamed is locked first, so as long as the name is this topic's, so is the locked directory.
        check_not_deleted(root, meta)
        yield
