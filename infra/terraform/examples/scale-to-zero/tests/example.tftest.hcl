# Brokers for working hours lose nothing.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
}

run "it_loses_nothing" {
  command = plan

  assert {
    condition     = output.what_can_be_lost == ""
    error_message = "Something can be lost: ${output.what_can_be_lost}"
  }

  assert {
    condition     = strcontains(output.fleet_commands.back, "--min-size 1 --desired-capacity 1")
    error_message = "The commands are ${jsonencode(output.fleet_commands)}"
  }
}
