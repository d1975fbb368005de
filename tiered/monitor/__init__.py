"""The operator's views of a store: status, figures, explanations, a page, metrics.

Other packages import `consumer_lag`, `explain`, `http`, `iceberg_catalog`, `metrics`, `status`, `status_page`,
`status_survey`, `table_lag`, `views` and `watched_store`.
"""
