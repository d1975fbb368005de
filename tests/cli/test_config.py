"""``tiered config``: where each value comes from, mistakes in one line, doubts as warnings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import tiered
from tests.cli.commands import one_error
from tiered.cli import app
from tiered.settings.provenance import provenance
from tiered.settings.settings import Settings, Sources
from tiered.settings.toml_lines import key_lines

Run = Callable[..., Any]

TOML = """\
# comment = 1
[store]
path = "/srv/events"
sync = "always"

[policies.default]
preset = "cost-optimized"
retention = { age = "90d" }
[policies."audit-*"]
roll = "off"
compress = {
  codec = "lz4" }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiered.toml"
    path.write_text(TOML.replace("{\n ", "{"))
    return path


def shown(run: Run, *arguments: Any, **options: Any) -> dict[str, tuple[Any, str]]:
    result = run("config", "show", "--json", *arguments, **options)
    assert result.exit_code == 0, result.stderr
    return {item["key"]: (item["value"], item["source"]) for item in json.loads(result.stdout)["settings"]}


def test_a_settings_file_that_is_not_read_is_named(
    tiered_: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon would move nothing to the bucket that it names."""
    monkeypatch.chdir(config.parent)
    told = "note: tiered.toml is here and not read; add --config tiered.toml\n"
    assert tiered_("config", "check", store=False).stderr == told
    assert tiered_("topics", store=False).stderr.startswith(told)
    for named in (("--config", config), ("--path", "./data")):
        assert told not in tiered_("config", "check", *named, store=False).stderr


def test_every_value_names_its_source(tiered_: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_STORE__SYNC_INTERVAL", "1s")
    found = shown(tiered_, "--config", config, "--cold", "memory://x", store=False)
    of = str(config)
    assert found["store.path"] == ("/srv/events", f"{of} line 3")
    assert found["store.sync"] == ("always", f"{of} line 4")
    assert found["store.sync_interval"] == ("1s", "environment TIERED_STORE__SYNC_INTERVAL")
    assert found["store.block_bytes"] == ("1MiB", "default")
    assert found["cold.url"] == ("memory://x", "option --cold")
    assert found["policies.default.retention.age"] == ("90d", f"{of} line 8")
    assert found["policies.default.retention.by"] == ("append", "default")
    assert found["daemon.metrics"] == ("127.0.0.1:9464", "default of tiered daemon")
    assert found["flight.listen"] == ("127.0.0.1:8815", "default of tiered serve")
    assert found["policies.default.roll.bytes"] == ("512MiB", f"preset cost-optimized, {of} line 7")
    assert found["policies.default.merge.after"] == ("6h", "default")
    # A glob has what it says, and the rest from default.
    assert found['policies."audit-*".roll.age'] == ("off", f"{of} line 10")
    assert found['policies."audit-*".compress.codec'] == ("lz4", f"{of} line 11")
    assert found['policies."audit-*".retention.age'] == ("90d", f"{of} line 8")
    assert found['policies."audit-*".offload.after'] == ("0s", f"preset cost-optimized, {of} line 7")


def test_a_pin_in_short_is_of_the_line_that_says_so(tiered_: Run, tmp_path: Path) -> None:
    path = tmp_path / "pinned.toml"
    path.write_text('[policies.default]\npin = "on"\n')
    found = shown(tiered_, "--config", path)
    assert found["policies.default.pin.topic"] == (True, f"{path} line 2")
    assert found["policies.default.pin.age"] == ("off", "default")


def test_a_topic_is_shown_with_the_policy_that_it_has(tiered_: Run, config: Path) -> None:
    assert {key.rpartition(".")[0].rpartition(".")[0] for key in shown(
        tiered_, "--config", config, "--topic", "audit-eu")} == {'policies."audit-*"'}  # fmt: skip
    text = tiered_("config", "show", "--config", config, "--topic", "orders").stdout
    assert text.startswith("topic orders: policies.default\n")


def test_shown_values_are_those_in_effect(config: Path) -> None:
    """For each topic the rules are what `Settings.policy_for` gives."""
    sources = Sources.read(config, {})
    settings = Settings.from_sources(sources)
    assert settings == Settings.load(config)
    found = {item.key: item.value for item in provenance(settings, sources)}
    for pattern, topic in (("default", "orders"), ('"audit-*"', "audit-eu")):
        policy = settings.policy_for(topic).model_dump(mode="json")
        for rule, values in policy.items():
            for key, value in values.items():
                assert found[f"policies.{pattern}.{rule}.{key}"] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[store]\n\nsync = "none"\n', "store.sync: 'none' is not one of these: always, interval, never, cold (line 3)"),
        ("[store]\nsnyc = 1\n", "store.snyc: unknown key; did you mean sync? (line 2)"),
        ('[policies.default]\nroll = { age = "1 fortnight" }\n', "unknown unit 'fortnight'"),
        ('[policies."a*"]\nretention = { age = "1h" }\nlocal_retention = { age = "2h" }\n',
         'policies."a*": local_retention.age (2h) is longer than retention.age (1h); write 1h or less (line 1)'),
        ('[policies.default]\nretention = { age = "1h" }\noffload = { after = "1h" }\n', "would follow retention.age (1h)"),
        ('[cold]\nurl = "s3://"\n', "cold.url: 's3://' names no bucket; write s3://bucket/prefix (line 2)"),
        ('[cold]\nurl = "s3://key:a/b@bucket/p"\n', "cold.url: the s3:// URL must not hold a password"),
        ('[cold]\nurl = "gs://b/p?sig=x"\n', "cold.url: the gs:// URL must not hold ?"),
        ('[cold]\nurl = "bucket"\n', "cold.url: 'bucket' is not the URL of an object store"),
        ('[cold]\nendpoint_url = "http://token@host"\n', "cold.endpoint_url: must not hold credentials"),
        ('[cold]\nendpoint_url = "http://host:99999"\n', "cold.endpoint_url: is not the address of a server; write one such as"),
        ("[store\n", "line 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(tiered_: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    line = one_error(tiered_("config", "check", "--config", path))
    assert message in line
    assert str(path) in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Each table is right for itself; the glob inherits what it contradicts.
        ('[policies.default]\nlocal_retention = { age = "6h" }\n[policies."x-*"]\nretention = { age = "1h" }\n',
         'policies."x-*": local_retention.age (6h) is longer than retention.age (1h); write 1h or less (local_retention: FILE line 2, retention: FILE line 4)'),
        ('[policies.default]\nretention = { age = "5m" }\n',
         "policies.default: offload.after (10m) would follow retention.age (5m), so nothing is offloaded; write less, or \"off\" (offload: default, retention: FILE line 2)"),
        ('[policies."a*"]\n[policies."audit-*"]\n', 'policies."audit-*" never applies, as policies."a*" matches first'),
        ('[store]\nsync = "cold"\n[policies.default]\noffload = "off"\n', "exclude each other"),
    ],
)  # fmt: skip
def test_a_doubt_is_a_warning_with_its_places(tiered_: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    result = tiered_("config", "check", "--config", path)
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert message in result.stderr.replace(str(path), "FILE")


def test_a_mistyped_variable_is_doubted(tiered_: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiered_("config", "check", "--config", config).stderr == ""
    monkeypatch.setenv("TIERED_STOER__PATH", "/x")
    assert (
        "environment TIERED_STOER__PATH sets nothing" in tiered_("config", "check", "--config", config).stderr
    )


_names = st.sampled_from(["a", "b", "c", "d-e", "ü"])
_values = st.sampled_from(['"x"', "1", '"""\n\n[no]\nz = 1\n"""', "[\n  1, # x = 2\n]", '{ k = "v" }', "'#'"])


@given(st.lists(st.tuples(st.sampled_from(["", "# note", "[t"]), _names, _values), max_size=8))
def test_each_key_is_on_the_line_on_which_it_was_written(parts: list[tuple[str, str, str]]) -> None:
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    above: tuple[str, ...] = ()
    for number, (before, name, value) in enumerate(parts):
        if before == "[t":
            above = (f"t{number}",)
            lines.append(f"[{above[0]}]")
            expected[above] = len(lines)
        elif before or number % 2:
            lines.append(before)
        if (*above, name) in expected:
            continue
        expected[(*above, name)] = len(lines) + 1
        key = name if name.isascii() else f'"{name}"'
        lines += f"{key} = {value}".split("\n")
    found = key_lines("\n".join(lines))
    assert {key: line for key, line in found.items() if key[-1] != "k"} == expected


def test_the_bucket_that_the_store_remembers_is_shown_with_its_source(tiered_: Run, tmp_path: Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    assert tiered_("create", "t", "--path", tmp_path / "s", "--cold", bucket, store=False).exit_code == 0
    tiered_("append", "t", "--path", tmp_path / "s", stdin="a\n", store=False)
    tiered_("tier", "--path", tmp_path / "s", store=False)
    found = shown(tiered_, "--path", tmp_path / "s", store=False)
    assert found["cold.url"] == (bucket, f"remembered in {tmp_path / 's/cold.json'}")
    assert found["cold.region"] == (None, "default")
    other = shown(tiered_, "--path", tmp_path / "s", "--cold", "file:///elsewhere", store=False)
    assert other["cold.url"] == ("file:///elsewhere", "option --cold")
    check = tiered_("config", "check", "--path", tmp_path / "s", "--cold", "file:///elsewhere", store=False)
    assert "a store keeps its bucket" in check.stderr


def test_topics_that_cannot_have_their_table(tmp_path: Path) -> None:
    """Found before the first pass: columns that Iceberg refuses, and names that are one in a catalog."""
    pytest.importorskip("pyiceberg")
    config = tmp_path / "tiered.toml"
    config.write_text('[policies.raw]\ntable = "off"\n[policies."*"]\ntable = { every = "1m" }\n')

    def check(exit_code: int = 0) -> str:
        arguments = ["config", "check", "--config", str(config), "--path", str(tmp_path / "data")]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == exit_code
        return " ".join(result.output.split())

    assert "0 warnings" in check()
    clash = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    with tiered.open(tmp_path / "data") as store:
        for name, schema in (("my-clicks", None), ("My_clicks", None), ("raw", clash)):
            store.create_topic(name, schema=schema)
    found = check(1)
    assert "the tables of topics My_clicks and my-clicks would both be named my_clicks" in found
    with tiered.open(tmp_path / "data") as store:
        store.delete_topic("my-clicks")
        store.create_topic("nested", schema=clash)
    found = check()
    assert "topic nested gets no table: an Iceberg table cannot have these columns" in found
    assert "1 warning" in found
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("files", schema=pa.schema([("_file", pa.string()), ("_row_id", pa.int64())]))
    found = check()
    assert "in the table of topic files, Spark does not read the columns _file, _row_id" in found
    assert "2 warnings" in found


def test_topics_that_cannot_be_compacted(tmp_path: Path) -> None:
    config = tmp_path / "tiered.toml"
    config.write_text(
        '[policies.loose]\ncompact_keys = "off"\n'
        '[policies."*"]\ncompact_keys = { after = "1h", deleted = "gone" }\n'
    )
    with tiered.open(tmp_path / "data") as store:
        schema = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
        store.create_topic("fit", schema=schema, key="id")
        store.create_topic("raw")
        store.create_topic("loose", schema=schema)
        store.create_topic("keyless", schema=schema)
        store.create_topic("other", schema=pa.schema([("id", pa.int64())]), key="id")
    arguments = ["config", "check", "--config", str(config), "--path", str(tmp_path / "data")]
    found = " ".join(CliRunner().invoke(app, arguments, catch_exceptions=False).output.split())
    assert "topic keyless is not compacted: it has no key column" in found
    assert "topic other is not compacted: compact_keys.deleted names 'gone'" in found
    assert "2 warnings" in found
    config.write_text('[policies."*"]\ncompact_keys = { after = "1h" }\npin = "on"\n')
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0
