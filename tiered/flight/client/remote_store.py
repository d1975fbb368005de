"""`RemoteStore`: a store that is served elsewhere; topics, appends, reads and scans go over the network."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Never
from uuid import UUID

import pyarrow as pa

from ...base import process_exit
from ...engine.host import Host
from ...engine.lifecycle import Lifecycle
from ...errors import ConfigError, ReadOnly, SchemaMismatch, StoreClosed, TieredError, TopicNotFound
from ...format.schema import check_topic_name
from ...monitor.consumer_lag import ConsumerLag
from ...monitor.status import PartitionStatus, StoreStatus, TierHoldings
from ...monitor.table_lag import TableLag
from ...policies.tail_pace import TailPace
from ...settings.settings import Settings
from ...store.interface.snapshot import Snapshot, chosen_topics
from ...store.interface.store import Store
from ...store.interface.topic import Topic
from ...transactions.positions import Position
from ..wire.options import ConnectOptions, connect_options
from ..wire.positions import positions_from_json
from ..wire.serving_file import ServingFile
from ..wire.topic_ref import topic_ref
from ..wire.values import count, encode_schema, record
from .connection import Connection
from .remote_topic import RemoteTopic
from .remote_transaction import RemoteTransaction
from .topic_state import TopicState, describe

_CONNECT_SECONDS = 10.0


class RemoteLifecycle(Lifecycle):
    """The state of a connection, in its own words."""

    def check_writable(self) -> None:
        self.check()
        if not self.writes:
            raise ReadOnly(f"the store {self.url} is open for reading only")

    def abandon(self) -> TieredError:
        super().abandon()
        self.fault = StoreClosed(
            f"the store {self.url} was opened before this process was forked; start processes by spawn to use it there"
        )
        return self.fault


class RemoteStore(Store):
    """A `Store` behind a server; ``tiered.open("grpc://host:port")`` makes one. Thread-safe; also a context manager.

    Passes, pauses, sweeps, erasures, verification and metrics are of the host of the store; here they raise `ReadOnly`.
    """

    def __init__(self, connection: Connection, settings: Settings, host: Host, read_only: bool) -> None:
        facts = connection.action("server", {}, seconds=_CONNECT_SECONDS, retry=False)
        self.connection = connection
        self.url = connection.location
        try:
            self.store_id = UUID(facts["store_id"])
            self.directory_id: str | None = facts.get("directory_id")
            self.read_only = read_only or bool(facts["read_only"])
            # The writer's settings for appends, so that this side makes the same checks.
            theirs = {name: facts[name] for name in ("sync", "max_record_bytes", "block_bytes")}
        except (KeyError, ValueError, TypeError, AttributeError):
            raise ConfigError(f"{self.url} is no tiered server, or one of another release") from None
        self.settings = settings.model_copy(update={"store": settings.store.model_copy(update=theirs)})
        self.clock = host.clock
        self.lifecycle = RemoteLifecycle(self.url, writes=not self.read_only)
        self._topics: dict[str, RemoteTopic] = {}
        self._lock = threading.RLock()
        self._closing = threading.Lock()
        # A server of this process is closed after its clients.
        process_exit.register(self, closes_first=True)

    # -- opening and closing ---------------------------------------------------------------------

    @property
    def tiers(self) -> None:
        return None

    def close(self) -> None:
        """Send and flush the appended records, and close the connection; may be called twice.

        Raises
        ------
        ServerUnavailable, DiskFull, PartitionPoisoned, Fenced, ColdStorageError
            Some records could not be sent or flushed. The connection is closed all the same.
        """
        with self._closing:
            if self.lifecycle.ended:
                return
            error: TieredError | None = None
            for topic in self._used():
                failed = topic.close()
                error = error or failed
            self.lifecycle.end()
            self.lifecycle.stopping.set()
            process_exit.unregister(self)
            self.connection.close()
        if error is not None:
            raise error

    def flush(self) -> None:
        self.lifecycle.check()
        if self.read_only:
            return
        with ExitStack() as every_one:
            every_one.callback(self.connection.action, "flush", {}, seconds=None)
            for topic in self._used():
                every_one.callback(topic.finish)

    def _used(self) -> list[RemoteTopic]:
        with self._lock:
            return list(self._topics.values())

    def abandon(self) -> None:
        fault = self.lifecycle.abandon()
        self._lock = threading.RLock()
        self._closing = threading.Lock()
        for topic in self._topics.values():
            topic.opened.lock = threading.RLock()
            topic.appender.abandon(fault)
        self.connection.abandon()

    # -- topics ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        timestamp: str | None = None,
        key: str | None = None,
        exist_ok: bool = False,
    ) -> RemoteTopic:
        self.lifecycle.check_writable()
        check_topic_name(name)
        if not isinstance(schema, pa.Schema | None):
            raise SchemaMismatch(f"a schema is a pyarrow.Schema, not {type(schema).__name__}")
        values = {
            "topic": name,
            "partitions": partitions,
            "schema": None if schema is None else encode_schema(schema),
            "timestamp": timestamp,
            "key": key,
            "exist_ok": exist_ok,
        }
        self.connection.action("create_topic", values, retry=False)
        return self.topic(name)

    def topic(self, name: str) -> RemoteTopic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName, ServerUnavailable
        """
        self.lifecycle.check()
        check_topic_name(name)
        meta = describe(self.connection, name)
        with self._lock:
            topic = self._topics.get(name)
            if topic is not None and topic.opened.meta.topic_id == meta.topic_id:
                with topic.opened.lock:
                    topic.opened.set_meta(meta)
                return topic
            if topic is not None:
                topic.close()
            topic = self._topics[name] = RemoteTopic(
                self, TopicState(meta, self.settings.store, self.clock, self.connection, self.lifecycle)
            )
            return topic

    def topics(self) -> list[str]:
        self.lifecycle.check()
        return [str(name) for name in self.connection.action("topics", {})["topics"]]

    def delete_topic(self, name: str) -> None:
        self.lifecycle.check_writable()
        check_topic_name(name)
        self.connection.action("delete_topic", {"topic": name}, seconds=None, retry=False)
        with self._lock:
            topic = self._topics.pop(name, None)
        if topic is not None:
            topic.appender.fail(TopicNotFound(f"topic {name!r} was deleted"))

    def status(self) -> StoreStatus:
        self.lifecycle.check()
        values = self.connection.action("status", {}, seconds=None)
        partitions = []
        for item in values["partitions"]:
            tiers = {name: record(TierHoldings, item[name]) for name in ("hot", "warm", "cold")}
            partitions.append(record(PartitionStatus, {**item, **tiers, "damaged": tuple(item["damaged"])}))
        # A server of an earlier release says nothing of deletions and consumers, nor of what comes after them.
        consumers, tails = values.get("consumers", ()), values.get("tails")
        return StoreStatus(
            values["url"],
            values["cold_url"],
            values["disk_free_bytes"],
            tuple(partitions),
            tuple(values.get("deletions", ())),
            tails=None if tails is None else record(TailPace, tails),
            consumers=None if consumers is None else tuple(record(ConsumerLag, item) for item in consumers),
            waiting=tuple(values.get("waiting", ())),
            tables=tuple(record(TableLag, item) for item in values.get("tables", ())),
            erasures=tuple(values.get("erasures", ())),
        )

    def transaction(self, name: str | None = None) -> RemoteTransaction:
        self.lifecycle.check_writable()
        return RemoteTransaction(self.connection, self.lifecycle, lambda name: self.topic(name).opened, name)

    def snapshot(self, topics: Iterable[str | Topic]) -> Snapshot:
        self.lifecycle.check()
        chosen = {topic.name: topic for topic in chosen_topics(topics, self.topic)}
        for topic in chosen.values():
            topic.appender.drain()
        refs = [topic_ref(topic.meta) for topic in chosen.values()]
        answer = self.connection.action("snapshot", {"topics": refs}, seconds=None)
        # A server of an earlier release names no lineages.
        ends, lineages = (
            {name: dict(enumerate(map(count, values.get(name, ())))) for name in chosen}
            for values in (answer["ends"], answer.get("lineages", {}))
        )
        return Snapshot(chosen.values(), ends, lineages)

    def consumers(self) -> list[Position]:
        self.lifecycle.check()
        return positions_from_json(self.connection.action("consumers", {})["positions"])

    def delete_consumer(self, name: str, topic: str | None = None) -> int:
        self.lifecycle.check_writable()
        return int(self.connection.action("delete_consumer", {"consumer": name, "topic": topic})["deleted"])

    # -- what is done where the store lies -------------------------------------------------------

    def _not_here(self, *_: Any, **__: Any) -> Never:
        self.lifecycle.check()
        raise ReadOnly(f"this is done where the store lies, not through its server {self.url}")

    erasures = plan = tier = pause = resume = sweep = metrics = verify = serve = _not_here


