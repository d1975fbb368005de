"""Files with one document each on this disk (see `format.document`): read whole, and replaced whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..format.document import decode_document, encode_document
from .filesystem import FileSystem, file_status, read_whole, write_atomically


def read_document(path: Path) -> dict[str, Any]:
    """Return the values of the document at `path`.

    Raises
    ------
    FileNotFoundError, CorruptionError, UnsupportedFormat, Backpressure, FileUnreadable
    """
    return decode_document(read_whole(path), where=str(path))


def find_document(path: str | Path) -> dict[str, Any] | None:
    """Return the values of the document at `path`; None if there is none. See `read_document`."""
    try:
        file_status(path)  # to open a file that is not there takes several times as long
        return read_document(Path(path))
    except FileNotFoundError:
        return None


def write_document(fs: FileSystem, path: Path, values: dict[str, Any]) -> None:
    """Replace the document at `path` durably; after a crash it is the old one or the new one.

    Raises
    ------
    DiskFull, Backpressure, OSError
    """
    write_atomically(fs, path, encode_document(values))
