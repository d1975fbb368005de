"""``tiered config``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.units import format_duration
from ..daemon.service import DEFAULT_ADDRESS
from ..errors import ConfigError, SchemaMismatch, TieredError
from ..flight.wire.options import DEFAULT_LISTEN
from ..format.latest import tombstones_of
from ..format.schema import check_topic_name
from ..settings.provenance import (
    Setting,
    config_warnings,
    matching_pattern,
    patterns,
    policy_provenance,
    provenance,
    resolved_policy,
)
from ..settings.settings import Settings, Sources, dotted
from ..table.schema import METADATA_COLUMNS, iceberg_schema
from ..table.table_sql import table_identifier
from ..warm.bucket_binding import COLD_FILE, BucketBinding, read_binding
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    complete_topic,
    open_for_reading,
    overrides_of,
)
from .output import count, print_json, print_table, say

# The addresses where commands listen by default.
_COMMANDS = {
    "daemon.metrics": (DEFAULT_ADDRESS, "default of tiered daemon"),
    "flight.listen": (DEFAULT_LISTEN, "default of tiered serve"),
}
_OPTIONS = {"argument store.path": "option --path", "argument cold.url": "option --cold"}


class ConfigTask(StrEnum):
    """What to do with the settings."""

    CHECK = "check"
    SHOW = "show"


def config(
    task: Annotated[
        ConfigTask,
        typer.Argument(
            metavar="check|show",
            help="check: find mistakes. show: print every value in effect and its source.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Show the rules of this topic only.", autocompletion=complete_topic
        ),
    ] = None,
    config_file: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Check a tiered.toml and the environment, or show the settings in effect.

    A mistake is one line: source, key, what to write instead; the exit code is 1. Valid settings that have no effect or
    contradict each other, such as rules of two tables, are warnings on stderr. If no source names a bucket, the one that
    the store remembers is shown. The store is opened, for reading, only to look for the consumers that a retention names,
    and for topics that cannot have the table that their policy wants. Two topics whose tables would share a name are a mistake.
    """
    if topic is not None:
        check_topic_name(topic)
    sources = Sources.read(config_file, overrides_of(path, cold))
    settings = Settings.from_sources(sources)
    binding = read_binding(Path(settings.store.path))
    warnings = [
        *config_warnings(settings, sources, os.environ),
        *_other_bucket(settings, binding),
        *(_unknown_consumers(settings) if task is ConfigTask.CHECK else ()),
    ]
    if task is ConfigTask.CHECK:
        _check_tables(settings)
        warnings += _short_erase(settings, sources)
        warnings += [*_unfit_topics(settings), *_uncompacted_topics(settings)]
        _print_check(sources, settings, warnings, as_json)
        return
    pattern = None if topic is None else matching_pattern(settings, topic)
    values = (
        [_in_effect(item, settings, binding) for item in provenance(settings, sources)]
        if pattern is None
        else list(policy_provenance(settings, sources, pattern))
    )
    _print_settings(values, topic, pattern, as_json)


def _in_effect(setting: Setting, settings: Settings, binding: BucketBinding) -> Setting:
    """Return a setting with its value in effect: without a value, a command's default, or the store's binding."""
    if setting.value is None and setting.key in _COMMANDS:
        return Setting(setting.key, *_COMMANDS[setting.key])
    name = setting.key.removeprefix("cold.")
    if setting.value is not None or name not in ("url", "endpoint_url", "region"):
        return setting
    value = getattr(binding, name)
    if value is None:
        return setting
    return Setting(setting.key, value, f"remembered in {Path(settings.store.path) / COLD_FILE}")


def _other_bucket(settings: Settings, binding: BucketBinding) -> Iterator[str]:
    url = settings.cold.url
    if (
        url is not None
        and binding.claimed
        and binding.url is not None
        and binding.url.rstrip("/") != url.rstrip("/")
    ):
        yield (
            f"cold.url is {url}, and the store {settings.store.path} has its cold tier at {binding.url}: it will refuse "
            "to open; a store keeps its bucket"
        )


def _short_erase(settings: Settings, sources: Sources) -> Iterator[str]:
    """Raise `ConfigError` for a deadline of erasures that none can meet; if it is the default, yield a warning."""
    try:
        settings.check_erase()
    except ConfigError as error:
        if "erase" in {**sources.file, **sources.environment, **sources.arguments}:
            raise
        yield str(error)


