"""The append of a decided batch: its staged rows come from the transaction log into their partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from ..engine.context import Place
from ..errors import CorruptionError
from ..format.block_rows import encode_blocks
from ..format.topic_meta import TopicMeta
from ..hot.held_partition import HeldPartition
from .log_records import LostRecord
from .parts import Part, part_batches
from .placing import numbers_of
from .staged_log import StagedLog
from .transaction_table import Decided


def append_staged(
    log: StagedLog,
    decided: Decided,
    held: Mapping[Place, HeldPartition],
    missing: Mapping[Place, int],
    *,
    block_bytes: int,
    decided_us: int,
) -> dict[Place, BaseException]:
    """Append the last rows of a batch to its partitions, about a block at a time; return what failed, by partition.

    Parameters
    ----------
    missing
        How many rows of the batch each partition lacks; others are left out.
    decided_us
        The least append time of the rows.
    """
    parts = {part.place: part for part in decided.parts}
    targets = {
        place: _Target(held[place], parts[place], count, block_bytes, decided_us)
        for place, count in missing.items()
    }
    failed: dict[Place, BaseException] = {}

    def work(place: Place, step: Callable[[_Target], None]) -> None:
        if place not in failed:
            try:
                step(targets[place])
            except BaseException as error:  # noqa: BLE001 — the other partitions get their rows
                failed[place] = error

    try:
        for place, batch in _batches(log, decided, {place: held[place].meta for place in targets}):
            work(place, partial(_Target.add, batch=batch))
        for place in targets:
            work(place, _Target.finish)
    except BaseException as error:  # noqa: BLE001 — of the log: no partition has all of its rows
        for place in targets:
            if isinstance(error, LostRecord):
                work(place, _Target.flush)  # what comes before is sound
            failed.setdefault(place, error)
    return failed


def _batches(
    log: StagedLog, decided: Decided, metas: Mapping[Place, TopicMeta]
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    for offset in decided.records:
        for part, batches in rows_in(*log.record_at(offset), metas):
            for batch in batches:
                yield part.place, batch


def rows_in(
    parts: list[Part], data: list[bytes], metas: Mapping[Place, TopicMeta]
) -> Iterator[tuple[Part, list[pa.RecordBatch]]]:
    """Yield the rows of one record in partitions of these topics, as body batches in the topics' newest schemas.

    Raises
    ------
    CorruptionError
    """
    for at, part in enumerate(parts):
        if part.place in metas:
            yield part, part_batches(metas[part.place], parts, data, at)


class _Target:
    """A partition that takes rows, and its rows that wait for a block."""

    def __init__(
        self, held: HeldPartition, part: Part, missing: int, block_bytes: int, decided_us: int
    ) -> None:
        self._held = held
        held.withhold()
        self._skip = part.rows - missing
        self._left = missing
        self._next_number = part.first_number + self._skip
        self._block_bytes = block_bytes
        self._decided_us = decided_us
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; append them when they fill a block."""
        skip = min(self._skip, batch.num_rows)
        self._skip -= skip
        if skip == batch.num_rows:
            return
        self._waiting.append(batch.slice(skip))
        self._bytes += batch.nbytes
        if self._bytes >= self._block_bytes:
            self.flush()

    def finish(self) -> None:
        """Append the rest, and let readers see all.

        Raises
        ------
        CorruptionError
            The log has not as many rows as the batch.
        """
        self.flush()
        if self._left:
            raise CorruptionError(f"{abs(self._left)} rows of a batch are missing, or too many")
        self._held.release()

    def flush(self) -> None:
        """Append the rows that wait for a block."""
        if not self._waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
        self._waiting, self._bytes = [], 0
        bodies = encode_blocks(rows)
        # Readers find these rows in the page cache. In memory they would displace newer records.
        self._held.append(bodies, numbers_of(bodies, self._next_number), self._decided_us, keep=False)
        self._next_number += rows.num_rows
        self._left -= rows.num_rows
