variable "name" {
  description = "The names of all resources begin with it."
  type        = string
}

variable "bucket_name" {
  description = "Name of the bucket."
  type        = string
}

variable "create_bucket" {
  description = "false: the bucket exists, and another configuration manages it."
  type        = bool
}

variable "prefix" {
  description = "Prefix of the cluster's keys, without slashes at its ends; may be empty."
  type        = string
}

variable "versioning_days" {
  description = "Days that old versions stay; 0 is no versioning."
  type        = number
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts; null: a new key is made."
  type        = string
}

variable "wal_store" {
  description = "A bucket for write-ahead logs alone: its whole name, whether it is a directory bucket of S3 Express One Zone, and in which zone; null: none."
  type = object({
    express = bool
    zone_id = string
    bucket  = string
  })
  default = null
}

variable "writer_role_arns" {
  description = "Roles that may write to and delete from the cluster's prefixes."
  type        = list(string)
}

variable "account_id" {
  description = "Account of the key's policy."
  type        = string
}

variable "partition" {
  description = "aws or aws-us-gov."
  type        = string
}

variable "region" {
  description = "Region of the key's policy."
  type        = string
}
