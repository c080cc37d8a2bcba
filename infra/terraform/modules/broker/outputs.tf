output "addresses" {
  description = "host:port that clients connect to first, by node id; of brokers without disks one address, `fleet`."
  value       = { for key in keys(local.machines) : key => "${local.host}:${var.listener_ports[key]}" }
}

output "host" {
  description = "Host of all addresses."
  value       = local.host
}

output "autoscaling_groups" {
  description = "Name of the auto-scaling group by node id."
  value       = { for node_id, group in aws_autoscaling_group.broker : node_id => group.name }
}

output "fleet_group" {
  description = "Name of the auto-scaling group of the brokers without disks; null without fleet."
  value       = one([for group in aws_autoscaling_group.fleet : group.name])
}

output "volume_ids" {
  description = "Data volume by node id; empty with instance store."
  value       = { for node_id, volume in aws_ebs_volume.data : node_id => volume.id }
}

output "role_arns" {
  description = "Role by node id, or of `fleet`."
  value       = { for node_id, role in aws_iam_role.broker : node_id => role.arn }
}

output "store_policy" {
  description = "The brokers' permissions in the bucket, as JSON; `firn iam policy --role broker` prints the same."
  value       = jsonencode(local.store_policy)
}

output "bootstrap" {
  description = "The document that the first boot of each node id, or of `fleet`, reads from its launch template, as JSON."
  value = merge(
    { for node_id, bootstrap in local.bootstrap : node_id => jsonencode(bootstrap) },
    { for key, bootstrap in local.fleet_bootstrap : key => jsonencode(bootstrap) },
  )
}

output "load_balancer_arn_suffix" {
  description = "ARN suffix of the load balancer, for its metrics."
  value       = aws_lb.kafka.arn_suffix
}

output "target_group_arn_suffixes" {
  description = "ARN suffixes of the target groups by node id, or of `fleet`, for their metrics."
  value = merge(
    { for node_id, group in aws_lb_target_group.broker : node_id => group.arn_suffix },
    { for key, group in aws_lb_target_group.fleet : key => group.arn_suffix },
  )
}
