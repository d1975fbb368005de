"""Abort the multipart uploads that were cut short: no listing of objects shows them, and their parts are paid for.

An upload is aborted under the same conditions as an object is deleted (see `sweep`): it bears the name of a data
object of an epoch that is claimed by us or over, that name is not in flight in this process, and it was begun
longer than the grace period ago, by the server's clock. Uploads are listed before the survey, as objects are: one
of ours that is listed is in flight until its commit has returned, or was given up. One of a lower epoch, still
being sent by a process that stalled, could not be published any more; to it the abort is an upload that failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ...errors import ColdStorageError
from ..manifest.commit import Committer
from ..manifest.keys import PartitionKeys, parse_object_name
from ..manifest.partition_manifest import PartitionManifest
from ..object_store.protocol import KeepsUnfinished, ObjectStore, UnfinishedUpload
from .sweep import PartSweep, SweepRules


def plan_aborts(
    found: Iterable[UnfinishedUpload],
    rules: SweepRules,
    *,
    keys: PartitionKeys,
    epoch: int,
    in_flight: AbstractSet[str],
) -> list[UnfinishedUpload]:
    """Say which uploads of a partition are to be aborted. Pure; parameters as of `sweep.plan_sweep`."""

    def due(upload: UnfinishedUpload) -> bool:
        name = upload.key.removeprefix(keys.data_prefix)
        parsed = parse_object_name(name) if name != upload.key else None
        return (
            parsed is not None and parsed.epoch <= epoch and name not in in_flight and _is_over(upload, rules)
        )

    return [upload for upload in found if due(upload)]


def sweep_uploads(
    swept: PartSweep, partition: PartitionManifest, committer: Committer | None, rules: SweepRules
) -> PartSweep:
    """Abort what is due in a partition, or without a committer only say what that is; return `swept` with it.

    A server that does not list or abort uploads leaves a ``problem``, unless it knows no such request.

    Raises
    ------
    Fenced
        A higher epoch was published; nothing was aborted.
    """
    try:
        found = _listed(partition.store, partition.keys.data_prefix)
        if not found:
            return swept
        if committer is None:
            loaded = partition.load()
            epoch, in_flight = loaded.head.epoch if loaded else 0, frozenset[str]()
        else:
            epoch, in_flight = committer.epoch, committer.survey()[1]
        due = plan_aborts(found, rules, keys=partition.keys, epoch=epoch, in_flight=in_flight)
        return _aborted(swept, partition.store, due, dry_run=committer is None)
    except ColdStorageError as error:
        return replace(swept, problem=swept.problem or f"{type(error).__name__}: {error}")


def sweep_uploads_of_deleted(
    swept: PartSweep, store: ObjectStore, prefix: str, rules: SweepRules, *, dry_run: bool
) -> PartSweep:
    """Do the same below the prefix of a topic whose tombstone is older than the grace period."""
    try:
        due = [upload for upload in _listed(store, prefix) if _is_over(upload, rules)]
        return _aborted(swept, store, due, dry_run=dry_run)
    except ColdStorageError as error:
        return replace(swept, problem=swept.problem or f"{type(error).__name__}: {error}")


def _aborted(
    swept: PartSweep, store: ObjectStore, due: list[UnfinishedUpload], *, dry_run: bool
) -> PartSweep:
    if not dry_run and isinstance(store, KeepsUnfinished):
        for upload in due:
            store.abort_upload(upload)
    return replace(swept, uploads=tuple(upload.key for upload in due))


def _is_over(upload: UnfinishedUpload, rules: SweepRules) -> bool:
    return rules.now_seconds - upload.begun_seconds >= rules.grace_seconds


def _listed(store: ObjectStore, prefix: str) -> list[UnfinishedUpload]:
    return list(store.unfinished_uploads(prefix)) if isinstance(store, KeepsUnfinished) else []
