"""Row groups that are smaller than the setting allows."""

from __future__ import annotations

from typing import Any

import pytest

from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep import rewrite
from tiered.format.manifest import ObjectEntry
from tiered.repair import bucket
from tiered.tiering import publish_actions


def small_row_groups(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let offloads, tails, rewrites and repairs write row groups of `size` bytes."""

    def write(*values: Any, **options: Any) -> ObjectEntry:
        return write_object(*values, **(options | {"row_group_bytes": size}))

    for module in (publish_actions, rewrite, bucket):
        patch.setattr(module, "write_object", write)
