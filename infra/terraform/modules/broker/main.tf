# A broker for each node id: an auto-scaling group of 0 or 1 machines, a volume, a target group and a port of the load balancer. All of them are
# made by for_each over var.brokers, so one broker and a cluster differ only in the number of resources.

locals {
  cluster   = length(var.brokers) > 1
  ebs       = var.data_disk.kind == "ebs"
  scheduled = var.scale_to_zero != null

  group_names = { for node_id in keys(var.brokers) : node_id => "${var.name}-broker-${node_id}" }
  launch_hook = "firn-launch"
  end_hook    = "firn-terminate"
  # A hook without a heartbeat for twice the interval times out: the machine or its agent is dead.
  heartbeat_s         = 60
  heartbeat_timeout_s = 120

  host = var.dns == null ? aws_lb.kafka.dns_name : var.dns.name

  # Only with security: an older release of Firn refuses a field that it does not know.
  security = merge([for one in var.security[*] : { security = { secret = one.secret_arn, ca_pem = one.ca_pem } }]...)

  # The fields are fixed: infra/bootstrap reads them with strict checks.
  bootstrap = {
    for node_id, broker in var.brokers : node_id => merge(local.security, {
      version    = 1
      role       = "broker"
      cluster    = var.name
      node_id    = tonumber(node_id)
      region     = var.region
      zone       = broker.zone
      store      = var.store_url
      wheelhouse = var.wheelhouse
      data = {
        kind       = var.data_disk.kind
        volume_id  = local.ebs ? aws_ebs_volume.data[node_id].id : null
        filesystem = var.data_disk.filesystem
      }
      accept_loss_of_untiered = var.accept_loss_of_untiered
      # One of several advertises its machine's own address: the load balancer sends nothing to a machine that is not in service yet, and
      # brokers join only if the others reach them.
      advertised = local.cluster ? null : {
        host = local.host
        port = var.listener_ports[node_id]
      }
      http = {
        enabled = true
        port    = var.http_port
      }
      settings = var.settings
      lifecycle = {
        autoscaling_group = local.group_names[node_id]
        launch_hook       = local.launch_hook
        terminate_hook    = local.end_hook
        heartbeat_s       = local.heartbeat_s
      }
      endpoints = {}
    })
  }

  user_data = {
    for node_id, bootstrap in local.bootstrap : node_id => templatefile(var.user_data_template, {
      bootstrap = jsonencode(bootstrap)
    })
  }
}

# --- the volume: what is not in the bucket yet lies here -----------------------------------------------------------------------------

resource "aws_ebs_volume" "data" {
  for_each = local.ebs ? var.brokers : {}

  availability_zone = each.value.zone
  size              = var.data_disk.size_gib
  type              = var.data_disk.type
  iops              = var.data_disk.iops
  throughput        = var.data_disk.type == "gp3" ? var.data_disk.throughput_mibs : null
  encrypted         = true
  kms_key_id        = var.kms_key_arn
  final_snapshot    = true # if somebody takes prevent_destroy away

  tags = { Name = "${local.group_names[each.key]}-data" }

  lifecycle {
    prevent_destroy = true
  }
}

# --- the machine ----------------------------------------------------------------------------------------------------------------------

resource "aws_launch_template" "broker" {
  for_each = var.brokers

  name                   = local.group_names[each.key]
  description            = "Firn broker ${each.key} of ${var.name}"
  image_id               = var.ami_id
  instance_type          = var.instance_type
  user_data              = base64encode(local.user_data[each.key])
  update_default_version = true
  ebs_optimized          = true

  vpc_security_group_ids = [var.broker_security_group_id]

  iam_instance_profile {
    arn = aws_iam_instance_profile.broker[each.key].arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled" # nothing is read from tags
  }

  monitoring {
    enabled = true
  }

  maintenance_options {
    auto_recovery = "default"
  }

  block_device_mappings {
    device_name = "/dev/xvda" # the root device of Debian's images

    ebs {
      volume_size           = 16
      volume_type           = "gp3"
      encrypted             = true # by the account's own key: another would need a grant to the service-linked role of auto scaling
      delete_on_termination = true
    }
  }

  dynamic "instance_market_options" {
    for_each = var.market == "spot" ? [1] : []

    content {
      market_type = "spot"

      spot_options {
        spot_instance_type             = "one-time"
        instance_interruption_behavior = "terminate"
      }
    }
  }

  tag_specifications {
    resource_type = "instance"

    tags = {
      Name           = local.group_names[each.key]
      "firn:cluster" = var.name
      "firn:role"    = "broker"
    }
  }

  lifecycle {
    precondition {
      condition     = length(local.user_data[each.key]) <= 16384
      error_message = "The user data of broker ${each.key} is longer than the 16,384 bytes that EC2 takes. Move settings to the image."
    }
  }
}

