"""Streaming reads of the data source."""
