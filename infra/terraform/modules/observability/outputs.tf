output "log_group_arn" {
  description = "Log group of the journals."
  value       = aws_cloudwatch_log_group.journal.arn
}

output "log_group_name" {
  description = "Name of the log group of the journals."
  value       = aws_cloudwatch_log_group.journal.name
}

output "metrics_log_group_arn" {
  description = "Log group that metrics pass through."
  value       = aws_cloudwatch_log_group.metrics.arn
}

output "agent_config_parameter" {
  description = "SSM parameter with the configuration of the CloudWatch agent."
  value       = aws_ssm_parameter.agent.name
}

output "metric_namespace" {
  description = "Namespace of metrics."
  value       = local.namespace
}

output "metric_names" {
  description = "The metrics that are shipped."
  value       = local.shipped
}

output "metric_count" {
  description = "How many metrics there are; each is billed by the month."
  value       = length(local.of_brokers) * max(1, length(var.brokers)) + length(local.of_all)
}

output "alarm_count" {
  description = "How many alarms there are; each is billed by the month."
  value       = length(aws_cloudwatch_metric_alarm.broker) + length(aws_cloudwatch_metric_alarm.unreachable) + length(aws_cloudwatch_metric_alarm.machine)
}
