"""The encoding of the manifest.

``head.json`` is a document (see `document`): JSON with a CRC32C of its content inside. A page is one Zstandard frame of
compact JSON, ``{"version": 1, "entries": [...]}``; the head has its size and CRC32C.

In both, an entry is an object with the field names of `ObjectEntry` and with ids as text; each of its row groups is a list
of eight integers in the order of `RowGroup`'s fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, astuple, fields
from typing import Any, TypeVar
from uuid import UUID

import zstandard

from ..errors import CorruptionError, UnsupportedFormat
from .checksum import crc32c
from .document import FEATURES, decode_document, encode_document
from .manifest import (
    FILTER_FIELDS,
    MANIFEST_VERSION,
    OBJECT_NAME,
    Compaction,
    ErasedMark,
    Head,
    ObjectEntry,
    Origin,
    PageRef,
    RowGroup,
)
from .manifest_checks import check_head, check_page, summary
from .manifest_page import decode_columns

PAGE_RAW_BYTES_MAX = 64 * 1024 * 1024

_T = TypeVar("_T")
_GROUP_FIELDS = tuple(field.name for field in fields(RowGroup))
_PAGE_FIELDS = tuple(field.name for field in fields(PageRef) if field.default is MISSING)
_PAGE_SUMMARY = tuple(field.name for field in fields(PageRef) if field.default is None)
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


def encode_head(head: Head) -> bytes:
    """Return the bytes of ``head.json``."""
    return encode_document(
        {
            "version": head.version,
            "store_id": str(head.store_id),
            "topic_id": str(head.topic_id),
            "partition": head.partition,
            "epoch": head.epoch,
            "lineages": [list(row) for row in head.lineages],
            "commit_id": head.commit_id,
            "previous_commit_ids": list(head.previous_commit_ids),
            "start_offset": head.start_offset,
            "end_offset": head.end_offset,
            "schemas": {str(key): text for key, text in sorted(head.schemas.items())},
            "pages": [_page_to_json(ref) for ref in head.pages],
            "inline": [entry_to_json(entry) for entry in head.inline],
            "committed_us": head.committed_us,
            # Omitted if empty, as in most logs.
            **({"rewinds": [list(row) for row in head.rewinds]} if head.rewinds else {}),
            **({"cuts": [list(row) for row in head.cuts]} if head.cuts else {}),
            **({"origins": [list(astuple(row)) for row in head.origins]} if head.origins else {}),
            **({FEATURES: list(head.features)} if head.features else {}),
            **({"erased": [[str(m.erasure), m.offset, m.rows] for m in head.erased]} if head.erased else {}),
            **({"compaction": list(astuple(head.compaction))} if head.compaction is not None else {}),
        }
    )


def decode_head(data: bytes, *, where: str) -> Head:
    """Verify and decode a head; the result has the invariants of `check_head`.

    Raises
    ------
    CorruptionError
        The head is damaged, cut short, incomplete or contradictory.
    UnsupportedFormat
        A newer release wrote it.
    """
    values = decode_document(data, where=where)
    _check_version(values, where)
    head = _build(_head_from_json, values, where)
    problems = check_head(head)
    if problems:
        raise CorruptionError(f"manifest contradicts itself: {problems[0]}", where=where)
    return head


def encode_page(name: str, entries: tuple[ObjectEntry, ...]) -> tuple[PageRef, bytes]:
    """Return a page's reference and its bytes."""
    values = {"version": MANIFEST_VERSION, "entries": [entry_to_json(entry) for entry in entries]}
    raw = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
    if len(raw) > PAGE_RAW_BYTES_MAX:
        raise ValueError(f"a page of {len(raw)} bytes is above the limit of {PAGE_RAW_BYTES_MAX}")
    data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
    ref = PageRef(
        name=name,
        base_offset=entries[0].base_offset,
        end_offset=entries[-1].end_offset,
        min_timestamp_us=min(entry.min_timestamp_us for entry in entries),
        max_timestamp_us=max(entry.max_timestamp_us for entry in entries),
        count=len(entries),
        bytes=len(data),
        crc=crc32c(data),
        **summary(entries),
    )
    return ref, data


