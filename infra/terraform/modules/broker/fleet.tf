# Brokers without disks: one auto-scaling group of many machines in all zones, which comes and goes as the load does. Every machine runs the same
# command (`firn serve --ephemeral --node-id auto`), and every topic has firn.durability=object: what is acknowledged is in the bucket. So AWS may
# end any of these machines. The load balancer knows them all, and only a client's first connection goes through it: brokers advertise the addresses
# of their machines.

locals {
  fleet      = var.fleet[*]
  fleet_name = "${var.name}-fleet"

  fleet_bootstrap = {
    for key in [for _ in local.fleet : "fleet"] : key => merge(local.security, {
      version                 = 1
      role                    = "broker"
      cluster                 = var.name
      node_id                 = "auto"
      region                  = var.region
      zone                    = null # the machine says it
      store                   = var.store_url
      wheelhouse              = var.wheelhouse
      data                    = { kind = var.fleet.disk, volume_id = null, filesystem = "xfs" }
      accept_loss_of_untiered = false
      advertised              = null # the machine's own address
      http                    = { enabled = true, port = var.http_port }
      settings                = var.settings
      lifecycle = {
        autoscaling_group = local.fleet_name
        launch_hook       = local.launch_hook
        terminate_hook    = local.end_hook
        heartbeat_s       = local.heartbeat_s
      }
      endpoints = {}
    })
  }

  fleet_user_data = {
    for key, bootstrap in local.fleet_bootstrap : key => templatefile(var.user_data_template, {
      bootstrap = jsonencode(bootstrap)
    })
  }
}

# --- the machines ---------------------------------------------------------------------------------------------------------------------

resource "aws_launch_template" "fleet" {
  for_each = local.fleet_user_data

  name                   = local.fleet_name
  description            = "Firn brokers without disks of ${var.name}"
  image_id               = var.ami_id
  instance_type          = var.instance_type
  user_data              = base64encode(each.value)
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
    enabled = true # the policies below look at every minute
  }

  maintenance_options {
    auto_recovery = "default"
  }

  # It holds a cache: the newest records of each partition, and what was read from the bucket.
  block_device_mappings {
    device_name = "/dev/xvda" # the root device of Debian's images

    ebs {
      volume_size           = var.fleet.disk_gib
      volume_type           = "gp3"
      encrypted             = true # by the account's own key: another would need a grant to the service-linked role of auto scaling
      delete_on_termination = true
    }
  }

  tag_specifications {
    resource_type = "instance"

    tags = {
      Name           = local.fleet_name
      "firn:cluster" = var.name
      "firn:role"    = "broker"
    }
  }

  lifecycle {
    precondition {
      condition     = length(each.value) <= 16384
      error_message = "The user data of the fleet are longer than the 16,384 bytes that EC2 takes. Move settings to the image."
    }
  }
}

resource "aws_autoscaling_group" "fleet" {
  for_each = local.fleet_user_data

  name                = local.fleet_name
  min_size            = var.fleet.min
  max_size            = var.fleet.max
  vpc_zone_identifier = values(var.subnet_ids)
  target_group_arns   = [aws_lb_target_group.fleet[each.key].arn]

  # A bucket that is away makes no broker ill. The watchdog of systemd restarts a broker that hangs.
  health_check_type         = "EC2"
  health_check_grace_period = var.launch_timeout_s
  default_instance_warmup   = 60
  wait_for_capacity_timeout = "0" # the first boot is watched in the journal, not by Terraform

  # A spot machine at risk is replaced before its notice comes. Every machine may go at any time.
  capacity_rebalance    = true
  protect_from_scale_in = false
  force_delete          = false

  # The next machine serves before the old one goes.
  instance_maintenance_policy {
    min_healthy_percentage = 100
    max_healthy_percentage = 110
  }

  # An apply that changes the launch template replaces one machine after the other.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 110
    }
  }

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = var.fleet.on_demand
      on_demand_percentage_above_base_capacity = 0
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.fleet[each.key].id
        version            = aws_launch_template.fleet[each.key].latest_version
      }

      # The first one is that of the machines on demand.
      dynamic "override" {
        for_each = distinct(concat([var.instance_type], var.fleet.other_instance_types))

        content {
          instance_type = override.value
        }
      }
    }
  }

  # Created with the group, so that the first machine has them too.
  initial_lifecycle_hook {
    name                 = local.launch_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    heartbeat_timeout    = var.launch_timeout_s
    default_result       = "ABANDON"
  }

  # The agent stops the broker, which gives its leaders to others and ends its write-ahead log, in seconds.
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

  # The provider replaces the group, and so ends all its machines, if a hook that it was made with changes.
  lifecycle {
    ignore_changes = [initial_lifecycle_hook]
  }

  depends_on = [
    aws_iam_role_policy.store,
    aws_iam_role_policy.machine,
    aws_lb_listener.fleet,
  ]
}

# --- how many -------------------------------------------------------------------------------------------------------------------------

# Each policy reckons how many machines it wants, and the greater number counts. So machines go only when both agree.
resource "aws_autoscaling_policy" "processor" {
  for_each = local.fleet_user_data

  name                   = "processor"
  autoscaling_group_name = aws_autoscaling_group.fleet[each.key].name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = var.fleet.cpu_percent

    predefined_metric_specification {
      predefined_metric_type = "ASGAverageCPUUtilization"
    }
  }
}

resource "aws_autoscaling_policy" "network" {
  for_each = local.fleet_user_data

  name                   = "network"
  autoscaling_group_name = aws_autoscaling_group.fleet[each.key].name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = var.fleet.network_mb_s * 1000000 * 60 # bytes of a machine in a minute

    predefined_metric_specification {
      predefined_metric_type = "ASGAverageNetworkOut"
    }
  }
}

resource "aws_autoscaling_schedule" "fleet_down" {
  for_each = local.scheduled ? local.fleet_user_data : {}

  scheduled_action_name  = "down"
  autoscaling_group_name = aws_autoscaling_group.fleet[each.key].name
  recurrence             = var.scale_to_zero.down
  time_zone              = var.scale_to_zero.time_zone
  min_size               = 0
  max_size               = var.fleet.max
  desired_capacity       = 0
}

resource "aws_autoscaling_schedule" "fleet_up" {
  for_each = local.scheduled ? local.fleet_user_data : {}

  scheduled_action_name  = "up"
  autoscaling_group_name = aws_autoscaling_group.fleet[each.key].name
  recurrence             = var.scale_to_zero.up
  time_zone              = var.scale_to_zero.time_zone
  min_size               = var.fleet.min
  max_size               = var.fleet.max
  desired_capacity       = var.fleet.min
}

# --- the first address ----------------------------------------------------------------------------------------------------------------

resource "aws_lb_target_group" "fleet" {
  for_each = local.fleet_user_data

  name        = local.fleet_name
  vpc_id      = var.vpc_id
  target_type = "instance"
  protocol    = "TCP"
  port        = var.kafka_port

  preserve_client_ip     = "false"
  deregistration_delay   = "0" # a client that loses this connection has the addresses of brokers
  connection_termination = true

  health_check {
    protocol            = "TCP"
    port                = "traffic-port"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "fleet" {
  for_each = local.fleet_user_data

  load_balancer_arn        = aws_lb.kafka.arn
  port                     = var.listener_ports[each.key]
  protocol                 = "TCP"
  tcp_idle_timeout_seconds = 350 # brokers close what is idle before that, and keep-alives hold the rest

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.fleet[each.key].arn
  }
}
