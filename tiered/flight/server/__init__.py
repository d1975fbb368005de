"""The server of a store over Arrow Flight.

Other packages import `staging`.
"""
