"""Old versions of objects in a bucket with versioning: they are listed and deleted for good, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from typer.testing import CliRunner

import tiered
from tests.support.clock import Clock
from tests.support.s3_server import S3, deleted_by, document, operation_of, s3_thread, texts_of
from tests.support.scripted_server import refusal
from tests.support.stores import open_store, stepwise
from tiered.cli import app
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.protocol import KeepsVersions
from tiered.errors import ColdStorageError, ObjectsHeld


@pytest.fixture
def versioned(s3_bucket: str, s3_endpoint: str) -> Any:
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    client.put_bucket_versioning(
        Bucket=urlsplit(s3_bucket).netloc, VersioningConfiguration={"Status": "Enabled"}
    )
    return client


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server in this process, which clients connect to."""
    with s3_thread() as (url, server):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield server


BASE = stepwise(offload={"after": "0s", "tail_interval": "off"}).to_json()
SETTINGS = tiered.Settings.model_validate({**BASE, "sweep": {"grace": "0s", "every": "off"}})


@contextmanager
def erasing(path: Path, url: str, clock: Clock) -> Iterator[tuple[Any, tiered.Erasure]]:
    """A store with a record of `a`, and an erasure of `b`, whose record is in no bucket yet."""
    with open_store(path, url, clock, settings=SETTINGS) as store:
        topic = store.create_topic("t")
        topic.append(b"<of b>", key="b")
        topic.append(b"<of a>", key="a")
        yield store, topic.erase(["b"])


def kept(client: Any, url: str) -> list[tuple[str, bytes]]:
    """Every version in the bucket, the present ones too, with its bytes."""
    bucket = urlsplit(url).netloc
    return [
        (
            row["Key"],
            client.get_object(Bucket=bucket, Key=row["Key"], VersionId=row["VersionId"])["Body"].read(),
        )
        for row in client.list_object_versions(Bucket=bucket).get("Versions", ())
    ]


def test_old_versions_are_those_behind_the_present_one(s3_bucket: str, versioned: Any) -> None:
    store = open_object_store(s3_bucket)
    assert isinstance(store, KeepsVersions)
    assert list(store.old_versions("t/")) == []
    for key, count in (("t/replaced", 3), ("t/deleted", 1), ("t/present", 1), ("tt/other", 2)):
        for number in range(count):
            store.put(key, b"%d" % number)
    store.delete(["t/deleted"])
    found = list(store.old_versions("t/"))
    assert sorted(item.key for item in found) == ["t/deleted", "t/replaced", "t/replaced"]
    assert len({item.version_id for item in found}) == 3
    store.delete_versions(found)
    store.delete_versions(found)  # a missing one is no error
    assert list(store.old_versions("t/")) == []
    assert len(list(store.old_versions("tt/"))) == 1
    assert (store.get("t/replaced").data, store.get("t/present").data) == (b"2", b"0")
    assert sorted(key.rpartition("/")[2] for key, _ in kept(versioned, s3_bucket)) == [
        "other", "other", "present", "replaced",
    ]  # fmt: skip


