"""The number of this release, in a module of its own that every layer may import."""

VERSION = "0.1.0"
