"""Write tests/data/v1: a store, a bucket and documents as format 1 has them.

Run once, when format 1 was settled. The files are never written again: what a release has written stays
readable, and tests/format/test_golden.py reads them. A new version of the format gets a script and a
folder of its own.

    python tests/data/make_golden_v1.py FOLDER
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from tiered.host import Host
from tiered.warm.cold_url import BucketBinding, write_binding
from tiered.warm.directory import list_segments, write_fence, write_lineage
from tiered.warm.rewrite import rewrite_segment

import tiered
from tiered.format.codec import Codec
from tiered.format.manifest import Head, ObjectEntry, RowGroup
from tiered.format.manifest_codec import encode_head, encode_page
from tiered.warm.filesystem import OsFileSystem

NOW_US = 1_750_000_000_000_000
NOW = datetime.fromtimestamp(NOW_US / 1e6, UTC)
FS = OsFileSystem()
SETTINGS = tiered.Settings.model_validate(
    {
        "store": {"sync_interval": "1h"},
        "policies": {
            "default": {"offload": {"after": "0s", "tail_interval": "1s"}, "local_retention": {"age": "off"}}
        },
    }
)

TYPES = pa.schema(
    [
        ("bool", pa.bool_()), ("int8", pa.int8()), ("int16", pa.int16()), ("int32", pa.int32()), ("int64", pa.int64()),
        ("float32", pa.float32()), ("float64", pa.float64()), ("string", pa.string()), ("binary", pa.binary()),
        ("date", pa.date32()), ("stamp", pa.timestamp("us", "UTC")), ("naive", pa.timestamp("us")),
        ("decimal", pa.decimal128(20, 3)), ("list", pa.list_(pa.int32())), ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", pa.struct([("a", pa.string()), ("b", pa.list_(pa.float64()))])),
    ]
)  # fmt: skip

TYPED_ROWS: list[dict[str, Any]] = [
    {
        "bool": True, "int8": -128, "int16": 32_767, "int32": -(2**31), "int64": 2**63 - 1, "float32": 0.5,
        "float64": -1e300, "string": "grün \U0001f600", "binary": b"\x00\xff", "date": date(1969, 12, 31), "stamp": NOW,
        "naive": datetime(9999, 12, 31, 23, 59, 59, 999_999), "decimal": Decimal("-12345678901234567.890"),
        "list": [1, None, 3], "map": [("k", 1), ("l", None)], "struct": {"a": "x", "b": [1.5, None]},
    },
    dict.fromkeys(TYPES.names),
    {
        **dict.fromkeys(TYPES.names), "string": "", "binary": b"", "list": [], "map": [],
        "struct": {"a": None, "b": []}, "naive": datetime(1, 1, 1), "stamp": NOW - timedelta(days=20_000),
    },
]  # fmt: skip

RECORDS: list[dict[str, Any]] = [
    {"value": b"plain", "key": None, "headers": None},
    {"value": None, "key": b"tombstone", "headers": None},
    {"value": b"", "key": b"", "headers": []},
    {"value": b"\xff\xfe not UTF-8 \x00", "key": b"\x80", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]},
] + [{"value": b"value %d" % number * 20, "key": b"key", "headers": None} for number in range(4, 20)]  # fmt: skip


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, (date, datetime, Decimal)):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def write_store(root: Path, cold: str | None) -> dict[str, list[Any]]:
    """Write the same two topics to a store, in several segments; return what was appended."""
    settings = SETTINGS
    with tiered.open(root, cold=cold, settings=settings, host=Host(clock=lambda: NOW_US)) as store:
        records = store.create_topic("records")
        typed = store.create_topic("typed", schema=TYPES, timestamp="stamp", key="string")
        for start in range(0, 20, 5):
            for number, record in enumerate(RECORDS[start : start + 5], start=start):
                headers = [(item["key"], item["value"]) for item in record["headers"] or ()]
                when = NOW + timedelta(seconds=number)
                records.append(record["value"], key=record["key"], headers=headers, timestamp=when)
                if number % 2:
                    records.flush()
            if start < 15:
                records.roll()
        for row in TYPED_ROWS:
            typed.append(row)
        typed.add_columns(pa.schema([("added", pa.string())]))
        typed.append({"string": "after", "added": "new"})
        records.delete_before(1)
    rows = [{**row, "added": None} for row in TYPED_ROWS]
    rows.append({**dict.fromkeys(TYPES.names), "string": "after", "added": "new"})
    return {
        "records": [{**record, "headers": record["headers"] or None} for record in RECORDS],
        "typed": rows,
    }


def write_local(folder: Path) -> dict[str, Any]:
    """A local store: segments of every codec, a sealed and an active one, one with a torn tail."""
    root = folder / "store"
    wanted = write_store(root, None)
    partition = root / "topics" / "records" / "0"
    names = list_segments(partition).segments
    rewrite_segment(FS, partition / str(names[1]), Codec.LZ4, 3)
    rewrite_segment(FS, partition / str(names[2]), Codec.ZSTD, 3)
    torn = root / "topics" / "typed" / "0" / str(list_segments(root / "topics" / "typed" / "0").segments[-1])
    with torn.open("ab") as file:
        file.write(torn.read_bytes()[-300:])
    return wanted


def write_bucket(folder: Path) -> None:
    """A bucket: objects of sealed segments and of a tail, heads, documents."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "store"
        write_store(root, f"file://{folder}/bucket")
        with tiered.open(root, settings=SETTINGS, host=Host(clock=lambda: NOW_US)) as store:
            report = store.tier((NOW_US + 60_000_000) // 1000)
            assert not report.failed
    shutil.rmtree(folder / "bucket" / ".tiered")


def write_documents(folder: Path) -> None:
    """Documents that the two do not have, or only with random contents."""
    documents = folder / "documents"
    documents.mkdir(parents=True)
    write_fence(FS, documents, "epoch 7 began at offset 100")
    write_lineage(FS, documents, 3)
    write_binding(FS, documents, BucketBinding("s3://bucket/prefix", "http://127.0.0.1:9000", "us-east-1"))
    entries = tuple(
        ObjectEntry(
            name=f"{base:020d}-00000003-{UUID(int=base + 1)}.parquet", base_offset=base, end_offset=base + 10,
            record_count=10, min_timestamp_us=base, max_timestamp_us=base + 9, last_append_us=NOW_US + base,
            segment_ids=(UUID(int=base + 2), UUID(int=base + 3)), generation=1, sealed=base < 20, bytes=500, schema_id=0,
            tail_position=400, tail_crc=0xDEADBEEF, content_hash="ab" * 16, origin_hash="cd" * 16,
            row_groups=(RowGroup(base, base + 4, 4, 0, 150, 1, base, base + 3),
                        RowGroup(base + 4, base + 10, 6, 150, 250, 2, base + 4, base + 9)),
        )
        for base in (0, 10, 20)
    )  # fmt: skip
    ref, page = encode_page(f"{UUID(int=99)}.json.zst", entries[:2])
    head = Head(
        store_id=UUID(int=1), topic_id=UUID(int=2), partition=3, epoch=4, lineages=((1, 0), (3, 5)), commit_id="c",
        start_offset=2, end_offset=30, previous_commit_ids=("b", "a"), schemas={0: "schema"}, pages=(ref,),
        inline=entries[2:], committed_us=NOW_US,
    )  # fmt: skip
    (documents / "page.json.zst").write_bytes(page)
    (documents / "head.json").write_bytes(encode_head(head))


def main(folder: Path) -> None:
    """Write everything, what a reader must find in it, and the checksums of the files."""
    if folder.exists():
        raise SystemExit(f"{folder} exists; golden files are never written again")
    wanted = write_local(folder)
    write_bucket(folder)
    write_documents(folder)
    for lock in folder.rglob("*.lock"):
        lock.unlink()
    (folder / "expected.json").write_text(json.dumps(plain(wanted), indent=1) + "\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
