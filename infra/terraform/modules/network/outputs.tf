output "vpc_id" {
  description = "The VPC."
  value       = local.vpc_id
}

output "subnet_ids" {
  description = "Private subnets by zone."
  value       = local.subnet_ids
}

output "security_group_ids" {
  description = "Security groups by role."
  value = {
    kafka_lb = aws_security_group.kafka_lb.id
    broker   = aws_security_group.broker.id
    http_lb  = one(aws_security_group.http_lb[*].id)
    http     = one(aws_security_group.http[*].id)
    spark    = one(aws_security_group.spark[*].id)
    redis    = one(aws_security_group.redis[*].id)
  }
}

output "interface_endpoint_count" {
  description = "Interface endpoints, each billed by the hour in each zone."
  value       = length(local.endpoints)
}
