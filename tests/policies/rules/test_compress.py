"""Which segments are encoded anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.policies.planning import HOUR, kinds, plan, rules
from tests.policies.policy_model import NOW, active, partition, published, segment
from tiered.policies.actions import Compress
from tiered.policies.policy import CompressRule, LocalRetention, OffloadRule, Pin


def test_compress_what_is_old_enough_and_not_encoded_as_asked() -> None:
    facts = partition(segment(1, 0, 10), segment(2, 10, 20, codec="zstd"), active(3, 20, 30))
    policy = rules(compress=CompressRule(codec="zstd", level=7, after=HOUR))
    (action,) = plan(facts, policy).actions
    assert isinstance(action, Compress)
    assert (action.base_offset, action.codec, action.level) == (0, "zstd", 7)
    assert kinds(plan(facts, policy, NOW - 1)) == []


def test_small_blocks_are_merged_once() -> None:
    small = segment(1, 0, 10, codec="zstd", block_count=100, raw_bytes=1 << 20)
    policy = rules(compress=CompressRule(codec="zstd", after=HOUR))
    assert kinds(plan(partition(small, active(2, 10, 20)), policy)) == [("compress", 0, 10)]
    for fine in (replace(small, generation=1), replace(small, block_count=4), replace(small, block_count=0)):
        assert kinds(plan(partition(fine, active(2, 10, 20)), policy)) == []


@pytest.mark.parametrize(
    ("local", "offload", "compressed"),
    [
        (timedelta(hours=2), HOUR, True),
        (timedelta(hours=1, minutes=30), HOUR, False),
        (timedelta(hours=1, minutes=30), None, True),
        (None, HOUR, True),
    ],
)
def test_what_leaves_the_disk_soon_is_not_compressed(
    local: timedelta | None, offload: timedelta | None, compressed: bool
) -> None:
    policy = rules(
        compress=CompressRule(after=HOUR),
        local_retention=LocalRetention(age=local),
        offload=OffloadRule(after=offload, tail_interval=None),
    )
    actions = plan(partition(segment(1, 0, 10), active(2, 10, 20)), policy).actions
    assert any(isinstance(item, Compress) for item in actions) is compressed


@pytest.mark.parametrize("pin", [Pin(topic=True), Pin(age=3 * HOUR)])
def test_what_is_pinned_for_long_is_compressed_however_short_its_time_else(pin: Pin) -> None:
    policy = rules(
        compress=CompressRule(after=HOUR), local_retention=LocalRetention(age=timedelta(0)), pin=pin
    )
    facts = partition(published(1, 0, 10), active(2, 10, 20))
    assert kinds(plan(facts, policy)) == [("compress", 0, 10)]


def test_small_files_are_not_compressed_and_the_target_block_decides_what_is_small() -> None:
    facts = partition(segment(1, 0, 10, codec="zstd", block_count=2, raw_bytes=200 << 10), active(2, 10, 20))
    rule = CompressRule(codec="zstd", after=timedelta(0))
    (action,) = plan(facts, rules(compress=rule.model_copy(update={"block_bytes": 2 << 20}))).actions
    assert isinstance(action, Compress)
    assert action.block_bytes == 2 << 20
    assert kinds(plan(facts, rules(compress=rule.model_copy(update={"block_bytes": 200 << 10})))) == []
    assert kinds(plan(facts, rules(compress=rule.model_copy(update={"min_bytes": 11 << 10})))) == []
