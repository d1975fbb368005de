"""``tiered inspect``: any file or object of a store says what it is, from itself alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import one_error
from tests.support.manifest_values import empty_head, entry
from tiered.demo.flights_file import flights_path
from tiered.format.manifest_codec import encode_head, encode_page

Run = Callable[..., Any]


@pytest.fixture
def store(data: Path, tmp_path: Path) -> Iterator[tiered.Store]:
    """A store with one sealed segment that is offloaded, and an active one."""
    with tiered.open(data, cold=f"file://{tmp_path}/bucket") as store:
        topic = store.create_topic("orders")
        topic.append_many([b"value %d" % i for i in range(3_000)])
        topic.append(b"\xff", key="k", headers={"h": b"v"}, timestamp=1_500)
        topic.roll()
        topic.append(b"active")
        topic.flush()
        report = store.tier(now=store.context.clock() // 1000 + 700_000)
        assert not report.failed
        yield store


def inspected(tiered_: Run, target: object, *arguments: object, store: bool = False) -> dict[str, Any]:
    result = tiered_("inspect", target, "--json", *arguments, store=store)
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics" / "orders" / "0").glob("*.log"))


def test_a_sealed_segment(tiered_: Run, store: tiered.Store, data: Path) -> None:
    values = inspected(tiered_, segments(data)[0])
    assert (values["kind"], values["state"]) == ("segment", "sealed")
    assert (values["base_offset"], values["end_offset"], values["records"]) == (0, 3_001, 3_001)
    assert values["min_timestamp_us"] == 1_500_000
    assert sum(block["records"] for block in values["blocks"]) == 3_001
    assert values["codecs"] == "zstd"
    assert [item["value"] for item in values["records_shown"]] == [f"value {i}" for i in range(5)]


def test_an_active_segment(tiered_: Run, store: tiered.Store, data: Path) -> None:
    values = inspected(tiered_, segments(data)[-1])
    assert (values["state"], values["base_offset"], values["end_offset"]) == ("active", 3_001, 3_002)
    assert [item["offset"] for item in values["records_shown"]] == [3_001]


def test_a_torn_tail_is_shown(tiered_: Run, store: tiered.Store, data: Path) -> None:
    store.close()
    path = segments(data)[-1]
    path.write_bytes(path.read_bytes() + b"torn")
    values = inspected(tiered_, path)
    assert (values["torn_tail_bytes"], values["end_offset"]) == (4, 3_002)


def test_a_cold_object_by_file_url_and_key(
    tiered_: Run, store: tiered.Store, data: Path, tmp_path: Path
) -> None:
    path = min((tmp_path / "bucket").rglob("*.parquet"))
    by_file = inspected(tiered_, path, "--records", 3_001)
    assert (by_file["kind"], by_file["state"]) == ("cold object", "whole segment")
    assert (by_file["base_offset"], by_file["end_offset"], by_file["bytes"]) == (
        0,
        3_001,
        path.stat().st_size,
    )
    assert by_file["segment_id"] == inspected(tiered_, segments(data)[0])["segment_id"]
    assert by_file["records_shown"][-1] == {
        "offset": 3_000,
        "timestamp": "1970-01-01T00:00:01.500000Z",
        "key": "k",
        "value": None,
        "value_base64": "/w==",
        "headers": [{"key": "h", "value": "v"}],
    }
    assert inspected(tiered_, f"file://{path}", "--records", 3_001) == by_file
    key = path.relative_to(tmp_path / "bucket")
    by_key = inspected(tiered_, key, "--records", 3_001, store=True)
    assert by_key.pop("where").endswith(str(key))
    assert by_key == {name: value for name, value in by_file.items() if name != "where"}


def test_a_cold_object_on_s3(tiered_: Run, data: Path, s3_bucket: str) -> None:
    with tiered.open(data, cold=s3_bucket) as store:
        topic = store.create_topic("orders")
        topic.append_many([b"%d" % i for i in range(1_000)])
        topic.flush()
        assert not store.tier().failed
        (split,) = store.topic("orders").opened.context.tiers.cold(topic.opened.meta, 0).load().head.inline  # type: ignore[union-attr]
        key = store.context.tiers.cold(topic.opened.meta, 0).keys.data(split.name)
    values = inspected(tiered_, f"{s3_bucket}/{key}")
    assert (values["state"], values["end_offset"]) == ("tail of an active segment", 1_000)
    head = inspected(tiered_, f"{s3_bucket}/{key.rpartition('/data/')[0]}/head.json")
    assert (head["kind"], head["end_offset"]) == ("manifest head", 1_000)
    assert "there is no object" in one_error(tiered_("inspect", f"{s3_bucket}/nothing", store=False))


def test_heads_and_documents(tiered_: Run, store: tiered.Store, data: Path, tmp_path: Path) -> None:
    head = inspected(tiered_, next((tmp_path / "bucket").rglob("head.json")))
    assert (head["kind"], head["start_offset"], head["end_offset"]) == ("manifest head", 0, 3_002)
    assert [item["end_offset"] for item in head["objects"]] == [3_001, 3_002]
    topic = inspected(tiered_, data / "topics" / "orders" / "topic.json")
    assert (topic["name"], topic["partitions"]) == ("orders", 1)
    assert [item["column"] for item in topic["schema_0"]] == ["key", "value", "headers"]
    assert inspected(tiered_, data / "store.json")["id"] == str(store.store_id)


def test_a_page_is_verified_by_the_head_that_names_it(tiered_: Run, tmp_path: Path) -> None:
    """Without one it is shown all the same, and said to be unverified."""
    rows = tuple(entry(i * 10, i * 10 + 10, i + 1) for i in range(3))
    ref, data = encode_page("00000000-0000-4000-8000-000000000000.json.zst", rows)
    page = tmp_path / "pages" / ref.name
    page.parent.mkdir()
    page.write_bytes(data)
    assert inspected(tiered_, page)["verified"].startswith("no")
    head = empty_head(pages=(ref,), end_offset=ref.end_offset)
    (tmp_path / "head.json").write_bytes(encode_head(head))
    values = inspected(tiered_, page)
    assert values["verified"] == "against the head"
    assert [item["end_offset"] for item in values["objects"]] == [item.end_offset for item in rows]
    page.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "manifest page fails its checksum" in one_error(tiered_("inspect", page, store=False))


def test_tables_for_people(tiered_: Run, store: tiered.Store, data: Path) -> None:
    text = tiered_("inspect", segments(data)[0], store=False).stdout
    assert "blocks (" in text
    assert "first 5 records" in text
    assert '"value": "value 4"' in text


def test_a_long_index_is_shown_by_its_ends(tiered_: Run, data: Path) -> None:
    with tiered.open(data) as store:
        topic = store.create_topic("orders")
        for i in range(100):
            topic.append(b"%d" % i, sync=True)
        path = segments(data)[0]
        assert len(inspected(tiered_, path)["blocks"]) == 100
        lines = tiered_("inspect", path, store=False).stdout.splitlines()
    assert any("blocks (100)" in line for line in lines)
    assert any(line.strip() == "…" for line in lines)
    assert len(lines) < 80


@pytest.mark.parametrize("position", [10, -40, -200])
def test_a_damaged_segment_is_said(tiered_: Run, store: tiered.Store, data: Path, position: int) -> None:
    path = segments(data)[0]
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)
    assert str(path) in one_error(tiered_("inspect", path, store=False))


def test_a_damaged_object_is_said(tiered_: Run, store: tiered.Store, tmp_path: Path) -> None:
    path = min((tmp_path / "bucket").rglob("*.parquet"))
    intact = path.read_bytes()
    for position in (len(intact) - 6, 60):
        damaged = bytearray(intact)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        assert path.name in one_error(tiered_("inspect", path, "--records", 3_001, store=False))


def test_what_is_not_of_a_store_is_said(tiered_: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    assert "is no segment, Parquet object, manifest or document" in one_error(
        tiered_("inspect", other, store=False)
    )
    other.write_bytes(b"")
    assert "is no segment" in one_error(tiered_("inspect", other, store=False))
    assert "is Parquet that no store wrote: 336,776 rows" in one_error(
        tiered_("inspect", flights_path(), store=False)
    )
    assert "is a directory" in one_error(tiered_("inspect", tmp_path, store=False))
    assert "there is no file missing" in one_error(tiered_("inspect", "missing"))


def test_a_signed_url_is_refused_and_not_repeated(tiered_: Run) -> None:
    message = one_error(tiered_("inspect", "s3://bucket/key?X-Amz-Signature=hush", store=False))
    assert "must not hold ?" in message
    assert "hush" not in message
