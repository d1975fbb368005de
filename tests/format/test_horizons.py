"""Horizons of erasures after restores."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tests.support.manifest_values import TOPIC, empty_head
from tiered.format.erasure import LedgerEntry
from tiered.format.horizons import object_horizon, restored_horizon
from tiered.format.manifest import Origin

# Lineage 3 has the log of 1 up to offset 20, and the new one, 7, that of 1 up to 50.
HEAD = empty_head(
    epoch=7,
    lineages=((1, 0), (3, 20), (7, 20)),
    origins=(Origin(3, 1, 1, 20, 0), Origin(7, 2, 1, 50, 0)),
    end_offset=50,
)
ERASURE = LedgerEntry(
    id=UUID(int=7), number=1, topic="t", topic_id=TOPIC, column="key", values=1, horizons=(20,), log_end=0, reason="",
    caller="", called_us=0, deadline_us=0, called_horizons=(40,), lineages=(3,), called_lineages=(1,),
)  # fmt: skip


def test_a_horizon_is_that_of_the_log_which_a_restore_goes_on_with() -> None:
    assert restored_horizon(ERASURE, 0, HEAD) == 40
    in_the_log_of_3 = replace(HEAD, origins=(HEAD.origins[0], Origin(7, 2, 3, 50, 0)))
    assert restored_horizon(ERASURE, 0, in_the_log_of_3) == 20


def test_a_horizon_stays_where_its_lineage_is_not_known() -> None:
    """In a ledger of an early build, and after a manifest was rebuilt."""
    early = replace(ERASURE, horizons=(30,), lineages=(), called_lineages=())
    assert restored_horizon(early, 0, HEAD) == 30
    assert object_horizon(early, 0, 1, HEAD) == object_horizon(early, 0, 7, HEAD) == 40
    assert (
        restored_horizon(replace(ERASURE, lineages=(5,)), 0, replace(HEAD, lineages=((7, 20),), origins=()))
        == 20
    )


def test_an_erasure_concerns_no_partition_that_came_after_it() -> None:
    assert restored_horizon(ERASURE, 1, HEAD) == object_horizon(ERASURE, 1, 1, HEAD) == 0
