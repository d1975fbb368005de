"""Horizons of erasures after restores."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

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


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_horizon_is_where_the_records_from_after_the_call_begin(data: st.DataObject) -> None:
    """In logs that restores begin: with the newest state or of a time, and some cut short before they record the horizons."""
    draw = data.draw
    head, erasure = empty_head(), None
    # Whether each record is from after the call. Those behind the end in the bucket are of transactions: a restore appends them.
    records: list[bool] = []
    times = [(head, records)]
    restores = ["restore", *["go back"] * 3, "cut short"]
    step = ""
    for _ in range(draw(st.integers(1, 20))):
        # After a restore that was cut short, the partition has no writer.
        others = [] if step == "cut short" else ["append", "append", "publish", "call"]
        step = draw(st.sampled_from([*restores, *others]))
        if step == "append":
            records = [*records, *[erasure is not None] * draw(st.integers(1, 3))]
        elif step == "publish":
            head = replace(
                head, end_offset=draw(st.sampled_from([len(records), (head.end_offset + len(records)) // 2]))
            )
        elif step == "call" and erasure is None:
            at, lineage = (len(records),), (head.lineage_epoch,)
            erasure = replace(
                ERASURE, horizons=at, called_horizons=at, lineages=lineage, called_lineages=lineage
            )
        elif step != "call":
            then = head
            if step == "go back":
                then, records = draw(st.sampled_from(times))
            epoch, end = head.epoch + 2, then.end_offset
            head = replace(
                head, epoch=epoch, end_offset=end, lineages=(*head.lineages, (epoch, end)),
                origins=(*head.origins, Origin(epoch, epoch, then.lineage_epoch, end, 0)),
            )  # fmt: skip
            if erasure is not None:
                horizon = min(restored_horizon(erasure, 0, head), len(records))
                assert horizon == records.count(False)
                if step != "cut short":
                    past = [(0, *erasure.lineages, *erasure.horizons)] * (
                        erasure.lineages != erasure.called_lineages
                    )
                    erasure = replace(
                        erasure,
                        horizons=(horizon,),
                        lineages=(epoch,),
                        past_horizons=(*erasure.past_horizons, *past),
                    )
        times.append((head, records))
