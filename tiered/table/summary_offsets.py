"""The offsets of a snapshot in its summary; those of many partitions are in a document that the summary names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.object_store.rereads import reread_on_damage
from ..errors import CorruptionError
from ..format.document import decode_document, encode_document
from .avro_files import key_of
from .table_metadata import TAKE, whole
from .table_range import TableRange

Offsets = Mapping[int, list[int]]
"""Start offset, end and first row by partition; see `TableRange.about`."""

_SUMMARY_PARTITIONS = 8
_FILE = "tiered.offsets-file"
_OFFSETS, _BEGINS, _COMMIT = "tiered.offsets.", "tiered.begins.", "tiered.commit."


def write_offsets(store: ObjectStore, prefix: str, ranges: Mapping[int, TableRange]) -> dict[str, str]:
    """Return the offsets as properties of a summary; those of more than 8 partitions are put below `prefix`.

    Raises
    ------
    ColdStorageError
    """
    if len(ranges) > _SUMMARY_PARTITIONS:
        partitions = {
            str(partition): {"offsets": item.about, "commit": item.head.commit_id}
            for partition, item in ranges.items()
        }
        key = f"{prefix}offsets-{uuid4()}.json"
        store.put(key, encode_document({"partitions": partitions}))
        return {_FILE: object_url(store, key)}
    summary: dict[str, str] = {}
    for partition, item in ranges.items():
        start, end, begins = item.about
        summary[f"{_OFFSETS}{partition}"] = f"{start}-{end}"
        summary[f"{_BEGINS}{partition}"] = str(begins)
        summary[f"{_COMMIT}{partition}"] = item.head.commit_id
    return summary


def offsets_file(summary: Mapping[str, str]) -> str | None:
    """Return the URL of the document that has the offsets of a summary; None if the summary has them."""
    return summary.get(_FILE)


def read_offsets(store: ObjectStore, prefix: str, summary: Mapping[str, str]) -> Offsets:
    """Invert `write_offsets`.

    Raises
    ------
    CorruptionError, ColdStorageError
    """
    url = offsets_file(summary)
    document = None
    if url is not None:
        key = key_of(store, prefix, url)
        document = reread_on_damage(lambda: decode_document(store.get(key).data, where=url))
    try:
        offsets = _in_summary(summary) if document is None else _in_document(document)
        for start, end, begins in offsets.values():
            whole(start), whole(end), whole(begins)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(
            f"the offsets of a table do not decode ({type(error).__name__}); {TAKE}",
            where=url or object_url(store, prefix),
        ) from None
    return offsets


def _in_summary(summary: Mapping[str, str]) -> Offsets:
    return {
        int(name.removeprefix(_OFFSETS)): [
            *map(int, value.split("-")),
            int(summary[f"{_BEGINS}{name.removeprefix(_OFFSETS)}"]),
        ]
        for name, value in summary.items()
        if name.startswith(_OFFSETS)
    }


def _in_document(document: Mapping[str, Any]) -> Offsets:
    return {int(number): value["offsets"] for number, value in document["partitions"].items()}
