"""An AWS account on this machine: moto, but for what it gets wrong for Terraform."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.moto_server import OneAtATime
from tests.terraform.simulation import denies

_SMALLEST = "x-amz-transition-default-minimum-object-size"
_DENIED = (
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>by the bucket's policy</Message></Error>"
)
_XML, _JSON = ("Content-Type", "application/xml"), ("Content-Type", "application/json")


class KeepsWhatWasPut:
    """WSGI middleware: lifecycle configurations and policies of buckets are given back as they were put, as S3 does.

    moto puts a lifecycle together anew from what it knows of it; Terraform's provider waits three minutes for its own
    words and gives up. Of a policy that denies moto looks at no condition, and so denies everything. So such
    a policy is enforced here, for what writes an object, as if the request had come by TLS 1.3.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lifecycles: dict[str, tuple[bytes, str]] = {}
        self._policies: dict[str, bytes] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        asked = {part.rstrip("=") for part in environ.get("QUERY_STRING", "").split("&")}
        bucket, _, key = environ["PATH_INFO"].strip("/").partition("/")
        if "lifecycle" in asked:
            return self._lifecycle(bucket, environ, start_response)
        if "policy" in asked:
            return self._policy(bucket, environ, start_response)
        if key and bucket in self._policies and self._writes(asked, environ):
            context = {"aws:SecureTransport": "true", "s3:TlsVersion": "1.3"}
            for name in (
                "if-match",
                "if-none-match",
                "x-amz-server-side-encryption",
                "x-amz-server-side-encryption-aws-kms-key-id",
                "x-amz-server-side-encryption-customer-algorithm",
            ):
                if value := environ.get(f"HTTP_{name.upper().replace('-', '_')}"):
                    context[f"s3:{name}"] = value
            policy = json.loads(self._policies[bucket])
            if denies(policy, "s3:PutObject", f"arn:aws:s3:::{bucket}/{key}", context):
                _body_of(environ)
                start_response("403 Forbidden", [_XML, ("Content-Length", str(len(_DENIED)))])
                return [_DENIED]
        return self._app(environ, start_response)  # type: ignore[no-any-return]

    def _writes(self, asked: set[str], environ: dict[str, Any]) -> bool:
        method = environ["REQUEST_METHOD"]
        return (method == "PUT" and asked == {""}) or (method == "POST" and "uploads" in asked)

    def _lifecycle(self, bucket: str, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "GET" and bucket in self._lifecycles:
            document, smallest = self._lifecycles[bucket]
            start_response("200 OK", [_XML, (_SMALLEST, smallest)])
            return [document]
        if method == "PUT":
            body = _body_of(environ)
            environ["wsgi.input"] = io.BytesIO(body)
            header = f"HTTP_{_SMALLEST.upper().replace('-', '_')}"
            self._lifecycles[bucket] = body, environ.get(header, "all_storage_classes_128K")
        elif method == "DELETE":
            self._lifecycles.pop(bucket, None)
        return self._app(environ, start_response)  # type: ignore[no-any-return]

    def _policy(self, bucket: str, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "PUT":
            body = _body_of(environ)
            if b'"Deny"' in body:
                self._policies[bucket] = body
                start_response("204 No Content", [])
                return [b""]
            environ["wsgi.input"] = io.BytesIO(body)
        elif bucket in self._policies:
            if method == "GET":
                start_response("200 OK", [_JSON])
                return [self._policies[bucket]]
            del self._policies[bucket]
            start_response("204 No Content", [])
            return [b""]
        return self._app(environ, start_response)  # type: ignore[no-any-return]


def _body_of(environ: dict[str, Any]) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return body


@contextmanager
def account() -> Iterator[str]:
    """Serve S3, IAM, KMS, EC2 and the rest of AWS for a while; the URL."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = KeepsWhatWasPut(OneAtATime(server._server.app))  # type: ignore[union-attr]
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
