"""What every object store promises: inherit `ObjectStoreContract` and override the fixture ``store``."""

from __future__ import annotations

import pickle
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from tiered.cold.object_store import probe
from tiered.cold.object_store.protocol import KeepsUnfinished, ObjectStore
from tiered.errors import ColdStorageError, ObjectNotFound, PreconditionFailed

ODD_KEYS = [
    "a b/c d",
    "percent %20 %2F",
    "plus+and&=?#",
    "ünïcode/日本語",
    "quote'\"<>",
    "~tilde!(1)*",
    "a.b/..c",
]
BAD_KEYS = ["", "/a", "a/", "a//b", ".", "../a", "a/../b", "a/./b", "nul\0"]
MIB = 1 << 20
RACES = 3  # of the probe; other tests have none (tests/conftest.py)


def pattern(size: int) -> bytes:
    """Bytes in which no two places look the same."""
    return array("Q", range(-(-size // 8))).tobytes()[:size]


class ObjectStoreContract:
    dates_uploads = True  # moto says 2010 of each

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store of the kind under test."""
        raise NotImplementedError

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_what_was_put_is_read_back_under_the_etag_that_put_returned(self, store, kind):
        etag = store.put("folder/key", kind(b"some bytes"))
        found = store.get("folder/key")
        assert (found.data, found.etag) == (b"some bytes", etag)
        assert type(found.data) is bytes

    def test_an_object_that_is_not_there_is_object_not_found(self, store):
        store.put("there/other", b"x")
        for read in (store.get, store.stat, lambda key: store.get_range(key, 0, 1)):
            for key in ("missing", "there", "there/other/below"):
                with pytest.raises(ObjectNotFound):
                    read(key)

    def test_an_empty_object_is_an_object(self, store):
        store.put("empty", b"")
        with store.upload("uploaded") as upload:
            assert upload.commit().size == 0
        for key in ("empty", "uploaded"):
            assert store.get(key).data == b""
            assert store.stat(key).size == 0
            assert store.get_range(key, 0, 0) == b""
        assert [item.key for item in store.list("")] == ["empty", "uploaded"]

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_a_key_is_taken_literally(self, store, key):
        store.put(key, key.encode())
        assert store.get(key).data == key.encode()
        assert store.stat(key).key == key
        assert [item.key for item in store.list("")] == [key]
        assert store.folders("") == ([key.partition("/")[0]] if "/" in key else [])
        store.delete([key])
        assert list(store.list("")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_leave_the_prefix_is_refused(self, store, key):
        calls = [
            store.get,
            store.stat,
            store.upload,
            lambda key: store.put(key, b""),
            lambda key: store.delete([key]),
            lambda key: store.get_range(key, 0, 1),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="key"):
                call(key)

    def test_only_the_first_of_two_creations_succeeds(self, store):
        etag = store.put("head", b"one", if_none_match=True)
        with pytest.raises(PreconditionFailed):
            store.put("head", b"two", if_none_match=True)
        assert store.get("head").etag == etag
        assert store.get("head").data == b"one"

    def test_a_replacement_needs_the_etag_of_what_it_replaces(self, store):
        first = store.put("head", b"one")
        second = store.put("head", b"two", if_match=first)
        assert second != first
        with pytest.raises(PreconditionFailed):
            store.put("head", b"three", if_match=first)
        assert store.get("head").data == b"two"
        assert store.put("head", b"three", if_match=second) == store.get("head").etag

    def test_a_replacement_of_what_is_gone_fails_its_condition(self, store):
        etag = store.put("head", b"one")
        store.delete(["head"])
        with pytest.raises(PreconditionFailed):
            store.put("head", b"two", if_match=etag)
        with pytest.raises(ObjectNotFound):
            store.get("head")

    @pytest.mark.parametrize("condition", [{"if_match": "x", "if_none_match": True}, {"if_match": ""}])
    def test_a_condition_that_makes_no_sense_is_refused(self, store, condition):
        with pytest.raises(ValueError, match="if_match"):
            store.put("head", b"", **condition)

    def test_the_probe_of_conditional_writes_passes_and_leaves_nothing(self, store, monkeypatch):
        monkeypatch.setattr(probe, "RACES", RACES)
        probe.check_conditional_writes(store)
        assert list(store.list("")) == []

    def test_of_creations_that_race_exactly_one_wins(self, store):
        barrier = threading.Barrier(6)

        def create(number: int) -> bool:
            barrier.wait()
            try:
                store.put("head", str(number).encode(), if_none_match=True)
            except PreconditionFailed:
                return False
            return True

        with ThreadPoolExecutor(6) as threads:
            won = list(threads.map(create, range(6)))
        assert won.count(True) == 1
        assert store.get("head").data == str(won.index(True)).encode()

    def test_increments_that_race_lose_none(self, store):
        store.put("counter", b"0")

        # Some increment succeeds in each round of four; a server that refuses all would never let this end.
        attempts_max = 100

        def increment(_: int) -> None:
            for _ in range(attempts_max):
                found = store.get("counter")
                try:
                    store.put("counter", str(int(found.data) + 1).encode(), if_match=found.etag)
                except PreconditionFailed:
                    continue
                return
            raise AssertionError(f"refused {attempts_max} times in a row")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(increment, range(12)))
        assert store.get("counter").data == b"12"

    def test_a_range_is_exactly_the_bytes_asked_for(self, store):
        data = pattern(1000)
        store.put("key", data)
        for start, length in [(0, 1), (0, 1000), (999, 1), (123, 456), (1000, 0)]:
            assert store.get_range("key", start, length) == data[start : start + length]

    @pytest.mark.parametrize(("start", "length"), [(999, 2), (0, 1001), (1000, 1), (5000, 10)])
    def test_a_range_beyond_the_end_is_an_error_that_waiting_cannot_cure(self, store, start, length):
        store.put("key", pattern(1000))
        with pytest.raises(ColdStorageError) as caught:
            store.get_range("key", start, length)
        assert not isinstance(caught.value, ObjectNotFound)
        assert not caught.value.retryable
        with pytest.raises(ColdStorageError):
            store.get_ranges("key", [(0, 10), (start, length)])

    @pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1)])
    def test_a_negative_range_is_refused(self, store, start, length):
        store.put("key", b"abc")
        with pytest.raises(ValueError, match="range"):
            store.get_range("key", start, length)

    def test_ranges_come_back_in_the_order_given(self, store):
        data = pattern(100_000)
        store.put("key", data)
        ranges = [(start, 1000) for start in range(99_000, 0, -7000)] + [(5, 0), (10, 20), (15, 20)]
        assert store.get_ranges("key", ranges) == [data[start : start + length] for start, length in ranges]
        assert store.get_ranges("key", []) == []

    def test_a_large_upload_arrives_whole(self, store):
        data = pattern(20 * MIB + 12345)
        view = memoryview(data)
        with store.upload("folder/large") as upload:
            position = 0
            for length in (1, 7 * MIB, 0, 3, 12 * MIB, len(data)):
                piece = bytearray(view[position : position + length])
                assert upload.write(piece) == len(piece)
                piece[:] = bytes(len(piece))  # write copies what it keeps
                position += length
            info = upload.commit()
        assert info == store.stat("folder/large")
        assert info.size == len(data)
        assert store.get("folder/large").data == data
        assert store.get_range("folder/large", 8 * MIB - 5, 10) == data[8 * MIB - 5 : 8 * MIB + 5]

    @pytest.mark.parametrize("size", [10, 17 * MIB])
    def test_an_upload_is_invisible_until_its_commit_and_leaves_nothing_when_aborted(self, store, size):
        with store.upload("folder/key") as upload:
            upload.write(bytes(size))
            assert list(store.list("")) == []
            assert store.folders("") == []
            with pytest.raises(ObjectNotFound):
                store.stat("folder/key")
        assert list(store.list("")) == []
        with pytest.raises(RuntimeError, match="of the caller"), store.upload("folder/key") as upload:
            upload.write(bytes(size))
            raise RuntimeError("of the caller")
        assert list(store.list("")) == []
        upload.abort()
        with pytest.raises(ValueError, match="ended"):
            upload.write(b"x")
        with pytest.raises(ValueError, match="ended"):
            upload.commit()

    def test_uploads_that_were_cut_short_are_listed_and_can_be_aborted(self, store):
        if not isinstance(store, KeepsUnfinished):
            pytest.skip("nothing of an upload stays here")
        uploads = [store.upload(f"folder/{number}") for number in range(3)]
        for upload in (*uploads, store.upload("other/folder/9")):
            upload.write(bytes(9 * MIB))
        found = list(store.unfinished_uploads("folder/"))
        assert [item.key for item in found] == ["folder/0", "folder/1", "folder/2"]
        if self.dates_uploads:
            assert all(abs(item.begun_seconds - time.time()) < 3600 for item in found)
        store.abort_upload(found[0])
        store.abort_upload(found[0])
        left = [(item.key, item.upload_id) for item in store.unfinished_uploads("folder/")]
        assert left == [(item.key, item.upload_id) for item in found[1:]]
        with pytest.raises(ColdStorageError):
            uploads[0].commit()
        assert uploads[1].commit().size == 9 * MIB
        assert [item.key for item in store.list("")] == ["folder/1"]
        for item in store.unfinished_uploads(""):
            store.abort_upload(item)
        assert list(store.unfinished_uploads("")) == []

    def test_an_upload_that_ended_can_be_aborted_without_harm(self, store):
        with store.upload("key") as upload:
            upload.write(b"abc")
            upload.commit()
            upload.abort()
        assert store.get("key").data == b"abc"

    def test_an_upload_never_replaces_an_object(self, store):
        if not store.conditional_writes:
            pytest.skip("this store cannot know")
        store.put("key", b"first")
        with store.upload("key") as upload:
            upload.write(b"second")
            with pytest.raises(PreconditionFailed):
                upload.commit()
        assert store.get("key").data == b"first"

    def test_a_listing_is_complete_in_key_order_and_stays_in_its_folder(self, store):
        keys = ["a-b", "a/b", "a/b.c/d", "a/b/c", "a0", "ab/c", "z", "é"]
        keys.remove("a/b")  # a file and a folder of one name exist in buckets only
        for key in keys:
            store.put(key, key.encode())
        listed = list(store.list(""))
        assert [item.key for item in listed] == sorted(keys, key=str.encode)
        assert [item.size for item in listed] == [len(item.key.encode()) for item in listed]
        assert all(abs(item.modified_seconds - time.time()) < 3600 for item in listed)
        assert [item.key for item in store.list("a/")] == ["a/b.c/d", "a/b/c"]
        assert [item.key for item in store.list("nothing/")] == []
        found, alone = listed[[item.key for item in listed].index("a0")], store.stat("a0")
        assert (alone.key, alone.size, alone.etag) == (found.key, found.size, found.etag)
        # HTTP dates have whole seconds, and some servers list parts of them.
        assert abs(alone.modified_seconds - found.modified_seconds) < 1

    def test_folders_are_those_directly_below_that_hold_an_object(self, store):
        for key in ("b/x", "a/y/z", "a/w", "file", "ab/c"):
            store.put(key, b"")
        assert store.folders("") == ["a", "ab", "b"]
        assert store.folders("a/") == ["y"]
        assert store.folders("nothing/") == []
        store.delete(["a/y/z"])
        assert store.folders("a/") == []

    @pytest.mark.parametrize("prefix", ["a", "a/b", "/", "/a/", "a//"])
    def test_a_prefix_without_its_slash_is_refused_at_once(self, store, prefix):
        for call in (store.list, store.folders):
            with pytest.raises(ValueError, match="prefix|key"):
                call(prefix)

    def test_deleting_again_is_no_error(self, store):
        store.put("folder/a", b"")
        store.put("folder/b", b"")
        store.delete(["folder/a", "folder", "folder/missing", "folder/a"])
        store.delete(iter(["folder/a"]))
        store.delete([])
        assert [item.key for item in store.list("")] == ["folder/b"]

    def test_a_whole_tree_is_deleted_in_one_call(self, store):
        """Whatever the order: a folder that becomes empty may hold keys that come later."""
        keys = [f"{top}/{rest}" for top in "abcd" for rest in ("x/y/1", "x/2", "3")]
        for key in keys:
            store.put(key, b"")
        store.delete(keys)
        assert list(store.list("")) == []
        assert store.folders("") == []

    def test_a_pickled_store_is_the_same_store(self, store):
        store.put("key", b"abc")
        copy = pickle.loads(pickle.dumps(store))
        assert copy.url == store.url
        assert copy.get("key").data == b"abc"
        copy.close()

    def test_a_store_works_again_after_close(self, store):
        store.put("key", b"abc")
        store.close()
        store.close()
        assert store.get_ranges("key", [(0, 1), (1, 2)]) == [b"a", b"bc"]
