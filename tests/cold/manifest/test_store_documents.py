"""The documents of a store in its bucket, the names of everything in it, and all of it over a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cold.parquet_objects import facts_for, rows, topic_schema
from tests.support.memory_store import MemoryStore
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import (
    ObjectName,
    PartitionKeys,
    page_name,
    parse_object_name,
    parse_page_name,
    topic_folder,
    topic_key,
    topic_of_folder,
)
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep.inspect import rebuild_entry, verify_object
from tiered.errors import (
    ColdStorageError,
    ConfigError,
    CorruptionError,
    Fenced,
    InvalidName,
    TopicNotFound,
)
from tiered.format.schema import is_topic_name, schema_to_text

STORE, OTHER = UUID(int=1), UUID(int=2)
TOPIC, AGAIN = UUID(int=3), UUID(int=4)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bucket(store: MemoryStore) -> StoreDocuments:
    return StoreDocuments(store, sleep=lambda seconds: None)


def topic(
    name: str = "orders", topic_id: UUID = TOPIC, partitions: int = 1, schemas: int = 1
) -> dict[str, object]:
    versions = [{"id": i, "arrow": f"schema {i}"} for i in range(schemas)]
    return {"name": name, "id": str(topic_id), "partitions": partitions, "schemas": versions, "created_us": 5}


def test_a_prefix_belongs_to_one_store_for_ever(bucket: StoreDocuments, store: MemoryStore) -> None:
    assert bucket.read_store_id() is None
    bucket.claim_store(STORE)
    before = dict(store.objects)
    bucket.claim_store(STORE)
    with pytest.raises(ConfigError, match=str(STORE)):
        bucket.claim_store(OTHER)
    assert store.objects == before
    assert bucket.read_store_id() == STORE


@pytest.mark.parametrize("fault", ["lost", "answer lost", "repeated", "delayed"])
def test_a_claim_survives_a_lost_answer(bucket: StoreDocuments, store: MemoryStore, fault: str) -> None:
    kinds = iter([fault])
    store.fault = lambda verb, key: next(kinds, None) if verb == "put" else None
    bucket.claim_store(STORE)
    for late in store.delayed:
        late()
    assert bucket.read_store_id() == STORE
    assert len(store.writes) == 1


def test_two_stores_that_race_for_a_prefix_do_not_share_it(
    bucket: StoreDocuments, store: MemoryStore
) -> None:
    put = store.put

    def overtaken(key: str, data: bytes, **how: object) -> str:
        store.put = put  # type: ignore[method-assign]
        StoreDocuments(store).claim_store(OTHER)
        return put(key, data, **how)  # type: ignore[arg-type]

    store.put = overtaken  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=str(OTHER)):
        bucket.claim_store(STORE)
    assert bucket.read_store_id() == OTHER


def test_an_unreadable_store_document_is_not_an_absent_one(
    bucket: StoreDocuments, store: MemoryStore
) -> None:
    bucket.claim_store(STORE)
    data, etag = store.objects["store.json"]
    for bad in (data[:-5], data.replace(b"0", b"7", 1), b"", b"{}"):
        store.objects["store.json"] = (bad, etag)
        with pytest.raises(CorruptionError, match=r"store\.json"):
            bucket.claim_store(OTHER)
        with pytest.raises(CorruptionError):
            bucket.read_store_id()
        assert store.objects["store.json"][0] == bad
    store.fault = lambda verb, key: "lost"
    with pytest.raises(ColdStorageError, match="no answer"):
        bucket.claim_store(OTHER)


def test_a_lost_store_document_beside_topics_is_not_replaced(
    bucket: StoreDocuments, store: MemoryStore
) -> None:
    bucket.claim_store(STORE)
    bucket.put_topic(topic())
    del store.objects["store.json"]
    with pytest.raises(CorruptionError, match="missing beside topic 'orders'"):
        bucket.claim_store(OTHER)
    assert "store.json" not in store.objects


def test_what_is_not_ours_in_a_prefix_is_no_hindrance(bucket: StoreDocuments, store: MemoryStore) -> None:
    for key in ("backup/2024/x.tar", "notes.txt", "a b/c", "%2E/x/y", "store.json.d/x"):
        store.put(key, b"x")
    bucket.claim_store(STORE)
    bucket.put_topic(topic("backup"))
    assert list(bucket.topics()) == ["backup"]


def test_topics_are_those_that_live(bucket: StoreDocuments) -> None:
    bucket.put_topic(topic("orders"))
    bucket.put_topic(topic("a.b-c_D", AGAIN))
    assert bucket.topics() == {"orders": topic("orders"), "a.b-c_D": topic("a.b-c_D", AGAIN)}
    bucket.tombstone("orders", TOPIC, deleted_us=77)
    bucket.tombstone("orders", TOPIC, deleted_us=99)
    assert list(bucket.topics()) == ["a.b-c_D"]
    found = bucket.read_topic("orders", TOPIC)
    assert found is not None
    assert found["deleted_us"] == 77
    assert bucket.topic_ids("orders") == [TOPIC]
    bucket.put_topic(topic("orders", OTHER))
    assert bucket.topics()["orders"] == topic("orders", OTHER)


def test_a_deleted_topic_does_not_come_back(bucket: StoreDocuments) -> None:
    bucket.tombstone("orders", TOPIC, deleted_us=77)
    with pytest.raises(TopicNotFound):
        bucket.put_topic(topic())
    assert bucket.topics() == {}


def test_two_living_topics_of_a_name_are_no_choice_to_make(bucket: StoreDocuments) -> None:
    bucket.put_topic(topic())
    bucket.put_topic(topic(topic_id=AGAIN))
    with pytest.raises(CorruptionError, match="two topics 'orders'"):
        bucket.topics()


def test_a_topic_grows_and_a_stale_one_is_fenced(bucket: StoreDocuments, store: MemoryStore) -> None:
    bucket.put_topic(topic())
    bucket.put_topic(topic(partitions=2))
    bucket.put_topic(topic(partitions=2, schemas=3))
    writes = len(store.writes)
    bucket.put_topic(topic(partitions=2, schemas=3))
    assert len(store.writes) == writes
    for stale in (topic(), topic(partitions=1, schemas=3), topic(partitions=9, schemas=2)):
        with pytest.raises(Fenced):
            bucket.put_topic(stale)
    other = topic(partitions=2, schemas=3)
    other["schemas"] = [{"id": 0, "arrow": "another"}, *other["schemas"][1:]]  # type: ignore[index]
    with pytest.raises(Fenced):
        bucket.put_topic(other)
    assert bucket.topics() == {"orders": topic(partitions=2, schemas=3)}


def test_a_topic_document_that_moved_is_corruption(bucket: StoreDocuments, store: MemoryStore) -> None:
    bucket.put_topic(topic())
    store.objects[topic_key("stolen", AGAIN)] = store.objects[topic_key("orders", TOPIC)]
    with pytest.raises(CorruptionError, match="another topic"):
        bucket.topics()


def test_an_update_that_lost_the_race_sees_what_won(bucket: StoreDocuments, store: MemoryStore) -> None:
    bucket.put_topic(topic())
    put = store.put

    def overtaken(key: str, data: bytes, **how: object) -> str:
        store.put = put  # type: ignore[method-assign]
        StoreDocuments(store).tombstone("orders", TOPIC, deleted_us=5)
        return put(key, data, **how)  # type: ignore[arg-type]

    store.put = overtaken  # type: ignore[method-assign]
    with pytest.raises(TopicNotFound):
        bucket.put_topic(topic(partitions=2))
    assert bucket.topics() == {}


def test_an_update_without_an_answer_is_unknown_not_failed(
    bucket: StoreDocuments, store: MemoryStore
) -> None:
    store.fault = lambda verb, key: "lost" if verb == "put" else None
    with pytest.raises(ColdStorageError, match="outcome unknown") as caught:
        bucket.put_topic(topic())
    assert caught.value.retryable


def test_the_names_are_those_of_the_design() -> None:
    keys = PartitionKeys.of("orders", TOPIC, 12)
    name = ObjectName(345, 7, AGAIN)
    assert keys.head == f"orders/{TOPIC}/12/head.json"
    assert keys.data(str(name)) == f"orders/{TOPIC}/12/data/00000000000000000345-00000007-{AGAIN}.parquet"
    assert keys.page(page_name(AGAIN)) == f"orders/{TOPIC}/12/pages/{AGAIN}.json.zst"
    assert topic_key("orders", TOPIC) == f"orders/{TOPIC}/topic.json"


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.uuids())
def test_names_parse_to_what_they_say(base: int, epoch: int, unique: UUID) -> None:
    name = ObjectName(base, epoch, unique)
    assert parse_object_name(str(name)) == name
    assert parse_page_name(page_name(unique)) == unique


@pytest.mark.parametrize(
    "name", ["", "x", "head.json", f"{1:020d}-1-{TOPIC}.parquet", f"{1:020d}-00000001-{TOPIC}.parquet.tmp"]
)
def test_other_names_are_not_parsed(name: str) -> None:
    assert parse_object_name(name) is None
    assert parse_page_name(name) is None


@given(st.text("abcXYZ019._-%F2 /\\ä\x1b", max_size=8))
@example("..")
@example("../../etc")
@example("/etc")
@example("..%2F..%2Fetc")
@example("store.json")  # where the store's own document lies
def test_folders_of_topics_are_one_to_one_and_nothing_else_is_one(name: str) -> None:
    """Their names become those of local directories: of a folder that could not be a topic's nothing is read."""
    if is_topic_name(name):
        assert topic_folder(name) == f"{name}/"
        assert topic_of_folder(name) == name
        return
    with pytest.raises(InvalidName):
        topic_folder(name)
    assert topic_of_folder(name) is None
    assert topic_of_folder(quote(name, safe="")) is None


