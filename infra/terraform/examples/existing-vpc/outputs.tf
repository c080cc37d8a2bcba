output "bootstrap_servers" {
  description = "For a client's bootstrap.servers."
  value       = module.firn.bootstrap_servers
}

output "client_properties" {
  description = "Settings of clients, to paste."
  value       = module.firn.client_properties
}

output "try_it" {
  description = "Commands for a machine that client_cidrs lets in."
  value       = module.firn.try_it
}

output "drain_commands" {
  description = "Drains a broker, by node id."
  value       = module.firn.drain_commands
}

output "what_can_be_lost" {
  description = "What was accepted to be lost; empty if nothing."
  value       = module.firn.what_can_be_lost
}

output "bucket_policy" {
  description = "What the policy of the bucket should have. Hand it to who manages the bucket."
  value       = module.firn.bucket_policy
}

output "bill" {
  description = "How many there are of what `firn cost --with NAME=COUNT` takes."
  value       = module.firn.bill
}
