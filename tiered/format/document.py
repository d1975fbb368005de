"""Documents: small JSON files with a checksum inside (``topic.json``, ``start.json`` and others).

``crc32c`` is the CRC32C, in hexadecimal, of the document without this field, as compact JSON with sorted keys.

A document has format 1. One with ``features`` has format 2, which releases without features refuse: each feature is a name
that a reader must know to use what the document describes.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import CorruptionError, UnsupportedFormat
from .checksum import crc32c

FORMAT_VERSION = 2
FEATURES = "features"
TRANSACTIONS_FEATURE = "transactions"
"""The store holds transactions: its writer completes decided ones first."""
STAGED_FEATURE = "staged"
"""The transaction log holds rows of batches that a later record decides."""
ERASURES_FEATURE = "erasures"
"""The store has erasures: objects may lack records, and a repair or a rebuild must not bring them back."""
COMPACTION_FEATURE = "compaction"
"""The store has compacted topics: objects may lack records, and a restore to a time must not use them blindly."""
KNOWN_FEATURES = frozenset({TRANSACTIONS_FEATURE, STAGED_FEATURE, ERASURES_FEATURE, COMPACTION_FEATURE})
"""The features that this release knows."""
SPARSE_FEATURES = frozenset({ERASURES_FEATURE, COMPACTION_FEATURE})
"""With one of these, objects may lack records of their ranges."""


def encode_document(values: dict[str, Any]) -> bytes:
    """Return `values` with ``format`` and ``crc32c`` added, as compact JSON on one line."""
    content = _compact({"format": 2 if values.get(FEATURES) else 1, **values})
    return b'%b,"crc32c":"%08x"}\n' % (content[:-1], crc32c(content))


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
        intact = stored == f"{crc32c(_compact(document)):08x}"
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        reason = "no JSON" if isinstance(error, ValueError) else "no JSON object with its format and checksum"
        raise CorruptionError(f"document does not decode: it is {reason}", where=where) from None
    if not intact:
        raise CorruptionError("document fails its checksum", where=where)
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise UnsupportedFormat(f"format {version} of {where} is newer than this release ({FORMAT_VERSION})")
    del document["format"]
    _check_features(document.get(FEATURES, []), where)
    return dict(document)


def _check_features(features: Any, where: str) -> None:
    if not isinstance(features, list) or not all(isinstance(item, str) for item in features):
        raise CorruptionError("features is no list of names", where=where)
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise UnsupportedFormat(
            f"{where} uses features that are newer than this release: {', '.join(unknown)}"
        )


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
