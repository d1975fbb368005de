"""A store to verify and to repair."""

from __future__ import annotations

from tests.support.verified_store import place, sound

__all__ = ["place", "sound"]
