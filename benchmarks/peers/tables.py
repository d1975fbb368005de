"""Tables in a folder or a bucket: Delta, Iceberg and Lance, each written by its own library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from . import MissingPeerError

_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table goes: a URL without a slash at its end, and the S3 endpoint that serves it, if any."""

    url: str
    endpoint: str = ""


class PeerTable(Protocol):
    """A table that is created by its first append, and opened anew by each read."""

    def append(self, rows: pa.Table) -> None:
        """Commit the rows."""

    def where_key(self, key: bytes, column: str) -> pa.ChunkedArray:
        """Read one column of the rows with a key, by the library's own filter."""


class DeltaPeer:
    """A Delta table by ``deltalake``, compressed by zstd as the log's objects are."""

    def __init__(self, place: Place) -> None:
        from deltalake import WriterProperties

        self._url = f"{place.url}/delta"
        self._zstd = WriterProperties(compression="ZSTD")
        self._options = (
            {
                "AWS_ENDPOINT_URL": place.endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": _REGION,
                "conditional_put": "etag",
            }
            if place.endpoint
            else None
        )
        self._table: Any = None

    def append(self, rows: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        if self._table is None:
            write_deltalake(self._url, rows, writer_properties=self._zstd, storage_options=self._options)
            self._table = DeltaTable(self._url, storage_options=self._options)
        else:
            write_deltalake(self._table, rows, mode="append", writer_properties=self._zstd)

    def where_key(self, key: bytes, column: str) -> pa.ChunkedArray:
        from deltalake import DeltaTable

        table = DeltaTable(self._url, storage_options=self._options)
        return table.to_pyarrow_table(columns=[column], filters=[("key", "=", key)]).column(0)


class IcebergPeer:
    """An Iceberg table by ``pyiceberg``, with a catalog in SQLite beside it."""

    def __init__(self, place: Place, catalog_folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        more = (
            # By fsspec, which puts a small file in one request; by Arrow each is a multipart upload.
            {
                "s3.endpoint": place.endpoint,
                "s3.region": _REGION,
                "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
            }
            if place.endpoint
            else {}
        )
        self._catalog = SqlCatalog(
            "bench",
            uri=f"sqlite:///{catalog_folder}/catalog.db",
            warehouse=f"{place.url}/iceberg",
            **more,
        )
        self._catalog.create_namespace("bench")
        self._table: Any = None

    def append(self, rows: pa.Table) -> None:
        if self._table is None:
            self._table = self._catalog.create_table("bench.rows", schema=rows.schema)
        self._table.append(rows)

    def where_key(self, key: bytes, column: str) -> pa.ChunkedArray:
        from pyiceberg.expressions import EqualTo

        scan = self._catalog.load_table("bench.rows").scan(EqualTo("key", key), selected_fields=(column,))
        return scan.to_arrow().column(0)


class LancePeer:
    """A Lance data set."""

    def __init__(self, place: Place) -> None:
        try:
            import lance
        except ImportError:
            raise MissingPeerError("Lance needs the package pylance") from None
        self._lance: Any = lance
        self._url = f"{place.url}/lance"
        self._options = (
            {"aws_endpoint": place.endpoint, "allow_http": "true", "aws_region": _REGION}
            if place.endpoint
            else None
        )
        self._dataset: Any = None

    def append(self, rows: pa.Table) -> None:
        if self._dataset is None:
            self._dataset = self._lance.write_dataset(rows, self._url, storage_options=self._options)
        else:
            self._dataset = self._lance.write_dataset(rows, self._dataset, mode="append")

    def where_key(self, key: bytes, column: str) -> pa.ChunkedArray:
        dataset = self._lance.dataset(self._url, storage_options=self._options)
        return dataset.to_table(columns=[column], filter=f"key = X'{key.hex()}'").column(0)
