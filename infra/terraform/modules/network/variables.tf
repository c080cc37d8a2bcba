variable "name" {
  description = "The names of all resources begin with it."
  type        = string
}

variable "region" {
  description = "Region of the endpoints."
  type        = string
}

variable "zones" {
  description = "Zones that get a private subnet."
  type        = list(string)
}

variable "vpc_cidr" {
  description = "Addresses of the VPC that is made."
  type        = string
}

variable "existing_vpc" {
  description = "A VPC to use in place of a new one, as in the root module."
  type = object({
    vpc_id          = string
    subnet_ids      = map(string)
    route_table_ids = list(string)
    s3_endpoint     = optional(bool, true)
  })
  default = null
}

variable "egress" {
  description = "endpoints, nat or existing, as in the root module."
  type        = string
}

variable "interface_endpoints" {
  description = "Services that get an interface endpoint with egress = \"endpoints\", by the last part of their name."
  type        = list(string)
}

variable "client_cidrs" {
  description = "Blocks of clients."
  type        = list(string)
}

variable "brokers_port" {
  description = "Port where brokers listen for each other; null: they use kafka_port."
  type        = number
  default     = null
}

variable "kafka_port" {
  description = "Port of Kafka's protocol on the machines."
  type        = number
}

variable "kafka_listener_ports" {
  description = "Ports of the load balancer, by node id."
  type        = map(number)
}

variable "http_port" {
  description = "Port of HTTP on the machines."
  type        = number
}

variable "http_enabled" {
  description = "Whether there are machines for HTTP."
  type        = bool
}

variable "spark_enabled" {
  description = "Whether there are Spark jobs."
  type        = bool
}

variable "direct" {
  description = "Whether clients connect to brokers at the addresses of their machines: a fleet, or several brokers with volumes."
  type        = bool
  default     = false
}

variable "express_enabled" {
  description = "Whether brokers have a bucket of S3 Express One Zone, which has a gateway endpoint of its own."
  type        = bool
  default     = false
}

variable "redis_enabled" {
  description = "Whether there is a Valkey."
  type        = bool
}

variable "kms_key_arn" {
  description = "Key that encrypts flow logs."
  type        = string
}

variable "log_retention_days" {
  description = "Days that flow logs are kept."
  type        = number
}
