output "bucket_name" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "url" {
  description = "Where the store is: what `tiered.open(cold=…)`, `tiered.restore` and Spark's `load` take."
  value       = local.url

  # Who uses it finds the bucket locked down already.
  depends_on = [aws_s3_bucket_policy.this, aws_s3_bucket_server_side_encryption_configuration.this]
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts the objects; null with SSE-S3."
  value       = local.kms_key_arn
}

output "policy_arns" {
  description = "ARNs of the IAM policies by writer, reader and restore."
  value       = { for role, policy in aws_iam_policy.this : role => policy.arn }
}

output "policy_documents" {
  description = "The same policies as JSON, for roles that are made elsewhere."
  value       = local.policy_documents
}

output "role_arns" {
  description = "ARNs of the roles that were asked for, by writer, reader and restore."
  value       = { for key, role in aws_iam_role.this : key => role.arn }
}

output "instance_profile_names" {
  description = "Names of the instance profiles that were asked for, by role."
  value       = { for key, profile in aws_iam_instance_profile.this : key => profile.name }
}

output "alarm_names" {
  description = "Names of the CloudWatch alarms."
  value       = concat(values(aws_cloudwatch_metric_alarm.requests)[*].alarm_name, aws_cloudwatch_metric_alarm.size[*].alarm_name)
}

output "vpc_endpoint_id" {
  description = "Id of the gateway endpoint; null without one."
  value       = one(aws_vpc_endpoint.s3[*].id)
}

output "tiered_toml" {
  description = "The [cold] section of tiered.toml for this bucket. It holds no secret: credentials come from the role."
  value = join("\n", concat(
    [
      "[cold]",
      "url = ${jsonencode(local.url)}",
      "region = ${jsonencode(data.aws_region.current.id)}",
      "encryption = ${jsonencode(var.encryption)}",
    ],
    [for arn in [local.kms_key_arn] : "kms_key_id = ${jsonencode(arn)}" if local.kms],
    length(var.segment_tags) > 0 ? ["tags = { ${join(", ", [for key, value in var.segment_tags : "${jsonencode(key)} = ${jsonencode(value)}"])} }"] : [],
    var.require_conditional_writes ? [] : ["conditional_writes = \"off\""],
    [""],
  ))
}
