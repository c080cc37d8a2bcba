variable "name" {
  description = "Name of the cluster. The names of all resources begin with it."
  type        = string
}

variable "region" {
  description = "Region of the cluster."
  type        = string
}

variable "account_id" {
  description = "Account of the cluster."
  type        = string
}

variable "partition" {
  description = "aws or aws-us-gov."
  type        = string
}

variable "brokers" {
  description = "Zone and state by node id."
  type = map(object({
    zone    = string
    running = bool
  }))
}

variable "fleet" {
  description = "Brokers without disks, as in the root module."
  type = object({
    min                  = number
    max                  = number
    on_demand            = number
    other_instance_types = list(string)
    disk                 = string
    disk_gib             = number
    cpu_percent          = number
    network_mb_s         = number
  })
  default = null
}

variable "listener_ports" {
  description = "Port of the load balancer by node id, or of `fleet`."
  type        = map(number)
}

variable "role_names" {
  description = "Name of the role by node id, or of `fleet`. The caller chooses it, because the bucket's policy names the roles before they exist."
  type        = map(string)
}

variable "vpc_id" {
  description = "VPC of the target groups."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets by zone."
  type        = map(string)
}

variable "lb_security_group_id" {
  description = "Security group of the load balancer."
  type        = string
}

variable "broker_security_group_id" {
  description = "Security group of the brokers."
  type        = string
}

variable "ami_id" {
  description = "Image."
  type        = string
}

variable "instance_type" {
  description = "Instance type."
  type        = string
}

variable "market" {
  description = "on-demand or spot."
  type        = string
}

variable "data_disk" {
  description = "Disk of the data directory, as in the root module."
  type = object({
    kind            = string
    size_gib        = number
    type            = string
    iops            = number
    throughput_mibs = number
    filesystem      = string
  })
}

variable "accept_loss_of_untiered" {
  description = "As in the root module."
  type        = bool
}

variable "scale_to_zero" {
  description = "As in the root module."
  type = object({
    down      = string
    up        = string
    time_zone = string
  })
}

variable "launch_timeout_s" {
  description = "Longest time of a start."
  type        = number
}

variable "store_url" {
  description = "The store, as `firn serve --store` takes it."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket."
  type        = string
}

variable "bucket_prefix" {
  description = "Prefix of the cluster's keys, without slashes at its ends."
  type        = string
}

variable "wal_store" {
  description = "ARN of the bucket of write-ahead logs, and whether it is of S3 Express One Zone; null: they are in the cluster's bucket."
  type = object({
    arn     = string
    express = bool
  })
  default = null
}

variable "kms_key_arn" {
  description = "Key of bucket and volumes."
  type        = string
}

variable "wheelhouse" {
  description = "Packages, as in the root module."
  type = object({
    bucket = string
    key    = string
    sha256 = string
  })
}

variable "user_data_template" {
  description = "Path of the template of the user data."
  type        = string
}

variable "settings" {
  description = "Settings of the brokers."
  type        = map(string)
}

variable "kafka_port" {
  description = "Port of Kafka's protocol on the machines."
  type        = number
}

variable "http_port" {
  description = "Port of HTTP on the machines."
  type        = number
}

variable "dns" {
  description = "A name in Route 53, as in the root module."
  type = object({
    zone_id = string
    name    = string
  })
}

variable "deletion_protection" {
  description = "Protect the load balancer."
  type        = bool
}

variable "secret_arn" {
  description = "A secret that brokers may read; null: none."
  type        = string
}

variable "security" {
  description = "TLS, logins and rules, with the key and the first users in the secret; null: none."
  type = object({
    ca_pem     = string
    secret_arn = string
  })
  default = null
}

variable "log_group_arn" {
  description = "Log group that machines write to."
  type        = string
}

variable "metrics_log_group_arn" {
  description = "Log group that metrics are written to."
  type        = string
}

variable "agent_config_parameter" {
  description = "Name of the SSM parameter with the configuration of the CloudWatch agent."
  type        = string
}

variable "metric_namespace" {
  description = "Namespace of metrics."
  type        = string
}
