"""The checks of the fault tests can fail: each mechanism taken away shows as a violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from tests.faults.faulty_life import check_published_once, live
from tests.faults.workload import Violation
from tests.support.faulty_store import Operation
from tests.support.mutations import unlink
from tiered.cold.manifest import commit
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import ObjectName
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.fsspec_store import _SpooledUpload
from tiered.errors import ColdStorageError
from tiered.tiering.partition_handle import PartitionHandle
from tiered.tiering.publish_actions import PublishActions


@pytest.fixture(scope="module")
def operations(at_once: pytest.MonkeyPatch) -> list[Operation]:
    return live({})[1].operations


def places(operations: list[Operation], verb: str, ending: str) -> list[int]:
    return [n for n, asked in enumerate(operations) if asked.verb == verb and asked.key.endswith(ending)]


@contextmanager
def found(words: str) -> Iterator[None]:
    with pytest.raises(Violation, match=words):
        yield


def treat_timeouts_as_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self, plan, base, **_):
        return self._put(base, self._propose(base, plan(base.head if base else None)))

    monkeypatch.setattr(Committer, "_publish", publish)


def test_deleting_what_was_uploaded_when_the_answer_was_lost(operations, monkeypatch) -> None:
    """The PUT of the head took effect, so what it names must stay."""
    treat_timeouts_as_failures(monkeypatch)
    new_object_name, publish = Committer.new_object_name, Committer.commit
    names: list[str] = []

    def remember(self, base_offset):
        names.append(new_object_name(self, base_offset))
        return names[-1]

    def clean_up(self, change):
        try:
            return publish(self, change)
        except ColdStorageError:
            self.partition.store.delete(self.partition.keys.data(name) for name in names[-1:])
            raise

    monkeypatch.setattr(Committer, "new_object_name", remember)
    monkeypatch.setattr(Committer, "commit", clean_up)
    with found("a live object is gone|deleted without a sweep"):
        live({places(operations, "put", "head.json")[1]: "answer lost"})


def test_publishing_again_without_a_condition_when_the_answer_was_lost(operations, monkeypatch) -> None:
    """The late PUT lands on a head that later commits have built upon, and takes them away."""

    def put(self, base, proposal):
        etag = self.partition.store.put(self.partition.keys.head, commit.encode_head(proposal))
        self._known = replace(base, head=proposal, etag=etag) if base else None
        return proposal

    monkeypatch.setattr(Committer, "_put", put)
    with found("lost a commit|went back"):
        for number in places(operations, "put", "head.json"):
            live({number: "late by 9"})


def test_not_looking_for_the_own_commit_after_a_412(operations, monkeypatch) -> None:
    """The SDK's repetition met its own success; without the commit id it is published again."""
    monkeypatch.setattr(commit, "_holds", lambda loaded, commit_id: False)
    with found("instead of"):
        check_published_once(operations, Counter())


@pytest.mark.parametrize("exclusive", [True, False])
def test_using_an_object_name_again(operations, monkeypatch, exclusive: bool) -> None:
    """What was uploaded first may be live, or may land late."""

    def name(self, base_offset):
        return str(ObjectName(base_offset, self.epoch, UUID(int=base_offset)))

    monkeypatch.setattr(Committer, "new_object_name", name)
    if not exclusive:

        def publish(self):
            self._spool.seek(0)
            self._store.fs.pipe_file(self._store.path(self._key), self._spool.read())

        monkeypatch.setattr(_SpooledUpload, "_publish", publish)
    with found("does not recover" if exclusive else "used for two contents|gone or damaged"):
        live({places(operations, "upload", ".parquet")[3]: "damaged"})


def test_deleting_the_local_file_before_it_is_published(operations, monkeypatch) -> None:
    """P5: the upload has arrived, and nothing names it yet."""
    offload = PublishActions.offload

    def careless(self, action):
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        segment = handle.sealed(action)
        if segment is not None:
            unlink(self, handle, segment)
        return offload(self, action)

    monkeypatch.setattr(PublishActions, "offload", careless)
    with found("is deleted and"):
        live({})


@pytest.mark.parametrize("fault", ["busy", "gone"])
def test_taking_an_unreadable_head_for_an_empty_one(operations, monkeypatch, fault: str) -> None:
    """P10: the log would look empty to who has the bucket alone."""
    load = PartitionManifest.load

    def careless(self):
        try:
            return load(self)
        except ColdStorageError:
            return None

    def without_a_word(self):
        next(iter(self.store.list(self.keys.data_prefix)), None)  # the operations stay the same

    monkeypatch.setattr(PartitionManifest, "load", careless)
    monkeypatch.setattr(PartitionManifest, "check_unpublished", without_a_word)
    with found(r"has \[\]"):
        scan = places(operations, "get_range", ".parquet")[-1]
        live({max(n for n in places(operations, "get", "head.json") if n < scan): fault})
