resource "aws_vpc_endpoint" "s3" {
  count = var.vpc_endpoint == null ? 0 : 1

  vpc_id            = var.vpc_endpoint.vpc_id
  route_table_ids   = var.vpc_endpoint.route_table_ids
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  vpc_endpoint_type = "Gateway"
  tags              = merge(var.tags, { Name = var.name })

  # null is AWS's own, which lets everything through: IAM and the bucket's policy still decide.
  policy = !var.vpc_endpoint.restrict_to_bucket ? null : jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "ThisBucket"
      Effect    = "Allow"
      Principal = { AWS = "*" }
      Action    = ["s3:*"]
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
    }]
  })
}
