"""Documents: small JSON files with a checksum inside (``topic.json``, ``start.json`` and others).

``crc32c`` is the CRC32C, in hexadecimal, of the document without this field, as compact JSON with sorted keys.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import CorruptionError, UnsupportedFormat
from .checksum import crc32c

FORMAT_VERSION = 1


def encode_document(values: dict[str, Any]) -> bytes:
    """Return `values` with ``format`` and ``crc32c`` added, as indented JSON."""
    document = {"format": FORMAT_VERSION, **values}
    document["crc32c"] = _checksum(document)
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def decode_document(data: bytes, *, where: str) -> dict[str, Any]:
    """Verify a document and return its values; the inverse of `encode_document`.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    try:
        document = json.loads(data)
        stored = document.pop("crc32c")
        version = document["format"]
        intact = stored == _checksum(document)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptionError(f"document does not decode ({type(error).__name__})", where=where) from None
    if not intact:
        raise CorruptionError("document fails its checksum", where=where)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(f"format {version} of {where} is newer than this release ({FORMAT_VERSION})")
    del document["format"]
    return dict(document)


def _checksum(document: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(document, separators=(',', ':'), sort_keys=True).encode()):08x}"
