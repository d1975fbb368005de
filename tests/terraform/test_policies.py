"""Each IAM policy allows exactly what the engine asks for in that role: nothing is missing, nothing is spare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.terraform.policed import Policed
from tests.terraform.roles import Asked, recorded
from tests.terraform.simulation import (
    BUCKET_ARN,
    PARTS,
    POLICIES,
    allows,
    granted,
    permitted,
    rendered,
    table,
    used,
)

# One process records what the roles ask for.
pytestmark = pytest.mark.xdist_group("policies of roles")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "deploy-aws.md"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[Asked]]:
    pytest.importorskip("pyspark")
    server = Policed()

    def become(role: str | None) -> None:
        server.policy = None if role is None else rendered(role)

    return recorded(tmp_path_factory.mktemp("roles"), server, become)


@pytest.mark.extended
@pytest.mark.parametrize("role", PARTS)
def test_a_policy_allows_what_the_role_asks_and_no_more(role: str, asked: dict[str, set[Asked]]) -> None:
    """Recorded against a server, request by request and key by key; then the sets are equal, kind by kind."""
    policy = rendered(role)
    refused = {
        (request.operation, request.key, action)
        for request in asked[role]
        for action in permitted(policy, request)
    }
    assert refused == set()
    # A writer reads, too; so a reader with leases is asked for what any reader is.
    assert granted(policy) == used(asked[role])


def test_every_object_of_every_kind_was_met(asked: dict[str, set[Asked]]) -> None:
    """The recording is of everything that a writer does: a part of it would prove little."""
    writer = asked["writer"]
    assert {request.kind for request in writer} == {
        "(bucket)", "store.json", "erasures.json", "erasures/", "leases/", "probe/", ".damaged/", "topic.json", "head.json", "table/", "pages/", "data/",
    }  # fmt: skip
    assert {
        request.condition
        for request in writer
        if request.kind == "head.json" and request.operation == "PutObject"
    } == {
        "match",
        "none",
    }, "the bucket refuses a head that is written without a condition"


def test_nothing_beside_the_prefix_and_no_document_of_a_store_is_open() -> None:
    """Another store in the bucket, a user's own object, and what no role may ever delete."""
    for role in PARTS:
        policy = rendered(role)
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            for key in ("other/store.json", "events2/store.json", "events/mine.csv", "store.json"):
                assert not allows(policy, action, f"{BUCKET_ARN}/{key}", {}), (role, action, key)
            assert not allows(policy, "s3:ListBucket", BUCKET_ARN, {"s3:prefix": "other/"})
        assert not allows(policy, "s3:DeleteObject", f"{BUCKET_ARN}/events/store.json", {})
        # Who names no prefix would see what else is in the bucket.
        for context in ({}, {"s3:prefix": ""}, {"s3:prefix": "events"}, {"s3:prefix": "events2/"}):
            assert not allows(policy, "s3:ListBucket", BUCKET_ARN, context)


def test_a_writer_may_do_all_that_a_restore_does() -> None:
    """So a new host needs its profile alone; and who may only restore, deletes no data."""
    restore = granted(rendered("restore"))
    assert restore < granted(rendered("writer"))
    assert ("s3:DeleteObject", "data/") not in restore


def test_every_template_is_part_of_a_policy() -> None:
    files = {file.name.removesuffix(".json.tftpl") for file in POLICIES.iterdir()}
    assert files == {part for parts in PARTS.values() for part in parts}


def test_the_documentation_has_the_table(asked: dict[str, set[Asked]]) -> None:
    """Recorded and allowed, by role."""
    made = "\n".join(table(asked))
    assert made in DOCS.read_text(encoding="utf-8"), f"docs/deploy-aws.md should hold\n\n{made}"
