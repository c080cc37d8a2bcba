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

variable "vpc_id" {
  description = "VPC of the target group."
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

variable "http_security_group_id" {
  description = "Security group of the machines."
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

variable "machines" {
  description = "Number of machines in each zone."
  type        = number
}

variable "certificate_arn" {
  description = "Certificate of the listener."
  type        = string
}

variable "host" {
  description = "Host name that clients use."
  type        = string
}

variable "dns_zone_id" {
  description = "Route 53 zone of host; null: somebody else makes the record."
  type        = string
}

variable "port" {
  description = "Port of HTTP on the machines."
  type        = number
}

variable "bootstrap_servers" {
  description = "Addresses of the brokers: bootstrap.servers of the HTTP processes."
  type        = string
}

variable "ca_pem" {
  description = "PEM of the authority that the brokers' certificates are signed by; null: brokers have no TLS."
  type        = string
  default     = null
}

variable "store_url" {
  description = "URL of the store. These machines get its name, but must not reach the store."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the cluster's bucket, which these machines must not reach."
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

variable "launch_timeout_s" {
  description = "Longest time of a start."
  type        = number
}

variable "deletion_protection" {
  description = "Protect the load balancer."
  type        = bool
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