def connect(
    url: str, settings: Settings, host: Host, *, read_only: bool = False, token: str | None = None
) -> RemoteStore:
    """Open a store that is served at a URL.

    Raises
    ------
    ConfigError
        The URL is invalid, or the server needs another token.
    ServerUnavailable
        No server answers.
    """
    return open_remote(url, settings, host, connect_options(settings, token), read_only=read_only)


def open_remote(
    url: str, settings: Settings, host: Host, options: ConnectOptions, *, read_only: bool = False
) -> RemoteStore:
    """Open a store with complete options."""
    connection = Connection(url, options)
    try:
        return RemoteStore(connection, settings, host, read_only)
    except BaseException:
        connection.close()
        raise


def open_noticed(notice: ServingFile, settings: Settings, *, read_only: bool = False) -> RemoteStore:
    """Open the store at the server that its ``serving.json`` names. The server must prove its identity; no token is sent.

    Raises
    ------
    ConfigError
        The server needs a token that this process lacks, or serves another store.
    ServerUnavailable
        The server does not answer, or another process does.
    """
    options = replace(connect_options(settings, None), instance=notice.server)
    store = open_remote(notice.location, settings, Host(), options, read_only=read_only)
    if store.store_id != notice.store_id or store.directory_id != notice.directory_id:
        store.close()
        raise ConfigError(f"{notice.location} serves another store now")
    return store
