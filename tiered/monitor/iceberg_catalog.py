"""`IcebergCatalog`: the live tables of a store as a read-only Iceberg REST catalog, below ``/iceberg``.

============================================  ================================================================
``GET /v1/config``                            what the catalog can do
``GET /v1/namespaces``                        the one namespace, `NAMESPACE`
``GET|HEAD /v1/namespaces/tiered``            it exists
``GET /v1/namespaces/tiered/tables``          the tables: of each topic whose policy wants one, once it is there
``GET|HEAD /v1/namespaces/tiered/tables/T``   the newest version, with an ETag
``POST …/tables/T/metrics``                   is not kept
============================================  ================================================================

Every other write is refused: the store alone changes its tables. Credentials of the bucket are the reader's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import TieredError, TopicNotFound
from ..format.topic_meta import TopicMeta
from ..table.table_reader import TableReader
from ..table.table_sql import table_identifier

ROOT = "/iceberg"
NAMESPACE = "tiered"
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
)


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """The status, the JSON document and the headers of an answer."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the document, UTF-8."""
        return b"" if self.body is None else json.dumps(self.body).encode()


class IcebergCatalog:
    """Answers the requests to one open store. Thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        self._context = context
        self._topics = topics
        self._published: set[UUID] = set()

    def answer(self, method: str, path: str, known: str | None = None) -> CatalogAnswer:
        """Answer a request; errors are answers, too.

        Parameters
        ----------
        path
            Below `ROOT`, without its query.
        known
            The ETag that the caller has.
        """
        parts = [unquote(part) for part in path.strip("/").split("/")]
        try:
            match parts:
                case ["v1", "config"] if _reads(method):
                    return CatalogAnswer(
                        200, {"defaults": {}, "overrides": {}, "endpoints": list(_ENDPOINTS)}
                    )
                case ["v1", "namespaces"] if _reads(method):
                    return CatalogAnswer(200, {"namespaces": [[NAMESPACE]]})
                case ["v1", "namespaces", namespace, *rest]:
                    if namespace != NAMESPACE:
                        return _error(
                            404,
                            "NoSuchNamespaceException",
                            f"the one namespace is {NAMESPACE}, not {namespace}",
                        )
                    return self._below(method, rest, known)
        except TieredError as error:
            return _error(503, "ServiceUnavailableException", str(error))
        return _refused(method, path)

    def _below(self, method: str, parts: list[str], known: str | None) -> CatalogAnswer:
        match parts:
            case [] if method == "HEAD":
                return CatalogAnswer(204)
            case [] if method == "GET":
                return CatalogAnswer(200, {"namespace": [NAMESPACE], "properties": {}})
            case ["tables"] if _reads(method):
                names = sorted(
                    name
                    for name, topics in self._tables().items()
                    if len(topics) == 1 and self._is_published(topics[0])
                )
                return CatalogAnswer(
                    200, {"identifiers": [{"namespace": [NAMESPACE], "name": name} for name in names]}
                )
            case ["tables", name] if _reads(method):
                return self._table(name, known, exists=method == "HEAD")
            case ["tables", _, "metrics"] if method == "POST":
                return CatalogAnswer(204)
        return _refused(method, "/".join(parts))

    def _tables(self) -> dict[str, list[TopicMeta]]:
        """Return the topics whose policy wants a table, by the name of the table."""
        topics: dict[str, list[TopicMeta]] = {}
        for name in self._topics.topic_names() if self._context.tiers.has_cold else ():
            if self._context.settings.policy_for(name).table.every is not None:
                try:
                    topics.setdefault(table_identifier(name), []).append(self._topics.meta(name))
                except TopicNotFound:
                    continue  # deleted since it was listed
        return topics

    def _is_published(self, meta: TopicMeta) -> bool:
        """Whether a topic's table was published once; a request to the bucket, until it was."""
        if meta.topic_id not in self._published:
            if not self._reader(meta).folder.has_pointer():
                return False
            self._published.add(meta.topic_id)
        return True

    def _reader(self, meta: TopicMeta) -> TableReader:
        return TableReader.of(self._context.tiers.object_store, meta.name, meta.topic_id)

    def _table(self, name: str, known: str | None, *, exists: bool) -> CatalogAnswer:
        topics = self._tables().get(name, [])
        if len(topics) != 1:
            names = " and ".join(topic.name for topic in topics)
            why = f"topics {names} share the name" if topics else "no topic with a table has the name"
            return _error(404, "NoSuchTableException", f"{why} {name}")
        reader = self._reader(topics[0])
        newest = reader.newest_values()
        if newest is None:
            return _error(
                404, "NoSuchTableException", f"the table of topic {topics[0].name} was not published yet"
            )
        version, metadata = newest
        headers = {"ETag": f'"{topics[0].topic_id}-{version}"'}
        if known is not None and known.removeprefix("W/") == headers["ETag"]:
            return CatalogAnswer(304, None, headers)
        if exists:
            return CatalogAnswer(204, None, headers)
        body = {
            "metadata-location": reader.folder.url(version),
            "metadata": metadata,
            "config": self._properties(reader.folder.location),
        }
        return CatalogAnswer(200, body, headers)

    def _properties(self, location: str) -> dict[str, str]:
        """Return where the bucket is, for readers that do not know."""
        if not location.startswith("s3://"):
            return {}
        options = self._context.tiers.locations.cold_options
        found = {
            "s3.endpoint": options.endpoint_url,
            "s3.region": options.region,
            "client.region": options.region,
        }
        properties = {name: value for name, value in found.items() if value is not None}
        if options.endpoint_url is not None:
            properties["s3.path-style-access"] = "true"
        return properties


def _reads(method: str) -> bool:
    return method in ("GET", "HEAD")


def _refused(method: str, path: str) -> CatalogAnswer:
    if _reads(method):
        return _error(404, "NotFoundException", f"there is no {path}; see {ROOT}/v1/config")
    return _error(
        405, "UnsupportedOperationException", "the catalog is read-only: the store alone changes its tables"
    )


def _error(status: int, kind: str, message: str) -> CatalogAnswer:
    return CatalogAnswer(status, {"error": {"message": message, "type": kind, "code": status}})