def test_more_versions_than_one_page_holds(
    s3_bucket: str, versioned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_object_store(s3_bucket)
    for _ in range(7):
        store.put("t/key", b"x")
    real = store._client.call

    def short(operation: str, key: str, method: str, **arguments: Any) -> Any:
        return real(operation, key, method, **arguments, **({"MaxKeys": 2} if "versions" in method else {}))

    monkeypatch.setattr(store._client, "call", short)
    assert len(list(store.old_versions("t/"))) == 6


@pytest.mark.extended
def test_an_erasure_deletes_old_versions_too(
    s3_bucket: str, versioned: Any, tmp_path: Path, clock: Clock
) -> None:
    with erasing(tmp_path / "data", s3_bucket, clock) as (store, erasure):
        for _ in range(6):
            store.tier()
            store.sweep()
            clock.advance(60)
        assert erasure.state == "done", erasure.waits_for
        assert store.topic("t").scan().to_arrow()["value"].to_pylist() == [b"<of a>"]
    data = [key for key, _ in kept(versioned, s3_bucket) if "/data/" in key or "/erasures/" in key]
    assert [key.count(".parquet") for key in data] == [1]
    assert not any(b"<of b>" in part for _, part in kept(versioned, s3_bucket))


def test_an_erasure_leaves_what_brings_a_live_object_back(server: S3, tmp_path: Path, clock: Clock) -> None:
    """Somebody has deleted an object of the log, and only its old version has these records."""
    server.keeps_versions = True
    with open_store(tmp_path / "data", "s3://b/p", clock, settings=SETTINGS) as store:
        topic = store.create_topic("t")
        for key in ("a", "b"):
            topic.append(b"<of %s>" % key.encode(), key=key)
            topic.roll()
        erasure = topic.erase(["b"])
        while erasure.state != "sweeping":
            store.tier()
        (lost,) = (key for key in server.objects if "/data/" in key and "/00000000000000000000-" in key)
        open_object_store("s3://b/p").delete([lost.removeprefix("b/p/")])
        for _ in range(6):
            store.tierer.run_once()
            store.sweep()
            clock.advance(60)
        assert (erasure.state, erasure.waits_for) == ("done", "")
        found = [stored for (place, _), stored in server.old.items() if place == lost]
        assert len(found) == 1
        assert [place for place, _ in server.old if "/data/" in place] == [lost]
        server.objects[lost] = found[0]
        assert topic.scan().to_arrow()["value"].to_pylist() == [b"<of a>"]


@pytest.mark.parametrize(("status", "code"), [(405, "MethodNotAllowed"), (501, "NotImplemented")])
def test_a_server_without_versions_keeps_none(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3(
        fault=lambda request: refusal(status, code) if operation_of(request) == "ListObjectVersions" else None
    )
    with s3_thread(server) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket="b")
        assert list(open_object_store("s3://b/p").old_versions("t/")) == []


def versions_of(request: Any) -> list[str]:
    """The versions that a request deletes."""
    return texts_of(request, "VersionId") if operation_of(request) == "DeleteObjects" else []


def refusing_versions(request: Any, part: str = "") -> Any:
    """Answer that these keys may not delete the versions whose keys have this part."""
    versions = versions_of(request)
    keys = deleted_by(request) if versions else []
    if not any(part in key for key in keys):
        return None
    return document(
        "DeleteResult",
        *(
            f"<Error><Key>{key}</Key><VersionId>{version}</VersionId><Code>AccessDenied</Code></Error>"
            for key, version in zip(keys, versions, strict=True)
        ),
    )


RIGHTS = {
    "list": (
        lambda request: (
            refusal(403, "AccessDenied") if operation_of(request) == "ListObjectVersions" else None
        ),
        "s3:ListBucketVersions",
    ),
    "delete": (refusing_versions, "s3:DeleteObjectVersion"),
    "delete values": (lambda request: refusing_versions(request, "erasures/"), "s3:DeleteObjectVersion"),
}


@pytest.mark.parametrize("right", RIGHTS)
def test_an_erasure_waits_for_a_right_and_names_it(
    right: str, server: S3, tmp_path: Path, clock: Clock
) -> None:
    """No pass uploads anything again meanwhile: each copy would be one more old version."""
    server.keeps_versions = True
    with erasing(tmp_path / "data", "s3://b/p", clock) as (store, erasure):
        fault, name = RIGHTS[right]
        server.fault = fault  # type: ignore[assignment]
        for _ in range(6):
            store.tierer.run_once()
            store.sweep()
            clock.advance(60)
        assert erasure.state == "sweeping"
        assert f"grant them {name}" in erasure.waits_for
        with open_store(tmp_path / "data", "s3://b/p", clock, settings=SETTINGS, tierer=True) as again:
            again.tierer.run_once()
        copies = [place.rpartition("/")[2] for place, _ in server.old]
        assert len(copies) == len(set(copies)), "no copy of the values for each try"
        server.fault = lambda request: None
        for _ in range(2):
            store.tier()
            store.sweep()
        store.tier()
        assert (erasure.state, erasure.waits_for) == ("done", "")
        assert not any("/data/" in place or "/erasures/" in place for place, _ in server.old)


def lifecycle(days: int, prefix: str = "") -> Any:
    """The answer with a rule that deletes old versions of the objects below a prefix after some days."""
    return document(
        "LifecycleConfiguration",
        f"<Rule><ID>old ones</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>Enabled</Status>"
        f"<NoncurrentVersionExpiration><NoncurrentDays>{days}</NoncurrentDays></NoncurrentVersionExpiration></Rule>",
    )


def by_rule(rule: Any, fault: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A fault of a server whose bucket has a rule."""
    return lambda request: (
        rule if operation_of(request) == "GetBucketLifecycleConfiguration" else fault(request)
    )


def test_old_versions_may_go_by_a_rule_of_the_bucket(server: S3, tmp_path: Path, clock: Clock) -> None:
    """Without the right to delete them the erasure waits for the rule, and is done when no version is listed any more."""
    server.keeps_versions = True
    with erasing(tmp_path / "data", "s3://b/p", clock) as (store, erasure):
        server.fault = by_rule(lifecycle(7), refusing_versions)
        for _ in range(6):
            _, problems = store.tierer.run_once()
            assert problems == []
            store.sweep()
            clock.advance(60)
        named = "by lifecycle rule 'old ones' of the bucket, which deletes old versions after 7 days"
        assert erasure.state == "sweeping"
        assert named in erasure.waits_for
        assert "grant" not in erasure.waits_for
        objects = [key for key in server.old if "/data/" in key[0]]
        assert objects
        for key in objects:
            del server.old[key]
        for _ in range(3):
            store.sweep()
            _, problems = store.tierer.run_once()
            assert problems == []
            clock.advance(60)
        assert erasure.state == "sweeping", "its values have a version, too"
        assert any("/erasures/" in place for place, _ in server.old)
        assert "s3://b/p/erasures/" in erasure.waits_for
        server.old.clear()
        store.tier()
        assert (erasure.state, erasure.waits_for) == ("done", "")


def test_a_rule_that_is_too_slow_does_not_count(server: S3, tmp_path: Path, clock: Clock) -> None:
    server.keeps_versions = True
    with erasing(tmp_path / "data", "s3://b/p", clock) as (store, erasure):
        server.fault = by_rule(lifecycle(30), refusing_versions)
        for _ in range(6):
            _, problems = store.tierer.run_once()
            store.sweep()
            clock.advance(60)
        assert "after 30 days" in erasure.waits_for
        assert "grant them s3:DeleteObjectVersion" in erasure.waits_for
        assert [str(problem) for problem in problems] == [erasure.waits_for]


def test_a_dry_run_of_an_erasure_names_the_rule(server: S3, tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "data", "s3://b/p", clock, settings=SETTINGS) as store:
        store.create_topic("t").append(b"<of b>", key="b")
        store.tier()
    command = ["erase", "t", "--keys-file", "-", "--dry-run", "--path", str(tmp_path / "data")]

    def printed(*more: str) -> str:
        found = CliRunner().invoke(app, [*command, *more], input="b\n", prog_name="tiered")
        assert found.exit_code == 0, found.output
        return found.output

    assert "lifecycle" not in printed()
    assert json.loads(printed("--json"))["version_rule"] is None
    server.fault = by_rule(lifecycle(7), lambda _: None)
    assert "go by lifecycle rule 'old ones' of the bucket after 7 days" in " ".join(printed().split())
    assert json.loads(printed("--json"))["version_rule"] == {"id": "old ones", "days": 7}


RULES: dict[str, tuple[dict[str, Any], int | None]] = {
    "all": ({"Filter": {"Prefix": ""}}, 5),
    "this store": ({"Filter": {"Prefix": "p/"}}, 5),
    "as in the first releases of S3": ({"Prefix": "p"}, 5),
    "another store": ({"Filter": {"Prefix": "q/"}}, None),
    "a part of the store": ({"Filter": {"Prefix": "p/t/"}}, None),
    "by a tag": ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, None),
    "by tags": ({"Filter": {"And": {"Prefix": "p/", "Tags": [{"Key": "a", "Value": "b"}]}}}, None),
    "by size": ({"Filter": {"ObjectSizeGreaterThan": 9}}, None),
    "off": ({"Filter": {"Prefix": ""}, "Status": "Disabled"}, None),
    "keeps some": (
        {
            "Filter": {"Prefix": ""},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 5, "NewerNoncurrentVersions": 2},
        },
        None,
    ),
    "of present objects": (
        {"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {}, "Expiration": {"Days": 5}},
        None,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_which_rules_cover_the_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, days = RULES[name]
    rule = {"ID": "r", "Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 5}, **changes}
    store = open_object_store("s3://b/p")
    monkeypatch.setattr(store._client, "call", lambda *_, **__: {"Rules": [rule]})
    found = store.version_rule()
    assert (found and found.days) == days


def test_the_fastest_rule_counts_as_moto_answers_it(s3_bucket: str, versioned: Any) -> None:
    """A bucket without rules has none."""
    store = open_object_store(s3_bucket)
    assert store.version_rule() is None
    rules = [
        {
            "ID": f"after {days}",
            "Filter": {"Prefix": ""},
            "Status": "Enabled",
            "NoncurrentVersionExpiration": {"NoncurrentDays": days},
        }
        for days in (9, 4)
    ]
    versioned.put_bucket_lifecycle_configuration(
        Bucket=urlsplit(s3_bucket).netloc, LifecycleConfiguration={"Rules": rules}
    )
    found = store.version_rule()
    assert found is not None
    assert (found.id, found.days) == ("after 4", 4)


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (405, "MethodNotAllowed"), (501, "NotImplemented")]
)
def test_rules_that_cannot_be_read_are_none(status: int, code: str, server: S3) -> None:
    server.fault = lambda request: refusal(status, code)
    assert open_object_store("s3://b/p").version_rule() is None


def test_an_erasure_looks_whether_old_versions_are_gone(server: S3, tmp_path: Path, clock: Clock) -> None:
    """Not every server that says so has deleted them."""
    server.keeps_versions = True
    with erasing(tmp_path / "data", "s3://b/p", clock) as (store, erasure):
        server.fault = lambda request: document("DeleteResult") if versions_of(request) else None
        for _ in range(6):
            store.tier()
            store.sweep()
            clock.advance(60)
        assert erasure.state == "sweeping"
        assert "the bucket keeps an old version of t/" in erasure.waits_for
        server.fault = lambda request: None
        store.sweep()
        store.tier()
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert not any(b"<of b>" in stored.data for stored in server.old.values())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("legal", "code"), [(False, "AccessDenied"), (True, "AccessDenied"), (False, "InvalidRequest")]
)
def test_what_object_lock_holds_is_waited_for(
    server: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock, legal: bool, code: str
) -> None:
    """No error of each pass for years: the erasure says until when it waits, and is done then."""
    server.keeps_versions, server.legal_hold, server.held_code = True, legal, code
    server.held_until = None if legal else datetime.now(UTC) + timedelta(days=1)
    with erasing(tmp_path / "data", "s3://b/p", clock) as (store, erasure):
        for _ in range(6):
            report, problems = store.tierer.run_once()
            assert (report.failed, problems) == ((), [])
            store.sweep()
            clock.advance(60)
        held = (
            "a legal hold"
            if legal
            else f"Object Lock (COMPLIANCE) until {server.held_until:%Y-%m-%d %H:%M} UTC"
        )
        assert erasure.waits_for.startswith(f"1 old version is kept by {held}, such as one of s3://b/p/t/")
        assert any(b"<of b>" in stored.data for stored in server.old.values())
        # What is deleted from now on, is free; the values of the erasure have a hold of their own.
        monkeypatch.setattr(S3, "DeleteObjects", free(S3.DeleteObjects))
        store.sweep()
        store.tier()
        assert erasure.waits_for == f"the values of the erasure are kept by {held}"
        server.held_until, server.legal_hold = None, False
        clock.advance(60)
        store.sweep()
        store.tier()
        assert erasure.state == "done"
        assert not any(b"<of b>" in stored.data for stored in server.old.values())


def free(real: Any) -> Any:
    """Delete as if nothing were held."""

    def delete(server: S3, request: Any) -> Any:
        kept = server.held_until, server.legal_hold
        server.held_until, server.legal_hold = None, False
        try:
            return real(server, request)
        finally:
            server.held_until, server.legal_hold = kept

    return delete


def test_a_server_that_says_nothing_of_holds(server: S3) -> None:
    """What these keys may not delete is not called held, unless the server says so."""
    store = open_object_store("s3://b/p")
    store.put("t/key", b"x")
    server.keeps_versions, server.legal_hold = True, True
    store.delete(["t/key"])
    (version,) = store.old_versions("t/")
    with pytest.raises(ObjectsHeld, match="1 old version is kept by a legal hold"):
        store.delete_versions([version])
    for status, code in ((403, "AccessDenied"), (400, "InvalidRequest"), (501, "NotImplemented")):
        answer = refusal(status, code)
        server.fault = lambda request: (
            answer if operation_of(request) == "HeadObject" else None  # noqa: B023
        )
        assert store.hold_on("t/key") == ""
        with pytest.raises(ColdStorageError, match="AccessDenied") as caught:
            store.delete_versions([version])
        assert not isinstance(caught.value, ObjectsHeld)
    server.fault = lambda request: None
    server.legal_hold, server.held_until = False, datetime.now(UTC) - timedelta(days=1)
    assert store.hold_on("t/key") == "", "its time is over"


def test_a_bucket_with_object_lock(s3_endpoint: str) -> None:
    """As moto implements it."""
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    store = open_object_store("s3://locked/p")
    store.put("t/key", b"x")
    until = (datetime.now(UTC) + timedelta(days=9)).replace(microsecond=0)
    client.put_object_retention(
        Bucket="locked", Key="p/t/key", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until}
    )
    assert store.hold_on("t/key") == f"Object Lock (GOVERNANCE) until {until:%Y-%m-%d %H:%M} UTC"
    client.put_object_legal_hold(Bucket="locked", Key="p/t/key", LegalHold={"Status": "ON"})
    assert store.hold_on("t/key") == "a legal hold"
    store.put("t/key", b"y")
    (version,) = store.old_versions("t/")
    with pytest.raises(ObjectsHeld, match="a legal hold"):
        store.delete_versions([version])
    assert store.hold_on("t/key") == ""
    client.put_object_legal_hold(
        Bucket="locked", Key="p/t/key", VersionId=version.version_id, LegalHold={"Status": "OFF"}
    )
    with pytest.raises(ObjectsHeld, match=r"Object Lock \(GOVERNANCE\) until"):
        store.delete_versions([version])
    assert len(list(store.old_versions("t/"))) == 1
