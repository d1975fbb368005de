# What the validations refuse. A run holds one mistake for each of many variables: each must be refused by its own, and
# a run costs most of a second.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name = "logs"
}

run "names_numbers_and_words" {
  command = plan

  variables {
    name                            = "Logs"
    bucket_name                     = "logs.example.com"
    prefix                          = ""
    versioning                      = true
    noncurrent_version_days         = 1
    encryption                      = "off"
    kms_deletion_window_days        = 1
    abort_incomplete_multipart_days = 0
    segment_tags                    = { "aws:x" = "y" }
    roles                           = { admin = { services = ["ec2.amazonaws.com"] } }
    iam_path                        = "data"
    alarms                          = { actions = ["ops"] }
    vpc_endpoint                    = { vpc_id = "vpc-1", route_table_ids = [] }
  }

  expect_failures = [
    var.name,
    var.bucket_name,
    var.prefix,
    var.noncurrent_version_days,
    var.encryption,
    var.kms_deletion_window_days,
    var.abort_incomplete_multipart_days,
    var.segment_tags,
    var.roles,
    var.iam_path,
    var.alarms,
    var.vpc_endpoint,
  ]
}

run "what_contradicts_something_else" {
  command = plan

  variables {
    prefix                  = "/events"
    noncurrent_version_days = 30
    kms_key_arn             = "arn:aws:kms:eu-central-1:111122223333:key/mine"
    segment_transitions     = [{ days = 30, storage_class = "STANDARD_IA" }]
    access_log              = { bucket = "logs" }
    roles                   = { writer = {} }
    alarms                  = { actions = [], quiet_minutes = 7 }
  }

  expect_failures = [
    var.prefix,
    var.noncurrent_version_days,
    var.kms_key_arn,
    var.segment_transitions,
    var.access_log,
    var.roles,
    var.alarms,
  ]
}

run "everybody_and_an_alias" {
  command = plan

  variables {
    prefix       = "ev*"
    encryption   = "aws:kms"
    kms_key_arn  = "alias/logs"
    segment_tags = { k0 = "", k1 = "", k2 = "", k3 = "", k4 = "", k5 = "", k6 = "", k7 = "", k8 = "", k9 = "", k10 = "" }
    roles        = { reader = { principal_arns = ["*"] } }
    alarms       = { actions = [], errors_5xx = 0 }
  }

  expect_failures = [
    var.prefix,
    var.kms_key_arn,
    var.segment_tags,
    var.roles,
    var.alarms,
  ]
}

run "a_class_that_does_not_answer_and_every_service_account" {
  command = plan

  variables {
    segment_tags        = { a = "b" }
    segment_transitions = [{ days = 90, storage_class = "DEEP_ARCHIVE" }]
    roles               = { reader = { oidc = { provider_arn = "arn:aws:iam::111122223333:oidc-provider/x", subjects = ["system:*"] } } }
  }

  expect_failures = [
    var.segment_transitions,
    var.roles,
  ]
}

run "a_class_of_one_zone_and_a_profile_without_ec2" {
  command = plan

  variables {
    segment_tags        = { a = "b" }
    segment_transitions = [{ days = 90, storage_class = "ONEZONE_IA" }]
    roles               = { writer = { services = ["ecs-tasks.amazonaws.com"], instance_profile = true } }
  }

  expect_failures = [
    var.segment_transitions,
    var.roles,
  ]
}

run "a_way_back_to_a_dearer_class_and_a_provider_without_a_name" {
  command = plan

  variables {
    segment_tags        = { a = "b" }
    segment_transitions = [{ days = 30, storage_class = "GLACIER_IR" }, { days = 90, storage_class = "STANDARD_IA" }]
    roles               = { reader = { oidc = { provider_arn = "https://oidc.example.com", subjects = ["system:serviceaccount:logs:spark"] } } }
    alarms              = { actions = [], quiet_writes = 0 }
  }

  expect_failures = [
    var.segment_transitions,
    var.roles,
    var.alarms,
  ]
}

run "two_classes_too_close" {
  command = plan

  variables {
    segment_tags        = { a = "b" }
    segment_transitions = [{ days = 30, storage_class = "STANDARD_IA" }, { days = 59, storage_class = "GLACIER_IR" }]
  }

  expect_failures = [
    var.segment_transitions,
  ]
}

run "a_class_too_soon_and_a_limit_of_nothing" {
  command = plan

  variables {
    segment_tags        = { a = "b" }
    segment_transitions = [{ days = 1, storage_class = "STANDARD_IA" }]
    alarms              = { actions = [], size_gib = 0 }
  }

  expect_failures = [
    var.segment_transitions,
    var.alarms,
  ]
}
