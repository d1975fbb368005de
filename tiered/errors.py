"""Every error a caller of this package can meet, by what the caller can do about it.

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
    │   └── ReadOnly, StoreClosed  this handle cannot do that
    ├── somebody else holds it: find out who
    │   ├── StoreLocked            names the process
    │   └── Fenced                 a newer lineage, tierer or producer's session took over
    ├── it may pass: free something, wait, retry
    │   ├── DiskFull, Backpressure
    │   ├── ServerUnavailable      a server of this store that does not answer
    │   └── ColdStorageError       ``retryable`` says whether waiting can help
    │       ├── ObjectNotFound     an authoritative 404, nothing else
    │       ├── PreconditionFailed a conditional write met another state
    │       └── RestoreUnderWay    another host restores the store: nothing is published meanwhile
    └── the data is not what it should be: see docs/runbook.md
        ├── CorruptionError        carries where, position and offsets
        ├── PartitionPoisoned      a failed fsync: reopen to find the truth
        └── UnsupportedFormat      written by a newer release
"""

from __future__ import annotations


class TieredError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(TieredError):
    """A setting, option or URL is wrong; the message names it and says what to write."""


class InvalidName(TieredError):
    """A topic or column name that the store does not accept."""


class TopicExists(TieredError):
    """``create_topic`` of a name that is taken; pass ``exist_ok=True`` to accept it."""


class TopicNotFound(TieredError):
    """No topic, or no partition, of that name."""


class SchemaMismatch(TieredError):
    """Data that cannot be cast safely to the topic's schema."""


class RecordTooLarge(TieredError):
    """One record larger than ``max_record_bytes``; nothing of the batch that has it was appended.

    What counts are the bytes of its strings and binaries, and the elements of its lists and maps, nulls and empty
    ones too.
    """


class OutOfOrderSequence(TieredError):
    """A producer skipped sequence numbers, so records may be missing."""


class OffsetOutOfRange(TieredError):
    """The offset asked for is not, or no longer, in the log.

    Attributes
    ----------
    start, end : int
        What the partition holds: start offset and end offset (exclusive).
    """

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), self.args, self.__dict__)


class ReadOnly(TieredError):
    """The store was opened for reading only."""


class StoreClosed(TieredError):
    """The store was closed, or this process inherited it by a fork."""


class StoreLocked(TieredError):
    """Another writer or tierer holds the lock; the message names the process."""


class Fenced(TieredError):
    """A newer epoch owns this partition in the bucket, or the id of this producer; this one may change nothing more."""


class DiskFull(TieredError):
    """No room on the local disk. Nothing is damaged; appends go on when there is room again."""


class Backpressure(TieredError):
    """The store cannot take more now; retry after a pause."""


class ServerUnavailable(TieredError):
    """The server of a store does not answer, or went away.

    Of an append that was under way it is not known whether it took effect; the message says so.
    """


class ColdStorageError(TieredError):
    """The object store failed.

    Attributes
    ----------
    retryable : bool
        Whether the same call can succeed later without anybody changing anything.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), self.args, self.__dict__)


class ObjectNotFound(ColdStorageError):
    """The object store said, with authority, that there is no such object."""


class PreconditionFailed(ColdStorageError):
    """A conditional write met an object in another state than it asked for."""


class RestoreUnderWay(ColdStorageError):
    """Another host restores the store from its bucket: nothing is published until that is done, or was cut short."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class CorruptionError(TieredError):
    """Bytes that fail verification. They are never returned as data and never skipped.

    Attributes
    ----------
    where : str
        Path of the file, or URL of the object.
    position : int | None
        Byte position in it.
    offsets : tuple[int, int] | None
        Offsets at risk, ``[start, end)``, where known.
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

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), self.args, self.__dict__)


class PartitionPoisoned(TieredError):
    """An fsync failed, so what reached the disk is unknown until the store is opened again."""


class UnsupportedFormat(TieredError):
    """A file or object of a format version that this release does not know."""


def again(error: TieredError) -> TieredError:
    """Return a new error like `error`, for one that is raised many times: each raise adds to a traceback."""
    return rebuilt(type(error), error.args, error.__dict__)


def rebuilt(cls: type[TieredError], args: tuple[object, ...], state: dict[str, object]) -> TieredError:
    """Unpickle an error with keyword-only arguments (Spark workers send errors by pickle)."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def as_tiered_error(error: TieredError | OSError) -> TieredError:
    """Return what is wrong with one partition, also where its disk does not read, as an error of this package."""
    return error if isinstance(error, TieredError) else TieredError(f"{type(error).__name__}: {error}")
