"""S3 where it breaks off, lies, or refuses."""

from __future__ import annotations

import base64
import multiprocessing
import re
import threading
from dataclasses import replace

import pytest
from crc32c import crc32c

from tests.support.scripted_server import ETAG, Answer, options, refusal, serving, store_at
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.probe import check_conditional_writes
from tiered.errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, PreconditionFailed

MIB = 1 << 20


def crc(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


def listing(*names: str) -> Answer:
    rows = "".join(
        f"<Contents><Key>prefix/{name}</Key><Size>1</Size><LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
        for name in names
    )
    return Answer(
        200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
    )


def test_a_document_of_gigabytes_is_not_read(monkeypatch):
    """Its length comes before it."""
    monkeypatch.setattr("tiered.cold.object_store.s3_client.GET_BYTES_MAX", 4)
    with serving(lambda request: Answer(200, b"data" if "small" in request.path else b"large", ETAG)) as (
        endpoint,
        _,
    ):
        store = open_object_store("s3://bucket/prefix", options(endpoint))
        assert store.get("small").data == b"data"
        with pytest.raises(CorruptionError, match="an object of 5 bytes"):
            store.get("large")


class TestKeys:
    @pytest.mark.parametrize("code", ["InvalidAccessKeyId", "ExpiredToken"])
    def test_renewed_keys_are_looked_for_once_the_old_ones_are_refused(self, tmp_path, monkeypatch, code):
        """Else a daemon would go on with the keys of its start, though its file has others."""
        found, valid = tmp_path / "credentials", "old"
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(found))

        def renew(key: str) -> None:
            found.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

        def answer(request):
            known = f"Credential={valid}/" in request.headers["authorization"]
            return Answer(200, b"data", ETAG) if known else refusal(403, code)

        renew("old")
        with serving(answer) as (endpoint, _):
            store = open_object_store(
                "s3://bucket/prefix", replace(options(endpoint), access_key=None, secret_key=None)
            )
            assert store.get("key").data == b"data"
            valid = "new"
            for _ in range(2):
                with pytest.raises(ColdStorageError, match=code):
                    store.get("key")
            renew("new")
            assert store.get("key").data == b"data"

    @pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId")])
    def test_a_head_that_is_refused_is_told_with_its_reason(self, status, code):
        """It has no body that could say it, so a session that had expired was a "Bad Request"."""

        def answer(request):
            return Answer(status) if request.method == "HEAD" else refusal(status, code)

        with serving(answer) as (endpoint, _):
            with pytest.raises(ColdStorageError, match=code):
                store_at(endpoint).stat("key")


