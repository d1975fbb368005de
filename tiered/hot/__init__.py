"""The hot tier: append buffers, group commit, and the recent blocks kept in memory."""
