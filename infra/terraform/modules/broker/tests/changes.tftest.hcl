# What a change of a variable does to a group that is there. Its disk is the machine's own, because what the runs make is destroyed after the last of
# them, and a volume cannot be.

mock_provider "aws" {}

variables {
  data_disk = { kind = "instance-store", size_gib = 100, type = "gp3", iops = 3000, throughput_mibs = 125, filesystem = "xfs" }
}

run "a_group_is_made_with_its_hooks" {
  command = apply

  assert {
    condition     = contains([for hook in aws_autoscaling_group.broker["0"].initial_lifecycle_hook : hook.heartbeat_timeout], 900)
    error_message = "The launch hook does not hold for launch_timeout_s."
  }
}

run "another_launch_timeout_replaces_no_group" {
  command = plan

  variables {
    launch_timeout_s = 1200
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.broker : !contains([for hook in group.initial_lifecycle_hook : hook.heartbeat_timeout], 1200) && group.health_check_grace_period == 1200])
    error_message = "A hook of the group changes, and the provider would replace the group and its machine."
  }
}
