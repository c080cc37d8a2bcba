# Alarms that can go off, on metrics that are shipped.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_cloudwatch_metric_alarm" {
    defaults = { arn = "arn:aws:cloudwatch:eu-central-1:123456789012:alarm:prod-0-broker-down" }
  }
}

variables {
  name                      = "prod"
  region                    = "eu-central-1"
  kms_key_arn               = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  log_retention_days        = 30
  alarm_actions             = ["arn:aws:sns:eu-central-1:123456789012:pages"]
  http_port                 = 8080
  brokers                   = { "0" = true, "1" = false }
  scheduled                 = false
  disk_free_bytes_min       = 10737418240
  autoscaling_groups        = { "0" = "prod-broker-0", "1" = "prod-broker-1" }
  load_balancer_arn_suffix  = "net/prod-kafka/0123456789abcdef"
  target_group_arn_suffixes = { "0" = "targetgroup/prod-broker-0/0123456789abcdef", "1" = "targetgroup/prod-broker-1/0123456789abcdef" }
}

run "every_alarm_watches_a_metric_that_is_shipped_and_tells_somebody" {
  command = plan

  assert {
    condition     = alltrue([for alarm in aws_cloudwatch_metric_alarm.broker : contains(output.metric_names, alarm.metric_name) && alarm.namespace == output.metric_namespace])
    error_message = "An alarm watches a metric that nobody ships."
  }

  assert {
    condition     = alltrue([for alarm in concat(values(aws_cloudwatch_metric_alarm.broker), values(aws_cloudwatch_metric_alarm.unreachable), values(aws_cloudwatch_metric_alarm.machine)) : alarm.alarm_actions == toset(["arn:aws:sns:eu-central-1:123456789012:pages"]) && alarm.alarm_description != ""])
    error_message = "An alarm tells nobody, or does not say what to do."
  }
}

run "a_broker_that_says_nothing_is_down_unless_it_is_stopped" {
  command = plan

  assert {
    condition     = aws_cloudwatch_metric_alarm.broker["0-broker-down"].treat_missing_data == "breaching" && aws_cloudwatch_metric_alarm.broker["1-broker-down"].treat_missing_data == "notBreaching"
    error_message = "Silence of a broker that is meant to run wakes nobody, or that of a stopped one wakes somebody."
  }

  assert {
    condition     = toset(keys(aws_cloudwatch_metric_alarm.unreachable)) == toset(["0"])
    error_message = "A stopped broker is expected to be reachable."
  }
}

run "the_agent_ships_the_list_and_no_series_of_partitions" {
  command = plan

  assert {
    condition     = jsondecode(aws_ssm_parameter.agent.value).logs.metrics_collected.prometheus.emf_processor.metric_declaration[0].metric_selectors == [for metric in output.metric_names : "^${metric}$"]
    error_message = "The agent ships other metrics than the list."
  }

  assert {
    condition     = jsondecode(aws_ssm_parameter.agent.value).logs.metrics_collected.prometheus.emf_processor.metric_declaration[0].dimensions == [["cluster", "node_id"]]
    error_message = "A metric has other dimensions than cluster and node id."
  }

  assert {
    condition     = alltrue([for label in ["partition", "topic"] : strcontains(join("\n", jsondecode(aws_ssm_document.watch.content).mainSteps[0].inputs.runCommand), "\"action\": \"drop\"\n    \"regex\": \".+\"\n    \"source_labels\":\n    - \"${label}\"")])
    error_message = "Series of partitions are not dropped."
  }
}

run "logs_are_encrypted_and_end" {
  command = plan

  assert {
    condition     = aws_cloudwatch_log_group.journal.kms_key_id == var.kms_key_arn && aws_cloudwatch_log_group.journal.retention_in_days == 30 && aws_cloudwatch_log_group.metrics.kms_key_id == var.kms_key_arn
    error_message = "Logs are kept for ever, or in the clear."
  }
}

run "the_dashboard_draws_a_line_for_each_metric_of_each_broker" {
  command = plan

  # CloudWatch takes a metric as a list of its namespace, its name, and its dimensions by name and value.
  assert {
    condition = alltrue(flatten([
      for widget in slice(jsondecode(aws_cloudwatch_dashboard.this.dashboard_body).widgets, 1, 5) : [
        for line in widget.properties.metrics : try(length(line) == 6 && contains(output.metric_names, line[1]), false)
      ]
    ]))
    error_message = "The dashboard has a line that is no metric: ${aws_cloudwatch_dashboard.this.dashboard_body}"
  }

  assert {
    condition = jsondecode(aws_cloudwatch_dashboard.this.dashboard_body).widgets[1].properties.metrics == [
      for pair in setproduct(["firn_bytes_in_total", "firn_bytes_out_total"], ["0", "1"]) : ["Firn", pair[0], "cluster", "prod", "node_id", pair[1]]
    ]
    error_message = "The first graph is not of the bytes in and out of each broker: ${aws_cloudwatch_dashboard.this.dashboard_body}"
  }
}

