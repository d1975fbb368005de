"""What a store goes through, by the public API alone, so that any release runs it: ``life.py ROOT STEP:NUMBER …``.

The store is ``ROOT/store``, its bucket ``ROOT/bucket``. Every step prints one line
of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
TYPED = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("tags", pa.list_(pa.string()))])
SETTINGS = {
    "store": {"sync_interval": "1h", "block_bytes": "4KiB"},
    "policies": {
        "default": {
            "compress": {"codec": "zstd", "after": "0s"},
            "offload": {"after": "0s", "tail_interval": "1ms"},
            "local_retention": {"age": "0s"},
        },
        "kept": {"local_retention": {"age": "off"}},
    },
}
ROWS = 40


def with_filters() -> tiered.Settings:
    """Return the settings, with filters on the keys where the release knows them."""
    policies = {"default": {**SETTINGS["policies"]["default"]}, "kept": SETTINGS["policies"]["kept"]}
    policies["default"]["offload"] = {**policies["default"]["offload"], "key_filter": "on"}
    try:
        return tiered.Settings.model_validate({**SETTINGS, "policies": policies})
    except tiered.TieredError:
        return tiered.Settings.model_validate(SETTINGS)


def opened(root: Path, **options: Any) -> tiered.Store:
    """Open the store of a life."""
    settings = with_filters()
    return tiered.open(root / "store", cold=f"file://{root}/bucket", settings=settings, **options)


def write(root: Path, number: int) -> dict[str, Any]:
    """Append to every topic, roll, tier, and append again; the active segments' tails are shipped last."""
    with opened(root) as store:
        records = store.create_topic("records", partitions=2, exist_ok=True)
        kept = store.create_topic("kept", exist_ok=True)
        typed = store.create_topic("typed", schema=TYPED, key="user", exist_ok=True)
        ingest = kept.producer("ingest")
        for row in range(ROWS):
            at = number * ROWS + row
            stamp = FIRST + timedelta(seconds=at)
            for partition in (0, 1):
                records.append(
                    b"%d" % at * 30,
                    key=b"k%d" % (at % 7),
                    headers={"h": b"v"},
                    timestamp=stamp,
                    partition=partition,
                )
            ingest.append(b"kept %d" % at, sequence=at, timestamp=stamp, partition=0)
            if row == ROWS // 2:
                store.flush()
                for topic in (records, kept):
                    topic.roll()
        typed.append_batch(
            pa.table(
                {
                    "user": [f"u{at}" for at in range(5)],
                    "amount": [number] * 5,
                    "tags": [[], None, ["a"], ["b", None], []],
                },
                TYPED,
            )
        )
        store.flush()
        if number == 1:
            records.delete_before(ROWS // 2, partition=1)
        failed = [str(error) for _ in range(3) for error in store.tier().failed]
        return {"failed": failed}


def check(root: Path, number: int) -> dict[str, Any]:
    """Open for reading; print a digest of every row, and what `verify` finds."""
    with opened(root, read_only=True) as store:
        return found(store)


def check_restored(root: Path, number: int) -> dict[str, Any]:
    """Restore from the bucket beside the store; print the same."""
    target = root / f"restored-{number}"
    tiered.restore(f"file://{root}/bucket", target).close()
    with tiered.open(target, read_only=True) as store:
        return found(store)


def append_to_restored(root: Path, number: int) -> dict[str, Any]:
    """Append to what was restored: its lineage goes on."""
    with tiered.open(root / f"restored-{number}") as store:
        return {"offset": store.topic("kept").append(b"after the restore", sync=True).offset}


def erase(root: Path, number: int) -> dict[str, Any]:
    """Remove the records of a key, which the releases before cannot; return how many are gone."""
    with opened(root) as store:
        erasure = store.topic("records").erase(["k1"])
        for _ in range(3):
            store.tier()
        return {"erased": erasure.rows}


def compact(root: Path, number: int) -> dict[str, Any]:
    """Keep the latest record of each key, which the releases before cannot; return how many records are gone."""
    rule = {"compact_keys": {"after": "0s", "dirty": 0.01}}
    policies = SETTINGS["policies"] | {"records": rule}
    with tiered.open(
        root / "store", settings=tiered.Settings.model_validate(SETTINGS | {"policies": policies})
    ) as store:
        topic = store.topic("records")
        before = topic.scan().to_arrow().num_rows
        topic.roll()
        store.tier()
        store.tier()
        return {"removed": before - topic.scan().to_arrow().num_rows}


def read_keys(root: Path, number: int) -> dict[str, Any]:
    """Read by each key, from the bucket alone."""
    with tiered.open(f"file://{root}/bucket") as store:
        topic = store.topic("records")
        found = {f"k{key}": topic.scan(key=b"k%d" % key).to_arrow().num_rows for key in range(8)}
        entries = [split.source.entry for split in topic.scan().splits()]
        filtered = sum(bool(getattr(entry, "footer_position", 0)) for entry in entries)
        return {"rows": found, "filtered": filtered}


def publish(root: Path, number: int) -> dict[str, Any]:
    """Append, tier, and publish a live table, which the releases before do not know; return its version and rows."""
    table = {"table": {"every": "1m"}}
    policies = SETTINGS["policies"] | {"records": table}
    settings = tiered.Settings.model_validate(SETTINGS | {"policies": policies})
    with tiered.open(root / "store", settings=settings) as store:
        topic = store.topic("records")
        for row in range(number):
            topic.append(b"%d" % row, partition=0)
        topic.flush()
        failed = [str(error) for error in store.tier().failed]
        info = topic.table()
        return {"failed": failed, "version": info.version, "rows": info.records, "lag": info.lag_records}


def sweep(root: Path, number: int) -> dict[str, Any]:
    """Delete what no manifest names, without a grace; return how many objects went."""
    settings = tiered.Settings.model_validate(SETTINGS | {"sweep": {"grace": "0s"}})
    with tiered.open(root / "store", settings=settings) as store:
        reports = [store.sweep(), store.sweep()]
        return {
            "deleted": sum(report.objects for report in reports),
            "problems": [problem for report in reports for problem in report.problems],
        }


def transact(root: Path, number: int) -> dict[str, Any]:
    """Append to two topics by one transaction, with a position."""
    with opened(root) as store:
        with store.topic("kept").consumer("reader") as consumer, store.transaction("etl") as transaction:
            transaction.append("records", b"of a transaction", partition=0)
            transaction.append("kept", b"of a transaction")
            transaction.commit_position(consumer)
        store.flush()
        return {"failed": [str(error) for _ in range(3) for error in store.tier().failed]}


def write_batch(root: Path, number: int) -> dict[str, Any]:
    """Write a batch as Spark does, which builds before `staged` cannot."""
    with opened(root) as store:
        rows = pa.RecordBatch.from_pydict({"topic": ["records", "kept"], "value": [b"of a batch"] * 2})
        staged = store.staging.stage(None, "app:1", f"{number:032x}", [rows])
        committed = store.staging.commit(None, "app:1", number, [staged])
        store.flush()
        return {"committed": committed, "failed": [str(error) for error in store.tier().failed]}


def read_bucket(root: Path, number: int) -> dict[str, Any]:
    """Read a topic from the bucket alone."""
    with tiered.open(f"file://{root}/bucket") as store:
        return {"rows": store.topic("records").scan().to_arrow().num_rows}


def found(store: tiered.Store) -> dict[str, Any]:
    """Return rows and problems of an open store."""
    topics: dict[str, Any] = {}
    for name in sorted(store.topics()):
        table = store.topic(name).scan().to_arrow()
        rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
        topics[name] = [len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()]
    return {"topics": topics, "problems": [str(item) for item in store.verify(deep=True).problems]}


def serve(root: Path, number: int) -> dict[str, Any]:
    """Serve the store until standard input ends."""
    with opened(root) as store:
        store.create_topic("records", partitions=2, exist_ok=True)
        store.create_topic("typed", schema=TYPED, key="user", exist_ok=True)
        (root / "location").write_text(store.serve("127.0.0.1:0").location)
        print(json.dumps({}), flush=True)
        sys.stdin.read()
        return {}


def append_there(root: Path, number: int) -> dict[str, Any]:
    """Append through the server, record by record, and read it all."""
    with tiered.open((root / "location").read_text()) as store:
        records, typed = store.topic("records"), store.topic("typed")
        session = records.producer("remote")
        for row in range(ROWS):
            at = number * ROWS + row
            stamp = FIRST + timedelta(seconds=at)
            value = b"%d" % at
            last = records.append(value, key=b"k%d" % (at % 7), timestamp=stamp)
            records.append(value, timestamp=stamp, partition=1, headers={"h": value}, sync=row % 8 == 0)
            session.append(value, sequence=at, timestamp=stamp, partition=0)
            typed.append({"user": f"u{at}", "amount": at, "tags": ["a", None]}, timestamp=stamp)
            if row % 8 == 3:
                assert last.offset >= 0
        assert session.append(b"a repeat", sequence=at, partition=0).partition == 0
        store.flush()
        found = {}
        for topic in (records, typed):
            table = topic.scan().to_arrow().drop_columns(["offset"])
            found[topic.name] = sorted(map(repr, table.to_pylist()))
        return {"rows": {name: len(rows) for name, rows in found.items()}, "digest": digest(found)}


def digest(rows: dict[str, Any]) -> str:
    """Return a hash of rows."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def main() -> None:
    """Run the steps."""
    root, *steps = sys.argv[1:]
    for item in steps:
        step, _, number = item.partition(":")
        try:
            answer = globals()[step](Path(root), int(number or 0))
        except tiered.TieredError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
