"""The rules for restores, and for the twin that does not know of one."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import tiered
from tests.machine.life import Life
from tests.machine.machine import StoreMachine, names, passes
from tests.support.topic_model import Violation


class Restores(StoreMachine):
    """Stores come back from the bucket alone, and what they were may live on."""

    @precondition(lambda self: self.world.claimed)
    @rule(keep=st.booleans(), skew=st.integers(-7200, 7200))
    def restore(self, keep: bool, skew: int) -> None:
        self.world.cloud.away = False
        self.world.cloud.faults.clear()
        self.life.settle()
        self.world.restore(keep=keep, skew_seconds=skew)

    @property
    def twin(self) -> Life:
        """The machine that the store was restored from."""
        assert self.world.twin is not None
        return self.world.twin

    def has_twin(self) -> bool:
        return self.world.twin is not None and bool(self.world.twin.topics())

    @precondition(has_twin)
    @rule(name=names, count=st.integers(1, 3), sync=st.sampled_from((None, True)))
    def twin_appends(self, name: str, count: int, sync: bool | None) -> None:
        """It does not know yet, or is told."""
        self.begin()
        twin = self.twin
        name = name if name in twin.topics() else min(twin.topics())
        with suppress(tiered.Fenced):
            twin.append(name, *self.values(count), sync=sync)

    @precondition(has_twin)
    @rule(ahead_us=passes)
    def twin_tiers(self, ahead_us: int) -> None:
        """It changes nothing in the bucket; from then on it is fenced where the bucket has a log."""
        self.begin()
        twin = self.twin
        self.world.twin_changes_nothing(lambda: twin.pass_(ahead_us))
        if self.world.cloud.away:
            return
        for (name, partition), end in twin.published.items():
            if end and name in self.life.topics() and name in twin.topics():
                log = twin.topics()[name].logs[partition]
                try:
                    twin.append(name, *self.values(1), partition=partition)
                except tiered.Fenced:
                    log.values.pop()
                    twin.model.mark()
                else:
                    raise Violation(f"the twin had its pass, and still appends to {name!r}/{partition}")

    @precondition(has_twin)
    @rule()
    def twin_sweeps(self) -> None:
        self.begin()
        twin = self.twin
        self.world.twin_changes_nothing(twin.store.sweep)

    @precondition(has_twin)
    @rule()
    def twin_deletes(self) -> None:
        self.begin()
        twin = self.twin
        self.world.twin_changes_nothing(lambda: twin.store.delete_topic(min(twin.topics())))

    @precondition(has_twin)
    @rule()
    def twin_reads(self) -> None:
        self.begin()
        self.world.check_twin()

    @precondition(has_twin)
    @rule()
    def twin_reopens(self) -> None:
        self.begin()
        twin = self.twin
        for scan in [scan for scan in self.world.held if scan.store is twin.store]:
            self.world.held.remove(scan)
        twin._drain()
        with suppress(tiered.Fenced):
            twin.store.close()
        twin.open()
