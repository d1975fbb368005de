"""A store that another process serves, used through Arrow Flight.

Other packages import `connection`, `discovery`, `remote_positions`, `remote_scan`, `remote_store`, `remote_topic` and
`staging`.
"""
