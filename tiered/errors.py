"""The errors of this package, grouped by what the caller can do about them.

::

    TieredError
    ├── the call is wrong: change it
    │   ├── ConfigError            a setting, option or URL
    │   ├── InvalidName            a topic or column name
    │   ├── TopicExists, TopicNotFound
    │   ├── SchemaMismatch         data that does not fit the topic's schema
    │   ├── RecordTooLarge
    │   ├── OutOfOrderSequence     a gap in a producer's sequence numbers
    │   ├── OffsetOutOfRange       carries ``start`` and ``end``
    │   ├── PositionLost           the log no longer has a consumer's position
    │   └── ReadOnly, StoreClosed  this handle does not allow the call
    ├── another process holds it: find that process
    │   ├── StoreLocked            names the process
    │   └── Fenced                 a newer lineage, tierer or session of a producer took over
    ├── it may pass: free space, wait, retry
    │   ├── Conflict               another append came first; carries ``expected`` and ``end``
    │   ├── DiskFull, Backpressure
    │   ├── ServerUnavailable      the server of a store does not answer
    │   └── ColdStorageError       ``retryable`` says whether waiting can help
    │       ├── ObjectNotFound     the object store's 404 only
    │       ├── PreconditionFailed a conditional write met another state
    │       ├── ObjectsHeld        the bucket keeps old versions: by Object Lock, or until a rule deletes them
    │       └── RestoreUnderWay    another host restores the store: nothing is published meanwhile
    └── the data is damaged: see docs/runbook.md
        ├── CorruptionError        carries where, position and offsets
        │   └── TransactionLogDamaged nothing can be appended until it is repaired
        ├── FileUnreadable         the disk, or its rights, refuse a read; carries ``where`` and ``errno``
        ├── PartitionPoisoned      an fsync failed: open the store again
        └── UnsupportedFormat      written by a newer release
"""

from __future__ import annotations

from typing import TypeGuard


class TieredError(Exception):
    """The base of all errors of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild_error, (type(self), self.args, self.__dict__)


class ConfigError(TieredError):
    """A setting, option or URL is wrong; the message names it and says what to write."""


class InvalidName(TieredError):
    """The name of a topic or column is not allowed."""


class TopicExists(TieredError):
    """A topic with this name exists; ``exist_ok=True`` returns it."""


class TopicNotFound(TieredError):
    """There is no topic with this name, or no partition with this number."""


class SchemaMismatch(TieredError):
    """The data cannot be cast safely to the topic's schema."""


class RecordTooLarge(TieredError):
    """A record is larger than ``max_record_bytes``; nothing of its batch was appended.

    The size counts the bytes of strings and binaries, and the elements of lists and maps, including null and empty ones.
    """


class OutOfOrderSequence(TieredError):
    """A producer skipped sequence numbers, so records may be missing."""


