# The bucket, its encryption and its lifecycle, by every variable that changes them.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name = "logs"
}

run "defaults_are_private_encrypted_and_never_expire_anything" {
  command = plan

  assert {
    condition     = aws_s3_bucket.this.bucket == "logs" && aws_s3_bucket.this.force_destroy == false
    error_message = "The bucket has the deployment's name, and is not destroyed with data in it."
  }
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this.block_public_acls,
      aws_s3_bucket_public_access_block.this.block_public_policy,
      aws_s3_bucket_public_access_block.this.ignore_public_acls,
      aws_s3_bucket_public_access_block.this.restrict_public_buckets,
      aws_s3_bucket_ownership_controls.this.rule[0].object_ownership == "BucketOwnerEnforced",
    ])
    error_message = "Public access is blocked in all four ways, and ACLs are off."
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default[0].sse_algorithm == "AES256"
    error_message = "SSE-S3 is the default."
  }
  assert {
    condition     = length(aws_s3_bucket_versioning.this) + length(aws_kms_key.this) + length(aws_s3_bucket_logging.this) + length(aws_iam_role.this) + length(aws_cloudwatch_metric_alarm.requests) + length(aws_vpc_endpoint.s3) == 0
    error_message = "Everything optional is off."
  }
  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this.rule) == 1 && aws_s3_bucket_lifecycle_configuration.this.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 7
    error_message = "The one rule aborts uploads that were cut short."
  }
  assert {
    condition     = toset(jsondecode(aws_s3_bucket_policy.this.policy).Statement[*].Sid) == toset(["TlsOnly", "RecentTlsOnly", "NoOtherEncryption", "NoKeyOfTheCaller", "HeadByCompareAndSwap"])
    error_message = "The bucket's policy demands TLS, the bucket's encryption and compare-and-swap."
  }
  assert {
    condition     = alltrue([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Effect == "Deny"])
    error_message = "The bucket's policy only denies."
  }
  assert {
    condition     = output.tiered_toml == "[cold]\nurl = \"s3://logs/events\"\nregion = \"eu-central-1\"\nencryption = \"AES256\"\n"
    error_message = "The fragment names the bucket: ${output.tiered_toml}"
  }
}

run "names_and_prefix" {
  command = plan

  variables {
    bucket_name = "acme-logs-eu"
    prefix      = "streams/v2"
    tags        = { team = "ingest" }
  }

  assert {
    condition     = aws_s3_bucket.this.bucket == "acme-logs-eu" && aws_s3_bucket.this.tags.team == "ingest" && output.url == "s3://acme-logs-eu/streams/v2"
    error_message = "bucket_name, prefix and tags are used."
  }
  assert {
    condition     = alltrue([for resource in flatten([for document in values(output.policy_documents) : jsondecode(document).Statement[*].Resource]) : resource == "arn:aws:s3:::acme-logs-eu" || startswith(resource, "arn:aws:s3:::acme-logs-eu/streams/v2/")])
    error_message = "Policies reach the prefix and nothing beside it."
  }
}

run "a_key_of_its_own" {
  command = apply

  variables {
    encryption = "aws:kms"
  }

  assert {
    condition     = aws_kms_key.this[0].enable_key_rotation && aws_kms_key.this[0].deletion_window_in_days == 30 && aws_kms_alias.this[0].name == "alias/logs"
    error_message = "The key rotates, and can be brought back for 30 days."
  }
  assert {
    condition = alltrue([
      one(aws_s3_bucket_server_side_encryption_configuration.this.rule).bucket_key_enabled,
      one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms",
      one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default[0].kms_master_key_id == aws_kms_key.this[0].arn,
    ])
    error_message = "Objects get the key by default, through a bucket key."
  }
  assert {
    condition     = one([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement if statement.Sid == "NoOtherKey"]).Condition.StringNotEquals["s3:x-amz-server-side-encryption-aws-kms-key-id"][0] == aws_kms_key.this[0].arn
    error_message = "Another key is refused."
  }
  assert {
    condition     = one([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Condition if statement.Sid == "NoUnnamedKey"]) == { Null = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = ["true"] }, StringEquals = { "s3:x-amz-server-side-encryption" = ["aws:kms"] } }
    error_message = "So is the account's own key, which S3 takes where none is named."
  }
  assert {
    condition     = strcontains(output.tiered_toml, "encryption = \"aws:kms\"\nkms_key_id = \"${aws_kms_key.this[0].arn}\"\n")
    error_message = "The fragment asks for the key with every object."
  }
}

run "a_key_that_is_there" {
  command = plan

  variables {
    encryption  = "aws:kms"
    kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/mine"
  }

  assert {
    condition     = length(aws_kms_key.this) == 0 && one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default[0].kms_master_key_id == var.kms_key_arn && output.kms_key_arn == var.kms_key_arn
    error_message = "No key is made, and the given one is used."
  }
}

run "versions_classes_and_a_log" {
  command = plan

  variables {
    versioning                      = true
    noncurrent_version_days         = 14
    abort_incomplete_multipart_days = 3
    segment_tags                    = { tiered = "segment" }
    segment_transitions             = [{ days = 30, storage_class = "STANDARD_IA" }, { days = 90, storage_class = "GLACIER_IR" }]
    access_log                      = { bucket = "access-logs", prefix = "logs/" }
    require_conditional_writes      = false
  }

  assert {
    condition     = aws_s3_bucket_versioning.this[0].versioning_configuration[0].status == "Enabled"
    error_message = "versioning is on."
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.this.rule[*].id == tolist(["abort-incomplete-multipart-uploads", "segments-to-cheaper-classes", "versions-that-the-store-gave-up"])
    error_message = "One rule each."
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.this.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 3
    error_message = "abort_incomplete_multipart_days is used."
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.this.rule[1].filter[0].and[0].tags.tiered == "segment" && aws_s3_bucket_lifecycle_configuration.this.rule[1].filter[0].and[0].prefix == "events/"
    error_message = "Only what bears the tag of segments moves: never the manifest."
  }
  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this.rule[1].transition) == 2 && aws_s3_bucket_lifecycle_configuration.this.rule[2].noncurrent_version_expiration[0].noncurrent_days == 14
    error_message = "Both transitions, and the end of old versions."
  }
  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this.rule : alltrue([for end in rule.expiration : end.days == null || end.days == 0])])
    error_message = "No object that is there expires."
  }
  assert {
    condition     = aws_s3_bucket_logging.this[0].target_bucket == "access-logs" && aws_s3_bucket_logging.this[0].target_prefix == "logs/"
    error_message = "The access log goes where it is asked to."
  }
  assert {
    condition     = !contains(jsondecode(aws_s3_bucket_policy.this.policy).Statement[*].Sid, "HeadByCompareAndSwap") && strcontains(output.tiered_toml, "conditional_writes = \"off\"")
    error_message = "Bucket and store agree that writes have no conditions."
  }
  assert {
    condition     = strcontains(output.tiered_toml, "tags = { \"tiered\" = \"segment\" }")
    error_message = "The store is told the tags that the rule goes by."
  }
}