@pytest.fixture(params=["memory", "file", "s3"])
def real_url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    if request.param == "file":
        return f"file://{request.getfixturevalue('tmp_path')}"
    return f"s3://{request.getfixturevalue('new_bucket')}/some/prefix"


def test_all_of_it_over_a_real_store(real_url: str, request: pytest.FixtureRequest) -> None:
    """Claim, offload tails and the whole, read, fence, rebuild: with the backends that users have."""
    options = request.getfixturevalue("s3_options") if real_url.startswith("s3") else None
    backend = open_object_store(real_url, options)
    bucket = StoreDocuments(backend)
    bucket.claim_store(STORE)
    with pytest.raises(ConfigError):
        bucket.claim_store(OTHER)
    table = rows(3000)
    schema = topic_schema(table)
    bucket.put_topic(topic())
    assert list(bucket.topics()) == ["orders"]

    partition = PartitionManifest(backend, "orders", TOPIC, 0)
    assert partition.load() is None
    one = Committer(partition, STORE, clock=lambda: 1)
    one.claim()
    one.raise_start_offset(1000)
    for part, sealed in ((table.slice(0, 500), False), (table.slice(500, 700), False), (table, True)):
        name = one.new_object_name(part.column("offset")[0].as_py())
        with backend.upload(partition.keys.data(name)) as upload:
            entry = write_object(
                upload,
                table.schema,
                part.to_batches(256),
                facts_for(part),
                name=name,
                sealed=sealed,
                row_group_bytes=20_000,
            )
        head = one.publish_objects([entry], {0: schema_to_text(schema)})
        verify_object(backend, partition.keys.data(name), entry)
    assert [item.name for item in head.inline] == [name]
    assert rebuild_entry(backend, partition.keys.data(name)) == entry

    reader = PartitionManifest(backend, "orders", TOPIC, 0)
    loaded = reader.load()
    assert loaded is not None
    assert loaded.head == head
    found = [
        batch
        for item in reader.entries(loaded.head)
        for batch in read_object(backend, reader.keys.data(item.name), item, schema, start_offset=1500)
    ]
    assert pa.Table.from_batches(found).equals(table.slice(500))

    two = Committer(PartitionManifest(backend, "orders", TOPIC, 0), STORE, clock=lambda: 2)
    assert two.claim() == 2
    with pytest.raises(Fenced):
        one.raise_start_offset(2000)
    backend.close()


def test_claims_that_race_over_http_get_an_epoch_each(new_bucket: str, s3_options: object) -> None:
    backend = open_object_store(f"s3://{new_bucket}/race", s3_options)  # type: ignore[arg-type]
    processes = [
        Committer(
            PartitionManifest(backend, "t", TOPIC, 0),
            STORE,
            clock=lambda: 1,
            attempts=20,
            backoff_seconds=0.01,
        )
        for _ in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        epochs = list(pool.map(lambda process: process.claim(), processes))
    assert sorted(epochs) == [1, 2, 3, 4]
    backend.close()
