"""Requests to the writer of a partition in another process, in a file of the partition's directory.

Only the writer seals segments and moves the start offset while it holds the partition's lock. A tierer in another
process writes its request to ``asked.json``. The writer checks for the file every ``store.sync_interval``, or every second if it
has many partitions, removes it, and then carries the request out. The tierer does not wait:

- A lost request is posted again by the next pass.
- A late request does nothing: its segment is sealed, or its offset lies behind the start offset.
- The memory of a process ends with it, so a new writer has nothing to forget.
- A new writer drops the request that it finds, because the policy may have changed since. It keeps a request whose start
  offset the bucket has too. One to shorten the transaction log counts for whoever opens the store: writers may come for
  moments only, and a pass never meet one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..errors import CorruptionError, UnsupportedFormat
from .document_file import find_document, write_document
from .filesystem import FileSystem

REQUEST_FILE = "asked.json"


@dataclass(frozen=True, slots=True)
class WriterRequest:
    """A request to the writer of a partition.

    Attributes
    ----------
    topic_id
        The topic of the partition. A topic of the same name that is created later ignores the request.
    seal
        The active segment to seal; None: seal nothing.
    start_offset
        The new start offset; 0: keep the start offset.
    decided
        Whether the bucket gets the same start offset, so that a new writer must not drop the request.
    forget
        Whether to drop the recent blocks from memory: an erasure removed some of their records.
    shorten
        The offset before which the transaction log holds erased rows; 0: leave it as it is.
    """

    topic_id: UUID
    seal: UUID | None = None
    start_offset: int = 0
    decided: bool = False
    forget: bool = False
    shorten: int = 0


def post(fs: FileSystem, directory: Path, request: WriterRequest) -> None:
    """Write a request, merged with the one that the writer has not taken yet; the caller holds the tiering lock.

    Raises
    ------
    DiskFull
    """
    pending = _read(directory)
    if pending is not None and pending.topic_id == request.topic_id:
        request = WriterRequest(
            request.topic_id,
            request.seal or pending.seal,
            max(pending.start_offset, request.start_offset),
            request.decided or pending.decided,
            request.forget or pending.forget,
            max(pending.shorten, request.shorten),
        )
    values = {
        "topic_id": str(request.topic_id),
        "seal": None if request.seal is None else str(request.seal),
        "start_offset": request.start_offset,
        "decided": request.decided,
        **({"forget": True} if request.forget else {}),
        **({"shorten": request.shorten} if request.shorten else {}),
    }
    write_document(fs, directory / REQUEST_FILE, values)


def take(fs: FileSystem, directory: Path) -> WriterRequest | None:
    """Remove the request and return it; None if there is none, or if it cannot be decoded."""
    request = _read(directory)
    fs.unlink(directory / REQUEST_FILE)
    return request


def drop(fs: FileSystem, directory: Path) -> None:
    """Remove the request to an earlier writer, unless it is decided; the caller has just taken the partition's lock."""
    request = _read(directory)
    if request is None or not request.decided:
        fs.unlink(directory / REQUEST_FILE)


def asked_to_shorten(directory: Path, topic_id: UUID) -> int:
    """Return the offset before which the transaction log holds erased rows, as an earlier pass has found; 0 if none asks."""
    request = _read(directory)
    return request.shorten if request is not None and request.topic_id == topic_id else 0


def _read(directory: Path) -> WriterRequest | None:
    try:
        values = find_document(f"{directory}/{REQUEST_FILE}")
        if values is None:
            return None
        seal, start, shorten = values["seal"], values["start_offset"], values.get("shorten", 0)
        if not all(type(offset) is int and 0 <= offset < 1 << 63 for offset in (start, shorten)):
            return None
        decided = values.get("decided", False) is True  # early releases do not write this key
        forget = values.get("forget", False) is True
        segment_id = None if seal is None else UUID(seal)
        return WriterRequest(UUID(values["topic_id"]), segment_id, start, decided, forget, shorten)
    except (CorruptionError, UnsupportedFormat, KeyError, ValueError, TypeError, AttributeError):
        return None
