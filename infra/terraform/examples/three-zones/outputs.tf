output "bootstrap_servers" {
  description = "Value of a client's bootstrap.servers."
  value       = module.firn.bootstrap_servers
}

output "client_properties" {
  description = "Client settings to paste into a file."
  value       = module.firn.client_properties
}

output "try_it" {
  description = "Commands to try the broker on a machine in client_cidrs."
  value       = module.firn.try_it
}

output "drain_commands" {
  description = "A command for each node id that drains the broker."
  value       = module.firn.drain_commands
}

output "replace_commands" {
  description = "A command for each node id that replaces its machine. Run one after the other."
  value       = module.firn.replace_commands
}

output "what_can_be_lost" {
  description = "The losses that you accepted, in words; empty if there are none."
  value       = module.firn.what_can_be_lost
}

output "http_url" {
  description = "REST, metrics and pages."
  value       = module.firn.http_url
}

output "spark" {
  description = "Application, role, repository, bucket of scripts and the command that submits a job; null without lake_bucket."
  value       = module.firn.spark
}

output "bill" {
  description = "How many there are of what `firn cost --with NAME=COUNT` takes."
  value       = module.firn.bill
}
