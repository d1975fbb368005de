# A bucket and three policies. Attach the policies to roles that you have.

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

variable "force_destroy" {
  description = "Whether destroy may delete data; for trying it out."
  type        = bool
  default     = false
}

module "tiered" {
  source = "../.."

  name          = var.name
  force_destroy = var.force_destroy
}

output "tiered_toml" {
  description = "The [cold] section of tiered.toml."
  value       = module.tiered.tiered_toml
}

output "policy_arns" {
  description = "What to attach, by role."
  value       = module.tiered.policy_arns
}

output "policy_documents" {
  description = "The policies as JSON, by role."
  value       = module.tiered.policy_documents
}

output "url" {
  description = "Where the store is."
  value       = module.tiered.url
}
