"""Throttle: the user's limits, and the pace that a server's refusals set; with a clock that only waiting moves."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from types import SimpleNamespace

import botocore.endpoint
import pytest

from tests.support.s3_server import S3, s3_thread
from tests.support.scripted_server import refusal
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.throttle import AdaptivePace, PacedBody, Throttle, TokenBucket
from tiered.errors import ColdStorageError

MIB = 1 << 20


class FakeTime:
    """Waiting moves it, and is noted; several threads wait at the same time, as they would."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_bucket_holds_the_rate_and_lets_a_burst_through() -> None:
    time = FakeTime()
    bucket = TokenBucket(10, burst=20, clock=time, sleep=time.sleep)
    bucket.take(20)
    assert time.slept == []
    bucket.take(5)
    bucket.take(30)
    assert time.slept == [0.5, 3.0]
    time.now += 1000
    bucket.take(20)
    assert time.slept == [0.5, 3.0]
    bucket.take(1)
    assert time.slept[-1] == pytest.approx(0.1)


def test_a_bucket_keeps_its_rate_for_several_threads_that_wait_at_once() -> None:
    """A waiter's debt stays on the books while it sleeps, so the next one waits behind it."""
    time = FakeTime()
    waits: list[float] = []
    bucket = TokenBucket(10, burst=0, clock=time, sleep=waits.append)
    for _ in range(3):
        bucket.take(10)
    assert waits == [1.0, 2.0, 3.0]


def test_a_bucket_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="more than zero"):
        TokenBucket(0)


def test_a_body_is_paid_for_while_it_is_sent_and_not_while_it_is_signed() -> None:
    time = FakeTime()
    body = PacedBody(bytes(range(256)) * 4096, TokenBucket(MIB, burst=0, clock=time, sleep=time.sleep))
    assert len(body.read()) == len(body) == MIB
    assert body.seek(0) == 0
    assert time.slept == []
    for repetition in (1, 2):
        body.begin()
        sent = b"".join(iter(lambda: body.read(16384), b""))
        assert sent == bytes(range(256)) * 4096
        assert time.now == pytest.approx(100 + repetition)
        assert max(time.slept) < 0.1  # smooth within the one object
        body.seek(0)
        before = time.now
        assert len(body.read()) == MIB  # to sign it again
        assert time.now == before
        body.seek(0)
    assert (body.seek(0, io.SEEK_END), body.tell(), body.read()) == (MIB, MIB, b"")


class TestPace:
    @pytest.fixture
    def time(self) -> FakeTime:
        return FakeTime()

    @pytest.fixture
    def pace(self, time: FakeTime) -> AdaptivePace:
        return AdaptivePace(clock=time, sleep=time.sleep)

    def test_nothing_waits_before_the_first_refusal(self, pace: AdaptivePace, time: FakeTime) -> None:
        for _ in range(100):
            pace.wait()
        assert (pace.rate, time.slept) == (None, [])

    def test_a_refusal_halves_what_was_sent_and_a_burst_of_them_is_one(
        self, pace: AdaptivePace, time: FakeTime
    ) -> None:
        for _ in range(100):
            pace.wait()
        for _ in range(20):
            pace.slow_down()
        assert pace.rate == 50
        pace.wait()
        assert time.slept == [pytest.approx(1 / 50)]

    def test_refusals_that_go_on_slow_down_to_one_a_second_and_no_further(
        self, pace: AdaptivePace, time: FakeTime
    ) -> None:
        rates = []
        for _ in range(8):
            pace.slow_down()
            rates.append(pace.rate)
            time.now += 1
        assert rates[0] == AdaptivePace.RATE_FIRST / 2
        assert rates == sorted(rates, reverse=True)  # type: ignore[type-var]
        assert rates[-1] == AdaptivePace.RATE_MIN

    def test_the_rate_comes_back_and_the_limit_goes(self, pace: AdaptivePace, time: FakeTime) -> None:
        pace.slow_down()
        time.now += AdaptivePace.DOUBLES_AFTER_SECONDS
        assert pace.rate == pytest.approx(AdaptivePace.RATE_FIRST)
        time.now += AdaptivePace.FREE_AFTER_SECONDS
        assert pace.rate is None

    def test_threads_are_spaced_out_together(self, time: FakeTime) -> None:
        waits: list[float] = []
        pace = AdaptivePace(clock=time, sleep=waits.append)
        pace.slow_down()
        for _ in range(3):
            pace.wait()
        assert waits == pytest.approx([1 / 8, 2 / 8, 3 / 8])


