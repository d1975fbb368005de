"""The time of the last sweep, in the store's directory."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import CorruptionError, FileUnreadable, TieredError
from ..warm.document_file import find_document, write_document
from ..warm.filesystem import FileSystem

log = logging.getLogger("tiered.maintenance")

SWEPT_FILE = "swept.json"


def read_swept(root: Path) -> int | None:
    """Return when the bucket was last swept; None if there is no file, 0 if it cannot be read.

    Raises
    ------
    UnsupportedFormat, Backpressure
    """
    try:
        values = find_document(f"{root}/{SWEPT_FILE}")
    except (CorruptionError, FileUnreadable):
        return 0  # an early sweep does no harm; a pass that cannot plan does
    if values is None:
        return None
    value = values.get("swept_us")
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
        write_document(fs, root / SWEPT_FILE, {"swept_us": swept_us})
    except (TieredError, OSError) as error:
        log.warning("cannot write the time of the sweep: %s", error)
