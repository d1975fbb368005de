"""The features of a store in its document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.errors import UnsupportedFormat
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
