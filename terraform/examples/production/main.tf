# What a production deployment needs: a key of its own, versions for 30 days, cheaper classes for old segments, an
# access log, one role for the host that writes, one for the Spark cluster, one for the operator who restores, alarms,
# and a gateway endpoint.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.90, < 7.0"
    }
  }
}

variable "name" {
  description = "Name of the deployment, and of the bucket: unique in all of AWS."
  type        = string
}

variable "access_log_bucket" {
  description = "Name of the bucket for access logs; null writes none."
  type        = string
  default     = null
}

variable "spark_role_arns" {
  description = "ARNs of the roles that the Spark cluster runs as."
  type        = list(string)
  default     = []
}

variable "operator_arns" {
  description = "ARNs of who may restore."
  type        = list(string)
  default     = []
}

variable "vpc" {
  description = "The VPC of writer and readers and its route tables; null makes no endpoint."
  type = object({
    id              = string
    route_table_ids = list(string)
  })
  default = null
}

variable "alarm_email" {
  description = "Who is told of alarms; the address has to confirm. null makes none."
  type        = string
  default     = null
}

variable "force_destroy" {
  description = "Whether destroy may delete data; for trying it out."
  type        = bool
  default     = false
}

locals {
  tags = { application = "tiered", deployment = var.name }
}

data "aws_caller_identity" "current" {}

data "aws_region" "current" {}

data "aws_partition" "current" {}

# CloudWatch cannot publish to a topic that AWS's own key encrypts, so this one has a key of its own.
resource "aws_kms_key" "alarms" {
  count = var.alarm_email == null ? 0 : 1

  description         = "Alarms of ${var.name}"
  enable_key_rotation = true
  tags                = local.tags

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { AWS = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Effect    = "Allow"
        Principal = { Service = "cloudwatch.amazonaws.com" }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id } }
      },
    ]
  })
}

resource "aws_sns_topic" "alarms" {
  count = var.alarm_email == null ? 0 : 1

  name              = "${var.name}-alarms"
  kms_master_key_id = aws_kms_key.alarms[0].arn
  tags              = local.tags
}

resource "aws_sns_topic_subscription" "email" {
  count = var.alarm_email == null ? 0 : 1

  topic_arn = aws_sns_topic.alarms[0].arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

module "tiered" {
  source = "../.."

  name          = var.name
  force_destroy = var.force_destroy
  tags          = local.tags

  encryption              = "aws:kms"
  versioning              = true
  noncurrent_version_days = 30

  segment_tags = { tiered = "segment" }
  segment_transitions = [
    { days = 30, storage_class = "STANDARD_IA" },
    { days = 180, storage_class = "GLACIER_IR" },
  ]

  access_log = var.access_log_bucket == null ? null : { bucket = var.access_log_bucket, prefix = "${var.name}/" }

  reader_leases = true
  roles = merge(
    { writer = { services = ["ec2.amazonaws.com"], instance_profile = true } },
    length(var.spark_role_arns) == 0 ? {} : { reader = { principal_arns = var.spark_role_arns } },
    length(var.operator_arns) == 0 ? {} : { restore = { principal_arns = var.operator_arns } },
  )

  alarms = var.alarm_email == null ? null : {
    actions = [aws_sns_topic.alarms[0].arn]
    # Leases of Spark are writes, too, but few: a session writes one in 20 minutes, a daemon two objects a tail.
    quiet_writes = 6
    size_gib     = 10240
  }

  vpc_endpoint = var.vpc == null ? null : {
    vpc_id          = var.vpc.id
    route_table_ids = var.vpc.route_table_ids
  }
}

output "tiered_toml" {
  description = "The [cold] section of tiered.toml."
  value       = module.tiered.tiered_toml
}

output "policy_arns" {
  description = "What to attach to roles that are there, by role."
  value       = module.tiered.policy_arns
}

output "policy_documents" {
  description = "The policies as JSON, by role."
  value       = module.tiered.policy_documents
}

output "role_arns" {
  description = "The roles, by writer, reader and restore."
  value       = module.tiered.role_arns
}

output "instance_profile_names" {
  description = "What the writer's EC2 instance is started with."
  value       = module.tiered.instance_profile_names
}

output "url" {
  description = "Where the store is."
  value       = module.tiered.url
}
