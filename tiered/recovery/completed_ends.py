"""The ends of a restored store's partitions once its transactions are complete.

The bucket may have rows of a transaction in the transaction log only. The first opening appends them to their partitions, at
the ends that the bucket has, before anything else (`transactions.completion`). An erasure that was called after such a
transaction concerns these rows, and no later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.partition_manifest import PartitionManifest
from ..engine.context import Place
from ..format.erasure import LedgerEntry, horizon_in
from ..format.horizons import restored_horizon
from ..format.manifest import Head
from ..format.segment_facts import ProducerState
from ..format.topic_meta import TopicMeta
from ..transactions.parts import TRANSACTIONS_PRODUCER, Part, parts_in
from ..warm.catalog import TransactionsCut

_COLUMNS = ["offset", "timestamp", "parts", "applied"]


class CompletedEnds:
    """The ends of partitions in the bucket, and the transactions that will be completed.

    Parameters
    ----------
    rewound
        Whether the restore is to a time, so that heads name earlier objects again.
    """

    def __init__(self, *, rewound: bool) -> None:
        self._rewound = rewound
        self._heads: dict[Place, Head] = {}
        self._numbers: dict[Place, int] = {}
        self._log_end: int | None = None
        self._open: list[tuple[int, Sequence[Part]]] = []

    def add(self, meta: TopicMeta, partition: int, head: Head, producers: Iterable[ProducerState]) -> None:
        """Add a partition as it is restored, with the producers at its end."""
        place = meta.topic_id, partition
        self._heads[place] = head
        numbers = (item.last_sequence for item in producers if item.producer_id == TRANSACTIONS_PRODUCER)
        self._numbers[place] = next(numbers, -1)

    def add_log(
        self, cold: PartitionManifest, head: Head, meta: TopicMeta, cuts: Sequence[TransactionsCut]
    ) -> None:
        """Read the open transactions of the restored log; those of `cuts` do not count.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        self._log_end, applied = head.end_offset, 0
        if "parts" not in meta.schema.names:
            return
        for entry in cold.entries(head):
            key = cold.keys.data(entry.name)
            for batch in read_object(
                cold.store, key, entry, meta.schema, columns=_COLUMNS, start_offset=head.start_offset
            ):
                for row in batch.to_pylist():
                    offset = row["offset"]
                    if any(cut.undoes(offset, row["timestamp"]) for cut in cuts):
                        continue
                    applied = max(applied, row["applied"] or 0)
                    if row["parts"]:
                        self._open.append((offset, tuple(parts_in(row["parts"]))))
        self._open = [item for item in self._open if item[0] >= applied]

    def limit(self, erasure: LedgerEntry) -> LedgerEntry:
        """Return an open erasure that concerns what the restore brings back, and nothing that will be appended after it."""
        if not erasure.is_open:
            return erasure
        log_end = erasure.log_end if self._log_end is None else min(erasure.log_end, self._log_end)
        return replace(
            erasure.reopened() if self._rewound else erasure,
            horizons=tuple(self._horizon(erasure, partition) for partition in range(len(erasure.horizons))),
            lineages=tuple(self._lineage(erasure, partition) for partition in range(len(erasure.horizons))),
            past_horizons=(*erasure.past_horizons, *self._ended(erasure)),
            log_end=log_end,
        )

    def _ended(self, erasure: LedgerEntry) -> Iterator[tuple[int, int, int]]:
        """Yield the horizons of lineages that an earlier restore has begun, and this one ends."""
        for partition, epoch in enumerate(erasure.lineages):
            if epoch not in (
                self._lineage(erasure, partition),
                horizon_in(erasure.called_lineages, partition),
            ):
                yield partition, epoch, erasure.horizons[partition]

    def _lineage(self, erasure: LedgerEntry, partition: int) -> int:
        head = self._heads.get((erasure.topic_id, partition))
        return horizon_in(erasure.lineages, partition) if head is None else head.lineage_epoch

    def _horizon(self, erasure: LedgerEntry, partition: int) -> int:
        """Return the horizon in a partition, at most its end behind the rows of all transactions from before an erasure."""
        place = erasure.topic_id, partition
        head = self._heads.get(place)
        if head is None:
            return erasure.horizons[partition]
        horizon, end = restored_horizon(erasure, partition, head), head.end_offset
        number = self._numbers[place]
        for offset, parts in self._open:
            for part in parts:
                # A record behind the end at the call may have been written again.
                if part.place == place and (offset < erasure.log_end or part.first_offset < horizon):
                    missing = part.missing_rows(number)
                    if not part.is_deleted(missing, end):
                        end += missing
                    number = max(number, part.first_number + part.rows - 1)
        return min(horizon, end)
