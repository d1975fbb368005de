"""Reads that end before a torn transaction, so that they see each transaction wholly or not at all.

`engine.read.whole_snapshots` uses them through `engine.context.Reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..engine.context import Place
from .parts import Part
from .transaction_log import LogPoint, TransactionLog


def whole_ends(transactions: Iterable[Sequence[Part]], ends: Mapping[Place, int]) -> dict[Place, int]:
    """Lower the ends of partitions so that none has a part of a transaction that is not wholly before all ends.

    Parameters
    ----------
    transactions
        All transactions that may not be, in the order of the log; in a partition, their rows have that order too.
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
    nobody else appends to any of them.
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
    has_transactions
        Whether the store has the feature, which it gets before its first transaction.
    """

    def __init__(self, log: TransactionLog, has_transactions: Callable[[], bool]) -> None:
        self._log = log
        self._has_transactions = has_transactions
        self._before: LogPoint | None = log.point() if has_transactions() else None

    def whole_ends(self, ends: Mapping[Place, int]) -> dict[Place, int] | None:
        if self._before is None:
            return None if self._has_transactions() else dict(ends)
        later = self._log.parts_since(self._before)
        return None if later is None else whole_ends([*self._before.open, *later], ends)
