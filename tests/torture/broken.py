"""Steps that protect records, taken away one at a time: what the kills must notice."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from unittest import mock

from tests.support import mutations
from tests.support.mutations import EVICT_EARLY, Mutation
from tiered.hot.pending_rows import PendingRows
from tiered.store.local_topic import LocalTopic
from tiered.tiering.publisher import Publisher

BROKEN: dict[str, Mutation] = {
    "a flush that does nothing": lambda: mock.patch.object(LocalTopic, "flush"),
    "an upload that nobody waits for": lambda: mock.patch.object(Publisher, "wait"),
    "repeats that are not recognised": lambda: mock.patch.object(
        PendingRows, "history_of", return_value=(None, -1)
    ),
    EVICT_EARLY: mutations.MUTATIONS[EVICT_EARLY],
}


def broken_by(name: str) -> AbstractContextManager[object]:
    """Take a step away; none where no name is given."""
    return BROKEN[name]() if name else nullcontext()
