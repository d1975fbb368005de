"""The writer's side of what a tierer in another process asks (`warm.asking`)."""

from __future__ import annotations

import os

from ..errors import ReadOnly
from ..warm.writer_requests import ASKED_FILE, take_request
from .partition_writer import PartitionWriter


def serve_requests(writer: PartitionWriter) -> None:
    """Seal, and move the start offset, where a tierer asked for it; one look at the directory where none did.

    Raises
    ------
    DiskFull, PartitionPoisoned, StoreClosed, Fenced
    ReadOnly
        The request cannot be read or removed.
    """
    if not os.path.exists(f"{writer.directory}/{ASKED_FILE}"):  # noqa: PTH110 — every 50 ms; a Path costs more
        return
    try:
        asked = take_request(writer.fs, writer.directory)
    except OSError as error:
        # Another user's, perhaps. It must not stand in the way of what else is to be flushed.
        raise ReadOnly(f"cannot take away {writer.directory}/{ASKED_FILE}: {error.strerror}") from None
    if asked is None or asked.topic_id != writer.meta.topic_id:
        return
    if asked.start_offset > writer.start_offset:
        writer.set_start_offset(min(asked.start_offset, writer.durable_offset))
    if asked.seal is not None and asked.seal == writer.active_segment_id:
        writer.roll()
