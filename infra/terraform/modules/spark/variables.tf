variable "name" {
  description = "Name of the cluster. The names of all resources begin with it."
  type        = string
}

variable "region" {
  description = "Region of the cluster."
  type        = string
}

variable "partition" {
  description = "aws or aws-us-gov."
  type        = string
}

variable "account_id" {
  description = "Account of the cluster."
  type        = string
}

variable "release_label" {
  description = "Release of EMR."
  type        = string
}

variable "image_uri" {
  description = "Image of the workers; null: the release's image."
  type        = string
}

variable "architecture" {
  description = "arm64 or x86_64."
  type        = string
}

variable "vcpus_max" {
  description = "Limit for the vCPUs of all running jobs together."
  type        = number
}

variable "topic_ids" {
  description = "Topics that jobs may read, by id; empty: all."
  type        = list(string)
}

variable "bucket_arn" {
  description = "ARN of the cluster's bucket."
  type        = string
}

variable "bucket_prefix" {
  description = "Prefix of the cluster's keys, without slashes at its ends."
  type        = string
}

variable "store_url" {
  description = "The store, as Firn takes it."
  type        = string
}

variable "target_bucket" {
  description = "Bucket that jobs write to; null: none."
  type        = string
}

variable "script_bucket" {
  description = "Bucket that the scripts of jobs are read from."
  type        = string
}

variable "kms_key_arns" {
  description = "Keys that encrypt target_bucket and script_bucket; empty: S3's own do."
  type        = list(string)
}

variable "kms_key_arn" {
  description = "Key of the cluster's bucket and of logs."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets. Without them jobs could not reach brokers."
  type        = list(string)
}

variable "security_group_id" {
  description = "Security group of jobs."
  type        = string
}

variable "log_retention_days" {
  description = "Days that logs are kept."
  type        = number
}

variable "bootstrap_servers" {
  description = "Brokers, for jobs that read the live tail or write."
  type        = string
}
