"""Reads that end before a torn transaction, so that they see each transaction wholly or not at all.

`engine.read.whole_snapshots` uses them through `engine.context.Reading`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..engine.context import Place
from ..errors import CorruptionError
from ..format.document import TRANSACTIONS_FEATURE
from .parts import Part
from .transaction_log import LogPoint, TransactionLog


def whole_ends(transactions: Iterable[Sequence[Part]], ends: Mapping[Place, int]) -> dict[Place, int]:
    """Lower the ends of partitions so that none has a part of a transaction that is not wholly before all ends.

    Parameters
    ----------
    transactions
        All transactions that may be torn, in the order of the log. Their rows have this order in each partition too.
    """
    whole = dict(ends)
    for parts in transactions:
        seen = [part for part in parts if part.place in whole]
        if any(part.end_offset > whole[part.place] for part in seen):
            for part in seen:
                whole[part.place] = min(whole[part.place], part.first_offset)
    return whole


class WriterReading:
    """A read in the process that commits: it asks which transactions are open after it has taken the ends.

    Records that were appended before the read are in it: while a transaction has its rows in some of its partitions only,
    no other thread appends to any of them.
    """

    def __init__(self, log: TransactionLog) -> None:
        self._log = log
        self._forgotten = log.forgotten

    def whole_ends(self, ends: Mapping[Place, int]) -> dict[Place, int] | None:
        transactions = self._log.parts_beyond(ends)
        return whole_ends(transactions, ends) if self._log.forgotten == self._forgotten else None


class LogReading:
    """A read in another process: it looks at the transaction log before it takes the ends, and after.

    Parameters
    ----------
    catalog
        That of the store. It says whether the store has transactions: it gets the feature before its first one.
    several
        Whether it is a read of several partitions, which a restore to a time moves one by one.
    needs_log
        Whether the read fails if the log is damaged; else it then ends where the partitions end.

    Raises
    ------
    RestoreUnderWay
    """

    def __init__(self, log: TransactionLog, catalog: Any, *, several: bool, needs_log: bool) -> None:
        self._log = log
        self._catalog = catalog
        self._needs_log = needs_log
        self._is_damaged = False
        self._before: LogPoint | None = None
        try:
            if TRANSACTIONS_FEATURE in catalog.features():
                self._before = log.point()
                if several:
                    log.check_all_moved()
        except CorruptionError:
            if needs_log:
                raise
            self._is_damaged = True

    def whole_ends(self, ends: Mapping[Place, int]) -> dict[Place, int] | None:
        before = self._before
        if before is None:
            # A first transaction may have been committed since.
            return dict(ends) if self._is_damaged or not self._catalog.gained(TRANSACTIONS_FEATURE) else None
        try:
            later = self._log.parts_since(before)
        except CorruptionError:
            if self._needs_log:
                raise
            return dict(ends)
        return None if later is None else whole_ends([*before.open, *later], ends)
