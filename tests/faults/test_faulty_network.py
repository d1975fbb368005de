"""S3 over a faulty network: each operation under each fault gives the right answer or a typed error."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import boto3
import pytest

from tests.support.faulty_proxy import STRIKES, Proxy, Rule, proxying
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.s3_store import S3Store
from tiered.errors import ColdStorageError, CorruptionError, ObjectNotFound, PreconditionFailed

SECRET = "hush-hush-secret"
MIB = 1 << 20
SMALL = b"some bytes of an object that was there before " * 5


@dataclass
class Bench:
    """A bucket, seen through the proxy and, by `raw`, as it is."""

    proxy: Proxy
    bucket: str
    raw: S3Store

    @functools.cached_property
    def store(self) -> S3Store:
        """Reached through the proxy, with two attempts and short timeouts."""
        options = ColdOptions(
            endpoint_url=self.proxy.url,
            region="us-east-1",
            access_key="key-id",
            secret_key=SECRET,
            attempts=2,
            connect_timeout_seconds=1.0,
            read_timeout_seconds=0.5,  # what is tried again has to be answered in it, on a busy machine, too
            part_bytes=5 * MIB,
        )
        store = open_object_store(f"s3://{self.bucket}/p", options)
        assert isinstance(store, S3Store)
        return store


@pytest.fixture(scope="module")
def bench(s3_endpoint: str) -> Iterator[Bench]:
    bucket = f"faults-{uuid4().hex}"
    boto3.client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=bucket)
    options = ColdOptions(endpoint_url=s3_endpoint, region="us-east-1", access_key="k", secret_key="s")
    with proxying(s3_endpoint) as proxy:
        raw = open_object_store(f"s3://{bucket}/p", options)
        assert isinstance(raw, S3Store)
        raw.put("there/a", SMALL)
        raw.put("there/b", b"b")
        bench = Bench(proxy, bucket, raw)
        yield bench
        bench.store.close()
        raw.close()


@pytest.fixture(autouse=True)
def no_rules(bench: Bench, struck: Counter[str]) -> Iterator[None]:
    bench.proxy.rules.clear()
    yield
    bench.proxy.land()
    struck.update({f"HTTP {kind}": count for kind, count in bench.proxy.struck.items()})
    bench.proxy.struck.clear()


def upload(store: S3Store, key: str, data: bytes) -> int:
    with store.upload(key) as sending:
        sending.write(data)
        return sending.commit().size


LARGE = bytes(range(256)) * (6 * MIB // 256)

READS: dict[str, tuple[Callable[[S3Store, str], object], object]] = {
    "get": (lambda store, key: store.get("there/a").data, SMALL),
    "range": (lambda store, key: store.get_range("there/a", 3, 50), SMALL[3:53]),
    "ranges": (lambda store, key: store.get_ranges("there/a", [(0, 7), (40, 8)]), [SMALL[:7], SMALL[40:48]]),
    "stat": (lambda store, key: store.stat("there/a").size, len(SMALL)),
    "list": (lambda store, key: [item.key for item in store.list("there/")], ["there/a", "there/b"]),
    "folders": (lambda store, key: "there" in store.folders(""), True),
}
WRITES: dict[str, tuple[Callable[[S3Store, str], object], bytes]] = {
    "put": (lambda store, key: store.put(key, SMALL), SMALL),
    "create": (lambda store, key: store.put(key, SMALL, if_none_match=True), SMALL),
    "upload": (lambda store, key: upload(store, key, SMALL), SMALL),
    "multipart": (lambda store, key: upload(store, key, LARGE), LARGE),
}
CALLS = {**READS, **WRITES}


def slow_but(chosen: set[str], names: Iterable[str]) -> list[Any]:
    """All names; those that are not chosen belong to the long run."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


# What the SDK, or the verified read, gets over by itself when it happens once.
PASSING = {
    "500", "503 SlowDown", "400 RequestTimeout", "reset before", "timeout before", "500 after", "slow",
}  # fmt: skip


def check_words(error: Exception, store: S3Store, key: str) -> None:
    """The error says which operation on which object, in one line, and no secret."""
    text = str(error)
    assert "\n" not in text
    assert SECRET not in f"{error!r}{text}{error.__cause__!r}"
    if type(error) is not CorruptionError:
        assert isinstance(error, ColdStorageError)
        assert re.search(
            r"cannot (get|put|upload|stat|list|folders)|upload it again|without an ETag", text
        ), text
    assert f"{store.url}/{key}".rstrip("/") in text, text


def ask(bench: Bench, name: str) -> tuple[object, Exception | None, str]:
    """Make a call under the rules in force; return its answer or its error, and the key of a write."""
    key = f"{name}/{uuid4().hex}"
    try:
        return CALLS[name][0](bench.store, key), None, key
    except (ColdStorageError, CorruptionError) as error:
        check_words(error, bench.store, key if name in WRITES else "there" if name != "folders" else "")
        return None, error, key


@pytest.mark.extended
@pytest.mark.parametrize("name", slow_but({"get", "ranges", "list"}, READS))
@pytest.mark.parametrize("kind", sorted(set(STRIKES) - {"late", "twice", "body damaged on the way"}))
def test_a_read_gives_what_is_there_or_a_typed_error(bench: Bench, kind: str, name: str) -> None:
    """Once or for ever: no wrong bytes, no missing bytes, nothing listed that is not there, nothing left out."""
    expected = READS[name][1]
    for times in (1, 1 << 30):
        bench.proxy.rules[:] = [Rule(kind, times=times)]
        answer, error, _ = ask(bench, name)
        if kind.startswith("flipped") and (name, kind) not in (("get", "flipped"), ("stat", "flipped")):
            continue  # S3 gives no checksum of a range or a listing: who knows what the bytes are verifies them
        assert error is not None or answer == expected
        if times == 1 and kind in PASSING:
            assert error is None, error
        if kind == "404" and name in ("get", "range", "ranges", "stat"):
            assert isinstance(error, ObjectNotFound) or times == 1
        elif error is not None:
            assert not isinstance(error, ObjectNotFound)


@pytest.mark.extended
@pytest.mark.parametrize("name", slow_but({"create", "multipart"}, WRITES))
@pytest.mark.parametrize("kind", sorted(STRIKES))
def test_a_write_that_succeeds_is_there_and_an_unknown_one_is_never_called_a_refusal(
    bench: Bench, kind: str, name: str
) -> None:
    """After success the bytes are in the bucket; an error of something that took effect can be settled by reading."""
    for times in (1, 1 << 30):
        bench.proxy.rules[:] = [Rule(kind, method="PUT|POST", times=times, lands_after=2)]
        _, error, key = ask(bench, name)
        bench.proxy.rules.clear()
        bench.proxy.land()
        try:
            found = bench.raw.get(key).data
        except ObjectNotFound:
            found = None
        if error is None:
            assert found == WRITES[name][1]
        elif found is not None:
            assert error.retryable or isinstance(error, PreconditionFailed), error
        if times == 1 and kind in PASSING and name in ("put", "upload"):
            assert error is None, error
