"""Keep the demo's bucket: copy it into a directory, and let the store find it there."""

from __future__ import annotations

from pathlib import Path

from ..cold.object_store.connect import open_object_store
from ..cold.object_store.file_store import FileStore
from ..cold.object_store.options import ColdOptions
from ..warm.bucket_binding import BucketBinding, write_binding
from ..warm.filesystem import OsFileSystem


def keep_bucket(folder: Path, url: str, endpoint_url: str) -> None:
    """Copy every object to ``folder/bucket``, then make that the cold tier of ``folder/store``.

    The store must be closed.

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
