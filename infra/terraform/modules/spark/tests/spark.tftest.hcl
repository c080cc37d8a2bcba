# Jobs read, and reach brokers.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/prod-spark" }
  }

  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/spark" }
  }
}

variables {
  name               = "prod"
  region             = "eu-central-1"
  partition          = "aws"
  account_id         = "123456789012"
  release_label      = "emr-spark-8.0.0"
  image_uri          = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/firn/prod/spark:1"
  architecture       = "arm64"
  vcpus_max          = 16
  topic_ids          = []
  bucket_arn         = "arn:aws:s3:::records"
  bucket_prefix      = "firn"
  store_url          = "s3://records/firn?region=eu-central-1"
  target_bucket      = null
  kms_key_arn        = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  subnet_ids         = ["subnet-0aaaaaaaaaaaaaaaa"]
  security_group_id  = "sg-0aaaaaaaaaaaaaaaa"
  log_retention_days = 30
  bootstrap_servers  = "kafka.example.com:9092"
}

run "jobs_run_where_brokers_are_in_an_image_of_ours" {
  command = plan

  assert {
    condition     = aws_emrserverless_application.spark.network_configuration[0].subnet_ids == toset(["subnet-0aaaaaaaaaaaaaaaa"]) && aws_emrserverless_application.spark.network_configuration[0].security_group_ids == toset(["sg-0aaaaaaaaaaaaaaaa"])
    error_message = "Jobs could not reach brokers."
  }

  assert {
    condition     = aws_emrserverless_application.spark.architecture == "ARM64" && aws_emrserverless_application.spark.image_configuration[0].image_uri == var.image_uri
    error_message = "Jobs run in another image, or for another architecture."
  }
}

run "jobs_without_a_target_write_nothing" {
  command = plan

  assert {
    condition     = !strcontains(aws_iam_role_policy.job.policy, "s3:") && !strcontains(aws_iam_role_policy.store.policy, "Put") && !strcontains(aws_iam_role_policy.store.policy, "Delete")
    error_message = "A job without a target may write."
  }

  assert {
    condition     = jsondecode(aws_iam_role_policy.store.policy).Statement[0].Resource == ["arn:aws:s3:::records/firn/cluster/log/*", "arn:aws:s3:::records/firn/cluster/snapshot/*", "arn:aws:s3:::records/firn/topics/*", "arn:aws:s3:::records/firn/data/*"]
    error_message = "Jobs read other keys than the history's: ${aws_iam_role_policy.store.policy}"
  }
}

run "a_target_is_the_only_place_that_is_written" {
  command = plan

  variables {
    target_bucket = "lake"
  }

  assert {
    condition     = alltrue([for statement in jsondecode(aws_iam_role_policy.job.policy).Statement : startswith(statement.Sid, "Target") == strcontains(jsonencode(statement), "arn:aws:s3:::lake")]) && strcontains(aws_iam_role_policy.job.policy, "s3:PutObject")
    error_message = "Jobs cannot write archives, or may write elsewhere: ${aws_iam_role_policy.job.policy}"
  }
}
