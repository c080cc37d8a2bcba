# The bucket of the state keeps old states, and no secret leaves it in the clear.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_s3_bucket" {
    defaults = { arn = "arn:aws:s3:::state-of-ours" }
  }
}

variables {
  region = "eu-central-1"
  bucket = "state-of-ours"
}

run "an_overwritten_state_is_a_version" {
  command = plan

  assert {
    condition     = aws_s3_bucket_versioning.state.versioning_configuration[0].status == "Enabled"
    error_message = "A state that was overwritten by mistake would be gone."
  }

  assert {
    condition     = strcontains(output.backend, "use_lockfile = true") && strcontains(output.backend, "encrypt      = true")
    error_message = "Two applies at once would not lock each other out."
  }
}

run "a_bucket_name_with_dots_is_refused" {
  command = plan

  variables {
    bucket = "state.example.com"
  }

  expect_failures = [var.bucket]
}
