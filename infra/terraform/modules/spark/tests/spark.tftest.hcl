# Jobs read, and reach brokers.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/prod-spark" }
  }

  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/spark" }
  }

  mock_resource "aws_emrserverless_application" {
    defaults = { id = "00f0123456789abc" }
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
  script_bucket      = "scripts"
  kms_key_arns       = []
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

# EMR Serverless reads the entry point with the role of the job.
run "a_job_may_read_its_entry_point" {
  command = plan

  assert {
    condition = anytrue([
      for statement in jsondecode(aws_iam_role_policy.job.policy).Statement :
      statement.Effect == "Allow" && contains(flatten([statement.Action]), "s3:GetObject") && statement.Resource == "arn:aws:s3:::${regex("\"entryPoint\":\"s3://([^/]+)/job.py\"", output.submit_command)[0]}/*"
    ])
    error_message = "The role of jobs may not read the script of the command: ${output.submit_command} ${aws_iam_role_policy.job.policy}"
  }
}

run "python_is_that_of_the_image_only_if_there_is_one" {
  command = plan

  variables {
    image_uri = null
  }

  assert {
    condition     = !strcontains(output.submit_command, "PYSPARK") && !strcontains(output.submit_command, "sparkSubmitParameters")
    error_message = "A job in the release's image asks for a Python that is not in it: ${output.submit_command}"
  }
}

run "python_of_an_image_of_ours_is_asked_for" {
  command = plan

  assert {
    condition     = strcontains(output.submit_command, "spark.executorEnv.PYSPARK_PYTHON=/opt/firn/bin/python")
    error_message = "A job would run without Firn: ${output.submit_command}"
  }
}

run "jobs_without_a_target_write_nothing" {
  command = plan

  assert {
    condition     = !strcontains(aws_iam_role_policy.job.policy, "s3:Put") && !strcontains(aws_iam_role_policy.job.policy, "Delete") && !strcontains(aws_iam_role_policy.job.policy, "kms:") && !strcontains(aws_iam_role_policy.store.policy, "Put") && !strcontains(aws_iam_role_policy.store.policy, "Delete")
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
    kms_key_arns  = ["arn:aws:kms:eu-central-1:123456789012:key/99999999-2222-3333-4444-555555555555"]
  }

  assert {
    condition     = alltrue([for statement in jsondecode(aws_iam_role_policy.job.policy).Statement : contains(["TargetObjects", "TargetList"], statement.Sid) == strcontains(jsonencode(statement), "arn:aws:s3:::lake")]) && strcontains(aws_iam_role_policy.job.policy, "s3:PutObject")
    error_message = "Jobs cannot write archives, or may write elsewhere: ${aws_iam_role_policy.job.policy}"
  }

  assert {
    condition     = [for statement in jsondecode(aws_iam_role_policy.job.policy).Statement : statement.Action if statement.Sid == "TargetKeys" && contains(flatten([statement.Resource]), "arn:aws:kms:eu-central-1:123456789012:key/99999999-2222-3333-4444-555555555555")] == [["kms:Decrypt", "kms:GenerateDataKey"]]
    error_message = "Jobs may not encrypt an archive by the key of its bucket: ${aws_iam_role_policy.job.policy}"
  }
}

run "scripts_beside_archives_need_no_right_of_their_own" {
  command = plan

  variables {
    target_bucket = "lake"
    script_bucket = "lake"
  }

  assert {
    condition     = !strcontains(aws_iam_role_policy.job.policy, "Scripts") && strcontains(output.submit_command, "s3://lake/job.py")
    error_message = "Jobs have a right twice: ${aws_iam_role_policy.job.policy}"
  }
}
