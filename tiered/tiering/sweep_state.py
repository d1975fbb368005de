"""The time of the last sweep, in the store's directory."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import CorruptionError, TieredError
from ..format.document import decode_document, encode_document
from ..warm.filesystem import FileSystem, read_whole, write_atomically

log = logging.getLogger("tiered.maintenance")

SWEPT_FILE = "swept.json"


def read_swept(root: Path) -> int | None:
    """Return when the bucket was last swept; None if there is no file, 0 if it cannot be read.

    Raises
    ------
    UnsupportedFormat, Backpressure
    """
    path = root / SWEPT_FILE
    try:
        value = decode_document(read_whole(path), where=str(path)).get("swept_us")
    except FileNotFoundError:
        return None
    except (CorruptionError, OSError):
        return 0  # an early sweep does no harm; a pass that cannot plan does
    return value if type(value) is int else 0


def remove_half_swept(fs: FileSystem, root: Path) -> None:
    """Remove the temporary file of a process that was killed in `try_write_swept`; the caller holds the locks of a full pass.

    Raises
    ------
    OSError
    """
    fs.unlink(root / f".{SWEPT_FILE}.tmp")


def try_write_swept(fs: FileSystem, root: Path, swept_us: int) -> None:
    """Write when the bucket was swept, durably; log an error, after which the next sweep comes early."""
    try:
        write_atomically(fs, root / SWEPT_FILE, encode_document({"swept_us": swept_us}))
    except (TieredError, OSError) as error:
        log.warning("cannot write the time of the sweep: %s", error)
