"""`Snapshot`: the ends of several topics at one moment, and scans up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ...base.iterables import can_iterate
from ...errors import ConfigError, TopicNotFound
from ...format.timestamps import plain_int
from ...format.topic_meta import TopicMeta
from ...reader.scan import Scan
from .consumer_positions import lost_at
from .topic import Topic

_T = TypeVar("_T", bound=Topic)


class Snapshot:
    """Several topics at one moment, in which each transaction is whole or absent; get it from `Store.snapshot`.

    It holds offsets, and no files: what retention or `delete_before` removes is gone from later scans, too. Once a restore has
    taken a partition back below its end, the snapshot has no scans of it.

    Attributes
    ----------
    ends : dict of str to dict of int to int
        By topic, the end offset of each partition.
    lineages : dict of str to dict of int to int
        By topic, the epoch of the lineage of each partition at that moment; those that are not known are not compared.
    """

    def __init__(
        self,
        topics: Iterable[Topic],
        ends: Mapping[str, Mapping[int, int]],
        lineages: Mapping[str, Mapping[int, int]],
    ) -> None:
        self.ends = {name: dict(own) for name, own in ends.items()}
        self.lineages = lineages
        self._topics = {topic.name: topic for topic in topics}

    def scan(self, topic: str | Topic, **arguments: Any) -> Scan:
        """Return a scan of a topic that ends where the snapshot does; else like `Topic.scan`.

        Raises
        ------
        ConfigError
            The topic or a partition is not in the snapshot, or `end_offset` is given.
        TopicNotFound
            `topic` is one that was deleted before the snapshot, or created after it.
        PositionLost
            A restore took a partition back to an offset before its end in the snapshot.
        OffsetOutOfRange, ColdStorageError
        """
        name = topic.name if isinstance(topic, Topic) else topic
        if name not in self._topics:
            raise ConfigError(f"the snapshot has the topics {', '.join(self._topics)}, and not {name!r}")
        check_handle(topic, self._topics[name].meta)
        if "end_offset" in arguments:
            raise ConfigError("the snapshot is the end of its scans: leave end_offset out")
        ends = self.ends[name]
        partitions = plain_int(arguments.pop("partitions", None))
        if partitions is None:
            partitions = list(ends)  # not those that were added since
        elif isinstance(partitions, Iterable):
            partitions = list(map(plain_int, partitions))
        for partition in partitions if isinstance(partitions, list) else [partitions]:
            if type(partition) is int and partition not in ends:
                raise ConfigError(
                    f"the snapshot has partitions 0 to {len(ends) - 1} of topic {name!r}, and not {partition}"
                )
        scan = self._topics[name].scan(partitions, end_offset=self.ends[name], **arguments)
        self._check_same_log(self._topics[name], scan.offsets)
        scan.end_at(self.ends[name])
        return scan

    def _check_same_log(self, topic: Topic, log: Mapping[int, tuple[int, int]]) -> None:
        for partition, (_, end) in log.items():
            # A restore that is under way has taken a head back, and its lineage shows only once the store claims it.
            if end < self.ends[topic.name][partition]:
                raise lost_at(topic.name, partition, self.ends[topic.name][partition], *log[partition])
        epochs = {key: self.lineages.get(topic.name, {}).get(key) for key in log}
        now = topic.lineages_of(key for key, lineage in epochs.items() if lineage is not None)
        for partition, lineage in now.items():
            before, end = epochs[partition], self.ends[topic.name][partition]
            if before is not None and before != lineage and end > topic.common_end(partition, before):
                raise lost_at(topic.name, partition, end, *log[partition])

    def __repr__(self) -> str:
        return f"<Snapshot of {', '.join(map(repr, self._topics))}>"


def chosen_topics(topics: Iterable[str | Topic], by_name: Callable[[str], _T]) -> list[_T]:
    """Return the topics that a snapshot is of.

    Raises
    ------
    ConfigError
        They are no list.
    TopicNotFound
        There is no such topic, or one of a `Topic` that was deleted and created again.
    """
    if isinstance(topics, str | bytes | Topic) or not can_iterate(topics):
        raise ConfigError(f"snapshot takes a list of topics, not {topics!r}")
    chosen = []
    for item in topics:
        chosen.append(by_name(item.name if isinstance(item, Topic) else item))
        check_handle(item, chosen[-1].meta)
    return chosen


def check_handle(handle: str | Topic, current: TopicMeta) -> None:
    """Raise `TopicNotFound` if `handle` is of another topic than `current`, which has its name now."""
    if isinstance(handle, Topic) and handle.meta.topic_id != current.topic_id:
        raise TopicNotFound(
            f"topic {current.name!r} was deleted since it was opened, and is another now: open it again"
        )
