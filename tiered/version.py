"""Which release this is; in a module of its own, so that every layer may say it."""

VERSION = "0.1.0"
