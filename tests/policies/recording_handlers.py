"""Actions of every kind, and handlers that record how the executor calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from tiered.policies.actions import (
    Action,
    Compress,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from tiered.policies.executor import Handler

KINDS: dict[str, type[Action]] = {
    item.kind: item for item in (Seal, Expire, Offload, ShipTail, EvictLocal, Compress, Merge, Scrub, Sweep)
}


EXTRA: dict[str, dict[str, Any]] = {
    "compress": {"codec": "zstd", "level": None},
    "merge": {"names": ("a", "b")},
    "scrub": {"round": 1, "deep": False, "completes": True, "planned_us": 0},
    "sweep": {"planned_us": 0},
}


def do(kind: str, partition: int, base: int = 0) -> Action:
    return KINDS[kind](
        topic="t", partition=partition, segment_id=UUID(int=base), base_offset=base, end_offset=base + 10,
        bytes=100, reason="because", **EXTRA.get(kind, {}),
    )  # fmt: skip


@dataclass
class RecordingHandlers:
    """Handlers that record each action, and fail or answer as told."""

    answers: dict[tuple[str, int, int], BaseException | int] = field(default_factory=dict)
    before: Callable[[Action], object] = lambda _: None
    seen: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def by_type(self) -> dict[type[Action], Handler]:
        return {kind: partial(self._act, name) for name, kind in KINDS.items()}

    def _act(self, handler: str, action: Action) -> int | None:
        self.before(action)
        key = (handler, action.partition, action.base_offset)
        self.seen.append(key)
        answer = self.answers.get(key)
        if isinstance(answer, BaseException):
            raise answer
        return answer
