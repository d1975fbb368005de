"""The seam to the bucket: the one protocol through which objects are read and written.

Every backend passes the same contract suite (``tests/cold/object_store/contract.py``). Keys are relative to the
store's prefix, use ``/`` and never start with one. Errors are `ColdStorageError` and its children
`ObjectNotFound` (only on an authoritative 404, promise P10) and `PreconditionFailed`; nothing of
botocore, fsspec or the operating system escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, runtime_checkable

PROBE_PREFIX = "probe/"  # of objects that are written to learn something of the server, and deleted at once

Bytes = bytes | bytearray | memoryview

# Of an object that is read whole: a document, a head, a page. Each is decoded in memory, several times its size.
GET_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a HEAD shows it; ``modified_seconds`` is the server's clock (Unix).

    ``crc`` is the CRC32C of all its bytes, as the server keeps it; None where it keeps none, and in listings.
    ``storage_class`` is empty for the one that new objects get, and in listings.
    """

    key: str
    size: int
    etag: str
    modified_seconds: float
    crc: int | None = None
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A whole object and the ETag under which exactly these bytes were read."""

    data: bytes
    etag: str


class Upload(Protocol):
    """A streaming write of one object; memory stays bounded to a few parts.

    Nothing is visible under the key before `commit` returns. Leaving the context without `commit`
    aborts. `write` copies what it must keep.
    """

    def write(self, data: Bytes) -> int: ...
    def commit(self) -> ObjectInfo:
        """Finish, check what arrived (size and CRC32C as the server reports them) and return it."""
        ...

    def abort(self) -> None: ...
    def __enter__(self) -> Upload: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ObjectStore(Protocol):
    """What the cold tier needs of a bucket.

    Attributes
    ----------
    url
        For messages: ``s3://bucket/prefix``; never holds credentials.
    conditional_writes
        Whether `put` honours ``if_match`` and ``if_none_match``.
    """

    @property
    def url(self) -> str: ...
    @property
    def conditional_writes(self) -> bool: ...

    def get(self, key: str) -> Versioned:
        """Read a small object whole, with its ETag; one above `GET_BYTES_MAX` is a `CorruptionError`."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read exactly ``length`` bytes at ``start``; a short answer is an error, not a result."""
        ...

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Read several ``(start, length)`` of one object concurrently, in the order given."""
        ...

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write a small object in one request with a checksum; return its ETag.

        Raises `PreconditionFailed` where the condition does not hold. An unknown outcome (timeout,
        5xx after retries) is ``ColdStorageError(retryable=True)``: the caller finds out by reading.
        """
        ...

    def upload(self, key: str) -> Upload:
        """Start a streaming write of an immutable object under a never-reused key."""
        ...

    def stat(self, key: str) -> ObjectInfo: ...

    def folders(self, prefix: str) -> list[str]:
        """Names (no slash) of the folders directly below ``prefix``, sorted: one delimited listing."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, which ends in ``/`` (or is empty), in key order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete; a key that is not there is no error."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was begun; ``begun_seconds`` is the server's clock (Unix)."""

    key: str
    upload_id: str
    begun_seconds: float


@runtime_checkable
class KeepsUnfinished(Protocol):
    """What a backend has beside `ObjectStore` where uploads that were cut short stay, unseen, and cost storage."""

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Every unfinished upload below ``prefix``, which ends in ``/``, in key order."""
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Drop an unfinished upload and its parts; one that is gone is no error."""
        ...