class TestReading:
    def test_a_body_that_breaks_off_is_asked_for_again(self):
        answers = [Answer(200, b"whole"[:2], ETAG, length=5), Answer(200, b"whole", ETAG)]
        with serving(lambda request: answers.pop(0)) as (endpoint, _):
            assert store_at(endpoint).get("key").data == b"whole"

    def test_a_body_that_always_breaks_off_is_an_error_and_never_data(self):
        with serving(lambda request: Answer(200, b"wh", ETAG, length=5)) as (endpoint, requests):
            with pytest.raises(ColdStorageError) as caught:
                store_at(endpoint).get("key")
        assert caught.value.retryable
        assert len(requests) == 2

    @pytest.mark.parametrize("body", [b"12345", b"12345678901"])
    def test_a_range_whose_body_has_another_length_is_an_error(self, body):
        partial = {**ETAG, "Content-Range": "bytes 10-19/100"}
        with serving(lambda request: Answer(206, body, partial)) as (endpoint, _):
            with pytest.raises(ColdStorageError, match="of 10 bytes") as caught:
                store_at(endpoint).get_range("key", 10, 10)
        assert caught.value.retryable

    @pytest.mark.parametrize("headers", [{}, ETAG])
    @pytest.mark.parametrize("declared", ["<?xml version='1.0' encoding='UTF-8'?>\n", ""])
    @pytest.mark.parametrize("span", [(10, 10), None])
    def test_an_answer_of_200_with_an_error_in_its_body_is_asked_for_again(self, headers, declared, span):
        """A range ended the read, as a server's that ignores ranges; an object's bytes were not an object's."""
        body = f"{declared}<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>".encode()
        partial = {**ETAG, "Content-Range": "bytes 10-19/100"} if span else ETAG
        answers = [Answer(200, body, headers), Answer(206 if span else 200, b"0123456789", partial)]
        with serving(lambda request: answers.pop(0)) as (endpoint, _):
            store = store_at(endpoint)
            assert (store.get_range("key", *span) if span else store.get("key").data) == b"0123456789"
            assert store._client.throttle.pace.rate is not None, "it was told to slow down"

    def test_an_answer_of_200_that_always_has_an_error_is_one(self):
        """And never that there is no such object, which a 404 alone says."""
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        with serving(lambda request: Answer(200, body, ETAG)) as (endpoint, requests):
            with pytest.raises(ColdStorageError, match="200 with the error NoSuchKey") as caught:
                store_at(endpoint).get_range("key", 10, 10)
        assert caught.value.retryable
        assert not isinstance(caught.value, ObjectNotFound)
        assert len(requests) == 2

    def test_an_object_that_looks_like_an_error_is_an_object_where_its_checksum_says_so(self):
        body = b"<Error><Code>SlowDown</Code></Error>"
        with serving(lambda request: Answer(200, body, {**ETAG, "x-amz-checksum-crc32c": crc(body)})) as (
            endpoint,
            _,
        ):
            assert store_at(endpoint).get("key").data == body

    @pytest.mark.parametrize("answered", ["bytes 0-9/100", "bytes 10-18/19", None])
    def test_another_range_than_asked_for_is_an_error(self, answered):
        headers = {**ETAG, **({"Content-Range": answered} if answered else {})}
        with serving(lambda request: Answer(206 if answered else 200, b"0123456789", headers)) as (
            endpoint,
            requests,
        ):
            with pytest.raises(ColdStorageError, match="bytes 10-19"):
                store_at(endpoint).get_range("key", 10, 10)
        assert requests[0].headers["range"] == "bytes=10-19"

    def test_bytes_that_do_not_fit_the_servers_checksum_are_corruption(self):
        headers = {**ETAG, "x-amz-checksum-crc32c": crc(b"right")}
        with serving(lambda request: Answer(200, b"wrong", headers)) as (endpoint, requests):
            with pytest.raises(CorruptionError, match="s3://bucket/prefix/key"):
                store_at(endpoint).get("key")
        assert len(requests) == 2

    def test_a_body_damaged_on_its_way_once_is_read_again(self):
        headers = {**ETAG, "x-amz-checksum-crc32c": crc(b"right")}
        answers = [Answer(200, b"wrong", headers), Answer(200, b"right", headers)]
        with serving(lambda request: answers.pop(0)) as (endpoint, _):
            assert store_at(endpoint).get("key").data == b"right"

    def test_one_failing_range_fails_all(self):
        def answer(request):
            first, last = map(int, re.findall(r"\d+", request.headers["range"]))
            if first == 300:
                return refusal(403, "AccessDenied")
            return Answer(
                206, bytes(last - first + 1), {**ETAG, "Content-Range": f"bytes {first}-{last}/9999"}
            )

        with serving(answer) as (endpoint, _):
            store = store_at(endpoint)
            with pytest.raises(ColdStorageError, match="AccessDenied"):
                store.get_ranges("key", [(start, 10) for start in range(0, 1000, 100)])
            assert store.get_ranges("key", [(0, 10), (20, 5)]) == [bytes(10), bytes(5)]
            store.close()

    def test_an_answer_without_an_etag_is_an_error(self):
        with serving(lambda request: Answer(200, b"x")) as (endpoint, _):
            with pytest.raises(ColdStorageError, match="ETag"):
                store_at(endpoint).get("key")


