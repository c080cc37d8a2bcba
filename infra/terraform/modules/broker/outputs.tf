output "addresses" {
  description = "host:port that clients connect to, by node id."
  value       = { for node_id in keys(var.brokers) : node_id => "${local.host}:${var.listener_ports[node_id]}" }
}

output "host" {
  description = "Host of all addresses."
  value       = local.host
}

output "autoscaling_groups" {
  description = "Name of the auto-scaling group by node id."
  value       = { for node_id, group in aws_autoscaling_group.broker : node_id => group.name }
}

output "volume_ids" {
  description = "Data volume by node id; empty with instance store."
  value       = { for node_id, volume in aws_ebs_volume.data : node_id => volume.id }
}

output "role_arns" {
  description = "Role by node id."
  value       = { for node_id, role in aws_iam_role.broker : node_id => role.arn }
}

output "store_policy" {
  description = "The brokers' permissions in the bucket, as JSON; `firn iam policy --role broker` prints the same."
  value       = jsonencode(local.store_policy)
}

output "bootstrap" {
  description = "The document that the first boot of each node id reads from its launch template, as JSON."
  value       = { for node_id, bootstrap in local.bootstrap : node_id => jsonencode(bootstrap) }
}

output "load_balancer_arn_suffix" {
  description = "ARN suffix of the load balancer, for its metrics."
  value       = aws_lb.kafka.arn_suffix
}

output "target_group_arn_suffixes" {
  description = "ARN suffixes of the target groups by node id, for their metrics."
  value       = { for node_id, group in aws_lb_target_group.broker : node_id => group.arn_suffix }
}
