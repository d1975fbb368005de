"""An S3 endpoint with a latency, for the cases that wait for the bucket: ``python -m benchmarks.endpoint SECONDS``.

It answers as `tests.support.s3_server` does, from one thread with an event loop: a thread for each of hundreds of
connections would take more of the CPU than the store that is measured. Each answer is sent a latency after its request
arrived, and requests do not wait for each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from tests.support.paths import ROOT
from tests.support.s3_server import S3
from tests.support.scripted_server import Answer, Request


class _Connection(asyncio.Protocol):
    def __init__(self, s3: S3, latency_seconds: float) -> None:
        self._s3 = s3
        self._latency_seconds = latency_seconds
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            size = int(headers.get("content-length", 0))
            if len(self._buffer) < end + 4 + size:
                if headers.pop("expect", "") and len(self._buffer) == end + 4:
                    self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            method, path, _ = first.split(" ")
            self._answer(Request(method, path, headers, body))

    def _answer(self, request: Request) -> None:
        if request.path == "/-/cpu":
            times = os.times()
            answer = Answer(200, json.dumps(times.user + times.system).encode())
        else:
            answer = self._s3(request)
        body = b"" if request.method == "HEAD" else bytes(answer.body)
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            "Date: Wed, 01 Jan 2025 00:00:00 GMT",
            f"Content-Length: {len(answer.body)}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
        ]
        data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
        self._send(data)

    def _send(self, data: bytes) -> None:
        if self._latency_seconds:
            asyncio.get_running_loop().call_later(self._latency_seconds, self._transport.write, data)
        else:
            self._transport.write(data)


async def _serve(latency_seconds: float) -> None:
    s3 = S3()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(s3, latency_seconds), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


class Endpoint:
    """A server in a process of its own; made by `endpoint`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def counts(self) -> dict[str, int]:
        """Return the requests so far by S3's name of the operation, and the bytes."""
        return dict(self._get("counts"))

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server so far."""
        return float(self._get("cpu"))

    def _get(self, name: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/-/{name}") as answer:
            return json.load(answer)


@contextmanager
def endpoint(latency_seconds: float) -> Iterator[Endpoint]:
    """Run a server in a child process for a while."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "benchmark")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.endpoint", str(latency_seconds)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Endpoint(process.stdout.readline().decode().strip())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
