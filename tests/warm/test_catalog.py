"""The features of a store in its document."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

import tiered
from tiered.errors import TieredError, UnsupportedFormat
from tiered.format.document import TRANSACTIONS_FEATURE, encode_document
from tiered.warm.catalog import STORE_FILE, Catalog
from tiered.warm.filesystem import OsFileSystem


def test_a_feature_is_added_beside_what_the_document_says(tmp_path: Path) -> None:
    """Id and lineage stay; a second call writes nothing."""
    catalog, path = Catalog(OsFileSystem(), tmp_path), tmp_path / STORE_FILE
    store_id = catalog.open_store(create=True)
    path.write_bytes(encode_document({"id": str(store_id), "lineage": 3}))
    assert catalog.features() == frozenset()
    catalog.add_feature(TRANSACTIONS_FEATURE)
    assert catalog.features() == {TRANSACTIONS_FEATURE}
    assert (catalog.open_store(create=False), catalog.lineage()) == (store_id, 3)
    written = path.stat().st_mtime_ns
    catalog.add_feature(TRANSACTIONS_FEATURE)
    assert path.stat().st_mtime_ns == written


def test_an_unknown_feature_keeps_the_store_closed(tmp_path: Path) -> None:
    catalog, path = Catalog(OsFileSystem(), tmp_path), tmp_path / STORE_FILE
    store_id = catalog.open_store(create=True)
    path.write_bytes(encode_document({"id": str(store_id), "features": ["flying"]}))
    for use in (lambda: catalog.open_store(create=True), catalog.lineage, lambda: catalog.add_feature("x")):
        with pytest.raises(UnsupportedFormat, match="newer than this release: flying"):
            use()


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_a_topic_is_listed_whatever_its_document_is(tmp_path: Path, kind: str) -> None:
    """A FIFO, a folder or a link to itself in the document's place hides no topic, and nothing replaces it."""
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("orders").append(b"kept", sync=True)
    document = tmp_path / "data" / "topics" / "orders" / "topic.json"
    document.rename(tmp_path / "topic.json")
    match kind:
        case "fifo":
            os.mkfifo(document)
        case "folder":
            document.mkdir()
        case "loop":
            document.symlink_to(document.name)

    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert store.topics() == ["orders"]
        assert "topic.json" in str(store.status().to_json())
    with suppress(TieredError, OSError), tiered.open(tmp_path / "data") as store:
        store.create_topic("orders")

    if kind == "folder":
        document.rmdir()
    else:
        document.unlink()
    (tmp_path / "topic.json").rename(document)
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"kept"]
