# What keeps a record: the volume, the group, the hooks, the address. Each assertion is one sentence of the design.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_ebs_volume" {
    defaults = { id = "vol-0123456789abcdef0" }
  }

  mock_resource "aws_lb" {
    defaults = {
      arn      = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/prod-kafka/0123456789abcdef"
      dns_name = "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com"
    }
  }

  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/prod-broker-0/0123456789abcdef" }
  }

  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/prod-broker-0" }
  }
}

run "a_node_id_has_a_volume_of_its_own_in_its_zone" {
  command = plan

  assert {
    condition     = aws_ebs_volume.data["0"].availability_zone == "eu-central-1a" && aws_ebs_volume.data["1"].availability_zone == "eu-central-1b"
    error_message = "A volume lies in another zone than its broker."
  }

  assert {
    condition     = alltrue([for volume in aws_ebs_volume.data : volume.encrypted && volume.kms_key_id == var.kms_key_arn && volume.final_snapshot])
    error_message = "A volume is not encrypted by the cluster's key, or leaves no snapshot."
  }
}

run "a_group_has_one_machine_in_one_zone_and_nobody_moves_or_ends_it" {
  command = plan

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : group.min_size == 0 && group.max_size == 1])
    error_message = "A node id could have two machines."
  }

  assert {
    condition     = aws_autoscaling_group.broker["0"].desired_capacity == 1 && aws_autoscaling_group.broker["1"].desired_capacity == 0
    error_message = "running does not decide how many machines a node id has."
  }

  assert {
    condition     = aws_autoscaling_group.broker["0"].vpc_zone_identifier == toset(["subnet-0aaaaaaaaaaaaaaaa"])
    error_message = "A machine could start in a zone where its volume is not."
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : group.health_check_type == "EC2"])
    error_message = "A load balancer could end a broker that recovers."
  }

  assert {
    condition     = aws_autoscaling_group.broker["0"].protect_from_scale_in && alltrue([for group in aws_autoscaling_group.broker : !group.force_delete && contains(group.suspended_processes, "AZRebalance")])
    error_message = "Something other than a person could end a broker."
  }

  assert {
    condition     = !aws_autoscaling_group.broker["1"].protect_from_scale_in
    error_message = "A machine of a broker that is meant to be stopped is protected, so that a capacity of 0 would not end it."
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : group.instance_maintenance_policy[0].min_healthy_percentage == 0 && group.instance_maintenance_policy[0].max_healthy_percentage == 100])
    error_message = "Two machines of a node id could run beside each other."
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : length(group.instance_refresh) == 0])
    error_message = "A new launch template would end machines without a drain."
  }
}

run "hooks_hold_a_machine_until_it_serves_and_until_it_is_drained" {
  command = plan

  assert {
    condition = alltrue([for group in aws_autoscaling_group.broker : toset([for hook in group.initial_lifecycle_hook : "${hook.name} ${hook.lifecycle_transition} ${hook.default_result}"]) == toset([
      "firn-launch autoscaling:EC2_INSTANCE_LAUNCHING ABANDON",
      "firn-terminate autoscaling:EC2_INSTANCE_TERMINATING CONTINUE",
    ])])
    error_message = "The hooks are not those that the machines answer."
  }

  assert {
    condition     = alltrue([for bootstrap in output.bootstrap : alltrue([for hook in aws_autoscaling_group.broker["0"].initial_lifecycle_hook : hook.heartbeat_timeout > jsondecode(bootstrap).lifecycle.heartbeat_s])])
    error_message = "A hook would be over between two heartbeats."
  }
}

run "a_schedule_takes_the_capacity_from_terraform" {
  command = plan

  variables {
    scale_to_zero = { down = "0 20 * * *", up = "0 6 * * *", time_zone = "Etc/UTC" }
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : !group.protect_from_scale_in])
    error_message = "A schedule could not end a protected machine."
  }

  assert {
    condition     = alltrue([for schedule in aws_autoscaling_schedule.up : schedule.desired_capacity == 1 && schedule.max_size == 1]) && alltrue([for schedule in aws_autoscaling_schedule.down : schedule.desired_capacity == 0])
    error_message = "The schedules do not start and end one machine."
  }
}

