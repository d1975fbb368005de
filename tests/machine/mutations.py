"""Mechanisms of the engine taken out, one at a time: what the machine must notice."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any
from unittest import mock

from tests.support import mutations
from tests.support.mutations import EVICT_EARLY, FLUSH_ONLY, Mutation
from tiered.cold.upkeep import sweep
from tiered.cold.upkeep.sweep import SweepPlan
from tiered.reader import read
from tiered.tiering.claims import Claims
from tiered.tiering.partition_handle import PartitionHandle


def sweep_live_objects() -> AbstractContextManager[object]:
    """The sweep takes one of the objects that the manifest names for an orphan."""
    plan_sweep = sweep.plan_sweep

    def changed(listed: Any, named: Any, *args: Any, **options: Any) -> SweepPlan:
        return plan_sweep(listed, set(sorted(named)[1:]), *args, **options)

    return mock.patch.object(sweep, "plan_sweep", changed)


def reuse_offsets() -> AbstractContextManager[object]:
    """A restored partition goes on one offset too early."""
    restore = import_module("tiered.recovery.restore")._Restore
    segment = restore._segment

    def changed(
        self: Any, directory: Any, meta: Any, partition: Any, epoch: Any, base: int, *rest: Any
    ) -> None:
        segment(self, directory, meta, partition, epoch, max(0, base - 1), *rest)

    return mock.patch.object(restore, "_segment", changed)


def skip_what_is_gone() -> AbstractContextManager[object]:
    """A scan whose records were removed ends without a word."""
    return mock.patch.object(read, "_relocate", return_value=())


class _WithoutWriter(PartitionHandle):
    """A partition the writer of which is not asked what it has written."""

    def __init__(self, handle: PartitionHandle) -> None:
        super().__init__(handle._tiers, handle.meta, handle.partition, {})
        self._handle = handle

    def local(self) -> Any:
        return self._handle.local()


def compare_durable_ends() -> AbstractContextManager[object]:
    """What the writer has written and not synced itself does not count as its own."""
    committer = Claims.committer

    def changed(self: Any, handle: PartitionHandle, **options: Any) -> Any:
        return committer(self, _WithoutWriter(handle), **options)

    return mock.patch.object(Claims, "committer", changed)


MUTATIONS: dict[str, Mutation] = {
    EVICT_EARLY: mutations.MUTATIONS[EVICT_EARLY],
    FLUSH_ONLY: mutations.MUTATIONS[FLUSH_ONLY],
    "a live object swept": sweep_live_objects,
    "offsets used again after a restore": reuse_offsets,
    "a scan that skips what is gone": skip_what_is_gone,
    "a tierer beside taken for a newer disk": compare_durable_ends,
}
