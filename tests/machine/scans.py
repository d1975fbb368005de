"""The rules for scans that are held open."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.machine.held import HeldScan
from tests.machine.machine import StoreMachine, names
from tests.support.topic_model import Log

HELD_MAX = 8


class Scans(StoreMachine):
    """Scans are held open by the writer, by another process and from the bucket alone."""

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                for scan in list(self.world.held):
                    self.finish(scan)
            finally:
                super().teardown()

    @precondition(lambda self: self.has_topics() and len(self.world.held) < HELD_MAX)
    @rule(name=names, wheres=st.sets(st.sampled_from(("own", "beside", "bucket")), min_size=1))
    def begin_scans(self, name: str, wheres: set[str]) -> None:
        self.begin()
        for where in sorted(wheres):
            self.unless_away(lambda where=where: self._begin_scan(self.topic(name), where))

    def _begin_scan(self, name: str, where: str) -> None:
        life = self.life
        logs = life.topics()[name].logs
        highs = [log.end for log in logs]
        if where == "own":
            life._drain()
            self.world.held.append(HeldScan.begin(life, life.store, name, highs, highs))
            self._shown(logs, highs)
            return
        if where == "bucket" and not self.world.claimed:
            return
        store = life.reader() if where == "beside" else life.bucket_reader()
        try:
            published = [life.published.get((name, partition), 0) for partition in range(len(logs))]
            if where == "bucket" and name not in store.topics() and not any(published):
                store.close()
                return
            lows = [log.shown for log in logs] if where == "beside" else published
            scan = HeldScan.begin(life, store, name, lows, highs)
        except BaseException:
            store.close()
            raise
        self.world.held.append(scan)
        if where == "beside":
            self._shown(logs, [end for _, (_, end) in sorted(scan.bounds.items())])

    def _shown(self, logs: list[Log], ends: list[int]) -> None:
        for log, end in zip(logs, ends, strict=True):
            log.shown = max(log.shown, end)
            if self.sync != "never":
                log.acknowledged = max(log.acknowledged, end)
        self.life.model.mark()

    @precondition(lambda self: self.world.held)
    @rule(number=st.integers(0, HELD_MAX))
    def read_some_more(self, number: int) -> None:
        self.begin()
        scan = self.world.held[number % len(self.world.held)]
        scan.read_some()
        if scan.error is not None:
            self.finish(scan)

    @precondition(lambda self: self.world.held)
    @rule(number=st.integers(0, HELD_MAX))
    def finish_scan(self, number: int) -> None:
        self.begin()
        self.finish(self.world.held[number % len(self.world.held)])

    def finish(self, scan: HeldScan) -> None:
        self.world.held.remove(scan)
        name = scan.topic.name
        same = scan.life is self.life and name in self.life.topics()
        same = same and self.life.store.topic(name).opened.meta.topic_id == scan.topic_id
        try:
            scan.finish(self.life.topics()[name].logs if same else None)
        finally:
            scan.close()
