"""The settings of a store: ``tiered.toml``, checked once.

Other packages import `provenance`, `schedule`, `sections` and `settings`.
"""
