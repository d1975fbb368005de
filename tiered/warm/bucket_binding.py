"""The binding of a local store to its bucket, stored so that later opens and readers find the bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import CorruptionError
from .document_file import find_document, write_document
from .filesystem import FileSystem

COLD_FILE = "cold.json"


@dataclass(frozen=True, slots=True)
class BucketBinding:
    """URL, endpoint and region of a bucket; never credentials.

    Attributes
    ----------
    claimed
        Whether the store has claimed the prefix. Before that a wrong URL can still be corrected.
    home
        Path at which the store was last opened for writing; a copy of the directory still names the original here.
    """

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    claimed: bool = False
    home: str | None = None


def read_binding(root: Path) -> BucketBinding:
    """Return the binding of the store at `root`; an empty one if it has no cold tier.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = f"{root}/{COLD_FILE}"
    values = find_document(path)
    if values is None:
        return BucketBinding()
    url, endpoint_url, region, home = (values.get(name) for name in ("url", "endpoint_url", "region", "home"))
    texts = (url, endpoint_url, region, home)
    if not all(isinstance(text, str | None) and "\0" not in (text or "") for text in texts):
        raise CorruptionError("no valid binding to a bucket", where=path)
    return BucketBinding(url, endpoint_url, region, bool(values.get("claimed", False)), home)


def write_binding(fs: FileSystem, root: Path, binding: BucketBinding) -> None:
    """Store a binding durably."""
    write_document(fs, root / COLD_FILE, asdict(binding))
