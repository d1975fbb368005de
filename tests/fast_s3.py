"""A small, fast S3 server, in memory, in a process of its own: ``python -m tests.fast_s3``.

moto copies an object for every ranged read, accepts wrong checksums and needs several milliseconds a request.
This server knows what the store uses and no more: objects with conditional PUT, ranged GET, HEAD, DELETE (one
and many), listings with prefix and delimiter, multipart uploads, CRC32C compared on arrival. It asks for no
credentials, and counts what it was asked: ``GET /-/counts`` answers JSON, ``POST /-/reset`` begins anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from crc32c import crc32c

ROOT = Path(__file__).resolve().parent.parent
_PAGE_KEYS_MAX = 1000
_XML = {"Content-Type": "application/xml"}


@dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    etag: str
    modified: float
    crc: str = ""
    crc_type: str = "FULL_OBJECT"
    kept: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Multipart:
    key: str
    initiated: float
    kept: dict[str, str]
    parts: dict[int, Stored] = field(default_factory=dict)


class Bucket:
    """All objects of the server, by ``bucket/key``; each change takes effect whole."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Multipart] = {}
        self.counts: Counter[str] = Counter()

    def count(self, operation: str, sent: int = 0, received: int = 0) -> None:
        with self.lock:
            self.counts[operation] += 1
            self.counts["bytes_sent"] += sent
            self.counts["bytes_received"] += received


