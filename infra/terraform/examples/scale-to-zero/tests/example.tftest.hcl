# A broker for working hours says what it can lose.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
}

run "it_says_what_it_can_lose" {
  command = plan

  assert {
    condition     = strcontains(output.what_can_be_lost, "spot (120 s to drain)") && strcontains(output.what_can_be_lost, "scale to zero by schedule")
    error_message = "The output says ${output.what_can_be_lost}"
  }
}
