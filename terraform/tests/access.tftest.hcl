# Who may do what: policies, roles, alarms and the endpoint.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name = "logs"
}

run "three_policies_and_no_wildcard_resource" {
  command = plan

  assert {
    condition     = toset(keys(aws_iam_policy.this)) == toset(["writer", "reader", "restore"]) && aws_iam_policy.this["writer"].name == "logs-writer"
    error_message = "One policy a role, named after the deployment."
  }
  assert {
    condition     = alltrue([for statement in flatten([for policy in values(aws_iam_policy.this) : jsondecode(policy.policy).Statement]) : !contains(statement.Resource, "*") && alltrue([for action in statement.Action : !strcontains(action, "*")])])
    error_message = "Neither resources nor actions are wildcards."
  }
  assert {
    condition     = alltrue([for statement in flatten([for policy in values(aws_iam_policy.this) : jsondecode(policy.policy).Statement]) : try(statement.Condition, null) == { StringLike = { "s3:prefix" = ["events/*"] } } if contains(statement.Action, "s3:ListBucket")])
    error_message = "Who lists names the prefix: without IfExists, which would let a listing of the whole bucket through."
  }
  assert {
    condition     = flatten([for statement in jsondecode(aws_iam_policy.this["reader"].policy).Statement : statement.Action]) == ["s3:ListBucket", "s3:GetObject"]
    error_message = "A reader reads."
  }
  assert {
    condition     = flatten([for statement in jsondecode(aws_iam_policy.this["restore"].policy).Statement : statement.Resource if contains(statement.Action, "s3:DeleteObject")]) == ["arn:aws:s3:::logs/events/probe/clock", "arn:aws:s3:::logs/events/probe/????????-????-????-????-????????????"]
    error_message = "A restore deletes its own probe and nothing else."
  }
}

run "leases_tags_and_a_key_add_what_they_need" {
  command = plan

  variables {
    encryption    = "aws:kms"
    kms_key_arn   = "arn:aws:kms:eu-central-1:111122223333:key/mine"
    reader_leases = true
    segment_tags  = { tiered = "segment" }
  }

  assert {
    condition = { for role, policy in aws_iam_policy.this : role => [for statement in jsondecode(policy.policy).Statement : statement.Sid] } == {
      writer  = ["List", "ListUploads", "Read", "Write", "AbortUploads", "Sweep", "Erase", "AskWhatIsHeld", "Tag", "Decrypt", "Encrypt"]
      reader  = ["List", "Read", "Lease", "Decrypt", "Encrypt"]
      restore = ["List", "Read", "Write", "DeleteProbe", "Tag", "Decrypt", "Encrypt"]
    }
    error_message = "Each role gets the parts it needs."
  }
  assert {
    condition     = alltrue([for statement in flatten([for policy in values(aws_iam_policy.this) : jsondecode(policy.policy).Statement]) : statement.Resource == [var.kms_key_arn] && statement.Condition.StringLike["kms:ViaService"] == ["s3.eu-central-1.amazonaws.*"] if contains(["Decrypt", "Encrypt"], statement.Sid)])
    error_message = "The key is used through S3 alone."
  }
}

run "roles" {
  command = plan

  variables {
    iam_path                 = "/data/"
    permissions_boundary_arn = "arn:aws:iam::111122223333:policy/boundary"
    roles = {
      writer = { services = ["ec2.amazonaws.com"], instance_profile = true }
      reader = { principal_arns = ["arn:aws:iam::111122223333:role/spark"] }
      restore = {
        oidc = {
          provider_arn = "arn:aws:iam::111122223333:oidc-provider/oidc.example.com/id/1"
          subjects     = ["system:serviceaccount:logs:operator"]
        }
      }
    }
  }

  assert {
    condition     = [for role in ["reader", "restore", "writer"] : [aws_iam_role.this[role].name, aws_iam_role.this[role].path, aws_iam_role.this[role].permissions_boundary, aws_iam_role_policy_attachment.this[role].role]] == [for role in ["reader", "restore", "writer"] : ["logs-${role}", "/data/", var.permissions_boundary_arn, "logs-${role}"]]
    error_message = "Each role has its name, path and boundary, and is the one that gets the policy."
  }
  assert {
    condition     = keys(aws_iam_instance_profile.this) == ["writer"] && aws_iam_instance_profile.this["writer"].role == "logs-writer"
    error_message = "The writer's host gets an instance profile."
  }
  assert {
    condition = { for role in keys(var.roles) : role => one(jsondecode(aws_iam_role.this[role].assume_role_policy).Statement).Principal } == {
      writer  = { Service = ["ec2.amazonaws.com"] }
      reader  = { AWS = ["arn:aws:iam::111122223333:role/spark"] }
      restore = { Federated = "arn:aws:iam::111122223333:oidc-provider/oidc.example.com/id/1" }
    }
    error_message = "Each role is assumed by whom it was given to."
  }
  assert {
    condition = one(jsondecode(aws_iam_role.this["restore"].assume_role_policy).Statement).Condition.StringEquals == {
      "oidc.example.com/id/1:aud" = "sts.amazonaws.com"
      "oidc.example.com/id/1:sub" = ["system:serviceaccount:logs:operator"]
    }
    error_message = "A token is for this audience and this subject."
  }
}

