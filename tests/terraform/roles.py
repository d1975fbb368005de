"""What each role of a deployment asks of the bucket, done for real and recorded request by request."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import botocore.client
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.s3_server import S3, s3_thread
from tests.support.stores import HOUR_US
from tiered.cli.verify import open_tiers
from tiered.cold.manifest.keys import ObjectName
from tiered.cold.manifest.leases import Lease
from tiered.cold.object_store import probe
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.upkeep import sweep
from tiered.engine.host import Host
from tiered.format import manifest_changes
from tiered.repair.repair import repair_store
from tiered.tiering import erasures, store_sweep, table_passes

BUCKET, PREFIX = "recorded", "events"
URL = f"s3://{BUCKET}/{PREFIX}"
MIB = 1 << 20
TAGS = {"tiered": "segment"}

# Every kind of object that a store has, and how its key reads below the prefix. A topic may be called like a folder
# of the store, so the patterns tell its objects apart.
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IN_TOPIC = rf"[^/]+/{_UUID}/"
KINDS = {
    "store.json": r"store\.json",
    "erasures.json": r"erasures\.json",
    "erasures/": rf"erasures/{_UUID}\.arrow",
    "leases/": rf"leases/{_UUID}\.json",
    "probe/": r"probe/[^/]+",
    ".damaged/": r"(?:[^/]+/[^/]+/)*\.damaged/[^/]+",
    "topic.json": rf"{_IN_TOPIC}topic\.json",
    "head.json": rf"{_IN_TOPIC}\d+/head\.json",
    "table/": rf"{_IN_TOPIC}table/metadata/[^/]+",
    "pages/": rf"{_IN_TOPIC}\d+/pages/[^/]+",
    "data/": rf"{_IN_TOPIC}\d+/data/[^/]+",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: S3's name of the operation, the key or the prefix of a listing, what else permissions hang on: `holds` asks for holds, too."""

    operation: str
    key: str
    condition: str = ""
    tagged: bool = False
    version: bool = False
    holds: bool = False

    @property
    def kind(self) -> str:
        """Of the object, as in `KINDS`; of a listing, ``(bucket)``."""
        if self.operation.startswith("List"):
            return "(bucket)"
        (found,) = (kind for kind, pattern in KINDS.items() if re.fullmatch(f"{PREFIX}/{pattern}", self.key))
        return found


