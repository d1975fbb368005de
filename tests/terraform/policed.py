"""An S3 server that asks a policy before each request, as AWS asks those of the caller's role."""

from __future__ import annotations

from typing import Any

from tests.support.s3_server import S3, deleted_by, operation_of
from tests.support.scripted_server import Answer, Request, refusal
from tests.terraform.roles import Asked
from tests.terraform.simulation import BUCKET_ARN, allows, permitted


class Policed(S3):
    """Obeys ``policy``; None lets everything through.

    A missing object is a 404 to who may list the bucket, and 403 to others. For a request of one object no prefix
    is compared here: S3 is said to take its key for one, MinIO and Ceph RGW before 2026 do not, and a store must
    get along with both.
    """

    def __init__(self) -> None:
        super().__init__(fault=self._police)
        self.policy: dict[str, Any] | None = None

    def _police(self, request: Request) -> Answer | None:
        operation = operation_of(request)
        if self.policy is None or operation == "CreateBucket":
            return None
        _, _, key = request.place.partition("/")
        keys = (
            deleted_by(request) if operation == "DeleteObjects" else [key or request.query.get("prefix", "")]
        )
        condition = "match" if "if-match" in request.headers else ""
        tagged = "x-amz-tagging" in request.headers
        version = "versionId" in request.query
        version |= operation == "DeleteObjects" and b"<VersionId>" in request.body
        for each in keys:
            if permitted(self.policy, Asked(operation, each, condition, tagged, version), encrypted=False):
                return refusal(403, "AccessDenied")
        missing = operation in ("GetObject", "HeadObject") and request.place not in self.objects
        if missing and not version and not allows(self.policy, "s3:ListBucket", BUCKET_ARN, {}):
            return refusal(403, "AccessDenied")
        return None
