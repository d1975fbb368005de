"""What the probe of conditional writes makes of servers that keep them, and of those that do not."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.cold.object_store.contract import RACES
from tests.support import fork_server
from tests.support.s3_server import S3, Refused, s3_thread
from tests.support.scripted_server import Answer, Request, refusal, store_at
from tiered.cold.object_store import probe
from tiered.cold.object_store.probe import RACERS, ProbeOutcome, check_conditional_writes
from tiered.errors import ColdStorageError, ConfigError, PreconditionFailed

PROBE = re.compile(r"bucket/prefix/probe/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(autouse=True)
def races(monkeypatch):
    monkeypatch.setattr(probe, "RACES", RACES)


class Recorded(S3):
    """Keeps what is asked, too."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        super().__init__(fault=self.requests.append)  # which answers nothing

    def written(self) -> list[Request]:
        return [request for request in self.requests if request.method == "PUT"]


class TwoSteps(Recorded):
    """Compares, and writes later: all that compare meanwhile succeed. Alone it keeps every condition."""

    def __init__(self, header: str) -> None:
        super().__init__()
        self._header = header
        self._meeting = threading.Barrier(2)

    def PutObject(self, request: Request) -> Answer:
        self._check_conditions(request)
        if self._header not in request.headers:
            return super().PutObject(request)
        with suppress(threading.BrokenBarrierError):
            self._meeting.wait(0.1)
        self._meeting.reset()
        bare = {name: value for name, value in request.headers.items() if name != self._header}
        return super().PutObject(Request(request.method, request.path, bare, request.body))


class WritesWhatItRefuses(Recorded):
    """One of several writes is acknowledged, and the last of the others takes effect."""

    def PutObject(self, request: Request) -> Answer:
        try:
            return super().PutObject(request)
        except Refused:
            if _is_racer(request):
                self.objects[request.place] = self._received(request)
            raise


