"""Everything that can be done with one healthy store, in any order, against lists; see `World`."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tiered
from tests.machine.life import Life
from tests.machine.world import World
from tests.support.stores import COMPRESS_US, EVICT_US, HOUR_US, OFFLOAD_US

TAIL_US, EXPIRE_US = 2_000_000, 25 * HOUR_US
PARTITIONS_MAX = 3

names = st.sampled_from(("orders", "rows"))
partitions = st.integers(0, PARTITIONS_MAX - 1)
passes = st.sampled_from((TAIL_US, COMPRESS_US, OFFLOAD_US, OFFLOAD_US, EVICT_US, EVICT_US, EXPIRE_US))


class StoreMachine(RuleBasedStateMachine):
    """Appends, passes, deletions, reopenings; on top of them come the classes below.

    Attributes
    ----------
    sync
        The sync mode of every store.
    steps_total, examples
        How many rules ran, in how many histories.
    """

    sync = "interval"
    steps_total = 0
    examples = 0

    @initialize(
        grace=st.sampled_from(("0s", "0s", "1h")), orders=st.integers(1, 2), moved=st.sampled_from((0, 2, 3))
    )
    def start(self, grace: str, orders: int, moved: int) -> None:
        """Some records lie in every tier from the start in most histories, which by single rules takes long."""
        type(self).examples += 1
        self.count = 0
        self.world = World(self.sync, grace)
        self.life.create("orders", partitions=orders)
        for _ in range(moved):
            self.life.append("orders", *self.values(3))
            self.move_everything("orders")
        if moved:
            self.life.append("orders", *self.values(2))
        self.begin()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    @property
    def life(self) -> Life:
        """The machine that owns the lineage."""
        return self.world.life

    @invariant()
    def counted(self) -> None:
        type(self).steps_total += 1

    def begin(self) -> None:
        self.world.begin()

    def values(self, count: int) -> range:
        """Values that no other record has."""
        self.count += count
        return range(self.count - count, self.count)

    def topic(self, name: str) -> str:
        """A topic that is there."""
        found = self.life.topics()
        return name if name in found else min(found)

    def partition(self, name: str, number: int) -> int:
        return number % len(self.life.topics()[name].logs)

    def has_topics(self) -> bool:
        return bool(self.life.topics())

    # -- appending ---------------------------------------------------------------------------------

    @precondition(has_topics)
    @rule(name=names, partition=partitions, count=st.integers(1, 4), sync=st.sampled_from((None, None, True)))
    def append(self, name: str, partition: int, count: int, sync: bool | None) -> None:
        self.begin()
        name = self.topic(name)
        self.life.append(name, *self.values(count), partition=self.partition(name, partition), sync=sync)

    @precondition(has_topics)
    @rule(
        name=names,
        partition=partitions,
        count=st.sampled_from((1, 5, 60)),
        sync=st.sampled_from((None, True)),
    )
    def append_batch(self, name: str, partition: int, count: int, sync: bool | None) -> None:
        self.begin()
        name = self.topic(name)
        self.life.batch(name, *self.values(count), partition=self.partition(name, partition), sync=sync)

    @rule()
    def flush(self) -> None:
        self.begin()
        self.life.flush()

    @precondition(has_topics)
    @rule(name=names)
    def roll(self, name: str) -> None:
        self.begin()
        self.life.roll(self.topic(name))

    # -- moving and removing -----------------------------------------------------------------------

    @rule(ahead_us=passes)
    def tier(self, ahead_us: int) -> None:
        self.begin()
        self.life.pass_(ahead_us)

    @precondition(has_topics)
    @rule(name=names)
    def move_everything(self, name: str) -> None:
        """Seal, ship and evict, which by single rules is rare."""
        self.life.roll(self.topic(name))
        self.life.pass_(OFFLOAD_US)
        self.begin()
        self.life.pass_(EVICT_US)

    @rule(ahead_us=passes)
    def tier_in_another_process(self, ahead_us: int) -> None:
        self.begin()
        with self.life.tierer() as store:
            self.life.pass_(ahead_us, store)

    @precondition(has_topics)
    @rule(name=names, partition=partitions, share=st.sampled_from((1.0,)) | st.floats(0, 1))
    def delete_before(self, name: str, partition: int, share: float) -> None:
        self.begin()
        name = self.topic(name)
        partition = self.partition(name, partition)
        log = self.life.topics()[name].logs[partition]
        low = min(
            log.start[1], log.end
        )  # a start that only the bucket may have can lie beyond what a crash left
        self.life.delete_before(name, low + round(share * (log.end - low)), partition)

    @rule()
    def sweep(self) -> None:
        self.begin()
        self.life.sweep()

    # -- topics ------------------------------------------------------------------------------------

    @rule(name=names, count=st.integers(1, 2))
    def create_topic(self, name: str, count: int) -> None:
        self.begin()
        if name not in self.life.topics():
            self.life.create(name, count, ("a",) if name == "rows" else ())

    @precondition(has_topics)
    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        if len(self.life.topics()) < 2 and self.count % 3:
            return  # else half of all histories have nothing to do
        self.begin()
        self.life.delete(self.topic(name))

    @precondition(lambda self: "rows" in self.life.topics())
    @rule()
    def add_column(self) -> None:
        columns = self.life.topics()["rows"].columns
        if len(columns) < 4:
            self.begin()
            self.life.add_column("rows", "abcdefgh"[len(columns)])

    @precondition(has_topics)
    @rule(name=names)
    def add_partition(self, name: str) -> None:
        name = self.topic(name)
        if len(self.life.topics()[name].logs) < PARTITIONS_MAX:
            self.begin()
            self.life.add_partition(name)

    # -- ends and beginnings -----------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.begin()
        for scan in [scan for scan in self.world.held if scan.store is self.life.store]:
            self.world.held.remove(scan)
        self.life.close()
        self.life.open()

    # -- reading -----------------------------------------------------------------------------------

    def unless_away(self, work: Callable[[], None]) -> None:
        """Read; what lies in the bucket alone cannot be had while that does not answer."""
        try:
            work()
        except tiered.ColdStorageError:
            if not self.world.cloud.away:
                raise

    @rule()
    def scan(self) -> None:
        self.begin()
        self.unless_away(self.life.scan)

    @rule()
    def scan_beside(self) -> None:
        self.begin()
        self.unless_away(self.life.scan_beside)

    @rule(deep=st.booleans())
    def verify(self, deep: bool) -> None:
        self.begin()
        self.life.verify(deep=deep)
