"""`LogTables`: what the records of the transaction log say, taken together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .decided import DecidedTable
from .outcomes import Outcomes
from .parts import parts_in
from .positions import BEGIN, OUTCOMES, TRANSACTION, PositionTable, record


class LogTables:
    """Positions, sessions and transactions after all records so far. The caller guards it.

    Parameters
    ----------
    start
        The offset of the first record of the log.

    Attributes
    ----------
    records
        The number of records since the log was renewed.
    """

    def __init__(self, start: int = 0) -> None:
        self.positions = PositionTable()
        self.decided = DecidedTable()
        self.outcomes = Outcomes(start)
        self.records = 0

    def apply(self, offset: int, row: Mapping[str, Any]) -> None:
        """Take over the record at an offset.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is damaged.
        """
        kind = row["kind"]
        self.positions.apply(row)
        self.decided.apply(offset, row)
        if kind == OUTCOMES:
            self.outcomes.apply_note(row["note"])
        elif kind == TRANSACTION and row["session"]:
            self.outcomes.add(row["session"], offset, tuple(parts_in(row["parts"])))
        if kind in (BEGIN, TRANSACTION) and row["id"]:
            self.decided.use(row["id"], row["session"])
        self.records += 1

    def rows(self, *, transactions: bool) -> list[dict[str, Any]]:
        """Return records whose replay gives positions, sessions and outcomes as they are.

        Parameters
        ----------
        transactions
            Whether the store holds transactions.
        """
        rows = self.positions.records()
        rows += [record(BEGIN, name, session, ()) for name, session in self.decided.sessions().items()]
        if transactions:
            rows.append(record(OUTCOMES, "", "", (), self.outcomes.to_note()))
        return rows
