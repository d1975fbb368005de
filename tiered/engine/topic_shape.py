"""`TopicShape`: the columns and limits of a local or served topic."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigError
from ..format.schema import body_schema
from ..format.sizes import row_bytes
from ..format.topic_meta import TopicMeta
from ..hot.column_checks import ColumnChecker
from ..hot.row_checks import RowChecker
from ..reader.query import bound, plain_bounds, plain_partition
from ..settings.sections import StoreSettings


class TopicShape:
    """The columns and limits that records of a topic are checked against.

    Attributes
    ----------
    meta
        The topic's document; its columns and partitions may grow.
    typed
        Whether the topic has columns of its own instead of the record schema.
    check_row, check_rows
        Check a row, or many rows by columns, of a typed topic; None for a record topic.
    row_bytes
        The bytes of a record in memory beyond its size (`tiered.format.sizes`).
    stamp_at, key_at
        The index of the timestamp column and of the key column; None without one.
    sticky
        The partition of the next records without a key.
    waits, publishes
        Whether an append waits by default, and whether it waits until its records are published.
    """

    def __init__(self, meta: TopicMeta, options: StoreSettings, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.sticky = 0
        self.record_bytes_max = options.max_record_bytes
        self.block_bytes = options.block_bytes
        self.waits = options.sync in ("always", "cold")
        self.publishes = options.sync == "cold"
        self.set_meta(meta)

    def set_meta(self, meta: TopicMeta) -> None:
        """Take a newer state of the topic's document."""
        self.meta = meta
        self.name = meta.name
        self.partitions = meta.partitions
        self.schema = meta.schema
        self.typed = meta.typed
        self.check_row = RowChecker(meta.schema) if self.typed else None
        self.check_rows = ColumnChecker(meta.schema) if self.typed else None
        self.row_bytes = row_bytes(body_schema(meta.schema))
        self.stamp_at, self.key_at = (
            None if name is None else meta.schema.get_field_index(name) for name in (meta.timestamp, meta.key)
        )

    @property
    def key_column(self) -> str | None:
        """The name of the column whose key chooses the partition; None without one."""
        return self.meta.key_column

    def check_start(self, partition: int | None, offset: int | None) -> tuple[int, int | None]:
        """Return the partition and offset where a read begins; raise `ConfigError` if several partitions are possible."""
        if partition is None:
            if self.partitions != 1:
                raise ConfigError(
                    f"topic {self.name!r} has {self.partitions} partitions: say which one to read"
                )
            partition = 0
        partition = self.check_partition(partition)
        return partition, bound(plain_bounds(self.meta, {partition: offset}), partition)

    def check_partition(self, partition: int) -> int:
        """Return the number of a partition as an int; raise `TopicNotFound` or `ConfigError` if there is none."""
        return plain_partition(self.meta, partition)