class TestAbsence:
    """Promise P10: only an authoritative 404 means "not there"."""

    def test_a_missing_bucket_is_not_a_missing_object(self, s3_options):
        store = open_object_store("s3://no-such-bucket-here/prefix", s3_options)
        calls = [
            lambda: store.get("key"),
            lambda: store.stat("key"),
            lambda: store.get_range("key", 0, 1),
            lambda: store.put("key", b"", if_none_match=True),
            lambda: store.upload("key").commit(),
            lambda: list(store.list("")),
            lambda: store.folders(""),
            lambda: store.delete(["key"]),
        ]
        for call in calls:
            with pytest.raises(
                ColdStorageError, match="bucket no-such-bucket-here does not exist: create it"
            ) as caught:
                call()
            assert type(caught.value) is ColdStorageError
            assert not caught.value.retryable

    def test_a_404_of_a_proxy_is_no_answer_about_the_object(self):
        with serving(lambda request: Answer(404, b"<html>nothing here</html>")) as (endpoint, _):
            store = store_at(endpoint)
            for call in (store.get, store.stat):
                with pytest.raises(ColdStorageError) as caught:
                    call("key")
                assert not isinstance(caught.value, ObjectNotFound)
                assert caught.value.retryable

    def test_an_object_that_appears_between_head_and_get_is_found(self):
        answers = [Answer(404), Answer(200, b"abc", ETAG), Answer(200, b"abc", ETAG)]
        with serving(lambda request: answers.pop(0)) as (endpoint, _):
            assert store_at(endpoint).stat("key").size == 3

    @pytest.mark.parametrize("left_out", ["Size", "LastModified", "prefix"])
    def test_a_listing_of_something_else_is_an_error(self, left_out):
        """What a sweep is told to be there it may delete, so a cache that drops the query must not answer it."""
        row = {"Key": "prefix/a/x", "Size": "1", "LastModified": "2025-01-01T00:00:00Z"}
        row = row | {"Key": "prefix/b/x"} if left_out == "prefix" else {**row, left_out: None}
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in row.items() if value)
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{fields}</Contents></ListBucketResult>"
        with serving(lambda request: Answer(200, page.encode())) as (endpoint, _):
            with pytest.raises(
                ColdStorageError, match="listed another prefix, or an incomplete row"
            ) as caught:
                list(store_at(endpoint).list("a/"))
        assert caught.value.retryable

    def test_a_folder_that_two_pages_show_is_one(self):
        folder = "<CommonPrefixes><Prefix>prefix/a/x/</Prefix></CommonPrefixes>"
        last = f"<ListBucketResult><IsTruncated>false</IsTruncated>{folder}</ListBucketResult>"
        more = last.replace("false", "true").replace(
            folder, f"<NextContinuationToken>t</NextContinuationToken>{folder}"
        )
        pages = [Answer(200, more.encode()), Answer(200, last.encode())]
        with serving(lambda request: pages.pop(0)) as (endpoint, _):
            assert store_at(endpoint).folders("a/") == ["x"]

    def test_what_others_put_under_empty_names_is_not_listed(self):
        """It could not be deleted: one such key below a deleted topic ended every sweep of the store."""
        rows = "".join(
            f"<Contents><Key>prefix/a/{key}</Key><Size>1</Size><LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
            for key in ("/x", "./x", "b/", "x")
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        with serving(lambda request: Answer(200, page.encode())) as (endpoint, _):
            assert [info.key for info in store_at(endpoint).list("a/")] == ["a/x"]

    @pytest.mark.parametrize("modified", [None, "yesterday"])
    def test_an_object_of_no_time_is_an_error(self, modified):
        headers = {"ETag": '"e"', **({"Last-Modified": modified} if modified else {})}
        with serving(lambda request: Answer(200, b"", headers)) as (endpoint, _):
            with pytest.raises(ColdStorageError, match="cannot stat s3://bucket/prefix/key") as caught:
                store_at(endpoint).stat("key")
        assert caught.value.retryable

    def test_a_listing_that_breaks_off_is_an_error(self):
        page = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
        with serving(lambda request: Answer(200, page)) as (endpoint, _):
            with pytest.raises(ColdStorageError, match="broke the listing off"):
                list(store_at(endpoint).list(""))


class TestDenied:
    """A server that answers 403 where it may not tell that an object is not there."""

    def reads(self, store):
        return [lambda: store.get("key"), lambda: store.stat("key"), lambda: store.get_range("key", 0, 1)]

    @pytest.mark.parametrize("listed", [(), ("key2", "key/below")])
    def test_what_no_listing_of_its_name_shows_is_not_there(self, listed):
        def answer(request):
            return listing(*listed) if "list-type" in request.query else refusal(403, "AccessDenied")

        with serving(answer) as (endpoint, requests):
            for read in self.reads(store_at(endpoint)):
                with pytest.raises(ObjectNotFound, match="s3://bucket/prefix/key"):
                    read()
        asked = {request.query["prefix"] for request in requests if "list-type" in request.query}
        assert asked == {"prefix/key"}, "no more than a policy for one prefix allows"

    @pytest.mark.parametrize(
        ("code", "listed"),
        [
            ("AccessDenied", listing("key", "key2")),
            ("AccessDenied", refusal(403, "AccessDenied")),
            ("AccessDenied", refusal(404, "NoSuchBucket")),
            ("AccessDenied", Answer(200, b"")),
            ("AccessDenied", listing("other")),
            ("InvalidAccessKeyId", listing()),
            ("AllAccessDisabled", listing()),
        ],
    )
    def test_everything_else_stays_what_it_is(self, code, listed):
        """Unreadable is not absent (promise P10)."""

        def answer(request):
            return listed if "list-type" in request.query else refusal(403, code)

        with serving(answer) as (endpoint, _):
            for read in self.reads(store_at(endpoint)):
                with pytest.raises(ColdStorageError, match=code) as caught:
                    read()
                assert type(caught.value) is ColdStorageError


class TestWriting:
    def test_a_put_carries_its_checksum(self, s3_raw, new_bucket, s3_options):
        store = open_object_store(f"s3://{new_bucket}", s3_options)
        etag = store.put("key", b"some bytes")
        head = s3_raw.head_object(Bucket=new_bucket, Key="key", ChecksumMode="ENABLED")
        assert (head["ChecksumCRC32C"], head["ETag"]) == (crc(b"some bytes"), etag)
        assert store.stat("key").etag == etag

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (refusal(412, "PreconditionFailed"), PreconditionFailed),
            (refusal(409, "ConditionalRequestConflict"), PreconditionFailed),
            (refusal(404, "NoSuchKey"), PreconditionFailed),
        ],
    )
    def test_a_condition_that_fails(self, given, said):
        with serving(lambda request: given) as (endpoint, requests):
            with pytest.raises(said):
                store_at(endpoint).put("key", b"x", if_match='"other"')
        assert requests[0].headers["if-match"] == '"other"'

    def test_a_server_that_ignores_conditions_is_found_out(self):
        with serving(lambda request: Answer(200, b"", ETAG)) as (endpoint, _):
            with pytest.raises(ConfigError, match="ignores If-None-Match"):
                check_conditional_writes(store_at(endpoint))

    def test_a_server_that_ignores_if_match_is_found_out(self):
        def answer(request):
            if request.headers.get("if-none-match") and len(requests) > 1:
                return refusal(412, "PreconditionFailed")
            return Answer(200, b"", {**ETAG, "ETag": f'"{len(requests)}"'})

        with serving(answer) as (endpoint, requests):
            with pytest.raises(ConfigError, match="ignores If-Match"):
                check_conditional_writes(store_at(endpoint))

    def test_each_object_that_was_not_deleted_is_told(self):
        body = b"""<DeleteResult>
            <Error><Key>prefix/gone</Key><Code>NoSuchKey</Code><Message>no</Message></Error>
            <Error><Key>prefix/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>
            <Error><Key>prefix/c</Key><Code>InternalError</Code><Message>no</Message></Error></DeleteResult>"""
        with serving(lambda request: Answer(200, body)) as (endpoint, _):
            with pytest.raises(
                ColdStorageError, match=r"s3://bucket/prefix/b.*AccessDenied.*2 objects"
            ) as caught:
                store_at(endpoint).delete(["a", "b", "c", "gone"])
        assert not caught.value.retryable

    def test_many_objects_are_deleted_by_the_thousand(self):
        with serving(lambda request: Answer(200, b"<DeleteResult/>")) as (endpoint, requests):
            store_at(endpoint).delete(f"key-{number}" for number in range(2001))
        assert [request.body.count(b"<Key>") for request in requests] == [1000, 1000, 1]

    def test_an_object_that_may_not_be_deleted_holds_up_no_other(self):
        held = b"<DeleteResult><Error><Key>prefix/key-0</Key><Code>AccessDenied</Code></Error></DeleteResult>"
        answers = [Answer(200, held), Answer(200, b"<DeleteResult/>")]
        with serving(lambda request: answers.pop(0)) as (endpoint, requests):
            with pytest.raises(ColdStorageError, match="1 objects were not deleted"):
                store_at(endpoint).delete(f"key-{number}" for number in range(1001))
        assert len(requests) == 2


