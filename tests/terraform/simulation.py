"""What IAM would say: policies rendered from the module's own templates, requests as actions on ARNs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.terraform.roles import BUCKET, KINDS, PREFIX, Asked

POLICIES = Path(__file__).resolve().parents[2] / "terraform" / "policies"
KEY_ARN = "arn:aws:kms:us-east-1:123456789012:key/k"
BUCKET_ARN = f"arn:aws:s3:::{BUCKET}"
VALUES = {
    "bucket_arn": BUCKET_ARN,
    "objects_arn": f"{BUCKET_ARN}/{PREFIX}",
    "prefix": PREFIX,
    "region": "us-east-1",
    "kms_key_arn": KEY_ARN,
}

# What each policy is made of, with every option on, as `role_parts` in iam.tf has it.
PARTS = {
    "writer": ("writer", "part-tags", "part-kms-read", "part-kms-write"),
    "reader": ("reader", "part-kms-read"),
    "reader with leases": ("reader", "part-leases", "part-kms-read", "part-kms-write"),
    "restore": ("restore", "part-tags", "part-kms-read", "part-kms-write"),
}

_UUID = "0a1b2c3d-0000-4000-8000-00000000000f"
# Keys of each kind; the topics are called like the folders of a store, which must open nothing.
_SAMPLES = {
    "store.json": ("store.json",),
    "erasures.json": ("erasures.json",),
    "erasures/": (f"erasures/{_UUID}.arrow",),
    "leases/": (f"leases/{_UUID}.json",),
    "probe/": ("probe/clock", f"probe/{_UUID}"),
    ".damaged/": (f".damaged/{_UUID}-head.json",),
    "topic.json": tuple(f"{name}/{_UUID}/topic.json" for name in ("t", "data", "pages", "leases", "probe")),
    "head.json": tuple(f"{name}/{_UUID}/0/head.json" for name in ("t", "data", "pages", "leases", "probe")),
    "table/": tuple(
        f"{name}/{_UUID}/table/metadata/v1.metadata.json" for name in ("t", "data", "pages", "table")
    ),
    "pages/": tuple(f"{name}/{_UUID}/0/pages/{_UUID}.json.zst" for name in ("t", "data", "leases", "probe")),
    "data/": tuple(
        f"{name}/{_UUID}/0/data/{0:020d}-{1:08d}-{_UUID}.parquet" for name in ("t", "pages", "leases")
    ),
}

# S3's documentation of each operation, "Permissions"; If-Match reads what it compares.
_ACTIONS = {
    "GetObject": ("s3:GetObject",),
    "HeadObject": ("s3:GetObject",),
    "PutObject": ("s3:PutObject",),
    "CreateMultipartUpload": ("s3:PutObject",),
    "UploadPart": ("s3:PutObject",),
    "CompleteMultipartUpload": ("s3:PutObject",),
    "AbortMultipartUpload": ("s3:AbortMultipartUpload",),
    "DeleteObjects": ("s3:DeleteObject",),
    "ListObjectsV2": ("s3:ListBucket",),
    "ListMultipartUploads": ("s3:ListBucketMultipartUploads",),
    "ListObjectVersions": ("s3:ListBucketVersions",),
}
_OF_VERSIONS = {"DeleteObjects": ("s3:DeleteObjectVersion",), "HeadObject": ("s3:GetObjectVersion",)}
_HOLDS = ("s3:GetObjectRetention", "s3:GetObjectLegalHold")
_KMS = {
    "GetObject": ("kms:Decrypt",),
    "PutObject": ("kms:GenerateDataKey",),
    "CreateMultipartUpload": ("kms:GenerateDataKey",),
    "UploadPart": ("kms:GenerateDataKey", "kms:Decrypt"),
    "CompleteMultipartUpload": ("kms:Decrypt",),
}
ACTIONS = sorted(
    {name for names in _ACTIONS.values() for name in names}
    | {"s3:PutObjectTagging", "s3:DeleteObjectVersion", "s3:GetObjectVersion", *_HOLDS}
)
_BY_PREFIX = {"s3:ListBucket", "s3:ListBucketVersions"}
BUCKET_ACTIONS = _BY_PREFIX | {"s3:ListBucketMultipartUploads"}

Permission = tuple[str, str]


def rendered(role: str) -> dict[str, Any]:
    """Return the policy of a role, as Terraform's templatefile makes it."""
    statements: list[Any] = []
    for part in PARTS[role]:
        text = (POLICIES / f"{part}.json.tftpl").read_text(encoding="utf-8")
        assert "%{" not in text, "a template holds values alone, so that this renders it as Terraform does"
        statements += json.loads(re.sub(r"\$\{(\w+)\}", lambda found: VALUES[found[1]], text))["Statement"]
    return {"Version": "2012-10-17", "Statement": statements}


