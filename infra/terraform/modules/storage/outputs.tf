output "bucket" {
  description = "Name of the bucket; known when the bucket exists."
  value       = var.create_bucket ? aws_s3_bucket.this["cluster"].bucket : var.bucket_name
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = local.arn
}

output "bucket_policy" {
  description = "The policy of the bucket. For an existing bucket: the statements that its policy should contain."
  value       = local.bucket_policies["cluster"]
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts."
  value       = local.kms_key
}

output "store_url" {
  description = "The store, as `firn serve --store` takes it."
  value       = "s3://${var.create_bucket ? aws_s3_bucket.this["cluster"].bucket : var.bucket_name}${var.prefix == "" ? "" : "/${var.prefix}"}?region=${var.region}"
}

output "wal_store" {
  description = "The bucket of write-ahead logs: its ARN, and whether it is of S3 Express One Zone; null without one."
  value       = var.wal_store == null ? null : { arn = local.wal_arn, express = var.wal_store.express }
}

output "wal_store_url" {
  description = "The store of write-ahead logs, as `firn serve --wal-store` takes it; null without one."
  value       = one([for store in var.wal_store[*] : "s3://${coalesce(one(aws_s3_directory_bucket.wal[*].bucket), try(aws_s3_bucket.this["wal"].bucket, null))}?region=${var.region}"])
}
