"""The translation of errors of S3 endpoints and botocore into `ColdStorageError`.

Promise P10 depends on this module: only the code ``NoSuchKey`` means that an object is missing. (If a server answers
``AccessDenied`` instead, `s3_store` lists the name.) A 404 without that code may come from a missing bucket, a proxy or
a server that is starting.
"""

from __future__ import annotations

import re

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from ...errors import ColdStorageError, ObjectNotFound, PreconditionFailed
from .s3_deadline import TooLong, TooSlow

# Everything that a botocore call, or reading its body, raises on purpose, and errors that escape its parsers.
RAISED = (boto.BotoCoreError, boto.ClientError, ResponseParserError, HTTPError, OSError, ValueError)

_WRITES = {"put", "upload"}
_OF_OBJECTS = {"get", "stat", *_WRITES}
_CHAIN = (
    "credentials are those given in the options or, in this order, the AWS_* environment, the shared config and "
    "credentials files (AWS_PROFILE), and the role of the container or instance"
)
_SWITCH_OFF = (
    'it seems to have no conditional writes: set cold.conditional_writes = "off" and run exactly one tierer, '
    "or use a server that has them"
)
_CREDENTIALS = {
    "AccessDenied": "grant them access to this object",
    "AllAccessDisabled": "the account's access is disabled",
    "AuthorizationHeaderMalformed": "check cold.region",
    "ExpiredToken": "the session has expired: renew it",
    "ExpiredTokenException": "the session has expired: renew it",
    "InvalidAccessKeyId": "the access key is unknown there",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "TokenRefreshRequired": "the session has expired: renew it",
}
# What a refused operation needs. A refused read or write may also lack the right to a key of the encryption.
_RIGHTS = {
    "abort": "s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
    "delete versions of": "s3:DeleteObjectVersion, unless Object Lock holds them, which only s3:GetObjectRetention and "
    "s3:GetObjectLegalHold show",
    "folders": "s3:ListBucket",
    "list": "s3:ListBucket",
    "list uploads of": "s3:ListBucketMultipartUploads",
    "list versions of": "s3:ListBucketVersions",
}
# "403" stands for a refused HEAD, which has no body with a code.
_KEYS = {
    "403",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_REGION = {"PermanentRedirect", "IllegalLocationConstraintException", "TemporaryRedirect"}
_TRANSIENT = {
    "BadDigest",  # the bytes were damaged on their way; the server stored nothing
    "IncompleteBody",
    "InternalError",
    "NoSuchUpload",  # it was aborted: the upload is repeated under another name
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "XAmzContentSHA256Mismatch",
}
_THROTTLES = {
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_CONDITION = re.compile(
    r"if-(none-)?match|conditional|precondition|functionality that is not implemented", re.IGNORECASE
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
    boto.SSOError,
    boto.MetadataRetrievalError,
    boto.ProfileNotFound,
)
# Operations of other services, which issue the credentials of a role.
_ROLES = {"AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials"}
_NETWORK = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    ResponseParserError,
    HTTPError,
    OSError,
    ValueError,
)


def translate(
    error: BaseException, operation: str, key: str, url: str, *, endpoint: str = "the S3 endpoint"
) -> ColdStorageError:
    """Return the error for a caller of the object store.

    Parameters
    ----------
    error
        Raised by botocore, or while reading a body that it returned.
    operation
        What was asked of the object store, such as ``get``, ``put``, ``upload``, ``stat``, ``list``, ``delete versions of``.
    key, url
        The object, relative to the store, and the store (``s3://bucket/prefix``).
    endpoint
        Address of the server, for messages.
    """
    subject = f"cannot {operation} {url}/{key}".rstrip("/")
    if isinstance(error, boto.ClientError):
        return _translate_answer(error, operation, subject, url, endpoint)
    text = _one_line(str(error) or type(error).__name__)
    if isinstance(error, _NO_CREDENTIALS):
        return ColdStorageError(f"{subject}: no credentials: {text}; {_CHAIN}")
    if isinstance(error, boto.SSLError):
        return ColdStorageError(
            f"{subject}: no trusted connection to {endpoint}: {text}; check https in cold.endpoint_url and AWS_CA_BUNDLE"
        )
    if isinstance(error, (boto.NoRegionError, boto.InvalidRegionError)):
        return ColdStorageError(f"{subject}: {text}; set cold.region")
    slow = _cause(error, TooSlow)
    if slow is not None:
        return ColdStorageError(
            f"{subject}: {endpoint} was too slow ({slow}); check it and the network, or lower cold.bytes_per_second_min",
            retryable=True,
        )
    text = str(_cause(error, TooLong) or text)
    if isinstance(error, _NETWORK):
        return ColdStorageError(
            f"{subject}: {endpoint} did not answer as it should ({text}); check that it is up and reachable",
            retryable=True,
        )
    return ColdStorageError(f"{subject}: {text}")


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of an answer; 0 if there was none."""
    if not isinstance(error, boto.ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def refuses_keys(error: BaseException) -> bool:
    """Whether the keys may be invalid or expired, or could not be renewed."""
    return isinstance(error, boto.CredentialRetrievalError) or (
        isinstance(error, boto.ClientError) and str(error.response.get("Error", {}).get("Code", "")) in _KEYS
    )


def is_denied(error: BaseException | None) -> bool:
    """Whether an answer says that these keys, or a policy, do not allow the request."""
    return (
        isinstance(error, boto.ClientError) and error.response.get("Error", {}).get("Code") == "AccessDenied"
    )


def is_throttle(code: str, status: int) -> bool:
    """Whether an answer says that there are too many requests."""
    return status in (429, 503) or code in _THROTTLES


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the error of a `kind` that ended a request, if it is wrapped in an error of the SDK."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _translate_answer(
    error: boto.ClientError, operation: str, subject: str, url: str, endpoint: str
) -> ColdStorageError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = _one_line(str(error.response.get("Error", {}).get("Message", "")))
    status = status_of(error)
    # Without an error's body, the SDK takes the status for its code.
    named = [str(status)] if status else []  # an error about one of many objects has none
    named += [code] if code not in ("", str(status)) else []
    answer = f"answered {' '.join(named)}" + (f" ({message})" if message else "")
    transient = code in _TRANSIENT or status in (408, 429) or (status >= 500 and status != 501)
    if error.operation_name in _ROLES:
        answer = f"no credentials: {error.operation_name} {answer}"
        return ColdStorageError(f"{subject}: {answer}; {_CHAIN}", retryable=transient)
    answer = f"{endpoint} {answer}"
    if code == "NoSuchKey" and operation in _OF_OBJECTS:
        # The condition of a write fails if its object is gone.
        kind = PreconditionFailed if operation in _WRITES else ObjectNotFound
        return kind(f"{subject}: there is no such object")
    if code == "NoSuchBucket":
        bucket = url.split("/")[2]
        return ColdStorageError(
            f"{subject}: bucket {bucket} does not exist: create it or correct cold.url ({endpoint})"
        )
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return PreconditionFailed(f"{subject}: the object is in another state than expected ({answer})")
    if transient:
        return ColdStorageError(f"{subject}: {answer}; it may pass", retryable=True)
    if code == "InvalidObjectState":
        return ColdStorageError(
            f"{subject}: {answer}; it was moved to an archive class: restore it there, and let no lifecycle rule move objects"
        )
    if status == 407:
        return ColdStorageError(f"{subject}: {answer}; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY")
    if code in _CREDENTIALS or status in (401, 403):
        hint = _CREDENTIALS.get(code, "it refuses these credentials")
        if code == "AccessDenied" and operation in _RIGHTS:
            hint = f"grant them {_RIGHTS[operation]}"
        if code == "AccessDenied" and operation in ("get", "stat"):
            hint += " (without s3:ListBucket, S3 says so of an object that is not there)"
        return ColdStorageError(f"{subject}: {answer}; {hint}; {_CHAIN}")
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    redirected = 300 <= status < 400
    if code in _REGION or (redirected and "x-amz-bucket-region" in headers):
        return ColdStorageError(f"{subject}: {answer}; the bucket is in another region: set cold.region")
    if redirected:
        target = headers.get("location", "another address")
        return ColdStorageError(
            f"{subject}: {answer}, a redirect to {target}: check http or https and the port in cold.endpoint_url"
        )
    if code == "InvalidRange" or status == 416:
        return ColdStorageError(f"{subject}: {answer}; the object is shorter than expected")
    if operation in _WRITES and (status in (405, 501) or (status == 400 and _CONDITION.search(message))):
        return ColdStorageError(f"{subject}: {answer}; {_SWITCH_OFF}")
    if status == 404:
        return ColdStorageError(
            f"{subject}: {answer}, which names neither object nor bucket; check cold.endpoint_url",
            retryable=True,
        )
    return ColdStorageError(f"{subject}: {answer}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
