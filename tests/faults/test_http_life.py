"""The whole life of a topic over a faulty network: what reaches the bucket and the disk holds, and so do reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults.workload import Life
from tests.support.budget import rounds, seconds_of, thinned
from tests.support.faulty_proxy import STRIKES, Proxy, Rule, proxying
from tests.support.s3_server import s3_process
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.s3_store import S3Store

BUCKET = f"life-{uuid4().hex}"
HEAD, DATA, PAGE = r"head\.json", r"/data/.*parquet", r"/pages/"

# The n-th request of the life that matches, and what becomes of it.
CHOSEN = [
    ("reset after", "PUT", HEAD, 1),
    ("timeout after", "PUT", HEAD, 3),
    ("late", "PUT", HEAD, 4),
    ("no etag", "PUT", HEAD, 5),
    ("late", "PUT", DATA, 2),
    ("200 with an error after", "PUT", DATA, 3),
    ("404", "GET", HEAD, 9),
    ("flipped, no checksum", "GET", DATA, 1),
    ("truncated", "GET", DATA, 2),
    ("shortened", "GET", PAGE, 1),
]
PLACES = [
    (method, target, nth)
    for method, target, numbers in [
        ("PUT", HEAD, (0, 1, 4, 6)),
        ("PUT", DATA, (0, 3)),
        ("PUT", PAGE, (0,)),
        ("PUT", r"topic\.json|store\.json", (0, 1)),
        ("GET", HEAD, (2, 8, 20, 30)),
        ("GET", DATA, (0, 4)),
        ("GET", PAGE, (0, 2)),
        ("GET", r"list-type", (0, 1)),
        ("HEAD", DATA, (0, 5)),
    ]
    for nth in numbers
]
# Reading what no checksum covers any more: a listing or a document of names, which TLS protects.
UNVERIFIABLE = {("flipped", "list-type"), ("flipped, no checksum", "list-type"), ("shortened", "list-type")}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_process() as server, proxying(server.url) as proxy:
        yield proxy
    for connections in (DIRECT, FAULTY):
        connections.clear()


def connect(url: str, options: ColdOptions, connections: dict[int, object]) -> S3Store:
    """Open a store on connections that several stores share, and that stay open: making them takes long."""
    store = open_object_store(url, options)
    assert isinstance(store, S3Store)
    store._client._by_process = connections
    store.close = lambda: None
    return store


DIRECT: dict[int, object] = {}
FAULTY: dict[int, object] = {}


def live(proxy: Proxy, root: Path, rules: list[Rule]) -> Life:
    direct = ColdOptions(endpoint_url=proxy.upstream, region="us-east-1", access_key="k", secret_key="hush")
    faulty = replace(direct, endpoint_url=proxy.url, attempts=2, read_timeout_seconds=0.5)
    url = f"s3://{BUCKET}/{uuid4().hex}"
    raw = connect(url, direct, DIRECT)
    life = Life(root, url, raw, lambda url, options: connect(url, faulty, FAULTY), quiet=proxy.quiet)
    proxy.struck.clear()
    proxy.requests.clear()
    proxy.rules[:] = rules
    try:
        life.run(since=lambda: proxy.struck, settle=proxy.land)
    finally:
        proxy.rules.clear()
    for error in life.errors:
        assert "hush" not in repr(error)
    return life


def strike(proxy: Proxy, root: Path, rule: Rule, struck: Counter[str]) -> None:
    life = live(proxy, root, [rule])
    assert proxy.struck, "the rule never matched"
    struck.update({f"HTTP {kind}": count for kind, count in proxy.struck.items()})
    for error in life.errors:
        assert "s3://" in str(error), error


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "method", "target", "nth"), thinned(CHOSEN, 3))
def test_a_fault_on_the_wire_loses_and_doubles_nothing(
    proxy: Proxy, tmp_path: Path, struck: Counter[str], kind: str, method: str, target: str, nth: int
) -> None:
    """One request of the life meets a fault; afterwards the model, the disk and the bucket agree."""
    strike(proxy, tmp_path, Rule(kind, method, target, nth, times=1, lands_after=3), struck)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", sorted(STRIKES))
def test_every_fault_on_the_wire(proxy: Proxy, tmp_path: Path, struck: Counter[str], kind: str) -> None:
    """Every kind of fault at every kind of request: as many as there is time for, others at every run."""
    places = [
        place for place in PLACES if not any(kind == name and part in place[1] for name, part in UNVERIFIABLE)
    ]
    for number, dice in enumerate(rounds(seconds_of(0.10, len(STRIKES)))):
        method, target, nth = places.pop(dice.randrange(len(places)))
        print(f"{kind} at {method} {target} number {nth}")
        strike(proxy, tmp_path / str(number), Rule(kind, method, target, nth, times=1, lands_after=3), struck)
        if not places:
            break
