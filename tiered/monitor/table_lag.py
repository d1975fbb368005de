"""`TableLags`: how far the live tables of a store are behind its log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import ColdStorageError, TieredError
from ..format.topic_meta import TopicMeta
from ..table.table_info import first_missing
from ..table.table_version import read_table_version
from ..tiering.table_passes import TablePasses, TableState
from .first_unread import FirstUnread, LogFigures, age_seconds


@dataclass(frozen=True, slots=True)
class TableLag:
    """The records of a topic that its table does not have.

    Attributes
    ----------
    version
        The number of the table's newest version that this process knows; None if it knows none.
    records
        Number of durable records that this version does not have; None if it is not known.
    oldest_us
        The timestamp of the first of them; None if there is none, or if it is not known.
    problem
        The error of the last publication, or of the table; or empty.
    kept_objects
        See `TableState.kept_objects`.
    """

    topic: str
    version: int | None
    records: int | None
    oldest_us: int | None = None
    problem: str = ""
    kept_objects: int = 0

    def seconds(self, now_us: int) -> float | None:
        """Return the age of the first missing record; 0 without one, None if it is not known."""
        return None if self.records is None else age_seconds(self.records, self.oldest_us, now_us)

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return plain JSON values."""
        values = asdict(self)
        del values["oldest_us"]
        return {**values, "seconds": self.seconds(now_us)}


class TableLags:
    """Measures the lags of one open store again and again. Thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics, tables: TablePasses) -> None:
        self._context = context
        self._tables = tables
        self._first_unread = FirstUnread(context, topics)
        self._lock = threading.Lock()
        self._last: list[TableLag] = []

    def measure(
        self, figures: Iterable[LogFigures], *, ask_bucket: bool, away: ColdStorageError | None = None
    ) -> list[TableLag]:
        """Return the lag of each topic whose policy wants a table, in the order of the figures.

        A second thread gets the last result: it does not wait for a disk.

        Parameters
        ----------
        ask_bucket
            Whether to read a table that this process has not published; otherwise it is not known.
        away
            The error of a bucket that does not answer; it is not asked again.
        """
        if not self._context.tiers.has_cold:
            return []
        if not self._lock.acquire(blocking=False):
            return self._last
        try:
            self._first_unread.begin()
            by_topic = groupby(figures, key=lambda item: item.topic)
            lags = [self._lag(topic, list(own), ask_bucket, away) for topic, own in by_topic]
            self._last = [lag for lag in lags if lag is not None]
            return self._last
        finally:
            self._lock.release()

    def _lag(
        self, topic: str, figures: list[LogFigures], ask_bucket: bool, away: ColdStorageError | None
    ) -> TableLag | None:
        surveys = [item.survey for item in figures if item.survey is not None]
        if not surveys or self._context.settings.policy_for(topic).table.every is None:
            return None
        meta = surveys[0].meta
        state = self._tables.state_of(meta.topic_id) or TableState()
        version: int | None = None
        offsets: Mapping[int, tuple[int, int]] = {}
        problem = state.problem
        if state.published is not None:
            version, offsets = state.published.version, state.published.offsets
        elif ask_bucket and away is not None:
            problem = problem or str(away)
        elif ask_bucket:
            try:
                version, offsets = self._read(meta)
            except TieredError as error:
                problem = problem or str(error)
        if version is None or len(surveys) < len(figures):
            return TableLag(topic, version, None, None, problem, state.kept_objects)
        records, times = 0, []
        for item in figures:
            offset = first_missing(offsets, item.partition, item.start_offset, item.end_offset)
            if offset is not None:
                records += item.end_offset - offset
                times.append(self._first_unread.timestamp_us(item, offset))
        oldest_us = min((time for time in times if time is not None), default=None)
        return TableLag(topic, version, records, oldest_us, problem, state.kept_objects)

    def _read(self, meta: TopicMeta) -> tuple[int, Mapping[int, tuple[int, int]]]:
        found = read_table_version(self._context.tiers.object_store, meta)
        return (0, {}) if found is None else (found.version, found.offsets)
