"""The client of one S3 bucket: connections per process, verified reads, translated errors."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import botocore.session
from botocore import exceptions as boto
from botocore.config import Config
from botocore.credentials import ProcessProvider

from ...errors import ColdStorageError, ConfigError, CorruptionError
from ...format.checksum import crc32c
from ...version import VERSION
from .keys import oversize_error
from .options import NO_ADDRESS, ColdOptions, endpoint_fault
from .protocol import GET_BYTES_MAX, Bytes
from .request_counters import RequestCounters
from .s3_deadline import make_patient
from .s3_errors import RAISED, is_throttle, refuses_keys, status_of, translate
from .s3_session import new_session
from .throttle import PacedBody, Throttle

# Without credentials, a search for them waits for services that do not answer.
_SEARCH_AGAIN_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_ERROR_BYTES_MAX = 64 << 10
_ERROR_BODY = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?<Error[ >].{0,4096}?<Code>(\w{1,100})</Code>", re.DOTALL)
_ENDPOINT = "cold.endpoint_url, AWS_ENDPOINT_URL or its like"


def encode_crc(value: int) -> str:
    """Return a CRC32C as S3's headers carry it."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def whole_crc_of(answer: Any) -> int | None:
    """Return the CRC32C of the whole object from an answer; None if it has none, or only a composite checksum."""
    declared = str(answer.get("ChecksumCRC32C", ""))
    if "-" in declared or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        return int.from_bytes(base64.b64decode(declared, validate=True), "big") if declared else None
    except ValueError:
        return None


