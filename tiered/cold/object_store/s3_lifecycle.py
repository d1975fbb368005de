"""Lifecycle rules of a bucket that delete old versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import ColdStorageError, ObjectsHeld
from .protocol import VersionRule
from .s3_client import S3Client
from .s3_errors import status_of


def version_rule(client: S3Client) -> VersionRule | None:
    """Return the fastest rule that deletes every old version of every object of a store.

    None if there is none, or these keys may not read the rules (``s3:GetLifecycleConfiguration``), or the server has none.

    Raises
    ------
    ColdStorageError
        The server failed; a repetition may succeed.
    """
    try:
        answer = client.call("read lifecycle rules of", "", "get_bucket_lifecycle_configuration")
    except ColdStorageError as error:
        # S3 answers 404 for a bucket without rules.
        if status_of(error.__cause__) not in (400, 403, 404, 405, 501):
            raise
        return None
    rules = (_version_rule(rule, client.prefix) for rule in answer.get("Rules", ()))
    return min((rule for rule in rules if rule), key=lambda rule: rule.days, default=None)


def error_of_expiring(client: S3Client, refused: Sequence[tuple[str, str]]) -> ObjectsHeld | None:
    """Return the error for versions that these keys may not delete, by key and id; None if no rule of the bucket does.

    Raises
    ------
    ColdStorageError
        As `version_rule` does.
    """
    rule = version_rule(client)
    if rule is None:
        return None
    goes = "version goes" if len(refused) == 1 else "versions go"
    return ObjectsHeld(
        f"{len(refused)} old {goes} by lifecycle rule {rule.id!r} of the bucket, which deletes old versions after "
        f"{rule.days} days, such as one of {client.url}/{refused[0][0]}",
        rule_days=rule.days,
    )


def _version_rule(rule: dict[str, Any], prefix: str) -> VersionRule | None:
    expiration = rule.get("NoncurrentVersionExpiration") or {}
    days = expiration.get("NoncurrentDays")
    if rule.get("Status") != "Enabled" or not days or expiration.get("NewerNoncurrentVersions"):
        return None
    if not all(name == "Prefix" and prefix.startswith(value) for name, value in _conditions(rule)):
        return None
    return VersionRule(str(rule.get("ID", "")), int(days))


def _conditions(rule: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each condition on the objects of a rule; old rules have a prefix and no filter."""
    yield "Prefix", rule.get("Prefix") or ""
    for name, value in (rule.get("Filter") or {}).items():
        yield from value.items() if name == "And" else ((name, value),)
