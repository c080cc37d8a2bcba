# Machines for HTTP: clients of the brokers without state. They are behind an internal load balancer, which serves HTTPS to clients. They have no
# access to the bucket. Each zone has its own group, because a machine's launch template names its zone, and the first boot checks the zone.

locals {
  name   = "${var.name}-http"
  groups = { for zone in keys(var.subnet_ids) : zone => "${var.name}-http-${zone}" }

  # Callers log in to the brokers with their own user, so these machines need no secret.
  security = merge([for pem in var.ca_pem[*] : { security = { secret = null, ca_pem = pem } }]...)

  # The shape of infra/bootstrap. A machine that serves HTTP alone has no node id and no disk.
  bootstrap = {
    for zone, group in local.groups : zone => merge(local.security, {
      version                 = 1
      role                    = "http"
      cluster                 = var.name
      node_id                 = null
      region                  = var.region
      zone                    = zone
      store                   = var.store_url
      wheelhouse              = var.wheelhouse
      data                    = null
      accept_loss_of_untiered = false
      advertised              = null
      http = {
        enabled = true
        port    = var.port
      }
      settings = {
        "bootstrap.servers"       = var.bootstrap_servers
        "firn.http.allowed.hosts" = var.host
      }
      lifecycle = {
        autoscaling_group = group
        launch_hook       = "firn-launch"
        terminate_hook    = null
        heartbeat_s       = 60
      }
      endpoints = {}
    })
  }

  user_data = { for zone, bootstrap in local.bootstrap : zone => templatefile(var.user_data_template, { bootstrap = jsonencode(bootstrap) }) }
}

resource "aws_iam_role" "http" {
  name = local.name
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_instance_profile" "http" {
  name = local.name
  role = aws_iam_role.http.name
}

# `firn iam policy --role http` prints the same: whatever other policy the role gets, it cannot access the bucket.
resource "aws_iam_role_policy" "no_store" {
  name = "no-store"
  role = aws_iam_role.http.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "NotInTheBucket"
      Effect   = "Deny"
      Action   = "s3:*"
      Resource = [var.bucket_arn, "${var.bucket_arn}/*"]
    }]
  })
}

resource "aws_iam_role_policy" "machine" {
  name = "machine"
  role = aws_iam_role.http.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Sid      = "AnswerLifecycleHooks"
          Effect   = "Allow"
          Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
          Resource = "arn:${var.partition}:autoscaling:${var.region}:${var.account_id}:autoScalingGroup:*:autoScalingGroupName/${local.name}-*"
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
      ],
      [for wheelhouse in var.wheelhouse[*] :
        {
          Sid      = "Packages"
          Effect   = "Allow"
          Action   = "s3:GetObject"
          Resource = "arn:${var.partition}:s3:::${wheelhouse.bucket}/${wheelhouse.key}"
        }
      ],
    )
  })
}

resource "aws_launch_template" "http" {
  for_each = local.groups

  name                   = each.value
  description            = "Firn HTTP processes of ${var.name} in ${each.key}"
  image_id               = var.ami_id
  instance_type          = var.instance_type
  user_data              = base64encode(local.user_data[each.key])
  update_default_version = true
  ebs_optimized          = true

  vpc_security_group_ids = [var.http_security_group_id]

  iam_instance_profile {
    arn = aws_iam_instance_profile.http.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = 16
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  tag_specifications {
    resource_type = "instance"

    tags = {
      Name           = each.value
      "firn:cluster" = var.name
      "firn:role"    = "http"
    }
  }
}

resource "aws_autoscaling_group" "http" {
  for_each = local.groups

  name                      = each.value
  min_size                  = var.machines
  max_size                  = var.machines + 1
  desired_capacity          = var.machines
  vpc_zone_identifier       = [var.subnet_ids[each.key]]
  target_group_arns         = [aws_lb_target_group.http.arn]
  health_check_type         = "ELB" # a process that hangs is replaced with its machine, and nothing is lost with it
  health_check_grace_period = 120
  wait_for_capacity_timeout = "0"
  force_delete              = false

  launch_template {
    id      = aws_launch_template.http[each.key].id
    version = aws_launch_template.http[each.key].latest_version
  }

  initial_lifecycle_hook {
    name                 = "firn-launch"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    heartbeat_timeout    = var.launch_timeout_s
    default_result       = "ABANDON"
  }

  # These machines have no state, so a new launch template may replace them one by one.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 200
    }
  }

  tag {
    key                 = "firn:cluster"
    value               = var.name
    propagate_at_launch = false
  }

  # The provider replaces the group, and so ends its machines, if a hook that it was made with changes.
  lifecycle {
    ignore_changes = [initial_lifecycle_hook]
  }

  depends_on = [aws_iam_role_policy.machine, aws_lb_listener.https]
}

resource "aws_lb" "http" {
  # checkov:skip=CKV_AWS_91: requests are counted by route in the metrics of the HTTP processes; a bucket of access logs is a choice of the account
  name                       = local.name
  load_balancer_type         = "application"
  internal                   = true
  subnets                    = values(var.subnet_ids)
  security_groups            = [var.lb_security_group_id]
  drop_invalid_header_fields = true
  desync_mitigation_mode     = "strictest"
  preserve_host_header       = true # HTTP processes refuse names that are not theirs
  enable_deletion_protection = var.deletion_protection
}

resource "aws_lb_target_group" "http" {
  name                 = local.name
  vpc_id               = var.vpc_id
  target_type          = "instance"
  protocol             = "HTTP"
  port                 = var.port
  deregistration_delay = "30"

  health_check {
    # Whether the process runs; any Host is let in here. /readyz asks a broker: while one is replaced, the groups would end every machine.
    path                = "/healthz"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 3
    matcher             = "200"
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.http.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.http.arn
  }
}

resource "aws_route53_record" "http" {
  count = var.dns_zone_id == null ? 0 : 1

  zone_id = var.dns_zone_id
  name    = var.host
  type    = "A"

  alias {
    name                   = aws_lb.http.dns_name
    zone_id                = aws_lb.http.zone_id
    evaluate_target_health = false
  }
}
