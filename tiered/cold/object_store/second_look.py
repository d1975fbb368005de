"""A second look before something of the bucket is called damaged: one spoilt answer is no damage.

Bytes can be changed on their way: by memory, a network card, a proxy. What a checksum finds then is of the answer,
not of the object, and a verdict would stay: a scrub remembers it until a person acts, and a restore or a repair acts on
it. So whoever judges asks again, and is believed once every answer was bad (promise P10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ...errors import CorruptionError, ObjectNotFound, TieredError

LOOKS = 3
"""Answers that have to be bad, one after the other."""

DAMAGED_OR_MISSING = CorruptionError, ObjectNotFound
"""Verdicts on an object that the manifest names."""

log = logging.getLogger("tiered.cold")

T = TypeVar("T")


def sound(
    look: Callable[[], T],
    *,
    doubted: tuple[type[TieredError], ...] = (CorruptionError,),
    looks: int = LOOKS,
) -> T:
    """Return what `look` reads of the bucket and verifies; a verdict that is `doubted` makes it look again.

    Parameters
    ----------
    look
        Asks the bucket each time, and keeps nothing before it has verified.
    looks
        At most.

    Raises
    ------
    CorruptionError, ObjectNotFound
        Of the last look.
    """
    spoilt: TieredError | None = None
    for _ in range(looks - 1):
        try:
            found = look()
            break
        except doubted as error:
            spoilt = error
    else:
        found = look()
    if spoilt is not None:
        log.warning("an answer came spoilt, and sound when it was asked for again: %s", spoilt)
    return found
