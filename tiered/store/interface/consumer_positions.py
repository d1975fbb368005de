"""The positions of a consumer in this process, and the lineages that show whether a restore took a log back below one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ...engine.records import OffsetRange
from ...errors import ConfigError, OffsetOutOfRange, PositionLost
from ...format.timestamps import plain_int
from ...transactions.positions import Position
from .consumed_topic import ConsumedTopic

_TAKEN_BACK = "a restore took the log back to an earlier offset"


def lost_at(topic: str, partition: int, offset: int, start: int, end: int) -> PositionLost:
    """Return the error of a reader whose log a restore has taken back below its offset."""
    return PositionLost(
        f"offset {offset} of topic {topic!r} partition {partition} is lost: {_TAKEN_BACK}; the log has {start} to {end}",
        partition=partition,
        offset=offset,
        start=start,
        end=end,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ReadOffsets(Mapping[int, int]):
    """Offsets by partition, and the lineages in which a reader of a consumer read up to them.

    Attributes
    ----------
    offsets
        The offset of the next record, by partition.
    lineages
        The epoch of the lineage of each partition; `Consumer.seek` takes the present one where it is missing.
    all_returned
        Whether these are the positions behind all that the reader has returned, as `Consumer.commit` takes by default.
    """

    offsets: Mapping[int, int]
    lineages: Mapping[int, int]
    all_returned: bool = False

    def __getitem__(self, partition: int) -> int:
        return self.offsets[partition]

    def __iter__(self) -> Iterator[int]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def pairs(self) -> dict[int, tuple[int, int]]:
        """Return offset and lineage, by partition."""
        return {partition: (offset, self.lineages[partition]) for partition, offset in self.offsets.items()}


class ConsumerPositions:
    """Where a consumer is in its partitions. The caller guards it.

    Attributes
    ----------
    offsets : dict
        The offset of the next record to return, by partition.
    lineages : dict
        The epoch of the lineage that has this offset, by partition.
    """

    def __init__(self, topic: ConsumedTopic, consumer: str, on_rewind: str) -> None:
        self._topic = topic
        self._consumer = consumer
        self._on_rewind = on_rewind
        self.offsets: dict[int, int] = {}
        self.lineages: dict[int, int] = {}

    # -- where it begins -------------------------------------------------------------------------

    def begin(
        self, partitions: Iterable[int], stored: Mapping[int, Position], start: object, *, owned: bool
    ) -> None:
        """Begin at the stored positions, and where there is none at `start`, as in `Topic.consumer`.

        Parameters
        ----------
        owned
            Whether a session of this process owns the partitions, so that their logs have every position.

        Raises
        ------
        PositionLost
            A log no longer has a stored position, and `on_rewind` is ``error``.
        ConfigError
        """
        log, self.lineages = self._logs(partitions)
        self.offsets = {
            partition: self._first(stored.get(partition), log[partition], start, owned)
            for partition in partitions
        }

    def _logs(self, partitions: Iterable[int]) -> tuple[dict[int, OffsetRange], dict[int, int]]:
        """Return the durable ranges of partitions, and the lineages that have them."""
        partitions = tuple(partitions)
        while True:
            lineages = self._topic.lineages_of(partitions)
            log = self._topic.durable_offsets(partitions)
            if self._topic.lineages_of(partitions) == lineages:
                return log, lineages

    def _first(self, stored: Position | None, log: OffsetRange, start: object, owned: bool) -> int:
        if stored is None or stored.offset is None:
            return self._start(start, log)
        if stored.topic_id != self._topic.meta.topic_id:
            reason: str | None = "the topic was deleted and created again"
        else:
            reason = self._cut(stored.offset, stored.lineage, self.lineages[log.partition], log)
        # Without a session this process may know less of the log than its writer: what is beyond the end comes later.
        if reason is None and owned and stored.offset > log.end:
            reason = "the log ends before it"
        return stored.offset if reason is None else self._rewound(log, stored.offset, reason)

    def _start(self, start: object, log: OffsetRange) -> int:
        if start == "earliest":
            return log.start
        if start == "latest":
            return log.end
        if isinstance(start, str):
            raise ConfigError(f'start is "earliest", "latest" or a timestamp, not {start!r}')
        return self._topic.offset_at(start, log.partition)

    # -- logs that change ------------------------------------------------------------------------

    def follow(self, partition: int, error: OffsetOutOfRange) -> int:
        """Go on in a log that no longer has the position, or is of another lineage; return the position.

        Raises
        ------
        PositionLost
            The log no longer has it, and `on_rewind` is ``error``.
        OffsetOutOfRange
            The log has it and has not changed: `error`.
        """
        logs, lineages = self._logs([partition])
        log, lineage, position = logs[partition], lineages[partition], self.offsets[partition]
        reason = self._cut(position, self.lineages[partition], lineage, log)
        if reason is None and position > log.end:
            reason = "the log ends before it"
        if reason is not None:
            position = self._rewound(log, position, reason)
        elif lineage == self.lineages[partition]:
            raise error
        self.offsets[partition], self.lineages[partition] = position, lineage
        return position

    def _cut(self, offset: int, lineage: int, now: int, log: OffsetRange) -> str | None:
        """Return why the log of lineage `now` no longer has the records before or behind a position; None if it has."""
        if lineage != now and offset > self._topic.common_end(log.partition, lineage):
            return _TAKEN_BACK
        if offset < log.start:
            return "retention or delete_before removed records that were not read"
        return None

    def _rewound(self, log: OffsetRange, offset: int, reason: str) -> int:
        if self._on_rewind == "earliest":
            return log.start
        if self._on_rewind == "latest":
            return log.end
        raise PositionLost(
            f"consumer {self._consumer!r} cannot go on at offset {offset} of topic {self._topic.name!r} partition "
            f'{log.partition}: {reason}; the log has {log.start} to {log.end}. Pass on_rewind="earliest" or "latest", or '
            "set the position by `tiered consumers reset`",
            partition=log.partition,
            offset=offset,
            start=log.start,
            end=log.end,
        )

    # -- positions that a caller names -----------------------------------------------------------

    def find(self, to: Mapping[int, int] | object) -> ReadOffsets:
        """Return the positions that `Consumer.seek` names; `move` goes there.

        Raises
        ------
        OffsetOutOfRange, ConfigError
        """
        if not isinstance(to, Mapping):
            log, lineages = self._logs(self.offsets)
            return ReadOffsets(
                {partition: self._start(to, log[partition]) for partition in self.offsets}, lineages
            )
        # Read before the log: a position is never taken for one of a later lineage.
        lineages = self._topic.lineages_of(self.offsets)
        offsets = self._checked(to)
        if isinstance(to, ReadOffsets):
            lineages |= to.lineages
        return ReadOffsets(offsets, lineages)

    def move(self, to: ReadOffsets) -> None:
        """Continue at other positions."""
        self.offsets.update(to.offsets)
        self.lineages.update({partition: to.lineages[partition] for partition in to})

    def read_up_to(self, offsets: Mapping[int, int] | None) -> ReadOffsets:
        """Return the positions that `Consumer.commit` names, and the lineages in which they were read.

        Raises
        ------
        OffsetOutOfRange, ConfigError
        """
        if offsets is None:
            return ReadOffsets(self.offsets, self.lineages, all_returned=True)
        if not isinstance(offsets, ReadOffsets):
            return ReadOffsets(self._checked(offsets), self.lineages)
        return offsets if offsets.all_returned else replace(offsets, offsets=self._checked(offsets))

    def _checked(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return offsets by partition as plain numbers; raise an error unless the log has each of them."""
        if not isinstance(offsets, Mapping):
            raise ConfigError(f"offsets is a dict from partition to offset, not {offsets!r}")
        checked = {}
        for given, wanted in offsets.items():
            partition, offset = plain_int(given), plain_int(wanted)
            if type(partition) is not int or partition not in self.offsets:
                raise ConfigError(f"consumer {self._consumer!r} does not read partition {partition!r}")
            if type(offset) is not int:
                raise ConfigError(f"an offset is a whole number, not {offset!r}")
            checked[partition] = offset
        for partition, ends in self._topic.durable_offsets(checked).items():
            if not ends.start <= checked[partition] <= ends.end:
                raise OffsetOutOfRange(
                    f"offset {checked[partition]} is not in topic {self._topic.name!r} partition {partition}, which has "
                    f"{ends.start} to {ends.end}",
                    start=ends.start,
                    end=ends.end,
                )
        return checked
