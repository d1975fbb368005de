variable "name" {
  description = "Name of the deployment. Policies, roles, alarms and the key's alias are called after it; the bucket is, unless bucket_name says otherwise."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,38}[a-z0-9]$", var.name))
    error_message = "name has 3 to 40 lower-case letters, digits and dashes, and neither begins nor ends with a dash."
  }
}

variable "bucket_name" {
  description = "Name of the bucket, unique in all of AWS; null is name."
  type        = string
  default     = null

  validation {
    condition     = var.bucket_name == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name has 3 to 63 lower-case letters, digits and dashes. Dots would break the certificate of https://."
  }
}

variable "prefix" {
  description = "Below which the store keeps everything; what is beside it in the bucket no policy opens. One store a prefix."
  type        = string
  default     = "events"
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "prefix is one or more names of letters, digits, dashes and underscores, with slashes between them and none at the ends."
  }
}

variable "force_destroy" {
  description = "Whether `terraform destroy` may delete a bucket that holds data. That is for tests."
  type        = bool
  default     = false
  nullable    = false
}

variable "versioning" {
  description = "Whether S3 keeps what is deleted or replaced. It guards against other tools than the store, which never reuses a name but for its small documents. What the store's sweep deletes stays and costs until noncurrent_version_days have passed."
  type        = bool
  default     = false
  nullable    = false
}

variable "noncurrent_version_days" {
  description = "With versioning: after how many days a version goes for good that was deleted or replaced; null keeps all. A current version is never touched. Each tail that ships replaces a head.json, 8,640 times a day at 10s: with null S3 will slow down one day, as it does for names with millions of versions."
  type        = number
  default     = null

  validation {
    condition     = var.noncurrent_version_days == null || try(var.noncurrent_version_days >= 7 && floor(var.noncurrent_version_days) == var.noncurrent_version_days, false)
    error_message = "noncurrent_version_days is a whole number of at least 7 days: less leaves no time to notice a mistake."
  }

  validation {
    condition     = var.noncurrent_version_days == null || var.versioning
    error_message = "noncurrent_version_days needs versioning = true."
  }
}

variable "encryption" {
  description = "\"AES256\" (SSE-S3) or \"aws:kms\" (SSE-KMS, with a bucket key), as in cold.encryption of tiered.toml. Choose before the first object: each stays under the key it was written with, and a later change of encryption or kms_key_arn takes that key out of the policies, and deletes it if the module made it."
  type        = string
  default     = "AES256"
  nullable    = false

  validation {
    condition     = contains(["AES256", "aws:kms"], var.encryption)
    error_message = "encryption is \"AES256\" or \"aws:kms\"."
  }
}

variable "kms_key_arn" {
  description = "With \"aws:kms\": the ARN of a key that is there; null makes one that rotates. An alias is no ARN of a key."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9A-Za-z-]+$", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key, such as arn:aws:kms:eu-central-1:111122223333:key/….  An alias can be moved to another key."
  }

  validation {
    condition     = var.kms_key_arn == null || var.encryption == "aws:kms"
    error_message = "kms_key_arn needs encryption = \"aws:kms\"."
  }
}

variable "kms_deletion_window_days" {
  description = "For how long a key that this module made can be brought back after `terraform destroy`. Without its key the data is lost."
  type        = number
  default     = 30
  nullable    = false

  validation {
    condition     = var.kms_deletion_window_days >= 7 && var.kms_deletion_window_days <= 30
    error_message = "kms_deletion_window_days is 7 to 30, the limits of KMS."
  }
}

variable "require_conditional_writes" {
  description = "Whether the bucket itself refuses a manifest's head that is written without If-Match or If-None-Match. Set false only with cold.conditional_writes = \"off\"."
  type        = bool
  default     = true
  nullable    = false
}

variable "abort_incomplete_multipart_days" {
  description = "After how many days S3 removes the parts of an upload that was cut short. The store's own sweep does so sooner, while it runs."
  type        = number
  default     = 7
  nullable    = false

  validation {
    condition     = var.abort_incomplete_multipart_days >= 2 && floor(var.abort_incomplete_multipart_days) == var.abort_incomplete_multipart_days
    error_message = "abort_incomplete_multipart_days is a whole number of at least 2: an upload that is under way must not be aborted."
  }
}

