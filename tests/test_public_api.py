"""The names and signatures that other programs are written against."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tiered
from tiered.flight.client.remote_producer import RemoteProducer
from tiered.flight.client.remote_store import RemoteStore
from tiered.flight.client.remote_topic import RemoteTopic
from tiered.store.local_producer import LocalProducer
from tiered.store.local_store import LocalStore
from tiered.store.local_topic import LocalTopic

NAMES = [
    "Appended",
    "Backpressure",
    "ColdStorageError",
    "ConfigError",
    "Conflict",
    "Consumer",
    "CorruptionError",
    "DiskFull",
    "Erasure",
    "Fenced",
    "FileUnreadable",
    "InvalidName",
    "OffsetOutOfRange",
    "OffsetRange",
    "OutOfOrderSequence",
    "PartitionPoisoned",
    "PartSweep",
    "Position",
    "PositionLost",
    "Plan",
    "Producer",
    "ReadOnly",
    "Record",
    "RecordTooLarge",
    "Scan",
    "ScanObject",
    "ScanPlan",
    "SchemaMismatch",
    "Server",
    "ServerUnavailable",
    "Settings",
    "Snapshot",
    "Split",
    "Store",
    "StoreClosed",
    "StoreLocked",
    "StoreStatus",
    "SweepReport",
    "TableInfo",
    "TierReport",
    "TieredError",
    "Topic",
    "TopicExists",
    "TopicNotFound",
    "Transaction",
    "TransactionLogDamaged",
    "UnsupportedFormat",
    "VerifyReport",
    "__version__",
    "open",
    "restore",
]

SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (
        tiered.open,
        "path, *, cold=None, settings=None, read_only=False, tierer=False, daemon=False, host=None, token=None",
    ),
    (
        tiered.Store.create_topic,
        "self, name, *, partitions=1, schema=None, timestamp=None, key=None, exist_ok=False",
    ),
    (tiered.restore, "url, path, *, at=None, settings=None, host=None"),
    (tiered.Store.topic, "self, name"),
    (tiered.Store.topics, "self"),
    (tiered.Store.delete_topic, "self, name"),
    (tiered.Store.plan, "self, now=None"),
    (tiered.Store.tier, "self, now=None"),
    (tiered.Store.sweep, "self, *, dry_run=False"),
    (tiered.Store.status, "self"),
    (tiered.Store.erasures, "self"),
    (tiered.Topic.erase, "self, keys=None, *, column=None, values=None, reason=''"),
    (tiered.Erasure.wait, "self, timeout=None"),
    (tiered.Store.verify, "self, deep=False"),
    (
        tiered.Store.serve,
        "self, listen=None, *, token=None, tls_certificate=None, tls_key=None, allow_remote=False",
    ),
    (tiered.Store.flush, "self"),
    (tiered.Store.close, "self"),
    (
        tiered.Topic.append,
        "self, value, *, key=None, headers=None, timestamp=None, partition=None, sync=None, expected_offset=None",
    ),
    (tiered.Topic.append_many, "self, records"),
    (tiered.Topic.append_batch, "self, data, *, partition=None, sync=None"),
    (tiered.Topic.producer, "self, producer_id"),
    (
        tiered.Producer.append,
        "self, value, *, sequence=None, key=None, headers=None, timestamp=None, partition=None, sync=None",
    ),
    (tiered.Producer.append_batch, "self, data, *, sequence=None, partition=None, sync=None"),
    (tiered.Producer.flush, "self"),
    (tiered.Topic.flush, "self"),
    (tiered.Topic.publish, "self"),
    (tiered.Topic.roll, "self"),
    (tiered.Topic.read, "self, partition=None, offset=None, limit=None, follow=False"),
    (
        tiered.Topic.scan,
        (
            "self, partitions=None, start_offset=None, end_offset=None, start_timestamp=None, "
            "end_timestamp=None, key=None, columns=None, limit=None, filter=None, latest=False"
        ),
    ),
    (tiered.Topic.offsets, "self"),
    (tiered.Topic.consumer, "self, name, *, partitions=None, start='earliest', on_rewind='error'"),
    (tiered.Consumer.poll, "self, timeout=1.0, max_records=10000"),
    (tiered.Consumer.commit, "self, offsets=None, *, sync=None"),
    (tiered.Consumer.seek, "self, to"),
    (tiered.Consumer.position, "self"),
    (tiered.Consumer.committed, "self"),
    (tiered.Consumer.lag, "self"),
    (tiered.Consumer.close, "self"),
    (tiered.Store.transaction, "self, name=None"),
    (tiered.Store.snapshot, "self, topics"),
    (tiered.Snapshot.scan, "self, topic, **arguments"),
    (
        tiered.Transaction.append,
        "self, topic, value, *, key=None, headers=None, timestamp=None, partition=None",
    ),
    (tiered.Transaction.append_many, "self, topic, records"),
    (tiered.Transaction.append_batch, "self, topic, data, *, partition=None"),
    (tiered.Transaction.commit_position, "self, consumer, offsets=None"),
    (tiered.Transaction.commit, "self"),
    (tiered.Transaction.abort, "self"),
    (tiered.Store.consumers, "self"),
    (tiered.Store.delete_consumer, "self, name, topic=None"),
    (tiered.Topic.offset_at, "self, timestamp, partition=0"),
    (tiered.Topic.table, "self"),
    (tiered.Topic.delete_before, "self, offset, partition=0"),
    (tiered.Topic.add_columns, "self, columns"),
    (tiered.Topic.add_partitions, "self, total"),
    (tiered.Scan.to_arrow, "self"),
    (tiered.Scan.to_pandas, "self"),
    (tiered.Scan.to_batches, "self"),
    (tiered.Scan.splits, "self"),
    (tiered.Scan.explain, "self"),
    (tiered.Scan.__arrow_c_stream__, "self, requested_schema=None"),
    (tiered.Scan.__arrow_c_schema__, "self"),
    (tiered.Settings.load, "path=None, **overrides"),
]


def test_exactly_these_names_are_exported() -> None:
    assert sorted(tiered.__all__) == sorted(NAMES)
    assert [name for name in NAMES if not hasattr(tiered, name)] == []


@pytest.mark.parametrize(
    ("function", "expected"), SIGNATURES, ids=[item[0].__qualname__ for item in SIGNATURES]
)
def test_a_signature_is_the_documented_one(function: Callable[..., Any], expected: str) -> None:
    signature = inspect.signature(function)
    bare = [item.replace(annotation=inspect.Parameter.empty) for item in signature.parameters.values()]
    assert (
        str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)) == f"({expected})"
    )


@pytest.mark.parametrize(
    ("interface", "implementation"),
    [
        (tiered.Store, LocalStore),
        (tiered.Store, RemoteStore),
        (tiered.Topic, LocalTopic),
        (tiered.Topic, RemoteTopic),
        (tiered.Producer, LocalProducer),
        (tiered.Producer, RemoteProducer),
    ],
)
def test_local_and_served_stores_take_what_the_interface_says(interface: type, implementation: type) -> None:
    assert issubclass(implementation, interface)
    assert not inspect.isabstract(implementation)
    for name, member in vars(interface).items():
        own = getattr(implementation, name)
        if name.startswith("_") or not inspect.isfunction(member) or own is RemoteStore.plan:
            continue  # what is refused takes anything
        expected = inspect.signature(member)
        assert list(inspect.signature(own).parameters.values()) == list(expected.parameters.values()), name


def test_everything_public_is_documented() -> None:
    public = [getattr(tiered, name) for name in NAMES if name != "__version__"]
    methods = [
        member
        for kind in public
        if inspect.isclass(kind)
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    ]
    undocumented = [item.__qualname__ for item in [*public, *methods] if not item.__doc__]
    assert [name for name in undocumented if not name.startswith("Settings.model_")] == []


def test_every_error_is_a_tiered_error() -> None:
    """So that one except clause is enough, and no name of an error hides a builtin."""
    errors = [getattr(tiered, name) for name in NAMES]
    errors = [item for item in errors if inspect.isclass(item) and issubclass(item, Exception)]
    assert len(errors) == 24
    assert [item for item in errors if not issubclass(item, tiered.TieredError)] == []


def test_a_record_is_frozen_and_has_the_documented_fields() -> None:
    record = tiered.Record(b"v", topic="t", partition=0, offset=7)
    names = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
    assert set(record._fields) == names
    with pytest.raises(AttributeError):
        record.offset = 8  # type: ignore[misc]


def test_results_of_appends_unpack_in_the_documented_order() -> None:
    assert tiered.Appended._fields == ("partition", "offset")
    assert tiered.OffsetRange._fields == ("partition", "start", "end")
