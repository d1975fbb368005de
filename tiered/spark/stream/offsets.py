"""Offsets of a stream: their JSON in Spark's checkpoint, and the end of a limited micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from ...cold.manifest.commit import FIRST_LINEAGE
from ...errors import ConfigError
from ..options import LINEAGES, TOPIC_ID, Lineages, split_marks

Offsets = dict[int, int]
"""An offset for each partition, in the order of partitions."""


def to_json(topic: str, topic_id: UUID, offsets: Mapping[int, int], lineages: Lineages) -> dict[str, Any]:
    """Return offsets as Kafka's source writes them, with the topic and the lineages that they belong to.

    ``{"orders": {"0": 23, "1": 7}, "@topicId": "5b5c…", "@lineages": {"1": 3}}``: a topic that is created again has
    another id, and a restored partition another lineage. Spark compares offsets as text, so their order is fixed.

    Parameters
    ----------
    lineages
        Epochs by partition; `FIRST_LINEAGE` is left out. None: the server does not tell them, so the document has none.
    """
    by_partition = {str(partition): offsets[partition] for partition in sorted(offsets)}
    document: dict[str, Any] = {topic: by_partition, TOPIC_ID: str(topic_id)}
    if lineages is not None:
        restored = [key for key in sorted(offsets) if lineages.get(key, FIRST_LINEAGE) != FIRST_LINEAGE]
        document[LINEAGES] = {str(key): lineages[key] for key in restored}
    return document


def from_json(topic: str, document: Any) -> tuple[UUID | None, Offsets, Lineages]:
    """Return topic id, offsets and lineages of a document of `to_json`; an older release wrote no id and no lineages.

    Raises
    ------
    ConfigError
        The checkpoint is of another topic, or of another source.
    """
    topic_id, lineages, rest = split_marks(document)
    if isinstance(rest, dict) and list(rest) == [topic] and isinstance(rest[topic], dict):
        items = rest[topic].items()
        if all(key.isdecimal() and type(value) is int and value >= 0 for key, value in items):
            return topic_id, dict(sorted((int(key), value) for key, value in items)), lineages
    raise ConfigError(
        f"the checkpoint of this query has the offsets {document!r}, which are none of topic {topic!r}; a query on "
        "another topic needs a checkpointLocation of its own"
    )


def ration(starts: Mapping[int, int], ends: Mapping[int, int], limit: int) -> Offsets:
    """Return the ends of a micro-batch of at most `limit` offsets: each partition gets its share of them.

    If the limit suffices, each partition with new offsets gets at least one. Otherwise the partitions take turns, as
    the starts move on. So no partition waits for ever beside one that grows faster than the query reads.

    Parameters
    ----------
    starts, ends
        The range of new offsets of each partition; the same partitions in both.
    """
    sizes = {key: ends[key] - starts[key] for key in sorted(ends) if ends[key] > starts[key]}
    total, count = sum(sizes.values()), len(sizes)
    if total <= limit:
        return {key: ends[key] for key in sorted(ends)}
    if limit < count:
        first = sum(starts.values()) % count
        turns = [*sizes, *sizes][first : first + limit]
        shares = dict.fromkeys(turns, 1)
    else:
        rest = limit - count
        whole = {key: divmod(rest * (size - 1), total - count) for key, size in sizes.items()}
        shares = {key: 1 + share for key, (share, _) in whole.items()}
        left = limit - sum(shares.values())
        for key in sorted(whole, key=lambda key: (-whole[key][1], key))[:left]:
            shares[key] += 1
    return {key: starts[key] + shares.get(key, 0) for key in sorted(ends)}
