"""References to topics by name and id: a topic that was deleted and created again has another id."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ...errors import TopicNotFound
from ...format.topic_meta import TopicMeta

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic


def topic_ref(meta: TopicMeta) -> dict[str, str]:
    """Return the arguments that name a topic in an action: with its id, no later topic of the same name is meant."""
    return {"topic": meta.name, "topic_id": str(meta.topic_id)}


def resolve_topic(store: LocalStore, name: str, topic_id: UUID | None) -> LocalTopic:
    """Return the topic of a name and id; None for the id, which some clients do not know, accepts any.

    Raises
    ------
    TopicNotFound
        The topic was deleted; another one may have its name.
    """
    topic = store.topic(name)
    if topic_id is not None and topic.opened.meta.topic_id != topic_id:
        raise TopicNotFound(f"topic {name!r} was deleted and created again; get it anew by store.topic()")
    return topic
