"""The stories that are explored. Each sets a world up by real calls, one after the other, and then lets actors loose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID, uuid5

from tests.protocol.bucket import BUSY, KILLED, OWN_412, TIMEOUT, TWICE, Killed
from tests.protocol.engine import (
    STORE,
    Disk,
    Meta,
    Model,
    ModelAccess,
    Process,
    Segment,
    new_model,
    restore,
)
from tests.protocol.explorer import World
from tests.protocol.invariants import GRACE, Watch, head_of, hold
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.restore_intent import INTENT_SECONDS_MAX
from tiered.cold.manifest.store_documents import DELETED, StoreDocuments
from tiered.cold.upkeep.sweep import SweepRules, sweep_deleted_topic
from tiered.errors import ColdStorageError, Fenced, TieredError
from tiered.policies.actions import ShipTail

LOST = (TIMEOUT, OWN_412, TWICE)
Faulty = Callable[[str, str, str], tuple[str, ...]]


def on_heads(process: str, verb: str, key: str) -> tuple[str, ...]:
    """Whatever can happen to a PUT of the head."""
    return LOST if verb == "put" and key.endswith("head.json") else ()


def on_data(process: str, verb: str, key: str) -> tuple[str, ...]:
    """Whatever can happen to an upload; a DELETE may come late."""
    if verb == "put" and key.endswith(".parquet"):
        return LOST
    return (TIMEOUT,) if verb == "delete" else ()


def on_writes(process: str, verb: str, key: str) -> tuple[str, ...]:
    """Whatever can happen to any PUT or DELETE."""
    return LOST if verb == "put" else (TIMEOUT,) if verb == "delete" else ()


def on_head_requests(process: str, verb: str, key: str) -> tuple[str, ...]:
    """PUTs of the head and reads of it, which may stay without an answer, too."""
    return on_heads(process, verb, key) or ((BUSY,) if verb == "get" and key.endswith("head.json") else ())


def in_restores(process: str, verb: str, key: str) -> tuple[str, ...]:
    """A restore dies before any of its PUTs."""
    return (KILLED,) if process == "twin" and verb == "put" else ()


class Stage:
    """A model with a watch, and what most stories begin with.

    Parameters
    ----------
    images
        Disks by name, as copies of one disk: each has the same segments, of the same ids.
    """

    def __init__(
        self,
        world: World,
        faulty: Faulty = on_heads,
        *,
        images: tuple[str, ...] = ("a",),
        shared: bool = False,
        grace: float = GRACE,
    ) -> None:
        self.world = world
        self.model: Model = new_model(world)
        self.model.bucket.faulty = faulty
        self.disks = {name: self.model.disk(name, shared=shared) for name in images}
        self.watch = Watch(self.model, grace=grace)
        self.segments: list[Segment] = []

    @property
    def disk(self) -> Disk:
        return next(iter(self.disks.values()))

    def fill(self, *counts: int) -> list[Segment]:
        """Append to the first disk, seal, and copy the image to the others."""
        self.disk.fill(*counts)
        for other in list(self.disks.values())[1:]:
            for segment in self.disk.segments.values():
                other.segments[segment.path.name] = Segment(
                    segment.header, segment.records, segment.facts, other.directory / segment.path.name
                )
            other.appended, other.rolled = dict(self.disk.appended), other.sealed()
        return self.disk.sealed()

    def process(self, name: str, disk: Disk | None = None) -> Process:
        return Process(self.model, name, disk or self.disks.get(name) or self.disk)

    def actor(self, process: Process, work: Callable[[], object], name: str = "") -> None:
        """Let a process do something that may be refused with an error; with a name, as one of its threads."""
        memory = process.memory if name else None
        self.world.actor(name or process.name, lambda: process.attempt(work), process.name, memory)

    def reader(self, disk: Disk | None = None, name: str = "reader", start: int | None = None) -> None:
        """Let a reader of another process take a snapshot and read it."""

        def work() -> None:
            access = ModelAccess(self.model, disk)
            self.watch.read(access, start, disk.appended if disk is not None else None)

        self.world.actor(name, work)

    def offloads(self, process: Process, *numbers: int, evict: bool = True) -> Callable[[], None]:
        """Offload sealed segments; whoever is told that it worked relies on it."""

        def work() -> None:
            chosen = [process.disk.rolled[number] for number in numbers]
            if not process.offload(*chosen, evict=evict):
                for segment in chosen:
                    self.watch.acknowledged(segment)

        return work

    def quiet(self, disk: Disk | None = None) -> None:
        """At the end, a fresh process tiers on."""
        self.world.endings.append(lambda: self.watch.quiet(self.process("last", disk)))


# -- commits ----------------------------------------------------------------------------------------


def same_segment(world: World) -> None:
    """Two tierers, each with an image of the same disk, offload the same segment and evict it."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(2)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    assert one.committer
    stage.actor(one, stage.offloads(one, 0))
    stage.actor(two, stage.offloads(two, 0))
    stage.quiet(stage.disks["two"])