def options(endpoint: str, **changes: object) -> ColdOptions:
    return replace(
        ColdOptions(
            endpoint_url=endpoint, region="us-east-1", access_key="k", secret_key="s", part_bytes=5 * MIB
        ),
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """A clock that the SDK's backoff moves too."""
    fake = FakeTime()
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=fake.sleep))
    return fake


def braked(monkeypatch: pytest.MonkeyPatch, time: FakeTime, **rates: float) -> Throttle:
    """Make the next store use throttle with that clock."""
    throttle = Throttle()
    throttle.pace = AdaptivePace(clock=time, sleep=time.sleep)
    for name, rate in rates.items():
        setattr(throttle, name, TokenBucket(rate, clock=time, sleep=time.sleep))
    monkeypatch.setattr(Throttle, "shared", lambda *_: throttle)
    return throttle


def test_a_burst_of_refusals_slows_all_threads_down_and_then_passes(
    monkeypatch: pytest.MonkeyPatch, time: FakeTime
) -> None:
    lock, refused = threading.Lock(), 0

    def crowded(request):
        nonlocal refused
        with lock:
            if request.method == "PUT" and refused < 6:
                refused += 1
                return refusal(503, "SlowDown")
        return None

    throttle = braked(monkeypatch, time)
    with s3_thread(S3(fault=crowded)) as (endpoint, server):
        store = open_object_store("s3://bucket", options(endpoint))
        with store.upload("key") as upload:
            upload.write(bytes(23 * MIB))
            assert upload.commit().size == 23 * MIB
        counts = store.counts
        store.close()
    assert len(server.objects["bucket/key"].data) == 23 * MIB
    assert counts.requests == {
        "CreateMultipartUpload": 1, "UploadPart": 11, "CompleteMultipartUpload": 1, "HeadObject": 1
    }  # fmt: skip
    assert (counts.errors, counts.throttled) == ({"SlowDown": 6}, 6)
    assert throttle.pace.rate is not None
    assert len(time.slept) > 6  # the SDK's backoff of six requests, and the spacing of those that follow


def test_a_server_that_always_refuses_is_given_up_as_retryable(
    monkeypatch: pytest.MonkeyPatch, time: FakeTime
) -> None:
    braked(monkeypatch, time)
    with s3_thread(S3(fault=lambda request: refusal(503, "SlowDown"))) as (endpoint, _):
        store = open_object_store("s3://bucket", options(endpoint))
        with pytest.raises(ColdStorageError, match="SlowDown") as caught:
            store.put("key", b"x")
        assert caught.value.retryable
        assert (store.counts.requests, store.counts.throttled) == ({"PutObject": 4}, 4)
        store.close()


def test_limits_hold_over_all_requests_and_spare_ranged_reads(
    monkeypatch: pytest.MonkeyPatch, time: FakeTime
) -> None:
    braked(monkeypatch, time, bytes=MIB, requests=2)
    with s3_thread() as (endpoint, _):
        store = open_object_store("s3://bucket", options(endpoint, upload_threads=1))
        with store.upload("key") as upload:
            upload.write(bytes(11 * MIB))
            upload.commit()
        # One second's worth is saved up: 10 of 11 MiB wait, and 4 of the 6 requests, half a second each at most.
        assert 110 <= time.now <= 112.1
        before = time.now
        store.get_ranges("key", [(i * 10, 10) for i in range(20)])
        assert time.now == before
        counts = store.counts
        store.put("small", bytes(MIB // 32))
        assert (store.counts - counts).bytes_up == MIB // 32
        assert counts.requests["GetObject"] == 20
        assert counts.bytes_down == 200
        assert 11 * MIB < counts.bytes_up < 11 * MIB + 1000  # the list of parts is sent too
        store.close()


def test_stores_on_one_bucket_share_their_brakes_and_others_do_not() -> None:
    one = Throttle.shared("http://a bucket", 10, None)
    assert Throttle.shared("http://a bucket", 10, None) is one
    assert Throttle.shared("http://a bucket", 11, None) is not one
    assert Throttle.shared("http://a other", 10, None) is not one


@pytest.mark.parametrize("url", ["memory://limited", "file://{}/limited"])
def test_other_backends_keep_the_limit_of_bytes(url, tmp_path, monkeypatch, time) -> None:
    braked(monkeypatch, time, bytes=MIB, requests=1000)
    store = open_object_store(url.format(tmp_path), ColdOptions())
    with store.upload("key") as upload:
        for _ in range(4):
            upload.write(bytes(MIB))
        upload.commit()
    assert time.now == pytest.approx(103)