class TestUpload:
    def test_parts_are_stored_with_their_checksums_and_class(self, s3_raw, new_bucket, s3_options):
        changed = replace(s3_options, part_bytes=5 * MIB, storage_class="STANDARD_IA")
        store = open_object_store(f"s3://{new_bucket}/p", changed)
        with store.upload("key") as upload:
            upload.write(bytes(11 * MIB))
            upload.commit()
        head = s3_raw.head_object(Bucket=new_bucket, Key="p/key", ChecksumMode="ENABLED")
        assert head["StorageClass"] == "STANDARD_IA"
        assert head["ETag"].endswith('-3"')
        parts = b"".join(crc32c(bytes(size * MIB)).to_bytes(4, "big") for size in (5, 5, 1))
        assert head["ChecksumCRC32C"].partition("-")[0] == crc(parts)

    @pytest.mark.parametrize(("size", "parts"), [(5 * MIB, ""), (5 * MIB + 1, "-2")])
    def test_one_part_is_one_put(self, s3_raw, new_bucket, s3_options, size, parts):
        store = open_object_store(f"s3://{new_bucket}", replace(s3_options, part_bytes=5 * MIB))
        with store.upload("key") as upload:
            for _ in range(5):
                upload.write(bytes(MIB))
            upload.write(bytes(size - 5 * MIB))
            assert upload.commit().etag.strip('"').partition("-")[2] == parts.lstrip("-")

    def test_an_abort_leaves_no_parts_pending(self, s3_raw, new_bucket, s3_options):
        store = open_object_store(f"s3://{new_bucket}", replace(s3_options, part_bytes=5 * MIB))
        with store.upload("key") as upload:
            upload.write(bytes(11 * MIB))
            assert len(s3_raw.list_multipart_uploads(Bucket=new_bucket)["Uploads"]) == 1
        assert "Uploads" not in s3_raw.list_multipart_uploads(Bucket=new_bucket)
        assert list(store.list("")) == []

    def test_an_upload_that_meets_an_object_leaves_no_parts_pending(self, s3_raw, new_bucket, s3_options):
        store = open_object_store(f"s3://{new_bucket}", replace(s3_options, part_bytes=5 * MIB))
        store.put("key", b"first")
        with store.upload("key") as upload:
            upload.write(bytes(11 * MIB))
            with pytest.raises(PreconditionFailed):
                upload.commit()
        assert "Uploads" not in s3_raw.list_multipart_uploads(Bucket=new_bucket)
        assert store.get("key").data == b"first"

    def test_memory_is_bounded_to_the_parts_under_way_and_one(self):
        go_on = threading.Event()

        def answer(request):
            if request.method == "POST" and request.path.endswith("?uploads"):
                return Answer(200, b"<R><UploadId>u</UploadId></R>")
            go_on.wait(30)
            return refusal(403, "AccessDenied")

        accepted = 0

        def write() -> None:
            nonlocal accepted
            with pytest.raises(ColdStorageError, match="AccessDenied"), store.upload("key") as upload:
                for _ in range(64):
                    accepted += upload.write(bytes(MIB))

        with serving(answer) as (endpoint, requests):
            store = store_at(endpoint, part_bytes=5 * MIB, upload_threads=2)
            writer = threading.Thread(target=write)
            writer.start()
            writer.join(timeout=1)
            assert writer.is_alive()
            assert accepted <= 3 * 5 * MIB
            go_on.set()
            writer.join()
        assert [request.method for request in requests if "uploadId" in request.path].count("DELETE") == 1

    @pytest.mark.parametrize("size", [100, 6 * MIB])
    @pytest.mark.parametrize("lost", [refusal(412, "PreconditionFailed"), refusal(500, "InternalError")])
    def test_a_commit_whose_answer_was_lost_is_recognised_by_what_is_there(self, size, lost):
        """The SDK repeats the request, and the repetition meets the object that the first one made."""
        with serving(bucket_that(lost=lost)) as (endpoint, _):
            with store_at(endpoint, part_bytes=5 * MIB).upload("key") as upload:
                upload.write(bytes(size))
                assert upload.commit().size == size

    @pytest.mark.parametrize("size", [100, 6 * MIB])
    @pytest.mark.parametrize("checksums", [True, False])
    def test_damage_on_the_way_is_found_before_the_upload_counts(self, size, checksums):
        with serving(bucket_that(damage=True, checksums=checksums)) as (endpoint, _):
            with store_at(endpoint, part_bytes=5 * MIB).upload("key") as upload:
                upload.write(bytes(size))
                with pytest.raises(ColdStorageError, match="arrived damaged") as caught:
                    upload.commit()
        assert caught.value.retryable

    @pytest.mark.parametrize("size", [100, 6 * MIB])
    def test_a_server_without_checksums_is_checked_by_reading_back(self, size):
        with serving(bucket_that(checksums=False)) as (endpoint, requests):
            with store_at(endpoint, part_bytes=5 * MIB).upload("key") as upload:
                upload.write(bytes(size))
                assert upload.commit().size == size
        assert any(request.method == "GET" for request in requests)

    def test_a_lost_byte_is_found(self):
        with serving(bucket_that(shorten=True)) as (endpoint, _):
            with store_at(endpoint).upload("key") as upload:
                upload.write(bytes(100))
                with pytest.raises(ColdStorageError, match="99 of 100 bytes"):
                    upload.commit()