@contextmanager
def recording() -> Iterator[set[Asked]]:
    """Note every call of any S3 client of this process while it lasts."""
    asked: set[Asked] = set()
    call = botocore.client.BaseClient._make_api_call

    def noted(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        deleted = arguments.get("Delete", {}).get("Objects", ())
        keys = [item["Key"] for item in deleted]
        version = any("VersionId" in item for item in [*deleted, arguments])
        # A HEAD that is about an object has its checksum, too.
        holds = operation == "HeadObject" and "ChecksumMode" not in arguments
        place = arguments.get("Key", arguments.get("Prefix", ""))
        condition = "match" if "IfMatch" in arguments else "none" if "IfNoneMatch" in arguments else ""
        asked.update(
            Asked(operation, key, condition, "Tagging" in arguments, version, holds)
            for key in keys or [place]
        )
        return call(client, operation, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.client.BaseClient, "_make_api_call", noted)
        yield asked


def settings(path: Path, *, grace: str = "0s") -> tiered.Settings:
    """Everything moves when it is asked to; segments are tagged, and sent in parts from 5 MiB on. A grace allows tables."""
    rules = {
        "roll": {"bytes": "256MiB", "age": "off"},
        "offload": {"after": "4h", "tail_interval": "1s"},
        "compress": {"after": "off"},
        "local_retention": {"age": "8h"},
        "merge": {"after": "12h", "target_bytes": "1MiB"},
        "scrub": {"every": "30d"},
        "table": "off" if grace == "0s" else {"every": "1m"},
    }
    return tiered.Settings.model_validate(
        {
            "store": {"path": str(path), "sync_interval": "1h"},
            "cold": {"url": URL, "tags": TAGS, "part_bytes": "5MiB"},
            "policies": {"default": rules},
            "sweep": {"grace": grace, "every": "off"},
        }
    )


def restoring() -> tiered.Settings:
    """The settings of a restore to a time, which goes back by the grace at most."""
    return tiered.Settings.model_validate(
        {"cold": {"url": URL, "tags": TAGS}, "sweep": {"grace": "7d", "every": "off"}}
    )


class Deployment:
    """A store on one host, and what its roles do one after the other."""

    def __init__(self, folder: Path, server: S3) -> None:
        self.folder = folder
        self.server = server
        self.path = folder / "data"
        self.clock = Clock(time.time_ns() // 1000)
        self.before_deletion_us = 0

    def _tier(self, store: tiered.Store, ahead_us: int) -> None:
        report = store.tier((self.clock() + ahead_us) // 1000)
        assert report.failed == ()
        self.clock.advance(2)

    def write(self) -> None:
        """Append, ship tails, offload whole and in parts, evict, read back, merge, scrub, expire, delete, sweep."""
        with tiered.open(
            self.path, settings=settings(self.path, grace="1d"), host=Host(clock=self.clock)
        ) as store:
            topic = store.create_topic("t")
            for number in range(4):
                topic.append(b"%d" % number, sync=True)
                self._tier(store, 0)
                topic.roll()
                self._tier(store, 5 * HOUR_US)
            topic.append(os.urandom(6 * MIB), sync=True)
            topic.roll()
            self._tier(store, 5 * HOUR_US)
            self._tier(store, 9 * HOUR_US)
            assert topic.scan().to_arrow().num_rows == 5
            self._tier(store, 13 * HOUR_US)
            self._tier(store, 31 * 24 * HOUR_US)
            gone = store.create_topic("gone")
            for key in ("kept", "private"):
                gone.append(b"x", key=key, sync=True)
            gone.roll()
            self._tier(store, 5 * HOUR_US)
            gone.erase(["private"])
            store.tierer.erasures.exchange()
            self.before_deletion_us = self.clock()
            self.clock.advance(2)
            store.delete_topic("gone")
            topic.delete_before(2)
            self._tier(store, 5 * HOUR_US)
            store.status()
            assert store.verify(deep=True).problems == ()

    def erase(self) -> None:
        """Erase a record from every tier and all old versions, days after each other by the clock of the bucket.

        Object Lock holds the old versions at first.
        """
        real, days = store_sweep.server_seconds, iter(range(2, 100, 2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_passes, "HEADS_SECONDS", 0.0)
            with tiered.open(
                self.path, settings=settings(self.path, grace="1d"), host=Host(clock=self.clock)
            ) as store:
                topic = store.create_topic("e")
                topic.append(b"private", key="e", sync=True)
                self._tier(store, 5 * HOUR_US)
                erasure = topic.erase(["e"])
                self.server.held_until = datetime.now(UTC) + timedelta(days=1)
                while erasure.state != "done":
                    if "Object Lock" in erasure.waits_for:
                        self.server.held_until = None
                    ahead = 86_400 * next(days)
                    for module in (erasures, store_sweep):
                        patch.setattr(module, "server_seconds", lambda store: real(store) + ahead)  # noqa: B023
                    self._tier(store, 5 * HOUR_US)
                    self.clock.advance(86_400)
                    store.sweep()

    def begin_to_erase(self) -> None:
        """Leave an erasure open, which a restore to an earlier time limits."""
        with tiered.open(self.path, settings=settings(self.path), host=Host(clock=self.clock)) as store:
            topic = store.topic("e")
            topic.append(b"later", key="later", sync=True)
            topic.erase(["nobody"])
            self._tier(store, 5 * HOUR_US)

    def sweep(self) -> None:
        """Delete what nothing names, what is left of a deleted topic, a lease and an upload that are long over."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "LEASE_SECONDS_MAX", 0)
            with tiered.open(self.path, settings=settings(self.path), host=Host(clock=self.clock)) as store:
                store.tierer.erasures.exchange()
                store.delete_topic("gone")
                reports = [store.sweep(), store.sweep()]
        assert [report.problems for report in reports] == [(), ()]
        assert any(part.uploads for report in reports for part in report.parts)

    def leave(self, client: Any) -> None:
        """Leave parts of an upload behind, as a killed tierer does, and a lease, as a killed reader. By no role."""
        data = next(key for key in keys_in(client) if key.startswith(f"{PREFIX}/t/") and "/data/" in key)
        client.create_multipart_upload(
            Bucket=BUCKET, Key=f"{data.rpartition('/')[0]}/{ObjectName(0, 1, uuid4())}"
        )
        Lease.take(open_object_store(URL))

    def damage(self, client: Any) -> None:
        """Spoil a manifest and the documents of the topic and the store. By no role."""
        for key in keys_in(client):
            in_topic = key.startswith(f"{PREFIX}/t/") and key.endswith(("/head.json", "/topic.json"))
            if in_topic or key == f"{PREFIX}/store.json":
                client.put_object(Bucket=BUCKET, Key=key, Body=b"spoilt")

    def repair(self) -> None:
        """Put right what was damaged, from what the disk and the objects have."""
        report = repair_store(open_tiers(settings(self.path)), deep=True, rebuild_manifest=True)
        assert report.problems == (), report

    def read(self) -> None:
        """From the bucket's URL in Python and as Spark's driver and tasks do."""
        with tiered.open(URL) as bucket:
            assert bucket.topics() == ["e", "t"]
            assert bucket.topic("t").scan().to_arrow().num_rows == 3
            assert bucket.topic("t").table().records >= 3
            bucket.status()
        from tests.support.spark_read import direct

        assert direct(URL, topic="t").num_rows == 3

    def hold_a_lease(self) -> None:
        """Take, renew and release a lease, and read meanwhile."""
        store = open_object_store(URL)
        lease = Lease.take(store)
        lease.renew()
        self.read()
        lease.release()

    def restore(self) -> None:
        """To the newest state, and to one before a topic was deleted, without what an erasure is to remove."""
        host = Host(clock=self.clock)
        for at in (None, self.before_deletion_us // 1000):
            shutil.rmtree(self.folder / "restored", ignore_errors=True)
            with tiered.restore(
                URL, self.folder / "restored", at=at, settings=restoring(), host=host
            ) as store:
                assert store.topics() == (["e", "t"] if at is None else ["e", "gone", "t"])
                if at is not None:
                    assert store.topic("gone").scan().to_arrow()["key"].to_pylist() == [b"kept"]
        self.path = self.folder / "restored"


def keys_in(client: Any) -> list[str]:
    """Every key of the bucket."""
    return [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]


def recorded(folder: Path, server: S3, become: Callable[[str | None], None]) -> dict[str, set[Asked]]:
    """Play every role against a server of its own; return what each asked.

    Parameters
    ----------
    become
        Called with the role that asks from now on; None is nobody's.
    """
    found: dict[str, set[Asked]] = {}
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(s3_thread(server))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ENDPOINT_URL", url)
        # A handful of objects has pages, as a large store has.
        patch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
        patch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)
        patch.setattr(probe, "RACES", 1)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket=BUCKET)
        server.keeps_versions = True
        deployment = Deployment(folder, server)

        def play(role: str, *acts: Callable[[], None]) -> None:
            become(role)
            with recording() as asked:
                for act in acts:
                    act()
            become(None)
            found.setdefault(role, set()).update(asked)

        play("writer", deployment.erase, deployment.write, deployment.begin_to_erase)
        play("reader", deployment.read)
        play("reader with leases", deployment.hold_a_lease)
        play("restore", deployment.restore)
        deployment.leave(client)
        play("writer", deployment.sweep)
        deployment.damage(client)
        play("writer", deployment.repair)
    return found
