"""The source of each effective setting, and warnings about settings that contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from ..policies.policy import PRESETS, Policy
from .sections import PRESET_EXEMPT_RULES, PolicyTable
from .settings import Settings, Sources, dotted

DEFAULT = "default"
_PREFIX = "TIERED_"
_CONFLICTING_RULES = (
    ("local_retention", "retention"),
    ("offload", "retention"),
    ("storage_class", "retention"),
    ("storage_class", "merge"),
)
# Variables of the project's own tests, and the secret that no setting holds.
_OTHER_VARIABLES = ("TIERED_TEST_", "TIERED_FLIGHT_TOKEN")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value.

    Attributes
    ----------
    key
        The key in TOML: ``store.sync``, ``policies.default.roll.age``.
    value
        The value in JSON: durations, sizes and ``off`` are text; None if the setting has no value.
    source
        ``default``, ``preset NAME``, ``FILE line N``, ``environment NAME`` or ``argument KEY``.
    """

    key: str
    value: Any
    source: str


def provenance(settings: Settings, sources: Sources) -> Iterator[Setting]:
    """Yield every setting, with the rules of ``policies.default`` and of each glob resolved.

    Parameters
    ----------
    settings
        The result of merging `sources`.
    """
    for section in Settings.model_fields:
        if section == "policies":
            continue
        model = getattr(settings, section)
        values = model.model_dump(mode="json")
        for name in type(model).model_fields:
            yield Setting(f"{section}.{name}", values[name], _source(sources, (section, name)))
    for pattern in patterns(settings):
        yield from policy_provenance(settings, sources, pattern)


def patterns(settings: Settings) -> list[str]:
    """Return ``default``, then the globs in the order in which they are tried."""
    return ["default", *(name for name in settings.policies if name != "default")]


def matching_pattern(settings: Settings, topic: str) -> str:
    """Return the name of a topic's policy table: the first glob that matches the topic, else ``default``."""
    return next((name for name in patterns(settings)[1:] if fnmatchcase(topic, name)), "default")


def policy_provenance(settings: Settings, sources: Sources, pattern: str) -> Iterator[Setting]:
    """Yield the resolved rules of one policy table, each under the key of this table."""
    policy = resolved_policy(settings, pattern)
    for name in Policy.model_fields:
        rule = getattr(policy, name)
        for key, value in rule.model_dump(mode="json").items():
            source = _rule_source(settings, sources, pattern, name, key)
            yield Setting(dotted(("policies", pattern, name, key)), value, source)


def config_warnings(settings: Settings, sources: Sources, environment: Iterable[str] = ()) -> list[str]:
    """Return a line for each setting that is valid but has no effect or contradicts another.

    Parameters
    ----------
    environment
        Names of the environment's variables.
    """
    return [
        *_unknown_variables(environment),
        *_unreachable_globs(settings, sources),
        *(text for pattern in patterns(settings) for text in _contradictions(settings, sources, pattern)),
        *_no_offload_for_sync_cold(settings, sources),
    ]


# -- sources ---------------------------------------------------------------------------------------


def _source(sources: Sources, location: tuple[str, ...]) -> str:
    for values in (sources.arguments, sources.environment, sources.file):
        key = _set_key(values, location)
        if key is not None:
            line = sources.line(key)
            return f"{sources.path} line {line}" if line else sources.name_source(key)
    return DEFAULT


def _set_key(values: Any, location: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the key in `values` that sets a value; None if `values` do not set it.

    ``rule = "off"`` sets all limits of the rule; ``pin = "on"`` sets ``pin.topic``.
    """
    for depth, part in enumerate(location):
        if not isinstance(values, Mapping):
            return location[:depth] if values == "off" or (values == "on" and part == "topic") else None
        if part not in values:
            return None
        values = values[part]
    return location


def _chain(pattern: str) -> list[str]:
    return ["default"] if pattern == "default" else [pattern, "default"]


def resolved_policy(settings: Settings, pattern: str) -> Policy:
    """Return the policy of one table, over those that it inherits."""
    policy = Policy()
    for name in reversed(_chain(pattern)):
        policy = settings.policies.get(name, PolicyTable()).over(policy)
    return policy


def _rule_table(settings: Settings, pattern: str, rule: str) -> tuple[str, str | None] | None:
    """Return the table that sets a rule, and its preset if the preset does; None if no table sets the rule."""
    for name in _chain(pattern):
        table = settings.policies.get(name, PolicyTable())
        if getattr(table, rule) is not None:
            return name, None
        if table.preset is not None and rule not in PRESET_EXEMPT_RULES:
            return name, table.preset
    return None


def _rule_source(settings: Settings, sources: Sources, pattern: str, rule: str, key: str) -> str:
    origin = _rule_table(settings, pattern, rule)
    if origin is None:
        return DEFAULT
    table, preset = origin
    if preset is not None:
        assert preset in PRESETS
        return f"preset {preset}, {_source(sources, ('policies', table, 'preset'))}"
    return _source(sources, ("policies", table, rule, key))


# -- warnings --------------------------------------------------------------------------------------


def _contradictions(settings: Settings, sources: Sources, pattern: str) -> Iterator[str]:
    """Yield conflicts between rules of different tables; `PolicyTable` refuses those within one table."""
    policy = resolved_policy(settings, pattern)
    for other, against in _CONFLICTING_RULES:
        tables = [_rule_table(settings, pattern, rule) for rule in (other, against)]
        # A conflict with a default is harmless, except that without offload no record reaches the bucket.
        if other != "offload" and None in tables:
            continue
        try:
            PolicyTable.model_validate({rule: getattr(policy, rule) for rule in (other, against)})
        except ValidationError as error:
            text = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            origins = ", ".join(
                f"{rule}: {_rule_source_line(settings, sources, pattern, rule)}" for rule in (other, against)
            )
            yield f"{dotted(('policies', pattern))}: {text} ({origins})"


def _rule_source_line(settings: Settings, sources: Sources, pattern: str, rule: str) -> str:
    origin = _rule_table(settings, pattern, rule)
    if origin is None:
        return DEFAULT
    table, preset = origin
    return _source(sources, ("policies", table, "preset" if preset else rule))


def _unreachable_globs(settings: Settings, sources: Sources) -> Iterator[str]:
    globs = patterns(settings)[1:]
    for index, name in enumerate(globs):
        # With * and ? alone, a glob that matches the text of another glob matches every topic of that glob.
        before = next((glob for glob in globs[:index] if fnmatchcase(name, glob)), None)
        if before is not None:
            source = _source(sources, ("policies", name))
            yield (
                f"{dotted(('policies', name))} never applies, as {dotted(('policies', before))} matches first; "
                f"write it further up ({source})"
            )


def _no_offload_for_sync_cold(settings: Settings, sources: Sources) -> Iterator[str]:
    if settings.store.sync == "cold":
        for pattern in patterns(settings):
            if resolved_policy(settings, pattern).offload.after is None:
                source = _rule_source_line(settings, sources, pattern, "offload")
                yield (
                    f'{dotted(("policies", pattern))}: offload = "off" and store.sync = "cold" exclude each other: its '
                    f"topics cannot be appended to ({source})"
                )


def _unknown_variables(environment: Iterable[str]) -> Iterator[str]:
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(_PREFIX) or upper.startswith(_OTHER_VARIABLES):
            continue
        section = upper.removeprefix(_PREFIX).partition("__")[0].lower()
        if section not in Settings.model_fields:
            sections = ", ".join(f"{_PREFIX}{section.upper()}__…" for section in Settings.model_fields)
            yield f"environment {name} sets nothing; write one of {sections}"
