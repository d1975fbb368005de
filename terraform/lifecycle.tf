# No rule here expires an object: only the store knows which objects its manifest names. What it deleted or replaced
# itself is kept as a noncurrent version, where the bucket has versions, and that alone can be given an end.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  #checkov:skip=CKV_AWS_300:The first rule does, for the whole bucket; the check trips over the rules that are dynamic.
  bucket = aws_s3_bucket.this.id
  # The cheaper classes bill at least 128 KiB an object: smaller ones, such as tails, stay where they are.
  transition_default_minimum_object_size = "all_storage_classes_128K"

  rule {
    id     = "abort-incomplete-multipart-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_incomplete_multipart_days
    }
  }

  dynamic "rule" {
    for_each = length(var.segment_transitions) > 0 ? [1] : []

    content {
      id     = "segments-to-cheaper-classes"
      status = "Enabled"

      filter {
        and {
          prefix = "${var.prefix}/"
          tags   = var.segment_tags
        }
      }

      dynamic "transition" {
        for_each = var.segment_transitions

        content {
          days          = transition.value.days
          storage_class = transition.value.storage_class
        }
      }
    }
  }

  dynamic "rule" {
    for_each = var.noncurrent_version_days == null ? [] : [var.noncurrent_version_days]

    content {
      id     = "versions-that-the-store-gave-up"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = rule.value
      }

      expiration {
        # The mark of a deletion whose versions are all gone; no object.
        expired_object_delete_marker = true
      }
    }
  }

  # S3 refuses rules for versions before there are any.
  depends_on = [aws_s3_bucket_versioning.this]
}
