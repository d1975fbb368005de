"""What a tierer asks of a partition's writer in another process, by a file in its directory.

Only the writer seals and moves the start offset while it holds the partition's lock (DESIGN: who touches what). So
the tierer leaves ``asked.json``; the writer looks for it every ``store.sync_interval``, takes the file away, then does
what it says. Nobody waits: a request that gets lost is repeated by the tierer's next pass, one that comes too late
names a segment that is sealed by then, or an offset that lies behind. One that its writer did not live to see is
dropped by the next one, since the policy may be another by then; but not a start offset that the bucket has as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..errors import CorruptionError, UnsupportedFormat
from ..format.document import decode_document, encode_document
from .filesystem import FileSystem, read_whole, write_atomically

ASKED_FILE = "asked.json"


@dataclass(frozen=True, slots=True)
class WriterRequest:
    """A request to the writer of a partition.

    Attributes
    ----------
    topic_id
        Whose partition is meant: a topic that was deleted and created again has other records under its name.
    seal
        The active segment that is to be sealed; None where none is.
    start_offset
        Where the log is to begin; 0 where it is to stay as it is.
    decided
        Whether the log begins there in any case: the bucket is told at the same time.
    """

    topic_id: UUID
    seal: UUID | None = None
    start_offset: int = 0
    decided: bool = False


def ask(fs: FileSystem, directory: Path, asked: WriterRequest) -> None:
    """Leave a request, beside what was asked before and is not done yet; the caller holds the tiering lock.

    Raises
    ------
    DiskFull
    """
    before = _read(directory)
    if before is not None and before.topic_id == asked.topic_id:
        start = max(before.start_offset, asked.start_offset)
        asked = WriterRequest(
            asked.topic_id, asked.seal or before.seal, start, asked.decided or before.decided
        )
    values = {
        "topic_id": str(asked.topic_id),
        "seal": None if asked.seal is None else str(asked.seal),
        "start_offset": asked.start_offset,
        "decided": asked.decided,
    }
    write_atomically(fs, directory / ASKED_FILE, encode_document(values))


def take_request(fs: FileSystem, directory: Path) -> WriterRequest | None:
    """Return the request that was left, and remove it; None where there is none that can be read."""
    found = _read(directory)
    fs.unlink(directory / ASKED_FILE)
    return found


def drop_asked(fs: FileSystem, directory: Path) -> None:
    """Remove what was asked of an earlier writer, unless it is decided; the caller has just taken the partition's lock."""
    found = _read(directory)
    if found is None or not found.decided:
        fs.unlink(directory / ASKED_FILE)


def _read(directory: Path) -> WriterRequest | None:
    path = directory / ASKED_FILE
    try:
        values = decode_document(read_whole(path), where=str(path))
        seal, start = values["seal"], values["start_offset"]
        if type(start) is not int or not 0 <= start < 1 << 63:
            return None
        decided = values.get("decided", False) is True  # which early releases do not write
        return WriterRequest(UUID(values["topic_id"]), None if seal is None else UUID(seal), start, decided)
    except (FileNotFoundError, CorruptionError, UnsupportedFormat):
        return None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
