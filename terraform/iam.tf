locals {
  # The tests render the same files and compare them with the requests that the engine really makes.
  policy_values = {
    bucket_arn  = local.bucket_arn
    objects_arn = "${local.bucket_arn}/${var.prefix}"
    prefix      = var.prefix
    region      = data.aws_region.current.id
    kms_key_arn = local.kms ? local.kms_key_arn : ""
  }

  policy_parts = {
    for file in fileset("${path.module}/policies", "*.json.tftpl") :
    trimsuffix(file, ".json.tftpl") => jsondecode(templatefile("${path.module}/policies/${file}", local.policy_values)).Statement
  }

  # Which parts each role's policy is made of.
  role_parts = {
    writer  = concat(["writer"], length(var.segment_tags) > 0 ? ["part-tags"] : [], local.kms ? ["part-kms-read", "part-kms-write"] : [])
    reader  = concat(["reader"], var.reader_leases ? ["part-leases"] : [], local.kms ? ["part-kms-read"] : [], local.kms && var.reader_leases ? ["part-kms-write"] : [])
    restore = concat(["restore"], length(var.segment_tags) > 0 ? ["part-tags"] : [], local.kms ? ["part-kms-read", "part-kms-write"] : [])
  }

  policy_documents = {
    for role, parts in local.role_parts :
    role => jsonencode({ Version = "2012-10-17", Statement = flatten([for part in parts : local.policy_parts[part]]) })
  }

  # EKS names the cluster and the service account in tags of the session, and no session begins without them.
  pod_identity = "pods.eks.amazonaws.com"

  policy_descriptions = {
    writer  = "Append, offload, merge, sweep and repair the tiered store at ${local.url}"
    reader  = "Read the tiered store at ${local.url}"
    restore = "Make a local store again from ${local.url}, which fences the one that was there"
  }
}

resource "aws_iam_policy" "this" {
  for_each = local.policy_documents

  name        = "${var.name}-${each.key}"
  path        = var.iam_path
  description = local.policy_descriptions[each.key]
  policy      = each.value
  tags        = var.tags
}

resource "aws_iam_role" "this" {
  for_each = var.roles

  name                 = "${var.name}-${each.key}"
  path                 = var.iam_path
  description          = local.policy_descriptions[each.key]
  permissions_boundary = var.permissions_boundary_arn
  tags                 = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for arns in [each.value.principal_arns] : { Effect = "Allow", Action = "sts:AssumeRole", Principal = { AWS = arns } } if length(arns) > 0],
      [for services in [[for name in each.value.services : name if name != local.pod_identity]] : { Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = services } } if length(services) > 0],
      [for name in each.value.services : { Effect = "Allow", Action = ["sts:AssumeRole", "sts:TagSession"], Principal = { Service = [name] } } if name == local.pod_identity],
      [
        for oidc in [each.value.oidc] : {
          Effect    = "Allow"
          Action    = "sts:AssumeRoleWithWebIdentity"
          Principal = { Federated = oidc.provider_arn }
          Condition = {
            StringEquals = {
              "${split("oidc-provider/", oidc.provider_arn)[1]}:sub" = oidc.subjects
              "${split("oidc-provider/", oidc.provider_arn)[1]}:aud" = oidc.audience
            }
          }
        } if oidc != null
      ],
    )
  })
}

resource "aws_iam_role_policy_attachment" "this" {
  for_each = var.roles

  role       = aws_iam_role.this[each.key].name
  policy_arn = aws_iam_policy.this[each.key].arn
}

resource "aws_iam_instance_profile" "this" {
  for_each = { for key, role in var.roles : key => role if role.instance_profile }

  name = "${var.name}-${each.key}"
  path = var.iam_path
  role = aws_iam_role.this[each.key].name
  tags = var.tags
}