def bucket_that(
    *, lost: Answer | None = None, damage: bool = False, shorten: bool = False, checksums: bool = True
):
    """Keep one object; lose the answer to its creation, damage it, or know no checksums."""
    parts: dict[int, bytes] = {}
    kept: list[bytes] = []

    def keep(data: bytes) -> Answer:
        data = data[:-1] if shorten else data
        kept.append(data[:50] + b"!" + data[51:] if damage else data)
        return lost or Answer(200, b"<R><ETag>e</ETag></R>", ETAG)

    def answer(request):
        if request.method == "POST" and request.path.endswith("?uploads"):
            return Answer(200, b"<R><UploadId>u</UploadId></R>")
        if request.method == "POST":
            return keep(b"".join(parts[number] for number in sorted(parts)))
        if request.method == "PUT" and "partNumber" in request.path:
            parts[int(re.findall(r"partNumber=(\d+)", request.path)[0])] = request.body
            return Answer(200, b"", ETAG)
        if request.method == "PUT":
            return keep(request.body)
        if request.method == "HEAD":
            declared = {"x-amz-checksum-crc32c": crc(kept[0])} if checksums else {}
            return Answer(200, kept[0], {**ETAG, **declared})
        if request.method == "GET":
            first, last = map(int, re.findall(r"\d+", request.headers["range"]))
            headers = {**ETAG, "Content-Range": f"bytes {first}-{last}/{len(kept[0])}"}
            return Answer(206, kept[0][first : last + 1], headers)
        return Answer(204)

    return answer