def same_disk(world: World) -> None:
    """Two tierers without locks on one disk, each look at which is a step; one was fenced before it knows."""
    stage = Stage(world, shared=True)
    stage.fill(2)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    assert one.committer
    assert two.committer
    stage.actor(one, stage.offloads(one, 0))
    stage.actor(two, stage.offloads(two, 0))
    stage.quiet()


def late_head(world: World) -> None:
    """PUTs of the head that land after they timed out, and 412s of one's own success; a reader looks on."""
    stage = Stage(world, on_head_requests)
    stage.fill(2, 1)
    one = stage.process("one")
    assert one.committer

    def work() -> None:
        stage.offloads(one, 0)()
        stage.offloads(one, 1)()

    stage.actor(one, work)
    stage.reader()
    stage.quiet()


def late_head_of_the_fenced(world: World) -> None:
    """A PUT of the head is late, and meanwhile another tierer claims and goes on."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(1, 1)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    assert one.committer
    stage.actor(one, stage.offloads(one, 0))
    stage.actor(two, stage.offloads(two, 0, 1, evict=False))
    stage.quiet(stage.disks["two"])


def late_object(world: World) -> None:
    """An upload that lands after it timed out, or twice; the tierer offloads anew and sweeps meanwhile."""
    stage = Stage(world, on_data)
    stage.fill(2)
    one = stage.process("one")
    assert one.committer
    stage.model.bucket.passing_time(GRACE, 2)

    def work() -> None:
        if one.offload(evict=True):
            stage.offloads(one, 0)()
        one.sweep(GRACE)
        one.sweep(GRACE)

    stage.actor(one, work)
    stage.reader()
    stage.quiet()


def spill(world: World) -> None:
    """Commits that write pages, by two tierers; the pages of the one that fails are swept in the end."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(1, 1, 1, 1)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    one.offload(*one.disk.sealed()[:2])
    stage.actor(one, stage.offloads(one, 2, 3, evict=False))
    stage.actor(two, stage.offloads(two, 2, evict=False))
    stage.quiet(stage.disks["two"])


