# A role for each node id, or for the fleet. `store` has the program's permissions in the bucket: `firn iam policy --role broker` prints the same document. `machine`
# has the permissions of the first boot and the agent.

locals {
  machines = merge(local.group_names, { for key in keys(local.fleet_user_data) : key => local.fleet_name }) # auto-scaling group by key
  root     = var.bucket_prefix == "" ? "" : "${var.bucket_prefix}/"
  # check/ is firn doctor's. wal/ stays beside a bucket of write-ahead logs: an apply changes the policy at once, and running brokers write here
  # until their machines are replaced.
  prefixes = [for prefix in ["cluster/", "topics/", "data/", "wal/", "check/"] : "${local.root}${prefix}"]
  wal_keys = ["wal/*", "check/*"]

  store_policy = {
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid    = "Objects"
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload",
          "s3:DeleteObject",
          "s3:GetObject",
          "s3:PutObject",
        ]
        Resource = [for prefix in local.prefixes : "${var.bucket_arn}/${prefix}*"]
      },
      {
        # IfExists: a GET of a missing key returns 404 only to roles that may list, and such a GET has no prefix. Without IfExists it returns 403.
        Sid       = "List"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = var.bucket_arn
        Condition = { StringLikeIfExists = { "s3:prefix" = [for prefix in local.prefixes : "${prefix}*"] } }
      },
      {
        Sid      = "ListUploads" # S3 knows no condition on the prefix here
        Effect   = "Allow"
        Action   = "s3:ListBucketMultipartUploads"
        Resource = var.bucket_arn
      },
      {
        Sid      = "Key"
        Effect   = "Allow"
        Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource = var.kms_key_arn
      },
      ],
      [for store in var.wal_store[*] : {
        Sid      = "WalStore" # S3 Express knows no right to a prefix: a session may read and write everything
        Effect   = "Allow"
        Action   = "s3express:CreateSession"
        Resource = store.arn
      } if store.express],
      [for store in var.wal_store[*] : {
        Sid      = "WalObjects"
        Effect   = "Allow"
        Action   = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        Resource = [for key in local.wal_keys : "${store.arn}/${key}"]
      } if !store.express],
      [for store in var.wal_store[*] : {
        Sid       = "WalList"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = store.arn
        Condition = { StringLikeIfExists = { "s3:prefix" = local.wal_keys } }
      } if !store.express],
    )
  }
}

resource "aws_iam_role" "broker" {
  for_each = local.machines

  name = var.role_names[each.key]
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_instance_profile" "broker" {
  for_each = local.machines

  name = var.role_names[each.key]
  role = aws_iam_role.broker[each.key].name
}

resource "aws_iam_role_policy" "store" {
  for_each = local.machines

  name   = "store"
  role   = aws_iam_role.broker[each.key].id
  policy = jsonencode(local.store_policy)
}

resource "aws_iam_role_policy" "machine" {
  for_each = local.machines

  name = "machine"
  role = aws_iam_role.broker[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in [
        {
          # The boot asks whether the instance in the cluster log is terminated, and whether the volume is free. These calls have no resources in IAM.
          Sid      = "LookAtMachines"
          Effect   = "Allow"
          Action   = ["ec2:DescribeInstances", "ec2:DescribeVolumes"]
          Resource = "*"
        },
      ] : statement if contains(keys(var.brokers), each.key)],
      [for statement in [
        {
          # `firn doctor` looks whether the bucket would keep or delete objects of write-ahead logs by itself.
          Sid      = "LookAtBucket"
          Effect   = "Allow"
          Action   = ["s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"]
          Resource = concat([var.bucket_arn], [for store in var.wal_store[*] : store.arn if !store.express])
        },
      ] : statement if !contains(keys(var.brokers), each.key)],
      [
        {
          Sid      = "AnswerLifecycleHooks"
          Effect   = "Allow"
          Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
          Resource = "arn:${var.partition}:autoscaling:${var.region}:${var.account_id}:autoScalingGroup:*:autoScalingGroupName/${each.value}"
        },
        {
          # What AmazonSSMManagedInstanceCore allows, less reading every parameter of the account.
          Sid    = "SessionManager"
          Effect = "Allow"
          Action = [
            "ec2messages:AcknowledgeMessage", "ec2messages:DeleteMessage", "ec2messages:FailMessage", "ec2messages:GetEndpoint",
            "ec2messages:GetMessages", "ec2messages:SendReply",
            "ssm:DescribeAssociation", "ssm:DescribeDocument", "ssm:GetDocument", "ssm:ListAssociations", "ssm:ListInstanceAssociations",
            "ssm:PutComplianceItems", "ssm:PutInventory", "ssm:UpdateAssociationStatus", "ssm:UpdateInstanceAssociationStatus",
            "ssm:UpdateInstanceInformation",
            "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
          ]
          Resource = "*"
        },
        {
          Sid      = "AgentConfiguration"
          Effect   = "Allow"
          Action   = "ssm:GetParameter"
          Resource = "arn:${var.partition}:ssm:${var.region}:${var.account_id}:parameter/${var.agent_config_parameter}"
        },
        {
          Sid      = "Logs"
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
          Resource = ["${var.log_group_arn}:*", "${var.metrics_log_group_arn}:*"]
        },
        {
          Sid       = "Metrics"
          Effect    = "Allow"
          Action    = "cloudwatch:PutMetricData"
          Resource  = "*"
          Condition = { StringEquals = { "cloudwatch:namespace" = var.metric_namespace } }
        },
      ],
      [for statement in [
        {
          Sid      = "AttachOwnVolume"
          Effect   = "Allow"
          Action   = "ec2:AttachVolume"
          Resource = "arn:${var.partition}:ec2:${var.region}:${var.account_id}:volume/${try(aws_ebs_volume.data[each.key].id, "")}"
        },
        {
          # Only to machines of this cluster. The launch template sets the tag. The right to change tags is useless without this role.
          Sid       = "AttachToOwnMachine"
          Effect    = "Allow"
          Action    = "ec2:AttachVolume"
          Resource  = "arn:${var.partition}:ec2:${var.region}:${var.account_id}:instance/*"
          Condition = { StringEquals = { "aws:ResourceTag/firn:cluster" = var.name, "aws:ResourceTag/firn:role" = "broker" } }
        },
        {
          # EC2 decrypts the volume's key by a grant that the caller makes.
          Sid       = "GrantVolumeKey"
          Effect    = "Allow"
          Action    = ["kms:CreateGrant", "kms:DescribeKey"]
          Resource  = var.kms_key_arn
          Condition = { BoolIfExists = { "kms:GrantIsForAWSResource" = "true" }, StringEquals = { "kms:ViaService" = "ec2.${var.region}.amazonaws.com" } }
        },
      ] : statement if local.ebs && contains(keys(var.brokers), each.key)],
      [for wheelhouse in var.wheelhouse[*] :
        {
          Sid      = "Packages"
          Effect   = "Allow"
          Action   = "s3:GetObject"
          Resource = "arn:${var.partition}:s3:::${wheelhouse.bucket}/${wheelhouse.key}"
        }
      ],
      [for arn in var.secret_arn[*] :
        {
          Sid      = "Secret"
          Effect   = "Allow"
          Action   = "secretsmanager:GetSecretValue"
          Resource = arn
        }
      ],
    )
  })
}
