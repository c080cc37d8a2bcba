output "bucket" {
  description = "Name of the bucket, known once it is there."
  value       = var.create_bucket ? aws_s3_bucket.this[0].bucket : var.bucket_name
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = local.arn
}

output "bucket_policy" {
  description = "The policy of the bucket; for an existing bucket the one that it should have."
  value       = local.bucket_policy
}

output "kms_key_arn" {
  description = "Key that encrypts."
  value       = local.kms_key
}

output "store_url" {
  description = "The store, as `firn serve --store` takes it."
  value       = "s3://${var.create_bucket ? aws_s3_bucket.this[0].bucket : var.bucket_name}${var.prefix == "" ? "" : "/${var.prefix}"}?region=${var.region}"
}