def decode_page(data: bytes, ref: PageRef, *, where: str) -> Sequence[ObjectEntry]:
    """Verify a page against its reference, then decode it, to at most `PAGE_RAW_BYTES_MAX`.

    The result is `EntryColumns`, or a tuple if another program wrote the page.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    offsets = (ref.base_offset, ref.end_offset)
    if len(data) != ref.bytes or crc32c(data) != ref.crc:
        raise CorruptionError("manifest page fails its checksum", where=where, position=0, offsets=offsets)
    try:
        raw = _decompress(data)
        columns = decode_columns(raw, ref)
        if columns is not None:
            return columns
        values = _parse(raw)
    except ValueError as error:
        raise CorruptionError(str(error), where=where, offsets=offsets) from None
    _check_version(values, where)
    entries = _build(lambda page: tuple(map(entry_from_json, page["entries"])), values, where)
    problems = check_page(ref, entries)
    if problems:
        raise CorruptionError(f"manifest contradicts itself: {problems[0]}", where=where, offsets=offsets)
    return entries


def unpack_page(data: bytes) -> Any:
    """Return the unchecked JSON values of a page; raise `ValueError` if it does not decode."""
    return _parse(_decompress(data))


def _decompress(data: bytes) -> bytes:
    try:
        # The library allocates the declared size, so that is checked first; -1 means undeclared.
        declared = zstandard.frame_content_size(data)
        if not 0 <= declared <= PAGE_RAW_BYTES_MAX:
            raise ValueError(f"manifest page declares {declared} bytes")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise _undecodable(error) from None


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise _undecodable(error) from None


def _undecodable(error: Exception) -> ValueError:
    return ValueError(f"manifest page does not decode ({error})")


def _check_version(values: Any, where: str) -> None:
    version = values.get("version") if isinstance(values, dict) else None
    if type(version) is not int or version < 1:
        raise CorruptionError("manifest has no version", where=where)
    if version > MANIFEST_VERSION:
        raise UnsupportedFormat(
            f"manifest version {version} of {where} is newer than this release reads ({MANIFEST_VERSION}): upgrade"
        )


def _build(build: Callable[[Any], _T], values: Any, where: str) -> _T:
    try:
        return build(values)
    except _MALFORMED as error:
        raise CorruptionError(f"manifest does not decode ({error!r})", where=where) from None


def _head_from_json(values: dict[str, Any]) -> Head:
    return Head(
        version=_integer(values["version"]),
        store_id=UUID(values["store_id"]),
        topic_id=UUID(values["topic_id"]),
        partition=_integer(values["partition"]),
        epoch=_integer(values["epoch"]),
        lineages=tuple((_integer(epoch), _integer(start)) for epoch, start in values["lineages"]),
        commit_id=_text(values["commit_id"]),
        previous_commit_ids=tuple(map(_text, values["previous_commit_ids"])),
        start_offset=_integer(values["start_offset"]),
        end_offset=_integer(values["end_offset"]),
        schemas={int(key): _text(text) for key, text in values["schemas"].items()},
        pages=tuple(map(_page_from_json, values["pages"])),
        inline=tuple(map(entry_from_json, values["inline"])),
        committed_us=_integer(values["committed_us"]),
        rewinds=tuple((_integer(epoch), _integer(began)) for epoch, began in values.get("rewinds", ())),
        cuts=tuple((_integer(epoch), _integer(at)) for epoch, at in values.get("cuts", ())),
        origins=tuple(Origin(*map(_integer, row)) for row in values.get("origins", ())),
        features=tuple(map(_text, values.get(FEATURES, ()))),
        erased=tuple(_mark(*row) for row in values.get("erased", ())),
        compaction=Compaction(*map(_integer, values["compaction"])) if "compaction" in values else None,
    )


def _mark(erasure: Any, offset: Any, rows: Any) -> ErasedMark:
    return ErasedMark(UUID(erasure), _integer(offset), _integer(rows))


def _page_to_json(ref: PageRef) -> dict[str, Any]:
    present = [name for name in _PAGE_SUMMARY if getattr(ref, name) is not None]
    return {name: getattr(ref, name) for name in (*_PAGE_FIELDS, *present)}


def _page_from_json(values: dict[str, Any]) -> PageRef:
    present = {name: _integer(values[name]) for name in _PAGE_SUMMARY if name in values}
    return PageRef(_name(values["name"]), *(_integer(values[name]) for name in _PAGE_FIELDS[1:]), **present)


def entry_to_json(entry: ObjectEntry) -> dict[str, Any]:
    """Return an entry of a page as plain JSON values."""
    values = {field.name: getattr(entry, field.name) for field in fields(entry)}
    values["segment_ids"] = list(map(str, entry.segment_ids))
    values["row_groups"] = [[getattr(group, name) for name in _GROUP_FIELDS] for group in entry.row_groups]
    for name in ("storage_class", "end_hash"):
        if not values[name]:
            del values[name]  # omitted if empty, as in most entries
    if not entry.footer_position:
        for name in FILTER_FIELDS:
            del values[name]
    return values


def entry_from_json(values: dict[str, Any]) -> ObjectEntry:
    """Invert `entry_to_json`; raise KeyError, ValueError or TypeError for malformed values."""
    return ObjectEntry(
        name=_name(values["name"]),
        base_offset=_integer(values["base_offset"]),
        end_offset=_integer(values["end_offset"]),
        record_count=_integer(values["record_count"]),
        min_timestamp_us=_integer(values["min_timestamp_us"]),
        max_timestamp_us=_integer(values["max_timestamp_us"]),
        last_append_us=_integer(values["last_append_us"]),
        segment_ids=tuple(map(UUID, values["segment_ids"])),
        generation=_integer(values["generation"]),
        sealed=_flag(values["sealed"]),
        bytes=_integer(values["bytes"]),
        schema_id=_integer(values["schema_id"]),
        tail_position=_integer(values["tail_position"]),
        tail_crc=_integer(values["tail_crc"]),
        content_hash=_text(values["content_hash"]),
        origin_hash=_text(values["origin_hash"]),
        row_groups=tuple([_row_group(row) for row in values["row_groups"]]),
        storage_class=_text(values.get("storage_class", "")),
        end_hash=_text(values.get("end_hash", "")),
        **{name: _integer(values.get(name, 0)) for name in FILTER_FIELDS},
    )


def _row_group(row: list[int]) -> RowGroup:
    # The checks of `_integer` in a fraction of the time, since row groups are most of a manifest.
    if set(map(type, row)) != {int} or min(row) < -(1 << 63) or max(row) >= 1 << 63:
        raise TypeError("not integers of 64 bits")
    return RowGroup(*row)


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError("not an integer of 64 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _name(value: Any) -> str:
    """Return the name of an object; raise `ValueError` for one that could name another folder of the bucket or disk."""
    name = _text(value)
    if OBJECT_NAME.fullmatch(name) is None:
        raise ValueError(f"{name[:60]!r} is not the name of an object")
    return name


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value
