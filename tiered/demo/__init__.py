"""The demo: a year of real flights moves through the tiers and is queried as one table; every answer is checked."""

from .story import run_demo

__all__ = ["run_demo"]
