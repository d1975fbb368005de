"""`BucketCatalog`: the topics of a bucket, read-only. `warm.catalog` has those of a directory."""

from __future__ import annotations

from uuid import UUID

from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..errors import ConfigError, CorruptionError, ReadOnly, TopicNotFound, UnsupportedFormat
from ..format.topic_meta import TopicMeta


class BucketCatalog:
    """The topics of a bucket, read-only."""

    def __init__(self, bucket: StoreDocuments) -> None:
        self._bucket = bucket
        self._features: frozenset[str] = frozenset()

    def open_store(self) -> UUID:
        """Return the id of the store that owns the bucket's prefix.

        Raises
        ------
        ConfigError
            There is no store.
        """
        store = self._bucket.read_store()
        if store is None:
            raise ConfigError(f"there is no store at {self._bucket.store.url}; check the URL")
        store_id, self._features = store
        return store_id

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted; a topic with a damaged document is listed, too.

        Raises
        ------
        ColdStorageError
        """
        return sorted(filter(self._is_listed, self._bucket.names()))

    def read_topic(self, name: str) -> TopicMeta:
        """Return a topic's document.

        Raises
        ------
        TopicNotFound, CorruptionError, ColdStorageError
        """
        document = self._bucket.topic(name)
        if document is None:
            raise TopicNotFound(
                f"no topic {name!r} in {self._bucket.store.url}; a bucket has only topics with offloaded records"
            )
        return TopicMeta.from_json(document, where=f"{self._bucket.store.url}/{name}/topic.json")

    def read_again(self, meta: TopicMeta) -> TopicMeta:
        """Return the present document of a topic, by one GET.

        Raises
        ------
        TopicNotFound, CorruptionError, ColdStorageError
        """
        document = self._bucket.read_topic(meta.name, meta.topic_id)
        if document is None or DELETED in document:
            raise TopicNotFound(f"topic {meta.name!r} was deleted")
        return TopicMeta.from_json(document, where=f"{self._bucket.store.url}/{meta.name}/topic.json")

    def features(self) -> frozenset[str]:
        """Return the features of the store as this process last read them."""
        return self._features

    def gained(self, feature: str) -> bool:
        """Whether the store has a feature by now, by one GET unless that is known: a store never loses one.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        if feature not in self._features:
            self.open_store()
        return feature in self._features

    def _is_listed(self, name: str) -> bool:
        try:
            return self._bucket.topic(name) is not None
        except (CorruptionError, UnsupportedFormat):
            return True

    def write_topic(self, meta: TopicMeta) -> None:  # noqa: ARG002
        """Raise `ReadOnly`."""
        raise ReadOnly(f"{self._bucket.store.url} was opened for reading; append through the local store")
