# Brokers without disks in three zones.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
}

run "nothing_that_is_acknowledged_can_be_lost" {
  command = plan

  assert {
    condition     = output.what_can_be_lost == ""
    error_message = "Something can be lost: ${output.what_can_be_lost}"
  }

  assert {
    condition     = output.bootstrap_servers == "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com:9092"
    error_message = "Clients are told ${output.bootstrap_servers}"
  }
}

run "all_brokers_end_and_come_back_by_one_command_each" {
  command = plan

  assert {
    condition     = strcontains(output.fleet_commands.to_zero, "--min-size 0 --desired-capacity 0") && strcontains(output.fleet_commands.back, "--min-size 3 --desired-capacity 3")
    error_message = "The commands are ${jsonencode(output.fleet_commands)}"
  }
}
