# Spark jobs that read the history in the bucket, on EMR Serverless.
#
# Which release. Firn's data source is tested with Spark 4.2 and Python 3.11, and its package requires pyspark 4.2. No release of EMR has Spark
# 4.2 yet. emr-spark-8.0.0 has Spark 4.0.2, with Python 3.11, 3.12 and 3.13. Every emr-7 release has Spark 3.5, which has no Python data sources.
# So:
# - `firn job …` (archive, verify, audit, replay) runs without Spark, in the image of module `spark`'s repository or on any machine.
# - A Spark job needs your own image: FROM the release's base image, with a virtual environment of Python 3.11 that has firn-broker[spark]. The
#   release's own Spark 4.0.2 runs the job, and Firn is not tested with it. infra/README.md, "Spark", has the Dockerfile, and the first test.
#
# Network. A job that reads the bucket needs only S3. `tail` and writing need brokers. Their addresses are in the VPC, so jobs run in its subnets.

locals {
  root       = var.bucket_prefix == "" ? "" : "${var.bucket_prefix}/"
  everything = length(var.topic_ids) == 0

  # `firn iam policy --role spark [--topic …]` prints the same document.
  objects = concat(
    ["${local.root}cluster/log/*", "${local.root}cluster/snapshot/*"], # which topics there are
    local.everything ? ["${local.root}topics/*", "${local.root}data/*"] : flatten([
      for id in sort(var.topic_ids) : ["${local.root}topics/${id}/*", "${local.root}data/*/${id}/*"]
    ]),
  )
  store_policy = {
    Version   = "2012-10-17"
    Statement = concat(local.reading, local.everything ? [local.list_uploads] : [], [local.key])
  }
  reading = [
    {
      Sid      = "Objects"
      Effect   = "Allow"
      Action   = "s3:GetObject"
      Resource = [for key in local.objects : "${var.bucket_arn}/${key}"]
    },
    {
      # IfExists: a GET of a missing key returns 404 only to roles that may list, and such a GET has no prefix. Without IfExists it returns 403.
      Sid       = "List"
      Effect    = "Allow"
      Action    = "s3:ListBucket"
      Resource  = var.bucket_arn
      Condition = { StringLikeIfExists = { "s3:prefix" = concat(["${local.root}cluster/*"], local.everything ? ["${local.root}topics/*", "${local.root}data/*"] : flatten([for id in sort(var.topic_ids) : ["${local.root}topics/${id}/*", "${local.root}data/*/${id}/*"]])) } }
    },
  ]
  list_uploads = { # `firn job verify` looks for uploads that nobody completed, of the whole bucket
    Sid      = "ListUploads"
    Effect   = "Allow"
    Action   = "s3:ListBucketMultipartUploads"
    Resource = var.bucket_arn
  }
  key = {
    Sid      = "Key"
    Effect   = "Allow"
    Action   = "kms:Decrypt"
    Resource = var.kms_key_arn
  }

  # The environment of infra/README.md, "Spark", is in an image of one's own alone: that of the release runs Python without Firn.
  python = "/opt/firn/bin/python"
  job_driver = {
    sparkSubmit = {
      entryPoint          = "s3://${var.script_bucket}/job.py"
      entryPointArguments = [var.store_url, var.bootstrap_servers]
      sparkSubmitParameters = var.image_uri == null ? "" : join(" ", [
        "--conf spark.emr-serverless.driverEnv.PYSPARK_PYTHON=${local.python}",
        "--conf spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON=${local.python}",
        "--conf spark.executorEnv.PYSPARK_PYTHON=${local.python}",
      ])
    }
  }
}

resource "aws_cloudwatch_log_group" "jobs" {
  name              = "/firn/${var.name}/spark"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_ecr_repository" "image" {
  name                 = "firn/${var.name}/spark"
  image_tag_mutability = "IMMUTABLE"

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = var.kms_key_arn
  }
}

resource "aws_ecr_repository_policy" "image" {
  repository = aws_ecr_repository.image.name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "EmrServerlessPulls"
      Effect    = "Allow"
      Principal = { Service = "emr-serverless.amazonaws.com" }
      Action    = ["ecr:BatchGetImage", "ecr:DescribeImages", "ecr:GetDownloadUrlForLayer"]
      Condition = { ArnLike = { "aws:SourceArn" = "arn:${var.partition}:emr-serverless:${var.region}:${var.account_id}:/applications/*" } }
    }]
  })
}

resource "aws_emrserverless_application" "spark" {
  name          = "${var.name}-spark"
  type          = "spark"
  release_label = var.release_label
  architecture  = var.architecture == "arm64" ? "ARM64" : "X86_64"

  dynamic "image_configuration" {
    for_each = var.image_uri[*]

    content {
      image_uri = image_configuration.value
    }
  }

  network_configuration {
    subnet_ids         = var.subnet_ids
    security_group_ids = [var.security_group_id]
  }

  maximum_capacity {
    cpu    = "${var.vcpus_max} vCPU"
    memory = "${var.vcpus_max * 4} GB"
    disk   = "${var.vcpus_max * 20} GB"
  }

  # Between jobs nothing runs and nothing is billed.
  auto_start_configuration {
    enabled = true
  }

  auto_stop_configuration {
    enabled              = true
    idle_timeout_minutes = 15
  }

  depends_on = [aws_ecr_repository_policy.image]
}

resource "aws_iam_role" "job" {
  name = "${var.name}-spark"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "emr-serverless.amazonaws.com" }
      Condition = {
        StringEquals = { "aws:SourceAccount" = var.account_id }
        ArnLike      = { "aws:SourceArn" = "arn:${var.partition}:emr-serverless:${var.region}:${var.account_id}:/applications/*" }
      }
    }]
  })
}

resource "aws_iam_role_policy" "store" {
  name   = "store"
  role   = aws_iam_role.job.id
  policy = jsonencode(local.store_policy)
}

resource "aws_iam_role_policy" "job" {
  name = "job"
  role = aws_iam_role.job.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Sid      = "Logs"
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.jobs.arn}:*"
        },
        {
          Sid      = "FindLogs" # knows no resources
          Effect   = "Allow"
          Action   = "logs:DescribeLogGroups"
          Resource = "*"
        },
      ],
      # What an archive needs where it goes: app/iam/calls.py, TARGET_NEEDS.
      [for bucket in var.target_bucket[*] :
        {
          Sid      = "TargetObjects"
          Effect   = "Allow"
          Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
          Resource = "arn:${var.partition}:s3:::${bucket}/*"
        }
      ],
      [for bucket in var.target_bucket[*] :
        {
          Sid      = "TargetList"
          Effect   = "Allow"
          Action   = "s3:ListBucket"
          Resource = "arn:${var.partition}:s3:::${bucket}"
        }
      ],
      [for bucket in [var.script_bucket] :
        {
          Sid      = "Scripts"
          Effect   = "Allow"
          Action   = "s3:GetObject"
          Resource = "arn:${var.partition}:s3:::${bucket}/*"
        } if bucket != var.target_bucket
      ],
      [for keys in [var.kms_key_arns] :
        {
          Sid       = "TargetKeys"
          Effect    = "Allow"
          Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
          Resource  = keys
          Condition = { StringEquals = { "kms:ViaService" = "s3.${var.region}.amazonaws.com" } }
        } if length(keys) > 0
      ],
    )
  })
}
