# A bucket for Terraform's state, made once, before anything else and with a state of its own on your disk (keep that file: it is small, and holds no
# secret). Locks are objects beside the state (use_lockfile), so there is no table to make.

variable "region" {
  description = "Region of the bucket."
  type        = string
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket is not the name of a bucket. Write 3 to 63 of a-z, 0-9 and '-'."
  }
}

resource "aws_s3_bucket" "state" {
  # checkov:skip=CKV_AWS_144: the state of one region's cluster is of no use without that region
  # checkov:skip=CKV_AWS_18: CloudTrail tells who changed the state; a bucket of access logs is a choice of the account
  # checkov:skip=CKV2_AWS_62: nothing waits for changes of the state, people apply by hand
  bucket = var.bucket

  lifecycle {
    prevent_destroy = true
  }
}

# A state that was overwritten by mistake is the version before.
resource "aws_s3_bucket_versioning" "state" {
  bucket = aws_s3_bucket.state.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "state" {
  bucket = aws_s3_bucket.state.id

  rule {
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm = "aws:kms"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "state" {
  bucket                  = aws_s3_bucket.state.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_lifecycle_configuration" "state" {
  bucket = aws_s3_bucket.state.id

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days           = 365
      newer_noncurrent_versions = 20
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  depends_on = [aws_s3_bucket_versioning.state]
}

resource "aws_s3_bucket_policy" "state" {
  bucket = aws_s3_bucket.state.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.state.arn, "${aws_s3_bucket.state.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })

  depends_on = [aws_s3_bucket_public_access_block.state]
}

output "backend" {
  description = "Backend block to paste into the terraform block of a configuration."
  value       = <<-EOT
    backend "s3" {
      bucket       = "${var.bucket}"
      key          = "firn/NAME-OF-THE-CLUSTER.tfstate"
      region       = "${var.region}"
      encrypt      = true
      use_lockfile = true
    }
  EOT
}
