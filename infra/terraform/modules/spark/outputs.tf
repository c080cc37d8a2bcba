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
  description = "Submits a job, job.py in the bucket of scripts. Put its name and its arguments in."
  value       = <<-EOT
    aws emr-serverless start-job-run --region ${var.region} \
      --application-id ${aws_emrserverless_application.spark.id} \
      --execution-role-arn ${aws_iam_role.job.arn} \
      --name history \
      --job-driver '${jsonencode({ sparkSubmit = { for name, value in local.job_driver.sparkSubmit : name => value if value != "" } })}' \
      --configuration-overrides '${jsonencode({ monitoringConfiguration = { cloudWatchLoggingConfiguration = { enabled = true, logGroupName = aws_cloudwatch_log_group.jobs.name } } })}'
  EOT
}

output "script_bucket" {
  description = "Bucket that the scripts of jobs are read from."
  value       = var.script_bucket
}
