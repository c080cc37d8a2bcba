output "bootstrap_servers" {
  description = "Value of a client's bootstrap.servers."
  value       = module.firn.bootstrap_servers
}

output "client_properties" {
  description = "Client settings to paste into a file."
  value       = module.firn.client_properties
}

output "try_it" {
  description = "Commands to try the brokers on a machine in client_cidrs."
  value       = module.firn.try_it
}

output "fleet_commands" {
  description = "Commands that end all brokers, and that start them again."
  value       = module.firn.fleet_commands
}

output "what_can_be_lost" {
  description = "The losses that you accepted, in words; empty if there are none."
  value       = module.firn.what_can_be_lost
}

output "bill" {
  description = "How many there are of what `firn cost --with NAME=COUNT` takes."
  value       = module.firn.bill
}