def _check_tables(settings: Settings) -> None:
    """Raise `ConfigError` if a policy wants tables that cannot be published."""
    named = [
        dotted(("policies", name))
        for name, table in settings.policies.items()
        if table.table and table.table.every
    ]
    if not named:
        return
    if find_spec("pyiceberg") is None:
        raise ConfigError(f"{named[0]}.table needs pyiceberg: pip install 'tiered[iceberg]'")
    if not settings.cold.conditional_writes:
        raise ConfigError(f'{named[0]}.table needs conditional writes; write cold.conditional_writes = "on"')


def _unfit_topics(settings: Settings) -> Iterator[str]:
    """Yield a line for each topic of the store that cannot have the table that its policy wants, or not in every engine.

    Raises
    ------
    ConfigError
        Two tables would have one name.
    """
    root = Path(settings.store.path)
    if (
        not any(policy.table and policy.table.every for policy in settings.policies.values())
        or not root.is_dir()
    ):
        return
    try:
        with open_for_reading(settings) as store:
            schemas = {
                name: store.topic(name).schema
                for name in store.topics()
                if settings.policy_for(name).table.every is not None
            }
    except TieredError as error:
        yield f"the topics with tables cannot be checked: {error}"
        return
    names: dict[str, str] = {}
    for topic, schema in schemas.items():
        try:
            iceberg_schema(schema)
        except SchemaMismatch as error:
            yield f"topic {topic} gets no table: {error}"
        if reserved := [name for name in schema.names if name in METADATA_COLUMNS]:
            yield (
                f"in the table of topic {topic}, Spark does not read the columns {', '.join(reserved)}: Iceberg has columns "
                "of its own by these names"
            )
        other = names.setdefault(table_identifier(topic), topic)
        if other != topic:
            raise ConfigError(
                f"the tables of topics {other} and {topic} would both be named {table_identifier(topic)} in a catalog: "
                f'write table = "off" in the policy of one of them'
            )


def _uncompacted_topics(settings: Settings) -> Iterator[str]:
    """Yield a line for each topic of the store that cannot be compacted as its policy wants."""
    policies = (resolved_policy(settings, pattern) for pattern in patterns(settings))
    if (
        all(policy.compact_keys.after is None for policy in policies)
        or not Path(settings.store.path).is_dir()
    ):
        return
    try:
        with open_for_reading(settings) as store:
            metas = [store.topic(name).meta for name in store.topics()]
    except TieredError as error:
        yield f"the topics with compact_keys cannot be checked: {error}"
        return
    for meta in metas:
        rule = settings.policy_for(meta.name).compact_keys
        if rule.after is None:
            continue
        if meta.key_column is None:
            yield f"topic {meta.name} is not compacted: it has no key column"
            continue
        try:
            tombstones_of(meta, rule.deleted)
        except ConfigError as error:
            yield f"topic {meta.name} is not compacted: {error}"


def _unknown_consumers(settings: Settings) -> Iterator[str]:
    """Yield a line for each name of ``retention.unless_behind`` that no consumer of the store has."""
    names = {
        (dotted(("policies", pattern)), name): policy.retention.unless_behind_max
        for pattern in patterns(settings)
        if (policy := resolved_policy(settings, pattern)).retention.unless_behind
        for name in policy.retention.unless_behind
    }
    if not names:
        return
    try:
        with open_for_reading(settings) as store:
            consumers = {position.consumer for position in store.consumers() if position.offset is not None}
    except TieredError as error:
        yield f"the consumers of retention.unless_behind cannot be checked: {error}"
        return
    for (table, name), limit in names.items():
        if name not in consumers:
            assert limit is not None
            yield (
                f"{table}.retention.unless_behind: no consumer {name} has a position, so that all records stay until "
                f"unless_behind_max {format_duration(limit)}"
            )


def _print_check(sources: Sources, settings: Settings, warnings: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"path": sources.path or None, "warnings": warnings})
        return
    for text in warnings:
        say(f"warning: {text}", err=True)
    tables = count(len(settings.policies), "policy table")
    say(f"{sources.path or 'environment'}: no mistake found; {tables}, {count(len(warnings), 'warning')}")


def _print_settings(settings: list[Setting], topic: str | None, pattern: str | None, as_json: bool) -> None:
    rows = [(item.key, item.value, _OPTIONS.get(item.source, item.source)) for item in settings]
    if as_json:
        values: dict[str, Any] = {
            "settings": [{"key": key, "value": value, "source": source} for key, value, source in rows]
        }
        if topic is not None and pattern is not None:
            values = {"topic": topic, "policy": dotted(("policies", pattern)), **values}
        print_json(values)
        return
    if topic is not None and pattern is not None:
        say(f"topic {topic}: {dotted(('policies', pattern))}")
    print_table(("key", "value", "from"), [(key, _text(value), source) for key, value, source in rows])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    return str(value)
