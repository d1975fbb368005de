"""Actions of every kind, and a port that notes what the executor does with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tiered.policies import (
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
class RecordingPort:
    """Notes each action, and fails or answers as told."""

    answers: dict[tuple[str, int, int], BaseException | int] = field(default_factory=dict)
    before: Callable[[Action], object] = lambda _: None
    seen: list[tuple[str, int, int]] = field(default_factory=list)

    def _act(self, method: str, action: Action) -> int | None:
        self.before(action)
        key = (method, action.partition, action.base_offset)
        self.seen.append(key)
        answer = self.answers.get(key)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def seal(self, action: Seal) -> int | None:
        return self._act("seal", action)

    def expire(self, action: Expire) -> int | None:
        return self._act("expire", action)

    def offload(self, action: Offload) -> int | None:
        return self._act("offload", action)

    def ship_tail(self, action: ShipTail) -> int | None:
        return self._act("ship_tail", action)

    def evict_local(self, action: EvictLocal) -> int | None:
        return self._act("evict_local", action)

    def compress(self, action: Compress) -> int | None:
        return self._act("compress", action)

    def merge(self, action: Merge) -> int | None:
        return self._act("merge", action)

    def scrub(self, action: Scrub) -> int | None:
        return self._act("scrub", action)

    def sweep(self, action: Sweep) -> int | None:
        return self._act("sweep", action)
