"""The writer's side of `warm.writer_requests`: the writer carries out the requests of a tierer in another process."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import FileUnreadable, ReadOnly
from ..warm.writer_requests import REQUEST_FILE, take
from .partition_writer import PartitionWriter


def serve_requests(writer: PartitionWriter, shorten_log: Callable[[int], object]) -> None:
    """Take the pending request and carry it out: move the start offset, forget, seal. Costs one `stat` if there is none.

    Parameters
    ----------
    shorten_log
        Called with the offset, if the transaction log is to begin there or later.

    Raises
    ------
    DiskFull, PartitionPoisoned, StoreClosed, Fenced
    ReadOnly
        The request cannot be read or removed.
    """
    if not os.path.exists(f"{writer.directory}/{REQUEST_FILE}"):  # noqa: PTH110 — every second at least; a Path costs more
        return
    try:
        request = take(writer.fs, writer.directory)
    except (FileUnreadable, OSError) as error:
        # Another user may own the file. The writer still flushes.
        raise ReadOnly(f"cannot remove {writer.directory}/{REQUEST_FILE}: {error}") from None
    if request is None or request.topic_id != writer.meta.topic_id:
        return
    if request.start_offset > writer.start_offset:
        writer.set_start_offset(min(request.start_offset, writer.durable_offset))
    if request.forget:
        writer.recent.clear()
    if request.shorten:
        shorten_log(request.shorten)
    if request.seal is not None and request.seal == writer.active_segment_id:
        writer.roll()
