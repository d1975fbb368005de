"""Each thing that S3 or botocore can say becomes an error that says what to do."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from tiered.cold.object_store.s3_errors import translate
from tiered.errors import ColdStorageError, ObjectNotFound, PreconditionFailed

ENDPOINT = "http://127.0.0.1:9"


def answered(status: int, code: str, message: str = "words") -> boto.ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "Operation")


FOR_GOOD, PASSING = (ColdStorageError, False), (ColdStorageError, True)
ABSENT, CONFLICT = (ObjectNotFound, False), (PreconditionFailed, False)

ANSWERS = [
    (404, "NoSuchKey", "get", ABSENT, "no such object"),
    (404, "NoSuchKey", "put", CONFLICT, "no such object"),
    (404, "NoSuchBucket", "get", FOR_GOOD, "bucket bucket does not exist: create it or correct cold.url"),
    (404, "404", "stat", PASSING, "names neither object nor bucket; check cold.endpoint_url"),
    (404, "NotFound", "get", PASSING, "check cold.endpoint_url"),
    (404, "NoSuchUpload", "upload", PASSING, "may pass"),
    (403, "AccessDenied", "get", FOR_GOOD, "grant them access"),
    (403, "AccessDenied", "get", FOR_GOOD, "without s3:ListBucket"),
    (403, "InvalidObjectState", "get", FOR_GOOD, "archive class"),
    (403, "InvalidAccessKeyId", "put", FOR_GOOD, "AWS_PROFILE"),
    (403, "SignatureDoesNotMatch", "put", FOR_GOOD, "secret key"),
    (400, "ExpiredToken", "list", FOR_GOOD, "renew"),
    (403, "RequestTimeTooSkewed", "list", FOR_GOOD, "clock"),
    (403, "403", "stat", FOR_GOOD, "AWS_PROFILE"),
    (407, "", "get", FOR_GOOD, "HTTPS_PROXY"),
    (401, "Unauthorized", "stat", FOR_GOOD, "AWS_PROFILE"),
    (412, "PreconditionFailed", "put", CONFLICT, "another state"),
    (409, "ConditionalRequestConflict", "upload", CONFLICT, "another state"),
    (409, "OperationAborted", "put", PASSING, "may pass"),
    (501, "NotImplemented", "put", FOR_GOOD, 'cold.conditional_writes = "off"'),
    (405, "MethodNotAllowed", "upload", FOR_GOOD, 'cold.conditional_writes = "off"'),
    (400, "InvalidArgument", "put", FOR_GOOD, "words"),
    (301, "PermanentRedirect", "get", FOR_GOOD, "cold.region"),
    (301, "301", "get", FOR_GOOD, "answered 301 (words), a redirect"),
    (308, "308", "get", FOR_GOOD, "cold.endpoint_url"),
    (416, "InvalidRange", "get", FOR_GOOD, "shorter than expected"),
    (400, "BadDigest", "put", PASSING, "may pass"),
    (400, "RequestTimeout", "put", PASSING, ENDPOINT),
    (429, "TooManyRequests", "list", PASSING, ENDPOINT),
    (500, "InternalError", "get", PASSING, ENDPOINT),
    (503, "SlowDown", "put", PASSING, ENDPOINT),
    (502, "502", "get", PASSING, ENDPOINT),
    (400, "EntityTooLarge", "upload", FOR_GOOD, "EntityTooLarge (words)"),
    # In an answer to DeleteObjects each object has a code of its own and no status.
    (0, "InternalError", "delete", PASSING, "may pass"),
    (0, "AccessDenied", "delete", FOR_GOOD, "answered AccessDenied (words); grant them s3:DeleteObject;"),
]

RAISED = [
    (boto.NoCredentialsError(), FOR_GOOD, "AWS_* environment"),
    (boto.PartialCredentialsError(provider="env", cred_var="x"), FOR_GOOD, "AWS_PROFILE"),
    (boto.CredentialRetrievalError(provider="x", error_msg="y"), FOR_GOOD, "AWS_PROFILE"),
    (boto.UnauthorizedSSOTokenError(), FOR_GOOD, "AWS_PROFILE"),
    (boto.EndpointConnectionError(endpoint_url=ENDPOINT), PASSING, ENDPOINT),
    (boto.ConnectTimeoutError(endpoint_url=ENDPOINT), PASSING, ENDPOINT),
    (boto.ReadTimeoutError(endpoint_url=ENDPOINT), PASSING, ENDPOINT),
    (boto.ConnectionClosedError(endpoint_url=ENDPOINT), PASSING, ENDPOINT),
    (boto.ProxyConnectionError(proxy_url="http://p"), PASSING, ENDPOINT),
    (boto.HTTPClientError(error="x"), PASSING, ENDPOINT),
    (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), PASSING, ENDPOINT),
    (boto.ResponseStreamingError(error="broken off"), PASSING, "broken off"),
    (boto.FlexibleChecksumError(error_msg="x"), PASSING, ENDPOINT),
    (boto.SSLError(endpoint_url=ENDPOINT, error="x"), FOR_GOOD, "AWS_CA_BUNDLE"),
    (boto.NoRegionError(), FOR_GOOD, "cold.region"),
    (boto.ParamValidationError(report="bad\n  bucket"), FOR_GOOD, "bad bucket"),
    (ResponseParserError("not XML"), PASSING, "not XML"),
    (ProtocolError("cut"), PASSING, ENDPOINT),
    (ValueError("a time that is none"), PASSING, "a time that is none"),
    (ConnectionResetError("reset"), PASSING, ENDPOINT),
    (PermissionError(1, "a firewall"), PASSING, ENDPOINT),
    (
        boto.InvalidConfigError(error_msg="Invalid CA bundle"),
        FOR_GOOD,
        "prefix/folder/key: Invalid CA bundle",
    ),
]


def check(error, operation, expected, words):
    translated = translate(error, operation, "folder/key", "s3://bucket/prefix", endpoint=ENDPOINT)
    message = str(translated)
    assert (type(translated), translated.retryable) == expected
    assert words in message
    assert message.startswith(f"cannot {operation} s3://bucket/prefix/folder/key: ")
    assert "\n" not in message


@pytest.mark.parametrize(("status", "code", "operation", "expected", "words"), ANSWERS)
def test_an_answer(status, code, operation, expected, words):
    check(answered(status, code), operation, expected, words)


@pytest.mark.parametrize(("error", "expected", "words"), RAISED, ids=lambda value: type(value).__name__)
def test_an_error_of_botocore(error, expected, words):
    check(error, "get", expected, words)


def test_a_refused_role_is_not_blamed_on_the_bucket():
    """The SDK asks another service for a role's keys, in the midst of a request to S3."""
    error = answered(403, "AccessDenied", "Not authorized")
    error.operation_name = "AssumeRoleWithWebIdentity"
    check(error, "get", FOR_GOOD, "no credentials: AssumeRoleWithWebIdentity answered 403 AccessDenied")
    assert ENDPOINT not in str(translate(error, "get", "k", "s3://b", endpoint=ENDPOINT))
    error.response["ResponseMetadata"]["HTTPStatusCode"] = 503
    check(error, "get", PASSING, "AssumeRoleWithWebIdentity answered 503")


def test_a_refused_condition_names_the_setting_and_any_other_bad_request_does_not():
    message = "A header you provided implies functionality that is not implemented"
    refused = translate(answered(400, "InvalidRequest", message), "put", "k", "s3://b")
    assert "conditional_writes" in str(refused)
    assert "conditional_writes" not in str(translate(answered(400, "InvalidRequest"), "put", "k", "s3://b"))
    assert "conditional_writes" not in str(
        translate(answered(400, "InvalidRequest", message), "get", "k", "s3://b")
    )
