"""The protocol of an object store, through which all objects are read and written.

Every backend passes the same contract suite (``tests/cold/object_store/contract.py``). Keys are relative to the store's
prefix, use ``/`` and never start with it. Errors are `ColdStorageError` and its subclasses `ObjectNotFound` (only on an authoritative
404, promise P10) and `PreconditionFailed`; no error of botocore, fsspec or the operating system escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

PROBE_PREFIX = "probe/"  # of objects that are written to test the server and deleted at once

Bytes = bytes | bytearray | memoryview

# The largest object that is read whole: a document, a head, a page. Decoding takes several times its size.
GET_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a HEAD shows it; ``modified_seconds`` is the server's clock (Unix).

    ``crc`` is the CRC32C of all its bytes as the server stores it; None if it stores none, and in listings.
    ``storage_class`` is empty for the class of new objects, and in listings.
    """

    key: str
    size: int
    etag: str
    modified_seconds: float
    crc: int | None = None
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A whole object, and the ETag under which exactly these bytes were read."""

    data: bytes
    etag: str


class Upload(Protocol):
    """A streaming write of one object that takes memory for a few parts only.

    The object is not visible before `commit` returns. Leaving the context without `commit` aborts the upload. `write`
    copies the data that it must keep.
    """

    def write(self, data: Bytes) -> int:
        """Take `data`; return its number of bytes."""
        ...

    def commit(self) -> ObjectInfo:
        """Finish, check the size and CRC32C that the server reports, and return the object."""
        ...

    def abort(self) -> None:
        """Discard the upload; may be called twice, and after `commit`."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class ObjectStore(Protocol):
    """A bucket, or a prefix of one, as the cold tier uses it.

    Attributes
    ----------
    url
        For messages: ``s3://bucket/prefix``; never holds credentials.
    conditional_writes
        Whether `put` obeys ``if_match`` and ``if_none_match`` atomically.
    """

    @property
    def url(self) -> str: ...
    @property
    def conditional_writes(self) -> bool: ...

    def get(self, key: str) -> Versioned:
        """Read a small object whole, with its ETag; an object above `GET_BYTES_MAX` raises `CorruptionError`."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read exactly ``length`` bytes at ``start``; a short answer is an error, not a result."""
        ...

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Read several ``(start, length)`` of one object concurrently, in the order given."""
        ...

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write a small object in one request with a checksum; return its ETag.

        Raises `PreconditionFailed` if the condition is false. An unknown outcome (timeout, 5xx after retries) raises
        ``ColdStorageError(retryable=True)``: the caller reads the object to learn the outcome.
        """
        ...

    def upload(self, key: str) -> Upload:
        """Begin a streaming write of an immutable object under a key that is never reused."""
        ...

    def stat(self, key: str) -> ObjectInfo: ...

    def folders(self, prefix: str) -> list[str]:
        """Names (no slash) of the folders directly below ``prefix``, sorted: one delimited listing."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, which ends in ``/`` (or is empty), in key order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        ...

    def close(self) -> None: ...


def object_url(store: ObjectStore, key: str) -> str:
    """Return the URL of an object, for messages."""
    return f"{store.url.rstrip('/')}/{key}"


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was begun; ``begun_seconds`` is the server's clock (Unix)."""

    key: str
    upload_id: str
    begun_seconds: float


@runtime_checkable
class KeepsUnfinished(Protocol):
    """An `ObjectStore` in which unfinished uploads stay, invisible in listings, and cost storage."""

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Every unfinished upload below ``prefix``, which ends in ``/``, in key order."""
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort an unfinished upload and delete its parts; a missing one is no error."""
        ...


@dataclass(frozen=True, slots=True)
class OldVersion:
    """A version of an object that a later one replaced or a deletion hides; ``modified_seconds`` is the server's clock."""

    key: str
    version_id: str
    modified_seconds: float


@dataclass(frozen=True, slots=True)
class VersionRule:
    """A rule by which the bucket itself deletes old versions, ``days`` after they became old."""

    id: str
    days: int


@runtime_checkable
class KeepsVersions(Protocol):
    """An `ObjectStore` that may keep old versions of objects, invisible in listings."""

    def old_versions(self, prefix: str) -> Iterator[OldVersion]:
        """Every old version below ``prefix``, which ends in ``/``; none where the bucket keeps none."""
        ...

    def delete_versions(self, versions: Iterable[OldVersion]) -> None:
        """Delete old versions for good; a missing one is no error.

        Raises
        ------
        ObjectsHeld
            The bucket holds some, or denies to delete them and has a `version_rule`.
        ColdStorageError
        """
        ...

    def hold_on(self, key: str) -> str:
        """Return what keeps the present version of an object from being deleted for good; empty if nothing is known to."""
        ...

    def version_rule(self) -> VersionRule | None:
        """Return the fastest rule of the bucket that deletes all old versions of the store; None if none is known."""
        ...
