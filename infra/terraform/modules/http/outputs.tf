output "url" {
  description = "Where HTTP is served."
  value       = "https://${var.host}"
}

output "load_balancer_dns_name" {
  description = "Name of the load balancer; host must be an alias of it."
  value       = aws_lb.http.dns_name
}

output "autoscaling_groups" {
  description = "Name of the auto-scaling group by zone."
  value       = { for zone, group in aws_autoscaling_group.http : zone => group.name }
}

output "role_arn" {
  description = "Role of the machines."
  value       = aws_iam_role.http.arn
}

output "bootstrap" {
  description = "The document that the first boot reads from its launch template, by zone, as JSON."
  value       = { for zone, bootstrap in local.bootstrap : zone => jsonencode(bootstrap) }
}
