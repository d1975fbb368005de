"""Writes of the data source.

Other packages import `options` and `sink`.
"""
