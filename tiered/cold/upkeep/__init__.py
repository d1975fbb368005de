"""The maintenance of a bucket: merges, checks, rebuilt manifests, sweeps.

Other packages import `check`, `inspect`, `merge`, `multipart_uploads`, `rebuild`, `sweep` and `whole_object`.
"""
