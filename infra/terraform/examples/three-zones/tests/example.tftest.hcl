# Three brokers with volumes in three zones, with HTTP and Spark.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
  lake_bucket  = "lake-of-ours"
  http = {
    certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555"
    host            = "firn.example.com"
  }
}

run "kafka_http_and_spark_are_there" {
  command = plan

  assert {
    condition     = output.http_url == "https://firn.example.com" && strcontains(output.spark.submit_command, "start-job-run")
    error_message = "HTTP or Spark is missing."
  }

  assert {
    condition     = length(output.replace_commands) == 3 && length(split(",", output.bootstrap_servers)) == 3
    error_message = "There are not three brokers."
  }

  assert {
    condition     = output.what_can_be_lost == ""
    error_message = "Something can be lost: ${output.what_can_be_lost}"
  }
}
