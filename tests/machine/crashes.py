"""The rules for machines that fail, and for a bucket that does."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.machine.machine import StoreMachine, names, passes
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Delete, Loss, some

losses = st.sampled_from((EVERYTHING, NOTHING, NAMES, BYTES, LAST)) | st.integers(0, 999).map(some)


class Crashes(StoreMachine):
    """The machine goes down, its clock is stepped, answers of the bucket are lost, requests arrive late."""

    @rule(share=st.sampled_from((1.0,)) | st.floats(0, 1), loss=losses, late=st.booleans())
    def crash(self, share: float, loss: Loss, late: bool) -> None:
        self.world.crash(share, loss, late=late)

    @rule(seconds=st.integers(-20_000, 20_000))
    def step_the_clock(self, seconds: int) -> None:
        self.begin()
        self.world.clock.advance(seconds)
        self.world.cloud.tick(abs(seconds))

    @rule(away=st.booleans())
    def outage(self, away: bool) -> None:
        self.world.cloud.away = away
        self.begin()

    @rule(faults=st.lists(st.sampled_from(("answer lost", "late")), min_size=1, max_size=4), ahead_us=passes)
    def tier_with_lost_answers(self, faults: list[str], ahead_us: int) -> None:
        self.begin()
        self.world.cloud.faults = list(faults)
        self.life.pass_(ahead_us)
        self.world.cloud.faults.clear()

    @precondition(StoreMachine.has_topics)
    @rule(name=names)
    def delete_unheard(self, name: str) -> None:
        """The bucket goes away while a topic is deleted, as a rule before its tombstone."""
        self.begin()
        self.world.cloud.faults = ["outage"]
        self.life.delete(self.topic(name))
        self.world.cloud.faults.clear()

    @precondition(lambda self: self.world.cloud.late)
    @rule(number=st.integers(0, 9))
    def a_request_arrives_late(self, number: int) -> None:
        late = self.world.cloud.late
        op = late.pop(number % len(late))
        if isinstance(op, Delete):
            self.world.cloud.objects.pop(op.key, None)
        else:
            self.life.recorder.bucket.land(op)
        self.begin()
