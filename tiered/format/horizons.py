"""Up to where an erasure concerns a log or an object, where restores have begun other lineages since its call."""

from __future__ import annotations

from .erasure import LedgerEntry, horizon_in
from .lineages import UNBOUNDED, shared_end
from .manifest import Head


def restored_horizon(erasure: LedgerEntry, partition: int, head: Head) -> int:
    """Return the offset before which an erasure concerns the log of `head`, whose newest lineage a restore has begun.

    An earlier restore may have undone a part of that log. The offset may lie behind its end, as rows of transactions from before
    the call may be appended there.
    """
    shared = {epoch: _shared(head, epoch) for epoch, _ in head.lineages}
    horizon, lineage = horizon_in(erasure.horizons, partition), horizon_in(erasure.lineages, partition)
    horizon = min(horizon, shared.get(lineage, UNBOUNDED))  # a rebuilt manifest has only the newest lineage
    called, lineage = _called(erasure, partition)
    # By an earlier lineage than that of the call, nothing was appended after the call.
    earlier = [end for epoch, end in shared.items() if epoch < lineage]
    return max([horizon, min(called, shared.get(lineage, 0)), *earlier])


def object_horizon(erasure: LedgerEntry, partition: int, epoch: int, head: Head | None) -> int:
    """Return the offset before which an erasure concerns an object of a committer of `epoch`; a restore may have undone it."""
    called, lineage = _called(erasure, partition)
    if epoch < lineage:
        return UNBOUNDED
    horizon = horizon_in(erasure.horizons, partition)
    lineages = () if head is None or not lineage else head.lineages
    if any(lineage < later <= epoch for later, _ in lineages):
        return horizon
    return max(horizon, called)


def _shared(head: Head, epoch: int) -> int:
    """Return the offset below which the log of a head has that of a lineage; unbounded if the head goes on where that ended."""
    end = shared_end(head, epoch, head.lineage_epoch)
    return UNBOUNDED if end >= head.end_offset else end


def _called(erasure: LedgerEntry, partition: int) -> tuple[int, int]:
    """Return the horizon at the call, and its lineage; 0 if that is not known."""
    return horizon_in(erasure.called_horizons, partition), horizon_in(erasure.called_lineages, partition)
