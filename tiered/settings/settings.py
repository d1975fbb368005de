"""The settings of a store: frozen values, checked when they are loaded.

`Settings.model_validate` takes a plain dict and reads nothing else. `Settings.load` merges arguments over
environment (``TIERED_STORE__SYNC=always``) over file. Both raise `ConfigError` with one line that names the
source, the key and what to write instead. No setting holds a secret: credentials come from the environment
or a profile, and a URL with credentials is refused.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Self, get_args, get_origin

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from ..base.units import format_duration
from ..errors import ConfigError
from ..format.schema import TRANSACTIONS_TOPIC
from ..policies.policy import CompactKeysRule, LocalRetention, Policy, Retention, TableRule
from .sections import (
    ColdSettings,
    DaemonSettings,
    EraseSettings,
    FlightSettings,
    PolicyTable,
    Section,
    StoreSettings,
    SweepSettings,
)
from .toml_lines import key_lines

_ENV_PREFIX = "TIERED_"
_TOO_DEEP = "tables are nested too deeply"

# A name may be any text, such as that of a topic that is not there, so resolved policies are not kept without end.
_RESOLVED_MAX = 10_000
_KEPT = LocalRetention(age=None, bytes=None, free_disk=None)


class Settings(Section):
    """All settings; each has a default that keeps data safe.

    Raises
    ------
    ConfigError
        A value is wrong. The message is one line: source, key, what to write instead.
    """

    store: StoreSettings = StoreSettings()
    cold: ColdSettings = ColdSettings()
    policies: dict[str, PolicyTable] = Field(default_factory=dict)
    daemon: DaemonSettings = DaemonSettings()
    sweep: SweepSettings = SweepSettings()
    erase: EraseSettings = EraseSettings()
    flight: FlightSettings = FlightSettings()

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        """Refuse a table that would be published later than half the grace after a change; see `table.live_table`."""
        for table in self.policies.values():
            every = table.table.every if table.table else None
            if every is not None and 2 * every > self.sweep.grace:
                raise ValueError(
                    f"table.every ({format_duration(every)}) is more than half of sweep.grace "
                    f"({format_duration(self.sweep.grace)}), so the sweep could delete objects that the table names; "
                    "write less, or a longer grace"
                )
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _raise_one_line(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        sources = info.context if isinstance(info.context, Sources) else Sources()
        try:
            try:
                return handler(data)
            except ValidationError as error:
                raise ConfigError(_one_line(error, sources)) from None
        except RecursionError:
            raise ConfigError(f"{sources.path or 'settings'}: {_TOO_DEEP}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Self:
        """Read a ``tiered.toml``, the environment and `overrides`; each wins over those before it.

        Parameters
        ----------
        path
            The file; ``None`` reads none.
        **overrides
            Sections as dicts: ``Settings.load("tiered.toml", store={"sync": "always"})``.
        """
        return cls.from_sources(Sources.read(path, overrides))

    @classmethod
    def from_sources(cls, sources: Sources) -> Self:
        """Merge the sources and check the result."""
        merged = _merge(_merge(sources.file, sources.environment), sources.arguments)
        return cls.model_validate(merged, context=sources)

    @property
    def erase_takes(self) -> timedelta:
        """The longest time that an erasure takes if passes run: what ``erase.within`` must exceed."""
        sweep = self.sweep
        return 2 * sweep.grace + 2 * (sweep.every or sweep.grace) + self.erase.lease_max

    def check_erase(self) -> None:
        """Raise `ConfigError` if no erasure could be done within ``erase.within``."""
        if self.erase.within < self.erase_takes:
            raise ConfigError(
                f"erase.within ({format_duration(self.erase.within)}) is shorter than an erasure takes: twice sweep.grace "
                f"and sweep.every, and erase.lease_max, are {format_duration(self.erase_takes)}; write that or more"
            )

    def policy_for(self, topic: str) -> Policy:
        """Return the resolved policy of a topic: the first glob that matches its name, over ``default``.

        The transaction log has ``default`` without a retention, since its positions are the only ones, and without a
        table or a compaction. It stays on the local disk, too, so that a store opens while its bucket does not answer.
        """
        policies, resolved = self._resolved
        if policies is not self.policies:  # a copy with other policies
            return self._resolve(topic)
        policy = resolved.get(topic)
        if policy is None:
            if len(resolved) >= _RESOLVED_MAX:
                resolved.clear()
            policy = resolved[topic] = self._resolve(topic)
        return policy

    @cached_property
    def _resolved(self) -> tuple[dict[str, PolicyTable], dict[str, Policy]]:
        return self.policies, {}

    def _resolve(self, topic: str) -> Policy:
        policy = self.policies.get("default", PolicyTable()).over(Policy())
        if topic == TRANSACTIONS_TOPIC:
            own = {
                "retention": Retention(),
                "table": TableRule(),
                "local_retention": _KEPT,
                "compact_keys": CompactKeysRule(),
            }
            return policy.model_copy(update=own)
        for pattern, table in self.policies.items():
            if pattern != "default" and fnmatchcase(topic, pattern):
                return table.over(policy)
        return policy

    @property
    def promotes(self) -> bool:
        """Whether some policy promotes objects that are fetched often."""
        tables = [self.policies.get("default", PolicyTable()), *self.policies.values()]
        return any(table.over(Policy()).promote.reads is not None for table in tables)

    def to_json(self) -> dict[str, Any]:
        """Return plain values in the notation of the file; `model_validate` turns them into equal settings."""
        dumped: dict[str, Any] = _without_none(self.model_dump(mode="json"))
        if self.daemon.cron is not None:
            del dumped["daemon"]["interval"]
        return dumped


@dataclass(frozen=True, slots=True)
class Sources:
    """The dicts that make up the settings, so that the source of a value is known.

    Attributes
    ----------
    path, text
        Path and text of the file; empty without a file.
    file, environment, arguments
        The values of each source; later ones win.
    """

    path: str = ""
    file: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None, overrides: dict[str, Any]) -> Sources:
        """Read the file, if there is one, and the environment.

        Raises
        ------
        ConfigError
        """
        text, values = _read_toml(path)
        return cls("" if path is None else os.fspath(path), values, _read_environment(), overrides, text)

    def name_source(self, location: tuple[str, ...]) -> str:
        """Return the source and the key of a value; a value that no source sets counts as the file's."""
        key = dotted(location)
        if _sets(self.arguments, location):
            return f"argument {key}"
        if _sets(self.environment, location):
            return f"environment {_ENV_PREFIX}{'__'.join(location).upper()}"
        return ": ".join(text for text in (self.path, key) if text)

    def line(self, location: tuple[str, ...]) -> int | None:
        """Return the line of the file that sets a value; None if another source sets it."""
        if not self.text or _sets(self.arguments, location) or _sets(self.environment, location):
            return None
        lines = key_lines(self.text)
        prefixes = (location[:length] for length in range(len(location), 0, -1))
        return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def dotted(location: tuple[str, ...]) -> str:
    """Return a key in TOML's notation: ``policies."audit-*".roll``."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in location)


class _Environment(BaseSettings):
    """The sections that ``TIERED_<SECTION>__<KEY>`` can set."""

    store: dict[str, Any] = {}
    cold: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    daemon: dict[str, Any] = {}
    sweep: dict[str, Any] = {}
    erase: dict[str, Any] = {}
    flight: dict[str, Any] = {}


def _read_environment() -> dict[str, Any]:
    if not any(name.upper().startswith(_ENV_PREFIX) for name in os.environ):
        return {}  # which took a fifth of the time to open a store
    try:
        source = EnvSettingsSource(_Environment, env_prefix=_ENV_PREFIX, env_nested_delimiter="__")
        return dict(source())
    except SettingsError as error:
        match = re.search(r'field "(\w+)"', str(error))
        name = f"{_ENV_PREFIX}{match[1].upper() if match else '…'}"
        raise ConfigError(
            f"environment {name}: is not JSON; write an object, or {name}__KEY for one key"
        ) from None
    except RecursionError:
        raise ConfigError(f"environment {_ENV_PREFIX}…: {_TOO_DEEP}") from None


def _read_toml(path: str | os.PathLike[str] | None) -> tuple[str, dict[str, Any]]:
    if path is None:
        return "", {}
    try:
        # Some editors begin a file in UTF-8 with a byte order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{os.fspath(path)}: is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{os.fspath(path)}: {_TOO_DEEP}") from None


def _merge(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
        )
    return merged


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_none(item) for key, item in value.items() if item is not None}


def _sets(values: Any, location: tuple[str, ...]) -> bool:
    for part in location:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return bool(location)


def _one_line(error: ValidationError, sources: Sources) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    location = tuple(str(part) for part in first["loc"])
    kind, got, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "extra_forbidden":
        message = _unknown_key(location)
    elif kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ")
        message = f"{got!r} is not one of these: {choices}"
    elif kind in ("bool_parsing", "bool_type"):
        message = f'{got!r} is not a switch; write "on" or "off"'
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "must be a table, not a single value"
    else:
        text = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        message = text[:1].lower() + text[1:] if text.startswith("String") else text
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    where, line = sources.name_source(location), sources.line(location)
    more += f" (line {line})" if line else ""
    return (f"{where}: " if where else "settings: ") + f"{message}{more}".replace("\n", " ")


def _unknown_key(location: tuple[str, ...]) -> str:
    model: Any = Settings
    for part in location[:-1]:
        inner = model.model_fields[part].annotation if hasattr(model, "model_fields") else get_args(model)[-1]
        optional = () if get_origin(inner) is dict else get_args(inner)
        model = next((item for item in optional if hasattr(item, "model_fields")), inner)
    keys = list(model.model_fields)
    close = difflib.get_close_matches(location[-1], keys, n=1)
    return f"unknown key; {f'did you mean {close[0]}?' if close else 'write one of ' + ', '.join(keys)}"
