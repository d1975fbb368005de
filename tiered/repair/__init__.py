"""The repairs of a store; none of them loses records.

Other packages import `repair`.
"""
