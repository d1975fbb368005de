"""`Snapshot`: the ends of several topics at one moment, and scans up to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError
from ...reader.scan import Scan
from .topic import Topic


class Snapshot:
    """Several topics at one moment, in which each transaction is whole or absent; get it from `Store.snapshot`.

    It holds offsets, and no files: what retention or `delete_before` removes is gone from later scans, too.

    Attributes
    ----------
    ends : dict of str to dict of int to int
        By topic, the end offset of each partition.
    """

    def __init__(self, topics: Iterable[Topic], ends: Mapping[str, Mapping[int, int]]) -> None:
        self.ends = {name: dict(own) for name, own in ends.items()}
        self._topics = {topic.name: topic for topic in topics}

    def scan(self, topic: str | Topic, **arguments: Any) -> Scan:
        """Return a scan of a topic that ends where the snapshot does; else like `Topic.scan`.

        Raises
        ------
        ConfigError
            The topic is not in the snapshot, or `end_offset` is given.
        OffsetOutOfRange, ColdStorageError
        """
        name = topic.name if isinstance(topic, Topic) else topic
        if name not in self._topics:
            raise ConfigError(f"the snapshot has the topics {', '.join(self._topics)}, and not {name!r}")
        if "end_offset" in arguments:
            raise ConfigError("the snapshot is the end of its scans: leave end_offset out")
        partitions = arguments.pop("partitions", None)
        if partitions is None:
            partitions = list(self.ends[name])  # not those that were added since
        return self._topics[name].scan(partitions, end_offset=self.ends[name], **arguments)

    def __repr__(self) -> str:
        return f"<Snapshot of {', '.join(map(repr, self._topics))}>"
