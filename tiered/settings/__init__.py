"""The settings of a store: ``tiered.toml``, checked when it is loaded.

Other packages import `provenance`, `schedule`, `sections` and `settings`.
"""