resource "aws_autoscaling_group" "broker" {
  for_each = var.brokers

  name                = local.group_names[each.key]
  min_size            = 0
  max_size            = 1
  desired_capacity    = local.scheduled ? null : each.value.running ? 1 : 0
  vpc_zone_identifier = [var.subnet_ids[each.value.zone]]
  target_group_arns   = [aws_lb_target_group.broker[each.key].arn]

  # A broker that recovers a large log does not respond for minutes. With health checks of the load balancer, the group would end this machine and the next.
  health_check_type         = "EC2"
  health_check_grace_period = var.launch_timeout_s
  default_instance_warmup   = 0
  wait_for_capacity_timeout = "0" # the first boot is watched in the journal, not by Terraform

  # A machine takes this with it when it starts, and keeps it: infra/README.md says how a living one is let go.
  protect_from_scale_in = !local.scheduled && each.value.running
  suspended_processes   = ["AZRebalance"]
  capacity_rebalance    = false
  force_delete          = false

  # Two machines never run at the same time: the old one ends, and then the new one attaches the volume.
  instance_maintenance_policy {
    min_healthy_percentage = 0
    max_healthy_percentage = 100
  }

  # There is no instance_refresh: a new launch template takes effect when somebody drains and ends the machine.
  launch_template {
    id      = aws_launch_template.broker[each.key].id
    version = aws_launch_template.broker[each.key].latest_version
  }

  # Created with the group, so that the first machine has them too.
  initial_lifecycle_hook {
    name                 = local.launch_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    heartbeat_timeout    = var.launch_timeout_s
    default_result       = "ABANDON"
  }

  # The agent drains, and sends a heartbeat every heartbeat_s meanwhile. AWS ends the machine after the maximum time in any case.
  initial_lifecycle_hook {
    name                 = local.end_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = local.heartbeat_timeout_s
    default_result       = "CONTINUE"
  }

  tag {
    key                 = "firn:cluster"
    value               = var.name
    propagate_at_launch = false
  }

  # The provider replaces the group, and so ends its machine, if a hook that it was made with changes.
  lifecycle {
    ignore_changes = [initial_lifecycle_hook]
  }

  depends_on = [
    aws_iam_role_policy.store,
    aws_iam_role_policy.machine,
    aws_lb_listener.broker,
  ]
}

resource "aws_autoscaling_schedule" "down" {
  for_each = local.scheduled ? var.brokers : {}

  scheduled_action_name  = "down"
  autoscaling_group_name = aws_autoscaling_group.broker[each.key].name
  recurrence             = var.scale_to_zero.down
  time_zone              = var.scale_to_zero.time_zone
  min_size               = 0
  max_size               = 1
  desired_capacity       = 0
}

resource "aws_autoscaling_schedule" "up" {
  for_each = local.scheduled ? var.brokers : {}

  scheduled_action_name  = "up"
  autoscaling_group_name = aws_autoscaling_group.broker[each.key].name
  recurrence             = var.scale_to_zero.up
  time_zone              = var.scale_to_zero.time_zone
  min_size               = 0
  max_size               = 1
  desired_capacity       = 1
}

# --- the address ----------------------------------------------------------------------------------------------------------------------

resource "aws_lb" "kafka" {
  # checkov:skip=CKV_AWS_91: network load balancers log TLS listeners only, and these listeners are TCP
  name                             = "${var.name}-kafka"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = values(var.subnet_ids)
  security_groups                  = [var.lb_security_group_id]
  enable_cross_zone_load_balancing = true # clients of all zones reach the one target of a port
  # Clients get the address in their own zone, so bytes to the broker cross zones only once.
  dns_record_client_routing_policy = "availability_zone_affinity"
  enable_deletion_protection       = var.deletion_protection
}

resource "aws_lb_target_group" "broker" {
  for_each = var.brokers

  name        = local.group_names[each.key]
  vpc_id      = var.vpc_id
  target_type = "instance"
  protocol    = "TCP"
  port        = var.kafka_port

  # Off: with it a broker could not call its own address, and clients in front of two ports would collide.
  preserve_client_ip     = "false"
  deregistration_delay   = "30"
  connection_termination = true

  health_check {
    protocol            = "TCP"
    port                = "traffic-port"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

# TCP, not TLS: with security TLS passes through to the broker, which has the key.
resource "aws_lb_listener" "broker" {
  for_each = var.brokers

  load_balancer_arn        = aws_lb.kafka.arn
  port                     = var.listener_ports[each.key]
  protocol                 = "TCP"
  tcp_idle_timeout_seconds = 350 # brokers close what is idle before that, and keep-alives hold the rest

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.broker[each.key].arn
  }
}

resource "aws_route53_record" "kafka" {
  count = var.dns == null ? 0 : 1

  zone_id = var.dns.zone_id
  name    = var.dns.name
  type    = "A"

  alias {
    name                   = aws_lb.kafka.dns_name
    zone_id                = aws_lb.kafka.zone_id
    evaluate_target_health = false # the address stays also while a broker is replaced
  }
}
