"""An append-only log store that moves its data from memory to local segments to object storage."""

from .cold.upkeep.sweep import PartSweep, SweepReport
from .engine.records import Appended, OffsetRange, Record
from .errors import (
    Backpressure,
    ColdStorageError,
    ConfigError,
    Conflict,
    CorruptionError,
    DiskFull,
    Fenced,
    FileUnreadable,
    InvalidName,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionPoisoned,
    PositionLost,
    ReadOnly,
    RecordTooLarge,
    SchemaMismatch,
    ServerUnavailable,
    StoreClosed,
    StoreLocked,
    TieredError,
    TopicExists,
    TopicNotFound,
    TransactionLogDamaged,
    UnsupportedFormat,
)
from .monitor.status import StoreStatus
from .opening import open_store as open  # noqa: A004
from .policies.executor import TierReport
from .policies.plan import Plan
from .reader.scan import Scan, ScanObject, ScanPlan
from .reader.splits import Split
from .recovery.restore import restore
from .settings.settings import Settings
from .store.interface.consumer import Consumer
from .store.interface.erasure import Erasure
from .store.interface.producer import Producer
from .store.interface.server import Server
from .store.interface.snapshot import Snapshot
from .store.interface.store import Store
from .store.interface.topic import Topic
from .store.interface.transaction import Transaction
from .table.table_info import TableInfo
from .transactions.positions import Position
from .verify.report import VerifyReport
from .version import VERSION

__version__ = VERSION

__all__ = [
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
    "PartSweep",
    "PartitionPoisoned",
    "Plan",
    "Position",
    "PositionLost",
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