class OffsetOutOfRange(TieredError):
    """The offset is not, or no longer, in the log.

    Attributes
    ----------
    start, end : int
        Start offset and end offset (exclusive) of the partition.
    """

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class PositionLost(TieredError):
    """The log no longer has the position of a consumer; the message says why.

    Attributes
    ----------
    partition, offset : int
        The position.
    start, end : int
        Start offset and end offset (exclusive) of the partition.
    """

    def __init__(self, message: str, *, partition: int, offset: int, start: int, end: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.start = start
        self.end = end


class ReadOnly(TieredError):
    """The store was opened for reading only."""


class StoreClosed(TieredError):
    """The store was closed, or this process inherited it by a fork."""


class StoreLocked(TieredError):
    """Another writer or tierer holds the lock; the message names the process."""


class Fenced(TieredError):
    """A newer epoch owns this partition in the bucket, or this producer; the older one can change nothing more."""


class Conflict(TieredError):
    """The partition does not end at the expected offset of a conditional append; nothing was appended.

    Attributes
    ----------
    topic : str
    partition : int
    expected : int
        The offset that the record was to get.
    end : int
        The end offset of the partition at that moment; the next record gets it.
    """

    def __init__(self, message: str, *, topic: str, partition: int, expected: int, end: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.expected = expected
        self.end = end


class DiskFull(TieredError):
    """The local disk has no room. Nothing is damaged; appends continue when there is room again."""


class Backpressure(TieredError):
    """The store cannot take more now; retry after a pause."""


class ServerUnavailable(TieredError):
    """The server of a store does not answer, or the connection ended.

    It is unknown whether a running append took effect; the message says so.
    """


class ColdStorageError(TieredError):
    """The object store failed.

    Attributes
    ----------
    retryable : bool
        Whether the same call can succeed later without any change.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ObjectNotFound(ColdStorageError):
    """The object store has no such object; it answered so itself."""


class PreconditionFailed(ColdStorageError):
    """A conditional write found the object in another state than its condition."""


class ObjectsHeld(ColdStorageError):
    """Versions of objects were not deleted: the bucket keeps them, by Object Lock or a legal hold, or until a rule deletes them.

    Attributes
    ----------
    rule_days : int, optional
        The keys may not delete them, and a lifecycle rule of the bucket does, so many days after they became old.
    """

    def __init__(self, message: str, *, rule_days: int | None = None) -> None:
        super().__init__(message)
        self.rule_days = rule_days


class RestoreUnderWay(ColdStorageError):
    """Another host restores the store from its bucket; nothing is published until the restore ends.

    Reads of several partitions of the bucket alone raise it while a restore to a time moves one partition after another, and after
    such a restore was cut short.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class CorruptionError(TieredError):
    """Bytes fail verification. They are never returned as data and never skipped.

    Attributes
    ----------
    where : str
        Path of the file, or URL of the object.
    position : int | None
        Byte position in the file or object, if known.
    offsets : tuple[int, int] | None
        Offsets at risk, ``[start, end)``, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        position: int | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        parts = [message]
        if where:
            parts.append(f"in {where}")
        if position is not None:
            parts.append(f"at byte {position}")
        if offsets is not None:
            parts.append(f"(offsets {offsets[0]} to {offsets[1]})")
        super().__init__(" ".join(parts))
        self.reason = message
        self.where = where
        self.position = position
        self.offsets = offsets


class TransactionLogDamaged(CorruptionError):
    """A record of the transaction log is damaged, so it is unknown what was decided: the store does not open for writing.

    Reads of one partition go on. ``tiered verify --deep --repair`` takes the record from the bucket, or says which records only
    ``--drop-lost-transactions`` can do without.
    """


class FileUnreadable(TieredError):
    """The system refuses to read a file of the store. Whether its bytes are damaged is unknown.

    Attributes
    ----------
    where : str
        Path of the file or directory.
    errno : int | None
        The number of the system's error, such as ``errno.EIO`` of a failing disk.
    """

    def __init__(self, message: str, *, where: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.errno = errno


class PartitionPoisoned(TieredError):
    """An fsync failed. Which records are on the disk is unknown until the store is opened again."""


class UnsupportedFormat(TieredError):
    """A file or object has a format version that this release does not know."""


def copy_error(error: TieredError) -> TieredError:
    """Return a copy of an error that is raised many times: each raise would add to its traceback."""
    return rebuild_error(type(error), error.args, error.__dict__)


def rebuild_error(cls: type[TieredError], args: tuple[object, ...], state: dict[str, object]) -> TieredError:
    """Return an error from its parts; unpickling needs this for keyword-only arguments (Spark pickles errors)."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def may_be_away(error: object) -> TypeGuard[ColdStorageError]:
    """Whether an error says that the bucket may be away: then every further request takes all its retries."""
    return isinstance(error, ColdStorageError) and error.retryable


def as_tiered_error(error: TieredError | OSError) -> TieredError:
    """Return an `OSError` as an error of this package, and an error of this package unchanged."""
    return error if isinstance(error, TieredError) else TieredError(f"{type(error).__name__}: {error}")
