"""Keeping the demo's bucket: its objects are copied to a directory, which becomes the store's cold tier."""

from __future__ import annotations

from pathlib import Path

from ..cold.object_store.connect import open_object_store
from ..cold.object_store.file_store import FileStore
from ..cold.object_store.options import ColdOptions
from ..warm.bucket_binding import BucketBinding, write_binding
from ..warm.filesystem import OsFileSystem


def keep_bucket(folder: Path, url: str, endpoint_url: str) -> None:
    """Copy every object to ``folder/bucket``, then make it the cold tier of ``folder/store``, which must be closed.

    Raises
    ------
    ColdStorageError, OSError
    """
    bucket = FileStore(folder / "bucket")
    source = open_object_store(url, ColdOptions(endpoint_url=endpoint_url, region="us-east-1"))
    try:
        for info in source.list(""):
            bucket.put(info.key, source.get(info.key).data)
    finally:
        source.close()
    write_binding(OsFileSystem(), folder / "store", BucketBinding(bucket.url))
