"""What keeps a bucket in order: merges, checks, rebuilt manifests, sweeps.

Other packages import `check`, `inspect`, `merge`, `multipart_uploads`, `rebuild`, `sweep` and `whole_object`.
"""
