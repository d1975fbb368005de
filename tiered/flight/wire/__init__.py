"""The protocol between client and server of Arrow Flight: messages, errors, tokens, proofs.

Other packages import `auth`, `batch_size`, `directory_id`, `flight_errors`, `grpc_forks`, `instance`, `messages`,
`options`, `packed_rows`, `positions`, `proof`, `put_messages`, `serving_file`, `topic_ref` and `values`.
"""
