"""Settings: what is accepted, what is refused in which words, and which source wins."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tiered.base.units import (
    approximate_size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    to_us,
)
from tiered.cold.object_store.options import ColdOptions
from tiered.engine.locations import cold_options
from tiered.errors import ConfigError
from tiered.policies.policy import PRESETS, Policy
from tiered.settings.settings import Settings
from tiered.settings.toml_lines import key_lines
from tiered.warm.bucket_binding import BucketBinding

EXAMPLE = """
[store]
path = "/var/lib/tiered"
sync = "interval"
sync_interval = "50ms"
block_bytes = "1MiB"
hot_bytes = "256MiB"
[cold]
url = "s3://bucket/prefix"
endpoint_url = "http://127.0.0.1:9000"
region = "us-east-1"
storage_class = "STANDARD"
conditional_writes = "on"
[policies.default]
roll = { bytes = "256MiB", age = "1h" }
compress = { codec = "zstd", level = 3, after = "1m" }
offload = { after = "10m", tail_interval = "10s" }
local_retention = { age = "6h", bytes = "50GiB" }
retention = { age = "90d" }
[policies."audit-*"]
retention = { age = "7y" }
[daemon]
interval = "30s"
metrics = "127.0.0.1:9464"
upload_bytes_per_second = "100MiB"
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TIERED_"):
            monkeypatch.delenv(name)


def write(folder: Path, text: str) -> Path:
    path = folder / "tiered.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.model_validate(values)
    return str(caught.value)


def test_the_documented_example_loads(tmp_path: Path) -> None:
    settings = Settings.load(write(tmp_path, EXAMPLE))
    assert settings.store.sync_interval == timedelta(milliseconds=50)
    assert settings.store.hot_bytes == 256 << 20
    assert settings.cold.url == "s3://bucket/prefix"
    assert settings.cold.conditional_writes is True
    assert settings.daemon.upload_bytes_per_second == 100 << 20
    orders, audit = settings.policy_for("orders"), settings.policy_for("audit-eu")
    assert orders.retention.age == timedelta(days=90)
    assert orders.local_retention.bytes == 50 << 30
    assert audit.retention.age == timedelta(days=7 * 365)
    assert audit.model_copy(update={"retention": orders.retention}) == orders


def test_a_copy_with_other_policies_has_them(tmp_path: Path) -> None:
    """Policies are resolved once; to have been asked changes neither equality nor a copy."""
    settings = Settings.load(write(tmp_path, EXAMPLE))
    before = settings.policy_for("orders")
    assert settings.policy_for("orders") is before
    assert settings == Settings.load(tmp_path / "tiered.toml")
    other = settings.model_copy(update={"policies": Settings().policies})
    assert other.policy_for("orders") == Settings().policy_for("orders") != before
    assert settings.model_copy().policy_for("orders") == before


def test_the_defaults_are_the_example_but_never_delete_for_good(tmp_path: Path) -> None:
    text = EXAMPLE.replace('retention = { age = "90d" }', "", 1)
    assert Settings.load(write(tmp_path, text)).policy_for("orders") == Settings().policy_for("orders")
    policy = Settings().policy_for("orders")
    assert (policy.retention.age, policy.retention.bytes) == (None, None)
    assert (Settings().store.max_record_bytes, Settings().store.mmap) == (32 << 20, True)


def test_what_is_said_of_the_bucket_reaches_it() -> None:
    values = {
        "cold": {
            "url": "s3://b/p", "encryption": "aws:kms", "kms_key_id": "alias/k", "tags": {"team": "data"},
            "read_back": "on", "storage_class": "STANDARD_IA", "part_bytes": "16MiB", "upload_threads": 2,
            "bytes_per_second_min": "1KiB",
        },
        "daemon": {"upload_bytes_per_second": "1MiB", "requests_per_second": 5},
    }  # fmt: skip
    settings = Settings.model_validate(values)
    assert Settings.model_validate(settings.to_json()) == settings
    options = cold_options(settings, BucketBinding())
    assert options == ColdOptions(
        storage_class="STANDARD_IA", encryption="aws:kms", kms_key_id="alias/k", tags=(("team", "data"),),
        read_back=True, part_bytes=16 << 20, upload_threads=2, upload_bytes_per_second=1 << 20,
        requests_per_second=5.0, bytes_per_second_min=1 << 10,
    )  # fmt: skip
    assert cold_options(Settings(), BucketBinding()) == ColdOptions()


