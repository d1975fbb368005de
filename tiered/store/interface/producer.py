"""`Producer`: a session of an idempotent producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ...engine.records import Appended, OffsetRange
from ...engine.sequence import Sequence
from ...format.record import Headers


class Producer(ABC):
    """A session of an idempotent producer; get it from `Topic.producer`. Thread-safe.

    Attributes
    ----------
    id : str
    epoch : int
        Of this session; a later session of the same producer has a higher one.
    """

    id: str
    epoch: int
    sequence: Sequence

    @property
    def next_sequence(self) -> int:
        """The number after the highest one that the topic has of this producer; 0 where it has none.

        After a crash, a topic of several partitions can lack lower numbers: what was not acknowledged by a flush is to
        be appended again from the first such number on, and what is there already is recognised.
        """
        return self.sequence.next

    @abstractmethod
    def append(
        self,
        value: Any,
        *,
        sequence: int | None = None,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> Appended:
        """Append one record under a number, unless it is there already; else as `Topic.append`.

        Parameters
        ----------
        sequence
            The record's number, at most `next_sequence`, and anything for a producer that the topic does not know;
            default `next_sequence`. A repeat must have the same key or partition as the first, and is made in the
            order of the numbers.
        partition
            Default by the key; without one, the partition that the producer's id chooses.

        Returns
        -------
        Appended
            For a repeat what the first append returned. Its offset is -1 where that is no longer remembered: the record is
            there all the same.

        Raises
        ------
        OutOfOrderSequence
            Numbers between the last one and this one are missing; nothing was appended.
        Fenced
            A newer session of this producer began, or a newer lineage owns the partition.
        SchemaMismatch, RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
            In each case but a failed wait, nothing was appended. Appending again under the same number is right in
            every case, also after a failed wait.
        ColdStorageError
            Of mode ``cold``: appended and durable here, and not published yet.
        """

    @abstractmethod
    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> list[OffsetRange]:
        """Append Arrow data under numbers, but for the rows that are there already; else as `Topic.append_batch`.

        Each batch of `data` goes in runs of up to 8 MiB of one partition, each wholly or not at all.

        Parameters
        ----------
        sequence
            Number of the first row; row i has the number ``sequence + i``. Default `next_sequence`.
        partition
            Where to append; default by the key column, row by row, and for rows without a key the partition that
            the producer's id chooses.

        Returns
        -------
        list of OffsetRange
            For a repeat what the first call returned; where offsets are no longer remembered they are -1. Where the repeat
            completes what was cut short, a range goes from its first row to its last.

        Raises
        ------
        OutOfOrderSequence
            Nothing was appended.
        SchemaMismatch, RecordTooLarge
            Nothing was appended of a Table. Of anything else nothing of the batch that does not fit; the batches before it
            are there, and have their numbers.
        Fenced, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned, ColdStorageError
            A part may have been appended; the same call under the same `sequence` appends the rest. Without one,
            `next_sequence` stays where it was until all rows are appended, so the same call will do, and other data
            in its place would be left out as a repeat. Where only the wait for the disk or the bucket failed, all is
            appended, `next_sequence` has moved, and `flush` waits again.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when everything appended to the topic before the call is durable; see `Topic.flush`."""

    def __repr__(self) -> str:
        return f"<Producer {self.id!r} of topic {self.sequence.topic!r}: epoch {self.epoch}>"
