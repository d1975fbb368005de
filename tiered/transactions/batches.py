"""`BatchTable`: the last batch of each query of Spark, so that a batch which comes again is recognised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

JOB_PREFIX = "job:"
"""The prefix of the name of a query that has one batch and never another."""
BATCH_MAX = 1 << 62
JOB_SECONDS = 24 * 3600.0
"""The shortest time that the batch of a job is remembered."""
QUERY_SECONDS = 90 * 24 * 3600.0
"""The shortest time that the last batch of another query is remembered."""
_NOTED_MAX = 1024


class LastBatch(NamedTuple):
    """The number of a batch, and when it was committed, in microseconds since the epoch."""

    number: int
    time_us: int


class BatchTable:
    """The last batches after all records so far, by query; see `staged_rows.query_key`. The caller guards it."""

    def __init__(self) -> None:
        self._last: dict[str, LastBatch] = {}

    def __len__(self) -> int:
        return len(self._last)

    def last(self, query: str) -> int:
        """Return the number of the last batch of a query; -1 before the first."""
        found = self._last.get(query)
        return -1 if found is None else found.number

    def add(self, query: str, number: int, time_us: int) -> None:
        """Take over a batch that was committed."""
        known = self._last.get(query)
        if known is None or known.number <= number:
            self._last[query] = LastBatch(number, time_us)

    def forget(self, now_us: int) -> None:
        """Forget queries that have ended long ago."""
        for query, batch in list(self._last.items()):
            name = query.partition("/")[2]
            seconds = JOB_SECONDS if name.startswith(JOB_PREFIX) else QUERY_SECONDS
            if now_us - batch.time_us > seconds * 1e6:
                del self._last[query]

    def to_notes(self) -> Iterator[str]:
        """Yield all batches as texts, for a log that loses its old records."""
        rows = [[query, *batch] for query, batch in self._last.items()]
        for start in range(0, len(rows), _NOTED_MAX):
            yield json.dumps({"batches": rows[start : start + _NOTED_MAX]}, separators=(",", ":"))

    def apply_note(self, note: str) -> None:
        """Take over the batches of a text of `to_notes`.

        Raises
        ------
        KeyError, TypeError, ValueError
            The text is no note of batches.
        """
        for query, number, time_us in json.loads(note)["batches"]:
            self.add(str(query), int(number), int(time_us))
