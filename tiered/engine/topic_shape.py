"""The columns and limits of a topic, as appends go by them, wherever the topic lies."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigError
from ..format.topic_meta import TopicMeta
from ..hot.row_checks import RowChecker
from ..reader.query import bound, plain_bounds, plain_partition
from ..settings.sections import StoreSettings


class TopicShape:
    """What a record of a topic is looked at by.

    Attributes
    ----------
    meta
        The topic's document; it may grow.
    typed
        Whether it has columns of its own, not those of the record schema.
    check_row
        Checks a row of a typed topic; None: it is not typed.
    stamp_at, key_at
        Which column is the timestamp, and which the key; None: none.
    sticky
        The partition that takes records without a key now.
    waits, publishes
        Whether an append waits by default, and until its records are in the bucket.
    """

    def __init__(self, meta: TopicMeta, options: StoreSettings, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.sticky = 0
        self.record_bytes_max = options.max_record_bytes
        self.block_bytes = options.block_bytes
        self.waits = options.sync in ("always", "cold")
        self.publishes = options.sync == "cold"
        self.use(meta)

    def use(self, meta: TopicMeta) -> None:
        """Go by another state of the topic's document from here on."""
        self.meta = meta
        self.name = meta.name
        self.partitions = meta.partitions
        self.schema = meta.schema
        self.typed = meta.typed
        self.check_row = RowChecker(meta.schema) if self.typed else None
        self.stamp_at, self.key_at = (
            None if name is None else meta.schema.get_field_index(name) for name in (meta.timestamp, meta.key)
        )

    @property
    def key_column(self) -> str | None:
        """Name of the column that places a record by its key; None: there is none."""
        return self.meta.key_column

    def check_start(self, partition: int | None, offset: int | None) -> tuple[int, int | None]:
        """Return where a read of one partition begins; raise `ConfigError` where it is not said which of several."""
        if partition is None:
            if self.partitions != 1:
                raise ConfigError(
                    f"topic {self.name!r} has {self.partitions} partitions: say which one to read"
                )
            partition = 0
        partition = self.check_partition(partition)
        return partition, bound(plain_bounds(self.meta, {partition: offset}), partition)

    def check_partition(self, partition: int) -> int:
        """Return a partition's number as an int; raise `TopicNotFound` or `ConfigError` for what is none."""
        return plain_partition(self.meta, partition)
