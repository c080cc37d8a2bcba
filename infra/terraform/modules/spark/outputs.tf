output "application_id" {
  description = "The EMR Serverless application."
  value       = aws_emrserverless_application.spark.id
}

output "role_arn" {
  description = "Role of jobs."
  value       = aws_iam_role.job.arn
}

output "repository_url" {
  description = "Repository for the workers' image. You push the image there."
  value       = aws_ecr_repository.image.repository_url
}

output "store_policy" {
  description = "The jobs' permissions in the cluster's bucket, as JSON; `firn iam policy --role spark` prints the same."
  value       = jsonencode(local.store_policy)
}

output "submit_command" {
  description = "Command that submits a job. Insert your script and its arguments."
  value       = <<-EOT
    aws emr-serverless start-job-run --region ${var.region} \
      --application-id ${aws_emrserverless_application.spark.id} \
      --execution-role-arn ${aws_iam_role.job.arn} \
      --name history \
      --job-driver '{"sparkSubmit": {"entryPoint": "s3://YOUR-BUCKET/job.py", "entryPointArguments": ["${var.store_url}", "${var.bootstrap_servers}"], "sparkSubmitParameters": "--conf spark.emr-serverless.driverEnv.PYSPARK_PYTHON=/opt/firn/bin/python --conf spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON=/opt/firn/bin/python --conf spark.executorEnv.PYSPARK_PYTHON=/opt/firn/bin/python"}}' \
      --configuration-overrides '{"monitoringConfiguration": {"cloudWatchLoggingConfiguration": {"enabled": true, "logGroupName": "${aws_cloudwatch_log_group.jobs.name}"}}}'
  EOT
}
