"""A configuration that is read again while the daemon runs: what may change."""

from __future__ import annotations

from ..errors import ConfigError
from ..settings.settings import Settings

_FIXED_SECTIONS = ("store", "cold")
_FIXED_KEYS = (("daemon", "metrics"), ("daemon", "log"))


def check_can_change(old: Settings, new: Settings) -> None:
    """Refuse what needs a restart.

    Raises
    ------
    ConfigError
        It names the keys.
    """
    keys = [
        (section, name) for section in _FIXED_SECTIONS for name in type(getattr(old, section)).model_fields
    ]
    found = [
        f"{section}.{name}"
        for section, name in (*keys, *_FIXED_KEYS)
        if getattr(getattr(old, section), name) != getattr(getattr(new, section), name)
    ]
    if found:
        raise ConfigError(f"{', '.join(found)} cannot change while the daemon runs; restart it")