def checksum(data: Bytes) -> dict[str, str]:
    """Return the arguments that make the server verify `data` before it stores it."""
    return {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": encode_crc(crc32c(data))}


@dataclass(slots=True)
class _Connections:
    client: Any
    pool: ThreadPoolExecutor
    throttle: Throttle
    made: float = field(default_factory=time.monotonic)
    refused: bool = False
    """The server refused its keys, or it found none; a new search may find others."""


class S3Client:
    """The client of one prefix of one bucket. Each process connects at its first request.

    The SDK repeats a failed request (mode ``standard``), also a PUT. So a conditional write can be answered with 412
    although an earlier attempt, whose answer was lost, succeeded. Only the content of the object shows that.

    Each request, including repetitions, is counted and waits for the throttle. The SDK's backoff concerns one call, the
    throttle all threads.
    """

    def __init__(self, bucket: str, prefix: str, options: ColdOptions) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.options = options
        self._by_process: dict[int, _Connections] = {}
        self._counters: dict[int, RequestCounters] = {}

    @property
    def counters(self) -> RequestCounters:
        """Counters of this process's requests, over all connections."""
        return self._counters.setdefault(os.getpid(), RequestCounters())

    @property
    def throttle(self) -> Throttle:
        """The throttle, shared by all users of this bucket in this process."""
        return self._connected().throttle

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for ranged reads."""
        return self._connected().pool

    def call(self, operation: str, key: str, method: str, **arguments: Any) -> Any:
        """Make one request (with the SDK's retries) and return its answer; raise translated errors."""
        try:
            return self._request(method, arguments)
        except RAISED as error:
            raise self._translate(error, operation, key) from error

    def head(self, operation: str, key: str) -> Any:
        """Return the answer to a HEAD of `key`, checksum included.

        A HEAD has no body, so a 404 does not say whether the object or the bucket is missing, and a 400 or 403 does not
        say why the keys are refused. Then a GET is sent, whose error does say so.
        """
        arguments = {"Key": self.prefix + key, "ChecksumMode": "ENABLED"}
        try:
            answer = self._request("head_object", arguments)
        except RAISED as error:
            if status_of(error) not in (400, 403, 404):
                raise self._translate(error, operation, key) from error
            self.call(operation, key, "get_object", Key=self.prefix + key)["Body"].close()
            answer = self.call(operation, key, "head_object", **arguments)
        missing = {"ContentLength", "LastModified"}.difference(answer)
        if missing:
            raise ColdStorageError(
                f"cannot {operation} {self.url}/{key}: {self._endpoint()} answered without {min(missing)}",
                retryable=True,
            )
        return answer

    def read(self, key: str, span: tuple[int, int] | None = None) -> tuple[bytes, str]:
        """Return an object, or ``(start, length)`` of it, verified, and its ETag.

        The SDK retries only until the body begins. So this method retries when a body breaks off, or contains an error
        instead of the object. All attempts together take about as long as those of any other call.
        """
        options = self.options
        until = time.monotonic() + options.attempts * (
            options.connect_timeout_seconds + options.read_timeout_seconds
        )
        for attempt in range(options.attempts - 1):
            try:
                return self._read_once(key, span)
            except CorruptionError:
                continue
            except ColdStorageError as error:
                if not isinstance(error.__cause__, _BodyBrokeError) or time.monotonic() > until:
                    raise
                if isinstance(error.__cause__, _ErrorInBodyError):
                    time.sleep(_PAUSE_SECONDS * 2**attempt)
        return self._read_once(key, span)

    def close(self) -> None:
        """Close this process's connections."""
        connections = self._by_process.pop(os.getpid(), None)
        if connections is not None:
            connections.pool.shutdown()
            connections.client.close()

    def encryption(self) -> dict[str, str]:
        """Return the arguments that request encryption at rest."""
        encryption, key = self.options.encryption, self.options.kms_key_id
        if encryption == "off":
            return {}
        return {"ServerSideEncryption": encryption, **({"SSEKMSKeyId": key} if key else {})}

    def check_encrypted(self, answer: Any, where: str) -> None:
        """Raise unless the server confirms the requested encryption: some servers accept the header and ignore it."""
        requested, confirmed = self.options.encryption, answer.get("ServerSideEncryption")
        if requested not in ("off", confirmed):
            raise ColdStorageError(
                f"{where} was stored with encryption {confirmed or 'off'}, not {requested}: {self._endpoint()} ignores "
                'cold.encryption; set it to "off" and encrypt the disks there, or use a server that has it'
            )

    def _read_once(self, key: str, span: tuple[int, int] | None) -> tuple[bytes, str]:
        arguments = {"Key": self.prefix + key, "ChecksumMode": "ENABLED"}
        if span is not None:
            arguments["Range"] = f"bytes={span[0]}-{span[0] + span[1] - 1}"
        answer = self.call("get", key, "get_object", **arguments)
        declared = str(answer.get("ChecksumCRC32C", "-"))  # a dash marks a composite checksum
        whole = span is None and "-" not in declared and answer.get("ChecksumType") != "COMPOSITE"
        answered = str(answer.get("ContentRange", ""))
        with answer["Body"] as body:
            right = span is None or answered.startswith(f"bytes {span[0]}-{span[0] + span[1] - 1}/")
            if span is None and (size := int(answer.get("ContentLength", 0))) > GET_BYTES_MAX:
                raise oversize_error(f"{self.url}/{key}", size)
            try:
                # Of a wrong range, read no more than an error message takes.
                data: bytes = body.read() if right else body.read(_ERROR_BYTES_MAX)
            except RAISED as error:
                raise self._translate(error, "get", key) from _BodyBrokeError(str(error))
        self.counters.received(len(data))
        where = f"{self.url}/{key}"
        if not right or not whole:
            self._check_no_error(key, data)
        if span is not None and not right:
            raise self._other_range(key, span, answered)
        if span is not None and len(data) != span[1]:
            message = f"cannot get {where}: the body ended after {len(data)} of {span[1]} bytes"
            raise ColdStorageError(message, retryable=True) from _BodyBrokeError(message)
        if whole and declared != encode_crc(crc32c(data)):
            raise CorruptionError("the bytes that were read do not match the object's CRC32C", where=where)
        return data, etag_of(answer, where)

    def _check_no_error(self, key: str, data: bytes) -> None:
        """Raise if a server or a proxy answered 200 with an error in the body."""
        match = _ERROR_BODY.match(data)
        if match is None:
            return
        code = match[1].decode()
        if is_throttle(code, 200):
            self.throttle.pace.slow_down()
        raise ColdStorageError(
            f"cannot get {self.url}/{key}: {self._endpoint()} answered 200 with the error {code} in the body; it may pass",
            retryable=True,
        ) from _ErrorInBodyError(code)

    def _other_range(self, key: str, span: tuple[int, int], answered: str) -> ColdStorageError:
        return ColdStorageError(
            f"cannot get {self.url}/{key}: bytes {span[0]}-{span[0] + span[1] - 1} were requested, {self._endpoint()} "
            f"answered {answered or 'without a range'!r}; the object is shorter than expected or the server ignores ranges"
        )

    def _request(self, method: str, arguments: dict[str, Any]) -> Any:
        connections = self._connected()
        if "Body" in arguments:
            arguments = {**arguments, "Body": connections.throttle.paced(arguments["Body"])}
        try:
            return getattr(connections.client, method)(Bucket=self.bucket, **arguments)
        except RAISED as error:
            may_search = time.monotonic() - connections.made >= _SEARCH_AGAIN_SECONDS
            if refuses_keys(error) or (may_search and isinstance(error, boto.NoCredentialsError)):
                connections.refused = True
            raise

    def _translate(self, error: BaseException, operation: str, key: str) -> ColdStorageError:
        return translate(error, operation, key, self.url, endpoint=self._endpoint())

    def _endpoint(self) -> str:
        connections = self._by_process.get(os.getpid())
        return str(connections.client.meta.endpoint_url) if connections else "the S3 endpoint"

    def _connected(self) -> _Connections:
        process = os.getpid()  # sockets and threads do not survive a fork
        connections = self._by_process.get(process)
        if connections is None:
            # Two threads may both connect; setdefault keeps one of them. A lock could be held at a fork.
            connections = self._by_process.setdefault(process, self._connect())
        elif connections.refused:
            # A client reads credential files only once. The old one is not closed: other threads may be using it.
            connections = self._by_process[process] = self._connect()
        return connections

    def _connect(self) -> _Connections:
        options = self.options
        place = f"{options.endpoint_url} {self.bucket}"
        throttle = Throttle.shared(place, options.upload_bytes_per_second, options.requests_per_second)
        try:
            client = _make_client(options)
        except RAISED as error:
            if type(error) is ValueError:
                # The SDK's message repeats the URL, which may contain a password.
                raise ConfigError(f"{_ENDPOINT} {NO_ADDRESS}") from None
            raise self._translate(error, "reach", "") from error
        _Hooks(throttle, self.counters).register(client)
        pool = ThreadPoolExecutor(options.read_threads, thread_name_prefix="tiered-s3-read")
        return _Connections(client, pool, throttle)


@dataclass(frozen=True, slots=True)
class _Hooks:
    """The functions that the SDK calls around each request that it sends, including repetitions."""

    throttle: Throttle
    counters: RequestCounters

    def register(self, client: Any) -> None:
        events = client.meta.events
        # Before the request is signed, since a signature expires.
        events.register_first("request-created.s3", self.created)
        events.register("before-send.s3", self.sending)
        events.register("response-received.s3", self.answered)
        events.register_first("needs-retry.s3.HeadBucket", self.redirected)

    def created(self, request: Any, **_: Any) -> None:
        self.throttle.before_request(free="Range" in request.headers)

    def sending(self, request: Any, event_name: str, **_: Any) -> None:
        self.counters.sent(event_name.rpartition(".")[2], int(request.headers.get("Content-Length") or 0))
        if isinstance(request.body, PacedBody):
            request.body.begin()

    def redirected(self, request_dict: Any, **_: Any) -> None:
        # The SDK asks by HeadBucket for the region of a redirect; without this, endlessly if that is redirected too.
        request_dict["context"]["s3_redirect"]["redirected"] = True

    def answered(self, parsed_response: Any, exception: Exception | None, event_name: str, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]
        if exception is not None:
            self.counters.failed(operation, type(exception).__name__, throttled=False)
            return
        status = int(parsed_response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status < 300:
            return
        code = str(parsed_response.get("Error", {}).get("Code") or status)
        throttled = is_throttle(code, status)
        self.counters.failed(operation, code, throttled=throttled)
        if throttled:
            self.throttle.pace.slow_down()


class _BodyBrokeError(Exception):
    """Marks, as a cause, an answer whose body broke off."""


class _ErrorInBodyError(_BodyBrokeError):
    """Marks, as a cause, an answer of status 200 with an error instead of a body."""


def etag_of(answer: Any, where: str, *, retryable: bool = False) -> str:
    """Return the answer's ETag; raise without one, since no write could be conditional."""
    etag = answer.get("ETag")
    if not etag:
        raise ColdStorageError(
            f"{where}: the server answered without an ETag; it is not usable as an object store",
            retryable=retryable,
        )
    return str(etag)


def _make_client(options: ColdOptions) -> Any:
    session = new_session()
    config = Config(
        # By itself the SDK puts its name together twice a request, in a tenth of the request's time.
        user_agent=f"tiered/{VERSION} {session.user_agent()}",
        retries={"mode": "standard", "total_max_attempts": options.attempts},
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        # Both the threads that fetch ahead and the pool of this client read.
        max_pool_connections=2 * options.read_threads + 2 * options.upload_threads,
        # This package computes the checksums: botocore would use another algorithm, and chunked bodies that some
        # S3-compatible servers cannot read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    if options.region is not None:
        session.set_config_variable("region", options.region)  # also for the services that issue credentials
    if options.access_key is None:
        session.register_component(
            "credential_provider", _Credentials(session, 2 * options.read_timeout_seconds)
        )
    client = session.create_client(
        "s3",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id=options.access_key,
        aws_secret_access_key=options.secret_key,
        aws_session_token=options.session_token,
        config=config,
    )
    # Every message of the SDK would show a password in the URL.
    fault = endpoint_fault(client.meta.endpoint_url)
    if fault is not None:
        raise ConfigError(f"{_ENDPOINT} {fault}")
    make_patient(client, options.read_timeout_seconds, options.bytes_per_second_min)
    return client


class _CredentialProcess(subprocess.Popen[bytes]):
    """A ``credential_process`` of the user's configuration with a time limit, which the SDK lacks."""

    def __init__(self, command: list[str], *, seconds_max: float, **options: Any) -> None:
        super().__init__(command, **options)
        self._seconds_max = seconds_max

    def communicate(self, *_: object, **__: object) -> tuple[bytes, bytes]:
        try:
            return super().communicate(timeout=self._seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise boto.CredentialRetrievalError(
                provider="credential_process", error_msg=f"it did not end within {self._seconds_max:g} s"
            ) from None


class _Credentials:
    """The SDK's search for credentials, with a time limit for processes and all failures as credential errors."""

    def __init__(self, session: botocore.session.Session, process_seconds_max: float) -> None:
        self._session = session
        self._popen = partial(_CredentialProcess, seconds_max=process_seconds_max)
        with _credential_errors("the chain"):
            chain = session.get_component("credential_provider")
            chain.insert_after(ProcessProvider.METHOD, self._process(session.get_config_variable("profile")))
            chain.remove(ProcessProvider.METHOD)  # removes the first of that name: the SDK's own
            self._providers = chain.providers
        for provider in self._providers:
            # A role's provider creates the providers of its source_profile itself.
            builder = getattr(provider, "_profile_provider_builder", None)
            if builder is not None:
                builder._create_process_provider = self._process

    def load_credentials(self) -> Any:
        """Return the credentials of the first provider that has some; None if none has."""
        for provider in self._providers:
            with _credential_errors(provider.METHOD):
                credentials = provider.load()
            if credentials is not None:
                # This call renews expiring credentials, within a request.
                credentials.get_frozen_credentials = partial(
                    _freeze, credentials.get_frozen_credentials, provider.METHOD
                )
                return credentials
        return None

    def _process(self, profile: str | None) -> ProcessProvider:
        return ProcessProvider(profile or "default", lambda: self._session.full_config, popen=self._popen)


def _freeze(freeze: Callable[[], Any], provider: str) -> Any:
    with _credential_errors(provider):
        frozen = freeze()
        if not all(
            isinstance(part, str) for part in (frozen.access_key, frozen.secret_key, frozen.token or "")
        ):
            raise TypeError("a key or token is not text")
    return frozen


@contextmanager
def _credential_errors(provider: str) -> Iterator[None]:
    """Raise unexpected errors, such as of a malformed file or output of a process, as credential errors of the SDK."""
    try:
        yield
    except Exception as error:
        from_sdk = isinstance(error, boto.BotoCoreError | boto.ClientError)
        if from_sdk and not isinstance(error, boto.InvalidConfigError):
            raise
        reason = str(error) if from_sdk else f"{type(error).__name__}: {error}"
        raise boto.CredentialRetrievalError(provider=provider, error_msg=reason) from error