def test_model_validate_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_STORE__SYNC", "always")
    assert Settings.model_validate({}).store.sync == "interval"
    assert Settings().store.sync == "interval"
    assert Settings.load().store.sync == "always"


def test_the_environment_may_be_in_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("tiered_store__sync", "always")
    assert Settings.load().store.sync == "always"


def test_the_environment_sets_every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.setenv(f"TIERED_{name.upper()}__NOTHING", "1")
        with pytest.raises(ConfigError, match=f"(?i){name}.*nothing"):
            Settings.load()
        monkeypatch.delenv(f"TIERED_{name.upper()}__NOTHING")
    monkeypatch.setenv("TIERED_ERASE__WITHIN", "60d")
    assert Settings.load().erase.within == timedelta(days=60)


def test_arguments_win_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, '[store]\nsync = "never"\nblock_bytes = "2MiB"\npath = "/file"\n')
    monkeypatch.setenv("TIERED_STORE__SYNC", "always")
    monkeypatch.setenv("TIERED_STORE__BLOCK_BYTES", "3MiB")
    monkeypatch.setenv("TIERED_STORE__HOT_BYTES", "104857600")
    monkeypatch.setenv("TIERED_POLICIES__DEFAULT__RETENTION", '{"age": "7d"}')
    store = Settings.load(path, store={"sync": "cold"}).store
    assert (store.sync, store.block_bytes, store.path) == ("cold", 3 << 20, "/file")
    assert store.hot_bytes == 100 << 20
    assert Settings.load(path).policy_for("x").retention.age == timedelta(days=7)


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    assert Settings.load(store={"path": tmp_path}).store.path == str(tmp_path)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().store.sync = "never"  # type: ignore[misc]


def test_first_matching_glob_wins_and_the_rest_comes_from_default() -> None:
    settings = Settings.model_validate(
        {
            "policies": {
                "a-*": {"retention": {"age": "1d"}},
                "default": {"retention": {"age": "9d"}, "roll": {"bytes": "1MiB"}},
                "a-b*": {"retention": {"age": "2d"}, "roll": {"bytes": "2MiB"}},
            }
        }
    )
    assert settings.policy_for("a-bc").retention.age == timedelta(days=1)
    assert settings.policy_for("a-bc").roll.bytes == 1 << 20
    assert settings.policy_for("A-bc").retention.age == timedelta(days=9)
    assert settings.policy_for("z").retention.age == timedelta(days=9)


def test_a_preset_stands_for_all_rules_but_retention() -> None:
    settings = Settings.model_validate(
        {
            "policies": {
                "default": {"preset": "cost-optimized", "retention": {"age": "9d"}},
                "hot-*": {"preset": "high-performance", "roll": {"bytes": 7}},
            }
        }
    )
    cheap, fast = settings.policy_for("x"), settings.policy_for("hot-x")
    assert cheap.offload == PRESETS["cost-optimized"].offload
    assert fast.local_retention == PRESETS["high-performance"].local_retention
    assert fast.roll.bytes == 7
    assert cheap.retention.age == fast.retention.age == timedelta(days=9)
    assert all(preset.retention == Policy().retention for preset in PRESETS.values())


def test_off_means_never_for_a_key_and_for_a_whole_rule() -> None:
    policy = Settings.model_validate(
        {
            "policies": {
                "default": {
                    "roll": {"age": "off"},
                    "compress": "off",
                    "offload": {"tail_interval": "off"},
                    "local_retention": {"age": None},
                    "retention": "off",
                }
            }
        }
    ).policy_for("x")
    assert (policy.roll.age, policy.roll.bytes) == (None, 256 << 20)
    assert policy.compress.after is None
    assert (policy.offload.tail_interval, policy.offload.after) == (None, timedelta(minutes=10))
    assert (policy.local_retention.age, policy.local_retention.bytes) == (None, None)


