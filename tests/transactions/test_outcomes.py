"""What is known of committed transactions: right, or said to be unknown; through evictions, notes and moves."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.engine.records import OffsetRange
from tiered.transactions import outcomes
from tiered.transactions.outcomes import Outcomes
from tiered.transactions.parts import Part

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("note"), st.integers(0, 20)),
        st.tuples(st.just("move"), st.integers(0, 20)),
    ),
    max_size=60,
)


def part(offset: int, number: int, rows: int = 1) -> Part:
    return Part("t", UUID(int=1), number, 0, 10 * offset, 0, rows, 1, 8)


@given(steps, st.integers(1, 12), st.integers(1, 9))
def test_an_outcome_is_right_or_said_to_be_unknown(
    history: list[tuple[str, int]], most: int, noted: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "OUTCOMES_MAX", most)
        patch.setattr(outcomes, "_NOTED_MAX", noted)
        known = Outcomes()
        model: dict[int, list[tuple[str, OffsetRange]]] = {}
        log: list[tuple[int, list[Part]]] = []
        for end, (kind, number) in enumerate(history):
            if kind == "add":
                parts = [part(end, at) for at in range(number)]
                known.add(f"s{end}", end, parts)
                model[end] = [("t", OffsetRange(at, 10 * end, 10 * end + 1)) for at in range(number)]
                log.append((end, parts))
                assert known.find(f"s{end}") == model[end]
            elif kind == "note":
                # The log is replayed from a start offset somewhere before the note.
                note, start = known.to_note(), max(0, end - number)
                known = Outcomes(start)
                for offset, parts in log:
                    if offset >= start:
                        known.add(f"s{offset}", offset, parts)
                known.apply_note(note)
            elif model.get(number):
                # The log is written anew.
                known.move(number, 0, 7)
                model[number][0] = "t", OffsetRange(0, 7, 8)
                note, known, log = known.to_note(), Outcomes(end), []
                known.apply_note(note)
        for offset, ranges in model.items():
            found = known.find(f"s{offset}")
            assert found == ranges if found is not None else offset < known.known_from
        assert known.find("other") is None
