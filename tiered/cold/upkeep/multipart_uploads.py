"""The sweep of unfinished multipart uploads: listings of objects do not show them, and their parts cost storage.

An upload is aborted under the conditions of a deletion (see `sweep`): it has the name of a data object of this epoch or an
earlier one, the name is not in flight in this process, and the upload began longer than the grace ago by the server's
clock. Uploads are listed before the survey, like objects: a listed upload of this process is in flight until its commit
has returned, or was given up. A stalled process of a lower epoch cannot publish its upload any more; for that process the
abort is a failed upload.
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
    uploads: Iterable[UnfinishedUpload],
    rules: SweepRules,
    *,
    keys: PartitionKeys,
    epoch: int,
    in_flight: AbstractSet[str],
) -> list[UnfinishedUpload]:
    """Plan which uploads of a partition to abort. Pure; for the parameters see `sweep.plan_sweep`."""

    def due(upload: UnfinishedUpload) -> bool:
        name = upload.key.removeprefix(keys.data_prefix)
        parsed = parse_object_name(name) if name != upload.key else None
        return (
            parsed is not None and parsed.epoch <= epoch and name not in in_flight and _is_old(upload, rules)
        )

    return [upload for upload in uploads if due(upload)]


def sweep_uploads(
    swept: PartSweep, partition: PartitionManifest, committer: Committer | None, rules: SweepRules
) -> PartSweep:
    """Abort the due uploads of a partition, or only list them without a committer; return `swept` with them.

    A server that fails to list or abort uploads is a ``problem``, unless it does not have such requests.

    Raises
    ------
    Fenced
        A higher epoch was published; nothing was aborted.
    CorruptionError, UnsupportedFormat
    """
    try:
        uploads = _list_uploads(partition.store, partition.keys.data_prefix)
        if not uploads:
            return swept
        if committer is None:
            loaded = partition.load()
            epoch, in_flight = loaded.head.epoch if loaded else 0, frozenset[str]()
        else:
            epoch, in_flight = committer.epoch, committer.survey()[1]
        due = plan_aborts(uploads, rules, keys=partition.keys, epoch=epoch, in_flight=in_flight)
        return _abort(swept, partition.store, due, dry_run=committer is None)
    except ColdStorageError as error:
        return replace(swept, problem=swept.problem or f"{type(error).__name__}: {error}")


def sweep_uploads_of_deleted(
    swept: PartSweep, store: ObjectStore, prefix: str, rules: SweepRules, *, dry_run: bool
) -> PartSweep:
    """Abort the old uploads below the prefix of a topic whose tombstone is older than the grace."""
    try:
        due = [upload for upload in _list_uploads(store, prefix) if _is_old(upload, rules)]
        return _abort(swept, store, due, dry_run=dry_run)
    except ColdStorageError as error:
        return replace(swept, problem=swept.problem or f"{type(error).__name__}: {error}")


def _abort(swept: PartSweep, store: ObjectStore, due: list[UnfinishedUpload], *, dry_run: bool) -> PartSweep:
    if not dry_run and isinstance(store, KeepsUnfinished):
        for upload in due:
            store.abort_upload(upload)
    return replace(swept, uploads=tuple(upload.key for upload in due))


def _is_old(upload: UnfinishedUpload, rules: SweepRules) -> bool:
    return rules.now_seconds - upload.begun_seconds >= rules.grace_seconds


def _list_uploads(store: ObjectStore, prefix: str) -> list[UnfinishedUpload]:
    return list(store.unfinished_uploads(prefix)) if isinstance(store, KeepsUnfinished) else []