RETENTION = {"age": "1d", "bytes": "1GiB"}


def rule(**rules: Any) -> dict[str, Any]:
    return {"policies": {"default": rules}}


@pytest.mark.parametrize(
    ("values", "key", "hint"),
    [
        ({"store": {"snyc": "always"}}, "store.snyc", "did you mean sync?"),
        ({"polices": {}}, "polices", "did you mean policies?"),
        ({"daemon": {"zzz": 1}}, "daemon.zzz", "write one of interval, cron"),
        ({"policies": {"a*": {"retentoin": {}}}}, 'policies."a*".retentoin', "did you mean retention?"),
        ({"policies": {"a*": {"retention": {"aeg": 1}}}}, 'policies."a*".retention.aeg', "mean age?"),
        ({"store": {"sync": "allways"}}, "store.sync", "always, interval, never, cold"),
        ({"store": 3}, "store", "must be a table"),
        ({"store": {"path": ""}}, "store.path", "write a directory"),
        ({"store": {"mmap": "maybe"}}, "store.mmap", 'write "on" or "off"'),
        ({"store": {"sync_every": 0}}, "store.sync_every", "greater than or equal to 1"),
        ({"store": {"sync_interval": 50}}, "store.sync_interval", 'write "50s" for seconds'),
        ({"store": {"sync_interval": "0"}}, "store.sync_interval", "more than zero"),
        ({"store": {"block_bytes": "1 M"}}, "store.block_bytes", "unknown unit 'M'"),
        ({"store": {"block_bytes": "1GiB", "hot_bytes": "9GiB"}}, "store", "block_bytes is at most 64MiB"),
        ({"store": {"max_record_bytes": "64MiB"}}, "store", "max_record_bytes is at most 32MiB"),
        ({"store": {"hot_bytes": "1KiB"}}, "store", "write block_bytes (1MiB) or more"),
        ({"cold": {"url": "bucket/prefix"}}, "cold.url", "s3://bucket/prefix"),
        ({"cold": {"url": "file:///"}}, "cold.url", "file:///absolute/directory"),
        ({"cold": {"url": "file:////"}}, "cold.url", "file:///absolute/directory"),
        ({"cold": {"url": "file://relative"}}, "cold.url", "file:///absolute/directory"),
        ({"cold": {"url": "file:///srv/../etc"}}, "cold.url", "dot name"),
        ({"cold": {"url": "http://host/path"}}, "cold.url", "no object store"),
        ({"cold": {"url": "file:///srv/a\0b"}}, "cold.url", "NUL"),
        ({"store": {"path": "a\0b"}}, "store.path", "NUL"),
        ({"store": {"cache_path": "a\0b"}}, "store.cache_path", "NUL"),
        ({"flight": {"token_file": "a\0b"}}, "flight.token_file", "NUL"),
        ({"cold": {"url": "file:///srv/.tiered"}}, "cold.url", "reserved"),
        ({"cold": {"url": "s3://"}}, "cold.url", "names no bucket"),
        ({"cold": {"url": "s3://bucket/a//b"}}, "cold.url", "one slash"),
        ({"cold": {"endpoint_url": "127.0.0.1:9000"}}, "cold.endpoint_url", "http://127.0.0.1:9000"),
        ({"cold": {"storage_class": "GLACIER"}}, "cold.storage_class", "GLACIER_IR"),
        ({"cold": {"conditional_writes": "perhaps"}}, "cold.conditional_writes", 'write "on" or "off"'),
        ({"cold": {"encryption": "kms"}}, "cold.encryption", "off, AES256, aws:kms"),
        ({"cold": {"kms_key_id": "k"}}, "cold", 'needs encryption = "aws:kms"'),
        ({"cold": {"tags": {"aws:x": "y"}}}, "cold", "write another key"),
        ({"cold": {"tags": {"x": 1}}}, "cold.tags.x", "valid string"),
        ({"cold": {"part_bytes": "1MiB"}}, "cold", "between 5MiB and 5GiB"),
        ({"cold": {"upload_threads": 0}}, "cold.upload_threads", "greater than or equal to 1"),
        ({"cold": {"url": "gs://b/p", "tags": {"x": "y"}}}, "cold", "tags is for s3:// alone, not for gs://"),
        ({"daemon": {"requests_per_second": 0}}, "daemon.requests_per_second", "greater than 0"),
        ({"policies": {"default": {"preset": "fast"}}}, "policies.default.preset", "high-performance"),
        ({"policies": {"default": {"retention": {"age": "1M"}}}}, "retention.age", "unknown unit 'M'"),
        ({"policies": {"default": {"retention": {"age": 0}}}}, "retention.age", 'write "off"'),
        ({"policies": {"default": {"retention": {"bytes": 0}}}}, "retention.bytes", 'write "off"'),
        ({"policies": {"default": {"compress": {"codec": "gz"}}}}, "compress.codec", "none, lz4, zstd"),
        (
            {"policies": {"default": {"retention": RETENTION, "local_retention": {"age": "2d"}}}},
            "policies.default",
            "local_retention.age (2d) is longer than retention.age (1d)",
        ),
        (
            {"policies": {"default": {"retention": RETENTION, "local_retention": {"bytes": "2GiB"}}}},
            "policies.default",
            "local_retention.bytes (2GiB) is more than retention.bytes (1GiB)",
        ),
        (
            {"policies": {"default": {"retention": RETENTION, "offload": {"after": "1d"}}}},
            "policies.default",
            "offload.after (1d) would follow retention.age (1d)",
        ),
        (rule(local_retention={"free_disk": "101%"}), "free_disk", "no share of a disk; write more than 0%"),
        (rule(local_retention={"free_disk": "10G"}), "free_disk", "unknown unit 'G'"),
        (rule(local_retention={"free_disk": 0}), "free_disk", 'write "off" for no limit'),
        (
            rule(offload={"after": "off", "bytes": "1GiB"}),
            "default",
            'write a long time, such as after = "30d"',
        ),
        (rule(compress={"block_bytes": "64MiB"}), "compress.block_bytes", "at most 32MiB"),
        (rule(offload={"row_group_bytes": "65MiB"}), "offload.row_group_bytes", "is 1MiB to 64MiB"),
        (rule(offload={"row_group_bytes": "4KiB"}), "offload.row_group_bytes", "is 1MiB to 64MiB"),
        (rule(offload={"row_group_bytes": "off"}), "offload.row_group_bytes", "size"),
        (rule(offload={"key_filter": True}), "offload.key_filter", "is not one of these: auto, on, off"),
        (rule(storage_class={"name": "DEEP_ARCHIVE", "after": "1d"}), "storage_class.name", "GLACIER_IR"),
        (
            rule(storage_class={"after": "1h"}, merge={"after": "2h"}),
            "policies.default",
            "storage_class.after (1h) is shorter than merge.after (2h)",
        ),
        (
            rule(storage_class={"after": "28d"}, retention={"age": "28d"}),
            "policies.default",
            "storage_class.after (4w) would follow retention.age (4w)",
        ),
        (rule(pin="on", local_retention={"age": "1h"}), "policies.default", "leave one of them out"),
        (
            rule(pin={"age": "2h"}, local_retention={"age": "1h"}),
            "policies.default",
            "pin.age (2h) is longer than local_retention.age (1h); write 1h or less",
        ),
        (rule(pin={"since": "2027-01-31T10:00:00"}), "pin.since", "has no zone; write a date"),
        (rule(pin={"since": "yesterday"}), "pin.since", "is no time; write a date"),
        (rule(pin={"since": "2027-02-01", "until": "2027-02-01"}), "pin", "until must be later than since"),
        (rule(promote={"reads": 2, "within": "2h", "keep": "1h"}), "default", "write 2h or more"),
        (rule(promote={"read": 2}), "promote.read", "did you mean reads?"),
        ({"daemon": {"interval": "1m", "cron": "* * * * *"}}, "daemon", "leave one of them out"),
        ({"daemon": {"cron": "* * *"}}, "daemon.cron", "*/5 * * * *"),
        ({"daemon": {"metrics": "9464"}}, "daemon.metrics", "127.0.0.1:9464"),
        ([], "settings", "must be a table"),
    ],
)
def test_refusals_name_the_key_and_what_to_write_in_one_line(values: Any, key: str, hint: str) -> None:
    message = refusal(values)
    assert key in message.split(": ", 1)[0]
    assert hint in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_new_rules_are_written_as_they_were_read() -> None:
    written = {
        "local_retention": {"age": "off", "bytes": "off", "free_disk": "2.5%"},
        "pin": {"age": "2h", "topic": False, "since": "2027-01-31T00:00:00Z"},
        "promote": {"reads": 3, "within": "1h", "keep": "1d", "bytes": "10GiB"},
        "storage_class": {"name": "GLACIER_IR", "after": "13w"},
        "offload": {
            "after": "10m",
            "tail_interval": "10s",
            "bytes": "1GiB",
            "row_group_bytes": "32MiB",
            "key_filter": "on",
        },
    }
    settings = Settings.model_validate(rule(**written))
    assert settings.to_json()["policies"]["default"] == written
    assert Settings.model_validate(settings.to_json()) == settings
    assert settings.promotes
    policy = settings.policy_for("t")
    assert policy.local_retention.free_disk is not None
    assert policy.local_retention.free_disk.of(1000) == 25
    short = Settings.model_validate(rule(pin="on", local_retention={"free_disk": "10GiB"})).policy_for("t")
    assert short.pin.topic
    assert short.local_retention.free_disk is not None
    assert short.local_retention.free_disk.of(1) == 10 << 30
    assert not Settings.model_validate(rule(pin="off", promote="off", storage_class="off")).promotes


