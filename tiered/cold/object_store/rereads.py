"""Repeated reads of an object that fails verification: one damaged answer does not prove a damaged object.

Memory, a network card or a proxy can damage bytes on their way. A verdict has lasting effects: a scrub remembers it until
a person acts, and restores and repairs act on it. So an object counts as damaged, or missing, only after `READS_MAX`
failed reads in a row (promise P10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ...errors import CorruptionError, ObjectNotFound, TieredError

READS_MAX = 3
"""Failed reads in a row that prove damage."""

DAMAGED_OR_MISSING = CorruptionError, ObjectNotFound
"""The verdicts on an object that the manifest names."""

log = logging.getLogger("tiered.cold")

T = TypeVar("T")


def reread_on_damage(
    read: Callable[[], T],
    *,
    verdicts: tuple[type[TieredError], ...] = (CorruptionError,),
    reads: int = READS_MAX,
) -> T:
    """Return the result of `read`; call it again while it raises one of `verdicts`.

    Parameters
    ----------
    read
        Reads from the bucket and verifies; it must have no effect before it has verified.
    reads
        Calls at most.

    Raises
    ------
    CorruptionError, ObjectNotFound
        The verdict of the last call.
    """
    failure: TieredError | None = None
    for _ in range(reads - 1):
        try:
            result = read()
            break
        except verdicts as error:
            failure = error
    else:
        result = read()
    if failure is not None:
        log.warning("an answer was damaged; the object is sound when it is read again: %s", failure)
    return result