def claims(world: World) -> None:
    """Two tierers claim the same partition for the first time and offload."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(1)
    for name in ("one", "two"):
        process = stage.process(name)
        process.announce()
        stage.actor(process, stage.offloads(process, 0))
    stage.quiet(stage.disks["two"])


def claim_again(world: World) -> None:
    """Three committers that claim and publish whatever the end is then; no two publish the same offsets."""
    stage = Stage(world)
    stage.disk.create(0)
    base = stage.process("base")
    base.announce()
    assert base.committer

    for name in ("one", "two"):
        disk = stage.model.disk(name)
        disk.segments = dict(stage.disk.segments)

        def work(name: str = name) -> None:
            cold = PartitionManifest(stage.model.store(), "t", stage.watch.meta.topic_id, 0)
            committer = Committer(cold, STORE, clock=lambda: 0)
            for _ in range(2):
                try:
                    epoch = committer.claim(lineage_epoch=1)
                    hold(head_of(stage.model).epoch >= epoch, "P7: a claim that returned is not published")
                    committer.settle()
                except TieredError as error:
                    stage.watch.check_error(error)

        world.actor(name, work)
    stage.quiet()


def first_reader(world: World) -> None:
    """A reader of the bucket alone, while the first head is made and the first object arrives."""
    stage = Stage(world)
    stage.fill(1)
    one = stage.process("one")
    one.announce()
    stage.actor(one, stage.offloads(one, 0))
    stage.reader()
    stage.quiet()


def claim_alone(world: World) -> None:
    """One committer that claims twice, and whose answers get lost: each claim takes one epoch."""
    stage = Stage(world, on_head_requests)
    stage.disk.create(0)
    base = stage.process("base")
    base.announce()
    assert base.committer
    cold = PartitionManifest(stage.model.store(), "t", stage.watch.meta.topic_id, 0)
    committer = Committer(cold, STORE, clock=lambda: 0)
    first = head_of(stage.model).epoch

    def work() -> None:
        for count in (1, 2):
            base.attempt(lambda: committer.claim(lineage_epoch=1))
            hold(stage.watch.heads[-1][1].epoch - first <= count, "P7: one claim took several epochs")

    world.actor("one", work)
    stage.quiet()


def late_head_swept(world: World) -> None:
    """A PUT of the head is late, and its committer sweeps: what it names is no orphan as long as it can land."""
    stage = Stage(world)
    stage.fill(1)
    one = stage.process("one")
    assert one.committer
    stage.model.bucket.passing_time(GRACE)

    def work() -> None:
        one.offload()
        one.attempt(lambda: one.sweep(GRACE))
        one.attempt(lambda: one.sweep(GRACE))

    stage.actor(one, work)
    stage.quiet()


# -- sweeps -----------------------------------------------------------------------------------------


def stalled_upload(world: World) -> None:
    """A tierer stalls anywhere in an offload; another has claimed, sweeps, and offloads; the first wakes up."""
    stage = Stage(world, on_data, images=("one", "two"))
    stage.fill(2)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    stalled = one.committer
    assert two.committer
    # It found its epoch before the other's claim, and has not looked since.
    one.claims.committer = lambda handle, **_: stalled  # type: ignore[method-assign]
    stage.model.bucket.passing_time(GRACE)
    stage.actor(one, stage.offloads(one, 0))

    def work() -> None:
        two.sweep(GRACE)
        two.sweep(GRACE)
        stage.offloads(two, 0)()

    stage.actor(two, work)
    stage.quiet(stage.disks["two"])


def slow_upload(world: World) -> None:
    """A sweep in the same process and epoch, while an upload takes longer than the grace period."""
    stage = Stage(world, on_data)
    stage.fill(1, 1)
    one = stage.process("one")
    one.offload(one.disk.sealed()[0])
    stage.model.bucket.passing_time(GRACE)
    stage.actor(one, stage.offloads(one, 1), "tierer")
    stage.actor(one, lambda: one.sweep(GRACE), "sweeper")
    stage.quiet()


def sweep_at_once(world: World) -> None:
    """A sweep without any grace, while another thread offloads: only readers need the grace, no committer does."""
    stage = Stage(world, on_data, grace=0)
    stage.fill(1, 1)
    one = stage.process("one")
    one.offload(one.disk.sealed()[0])
    stage.actor(one, stage.offloads(one, 1), "tierer")
    stage.actor(one, lambda: one.sweep(0), "sweeper")
    stage.quiet()


def sweep_and_claim(world: World) -> None:
    """A sweeper stalls before its DELETE, which may be late, too; another claims, offloads, and sweeps."""
    stage = Stage(world, on_data, images=("one", "two"))
    stage.fill(1, 1)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    two.announce()
    one.offload(one.disk.sealed()[0])
    orphan = one.committer.new_object_name(1)
    one.access.object_store.put(one.committer.partition.keys.data(orphan), b"{}")
    one.committer.release([orphan])
    one.sweep(GRACE)
    stage.model.bucket.now += GRACE
    stage.actor(one, lambda: one.sweep(GRACE))

    def work() -> None:
        stage.offloads(two, 1)()
        two.sweep(GRACE)

    stage.actor(two, work)
    stage.quiet(stage.disks["two"])


def tail_replaced(world: World) -> None:
    """The sealed whole replaces a shipped tail and a sweep runs, while a reader holds the head that names the tail."""
    stage = Stage(world, on_data)
    stage.disk.create(0)
    stage.disk.append(1)
    one = stage.process("one")
    one.ship_tail()
    stage.disk.append(1)
    stage.disk.roll()
    stage.model.bucket.passing_time(GRACE, 2)

    def work() -> None:
        stage.offloads(one, 0)()
        one.sweep(GRACE)
        one.sweep(GRACE)

    stage.actor(one, work)
    stage.reader()
    stage.quiet()


def tails_beside_a_full_pass(world: World) -> None:
    """One thread ships the rest of a sealed segment and the tail of the next; another offloads the whole, and evicts it."""
    stage = Stage(world, on_data)
    stage.disk.create(0)
    stage.disk.append(1)
    one = stage.process("one")
    one.ship_tail()
    stage.disk.append(1)
    sealed = stage.disk.newest
    stage.disk.roll()
    stage.disk.append(1)

    def tails() -> None:
        one.run(one.act(ShipTail, sealed, 1, 2))
        one.ship_tail()

    stage.actor(one, tails, "tails")
    stage.actor(one, stage.offloads(one, 0), "full")
    stage.quiet()


def tails_by_two(world: World) -> None:
    """A process ships tails by the head that it knows; another one of the same disk, or of an image, ships them too."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(1, 1)
    one, two = stage.process("one"), stage.process("two")
    one.offload(one.disk.sealed()[0])
    first, second = stage.disk.rolled

    def work(process: Process) -> Callable[[], None]:
        def ship() -> None:
            for segment in (first, second):
                process.run(process.act(ShipTail, segment, segment.header.base_offset, segment.end_offset))

        return ship

    stage.actor(one, work(one))
    stage.actor(two, work(two))
    stage.quiet()