run "a_machine_gives_its_credentials_to_nobody_and_reads_no_tags" {
  command = plan

  assert {
    condition     = alltrue([for template in aws_launch_template.broker : template.metadata_options[0].http_tokens == "required" && template.metadata_options[0].http_put_response_hop_limit == 1 && template.metadata_options[0].instance_metadata_tags == "disabled"])
    error_message = "Instance metadata answers without a token, further than the machine, or with tags."
  }

  assert {
    condition     = alltrue([for template in aws_launch_template.broker : template.image_id == "ami-0123456789abcdef0" && length(template.instance_market_options) == 0])
    error_message = "The image is not the pinned one, or the machine is on spot."
  }

  assert {
    condition     = strcontains(base64decode(aws_launch_template.broker["0"].user_data), base64encode(output.bootstrap["0"]))
    error_message = "The user data does not carry the bootstrap document."
  }
}

run "spot_ends_by_terminating" {
  command = plan

  variables {
    market = "spot"
  }

  assert {
    condition     = alltrue([for template in aws_launch_template.broker : template.instance_market_options[0].market_type == "spot" && template.instance_market_options[0].spot_options[0].instance_interruption_behavior == "terminate"])
    error_message = "A spot machine would be stopped or hibernated with its volume."
  }
}

run "an_address_is_internal_stable_and_lets_tls_through" {
  command = plan

  assert {
    condition     = aws_lb.kafka.internal && aws_lb.kafka.enable_deletion_protection && aws_lb.kafka.enable_cross_zone_load_balancing
    error_message = "The load balancer is public, unprotected, or serves one zone."
  }

  assert {
    condition     = alltrue([for node_id, listener in aws_lb_listener.broker : listener.protocol == "TCP" && listener.port == var.listener_ports[node_id] && listener.tcp_idle_timeout_seconds == 350])
    error_message = "A listener ends TLS, is at another port, or has another idle time-out than brokers and clients expect."
  }

  assert {
    condition     = alltrue([for group in aws_lb_target_group.broker : group.preserve_client_ip == "false" && group.port == 9092 && group.health_check[0].protocol == "TCP"])
    error_message = "Client addresses are preserved, so that a broker could not call its own address."
  }
}

run "a_role_attaches_its_own_volume_and_no_other" {
  command = plan

  assert {
    condition = alltrue([for policy in aws_iam_role_policy.machine : alltrue([
      for statement in jsondecode(policy.policy).Statement : !contains(flatten([statement.Resource]), "*") || alltrue([
        for action in flatten([statement.Action]) : can(regex("^(ec2:Describe|ec2messages:|ssm:|ssmmessages:|cloudwatch:PutMetricData)", action))
      ])
    ])])
    error_message = "A role may do on everything what it needs on one thing."
  }

  assert {
    condition     = alltrue([for policy in aws_iam_role_policy.machine : !strcontains(policy.policy, "s3:Put") && strcontains(policy.policy, "arn:aws:s3:::artifacts/firn-wheelhouse-0.1.0-aarch64.tar.gz")])
    error_message = "Brokers may write packages, or cannot read theirs."
  }

  assert {
    condition     = alltrue([for policy in concat(values(aws_iam_role_policy.machine), values(aws_iam_role_policy.store)) : alltrue([for statement in jsondecode(policy.policy).Statement : alltrue([for action in flatten([statement.Action]) : !strcontains(action, "*")])])])
    error_message = "A policy has an action with a wildcard."
  }
}

run "user_data_that_ec2_does_not_take_is_refused" {
  command = plan

  variables {
    settings = { "group.consumer.assignors" = format("%012000d", 0) }
  }

  expect_failures = [aws_launch_template.broker]
}

run "the_role_may_read_its_secret_and_the_boot_is_told_which" {
  command = plan

  variables {
    secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"
    security = {
      ca_pem     = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
      secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"
    }
  }

  assert {
    condition = [
      for statement in jsondecode(aws_iam_role_policy.machine["0"].policy).Statement : statement.Resource
      if statement.Action == "secretsmanager:GetSecretValue"
    ] == ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"]
    error_message = "The role reads other secrets, or not its own: ${aws_iam_role_policy.machine["0"].policy}"
  }

  assert {
    condition     = alltrue([for text in values(output.bootstrap) : jsondecode(text).security.secret == var.secret_arn])
    error_message = "The boot does not know the secret."
  }
}
