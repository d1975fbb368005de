"""Deletions of topics that have begun, and the bucket does not know yet: what is left of them is done here.

The order of a deletion, and what a kill after each step leaves behind::

    1  ask      whether the store may delete the topic in its bucket   nothing has changed
    2  rename   topics/<name> to topics/.deleting-<uuid>, synced       it is gone here, for every reader and writer
    3  write_tombstone     a tombstone in the bucket                              it is gone there, too
    4  remove   .deleting-<uuid> to .deleted-<uuid>, and its files     nothing is left but the objects, for the sweep

From the second step on there is no way back, so whoever finds a deletion goes on with the third. The other way round a topic
could live here that is dead there: what is published for it would be swept.
"""

from __future__ import annotations

import logging

from ..errors import ColdStorageError, Fenced, TieredError, as_tiered_error, rebuilt
from ..format.topic_meta import TopicMeta
from ..warm.catalog import Catalog, Deletion, deletions
from .claims import Claims

log = logging.getLogger("tiered.deletions")


def finish_deletions(
    claims: Claims, catalog: Catalog, of: str | None = None, *, briefly: bool = False
) -> dict[str, TieredError]:
    """Go on with the deletions that have begun; return what stands in the way of which, by the name of the topic.

    Several threads and processes may do so at the same time.

    Parameters
    ----------
    of
        The name of a topic: of no other one.
    briefly
        Ask the bucket once, and without patience.
    """
    found = [item for item in deletions(catalog.root) if of in (None, item.name)]
    unfinished: dict[str, TieredError] = {}
    silent: ColdStorageError | None = None
    for item in found:
        try:
            if silent is not None:
                raise silent
            _finish(item, claims, catalog, briefly=briefly)
        except (TieredError, OSError) as error:
            if silent is None and isinstance(error, ColdStorageError) and len(found) > 1:
                # While the bucket is away it is asked once: each question takes all its retries.
                silent = None if claims.bucket_answers() else error
            unfinished[item.name] = _unfinished(item, as_tiered_error(error))
            log.warning("%s", unfinished[item.name])
    return unfinished


def _finish(deletion: Deletion, claims: Claims, catalog: Catalog, *, briefly: bool) -> None:
    if not isinstance(deletion.meta, TopicMeta):
        raise deletion.meta
    # Whoever renamed it may have been killed before that was durable: a tombstone must not be, before it is.
    catalog.sync_deletions()
    try:
        claims.write_tombstone(deletion.meta, briefly=briefly)
    except Fenced as newer:
        log.warning("topic %r is deleted here alone, as the bucket is another's: %s", deletion.name, newer)
    catalog.end_deletion(deletion)


def _unfinished(deletion: Deletion, error: TieredError) -> TieredError:
    """Return an error of the same kind that says what it stands in the way of."""
    text = (
        f"the deletion of topic {deletion.name!r} is not finished ({error}); the next pass goes on with it (tiered tier), "
        "and then its name is free"
    )
    return rebuilt(type(error), (text,), error.__dict__)