def allows(policy: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """Whether a policy of Allow statements allows this; ``*`` and ``?`` match slashes, as in IAM."""
    return any(
        statement["Effect"] == "Allow"
        and action in statement["Action"]
        and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        and all(_holds(name, tests, context) for name, tests in statement.get("Condition", {}).items())
        for statement in policy["Statement"]
    )


def denies(policy: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """Whether one of a policy's Deny statements holds, whoever asks."""
    return any(
        statement["Effect"] == "Deny"
        and any(fnmatchcase(action, pattern) for pattern in statement["Action"])
        and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        and all(_holds(name, tests, context) for name, tests in statement.get("Condition", {}).items())
        for statement in policy["Statement"]
    )


def _holds(operator: str, tests: dict[str, list[str]], context: dict[str, str]) -> bool:
    return all(_one_holds(operator, context.get(key), values) for key, values in tests.items())


def _one_holds(operator: str, value: str | None, values: list[str]) -> bool:
    """Compare as IAM does: a key that is not there fits a negated operator and one with IfExists, and no other."""
    if operator == "Null":
        return values == [str(value is None).lower()]
    if value is None:
        return operator.endswith("IfExists") or operator == "StringNotEquals"
    compared: dict[str, Callable[[str], bool]] = {
        "Bool": lambda wanted: value == wanted,
        "NumericLessThan": lambda wanted: float(value) < float(wanted),
        "StringEquals": lambda wanted: value == wanted,
        "StringLike": lambda wanted: fnmatchcase(value, wanted),
    }
    if operator == "StringNotEquals":
        return value not in values
    return any(compared[operator](wanted) for wanted in values)


def needed(asked: Asked, *, encrypted: bool = True) -> Iterable[str]:
    """Return the actions that one request needs."""
    yield from _OF_VERSIONS[asked.operation] if asked.version else _ACTIONS[asked.operation]
    if asked.holds:
        yield from _HOLDS
    if asked.condition == "match":
        yield "s3:GetObject"
    if asked.tagged:
        yield "s3:PutObjectTagging"
    if encrypted:
        yield from _KMS.get(asked.operation, ())


def permitted(policy: dict[str, Any], asked: Asked, *, encrypted: bool = True) -> list[str]:
    """Return the actions of a request that the policy does not allow."""
    missing = []
    for action in needed(asked, encrypted=encrypted):
        resource, context = f"{BUCKET_ARN}/{asked.key}", {}
        if action.startswith("kms:"):
            resource, context = KEY_ARN, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}
        elif action in BUCKET_ACTIONS:
            # S3 gives the prefix of a listing to the condition, but not that of a listing of uploads.
            resource, context = BUCKET_ARN, {"s3:prefix": asked.key} if action in _BY_PREFIX else {}
        if not allows(policy, action, resource, context):
            missing.append(action)
    return missing


def granted(policy: dict[str, Any]) -> set[Permission]:
    """Return every action that the policy allows, with the kind of object: by trying all on all."""
    found: set[Permission] = set()
    for action in ACTIONS:
        if action in BUCKET_ACTIONS:
            if allows(policy, action, BUCKET_ARN, {"s3:prefix": f"{PREFIX}/"}):
                found.add((action, "(bucket)"))
            continue
        for kind in KINDS:
            answers = {allows(policy, action, f"{BUCKET_ARN}/{PREFIX}/{key}", {}) for key in _SAMPLES[kind]}
            assert len(answers) == 1, f"{action} depends on how a topic is called: {kind}"
            if answers == {True}:
                found.add((action, kind))
    for action in ("kms:Decrypt", "kms:GenerateDataKey"):
        if allows(policy, action, KEY_ARN, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}):
            found.add((action, "(key)"))
    return found


def used(asked: Iterable[Asked]) -> set[Permission]:
    """Return what recorded requests need, in the terms of `granted`."""
    return {
        (action, "(key)" if action.startswith("kms:") else request.kind)
        for request in asked
        for action in needed(request)
    }


def table(recorded: dict[str, set[Asked]]) -> list[str]:
    """Return the rows of the table in docs/deploy-aws.md: recorded operations and allowed actions, by role."""
    rows = ["| Role | Operations recorded | Actions allowed | On |", "|---|---|---|---|"]
    for role, requests in recorded.items():
        by_action: dict[str, tuple[set[str], set[str]]] = {}
        allowed = granted(rendered(role))
        for request in requests:
            for action in needed(request):
                if not action.startswith("kms:"):
                    by_action.setdefault(action, (set(), set()))[0].add(request.operation)
        for action, kind in allowed:
            if kind != "(key)":
                by_action.setdefault(action, (set(), set()))[1].add(kind)
        for action in sorted(by_action):
            operations, kinds = by_action[action]
            places = ", ".join(f"`{kind}`" if kind != "(bucket)" else "the bucket" for kind in sorted(kinds))
            rows.append(f"| {role} | {', '.join(sorted(operations))} | `{action}` | {places} |")
        key = ", ".join(f"`{action}`" for action, kind in sorted(allowed) if kind == "(key)")
        rows.append(f"| {role} | with SSE-KMS | {key} | the key, through S3 |")
    return rows