def retention(world: World) -> None:
    """The start offset moves up, while an offload of the same process goes on and a reader reads."""
    stage = Stage(world)
    stage.fill(1, 1, 1)
    one = stage.process("one")
    one.offload(*one.disk.sealed()[:2])
    stage.actor(one, stage.offloads(one, 2, evict=False), "tierer")
    stage.actor(one, lambda: one.expire(1), "retention")
    stage.reader()
    stage.quiet()


def retention_swept(world: World) -> None:
    """What lies below a new start offset is swept under a reader's eyes, however long it holds its snapshot."""
    stage = Stage(world, on_data)
    stage.fill(1, 1)
    one = stage.process("one")
    one.offload()
    stage.model.bucket.passing_time(GRACE)

    def work() -> None:
        one.expire(1)
        one.sweep(GRACE)

    stage.actor(one, work)
    stage.reader()
    stage.quiet()


# -- local disks ------------------------------------------------------------------------------------


def evicted_while_listed(world: World) -> None:
    """A segment is offloaded and evicted, and the next one sealed, while another process takes a snapshot of all."""
    stage = Stage(world, shared=True)
    stage.fill(1)
    stage.disk.append(1)
    one = stage.process("one")
    one.announce()
    assert one.committer
    stage.actor(one, stage.offloads(one, 0))

    def write() -> None:
        stage.disk.append(1)
        stage.disk.roll()

    stage.world.actor("writer", write)
    stage.reader(stage.disk)
    stage.reader(name="far reader")
    stage.quiet()


# -- lineages ---------------------------------------------------------------------------------------