class RefusesOthersBy(Recorded):
    """A server that is right, and tells the first who loses a race so in its own way."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__()
        self._answers = [(status, code)]

    def PutObject(self, request: Request) -> Answer:
        try:
            return super().PutObject(request)
        except Refused:
            if _is_racer(request) and self._answers:  # one alone, as the client slows down with each
                raise Refused(*self._answers.pop()) from None
            raise


class RefusesQuotes(Recorded):
    """As Ceph RGW 16 and 18: an ETag is compared as it is written, and without quotes alone is it right."""

    def _check_conditions(self, request: Request) -> None:
        match, found = request.headers.get("if-match"), self.objects.get(request.place)
        if match is not None and found is not None and match != found.etag.strip('"'):
            raise Refused(412, "PreconditionFailed")
        super()._check_conditions(_with_match(request, found.etag if found and match else match))


class RefusesEveryETag(Recorded):
    def _check_conditions(self, request: Request) -> None:
        if "if-match" in request.headers:
            raise Refused(412, "PreconditionFailed")
        super()._check_conditions(request)


class LeavesOutWhatHasNoQuotes(RefusesEveryETag):
    def _check_conditions(self, request: Request) -> None:
        match = request.headers.get("if-match", '"')
        super()._check_conditions(request if '"' in match else _with_match(request, None))


class RefusesToCreate(Recorded):
    def _check_conditions(self, request: Request) -> None:
        if "if-none-match" in request.headers:
            raise Refused(412, "PreconditionFailed")
        super()._check_conditions(request)


def _is_racer(request: Request) -> bool:
    return len(request.body) > 100


def _with_match(request: Request, etag: str | None) -> Request:
    headers = {name: value for name, value in request.headers.items() if name != "if-match"}
    return Request(request.method, request.path, headers | ({"if-match": etag} if etag else {}), request.body)


def refused_as(server: S3, words: str) -> None:
    with s3_thread(server) as (endpoint, _):
        with pytest.raises(ConfigError, match=words) as caught:
            check_conditional_writes(store_at(endpoint))
    assert 'cold.conditional_writes = "off"' in str(caught.value)
    assert server.objects == {}


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_a_server_that_compares_and_writes_in_two_steps_is_refused(header: str) -> None:
    name = {"if-match": "If-Match", "if-none-match": "If-None-Match"}[header]
    refused_as(TwoSteps(header), f"{RACERS} writes of one object at the same time.* {name}, [2-8] succeeded")


def test_a_server_that_writes_what_it_refuses_is_refused() -> None:
    refused_as(WritesWhatItRefuses(), "one succeeded and another one is stored")


@pytest.mark.parametrize("spoil", [lambda body: body[:-1] + b"?", lambda body: body[: len(body) // 2]])
def test_one_spoilt_answer_about_the_winner_is_no_refusal(spoil: Callable[[bytes], bytes]) -> None:
    """It was changed on the way: a refusal would stay for the life of the process."""
    spoilt: list[Answer] = []

    class Spoils(Recorded):
        def GetObject(self, request: Request) -> Answer:
            answer = super().GetObject(request)
            if not spoilt:
                spoilt.append(answer)
                bare = {
                    name: value for name, value in answer.headers.items() if "checksum" not in name.lower()
                }
                return replace(answer, body=spoil(answer.body), headers=bare)
            return answer

    with s3_thread(Spoils()) as (endpoint, _):
        check_conditional_writes(store_at(endpoint))
    assert spoilt


@pytest.mark.parametrize("body", [b"first", b"second"])
def test_one_answer_with_a_wrong_etag_is_no_refusal(body: bytes) -> None:
    spoilt: list[str] = []

    class Spoils(Recorded):
        def PutObject(self, request: Request) -> Answer:
            answer = super().PutObject(request)
            if request.body == body and not spoilt:
                spoilt.append(request.place)
                return replace(answer, headers={**answer.headers, "ETag": f'"{0:032}"'})
            return answer

    with s3_thread(Spoils()) as (endpoint, server):
        check_conditional_writes(store_at(endpoint))
    assert spoilt
    assert server.objects == {}


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "ConditionalRequestConflict"), (409, "OperationAborted"), (412, "PreconditionFailed"), (429, "TooManyRequests"), (503, "SlowDown"), (500, "UnknownError")],
)  # fmt: skip
def test_whatever_a_loser_is_told_one_winner_is_right(monkeypatch, status: int, code: str) -> None:
    monkeypatch.setattr(probe, "RACES", 1)  # the client slows down after some of these
    with s3_thread(RefusesOthersBy(status, code)) as (endpoint, _):
        check_conditional_writes(store_at(endpoint, attempts=1))


def test_an_answer_that_waiting_cannot_cure_ends_the_probe() -> None:
    server = RefusesOthersBy(403, "AccessDenied")
    with s3_thread(server) as (endpoint, _):
        with pytest.raises(ColdStorageError, match="AccessDenied"):
            check_conditional_writes(store_at(endpoint))
    assert server.objects == {}


def test_its_requests_are_few_and_of_names_that_a_limited_policy_allows() -> None:
    server = Recorded()
    with s3_thread(server) as (endpoint, _):
        check_conditional_writes(store_at(endpoint))
    assert server.objects == {}
    assert all(PROBE.fullmatch(request.place) for request in server.requests if request.method != "POST")
    assert len(server.written()) == 4 + 2 * RACES * RACERS
    assert len(server.requests) == len(server.written()) + 2 * RACES + 1
    bodies = [request.body for request in server.written()]
    # An ETag may be a hash of the bytes: the condition of a race would hold again, and a sound server be refused.
    assert len(set(bodies[4:])) == len(bodies[4:])


@pytest.mark.parametrize("server", [RefusesEveryETag, LeavesOutWhatHasNoQuotes])
def test_a_server_that_takes_its_own_etag_in_no_form_is_refused_by_that_name(server: type[S3]) -> None:
    """And not as one that was disturbed, which would be tried again for ever."""
    refused_as(server(), "refuses If-Match with the ETag that it returned")


def test_a_server_that_refuses_to_create_is_refused_by_that_name() -> None:
    refused_as(RefusesToCreate(), "refuses If-None-Match where there is no object")


def test_a_write_whose_answer_was_lost_is_no_refusal() -> None:
    """The SDK repeats it and meets its own success."""
    server = Recorded()
    lost: set[str] = set()

    def lose(request: Request) -> Answer | None:
        if request.method == "PUT" and request.body not in lost and len(lost) < 2:
            lost.add(request.body)
            server.fault = lambda request: None
            server(request)
            server.fault = lose
            return refusal(500, "InternalError")
        return None

    server.fault = lose
    with s3_thread(server) as (endpoint, _):
        check_conditional_writes(store_at(endpoint))
    assert lost == {b"first", b"second"}


class TestQuotes:
    def test_an_etag_is_sent_as_the_server_takes_it(self) -> None:
        server = RefusesQuotes()
        with s3_thread(server) as (endpoint, _):
            store = store_at(endpoint)
            check_conditional_writes(store)
            first = store.put("head", b"one", if_none_match=True)
            before = len(server.requests)
            second = store.put("head", b"two", if_match=first)
            assert len(server.requests) == before + 1, "the form is known by now"
            for etag in (first, '"other"'):
                with pytest.raises(PreconditionFailed):
                    store.put("head", b"three", if_match=etag)
            assert store.get("head").etag == second

    def test_another_process_finds_it_out_by_its_first_replacement(self) -> None:
        server = RefusesQuotes()
        with s3_thread(server) as (endpoint, _):
            first = store_at(endpoint).put("head", b"one")
            late = store_at(endpoint)
            with pytest.raises(PreconditionFailed):
                late.put("head", b"other", if_match='"other"')
            with pytest.raises(PreconditionFailed):
                late.put("missing", b"other", if_match='"other"')
            late.put("head", b"two", if_match=first)
        assert {key: stored.data for key, stored in server.objects.items()} == {"bucket/prefix/head": b"two"}

    def test_a_look_that_cannot_be_tidied_up_after_counts_all_the_same(self) -> None:
        server = RefusesQuotes()
        server.fault = lambda request: refusal(403, "AccessDenied") if request.method == "POST" else None
        with s3_thread(server) as (endpoint, _):
            store = store_at(endpoint)
            store.put("head", b"two", if_match=store.put("head", b"one"))
            assert store.get("head").data == b"two"

    def test_a_refusal_of_a_server_that_takes_quotes_costs_nothing(self) -> None:
        server = Recorded()
        with s3_thread(server) as (endpoint, _):
            store = store_at(endpoint)
            first = store.put("head", b"one")
            store.put("head", b"two", if_match=first)
            before = len(server.requests)
            with pytest.raises(PreconditionFailed):
                store.put("head", b"three", if_match=first)
            assert len(server.requests) == before + 1
        assert all('"' in request.headers.get("if-match", '"') for request in server.requests)

    def test_a_true_refusal_is_known_by_one_look_at_the_object(self) -> None:
        server = Recorded()
        with s3_thread(server) as (endpoint, _):
            store_at(endpoint).put("head", b"one")
            with pytest.raises(PreconditionFailed):
                store_at(endpoint).put("head", b"two", if_match='"other"')
        assert [request.method for request in server.requests] == ["PUT", "PUT", "HEAD"]

    def test_a_condition_without_quotes_is_not_trusted_before_it_was_seen_to_refuse(self) -> None:
        server = LeavesOutWhatHasNoQuotes()
        with s3_thread(server) as (endpoint, _):
            store = store_at(endpoint)
            first = store.put("head", b"one")
            with pytest.raises(PreconditionFailed):
                store.put("head", b"two", if_match=first)
        assert {key: stored.data for key, stored in server.objects.items()} == {"bucket/prefix/head": b"one"}

    def test_a_store_lives_on_such_a_server(self, monkeypatch, tmp_path) -> None:
        monkeypatch.setattr(probe, "RACES", 0)
        with s3_thread(RefusesQuotes()) as (endpoint, _):
            settings = reached_at(endpoint)
            with tiered.open(tmp_path / "a", cold="s3://bucket/events", settings=settings) as store:
                topic = store.create_topic("orders")
                for value in (b"one", b"two"):
                    topic.append(value, sync=True)
                    topic.roll()
                    assert not store.tier().failed
            with tiered.restore("s3://bucket/events", tmp_path / "b", settings=settings) as store:
                assert store.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"one", b"two"]


def test_a_verdict_is_kept_and_an_error_that_passes_is_not() -> None:
    looks: list[Exception | None] = [ColdStorageError("away", retryable=True), None]

    def look() -> None:
        if error := looks.pop(0):
            raise error

    verdict = ProbeOutcome()
    with pytest.raises(ColdStorageError, match="away"):
        verdict.check(look)
    verdict.check(look)
    verdict.check(look)
    looks = [ConfigError("ignores If-Match")]
    verdict = ProbeOutcome()
    for _ in range(2):
        with pytest.raises(ConfigError, match="ignores If-Match"):
            verdict.check(look)


def test_a_prefix_is_not_claimed_on_a_server_that_would_lose_a_manifest(tmp_path) -> None:
    server = TwoSteps("if-match")
    with s3_thread(server) as (endpoint, _):
        with tiered.open(tmp_path / "a", cold="s3://bucket/events", settings=reached_at(endpoint)) as store:
            topic = store.create_topic("orders", partitions=2)
            for partition in range(2):
                topic.append(b"value", sync=True, partition=partition)
            topic.roll()
            reports = [store.tier() for _ in range(2)]
    refused = [message for report in reports for _, message in report.failed]
    assert len(refused) >= 4
    assert all("in two steps" in message for message in refused)
    assert server.objects == {}
    assert len(server.written()) <= 4 + 2 * RACERS, "once a process, not once a partition and pass"


def reached_at(endpoint: str) -> tiered.Settings:
    return tiered.Settings.model_validate(
        {
            "cold": {"endpoint_url": endpoint, "region": "us-east-1"},
            "policies": {"default": {"offload": {"after": "0s"}}},
        }
    )


AT_EXIT = """
import atexit, sys
import tiered

def late():
    store = tiered.open(sys.argv[1], cold=sys.argv[2], settings=tiered.Settings.model_validate({"store": {"sync": "cold"}}))
    store.topic("t").append(b"last")
    store.close()

atexit.register(late)
"""


def test_a_first_append_while_the_interpreter_ends_is_probed_for(tmp_path: Path, s3_bucket: str) -> None:
    """Pools of threads take no work by then."""
    with tiered.open(tmp_path) as store:
        store.create_topic("t")
    run = fork_server.run(
        [sys.executable, "-c", AT_EXIT, tmp_path, s3_bucket],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stderr == ""
    with tiered.open(tmp_path, read_only=True) as store:
        assert [record.value for record in store.topic("t").read(0, 0)] == [b"last"]
