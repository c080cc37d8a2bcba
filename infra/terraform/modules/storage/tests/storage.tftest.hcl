# What keeps the bucket: encryption, no public access, and no rule that touches an object.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_s3_bucket_lifecycle_configuration" {} # its days are known while planning: 0 where the rule has none

  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555" }
  }
}

variables {
  name             = "prod"
  bucket_name      = "records"
  create_bucket    = true
  prefix           = ""
  versioning_days  = 0
  kms_key_arn      = null
  writer_role_arns = ["arn:aws:iam::123456789012:role/prod-broker-0"]
  account_id       = "123456789012"
  partition        = "aws"
  region           = "eu-central-1"
}

run "nobody_reads_the_bucket_from_outside" {
  command = plan

  assert {
    condition     = aws_s3_bucket_public_access_block.this["cluster"].block_public_acls && aws_s3_bucket_public_access_block.this["cluster"].block_public_policy && aws_s3_bucket_public_access_block.this["cluster"].ignore_public_acls && aws_s3_bucket_public_access_block.this["cluster"].restrict_public_buckets
    error_message = "The bucket could be made public."
  }

  assert {
    condition     = aws_s3_bucket_ownership_controls.this["cluster"].rule[0].object_ownership == "BucketOwnerEnforced"
    error_message = "Objects could have access lists of their own."
  }
}

run "objects_are_encrypted_by_the_clusters_key" {
  command = plan

  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this["cluster"].rule).apply_server_side_encryption_by_default).kms_master_key_id == "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
    error_message = "The bucket is encrypted by another key."
  }

  assert {
    condition     = aws_kms_key.this[0].enable_key_rotation
    error_message = "The key does not rotate."
  }
}

run "the_lifecycle_ends_uploads_and_nothing_else" {
  command = plan

  assert {
    condition     = [for rule in aws_s3_bucket_lifecycle_configuration.this["cluster"].rule : rule.id] == ["abort-uploads"]
    error_message = "There are other lifecycle rules than that for uploads."
  }

  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this["cluster"].rule : length(rule.transition) == 0 && length(rule.expiration) == 0 && length(rule.noncurrent_version_expiration) == 0])
    error_message = "A lifecycle rule moves or expires objects, from under the manifests."
  }

  assert {
    condition     = length(aws_s3_bucket_versioning.this) == 0
    error_message = "Versioning is on though nobody asked for it."
  }
}

run "versioning_expires_old_versions_and_no_others" {
  command = plan

  variables {
    versioning_days = 30
  }

  assert {
    condition     = toset([for rule in aws_s3_bucket_lifecycle_configuration.this["cluster"].rule : rule.id]) == toset(["abort-uploads", "old-versions"])
    error_message = "The rules are not those for uploads and old versions."
  }

  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this["cluster"].rule : alltrue([for expiration in rule.expiration : expiration.expired_object_delete_marker && expiration.days == 0])])
    error_message = "A rule expires objects that are in use."
  }
}

run "an_existing_bucket_is_left_alone" {
  command = plan

  variables {
    create_bucket = false
  }

  assert {
    condition     = length(aws_s3_bucket.this) == 0 && length(aws_s3_bucket_policy.this) == 0 && length(aws_s3_bucket_lifecycle_configuration.this) == 0
    error_message = "Something of somebody else's bucket would be changed."
  }

  assert {
    condition     = output.store_url == "s3://records?region=eu-central-1"
    error_message = "The store is ${output.store_url}"
  }
}

run "a_bucket_of_s3_express_for_write_ahead_logs_gives_sessions_to_brokers_alone" {
  command = plan

  variables {
    wal_store = { express = true, zone_id = "euc1-az1", bucket = "prod-wal--euc1-az1--x-s3" }
  }

  assert {
    condition     = one(aws_s3_directory_bucket.wal[0].location).name == "euc1-az1" && output.wal_store.arn == "arn:aws:s3express:eu-central-1:123456789012:bucket/prod-wal--euc1-az1--x-s3" && output.wal_store_url == "s3://prod-wal--euc1-az1--x-s3?region=eu-central-1"
    error_message = "Write-ahead logs are at ${output.wal_store_url}"
  }

  assert {
    condition     = [for statement in jsondecode(aws_s3_bucket_policy.wal_express[0].policy).Statement : "${statement.Effect} ${statement.Sid} ${statement.Action}"] == ["Deny TlsOnly s3express:CreateSession", "Deny BrokersOnly s3express:CreateSession"]
    error_message = "The bucket's policy is ${aws_s3_bucket_policy.wal_express[0].policy}"
  }

  assert {
    condition     = toset(keys(aws_s3_bucket.this)) == toset(["cluster"]) && toset(keys(aws_s3_bucket_lifecycle_configuration.this)) == toset(["cluster"])
    error_message = "There is a second bucket of S3 besides."
  }
}

run "a_second_bucket_for_write_ahead_logs_is_kept_as_the_first_one" {
  command = plan

  variables {
    prefix    = "firn"
    wal_store = { express = false, zone_id = null, bucket = "prod-wal" }
  }

  assert {
    condition     = [for statement in jsondecode(aws_s3_bucket_policy.this["wal"].policy).Statement : statement.Sid] == ["TlsOnly", "WriteOnce", "BrokersWrite"]
    error_message = "The second bucket's policy is ${aws_s3_bucket_policy.this["wal"].policy}"
  }

  assert {
    condition     = contains(jsondecode(aws_s3_bucket_policy.this["wal"].policy).Statement[1].Resource, "arn:aws:s3:::prod-wal/wal/*")
    error_message = "Write-ahead logs may be overwritten: ${aws_s3_bucket_policy.this["wal"].policy}"
  }

  assert {
    condition     = aws_s3_bucket_public_access_block.this["wal"].restrict_public_buckets && one(one(aws_s3_bucket_server_side_encryption_configuration.this["wal"].rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms" && length(aws_s3_directory_bucket.wal) == 0
    error_message = "The second bucket could be made public, or is not encrypted by the cluster's key."
  }

  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this["wal"].rule : length(rule.expiration) == 0 && length(rule.transition) == 0])
    error_message = "A rule deletes or moves write-ahead logs."
  }
}