def test_a_topic_with_short_retention_may_inherit_longer_local_rules() -> None:
    """Only what is written side by side is a contradiction."""
    settings = Settings.model_validate({"policies": {"tmp-*": {"retention": {"age": "1m"}}}})
    assert settings.policy_for("tmp-1").retention.age == timedelta(minutes=1)


@pytest.mark.parametrize(
    "given",
    [
        {"cold": {"url": "s3://key:hush@bucket/prefix"}},
        {"cold": {"url": "abfs://box@account/p?sig=hush"}},
        {"cold": {"endpoint_url": "https://key:hush@host"}},
        {"store": {"path": "s3://key:hu/sh@bucket/hush"}},
    ],
)
def test_secrets_are_refused_and_not_repeated(given: dict[str, dict[str, str]]) -> None:
    message = refusal(given)
    assert "hush" not in message
    assert "AWS_PROFILE" in message


def test_a_container_in_front_of_the_host_is_no_secret() -> None:
    assert Settings.model_validate({"cold": {"url": "abfs://box@account.dfs.core.windows.net/p"}}).cold.url


def test_a_refusal_names_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, '[store]\nsync = "no"\n')

    def message(**overrides: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            Settings.load(path, **overrides)
        return str(caught.value)

    assert message().startswith(f"{path}: store.sync: ")
    monkeypatch.setenv("TIERED_STORE__SYNC", "nope")
    assert message().startswith("environment TIERED_STORE__SYNC: ")
    assert message(store={"sync": "none"}).startswith("argument store.sync: ")
    monkeypatch.setenv("TIERED_STORE__SYNC", "always")
    monkeypatch.setenv("TIERED_STORE__SYNK", "always")
    assert "TIERED_STORE__SYNK: unknown key" in message()


def test_unreadable_files_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        Settings.load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"tiered\.toml: is not valid TOML: .*line 1"):
        Settings.load(write(tmp_path, "[store\n"))
    monkeypatch.setenv("TIERED_STORE", "sync=always")
    with pytest.raises(ConfigError, match="environment TIERED_STORE: is not JSON"):
        Settings.load()


