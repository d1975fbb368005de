"""What is asked of the server for each object (encryption, class, tags, a second look), and that it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.s3_server import S3, s3_thread
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.options import check_encryption, check_tags
from tiered.errors import ColdStorageError, ConfigError

MIB = 1 << 20
SSE = "x-amz-server-side-encryption"


def store_at(endpoint: str, **changes):
    options = ColdOptions(
        endpoint_url=endpoint,
        region="us-east-1",
        access_key="k",
        secret_key="s",
        part_bytes=5 * MIB,
        **changes,
    )
    return open_object_store("s3://bucket", options)


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_data_objects_get_all_and_the_manifest_gets_encryption_alone(size: int) -> None:
    with s3_thread() as (endpoint, server):
        store = store_at(
            endpoint,
            encryption="aws:kms",
            kms_key_id="alias/logs",
            storage_class="STANDARD_IA",
            tags=(("team", "data"), ("cost centre", "a=b/c")),
        )
        store.put("head.json", b"head")
        with store.upload("data") as upload:
            upload.write(bytes(size))
            upload.commit()
        store.close()
    kms = {SSE: "aws:kms", f"{SSE}-aws-kms-key-id": "alias/logs"}
    assert server.objects["bucket/head.json"].kept == kms
    assert server.objects["bucket/data"].kept == {
        **kms,
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-tagging": "team=data&cost+centre=a%3Db%2Fc",
    }


def test_nothing_is_asked_by_default() -> None:
    with s3_thread() as (endpoint, server):
        store = store_at(endpoint)
        store.put("head.json", b"head")
        with store.upload("data") as upload:
            upload.commit()
        store.close()
    assert [found.kept for found in server.objects.values()] == [{}, {}]


class Forgetful(S3):
    """Takes the header that asks for encryption, and does nothing."""

    def __call__(self, request):
        request.headers.pop(SSE, None)
        return super().__call__(request)


def test_a_server_that_ignores_encryption_is_found_out_at_the_first_object() -> None:
    with s3_thread(Forgetful()) as (endpoint, _):
        store = store_at(endpoint, encryption="AES256")
        with pytest.raises(
            ColdStorageError, match=r"with encryption off, not AES256.*cold\.encryption"
        ) as caught:
            store.put("head.json", b"head")
        assert not caught.value.retryable
        with store.upload("data") as upload, pytest.raises(ColdStorageError, match="not AES256"):
            upload.commit()
        store.close()


class Rotten(S3):
    """Reports the checksum of what arrived, and gives back something else."""

    def GetObject(self, request):
        answer = super().GetObject(request)
        return replace(answer, body=bytes(answer.body[:-1]) + b"!")


@pytest.mark.parametrize("size", [100, 11 * MIB])
def test_reading_back_finds_what_the_servers_checksum_hides(size: int) -> None:
    with s3_thread(Rotten()) as (endpoint, _):
        for read_back in (False, True):
            store = store_at(endpoint, read_back=read_back)
            with store.upload(f"data-{read_back}") as upload:
                upload.write(bytes(size))
                if read_back:
                    with pytest.raises(ColdStorageError, match="arrived damaged") as caught:
                        upload.commit()
                    assert caught.value.retryable
                else:
                    upload.commit()
            store.close()


def test_reading_back_asks_for_each_part_once() -> None:
    with s3_thread() as (endpoint, _):
        store = store_at(endpoint, read_back=True)
        with store.upload("data") as upload:
            upload.write(bytes(11 * MIB))
            upload.commit()
        assert store.counts.requests["GetObject"] == 3
        assert store.counts.bytes_down == 11 * MIB
        store.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encryption": "aes"}, 'is "off", "AES256" or "aws:kms"'),
        ({"kms_key_id": "k"}, 'needs cold.encryption = "aws:kms"'),
        ({"encryption": "AES256", "kms_key_id": "k"}, "or leave the key out"),
        ({"encryption": "aws:kms", "kms_key_id": " "}, "leave it out for the account's own key"),
        ({"tags": tuple((str(i), "") for i in range(11))}, "at most 10 tags"),
        ({"tags": (("", "v"),)}, "1 to 128 characters"),
        ({"tags": (("k", "v" * 257),)}, "256"),
        ({"tags": (("aws:k", "v"),)}, "reserved"),
        ({"tags": (("k", "a&b"),)}, "what S3 refuses"),
        ({"requests_per_second": 0}, "more than zero"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(changes, words) -> None:
    with pytest.raises(ConfigError) as caught:
        ColdOptions(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize("changes", [{"encryption": "AES256"}, {"tags": (("a", "b"),)}])
@pytest.mark.parametrize("url", ["file:///srv/cold", "memory://x"])
def test_what_is_of_s3_alone_is_not_left_out_silently_elsewhere(url, changes) -> None:
    with pytest.raises(ConfigError, match=r"for s3:// alone"):
        open_object_store(url, ColdOptions(**changes))


def test_what_s3_takes_is_accepted() -> None:
    check_encryption("aws:kms", None)
    check_tags((("Équipe 1", "a+b-c=d._:/@"),))
