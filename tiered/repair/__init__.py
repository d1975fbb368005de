"""The repairs that lose nothing.

Other packages import `repair`.
"""