def restored_twin(world: World) -> None:
    """A restore elsewhere, whose store goes on, while the old host appends and offloads."""
    stage = Stage(world, images=("old", "twin"))
    old_disk, twin_disk = stage.disks["old"], stage.disks["twin"]
    old_disk.fill(1, 1)
    old = stage.process("old")
    old.offload(old_disk.sealed()[0])

    def old_work() -> None:
        stage.offloads(old, 1)()
        old_disk.append(1)
        old_disk.roll()
        stage.offloads(old, -1)()

    done: list[bool] = []

    def twin_work() -> None:
        restore(twin_disk)
        done.append(True)
        twin = stage.process("twin")
        twin_disk.fill(1)
        stage.offloads(twin, 0)()

    stage.actor(old, old_work)
    world.actor("twin", lambda: old.attempt(twin_work))
    _end_of_restore(stage, old, twin_disk, done)


def evicted_under_a_twin(world: World) -> None:
    """The old host evicts by a plan from before a restore, while the twin publishes other records at those offsets."""
    stage = Stage(world, images=("old", "twin"))
    old_disk, twin_disk = stage.disks["old"], stage.disks["twin"]
    old_disk.fill(1, 1)
    old = stage.process("old")
    old.offload(old_disk.sealed()[0])
    restore(twin_disk)
    twin_disk.fill(1)
    twin = stage.process("twin")
    assert twin.committer
    stage.actor(old, lambda: old.run(*old.evictions()))
    stage.actor(twin, stage.offloads(twin, 0))
    _end_of_restore(stage, old, twin_disk, [True])


def evicted_from_an_image(world: World) -> None:
    """An old image of the disk, in which other records were appended, evicts while the store publishes its own."""
    stage = Stage(world, images=("one", "two"))
    stage.fill(1)
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    one.offload()
    for disk in stage.disks.values():
        del disk.segments[disk.newest.path.name]
        disk.create(1)
        disk.fill(1)
    assert one.committer
    stage.actor(one, stage.offloads(one, 1))
    stage.actor(two, lambda: two.run(*two.evictions()))
    stage.quiet()


def two_copies(world: World) -> None:
    """Two copies of one disk, whose newest segment is one, publish its tail and its whole, each with its own records."""
    stage = Stage(world, images=("one", "two"))
    stage.disk.create(0)
    stage.disk.append()
    stage.fill()
    one, two = stage.process("one"), stage.process("two")
    one.announce()
    one.ship_tail()

    def work(process: Process) -> None:
        process.disk.append()
        process.ship_tail()
        process.disk.roll()
        process.offload(evict=True)

    for process in (one, two):
        stage.actor(process, lambda process=process: work(process))
    world.endings.append(
        lambda: hold(
            len([disk for disk in stage.disks.values() if disk.fence is not None]) <= 1,
            "both copies are fenced",
        )
    )


def first_pass_and_restore(world: World) -> None:
    """A topic is announced and claimed for the first time while the store is restored elsewhere."""
    stage = Stage(world, images=("old", "twin"))
    old_disk, twin_disk = stage.disks["old"], stage.disks["twin"]
    old_disk.fill(1)
    old = stage.process("old")
    old.claims.store._own_prefix(StoreDocuments(stage.model.store()))

    done: list[bool] = []

    def twin_work() -> None:
        restore(twin_disk)
        done.append(bool(twin_disk.segments))
        if twin_disk.segments:  # else the topic was not in the bucket yet
            twin_disk.fill(1)
            stage.offloads(stage.process("twin"), 0)()

    stage.actor(old, stage.offloads(old, 0))
    world.actor("twin", lambda: old.attempt(twin_work))
    _end_of_restore(stage, old, twin_disk, done)


def two_restores(world: World) -> None:
    """Two restores of one store at the same time: the one that began is the store in the end."""
    _two_restores(world)


def two_restores_in_turn(world: World) -> None:
    """The second begins once nobody believes the first any more, which goes on: one of them is the store in the end."""
    _two_restores(world, INTENT_SECONDS_MAX + 1)


