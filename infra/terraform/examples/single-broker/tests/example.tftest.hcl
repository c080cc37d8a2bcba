# One broker that loses nothing when its machine does.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
}

run "it_loses_nothing_and_clients_know_where_it_is" {
  command = plan

  assert {
    condition     = output.what_can_be_lost == "" && endswith(output.bootstrap_servers, ":9092")
    error_message = "Something can be lost, or the address is wrong: ${output.what_can_be_lost} ${output.bootstrap_servers}"
  }

  assert {
    condition     = strcontains(output.client_properties, "bootstrap.servers=${output.bootstrap_servers}\n") && strcontains(output.try_it, output.bootstrap_servers)
    error_message = "What is to be pasted names another address."
  }

  assert {
    condition     = strcontains(output.drain_commands["0"], "firn drain") && strcontains(output.drain_commands["0"], "Values=firn-broker-0")
    error_message = "The command drains another machine: ${output.drain_commands["0"]}"
  }
}
