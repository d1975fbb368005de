"""Transactions, and their log: the topic `__transactions`, which also holds the positions and sessions of consumers.

Other packages import `batches`, `commits`, `decision`, `parts`, `positions`, `restored_log`, `staged_rows`, `staging`, `topic_positions`,
`transaction_log` and `transaction_rows`.
"""
