"""Where a local store's cold tier lies, remembered so that later opens and readers need not be told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import CorruptionError
from ..format.document import decode_document, encode_document
from .filesystem import FileSystem, read_whole, write_atomically

COLD_FILE = "cold.json"


@dataclass(frozen=True, slots=True)
class BucketBinding:
    """URL, endpoint and region of a bucket; never credentials.

    Attributes
    ----------
    claimed
        Whether the store has claimed the prefix. Before that a mistyped URL can still be corrected.
    home
        Path at which the store was last opened for writing: in a copy of its directory it still names the original.
    """

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    claimed: bool = False
    home: str | None = None


def read_cold_place(root: Path) -> BucketBinding:
    """Return what the store at `root` remembers; nothing where it has no cold tier.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = root / COLD_FILE
    try:
        values = decode_document(read_whole(path), where=str(path))
    except FileNotFoundError:
        return BucketBinding()
    url, endpoint_url, region, home = (values.get(name) for name in ("url", "endpoint_url", "region", "home"))
    if not all(isinstance(text, str | None) for text in (url, endpoint_url, region, home)):
        raise CorruptionError("no place of a cold tier", where=str(path))
    return BucketBinding(url, endpoint_url, region, bool(values.get("claimed", False)), home)


def write_cold_place(fs: FileSystem, root: Path, place: BucketBinding) -> None:
    """Remember `place`, durably."""
    write_atomically(fs, root / COLD_FILE, encode_document(asdict(place)))
