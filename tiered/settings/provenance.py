"""Where each effective setting comes from, and which of them contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from ..policies.policy import PRESETS, Policy
from .sections import PRESETS_LEAVE, PolicyTable
from .settings import Settings, Sources, dotted

DEFAULT = "default"
_PREFIX = "TIERED_"
_DISAGREEING = (
    ("local_retention", "retention"),
    ("offload", "retention"),
    ("storage_class", "retention"),
    ("storage_class", "merge"),
)
# For the project's own tests; a secret, which no setting holds.
_NOT_SETTINGS = ("TIERED_TEST_", "TIERED_FLIGHT_TOKEN")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value.

    Attributes
    ----------
    key
        As TOML writes it: ``store.sync``, ``policies.default.roll.age``.
    value
        As JSON has it: durations and sizes are text, ``off`` too; None where nothing is set.
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
        What `sources` were merged to.
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
    """Return ``default`` and the globs, in the order in which they are matched."""
    return ["default", *(name for name in settings.policies if name != "default")]


def pattern_of(settings: Settings, topic: str) -> str:
    """Return which policy a topic has: the first glob that matches its name, else ``default``."""
    return next((name for name in patterns(settings)[1:] if fnmatchcase(topic, name)), "default")


def policy_provenance(settings: Settings, sources: Sources, pattern: str) -> Iterator[Setting]:
    """Yield the resolved rules of one policy table, under its own name."""
    policy = _resolved(settings, pattern)
    for name in Policy.model_fields:
        rule = getattr(policy, name)
        for key, value in rule.model_dump(mode="json").items():
            source = _rule_source(settings, sources, pattern, name, key)
            yield Setting(dotted(("policies", pattern, name, key)), value, source)


def doubts(settings: Settings, sources: Sources, environment: Iterable[str] = ()) -> list[str]:
    """Return what is allowed and hardly meant, one line each.

    Parameters
    ----------
    environment
        Names of the environment's variables.
    """
    return [
        *_unknown_variables(environment),
        *_unreachable(settings, sources),
        *(text for pattern in patterns(settings) for text in _contradictions(settings, sources, pattern)),
        *_without_bucket(settings, sources),
    ]


# -- sources ---------------------------------------------------------------------------------------


def _source(sources: Sources, location: tuple[str, ...]) -> str:
    for values in (sources.arguments, sources.environment, sources.file):
        found = _held(values, location)
        if found is not None:
            line = sources.line(found)
            return f"{sources.path} line {line}" if line else sources.blame(found)
    return DEFAULT


def _held(values: Any, location: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return under which key `values` set a value.

    A rule that is off as a whole sets all its limits; ``pin = "on"`` is short for its `topic`.
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


def _resolved(settings: Settings, pattern: str) -> Policy:
    policy = Policy()
    for name in reversed(_chain(pattern)):
        policy = settings.policies.get(name, PolicyTable()).over(policy)
    return policy


def _setter(settings: Settings, pattern: str, rule: str) -> tuple[str, str | None] | None:
    """Return the table that a rule comes from, and the preset that it names, if that is it; None for no table."""
    for name in _chain(pattern):
        table = settings.policies.get(name, PolicyTable())
        if getattr(table, rule) is not None:
            return name, None
        if table.preset is not None and rule not in PRESETS_LEAVE:
            return name, table.preset
    return None


def _rule_source(settings: Settings, sources: Sources, pattern: str, rule: str, key: str) -> str:
    found = _setter(settings, pattern, rule)
    if found is None:
        return DEFAULT
    table, preset = found
    if preset is not None:
        assert preset in PRESETS
        return f"preset {preset}, {_source(sources, ('policies', table, 'preset'))}"
    return _source(sources, ("policies", table, rule, key))


# -- doubts ----------------------------------------------------------------------------------------


def _contradictions(settings: Settings, sources: Sources, pattern: str) -> Iterator[str]:
    """Yield where rules of different tables disagree; those of one table are refused by `PolicyTable`."""
    policy = _resolved(settings, pattern)
    for other, against in _DISAGREEING:
        tables = [_setter(settings, pattern, rule) for rule in (other, against)]
        # What nobody wrote just never applies, but that nothing reaches the bucket is not to be overlooked.
        if other != "offload" and None in tables:
            continue
        try:
            PolicyTable.model_validate({rule: getattr(policy, rule) for rule in (other, against)})
        except ValidationError as error:
            text = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            places = ", ".join(
                f"{rule}: {_place(settings, sources, pattern, rule)}" for rule in (other, against)
            )
            yield f"{dotted(('policies', pattern))}: {text} ({places})"


def _place(settings: Settings, sources: Sources, pattern: str, rule: str) -> str:
    found = _setter(settings, pattern, rule)
    if found is None:
        return DEFAULT
    table, preset = found
    return _source(sources, ("policies", table, "preset" if preset else rule))


def _unreachable(settings: Settings, sources: Sources) -> Iterator[str]:
    globs = patterns(settings)[1:]
    for index, name in enumerate(globs):
        # A glob that matches the other's own text matches all that the other does, as far as * and ? go.
        before = next((item for item in globs[:index] if fnmatchcase(name, item)), None)
        if before is not None:
            place = _source(sources, ("policies", name))
            yield (
                f"{dotted(('policies', name))} never applies, as {dotted(('policies', before))} matches first; "
                f"write it further up ({place})"
            )


def _without_bucket(settings: Settings, sources: Sources) -> Iterator[str]:
    if settings.store.sync == "cold":
        for pattern in patterns(settings):
            if _resolved(settings, pattern).offload.after is None:
                place = _place(settings, sources, pattern, "offload")
                yield (
                    f'{dotted(("policies", pattern))}: offload = "off" and store.sync = "cold" exclude each other: its '
                    f"topics cannot be appended to ({place})"
                )


def _unknown_variables(environment: Iterable[str]) -> Iterator[str]:
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(_PREFIX) or upper.startswith(_NOT_SETTINGS):
            continue
        section = upper.removeprefix(_PREFIX).partition("__")[0].lower()
        if section not in Settings.model_fields:
            known = ", ".join(f"{_PREFIX}{item.upper()}__…" for item in Settings.model_fields)
            yield f"environment {name} sets nothing; write one of {known}"
