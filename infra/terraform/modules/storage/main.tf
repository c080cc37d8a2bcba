# The bucket that holds the cluster, a second one for write-ahead logs if it is asked for, and the key that encrypts them.
#
# Versioning is off by default. Firn writes every object once, by a conditional write, and deletes expired objects. Only heartbeats are
# overwritten (cluster/heartbeat/, a few hundred bytes every 10 s for each broker). So versioning protects only against a wrong DeleteObject.
# It costs `versioning_days` more of storage for expired objects, and 8,640 versions a day for each broker.
#
# Object Lock is not offered. With a lock, each deletion makes only a delete marker. Retention would free nothing before the lock ends, and a
# topic that must be deleted could not be deleted. To keep records for auditors, archive them with `firn job archive` to a bucket with a lock.
#
# Lifecycle rules delete only parts of abandoned uploads, and old versions. A rule that moves or expires objects would remove segments that
# manifests name, and an object in an archive class is not readable.

locals {
  arn       = "arn:${var.partition}:s3:::${var.bucket_name}"
  root      = var.prefix == "" ? "" : "${var.prefix}/"
  kms_key   = var.kms_key_arn != null ? var.kms_key_arn : aws_kms_key.this[0].arn
  prefixes  = ["cluster/", "topics/", "data/", "wal/"] # docs/formats.md, "Object layout"
  immutable = ["cluster/name", "cluster/log/", "cluster/snapshot/", "topics/", "data/", "wal/"]

  wal_express  = try(var.wal_store.express, false)
  wal_standard = var.wal_store != null && !local.wal_express
  wal_arn = one([for store in var.wal_store[*] : (store.express
    ? "arn:${var.partition}:s3express:${var.region}:${var.account_id}:bucket/${store.bucket}"
    : "arn:${var.partition}:s3:::${store.bucket}"
  )])

  # Buckets of S3 have the same rules. Write-ahead logs have the same keys in both, and lie below the second one's root.
  policies = merge({ cluster = { arn = local.arn, root = local.root } }, local.wal_standard ? { wal = { arn = local.wal_arn, root = "" } } : {})
  buckets = merge(
    var.create_bucket ? { cluster = { name = var.bucket_name, versioning_days = var.versioning_days } } : {},
    local.wal_standard ? { wal = { name = var.wal_store.bucket, versioning_days = 0 } } : {},
  )
  bucket_policies = { for key, of in local.policies : key => jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [of.arn, "${of.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        # Entries and segments are written only if their key does not exist (If-None-Match: *), so two brokers cannot write the same entry. The
        # condition exempts the requests of a multipart upload that take no such header; its completion is not exempt.
        Sid       = "WriteOnce"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = [for prefix in local.immutable : "${of.arn}/${of.root}${prefix}*"]
        Condition = {
          Null = { "s3:if-none-match" = "true" }
          Bool = { "s3:ObjectCreationOperation" = "true" }
        }
      },
      {
        Sid       = "BrokersWrite"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"]
        Resource  = [for prefix in local.prefixes : "${of.arn}/${of.root}${prefix}*"]
        Condition = { ArnNotEquals = { "aws:PrincipalArn" = sort(var.writer_role_arns) } }
      },
    ]
  }) }
}

resource "aws_kms_key" "this" {
  count = var.kms_key_arn == null ? 1 : 0

  description             = "Firn cluster ${var.name}: bucket, volumes, logs, secrets"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "AccountDecidesByIam"
        Effect    = "Allow"
        Principal = { AWS = "arn:${var.partition}:iam::${var.account_id}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Sid       = "CloudWatchLogs"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.amazonaws.com" }
        Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo", "kms:GenerateDataKey", "kms:DescribeKey"]
        Resource  = "*"
        Condition = { ArnLike = { "kms:EncryptionContext:aws:logs:arn" = "arn:${var.partition}:logs:${var.region}:${var.account_id}:log-group:/firn/*" } }
      },
    ]
  })

  # Without this key nobody can decrypt the bucket.
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_kms_alias" "this" {
  count = var.kms_key_arn == null ? 1 : 0

  name          = "alias/firn/${var.name}"
  target_key_id = aws_kms_key.this[0].key_id
}

# Versions are of the cluster's bucket alone: brokers delete write-ahead logs all the time, and versions would keep every record of them.
resource "aws_s3_bucket" "this" {
  # checkov:skip=CKV_AWS_144: conditional writes hold in one bucket only, so a replica that lags behind is nothing to go on with
  # checkov:skip=CKV_AWS_18: a log of every request is as large as the manifests; CloudTrail data events are a choice of the account
  # checkov:skip=CKV2_AWS_62: nothing waits for objects, brokers know what they wrote
  for_each = local.buckets

  bucket = each.value.name

  # All history of all topics, and records that are not tiered yet. `terraform destroy` stops here; infra/README.md says how to destroy it.
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  for_each = aws_s3_bucket.this

  bucket                  = each.value.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  for_each = aws_s3_bucket.this

  bucket = each.value.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  for_each = aws_s3_bucket.this

  bucket = each.value.id

  rule {
    bucket_key_enabled = true # one request to KMS for many objects

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = local.kms_key
    }
  }
}

resource "aws_s3_bucket_versioning" "this" {
  for_each = { for key, bucket in local.buckets : key => bucket if bucket.versioning_days > 0 }

  bucket = aws_s3_bucket.this[each.key].id

  versioning_configuration {
    status = "Enabled"
  }
}

# Brokers delete expired objects and write-ahead logs themselves. A rule that did could delete records that are not tiered yet.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  # checkov:skip=CKV_AWS_300: the rule abort-uploads has the period; checkov reads the rule for old versions, which needs none
  for_each = local.buckets

  bucket = aws_s3_bucket.this[each.key].id

  rule {
    id     = "abort-uploads"
    status = "Enabled"

    filter {}

    # Brokers abort abandoned uploads every six hours. This rule is for a cluster that no longer exists. No upload of a segment takes a week.
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  dynamic "rule" {
    for_each = each.value.versioning_days > 0 ? [each.value.versioning_days] : []

    content {
      id     = "old-versions"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = rule.value
      }

      expiration {
        expired_object_delete_marker = true
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_policy" "this" {
  for_each = aws_s3_bucket.this

  bucket = each.value.id
  policy = local.bucket_policies[each.key]

  depends_on = [aws_s3_bucket_public_access_block.this]
}

# --- a directory bucket for write-ahead logs ------------------------------------------------------------------------------------------

# S3 Express One Zone: S3's own keys encrypt it, it has neither versions nor objects that a rule could move, and who may make a session may do
# everything in it.
resource "aws_s3_directory_bucket" "wal" {
  count = local.wal_express ? 1 : 0

  bucket          = var.wal_store.bucket
  data_redundancy = "SingleAvailabilityZone"

  location {
    name = var.wal_store.zone_id
    type = "AvailabilityZone"
  }

  # Records that are not tiered yet.
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_policy" "wal_express" {
  count = local.wal_express ? 1 : 0

  bucket = aws_s3_directory_bucket.wal[0].bucket
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3express:CreateSession"
        Resource  = local.wal_arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "BrokersOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3express:CreateSession"
        Resource  = local.wal_arn
        Condition = { ArnNotEquals = { "aws:PrincipalArn" = sort(var.writer_role_arns) } }
      },
    ]
  })
}
