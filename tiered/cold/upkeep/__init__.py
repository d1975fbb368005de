"""The maintenance of a bucket: rewrites, checks, rebuilt manifests, sweeps.

Other packages import `check`, `filter_check`, `inspect`, `multipart_uploads`, `rebuild`, `rewrite`, `superseded_records`,
`sweep` and `whole_object`.
"""
