"""The optional C extension behind `Topic.append`: its types, or Python classes in their place.

The extension is a package of its own, built from ``accelerator/``. It appends a plain record (`bytes`, with a key of
`bytes` or none) without a Python frame, and passes every other case to the Python method. Its types are bases of the
topic, the writer, its pending rows and their buffer: they hold in C fields what one append reads.
``TIERED_ACCELERATOR=off`` turns the extension off.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

log = logging.getLogger("tiered.hot")

INTERFACE = 2
"""The number of the names and fields that this release expects; an extension with another number is not used."""


def _load() -> ModuleType | None:
    # A free-threaded build has no GIL, on which the extension relies.
    if os.environ.get("TIERED_ACCELERATOR") == "off" or "t" in sys.abiflags:
        return None
    try:
        import tiered_accelerator
    except ImportError:
        return None
    if tiered_accelerator.INTERFACE != INTERFACE:
        log.warning(
            "tiered-accelerator is not used: it has interface %s, and this release needs %s; build it again by `make fast`",
            tiered_accelerator.INTERFACE,
            INTERFACE,
        )
        return None
    module: ModuleType = tiered_accelerator
    return module


class _RowFields:
    """The fields of `RecordBuffer`."""

    __slots__ = ("base_offset", "bytes", "headers", "keys", "numbers", "timestamps_us", "values")


class _PendingFields:
    """The fields of `PendingRows` that an append reads."""


class _WriterFields:
    """The fields of `PartitionWriter` that an append reads."""


class _PlainAppend:
    """`append` of a topic in C; empty without the extension."""


accelerator = _load()

if TYPE_CHECKING:
    Lock = threading.Lock
    RowFields = _RowFields
    PendingFields = _PendingFields
    WriterFields = _WriterFields

    class PlainAppend:
        """See `_PlainAppend`."""

        plain: bool
        plain_clock: Any
        answer: type
        overhead_bytes: int
elif accelerator is None:
    Lock, RowFields, PendingFields = threading.Lock, _RowFields, _PendingFields
    WriterFields, PlainAppend = _WriterFields, _PlainAppend
else:
    Lock, RowFields, PendingFields = accelerator.Lock, accelerator.RowFields, accelerator.PendingFields
    WriterFields, PlainAppend = accelerator.WriterFields, accelerator.PlainAppend