def test_a_mark_in_front_of_utf_8_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text('[store]\nsync = "always"\n', encoding="utf-8-sig")
    assert Settings.load(path).store.sync == "always"


def test_a_path_may_begin_at_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Settings.load(write(tmp_path, '[store]\npath = "~/data"\n[flight]\ntoken_file = "~/token"\n'))
    assert (found.store.path, found.flight.token_file) == (f"{tmp_path}/data", f"{tmp_path}/token")
    assert Settings.load(store={"path": "./~"}).store.path == "./~"


DEEP = ".".join(["a"] * 5000)


@pytest.mark.extended
@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        f"{DEEP} = 1",
        f"store.sync.{DEEP} = 1",
        f"[cold.tags.{DEEP}]",
    ],
    ids=["arrays", "keys", "shown", "tags"],
)
def test_what_is_nested_too_deeply_is_a_mistake_like_any_other(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"tiered\.toml: tables are nested too deeply"):
        Settings.load(path)


def test_a_variable_that_is_nested_too_deeply_is_a_mistake_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_POLICIES", "[" * 100_000)
    with pytest.raises(ConfigError, match="environment .* nested too deeply"):
        Settings.load()


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+12:00", "9999-12-31T23:00:00-12:00"])
def test_a_time_that_no_calendar_has_in_utc_is_refused(moment: str) -> None:
    with pytest.raises(ConfigError, match=r"pin\.since: .* beyond the years 1 to 9999"):
        Settings.model_validate({"policies": {"default": {"pin": {"since": moment}}}})


def test_the_lines_of_a_file_are_looked_for_once() -> None:
    """`tiered config show` asks for the line of each setting, and a file takes a parse a line."""
    assert key_lines("a = 1") is key_lines("a = " + "1")


def test_to_json_reads_back(tmp_path: Path) -> None:
    for text in (EXAMPLE, '[daemon]\ncron = "*/5 * * * *"\n[policies.default]\nroll = "off"\n'):
        settings = Settings.load(write(tmp_path, text))
        assert Settings.model_validate(settings.to_json()) == settings
    assert Settings.load(write(tmp_path, EXAMPLE)).to_json()["policies"]["default"]["roll"] == {
        "bytes": "256MiB",
        "age": "1h",
    }


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("50ms", 50_000),
        ("1h", 3_600_000_000),
        ("7y", 7 * 365 * 86_400_000_000),
        ("90d", 90 * 86_400_000_000),
        ("1h30m", 5_400_000_000),
        ("1.5 s", 1_500_000),
        ("3 µs", 3),
        ("0", 0),
        (0, 0),
    ],
)
def test_durations(text: object, micros: int) -> None:
    assert to_us(parse_duration(text)) == micros


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1MiB", 1 << 20),
        ("50GiB", 50 << 30),
        ("100MB", 10**8),
        ("1.5kB", 1500),
        ("7", 7),
        (7, 7),
        ("2 gib", 2 << 30),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "h",
        "1",
        "1h\n",
        "1h\t30m",
        "0\n",
        "-1s",
        "1M",
        "1h,",
        "1e3s",
        5,
        0.5,
        True,
        False,
        None,
        "0.1us",
        "999999999y",
    ],
)
def test_what_is_not_a_duration(bad: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration(bad)


@pytest.mark.parametrize(
    "bad",
    ["", "B", "1MiB\n", "7\n", "\t7", "1\u00a0MiB", "-1", -1, "1K", "1.5", "0.3B", 1.5, True, None, "1KiB/s"],
)
def test_what_is_not_a_size(bad: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_size(bad)


@given(st.integers(0, 10**18))
def test_durations_and_sizes_read_back(value: int) -> None:
    assert to_us(parse_duration(format_duration(value))) == value
    assert parse_size(format_size(value)) == value


@given(st.integers(0, 1 << 60))
def test_approximate_sizes_are_short_and_near(value: int) -> None:
    match = re.fullmatch(r"(\d{1,4}(?:\.\d)?)((?:[KMGTP]i)?B)", approximate_size(value))
    assert match
    assert abs(float(match[1]) * parse_size(f"1{match[2]}") - value) <= value * 0.051


def test_short_forms_for_people() -> None:
    assert format_duration(timedelta(days=1, hours=3, minutes=12), parts=2) == "1d3h"
    assert approximate_size(12 << 20) == "12MiB"
    assert approximate_size(1_600_000) == "1.5MiB"
