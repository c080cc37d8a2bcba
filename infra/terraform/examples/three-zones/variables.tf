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

variable "http" {
  description = "Certificate and host name of HTTP; null: no machines for HTTP."
  type = object({
    certificate_arn = string
    host            = string
    dns_zone_id     = optional(string)
  })
  default = null
}

variable "lake_bucket" {
  description = "Bucket that Spark jobs write archives to, and read their scripts from; null: no Spark."
  type        = string
  default     = null
}

variable "alarm_actions" {
  description = "SNS topics that alarms notify."
  type        = list(string)
  default     = []
}

variable "security" {
  description = "TLS, logins and rules: ca_pem and secret_arn, as infra/README.md, \"Who may do what\", makes them. null: whoever reaches the brokers may do everything."
  type = object({
    ca_pem     = string
    secret_arn = string
  })
  default = null
}
