data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

locals {
  bucket_name = coalesce(var.bucket_name, var.name)
  # Not the resource's: that is unknown before the bucket is there, and policies could not be reviewed in a plan.
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${local.bucket_name}"
  url        = "s3://${local.bucket_name}/${var.prefix}"
  kms        = var.encryption == "aws:kms"
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_144:A replica that lags gives a manifest without its objects; a second region is a second store.
  #checkov:skip=CKV_AWS_145:The key is the deployment's choice, see var.encryption.
  #checkov:skip=CKV2_AWS_62:The store says in its own metrics what it wrote.
  bucket        = local.bucket_name
  force_destroy = var.force_destroy
  tags          = var.tags

  # So that destroy takes the bucket first, and keeps the key of one that S3 refuses to delete with data in it.
  depends_on = [aws_kms_key.this]
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_versioning" "this" {
  # A bucket that never had versions is not the same as one whose versioning is suspended.
  count  = var.versioning ? 1 : 0
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = local.kms

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.encryption
      kms_master_key_id = local.kms ? local.kms_key_arn : null
    }
  }
}

resource "aws_s3_bucket_logging" "this" {
  count  = var.access_log == null ? 0 : 1
  bucket = aws_s3_bucket.this.id

  target_bucket = var.access_log.bucket
  target_prefix = var.access_log.prefix
}

locals {
  bucket_statements = concat(
    [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["s3:*"]
        Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = ["false"] } }
      },
      {
        Sid       = "RecentTlsOnly"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["s3:*"]
        Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
        Condition = { NumericLessThan = { "s3:TlsVersion" = ["1.2"] } }
      },
      {
        # A request that asks for nothing gets the bucket's default, which is the right one.
        Sid       = "NoOtherEncryption"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["s3:PutObject"]
        Resource  = ["${local.bucket_arn}/*"]
        Condition = {
          Null            = { "s3:x-amz-server-side-encryption" = ["false"] }
          StringNotEquals = { "s3:x-amz-server-side-encryption" = [var.encryption] }
        }
      },
      {
        # SSE-C has a header of its own; nobody but who sent the key could read the object again.
        Sid       = "NoKeyOfTheCaller"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["s3:PutObject"]
        Resource  = ["${local.bucket_arn}/*"]
        Condition = { Null = { "s3:x-amz-server-side-encryption-customer-algorithm" = ["false"] } }
      },
    ],
    [
      for statement in [
        {
          Sid       = "NoOtherKey"
          Effect    = "Deny"
          Principal = { AWS = "*" }
          Action    = ["s3:PutObject"]
          Resource  = ["${local.bucket_arn}/*"]
          Condition = {
            Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = ["false"] }
            StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = [local.kms_key_arn] }
          }
        },
        {
          # For aws:kms without a key S3 takes the account's own, aws/s3, and not the bucket's.
          Sid       = "NoUnnamedKey"
          Effect    = "Deny"
          Principal = { AWS = "*" }
          Action    = ["s3:PutObject"]
          Resource  = ["${local.bucket_arn}/*"]
          Condition = {
            Null         = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = ["true"] }
            StringEquals = { "s3:x-amz-server-side-encryption" = ["aws:kms"] }
          }
        },
      ] : statement if local.kms
    ],
    [
      for statement in [{
        # The head changes by compare-and-swap alone. A client that forgets the condition could undo what another
        # process published; this makes it an error.
        Sid       = "HeadByCompareAndSwap"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["s3:PutObject"]
        Resource  = ["${local.bucket_arn}/${var.prefix}/*/head.json"]
        Condition = { Null = { "s3:if-match" = ["true"], "s3:if-none-match" = ["true"] } }
      }] : statement if var.require_conditional_writes
    ],
  )
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.bucket_statements })

  # S3 refuses changes to policy and access block that run at the same time.
  depends_on = [aws_s3_bucket_public_access_block.this]
}
