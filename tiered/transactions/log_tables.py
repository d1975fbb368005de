"""`LogTables`: what the records of the transaction log say, taken together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .batches import BatchTable
from .outcomes import Outcomes
from .parts import parts_in
from .positions import BATCH, BATCHES, BEGIN, OUTCOMES, ROWS, TRANSACTION, PositionTable, record
from .staged_rows import StagedTable
from .transaction_table import TransactionTable


class LogTables:
    """Positions, sessions, transactions, staged rows and batches after all records so far. The caller guards it.

    Parameters
    ----------
    start
        The offset of the first record of the log.

    Attributes
    ----------
    records
        The number of records since the log was renewed, without those of staged rows.
    """

    def __init__(self, start: int = 0) -> None:
        self.positions = PositionTable()
        self.decided = TransactionTable()
        self.outcomes = Outcomes(start)
        self.staged = StagedTable()
        self.batches = BatchTable()
        self.records = 0

    @property
    def bytes(self) -> int:
        """The bytes of rows in the records since the log was renewed."""
        return self.decided.bytes + self.staged.appended

    def begin_count(self) -> None:
        """Count records and bytes from here on."""
        self.records = self.decided.bytes = self.staged.appended = 0

    def apply(self, offset: int, row: Mapping[str, Any], time_us: int) -> None:
        """Take over the record at an offset.

        Parameters
        ----------
        time_us
            The record's timestamp.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is damaged.
        """
        kind = row["kind"]
        if kind == ROWS:
            self.staged.apply(offset, row, time_us)
            return
        self.positions.apply(row)
        self.decided.apply(offset, row)
        if kind == OUTCOMES:
            self.outcomes.apply_note(row["note"])
        elif kind == TRANSACTION and row["session"]:
            self.outcomes.add(row["session"], offset, tuple(parts_in(row["parts"])))
        elif kind == BATCH:
            self.batches.add(row["id"], int(row["number"]), time_us)
        elif kind == BATCHES:
            self.batches.apply_note(row["note"])
        if kind == BATCH or row.get("records"):
            # Other rows staged for the query are of tasks that were repeated.
            self.staged.drop(row["id"])
        if kind in (BEGIN, TRANSACTION) and row["id"]:
            self.decided.use(row["id"], row["session"])
        self.records += 1

    def rows(self, *, transactions: bool) -> list[dict[str, Any]]:
        """Return records whose replay gives positions, sessions, last batches and outcomes as they are.

        Parameters
        ----------
        transactions
            Whether the store holds transactions; False leaves the outcomes out.
        """
        rows = self.positions.records()
        rows += [record(BEGIN, name, session, ()) for name, session in self.decided.sessions().items()]
        if transactions:
            rows.append(record(OUTCOMES, "", "", (), self.outcomes.to_note()))
        rows += [record(BATCHES, "", "", (), note) for note in self.batches.to_notes()]
        return rows
