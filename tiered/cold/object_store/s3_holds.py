"""The holds of Object Lock on versions of objects: no right of a caller deletes a held version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ...errors import ColdStorageError, ObjectsHeld
from .s3_client import S3Client
from .s3_errors import status_of

_CHECKED_MAX = 20  # of the versions that one error is about


class Hold(NamedTuple):
    """A retention until a time, or a legal hold, which has no end."""

    until: datetime | None
    mode: str = ""

    def __str__(self) -> str:
        if self.until is None:
            return "a legal hold"
        return f"Object Lock ({self.mode}) until {self.until:%Y-%m-%d %H:%M} UTC"


def hold_on(client: S3Client, key: str, version_id: str | None = None) -> Hold | None:
    """Return what keeps a version of an object, by default the present one; None if nothing does, or the server does not say.

    Raises
    ------
    ColdStorageError
        The server failed; a repetition may succeed.
    """
    version = {} if version_id is None else {"VersionId": version_id}
    try:
        # The answer says it to those who may know: s3:GetObjectRetention, s3:GetObjectLegalHold.
        answer = client.call("ask what holds", key, "head_object", Key=client.prefix + key, **version)
    except ColdStorageError as error:
        if status_of(error.__cause__) not in (400, 403, 404, 405, 501):
            raise
        return None
    if answer.get("ObjectLockLegalHoldStatus") == "ON":
        return Hold(None)
    until = answer.get("ObjectLockRetainUntilDate")
    if not isinstance(until, datetime) or until <= datetime.now(UTC):
        return None
    return Hold(until.astimezone(UTC), str(answer.get("ObjectLockMode", "")))


def error_of_held(client: S3Client, refused: Sequence[tuple[str, str]]) -> ObjectsHeld | None:
    """Return the error for versions that could not be deleted, by key and id; None if nothing is known to hold them.

    Raises
    ------
    ColdStorageError
        As `hold_on` does.
    """
    holds = [(key, hold_on(client, key, version)) for key, version in refused[:_CHECKED_MAX]]
    held = [(hold, key) for key, hold in holds if hold is not None]
    if not held:
        return None
    # The one that lasts longest: a legal hold, or the last date.
    longest, key = max(held, key=lambda item: item[0].until or datetime.max.replace(tzinfo=UTC))
    at_least = " at least" if len(refused) > _CHECKED_MAX else ""
    noun = "version is" if len(refused) == 1 else "versions are"
    return ObjectsHeld(
        f"{len(refused)} old {noun} kept by {longest}{at_least}, such as one of {client.url}/{key}"
    )
