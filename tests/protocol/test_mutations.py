"""The explorer finds what it should: each mechanism of the protocol taken away shows in some schedule, which is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from tests.protocol import scenarios
from tests.protocol.engine import engine, small_pages
from tests.protocol.explorer import World, explore
from tests.support.mutations import unlink
from tests.support.tally import tally
from tiered.cold.manifest import commit, store_documents
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import ObjectName
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.restores import IntentHolder, IntentWatch
from tiered.cold.upkeep.sweep import PartitionSweeper
from tiered.errors import ColdStorageError, PreconditionFailed
from tiered.reader.same_log import Likeness, SameLog
from tiered.tiering.partition_handle import PartitionHandle
from tiered.tiering.publish_actions import PublishActions


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with engine() as patch:
        small_pages(patch, 2)
        yield patch


def found(words: str, story: Callable[[World], None], faults: int = 0) -> None:
    result = explore(story, faults=faults, after_violation=300, schedules_max=20_000)
    assert result.violation, f"nothing found in {result}"
    assert words in result.violation, str(result)
    print(result)
    tally("protocol mutations", found=1, schedules=result.schedules)


def test_deleting_the_local_file_before_it_is_published(patch: pytest.MonkeyPatch) -> None:
    offload = PublishActions.offload

    def careless(self, action):
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        unlink(self, handle, handle.sealed(action))
        return offload(self, action)

    patch.setattr(PublishActions, "offload", careless)
    found("P5", scenarios.late_head)


def test_using_an_object_name_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Committer,
        "new_object_name",
        lambda self, base: str(ObjectName(base, self.epoch, UUID(int=base))),
    )
    found("is not dense", scenarios.tail_replaced)


def test_treating_a_timeout_as_a_failure(patch: pytest.MonkeyPatch) -> None:
    """The PUT lands after a sweep found nothing that could still name the object."""

    def publish(self, plan, base, **_):
        planned = plan(base.head if base else None)
        if base is not None and planned == base.head:
            return base.head
        try:
            return self._put(base, self._propose(base, planned))
        except PreconditionFailed as error:
            raise ColdStorageError(str(error), retryable=True) from error
        finally:
            self._doubt = None

    patch.setattr(Committer, "_publish", publish)
    found("P6", scenarios.late_head_swept, faults=1)


def test_sweeping_by_a_head_that_was_read_before_the_list(patch: pytest.MonkeyPatch) -> None:
    def sweep(self, committer):
        loaded, in_flight = committer.survey()
        listed = list(self.partition.store.list(self.partition.keys.prefix))
        plan = self._plan(loaded.head, listed, committer.epoch, in_flight)
        if plan.due:
            self.partition.store.delete(item.key for item in plan.due)
        return self._report(plan)

    patch.setattr(PartitionSweeper, "sweep", sweep)
    found("P6", scenarios.sweep_at_once)


def test_sweeping_without_grace(patch: pytest.MonkeyPatch) -> None:
    plan = PartitionSweeper._plan

    def at_once(self, *args):
        self.rules = replace(self.rules, grace_seconds=0)
        return plan(self, *args)

    patch.setattr(PartitionSweeper, "_plan", at_once)
    found("P6: a live object was deleted", scenarios.tail_replaced)


def test_sweeping_own_uploads_in_flight(patch: pytest.MonkeyPatch) -> None:
    survey = Committer.survey
    patch.setattr(Committer, "survey", lambda self: (survey(self)[0], frozenset()))
    found("P6", scenarios.slow_upload)


@pytest.mark.extended
def test_sweeping_while_a_commit_may_still_land(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "unsettled", property(lambda self: False))
    patch.setattr(
        PartitionSweeper,
        "sweep",
        _without_settling,
    )
    found("P6", scenarios.late_head_swept, faults=2)


def _without_settling(self, committer):
    listed = list(self.partition.store.list(self.partition.keys.prefix))
    loaded, in_flight = committer.survey()
    plan = self._plan(loaded.head, listed, committer.epoch, in_flight)
    if plan.due:
        self.partition.store.delete(item.key for item in plan.due)
    return self._report(plan)


@pytest.mark.extended
def test_committing_without_a_look_at_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """The old host publishes into the lineage of the restored twin."""
    patch.setattr(Committer, "_check_owner", lambda self, head: head)
    found("P1", scenarios.restored_twin)


def test_writing_the_head_without_a_condition(patch: pytest.MonkeyPatch) -> None:
    def put(self, base, proposal):
        etag = self.partition.store.put(self.partition.keys.head, commit.encode_head(proposal))
        self._known = commit.LoadedHead(proposal, etag)
        return proposal

    patch.setattr(Committer, "_put", put)
    found("a commit was lost", scenarios.claims)


def test_evicting_by_offsets_instead_of_the_segment_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PartitionManifest,
        "covers",
        lambda self, head, segment_id, base, end: head.start_offset <= base and end <= head.end_offset,
    )
    patch.setattr(SameLog, "compare", lambda *_: Likeness.SAME)
    found("P5", scenarios.evicted_from_an_image)


@pytest.mark.extended
def test_taking_the_segment_of_another_copy_for_the_own_by_its_id(patch: pytest.MonkeyPatch) -> None:
    """Before it is evicted, and before a whole takes the place of tails."""
    for name, words in (("compare", "P5"), ("by_hash", "P1")):
        with patch.context() as one:
            one.setattr(SameLog, name, lambda *_: Likeness.SAME)
            found(words, scenarios.two_copies)


def test_not_looking_for_the_own_commit_after_a_412(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "_holds", lambda loaded, commit_id: False)
    found("P7: one claim took several epochs", scenarios.claim_alone, faults=1)


@pytest.mark.extended
def test_a_restore_that_claims_without_a_look_whether_it_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    claim = Committer.claim
    patch.setattr(Committer, "claim", lambda self, *, check=None, **options: claim(self, **options))
    found("Fenced", scenarios.two_restores_in_turn)


def test_a_store_that_believes_an_intent_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IntentWatch, "left_seconds", lambda *_: 60.0)
    found("nobody is in charge", scenarios.restore_that_dies, faults=1)


def test_a_store_that_is_fenced_by_a_restore_that_only_began(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_documents, "intent_of", lambda values, lineage: None)
    found("nobody is in charge", scenarios.restore_that_dies, faults=1)


@pytest.mark.slow
def test_a_store_that_goes_on_without_a_word_to_the_restore(patch: pytest.MonkeyPatch) -> None:
    """What stood still goes on, and does not know of the topic that was announced meanwhile."""
    patch.setattr(store_documents, "abandon_restore", lambda values, intent: values)
    found("P9", scenarios.announced_beside_a_restore)


@pytest.mark.extended
def test_a_restore_that_finishes_without_a_look_whether_it_may(patch: pytest.MonkeyPatch) -> None:
    def finish(self):
        self._bucket.change_store(
            lambda current, lineage: {name: item for name, item in current.items() if name != "restore"}
        )

    patch.setattr(IntentHolder, "finish", finish)
    found("Fenced", scenarios.announced_beside_a_restore)


@pytest.mark.extended
def test_a_restore_that_is_never_finished_in_the_bucket(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IntentHolder, "finish", lambda self: None)
    found("Fenced", scenarios.restore_that_dies)


def test_taking_a_missing_head_for_a_lost_one_without_another_look(patch: pytest.MonkeyPatch) -> None:
    """The first claim and the first upload can come between the look at the head and the listing."""
    load = PartitionManifest.load
    looks: dict[int, object] = {}

    def once(self):
        if id(self) in looks and looks[id(self)] is None and self.hasty:
            return None
        looks[id(self)] = load(self)
        return looks[id(self)]

    check = PartitionManifest.check_unpublished

    def hasty(self):
        self.hasty = True
        return check(self)

    patch.setattr(PartitionManifest, "hasty", False, raising=False)
    patch.setattr(PartitionManifest, "load", once)
    patch.setattr(PartitionManifest, "check_unpublished", hasty)
    found("P8", scenarios.first_reader)
