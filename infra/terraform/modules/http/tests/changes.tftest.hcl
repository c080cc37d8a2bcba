# What a change of a variable does to groups that are there.

mock_provider "aws" {}

run "groups_are_made_with_their_hook" {
  command = apply

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.http : [for hook in group.initial_lifecycle_hook : hook.heartbeat_timeout] == [900]])
    error_message = "The launch hook does not hold for launch_timeout_s."
  }
}

run "another_launch_timeout_replaces_no_group" {
  command = plan

  variables {
    launch_timeout_s = 1200
  }

  assert {
    condition     = alltrue([for group in aws_autoscaling_group.http : [for hook in group.initial_lifecycle_hook : hook.heartbeat_timeout] == [900]])
    error_message = "A hook of a group changes, and the provider would replace the group and its machines."
  }
}
