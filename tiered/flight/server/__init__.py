"""The server of a store over Arrow Flight."""
