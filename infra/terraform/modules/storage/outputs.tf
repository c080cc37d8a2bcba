output "bucket" {
  description = "Name of the bucket; known when the bucket exists."
  value       = var.create_bucket ? aws_s3_bucket.this[0].bucket : var.bucket_name
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = local.arn
}

output "bucket_policy" {
  description = "The policy of the bucket. For an existing bucket: the statements that its policy should contain."
  value       = local.bucket_policy
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts."
  value       = local.kms_key
}

output "store_url" {
  description = "The store, as `firn serve --store` takes it."
  value       = "s3://${var.create_bucket ? aws_s3_bucket.this[0].bucket : var.bucket_name}${var.prefix == "" ? "" : "/${var.prefix}"}?region=${var.region}"
}