variable "segment_tags" {
  description = "Tags that the store gives to data objects, as cold.tags of tiered.toml; the manifest has none. Transitions choose by them."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = length(var.segment_tags) <= 10
    error_message = "segment_tags has at most 10 tags, the limit of S3."
  }

  validation {
    condition = alltrue([
      for key, value in var.segment_tags :
      can(regex("^[A-Za-z0-9 +=._:/@-]{1,128}$", key)) && can(regex("^[A-Za-z0-9 +=._:/@-]{0,256}$", value)) && !startswith(lower(key), "aws:")
    ])
    error_message = "segment_tags holds letters, digits, spaces and + - = . _ : / @ only, and no key begins with aws:."
  }
}

variable "segment_transitions" {
  description = "When data objects move to a cheaper class, in order of time, counted from their upload; the manifest never does. Every class here answers at once. Needs segment_tags."
  type = list(object({
    days          = number
    storage_class = string
  }))
  default  = []
  nullable = false

  validation {
    condition     = alltrue([for rule in var.segment_transitions : contains(["STANDARD_IA", "INTELLIGENT_TIERING", "GLACIER_IR"], rule.storage_class)])
    error_message = "storage_class is STANDARD_IA, INTELLIGENT_TIERING or GLACIER_IR. GLACIER and DEEP_ARCHIVE cannot be read at once, and ONEZONE_IA would keep the only copy in one zone."
  }

  validation {
    condition     = alltrue([for rule in var.segment_transitions : rule.days >= (rule.storage_class == "STANDARD_IA" ? 30 : 0) && floor(rule.days) == rule.days])
    error_message = "days is a whole number, and at least 30 for STANDARD_IA, which S3 demands."
  }

  validation {
    # S3 refuses a way back to a dearer class. An unknown class is the business of the first validation.
    condition = alltrue([
      for index in range(1, max(1, length(var.segment_transitions))) :
      lookup({ STANDARD_IA = 1, INTELLIGENT_TIERING = 2 }, var.segment_transitions[index - 1].storage_class, 3) < lookup({ STANDARD_IA = 1, INTELLIGENT_TIERING = 2 }, var.segment_transitions[index].storage_class, 3)
      && var.segment_transitions[index].days >= var.segment_transitions[index - 1].days + (var.segment_transitions[index - 1].storage_class == "STANDARD_IA" ? 30 : 1)
    ])
    error_message = "segment_transitions go from STANDARD_IA to INTELLIGENT_TIERING to GLACIER_IR, each later than the one before, and 30 days after STANDARD_IA, which bills as long at least."
  }

  validation {
    condition     = length(var.segment_transitions) == 0 || length(var.segment_tags) > 0
    error_message = "segment_transitions needs segment_tags: no prefix tells data objects from the manifest, which must not be moved."
  }
}

variable "access_log" {
  description = "Where S3 writes the access log of the bucket; the target must allow logging.s3.amazonaws.com to put objects. null writes none."
  type = object({
    bucket = string
    prefix = optional(string, "")
  })
  default = null

  validation {
    condition     = var.access_log == null || try(var.access_log.bucket != coalesce(var.bucket_name, var.name), false)
    error_message = "access_log.bucket is another bucket: one that logs its own log grows by itself."
  }
}