class _Refusal(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    bucket: Bucket

    def handle_expect_100(self) -> bool:
        """Let the client go on; it waits for that before it sends a body."""
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def _run(self) -> None:
        parts = urlsplit(self.path)
        self.place = unquote(parts.path).lstrip("/")
        self.query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.body = self._read_body()
        try:
            operation = self._operation()
            status, headers, body = getattr(self, operation)()
        except _Refusal as refusal:
            operation, status, headers = refusal.code, refusal.status, _XML
            body = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code></Error>".encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
        if not self.place.startswith("-/"):
            self.bucket.count(operation, 0 if self.command == "HEAD" else len(body), len(self.body))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _run

    def _read_body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        pieces, at = [], 0
        while size := int(body[at : (end := body.index(b"\r\n", at))].split(b";")[0], 16):
            pieces.append(body[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        return b"".join(pieces)

    def _operation(self) -> str:
        if self.place.startswith("-/"):
            return "_admin"
        method, inside = self.command, "/" in self.place.rstrip("/")
        if not inside:
            if method == "PUT":
                return "CreateBucket"
            if method == "HEAD":
                return "HeadBucket"
            if method == "POST" and "delete" in self.query:
                return "DeleteObjects"
            return "ListMultipartUploads" if "uploads" in self.query else "ListObjectsV2"
        if method == "POST":
            return "CreateMultipartUpload" if "uploads" in self.query else "CompleteMultipartUpload"
        if "uploadId" in self.query:
            return {"PUT": "UploadPart", "DELETE": "AbortMultipartUpload"}[method]
        return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[
            method
        ]

    # -- objects ---------------------------------------------------------------------------------

    def GetObject(self) -> tuple[int, dict[str, str], Any]:
        stored = self._stored()
        headers = self._about(stored)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, headers, stored.data
        size = len(stored.data)
        first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
        last = min(size - 1, int(wanted[2])) if wanted[1] and wanted[2] else size - 1
        if first >= size:
            raise _Refusal(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        # The checksum is that of the whole object.
        headers = {name: value for name, value in headers.items() if not name.startswith("x-amz-checksum")}
        return 206, headers, memoryview(stored.data)[first : last + 1]

    def HeadObject(self) -> tuple[int, dict[str, str], bytes]:
        with self.bucket.lock:
            stored = self.bucket.objects.get(self.place)
        if stored is None:
            raise _Refusal(404, "NoSuchKey")
        return 200, {**self._about(stored), "Content-Length": str(len(stored.data))}, b""

    def PutObject(self) -> tuple[int, dict[str, str], bytes]:
        crc = self._checked()
        stored = Stored(
            self.body, f'"{hashlib.md5(self.body).hexdigest()}"', time.time(), crc, kept=self._kept()
        )
        self._replace(stored)
        return 200, {"ETag": stored.etag, **({"x-amz-checksum-crc32c": crc} if crc else {})}, b""

    def DeleteObject(self) -> tuple[int, dict[str, str], bytes]:
        with self.bucket.lock:
            self.bucket.objects.pop(self.place, None)
        return 204, {}, b""

    def DeleteObjects(self) -> tuple[int, dict[str, str], bytes]:
        tree = ElementTree.fromstring(self.body)
        keys = [node.text or "" for node in tree.iter() if node.tag.endswith("Key")]
        with self.bucket.lock:
            for key in keys:
                self.bucket.objects.pop(f"{self.place.rstrip('/')}/{key}", None)
        return 200, _XML, b"<?xml version='1.0'?><DeleteResult></DeleteResult>"

    def _stored(self) -> Stored:
        with self.bucket.lock:
            stored = self.bucket.objects.get(self.place)
        if stored is None:
            raise _Refusal(404, "NoSuchKey")
        return stored

    def _replace(self, stored: Stored) -> None:
        match, none_match = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        with self.bucket.lock:
            known = self.bucket.objects.get(self.place)
            if match is not None and known is None:
                raise _Refusal(404, "NoSuchKey")
            if (match is not None and known is not None and match != known.etag) or (none_match and known):
                raise _Refusal(412, "PreconditionFailed")
            self.bucket.objects[self.place] = stored

    def _checked(self) -> str:
        declared = str(self.headers.get("x-amz-checksum-crc32c", ""))
        if declared and declared != _encoded(crc32c(self.body)):
            raise _Refusal(400, "BadDigest")
        return declared

    def _kept(self) -> dict[str, str]:
        names = ("x-amz-storage-class", "x-amz-tagging", "x-amz-server-side-encryption")
        found = {name: str(self.headers[name]) for name in self.headers if name.lower().startswith(names)}
        return {name.lower(): value for name, value in found.items()}

    def _about(self, stored: Stored) -> dict[str, str]:
        about = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
            **stored.kept,
        }
        about["Accept-Ranges"] = "bytes"
        if stored.crc and self.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            about["x-amz-checksum-crc32c"] = stored.crc
            about["x-amz-checksum-type"] = stored.crc_type
        return about

    # -- multipart -------------------------------------------------------------------------------

    def CreateMultipartUpload(self) -> tuple[int, dict[str, str], bytes]:
        upload_id = uuid4().hex
        with self.bucket.lock:
            self.bucket.uploads[upload_id] = Multipart(self.place, time.time(), self._kept())
        return 200, _XML, _document("InitiateMultipartUploadResult", UploadId=upload_id, Key=self.place)

    def UploadPart(self) -> tuple[int, dict[str, str], bytes]:
        crc = self._checked()
        part = Stored(self.body, f'"{hashlib.md5(self.body).hexdigest()}"', time.time(), crc)
        with self.bucket.lock:
            self._upload().parts[int(self.query["partNumber"])] = part
        return 200, {"ETag": part.etag, **({"x-amz-checksum-crc32c": crc} if crc else {})}, b""

    def CompleteMultipartUpload(self) -> tuple[int, dict[str, str], bytes]:
        tree = ElementTree.fromstring(self.body)
        numbers = [int(node.text or 0) for node in tree.iter() if node.tag.endswith("PartNumber")]
        with self.bucket.lock:
            upload = self._upload()
        parts = [upload.parts[number] for number in numbers]
        data = b"".join(part.data for part in parts)
        sums = b"".join(base64.b64decode(part.crc) for part in parts)
        crc = f"{_encoded(crc32c(sums))}-{len(parts)}" if all(part.crc for part in parts) else ""
        etag = f'"{hashlib.md5(data).hexdigest()}-{len(parts)}"'
        self._replace(Stored(data, etag, time.time(), crc, "COMPOSITE", upload.kept))
        with self.bucket.lock:
            self.bucket.uploads.pop(self.query["uploadId"], None)
        about = {"ETag": etag, **({"ChecksumCRC32C": crc, "ChecksumType": "COMPOSITE"} if crc else {})}
        return 200, _XML, _document("CompleteMultipartUploadResult", **about)

    def AbortMultipartUpload(self) -> tuple[int, dict[str, str], bytes]:
        with self.bucket.lock:
            self._upload()
            del self.bucket.uploads[self.query["uploadId"]]
        return 204, {}, b""

    def _upload(self) -> Multipart:
        upload = self.bucket.uploads.get(self.query.get("uploadId", ""))
        if upload is None or upload.key != self.place:
            raise _Refusal(404, "NoSuchUpload")
        return upload

    # -- the bucket ------------------------------------------------------------------------------

    def CreateBucket(self) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Location": f"/{self.place}"}, b""

    def HeadBucket(self) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, b""

    def ListMultipartUploads(self) -> tuple[int, dict[str, str], bytes]:
        home, prefix = self.place.rstrip("/") + "/", self.query.get("prefix", "")
        with self.bucket.lock:
            found = [
                (upload.key.removeprefix(home), upload_id, upload.initiated)
                for upload_id, upload in self.bucket.uploads.items()
                if upload.key.startswith(home + prefix)
            ]
        body = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(when)}</Initiated></Upload>"
            for key, upload_id, when in sorted(found)
        )
        return 200, _XML, _wrapped("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{body}")

    def ListObjectsV2(self) -> tuple[int, dict[str, str], bytes]:
        home, prefix = self.place.rstrip("/") + "/", self.query.get("prefix", "")
        delimiter, after = self.query.get("delimiter", ""), self.query.get("continuation-token", "")
        limit = min(_PAGE_KEYS_MAX, int(self.query.get("max-keys", _PAGE_KEYS_MAX)))
        with self.bucket.lock:
            objects = self.bucket.objects
            keys = sorted(key.removeprefix(home) for key in objects if key.startswith(home + prefix))
            found, folders, last, more = [], [], "", False
            for key in keys[bisect_left(keys, after + "\0") if after else 0 :]:
                rest = key[len(prefix) :]
                folder = (
                    prefix + rest.split(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
                )
                if folder and (folder == after[: len(folder)] or folder in folders[-1:]):
                    last = key
                    continue
                if len(found) + len(folders) == limit:
                    more = True
                    break
                (folders if folder else found).append(folder or key)
                last = key
            body = [
                f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(found) + len(folders)}</KeyCount>"
            ]
            if more:
                body.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
            for key in found:
                stored = objects[home + key]
                body.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size><ETag>{escape(stored.etag)}"
                    f"</ETag><LastModified>{_iso(stored.modified)}</LastModified></Contents>"
                )
        body += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        return 200, _XML, _wrapped("ListBucketResult", "".join(body))

    def _admin(self) -> tuple[int, dict[str, str], bytes]:
        with self.bucket.lock:
            if self.place == "-/reset":
                self.bucket.counts.clear()
            return 200, {"Content-Type": "application/json"}, json.dumps(self.bucket.counts).encode()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def _encoded(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _document(name: str, **values: str) -> bytes:
    return _wrapped(name, "".join(f"<{key}>{escape(value)}</{key}>" for key, value in values.items()))


def _wrapped(name: str, body: str) -> bytes:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{space}'>{body}</{name}>".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class FastS3:
    """A running server; made by `fast_s3`."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = process

    def counts(self) -> dict[str, int]:
        """Return requests by S3's name of the operation (or of the error), and bytes sent and received."""
        with urllib.request.urlopen(f"{self.url}/-/counts") as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def reset(self) -> None:
        """Begin to count anew."""
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/-/reset", method="POST")).close()


@contextmanager
def fast_s3() -> Iterator[FastS3]:
    """Run a server in a child process for a while. Any credentials do."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fast_s3"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield FastS3(process.stdout.readline().decode().strip(), process)
    finally:
        process.stdin.close()  # which ends it, as our own death would
        process.stdout.close()
        process.wait(30)


def main() -> None:
    """Serve on a random port, whose URL is the first line printed, until standard input ends."""
    handler = type("Handler", (_Handler,), {"bucket": Bucket()})
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
