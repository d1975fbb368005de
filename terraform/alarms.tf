locals {
  request_alarms = var.alarms == null ? {} : {
    errors-5xx = {
      metric      = "5xxErrors"
      comparison  = "GreaterThanThreshold"
      threshold   = var.alarms.errors_5xx
      periods     = 3
      missing     = "notBreaching"
      description = "S3 fails or throttles requests to ${local.url}. The store repeats them; data waits on the local disks."
    }
    errors-4xx = {
      metric      = "4xxErrors"
      comparison  = "GreaterThanThreshold"
      threshold   = var.alarms.errors_4xx
      periods     = 3
      missing     = "notBreaching"
      description = "S3 refuses requests to ${local.url}: permissions or keys have changed, perhaps. Some 404 and 412 are part of normal work."
    }
    quiet = {
      metric      = "PutRequests"
      comparison  = "LessThanThreshold"
      threshold   = var.alarms.quiet_writes
      periods     = var.alarms.quiet_minutes / 5
      missing     = "breaching"
      description = "Fewer than ${var.alarms.quiet_writes} writes to ${local.url} in each 5 minutes for ${var.alarms.quiet_minutes} minutes: no daemon tiers, or nothing is appended. A lost disk would lose what is not in the bucket."
    }
  }
}

resource "aws_s3_bucket_metric" "this" {
  count  = var.alarms == null ? 0 : 1
  bucket = aws_s3_bucket.this.id
  name   = var.name

  filter {
    prefix = "${var.prefix}/"
  }
}

resource "aws_cloudwatch_metric_alarm" "requests" {
  for_each = local.request_alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = "AWS/S3"
  metric_name         = each.value.metric
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  treat_missing_data  = each.value.missing
  alarm_actions       = var.alarms.actions
  ok_actions          = var.alarms.actions
  tags                = var.tags

  dimensions = {
    BucketName = local.bucket_name
    FilterId   = aws_s3_bucket_metric.this[0].name
  }
}

resource "aws_cloudwatch_metric_alarm" "size" {
  count = try(var.alarms.size_gib, null) == null ? 0 : 1

  alarm_name          = "${var.name}-size"
  alarm_description   = "The bucket ${local.bucket_name} holds more than ${var.alarms.size_gib} GiB in the class STANDARD: look at retention, and at what the sweep reports."
  namespace           = "AWS/S3"
  metric_name         = "BucketSizeBytes"
  statistic           = "Maximum"
  period              = 86400
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.alarms.size_gib * 1073741824
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarms.actions
  ok_actions          = var.alarms.actions
  tags                = var.tags

  dimensions = {
    BucketName  = local.bucket_name
    StorageType = "StandardStorage"
  }
}
