"""The names of everything in a bucket, relative to the store's prefix.

::

    store.json
    erasures.json, erasures/<uuid>.arrow                                  see `format.erasure`
    leases/<uuid>.json
    probe/<uuid>                                                          see `object_store.probe`
    .damaged/<uuid>-<name>                                                see `upkeep.rebuild`
    <topic>/<topic-id>/topic.json
    <topic>/<topic-id>/table/metadata/…                                   the live table, see `table.table_folder`
    <topic>/<topic-id>/<partition>/data/<base, 20 digits>-<epoch, 8 digits>-<uuid>.parquet
    <topic>/<topic-id>/<partition>/pages/<uuid>.json.zst
    <topic>/<topic-id>/<partition>/head.json
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from ...format.schema import check_topic_name, is_topic_name

STORE_KEY = "store.json"
TOPIC_FILE = "topic.json"
HEAD_FILE = "head.json"
LEASES_PREFIX = "leases/"  # see `leases`

_OBJECT_NAME = re.compile(r"([0-9]{20})-([0-9]{8,})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")
_PAGE_NAME = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json\.zst")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What the name of a data object says: first offset, epoch of its committer, unique id."""

    base_offset: int
    epoch: int
    object_id: UUID

    def __str__(self) -> str:
        return f"{self.base_offset:020d}-{self.epoch:08d}-{self.object_id}.parquet"


def parse_object_name(name: str) -> ObjectName | None:
    """Invert ``str(ObjectName)``; None for what is not the name of a data object."""
    match = _OBJECT_NAME.fullmatch(name)
    if match is None:
        return None
    return ObjectName(int(match[1]), int(match[2]), UUID(match[3]))


def page_name(page_id: UUID) -> str:
    """Return the name of a manifest page."""
    return f"{page_id}.json.zst"


def parse_page_name(name: str) -> UUID | None:
    """Invert `page_name`; None for what is not the name of a page."""
    match = _PAGE_NAME.fullmatch(name)
    return UUID(match[1]) if match else None


def topic_folder(topic: str) -> str:
    """Return the folder of all topics that ever had this name, with its slash.

    Raises
    ------
    InvalidName
        No topic may have such a name: it could leave the prefix or collide with other keys.
    """
    return f"{check_topic_name(topic)}/"


def topic_of_folder(folder: str) -> str | None:
    """Return the topic's name from the name of its folder (no slash); None for any other folder.

    Anyone who can write to the bucket can create folders, and a topic's name becomes the name of a local directory.
    """
    return folder if is_topic_name(folder) else None


def topic_prefix(topic: str, topic_id: UUID) -> str:
    """Return the prefix of everything of one topic, with its slash."""
    return f"{topic_folder(topic)}{topic_id}/"


def topic_key(topic: str, topic_id: UUID) -> str:
    """Return the key of the topic's document."""
    return topic_prefix(topic, topic_id) + TOPIC_FILE


def table_prefix(topic: str, topic_id: UUID) -> str:
    """Return the prefix of a topic's live table, with its slash."""
    return topic_prefix(topic, topic_id) + "table/"


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of one partition."""

    prefix: str

    @classmethod
    def of(cls, topic: str, topic_id: UUID, partition: int) -> PartitionKeys:
        """Return the keys of a partition of a topic."""
        return cls(f"{topic_prefix(topic, topic_id)}{partition:d}/")

    @property
    def head(self) -> str:
        """Key of the one object that changes."""
        return self.prefix + HEAD_FILE

    @property
    def data_prefix(self) -> str:
        """Prefix of the data objects, with its slash."""
        return self.prefix + "data/"

    @property
    def pages_prefix(self) -> str:
        """Prefix of the manifest's pages, with its slash."""
        return self.prefix + "pages/"

    def data(self, name: str) -> str:
        """Key of a data object."""
        return self.data_prefix + name

    def page(self, name: str) -> str:
        """Key of a page."""
        return self.pages_prefix + name
