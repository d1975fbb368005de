"""`BlockCache`: what is used again stays, what is used once leaves first, and the bytes are counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.hot.recent_blocks import HotMemory
from tiered.reader.block_cache import BlockCache, BlockKey, CachedBlock


def block(size: int = 10) -> CachedBlock:
    return CachedBlock(0, 1, [], size)


def key(number: int, file: bytes = b"s") -> BlockKey:
    return BlockKey(tuple(file), number)


def test_a_long_read_displaces_no_block_that_is_in_use() -> None:
    cache = BlockCache(HotMemory(400))  # room for ten blocks
    for number in range(5):
        cache.add(key(number), block())
        assert cache.get(key(number))
    for number in range(100, 1000):
        cache.add(key(number), block())
    assert [cache.get(key(number)) is not None for number in range(5)] == [True] * 5
    assert cache.bytes == 100


def test_a_block_counts_as_seen_from_the_second_time_on() -> None:
    cache = BlockCache(HotMemory(400))
    assert [cache.was_seen(key(1)) for _ in range(2)] == [False, True]


def test_a_segment_that_is_gone_takes_its_blocks_along() -> None:
    cache = BlockCache(HotMemory(400))
    for number in range(4):
        cache.add(key(number, b"a"), block())
        cache.add(key(number, b"b"), block())
        cache.get(key(number, b"a"))
    cache.release(tuple(b"a"))
    assert cache.bytes == 40
    assert not any(cache.get(key(number, b"a")) for number in range(4))
    assert all(cache.get(key(number, b"b")) for number in range(4))


@given(st.lists(st.tuples(st.sampled_from("agf"), st.integers(0, 20), st.integers(1, 60)), max_size=200))
def test_the_bytes_are_those_of_the_blocks(steps: list[tuple[str, int, int]]) -> None:
    memory = HotMemory(400)
    cache, sizes = BlockCache(memory), {}
    for step, number, size in steps:
        name = key(number, bytes([number % 3]))
        if step == "a":
            cache.add(name, block(sizes.setdefault(number, size)))
        elif step == "g":
            cache.get(name)
        else:
            cache.release((number % 3,))
        assert cache.bytes <= 100
        held = [sizes[n] for n in range(21) if cache.holds(key(n, bytes([n % 3])))]
        assert cache.bytes == sum(held)
        assert len(cache) == len(held)