variable "roles" {
  description = "Roles to make, by \"writer\", \"reader\" or \"restore\", and who may assume each: accounts, users or roles by ARN, services such as ec2.amazonaws.com or, for EKS Pod Identity, pods.eks.amazonaws.com, subjects of an OIDC provider (EKS service accounts). instance_profile is for EC2."
  type = map(object({
    principal_arns   = optional(list(string), [])
    services         = optional(list(string), [])
    instance_profile = optional(bool, false)
    oidc = optional(object({
      provider_arn = string
      subjects     = list(string)
      audience     = optional(string, "sts.amazonaws.com")
    }))
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for role in keys(var.roles) : contains(["writer", "reader", "restore"], role)])
    error_message = "roles has the keys writer, reader and restore, and no others."
  }

  validation {
    condition     = alltrue([for role in values(var.roles) : length(role.principal_arns) + length(role.services) + try(length(role.oidc.subjects), 0) > 0])
    error_message = "Each role says who may assume it: principal_arns, services or oidc."
  }

  validation {
    condition     = alltrue([for role in values(var.roles) : alltrue([for arn in role.principal_arns : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:(root|(user|role)/[^*?]+)$", arn))])])
    error_message = "principal_arns holds ARNs of accounts (…:root), users and roles, without wildcards."
  }

  validation {
    condition     = alltrue([for role in values(var.roles) : alltrue([for subject in try(role.oidc.subjects, []) : !can(regex("[*?]", subject))])])
    error_message = "oidc.subjects holds whole names such as system:serviceaccount:logs:tiered, without wildcards."
  }

  validation {
    condition     = alltrue([for role in values(var.roles) : role.oidc == null || can(regex("^arn:[a-z-]+:iam::[0-9]{12}:oidc-provider/[^*?]+$", role.oidc.provider_arn))])
    error_message = "oidc.provider_arn is such as arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-central-1.amazonaws.com/id/…."
  }

  validation {
    condition     = alltrue([for role in values(var.roles) : !role.instance_profile || length(setintersection(role.services, ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])) > 0])
    error_message = "instance_profile needs services = [\"ec2.amazonaws.com\"], in China [\"ec2.amazonaws.com.cn\"]."
  }
}

variable "reader_leases" {
  description = "Whether readers may write, below leases/ alone, that they hold a snapshot, which keeps the sweep from deleting what a long job still reads."
  type        = bool
  default     = false
  nullable    = false
}

variable "iam_path" {
  description = "Path of policies and roles."
  type        = string
  default     = "/"
  nullable    = false

  validation {
    condition     = can(regex("^/([A-Za-z0-9_.-]+/)*$", var.iam_path))
    error_message = "iam_path begins and ends with a slash."
  }
}

variable "permissions_boundary_arn" {
  description = "ARN of the policy that bounds the roles; null is none."
  type        = string
  default     = null
}

variable "alarms" {
  description = "CloudWatch alarms on the bucket's request metrics (which cost by the metric): the bucket answers with 5xx; it refuses requests (4xx); in each 5 minutes of quiet_minutes it got fewer than quiet_writes, so the daemon stands still (with reader_leases set more than 1: each Spark session that holds a table writes once in 20 minutes); it holds more than size_gib in the class STANDARD. null makes none."
  type = object({
    actions       = list(string)
    errors_5xx    = optional(number, 10)
    errors_4xx    = optional(number, 100)
    quiet_minutes = optional(number, 30)
    quiet_writes  = optional(number, 1)
    size_gib      = optional(number)
  })
  default = null

  validation {
    condition     = var.alarms == null || try(alltrue([for arn in var.alarms.actions : startswith(arn, "arn:")]), false)
    error_message = "alarms.actions holds ARNs, of SNS topics for instance."
  }

  validation {
    condition     = var.alarms == null || try(var.alarms.quiet_minutes >= 5 && var.alarms.quiet_minutes <= 1440 && var.alarms.quiet_minutes % 5 == 0, false)
    error_message = "alarms.quiet_minutes is a multiple of 5, from 5 to 1440."
  }

  validation {
    condition     = var.alarms == null || try(var.alarms.errors_5xx > 0 && var.alarms.errors_4xx > 0 && var.alarms.quiet_writes > 0 && coalesce(var.alarms.size_gib, 1) > 0, false)
    error_message = "The limits of alarms are more than zero."
  }
}

variable "vpc_endpoint" {
  description = "A gateway endpoint, so that the VPC reaches S3 without a NAT gateway and its costs. restrict_to_bucket lets nothing through but this bucket: also no package mirrors or images that are kept in S3. null makes none."
  type = object({
    vpc_id             = string
    route_table_ids    = list(string)
    restrict_to_bucket = optional(bool, false)
  })
  default = null

  validation {
    condition     = var.vpc_endpoint == null || try(length(var.vpc_endpoint.route_table_ids) > 0, false)
    error_message = "vpc_endpoint.route_table_ids names at least one route table: without a route nothing uses the endpoint."
  }
}

variable "tags" {
  description = "Tags of every resource that can have some."
  type        = map(string)
  default     = {}
  nullable    = false
}
