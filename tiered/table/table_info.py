"""`TableInfo`: the live table of a topic, and how far it is behind the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigError


class NoTable(ConfigError):
    """A topic has no live table."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """The live table of a topic, from `Topic.table`.

    Attributes
    ----------
    location
        The URL of the table, for engines that find the newest version by it.
    metadata
        The URL of the newest version's metadata file, for engines that need one.
    version
        The number of that version.
    snapshot_id, published_us
        Its snapshot, and when that was made, in microseconds since the epoch; None before the first one.
    objects, records
        How many objects the snapshot names, and how many rows they have.
    offsets
        The start offset and the end of each partition in the snapshot.
    lag_records
        Durable records of the log that the snapshot does not have.
    lag_seconds
        The age of the oldest of them, by its timestamp; 0 without one.
    """

    topic: str
    location: str
    metadata: str
    version: int
    snapshot_id: int | None
    published_us: int | None
    objects: int
    records: int
    offsets: Mapping[int, tuple[int, int]]
    lag_records: int
    lag_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        offsets = {str(partition): list(ends) for partition, ends in self.offsets.items()}
        return {**asdict(self), "offsets": offsets}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableInfo:
        """Invert `to_json`."""
        offsets = {int(partition): (start, end) for partition, (start, end) in values["offsets"].items()}
        return cls(**{**values, "offsets": offsets})


def first_missing(
    offsets: Mapping[int, tuple[int, int]], partition: int, start_offset: int, end_offset: int
) -> int | None:
    """Return the first offset of a partition's log that the snapshot with `offsets` lacks; None if it has all."""
    offset = max(start_offset, offsets.get(partition, (0, 0))[1])
    return offset if offset < end_offset else None
