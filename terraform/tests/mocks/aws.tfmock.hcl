# What the mocked provider answers where a made-up string would not do.

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_region" {
  defaults = { id = "eu-central-1", name = "eu-central-1" }
}

mock_data "aws_caller_identity" {
  defaults = { account_id = "111122223333" }
}

mock_resource "aws_kms_key" {
  defaults = {
    arn    = "arn:aws:kms:eu-central-1:111122223333:key/00000000-0000-0000-0000-000000000001"
    key_id = "00000000-0000-0000-0000-000000000001"
  }
}

mock_resource "aws_iam_policy" {
  defaults = { arn = "arn:aws:iam::111122223333:policy/mocked" }
}