def _two_restores(world: World, passing_seconds: float = 0.0) -> None:
    stage = Stage(world, images=("old", "twin", "other"))
    if passing_seconds:
        stage.model.bucket.passing_time(passing_seconds)
    old = stage.process("old")
    stage.disks["old"].fill(1)
    old.offload()
    made: list[str] = []
    world.remembered |= {"twin", "other"}
    for name in ("twin", "other"):
        disk = stage.disks[name]

        def work(name: str = name, disk: Disk = disk) -> None:
            restore(disk)
            made.append(name)
            disk.fill(1)

        world.actor(name, lambda work=work: old.attempt(work))

    def ending() -> None:
        store = StoreDocuments(stage.model.store())
        newest = store._lineage("", store._read("store.json")[0])  # type: ignore[index]
        disk = next((stage.disks[name] for name in made if stage.disks[name].store_lineage == newest), None)
        stage.watch.quiet(stage.process("last", disk or _repeated(stage)))

    world.endings.append(ending)


def restore_beside_a_busy_host(world: World) -> None:
    """A store looks for a restore before each commit, and commits whenever it does not see one."""
    _restore_beside(world, passing=False)


def restore_that_dies(world: World) -> None:
    """A restore dies, or stands still until nobody believes it any more: its store goes on, from another process too."""
    _restore_beside(world, passing=True)


def _restore_beside(world: World, *, passing: bool) -> None:
    stage = Stage(world, in_restores, images=("old", "twin"))
    old_disk, twin_disk = stage.disks["old"], stage.disks["twin"]
    old_disk.fill(1, 1)
    old = stage.process("old")
    old.look_always()
    old.offload(old_disk.sealed()[0])
    if passing:
        stage.model.bucket.passing_time(INTENT_SECONDS_MAX + 1)

    def old_work() -> None:
        stage.offloads(old, 1, evict=False)()
        if passing:
            # As a new process does, and where the topic grows: this takes the bucket back.
            old.claims.store._owns_prefix = False
            old.attempt(old.announce)

    done: list[bool] = []

    def twin_work() -> None:
        with suppress(Killed):
            restore(twin_disk)
            done.append(True)
            twin_disk.fill(1)

    stage.actor(old, old_work)
    world.actor("twin", lambda: old.attempt(twin_work))
    world.remembered |= {"old", "twin"}

    def ending() -> None:
        stage.model.bucket.now += INTENT_SECONDS_MAX + 1
        if any(done):
            stage.watch.quiet(stage.process("last", twin_disk))
            hold(
                stage.process("old again", old_disk).offload(),
                "P7: a store that was restored elsewhere publishes",
            )
        elif head_of(stage.model).lineage_epoch == 1:
            failed = stage.process("old again", old_disk).offload()
            hold(not failed, f"nobody is in charge: {failed}")
            hold(old_disk.fence is None, "fenced by a restore that came to nothing")
            stage.watch.quiet(stage.process("last", old_disk))
        else:
            stage.watch.quiet(stage.process("last", _repeated(stage)))

    world.endings.append(ending)


def announced_beside_a_restore(world: World) -> None:
    """A topic is announced for the first time, while a restore dies or stands still until nobody believes it."""
    stage = Stage(world, in_restores, images=("old", "twin"))
    old_disk, twin_disk = stage.disks["old"], stage.disks["twin"]
    old_disk.fill(1)
    old = stage.process("old")
    old.claims.store._own_prefix(StoreDocuments(stage.model.store()))
    stage.model.bucket.passing_time(INTENT_SECONDS_MAX + 1)
    done: list[bool] = []

    def twin_work() -> None:
        with suppress(Killed):
            restore(twin_disk)
            done.append(True)
            if twin_disk.segments:
                twin_disk.fill(1)

    stage.actor(old, stage.offloads(old, 0, evict=False))
    world.actor("twin", lambda: old.attempt(twin_work))
    world.remembered |= {"old", "twin"}

    def ending() -> None:
        stage.model.bucket.now += INTENT_SECONDS_MAX + 1
        if any(done):
            if twin_disk.segments:
                stage.watch.quiet(stage.process("last", twin_disk))
            hold(
                stage.process("old again", old_disk).offload(),
                "P7: a store that was restored elsewhere publishes",
            )
            hold(
                twin_disk.segments or not stage.watch.published,
                "P9: a restore knows nothing of what was published",
            )
        elif not stage.watch.heads or stage.watch.heads[-1][1].lineage_epoch == 1:
            failed = stage.process("old again", old_disk).offload()
            hold(not failed, f"nobody is in charge: {failed}")
            stage.watch.quiet(stage.process("last", old_disk))
        else:
            stage.watch.quiet(stage.process("last", _repeated(stage)))

    world.endings.append(ending)


