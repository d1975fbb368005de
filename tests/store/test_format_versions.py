"""What a later release wrote is refused by name, wherever it is met, and left as it is."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tiered.format.document import decode_document

SETTINGS = stepwise(compress={"after": "off"})
PARTITION = "data/topics/t/0"
SEALED, ACTIVE = f"{PARTITION}/{0:020d}-0.log", f"{PARTITION}/{1:020d}-0.log"


def newer_document(path: Path) -> None:
    """Raise the format's number in a JSON document and make its checksum right again."""
    document = {"format": 3, **decode_document(path.read_bytes(), where=str(path))}
    text = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    path.write_text(json.dumps({**document, "crc32c": f"{crc32c(text):08x}"}))


def newer_binary(path: Path, start: int, version_at: int, crc_at: int) -> None:
    """The same for a structure of a segment file."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, start + version_at, 2)
    struct.pack_into("<I", data, start + crc_at, crc32c(bytes(data[start : start + crc_at])))
    path.write_bytes(data)


def newer_header(path: Path) -> None:
    newer_binary(path, 0, 4, 124)


def newer_block(path: Path) -> None:
    newer_binary(path, struct.unpack_from("<I", path.read_bytes(), 8)[0], 4, 124)


def newer_trailer(path: Path) -> None:
    newer_binary(path, path.stat().st_size - 32, 16, 24)


LOCAL: dict[str, tuple[str, Callable[[Path], None]]] = {
    "store": ("data/store.json", newer_document),
    "cold place": ("data/cold.json", newer_document),
    "topic": ("data/topics/t/topic.json", newer_document),
    "start offset": (f"{PARTITION}/start.json", newer_document),
    "sealed segment": (SEALED, newer_header),
    "trailer": (SEALED, newer_trailer),
    "block of a sealed segment": (SEALED, newer_block),
    "active segment": (ACTIVE, newer_header),
    "block of the active segment": (ACTIVE, newer_block),
}
BUCKET = {
    "bucket": "bucket/store.json",
    "topic in the bucket": "bucket/t/*/topic.json",
    "head": "bucket/t/*/0/head.json",
}
WORDS = r"format [23].*newer than this release"


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Path:
    """A store with one published segment and one active one."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=SETTINGS) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        topic.append(b"1")
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".log", ".json")}


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
@pytest.mark.parametrize("what", LOCAL)
def test_a_newer_local_file_is_refused(folder: Path, clock: Clock, what: str, read_only: bool) -> None:
    name, make_newer = LOCAL[what]
    if what == "start offset":
        with open_store(folder / "data", None, clock) as store:
            store.topic("t").delete_before(1)
    make_newer(folder / name)
    before = contents(folder)
    with pytest.raises(tiered.UnsupportedFormat, match=WORDS) as caught:
        with open_store(folder / "data", None, clock, settings=SETTINGS, read_only=read_only) as store:
            store.topic("t").scan().to_arrow()
    assert str(folder / name) in str(caught.value)
    if not read_only:
        with pytest.raises(tiered.UnsupportedFormat, match=WORDS):
            with open_store(folder / "data", None, clock, settings=SETTINGS) as store:
                # What is damaged in front of the writer does not keep it from appending behind.
                store.topic("t").append(b"2")
                store.topic("t").scan().to_arrow()
    after = contents(folder)
    assert after[folder / name] == before[folder / name]


@pytest.mark.parametrize("what", BUCKET)
def test_a_newer_document_in_the_bucket_is_refused(folder: Path, clock: Clock, what: str) -> None:
    """By readers of the bucket, and by the tierer, which publishes nothing then."""
    (path,) = folder.glob(BUCKET[what])
    newer_document(path)
    before = {name: data for name, data in contents(folder).items() if "bucket" in name.parts}
    with pytest.raises(tiered.UnsupportedFormat, match=WORDS) as caught:
        with tiered.open(f"file://{folder}/bucket") as bucket:
            bucket.topic("t").scan().to_arrow()
    assert path.name in str(caught.value)
    with open_store(folder / "data", None, clock, settings=SETTINGS) as store:
        try:
            store.topic("t").roll()
            report = store.tier((clock() + OFFLOAD_US) // 1000)
        except tiered.UnsupportedFormat:
            pass
        else:
            assert [message.split(":")[0] for _, message in report.failed] == ["UnsupportedFormat"]
        assert store.topic("t").scan().to_arrow().num_rows == 2
    assert {name: data for name, data in contents(folder).items() if "bucket" in name.parts} == before
