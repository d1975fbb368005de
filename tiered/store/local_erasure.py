"""The public view of an entry in the ledger of a store that this process opened."""

from __future__ import annotations

from typing import Protocol

from ..engine.context import StoreContext
from ..errors import CorruptionError
from ..format.erasure import LedgerEntry
from .interface.erasure import Erasure


class GivesUp(Protocol):
    """A store that can give up an erasure."""

    def give_up_erasure(self, entry: LedgerEntry) -> LedgerEntry:
        """See `Erasure.give_up`."""
        ...


def erasure_of(store: GivesUp, context: StoreContext, entry: LedgerEntry) -> Erasure:
    """Return the erasure of an entry."""
    ledger = context.erasures
    assert ledger is not None  # the entry is from there

    def read() -> LedgerEntry:
        context.lifecycle.check()
        found = next((item for item in ledger.read() if item.id == entry.id), None)
        if found is None:
            raise CorruptionError(f"erasure {entry.number} is not in the ledger any more", where=context.url)
        return found

    return Erasure(
        entry,
        read=read,
        waits_for=ledger.waits_for,
        pause=context.lifecycle.pause_or_fail,
        give_up=store.give_up_erasure,
    )
