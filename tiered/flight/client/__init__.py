"""A store that another process serves, used through Arrow Flight.

Other packages import `connection`, `discovery`, `remote_scan`, `remote_store` and `staging`.
"""
