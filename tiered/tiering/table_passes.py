"""Publications of the live tables of a store, one topic after another; a failure of one does not stop the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from ..cold.manifest.leases import boot_seconds
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import ColdStorageError, ConfigError, TieredError, TopicNotFound, as_tiered_error
from ..format.document import TRANSACTIONS_FEATURE
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..policies.policy import TableRule
from ..reader.lineages import lineage_of
from ..table.glue import GlueTables
from ..table.iceberg_errors import iceberg_errors
from ..table.live_table import LiveTable, Published, Whole
from ..table.table_sql import table_identifier
from .claims import Claims
from .pauses import Pauses
from .reports import TableReport

_log = logging.getLogger("tiered.tierer")

HEADS_SECONDS = 600.0
"""How long a table counts as current while this process sees no change of a head; another process may have made one."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What this process knows of a table.

    Attributes
    ----------
    published
        The last publication; None before the first.
    problem
        The error of the last attempt, or empty.
    kept_objects
        How many objects the last sweep left for the table alone; 0 once it is published again.
    """

    published: Published | None = None
    problem: str = ""
    kept_objects: int = 0


@dataclass(slots=True)
class _Table:
    """The table of a topic as this process last published it.

    Attributes
    ----------
    commits
        The commits of the heads that the table has; None if it must be published again.
    rule, schema_id
        The policy and the columns at that time.
    checked
        When the heads were read.
    in_glue
        The database of Glue and the version that it was told of last.
    """

    live: LiveTable
    commits: Mapping[int, str] | None = None
    rule: TableRule | None = None
    schema_id: int = -1
    checked: float = 0.0
    state: TableState = TableState()
    in_glue: tuple[str, int] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class TablePasses:
    """The live tables of one open store. Thread-safe.

    It takes no lock of passes: a publication reads the heads after the last version, and creating a version fails if another
    writer has created it.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, claims: Claims, pauses: Pauses) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._pauses = pauses
        self._lock = threading.Lock()
        self._tables: dict[UUID, _Table] = {}
        self._glue = GlueTables(context.tiers.locations.cold_options)

    def run(
        self,
        wanted: Callable[[str], bool] = lambda _: True,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> TableReport:
        """Publish the tables that a policy wants and whose heads changed.

        A topic without a known change costs no request; after `HEADS_SECONDS` its heads are read again.
        """
        published: dict[str, Published] = {}
        problems: dict[str, TieredError] = {}
        away: ColdStorageError | None = None
        for name in self._topics.topic_names() if self._context.tiers.has_cold else ():
            if should_stop():
                break
            rule = self._context.settings.policy_for(name).table
            if rule.every is None or not wanted(name) or self._pauses.of(name):
                continue
            if away is not None:
                problems[name] = away
                continue
            try:
                done = self.publish(self._topics.meta(name))
            except TopicNotFound:
                continue  # deleted since it was listed
            except (TieredError, OSError) as error:
                problems[name] = as_tiered_error(error)
                # Every request to a bucket that is away takes all its retries. One request decides for the other tables.
                if isinstance(error, ColdStorageError) and not self._claims.store.bucket_answers():
                    away = error
            else:
                if done is not None:
                    published[name] = done
        return TableReport(published, problems)

    def publish(self, meta: TopicMeta, *, take: bool = False) -> Published | None:
        """Publish the table of one topic; None if no head is known to have changed, or the topic has none.

        Parameters
        ----------
        take
            As in `LiveTable.publish`; it also publishes without a known change.

        Raises
        ------
        ConfigError, SchemaMismatch, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        table = self._table(meta)
        rule, now = self._context.settings.policy_for(meta.name).table, boot_seconds()
        with table.lock:
            if not take and self._is_current(table, meta, rule) and now - table.checked < HEADS_SECONDS:
                self._tell_glue(table, meta, rule)
                return None
            table.commits = None
            grace_seconds = self._context.settings.sweep.grace.total_seconds()
            try:
                with iceberg_errors(meta.name):
                    done = table.live.publish(meta, tails=rule.tails, grace_seconds=grace_seconds, take=take)
            except (TieredError, OSError) as error:
                table.state = replace(table.state, problem=str(error) or type(error).__name__)
                raise
            table.state = TableState(done)
            self._tell_glue(table, meta, rule)
            if done is None or done.whole:
                table.commits = done.commits if done else {}
                table.rule, table.schema_id, table.checked = rule, meta.schema_id, now
            return done

    def _table(self, meta: TopicMeta) -> _Table:
        with self._lock:
            table = self._tables.get(meta.topic_id)
            if table is None:
                live = LiveTable(
                    self._context.tiers.object_store,
                    self._context.store_id,
                    meta,
                    partial(self._context.tiers.cold, meta),
                    transactions=partial(self._begin_reading, meta.topic_id),
                    clock=self._context.clock,
                )
                table = self._tables[meta.topic_id] = _Table(live)
            return table

    def _tell_glue(self, table: _Table, meta: TopicMeta, rule: TableRule) -> None:
        """Register the newest version in AWS Glue, if the policy says so; the next pass repeats a failed one."""
        published = table.state.published
        if rule.glue is None or published is None or table.in_glue == (rule.glue, published.version):
            return
        location = published.location.rpartition("/metadata/")[0]
        try:
            if not location.startswith("s3://"):
                raise ConfigError(
                    f"table.glue of topic {meta.name}: Glue knows tables in S3, and not in {location}"
                )
            self._glue.point(rule.glue, table_identifier(meta.name), location, published.location)
        except TieredError as error:
            table.state = TableState(published, str(error))
            raise
        table.in_glue = rule.glue, published.version
        table.state = TableState(published)

    def _begin_reading(self, topic_id: UUID) -> Whole | None:
        """Return a check whether heads that are read from now on have each transaction wholly or not at all.

        None if the store has had no transaction.
        """
        if TRANSACTIONS_FEATURE not in self._context.catalog.features():
            return None
        try:
            reading = self._context.commits.begin_reading()
        except TieredError as error:
            _log.warning("whether tables have whole transactions is not known: %s", error)
            return lambda _ends, _all: False

        def is_whole(ends: Mapping[int, int], has_all: bool) -> bool:
            # The log forgets transactions that are published, and the table may not have all that is.
            published = {(topic_id, partition): end for partition, end in ends.items()}
            return has_all and reading.whole_ends(published) == published and self._has_own_log()

        return is_whole

    def _has_own_log(self) -> bool:
        """Whether no restore elsewhere had moved a head by now: it claims the transaction log first. Sends one GET."""
        log, tiers = self._topics.meta(TRANSACTIONS_TOPIC), self._context.tiers
        loaded = tiers.cold(log, 0).load()
        return loaded is None or loaded.head.lineage_epoch == lineage_of(tiers, log, 0)

    def _is_current(self, table: _Table, meta: TopicMeta, rule: TableRule) -> bool:
        """Whether no head is known to have changed since the last publication; sends no request."""
        if table.commits is None or (table.rule, table.schema_id) != (rule, meta.schema_id):
            return False
        heads = {partition: self._claims.known_head(meta, partition) for partition in range(meta.partitions)}
        return all(
            head is None or head.commit_id == table.commits.get(partition)
            for partition, head in heads.items()
        )

    def note_kept(self, meta: TopicMeta, objects: int) -> None:
        """Take note of how many objects a sweep left for the table of a topic alone."""
        table = self._table(meta)
        table.state = replace(table.state, kept_objects=objects)

    def state_of(self, topic_id: UUID) -> TableState | None:
        """Return what this process knows of a topic's table; None before its first attempt to publish it."""
        table = self._tables.get(topic_id)
        return None if table is None or table.state == TableState() else table.state

    def keep_only(self, topic_ids: Iterable[UUID]) -> None:
        """Drop the state of all tables but these."""
        kept = set(topic_ids)
        with self._lock:
            self._tables = {key: table for key, table in self._tables.items() if key in kept}
