# Earlier versions of this module had one block of resources for each bucket. Without these lines Terraform would plan to destroy both.

moved {
  from = aws_s3_bucket.this[0]
  to   = aws_s3_bucket.this["cluster"]
}

moved {
  from = aws_s3_bucket_public_access_block.this[0]
  to   = aws_s3_bucket_public_access_block.this["cluster"]
}

moved {
  from = aws_s3_bucket_ownership_controls.this[0]
  to   = aws_s3_bucket_ownership_controls.this["cluster"]
}

moved {
  from = aws_s3_bucket_server_side_encryption_configuration.this[0]
  to   = aws_s3_bucket_server_side_encryption_configuration.this["cluster"]
}

moved {
  from = aws_s3_bucket_versioning.this[0]
  to   = aws_s3_bucket_versioning.this["cluster"]
}

moved {
  from = aws_s3_bucket_lifecycle_configuration.this[0]
  to   = aws_s3_bucket_lifecycle_configuration.this["cluster"]
}

moved {
  from = aws_s3_bucket_policy.this[0]
  to   = aws_s3_bucket_policy.this["cluster"]
}

moved {
  from = aws_s3_bucket.wal[0]
  to   = aws_s3_bucket.this["wal"]
}

moved {
  from = aws_s3_bucket_public_access_block.wal[0]
  to   = aws_s3_bucket_public_access_block.this["wal"]
}

moved {
  from = aws_s3_bucket_ownership_controls.wal[0]
  to   = aws_s3_bucket_ownership_controls.this["wal"]
}

moved {
  from = aws_s3_bucket_server_side_encryption_configuration.wal[0]
  to   = aws_s3_bucket_server_side_encryption_configuration.this["wal"]
}

moved {
  from = aws_s3_bucket_lifecycle_configuration.wal[0]
  to   = aws_s3_bucket_lifecycle_configuration.this["wal"]
}

moved {
  from = aws_s3_bucket_policy.wal[0]
  to   = aws_s3_bucket_policy.this["wal"]
}
