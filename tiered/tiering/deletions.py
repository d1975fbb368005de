"""The end of topic deletions: deletions that began on this disk and are not in the bucket yet.

The order of a deletion, and the state that a kill after each step leaves::

    1  check    the store may write the tombstone             nothing has changed
    2  rename   topics/<name> to topics/.deleting-<uuid>, synced
                                                              deleted on this disk, for every reader and writer
    3  tombstone in the bucket                                deleted in the bucket too
    4  remove   .deleting-<uuid> to .deleted-<uuid>, then its files
                                                              only the objects are left, for the sweep

After step 2 a deletion only goes forward: each process that finds one continues with step 3. The tombstone must not come
first: the topic would still take appends here, and the sweep would delete the objects that are published for it.
"""

from __future__ import annotations

import logging

from ..errors import ColdStorageError, Fenced, TieredError, as_tiered_error, rebuild_error
from ..format.topic_meta import TopicMeta
from ..warm.catalog import Catalog, Deletion, deletions
from .claims import Claims

log = logging.getLogger("tiered.deletions")


def finish_deletions(
    claims: Claims, catalog: Catalog, of: str | None = None, *, briefly: bool = False
) -> dict[str, TieredError]:
    """Continue the deletions that have begun; return the errors of those that are unfinished, by topic name.

    Several threads and processes may call it at the same time.

    Parameters
    ----------
    of
        Only the deletion of this topic.
    briefly
        Send each request once, with short timeouts.
    """
    begun = [deletion for deletion in deletions(catalog.root) if of in (None, deletion.name)]
    unfinished: dict[str, TieredError] = {}
    silent: ColdStorageError | None = None
    for deletion in begun:
        try:
            if silent is not None:
                raise silent
            _finish(deletion, claims, catalog, briefly=briefly)
        except (TieredError, OSError) as error:
            if silent is None and isinstance(error, ColdStorageError) and len(begun) > 1:
                # Every request to a bucket that is away takes all its retries. One request decides for the others.
                silent = None if claims.store.bucket_answers() else error
            unfinished[deletion.name] = _unfinished(deletion, as_tiered_error(error))
            log.warning("%s", unfinished[deletion.name])
    return unfinished


def _finish(deletion: Deletion, claims: Claims, catalog: Catalog, *, briefly: bool) -> None:
    if not isinstance(deletion.meta, TopicMeta):
        raise deletion.meta
    # The rename must be durable before the tombstone. The process that renamed may have been killed before its sync.
    catalog.sync_deletions()
    try:
        claims.store.write_tombstone(deletion.meta, briefly=briefly)
    except Fenced as newer:
        log.warning(
            "topic %r is deleted on this disk only: another lineage owns the bucket (%s)",
            deletion.name,
            newer,
        )
    catalog.end_deletion(deletion)


def _unfinished(deletion: Deletion, error: TieredError) -> TieredError:
    """Return an error of the same type that names the unfinished deletion."""
    text = (
        f"the deletion of topic {deletion.name!r} is not finished ({error}); the next pass continues it (tiered tier), "
        "and then the name is free"
    )
    return rebuild_error(type(error), (text,), error.__dict__)
