"""The horizon of an erasure in a log that a restore goes on with: it may have records that an earlier restore had undone."""

from __future__ import annotations

from ..format.erasure import LedgerEntry, horizon_in
from ..format.lineages import shared_end
from ..format.manifest import Head


def restored_horizon(erasure: LedgerEntry, partition: int, head: Head) -> int:
    """Return the offset before which an erasure concerns the log of `head`, whose newest lineage a restore has begun.

    It may lie behind the end of that log.
    """
    horizon, called = (horizon_in(item, partition) for item in (erasure.horizons, erasure.called_lineages))
    if not called:
        return horizon
    # By an earlier lineage than that of the call, nothing was appended after the call.
    earlier = [shared_end(head, epoch, head.lineage_epoch) for epoch, _ in head.lineages if epoch < called]
    same = min(horizon_in(erasure.called_horizons, partition), shared_end(head, called, head.lineage_epoch))
    return max([horizon, same, *earlier])
