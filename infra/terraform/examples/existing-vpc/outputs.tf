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

output "what_can_be_lost" {
  description = "The losses that you accepted, in words; empty if there are none."
  value       = module.firn.what_can_be_lost
}

output "bucket_policy" {
  description = "The statements that the bucket's policy should contain. Give them to the people who manage the bucket."
  value       = module.firn.bucket_policy
}

output "bill" {
  description = "How many there are of what `firn cost --with NAME=COUNT` takes."
  value       = module.firn.bill
}
