"""The check which settings may change while the daemon runs."""

from __future__ import annotations

from ..errors import ConfigError
from ..settings.settings import Settings

_FIXED_SECTIONS = ("store", "cold")
_FIXED_KEYS = (("daemon", "metrics"), ("daemon", "log"))


def check_can_change(old: Settings, new: Settings) -> None:
    """Raise `ConfigError` if a setting changed that needs a restart; the message names the keys."""
    keys = [
        (section, name) for section in _FIXED_SECTIONS for name in type(getattr(old, section)).model_fields
    ]
    changed = [
        f"{section}.{name}"
        for section, name in (*keys, *_FIXED_KEYS)
        if getattr(getattr(old, section), name) != getattr(getattr(new, section), name)
    ]
    if changed:
        raise ConfigError(f"{', '.join(changed)} cannot change while the daemon runs; restart it")