def read_in_child(store, connection) -> None:
    connection.send(store.get_ranges("key", [(0, 2), (2, 1)]))


def test_a_forked_process_makes_connections_of_its_own(new_bucket, s3_options):
    store = open_object_store(f"s3://{new_bucket}", s3_options)
    store.put("key", b"abc")
    assert store.get_ranges("key", [(0, 1), (1, 1)]) == [b"a", b"b"]
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=read_in_child, args=(store, there))
    child.start()
    assert here.poll(30)
    assert here.recv() == [b"ab", b"c"]
    child.join()
    assert store.get("key").data == b"abc"
    store.close()


def test_a_listing_goes_on_page_after_page():
    def page(*keys: str, following: str = "") -> Answer:
        contents = "".join(
            f"<Contents><Key>prefix/{key}</Key><Size>3</Size><ETag>e</ETag>"
            "<LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys
        )
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        truncated = f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>"
        return Answer(200, f"<ListBucketResult>{contents}{truncated}{more}</ListBucketResult>".encode())

    pages = {None: page("a/1", "a/2", following="x"), "x": page(following="y"), "y": page("a/3")}

    def answer(request):
        token = re.findall(r"continuation-token=(\w+)", request.path)
        return pages[token[0] if token else None]

    with serving(answer) as (endpoint, requests):
        assert [item.key for item in store_at(endpoint).list("a/")] == ["a/1", "a/2", "a/3"]
    assert all("prefix=prefix%2Fa%2F" in request.path for request in requests)


def test_the_folder_marks_of_consoles_are_not_objects(new_bucket, s3_options, s3_raw):
    for key in ("p/", "p/a/", "p/a/b"):
        s3_raw.put_object(Bucket=new_bucket, Key=key, Body=b"")
    store = open_object_store(f"s3://{new_bucket}/p", s3_options)
    assert [item.key for item in store.list("")] == ["a/b"]
    assert store.folders("") == ["a"]
