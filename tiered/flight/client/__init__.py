"""A store that another process serves, used through Arrow Flight.

Other packages import `connection`, `discovery`, `pending_batch`, `remote_scan`, `remote_store` and
`remote_topic`.
"""
