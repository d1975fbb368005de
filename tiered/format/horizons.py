"""Up to where an erasure concerns a log or an object, where restores have begun other lineages since its call."""

from __future__ import annotations

from .erasure import LedgerEntry, horizon_in
from .lineages import UNBOUNDED, ancestors, shared_end
from .manifest import Head


def restored_horizon(erasure: LedgerEntry, partition: int, head: Head) -> int:
    """Return the offset before which an erasure concerns the log of `head`, whose newest lineage a restore has begun.

    An earlier restore may have undone a part of that log. The offset may lie behind its end, as rows of transactions from before
    the call may be appended there.
    """
    since, lineage = horizon_in(erasure.lineages, partition), horizon_in(erasure.called_lineages, partition)
    horizons = {epoch: offset for place, epoch, offset in erasure.past_horizons if place == partition}
    horizons[lineage] = horizon_in(erasure.called_horizons, partition)
    horizons[since] = horizon_in(erasure.horizons, partition)
    epochs = [epoch for epoch, _ in head.lineages]
    if since not in epochs:
        return horizons[since]  # the manifest was rebuilt, and has only the newest lineage
    # What follows the end is of the first of these lineages. Those between are of restores that were cut short: nothing was
    # appended in them. By an earlier lineage than that of the call, nothing was appended after the call.
    known = [epoch for epoch in ancestors(head, head.lineage_epoch) if epoch in horizons or epoch < lineage]

    def end_in(epoch: int) -> int:
        shared = shared_end(head, epoch, head.lineage_epoch)
        if shared >= head.end_offset and epoch in known[:1]:
            shared = UNBOUNDED
        return shared if epoch < lineage else min(horizons[epoch], shared)

    return max(end_in(epoch) for epoch in epochs if epoch in horizons or epoch < lineage)


def object_horizon(erasure: LedgerEntry, partition: int, epoch: int, head: Head | None) -> int:
    """Return the offset before which an erasure concerns an object of a committer of `epoch`; a restore may have undone it."""
    lineage = horizon_in(erasure.called_lineages, partition)
    if epoch < lineage:
        return UNBOUNDED
    horizons = [offset for place, _, offset in erasure.past_horizons if place == partition]
    lineages = () if head is None or not lineage else head.lineages
    if not any(lineage < later <= epoch for later, _ in lineages):
        horizons.append(horizon_in(erasure.called_horizons, partition))
    return max([horizon_in(erasure.horizons, partition), *horizons])
