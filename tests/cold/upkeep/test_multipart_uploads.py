"""Multipart uploads that were cut short are aborted when they are old and nobody's, and never one that may count."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

import tiered
from tests.support.manifest_values import STORE, TOPIC
from tests.support.s3_server import S3, Unfinished, s3_thread
from tests.support.scripted_server import refusal
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import ObjectName, PartitionKeys
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.protocol import UnfinishedUpload
from tiered.cold.upkeep.multipart_uploads import plan_aborts, sweep_uploads, sweep_uploads_of_deleted
from tiered.cold.upkeep.sweep import PartSweep, SweepRules
from tiered.errors import Fenced

KEYS = PartitionKeys.of("t", TOPIC, 0)
NOW, GRACE = 1_000_000.0, 3600.0
RULES = SweepRules(NOW, GRACE)
OLD, YOUNG = NOW - GRACE, NOW - GRACE + 1


def name_of(epoch: int) -> str:
    return str(ObjectName(0, epoch, uuid4()))


@pytest.mark.parametrize(
    ("key", "begun", "due"),
    [
        (KEYS.data(name_of(5)), OLD, True),
        (KEYS.data(name_of(4)), OLD, True),
        (KEYS.data(name_of(6)), OLD, False),
        (KEYS.data(name_of(4)), YOUNG, False),
        (KEYS.data("of somebody else"), OLD, False),
        (KEYS.prefix + name_of(4), OLD, False),
        (PartitionKeys.of("t", TOPIC, 1).data(name_of(4)), OLD, False),
    ],
    ids=["own epoch", "older epoch", "newer epoch", "young", "foreign name", "not data", "other partition"],
)
def test_what_is_due(key: str, begun: float, due: bool) -> None:
    upload = UnfinishedUpload(key, "id", begun)
    planned = plan_aborts([upload], RULES, keys=KEYS, epoch=5, in_flight=frozenset())
    assert planned == ([upload] if due else [])
    name = key.rpartition("/")[2]
    assert plan_aborts([upload], RULES, keys=KEYS, epoch=5, in_flight={name}) == []


class Shop:
    """One partition on a server, with uploads under way."""

    def __init__(self, endpoint: str, server: S3) -> None:
        self.server = server
        options = ColdOptions(
            endpoint_url=endpoint, region="us-east-1", access_key="k", secret_key="s", attempts=1
        )
        self.store = open_object_store("s3://bucket/p", options)
        self.partition = PartitionManifest(self.store, "t", TOPIC, 0)
        self.swept = PartSweep("t", 0)

    def committer(self) -> Committer:
        made = Committer(self.partition, STORE, clock=lambda: 1)
        made.claim()
        return made

    def begin(self, key: str, begun: float = OLD) -> str:
        moment = datetime.fromtimestamp(begun, UTC)
        self.server.uploads[uuid4().hex] = Unfinished(f"bucket/p/{key}", moment, {})
        return key

    def left(self) -> list[str]:
        return sorted(upload.key.removeprefix("bucket/p/") for upload in self.server.uploads.values())


@pytest.fixture
def shop():
    with s3_thread() as (endpoint, server):
        made = Shop(endpoint, server)
        yield made
        made.store.close()


def test_old_ones_go_and_one_that_may_still_be_published_stays(shop: Shop) -> None:
    committer = shop.committer()
    own, older, young, higher = (
        shop.begin(KEYS.data(committer.new_object_name(0))),
        shop.begin(KEYS.data(name_of(1))),
        shop.begin(KEYS.data(name_of(1)), YOUNG),
        shop.begin(KEYS.data(name_of(2))),
    )
    assert sweep_uploads(shop.swept, shop.partition, committer, RULES).uploads == (older,)
    assert shop.left() == sorted([own, young, higher])
    committer.release([own.rpartition("/")[2]])
    assert sweep_uploads(shop.swept, shop.partition, committer, RULES).uploads == (own,)
    assert shop.left() == sorted([young, higher])


def test_a_preview_says_the_same_and_aborts_nothing(shop: Shop) -> None:
    shop.committer()
    due = sorted(shop.begin(KEYS.data(name_of(1))) for _ in range(5))
    before = shop.left()
    assert sorted(sweep_uploads(shop.swept, shop.partition, None, RULES).uploads) == due
    assert shop.left() == before


def test_an_overtaken_sweeper_aborts_nothing(shop: Shop) -> None:
    committer = shop.committer()
    shop.begin(KEYS.data(name_of(1)))
    shop.committer()
    with pytest.raises(Fenced):
        sweep_uploads(shop.swept, shop.partition, committer, RULES)
    assert len(shop.left()) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(refusal(403, "AccessDenied"), "AccessDenied"), (refusal(501, "NotImplemented"), "")],
)
def test_a_server_that_does_not_list_them_leaves_the_rest_of_the_sweep_as_it_is(
    shop: Shop, answer: object, problem: str
) -> None:
    committer = shop.committer()
    shop.server.fault = lambda request: answer if "uploads" in request.path else None
    swept = sweep_uploads(PartSweep("t", 0, deleted=("a",)), shop.partition, committer, RULES)
    assert (swept.deleted, swept.uploads) == (("a",), ())
    assert problem in swept.problem
    assert bool(swept.problem) == bool(problem)


@pytest.mark.parametrize("dry_run", [True, False])
def test_those_of_a_deleted_topic_go_by_age_alone(shop: Shop, dry_run: bool) -> None:
    old = shop.begin(KEYS.data("whatever"))
    shop.begin(KEYS.data(name_of(1)), YOUNG)
    swept = sweep_uploads_of_deleted(PartSweep("t", None), shop.store, "t/", RULES, dry_run=dry_run)
    assert swept.uploads == (old,)
    assert (old in shop.left()) == dry_run


def test_other_backends_have_none(tmp_path) -> None:
    store = open_object_store(f"file://{tmp_path}/cold")
    partition = PartitionManifest(store, "t", TOPIC, 0)
    assert sweep_uploads(PartSweep("t", 0), partition, None, RULES) == PartSweep("t", 0)


def test_the_sweep_of_a_store_aborts_what_a_killed_pass_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with s3_thread() as (endpoint, server):
        settings = tiered.Settings.model_validate(
            {
                "cold": {"endpoint_url": endpoint},
                "sweep": {"grace": "1h"},
                "policies": {"default": {"offload": {"after": "0s", "tail_interval": "1s"}}},
            }
        )
        with tiered.open(tmp_path / "store", cold="s3://bucket/p", settings=settings) as store:
            topic = store.create_topic("t")
            topic.append(b"x", sync=True)
            assert not store.tier().failed
            [data] = [key for key in server.objects if "/data/" in key]
            left = data.rpartition("/")[0] + "/" + name_of(1)
            server.uploads["abandoned"] = Unfinished(left, datetime.now(UTC).replace(year=2020), {})
            server.uploads["young"] = Unfinished(
                data.rpartition("/")[0] + "/" + name_of(1), datetime.now(UTC), {}
            )
            for dry_run in (True, False):
                report = store.sweep(dry_run=dry_run)
                assert not report.problems
                assert [part.uploads for part in report.parts] == [(left.removeprefix("bucket/p/"),)]
                assert ("abandoned" in server.uploads) == dry_run
            assert "young" in server.uploads