run "pod_identity_tags_its_sessions" {
  command = plan

  variables {
    roles = { writer = { services = ["pods.eks.amazonaws.com", "ec2.amazonaws.com"] } }
  }

  assert {
    condition = [for statement in jsondecode(aws_iam_role.this["writer"].assume_role_policy).Statement : [statement.Action, statement.Principal.Service]] == [
      ["sts:AssumeRole", ["ec2.amazonaws.com"]],
      [["sts:AssumeRole", "sts:TagSession"], ["pods.eks.amazonaws.com"]],
    ]
    error_message = "EKS may tag the session, and nobody else."
  }
}

run "another_partition" {
  command = plan

  variables {
    encryption   = "aws:kms"
    kms_key_arn  = "arn:aws-cn:kms:cn-north-1:111122223333:key/mine"
    roles        = { writer = { services = ["ec2.amazonaws.com.cn"], instance_profile = true } }
    vpc_endpoint = { vpc_id = "vpc-1", route_table_ids = ["rtb-1"], restrict_to_bucket = true }
  }

  override_data {
    target = data.aws_partition.current
    values = { partition = "aws-cn" }
  }

  override_data {
    target = data.aws_region.current
    values = { id = "cn-north-1", name = "cn-north-1" }
  }

  assert {
    condition     = !strcontains(join("", [aws_iam_policy.this["writer"].policy, aws_s3_bucket_policy.this.policy, aws_vpc_endpoint.s3[0].policy]), "arn:aws:")
    error_message = "Every ARN is of the partition."
  }
}

run "alarms" {
  command = plan

  variables {
    alarms = { actions = ["arn:aws:sns:eu-central-1:111122223333:ops"], quiet_minutes = 60, quiet_writes = 5, errors_4xx = 7, size_gib = 2 }
  }

  assert {
    condition     = aws_s3_bucket_metric.this[0].filter[0].prefix == "events/" && toset(output.alarm_names) == toset(["logs-errors-5xx", "logs-errors-4xx", "logs-quiet", "logs-size"])
    error_message = "Requests below the prefix are measured, and four alarms watch them."
  }
  assert {
    condition     = alltrue([for alarm in concat(values(aws_cloudwatch_metric_alarm.requests), aws_cloudwatch_metric_alarm.size) : alarm.alarm_actions == toset(var.alarms.actions) && alarm.dimensions.BucketName == "logs"])
    error_message = "All alarms tell the same."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.requests["quiet"].evaluation_periods == 12 && aws_cloudwatch_metric_alarm.requests["quiet"].treat_missing_data == "breaching"
    error_message = "An hour of too few writes is an alarm, and so is an hour without a figure."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.requests["errors-4xx"].threshold == 7 && aws_cloudwatch_metric_alarm.requests["errors-5xx"].threshold == 10 && aws_cloudwatch_metric_alarm.requests["quiet"].threshold == 5 && aws_cloudwatch_metric_alarm.size[0].threshold == 2147483648
    error_message = "The limits are those that were given."
  }
}

run "alarms_without_a_size" {
  command = plan

  variables {
    alarms = { actions = [] }
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.size) == 0 && length(aws_cloudwatch_metric_alarm.requests) == 3 && aws_cloudwatch_metric_alarm.requests["quiet"].threshold == 1
    error_message = "No size, no alarm; and one write ends the quiet."
  }
}

run "an_endpoint_that_leads_to_this_bucket_alone" {
  command = plan

  variables {
    vpc_endpoint = { vpc_id = "vpc-1", route_table_ids = ["rtb-1", "rtb-2"], restrict_to_bucket = true }
  }

  assert {
    condition     = aws_vpc_endpoint.s3[0].service_name == "com.amazonaws.eu-central-1.s3" && aws_vpc_endpoint.s3[0].vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3[0].route_table_ids == toset(["rtb-1", "rtb-2"])
    error_message = "A gateway to S3 of this region, in both route tables."
  }
  assert {
    condition     = one(jsondecode(aws_vpc_endpoint.s3[0].policy).Statement).Resource == ["arn:aws:s3:::logs", "arn:aws:s3:::logs/*"]
    error_message = "It leads to the bucket and nowhere else."
  }
}