run "brokers_that_come_and_go_make_no_new_metrics" {
  command = plan

  variables {
    brokers                   = { fleet = true }
    by_node_id                = false
    autoscaling_groups        = { fleet = "prod-fleet" }
    target_group_arn_suffixes = { fleet = "targetgroup/prod-fleet/0123456789abcdef" }
  }

  assert {
    condition     = alltrue([for alarm in aws_cloudwatch_metric_alarm.broker : alarm.dimensions == tomap({ cluster = "prod" })])
    error_message = "An alarm is of one node id, which the next machine has not."
  }

  assert {
    condition     = !strcontains(aws_ssm_parameter.agent.value, "node_id") && !strcontains(aws_cloudwatch_dashboard.this.dashboard_body, "node_id")
    error_message = "Each machine is a metric more."
  }
}

run "metrics_are_read_with_a_login_if_brokers_have_a_certificate" {
  command = plan

  variables {
    certificate_host = "kafka.example.com"
  }

  assert {
    condition = alltrue([for part in ["scheme\": \"https", "server_name\": \"kafka.example.com", "password_file\": \"/etc/firn/tls/metrics.password"] :
    strcontains(join("\n", jsondecode(aws_ssm_document.watch.content).mainSteps[0].inputs.runCommand), part)])
    error_message = "Metrics are read by ${aws_ssm_document.watch.content}"
  }
}

run "metrics_are_read_without_a_login_if_brokers_have_no_certificate" {
  command = plan

  assert {
    condition     = !strcontains(aws_ssm_document.watch.content, "basic_auth") && !strcontains(aws_ssm_document.watch.content, "https")
    error_message = "Metrics are read by ${aws_ssm_document.watch.content}"
  }
}

run "missing_replicas_and_refused_writes_of_several_brokers_tell_somebody" {
  command = plan

  variables {
    replicated = true
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.broker["0-under-min-isr"].metric_name == "firn_under_min_isr_partitions" && aws_cloudwatch_metric_alarm.broker["0-under-replicated"].evaluation_periods == 3
    error_message = "Nobody is told that replicas are missing."
  }

  assert {
    condition     = alltrue([for alarm in aws_cloudwatch_metric_alarm.broker : contains(output.metric_names, alarm.metric_name)])
    error_message = "An alarm of replicas watches a metric that nobody ships."
  }
}

run "a_single_broker_has_no_alarms_of_replicas" {
  command = plan

  assert {
    condition     = !contains(output.metric_names, "firn_under_min_isr_partitions") && !contains(output.metric_names, "firn_active_controller") && !contains(keys(aws_cloudwatch_metric_alarm.broker), "0-under-min-isr")
    error_message = "Metrics of replicas are shipped, and paid for, where there are none."
  }
}

run "that_no_broker_is_the_controller_is_said_once_for_all_brokers" {
  command = plan

  variables {
    replicated = true
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.broker["no-controller"].dimensions == tomap({ cluster = "prod" }) && aws_cloudwatch_metric_alarm.broker["no-controller"].comparison_operator == "LessThanThreshold" && !contains(keys(aws_cloudwatch_metric_alarm.broker), "0-no-controller")
    error_message = "A broker that is not the controller wakes somebody."
  }

  assert {
    condition = [
      for declared in jsondecode(aws_ssm_parameter.agent.value).logs.metrics_collected.prometheus.emf_processor.metric_declaration :
      declared.dimensions if contains(declared.metric_selectors, "^firn_active_controller$")
    ] == [[["cluster"]]]
    error_message = "The controller is a metric of each broker: ${aws_ssm_parameter.agent.value}"
  }

  assert {
    condition     = output.metric_count == 2 * (length(output.metric_names) - 1) + 1
    error_message = "${output.metric_count} metrics are billed."
  }
}

run "brokers_without_volumes_have_the_alarms_of_several" {
  command = plan

  variables {
    brokers                   = { fleet = true }
    by_node_id                = false
    autoscaling_groups        = { fleet = "prod-fleet" }
    target_group_arn_suffixes = { fleet = "targetgroup/prod-fleet/0123456789abcdef" }
  }

  assert {
    condition     = contains(keys(aws_cloudwatch_metric_alarm.broker), "no-controller") && contains(keys(aws_cloudwatch_metric_alarm.broker), "fleet-broker-isolated") && !contains(keys(aws_cloudwatch_metric_alarm.broker), "fleet-under-min-isr")
    error_message = "The alarms are ${join(", ", keys(aws_cloudwatch_metric_alarm.broker))}."
  }

  assert {
    condition     = output.metric_count == length(output.metric_names)
    error_message = "${output.metric_count} metrics are billed."
  }
}

run "an_alarm_names_its_runbook" {
  command = plan

  assert {
    condition     = endswith(aws_cloudwatch_metric_alarm.broker["0-store-unreachable"].alarm_description, " Runbook: docs/runbooks/store-unreachable.md")
    error_message = "It says ${aws_cloudwatch_metric_alarm.broker["0-store-unreachable"].alarm_description}"
  }
}
