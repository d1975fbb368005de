locals {
  make_key    = local.kms && var.kms_key_arn == null
  kms_key_arn = local.make_key ? aws_kms_key.this[0].arn : var.kms_key_arn
}

resource "aws_kms_key" "this" {
  count = local.make_key ? 1 : 0

  description             = "Objects of the tiered store ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = var.kms_deletion_window_days
  tags                    = var.tags

  # In the policy of a key, "*" is the key itself; KMS accepts nothing else. IAM policies of the account do the rest.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "IamOfThisAccount"
      Effect    = "Allow"
      Principal = { AWS = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root" }
      Action    = "kms:*"
      Resource  = "*"
    }]
  })
}

resource "aws_kms_alias" "this" {
  count = local.make_key ? 1 : 0

  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this[0].key_id
}
