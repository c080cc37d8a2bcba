# Brokers without disks: what makes them come and go without a loss. Each assertion is one sentence of the design.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_lb" {
    defaults = {
      arn      = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/prod-kafka/0123456789abcdef"
      dns_name = "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com"
    }
  }

  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/prod-fleet/0123456789abcdef" }
  }

  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/prod-fleet" }
  }
}

variables {
  brokers                 = {}
  listener_ports          = { fleet = 9092 }
  role_names              = { fleet = "prod-fleet" }
  accept_loss_of_untiered = false
  fleet                   = { min = 3, max = 9, on_demand = 1, other_instance_types = ["m6g.large", "m7g.large"], disk = "root", disk_gib = 50, cpu_percent = 35, network_mb_s = 60 }
}

run "there_are_machines_in_all_zones_and_no_volume" {
  command = plan

  assert {
    condition     = length(aws_ebs_volume.data) == 0 && length(aws_autoscaling_group.broker) == 0 && length(aws_lb_listener.broker) == 0
    error_message = "Brokers with volumes are made beside those without."
  }

  assert {
    condition     = aws_autoscaling_group.fleet["fleet"].vpc_zone_identifier == toset(["subnet-0aaaaaaaaaaaaaaaa", "subnet-0bbbbbbbbbbbbbbbb"])
    error_message = "A zone has no machines."
  }

  assert {
    condition     = alltrue([for disk in aws_launch_template.fleet["fleet"].block_device_mappings : disk.ebs[0].volume_size == 50 && disk.ebs[0].encrypted == "true" && disk.ebs[0].delete_on_termination == "true"])
    error_message = "The root disk is not encrypted, not as large as was asked for, or stays when its machine is gone."
  }
}

run "a_machine_is_told_that_it_is_one_of_many" {
  command = plan

  assert {
    condition = jsondecode(output.bootstrap["fleet"]) == jsondecode(<<-JSON
      {
        "version": 1, "role": "broker", "cluster": "prod", "node_id": "auto", "region": "eu-central-1", "zone": null,
        "store": "s3://records?region=eu-central-1",
        "wheelhouse": {"bucket": "artifacts", "key": "firn-wheelhouse-0.1.0-aarch64.tar.gz", "sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
        "data": {"kind": "root", "volume_id": null, "filesystem": "xfs"},
        "accept_loss_of_untiered": false,
        "advertised": null,
        "http": {"enabled": true, "port": 8080},
        "settings": {},
        "lifecycle": {"autoscaling_group": "prod-fleet", "launch_hook": "firn-launch", "terminate_hook": "firn-terminate", "heartbeat_s": 60},
        "endpoints": {}
      }
    JSON
    )
    error_message = "The bootstrap document is ${output.bootstrap["fleet"]}"
  }

  assert {
    condition     = strcontains(base64decode(aws_launch_template.fleet["fleet"].user_data), base64encode(output.bootstrap["fleet"]))
    error_message = "The user data do not carry the bootstrap document."
  }
}

run "the_next_machine_serves_before_the_old_one_goes" {
  command = plan

  assert {
    condition     = alltrue([for policy in aws_autoscaling_group.fleet["fleet"].instance_maintenance_policy : policy.min_healthy_percentage == 100]) && aws_autoscaling_group.fleet["fleet"].capacity_rebalance && !aws_autoscaling_group.fleet["fleet"].protect_from_scale_in
    error_message = "A machine ends before its successor serves, waits for its spot notice, or is kept although nobody needs it."
  }

  assert {
    condition     = aws_autoscaling_group.fleet["fleet"].health_check_type == "EC2"
    error_message = "A bucket that is away for a while would end all machines."
  }

  assert {
    condition = toset([for hook in aws_autoscaling_group.fleet["fleet"].initial_lifecycle_hook : "${hook.name} ${hook.lifecycle_transition} ${hook.default_result}"]) == toset([
      "firn-launch autoscaling:EC2_INSTANCE_LAUNCHING ABANDON",
      "firn-terminate autoscaling:EC2_INSTANCE_TERMINATING CONTINUE",
    ])
    error_message = "The hooks are not those that the machines answer."
  }
}

run "all_machines_but_on_demand_ones_are_on_spot_of_several_types" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.fleet["fleet"].mixed_instances_policy[0].instances_distribution[0].on_demand_base_capacity == 1 && aws_autoscaling_group.fleet["fleet"].mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 0
    error_message = "The mixture of spot and on demand is not what was asked for."
  }

  assert {
    condition     = [for override in aws_autoscaling_group.fleet["fleet"].mixed_instances_policy[0].launch_template[0].override : override.instance_type] == ["m7g.large", "m6g.large"]
    error_message = "The types are not instance_type and then the others, each once."
  }

  assert {
    condition     = length(aws_launch_template.fleet["fleet"].instance_market_options) == 0
    error_message = "The launch template names a market, which EC2 refuses in a mixture."
  }
}

run "the_number_of_machines_follows_processors_and_network" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.fleet["fleet"].min_size == 3 && aws_autoscaling_group.fleet["fleet"].max_size == 9
    error_message = "The number of machines has other bounds than was asked for."
  }

  assert {
    condition     = aws_autoscaling_policy.processor["fleet"].target_tracking_configuration[0].target_value == 35 && aws_autoscaling_policy.network["fleet"].target_tracking_configuration[0].target_value == 3600000000
    error_message = "The targets are others than were asked for."
  }

  assert {
    condition     = length(aws_autoscaling_schedule.fleet_down) == 0 && length(aws_autoscaling_schedule.fleet_up) == 0
    error_message = "A schedule ends machines that nobody scheduled."
  }
}

run "a_schedule_ends_all_machines_and_starts_the_least_number_again" {
  command = plan

  variables {
    scale_to_zero = { down = "0 20 * * *", up = "0 6 * * *", time_zone = "Etc/UTC" }
  }

  assert {
    condition     = aws_autoscaling_schedule.fleet_down["fleet"].min_size == 0 && aws_autoscaling_schedule.fleet_down["fleet"].desired_capacity == 0
    error_message = "Some machine stays."
  }

  assert {
    condition     = aws_autoscaling_schedule.fleet_up["fleet"].min_size == 3 && aws_autoscaling_schedule.fleet_up["fleet"].desired_capacity == 3 && aws_autoscaling_schedule.fleet_up["fleet"].max_size == 9
    error_message = "Too few machines start, or the policies cannot add any."
  }
}

run "a_role_of_the_fleet_touches_no_volume_and_looks_at_the_bucket" {
  command = plan

  assert {
    condition     = !strcontains(aws_iam_role_policy.machine["fleet"].policy, "\"ec2:") && strcontains(aws_iam_role_policy.machine["fleet"].policy, "s3:GetBucketVersioning") && strcontains(aws_iam_role_policy.machine["fleet"].policy, "autoScalingGroupName/prod-fleet")
    error_message = "The role may call EC2, cannot look at the bucket, or answers the hooks of another group."
  }
}

run "a_first_address_is_internal_and_lets_tls_through" {
  command = plan

  assert {
    condition     = aws_lb_listener.fleet["fleet"].protocol == "TCP" && aws_lb_listener.fleet["fleet"].port == 9092 && aws_lb_target_group.fleet["fleet"].preserve_client_ip == "false" && aws_lb.kafka.internal
    error_message = "The first address is public, ends TLS, or is at another port."
  }
}

run "user_data_of_the_fleet_that_ec2_does_not_take_are_refused" {
  command = plan

  variables {
    settings = { "group.consumer.assignors" = format("%012000d", 0) }
  }

  expect_failures = [aws_launch_template.fleet]
}
