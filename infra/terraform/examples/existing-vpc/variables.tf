variable "cluster_name" {
  description = "Name of the cluster."
  type        = string
  default     = "firn"
}

variable "region" {
  description = "Region of all resources."
  type        = string
  default     = "eu-central-1"
}

variable "ami_id" {
  description = "Image of the machines: Debian 12 for arm64, in the region. infra/README.md, \"Image\", says what it contains."
  type        = string
}

variable "client_cidrs" {
  description = "Address blocks that may reach Kafka."
  type        = list(string)
}

variable "wheelhouse" {
  description = "Packages: bucket, key and SHA-256 of a wheelhouse; null if the packages are in the image."
  type = object({
    bucket = string
    key    = string
    sha256 = string
  })
  default = null
}

variable "vpc" {
  description = "The VPC, with a private subnet for each zone and the subnets' route tables. s3_endpoint = false if the VPC already has a gateway endpoint for S3."
  type = object({
    vpc_id          = string
    subnet_ids      = map(string)
    route_table_ids = list(string)
    s3_endpoint     = optional(bool, true)
  })
}

variable "egress" {
  description = "existing: the VPC has a way to AWS's APIs. endpoints: make interface endpoints in it."
  type        = string
  default     = "existing"
}

variable "bucket" {
  description = "The bucket, in the same region. The output bucket_policy has the statements that its policy should contain."
  type        = string
}

variable "kms_key_arn" {
  description = "The key that the bucket is encrypted with."
  type        = string
}

variable "operator_role_arns" {
  description = "Roles that may write to the bucket in addition to the brokers' roles."
  type        = list(string)
  default     = []
}

variable "dns" {
  description = "A name in a Route 53 zone; null: the load balancer's own name."
  type = object({
    zone_id = string
    name    = string
  })
  default = null
}

variable "security" {
  description = "TLS, logins and rules: ca_pem and secret_arn, as infra/README.md, \"Who may do what\", makes them. null: whoever reaches the brokers may do everything."
  type = object({
    ca_pem     = string
    secret_arn = string
  })
  default = null
}