def _repeated(stage: Stage) -> Disk:
    """What the user does after a restore that was cut short: the same again."""
    disk = stage.model.disk("repeated")
    disk.evicting = stage.disk.evicting
    stage.model.bucket.now += INTENT_SECONDS_MAX + 1  # or where it was cut short, at once
    restore(disk)
    if disk.segments:  # else the topic never got into the bucket
        disk.fill(1)
    return disk


def _end_of_restore(stage: Stage, old: Process, twin_disk: Disk, done: list[bool]) -> None:
    stage.world.remembered |= {"old", "twin"}

    def ending() -> None:
        bucket = stage.model.bucket
        disk = twin_disk if any(done) else _repeated(stage)
        last = stage.process("last", disk)
        if not disk.segments:
            hold(not stage.watch.published, "P9: a restore knows nothing of what was published")
            return
        stage.watch.quiet(last)
        before = dict(bucket.objects)
        # Whatever the old host still tries changes nothing.
        stage.process("old again", old.disk).offload(evict=True)
        old.offload(evict=True)
        with suppress(Fenced, ColdStorageError):
            old.sweep(GRACE)
        hold(bucket.objects == before, "P7: a store that was restored elsewhere changed the bucket")

    stage.world.endings.append(ending)


# -- topics -----------------------------------------------------------------------------------------


def created_again(world: World) -> None:
    """A topic is deleted and created again; a stalled tierer of the first one publishes; its remains are swept."""
    stage = Stage(world)
    stage.disk.fill(1, 1)
    again = Meta(topic_id=uuid5(STORE, "again"))
    new_disk = stage.model.disk("new", meta=again)
    new_disk.fill(1)
    new_watch = Watch(stage.model, again)
    old = stage.process("old")
    old.offload(old.disk.sealed()[0])
    new = stage.process("new", new_disk)
    world.remembered.add("new")
    stage.model.bucket.passing_time(GRACE)
    stage.actor(old, stage.offloads(old, 1))
    bucket = StoreDocuments(stage.model.store())

    def write_tombstone(now: float) -> None:
        rules = SweepRules(now, GRACE)
        if DELETED in (bucket.read_topic("t", stage.watch.meta.topic_id) or {}):
            sweep_deleted_topic(bucket.store, "t", stage.watch.meta.topic_id, rules, dry_run=False)

    def work() -> None:
        new.claims.store.write_tombstone(stage.watch.meta)  # type: ignore[arg-type]
        if not new.offload():
            new_watch.acknowledged(new_disk.sealed()[0])
        write_tombstone(stage.model.bucket.now)

    stage.actor(new, work)

    def ending() -> None:
        stage.model.bucket.now += GRACE
        for request in list(world.underway.values()):
            request.take("ok")
        stage.model.bucket.now += GRACE
        new.claims.store.write_tombstone(stage.watch.meta)  # type: ignore[arg-type]
        stage.model.bucket.now += GRACE
        write_tombstone(stage.model.bucket.now)
        prefix = f"t/{stage.watch.meta.topic_id}/"
        left = [key for key in stage.model.bucket.objects if key.startswith(prefix)]
        hold(left == [f"{prefix}topic.json"], f"of the deleted topic stays {left}")
        new_watch.quiet(stage.process("last", new_disk))
        hold(UUID(bucket.topics()["t"]["id"]) == again.topic_id, "the deleted topic came back")

    world.endings.append(ending)
