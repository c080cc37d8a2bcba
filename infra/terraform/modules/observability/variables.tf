variable "name" {
  description = "Name of the cluster. The names of all resources begin with it."
  type        = string
}

variable "region" {
  description = "Region of the dashboard."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts logs."
  type        = string
}

variable "log_retention_days" {
  description = "Days that logs are kept."
  type        = number
}

variable "alarm_actions" {
  description = "SNS topics that alarms notify."
  type        = list(string)
}

variable "http_port" {
  description = "Port of HTTP on every machine; /metrics is read there."
  type        = number
}

variable "certificate_host" {
  description = "A name in the certificate of the brokers, by which /metrics is read with a login; null: plain HTTP, without one."
  type        = string
  default     = null
}

variable "brokers" {
  description = "Whether each node id is meant to run."
  type        = map(bool)
}

variable "by_node_id" {
  description = "Whether metrics are of each node id. If not, they are of the whole cluster: new machines have new node ids, and each would be a metric more."
  type        = bool
  default     = true
}

variable "replicated" {
  description = "Whether partitions have replicas on several brokers: metrics and alarms of these besides."
  type        = bool
  default     = false
}

variable "scheduled" {
  description = "Whether a schedule scales brokers to zero. Missing metrics then mean nothing."
  type        = bool
}

variable "disk_free_bytes_min" {
  description = "An alarm goes off if the data directory has fewer free bytes than this."
  type        = number
}

variable "autoscaling_groups" {
  description = "Name of the auto-scaling group by node id."
  type        = map(string)
}

variable "load_balancer_arn_suffix" {
  description = "Load balancer of Kafka's protocol."
  type        = string
}

variable "target_group_arn_suffixes" {
  description = "Target groups by node id."
  type        = map(string)
}
