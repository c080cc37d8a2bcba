# The CloudWatch agent of the image ships the journal and the metrics of every machine. Session Manager installs the configuration on new machines
# of the cluster.
#
# An allow-list selects the metrics, because each name costs money every month. None of them has a label partition or topic: a thousand partitions
# would be thousands of metrics. Prometheus can read those from /metrics at no cost.

locals {
  namespace  = "Firn"
  dimensions = { for key in keys(var.brokers) : key => merge({ cluster = var.name }, var.by_node_id ? { node_id = key } : {}) }

  # Metrics of each broker, with the dimensions cluster and (by_node_id) node_id. docs/metrics.md explains them.
  metrics = [
    "firn_broker_up",
    "firn_bytes_in_total",
    "firn_bytes_out_total",
    "firn_connections",
    "firn_log_dir_free_bytes",
    "firn_log_offline",
    "firn_log_recovery_problems_total",
    "firn_offline_partitions",
    "firn_remote_corruptions_total",
    "firn_remote_missing_objects_total",
    "firn_store_responds",
    "firn_tier_copied_bytes_total",
    "firn_tier_corrupt_segments_total",
    "firn_tier_coverage_faults_total",
    "firn_tier_failures_total",
    "firn_tier_stalled_uploads_total",
  ]

  # Only of several brokers. They agree on the cluster, and one of them is the controller.
  several = var.replicated || !var.by_node_id
  of_several = {
    metrics = [
      "firn_broker_isolated",
      "firn_leaderless_partitions",
    ]
    alarms = {
      "broker-isolated"           = { metric = "firn_broker_isolated", statistic = "Maximum", above = 0, periods = 1, text = "A broker hears neither the other brokers nor the object store, and refuses clients. Look at its network." }
      "partitions-without-leader" = { metric = "firn_leaderless_partitions", statistic = "Maximum", above = 0, periods = 1, text = "Partitions have no leader, so they can be neither written nor read. `firn cluster status` names them." }
    }
  }
  # Of the cluster, not of each of its brokers.
  of_cluster = {
    metrics = [
      "firn_active_controller",
    ]
    alarms = {
      "no-controller" = { metric = "firn_active_controller", statistic = "Maximum", below = 1, periods = 1, text = "No broker is the controller, so the cluster cannot change." }
    }
  }
  # Only of several brokers with volumes: a single broker has no replicas.
  of_replicas = {
    metrics = [
      "firn_unclean_leader_elections_total",
      "firn_under_min_isr_partitions",
      "firn_under_replicated_partitions",
    ]
    alarms = {
      "unclean-election" = { metric = "firn_unclean_leader_elections_total", statistic = "Sum", above = 0, periods = 1, text = "A replica that was not in sync became leader, so acknowledged records may be lost." }
      "under-min-isr"    = { metric = "firn_under_min_isr_partitions", statistic = "Maximum", above = 0, periods = 1, text = "Producers with acks=all are refused: fewer replicas are in sync than min.insync.replicas. `firn cluster status` names the partitions." }
      "under-replicated" = { metric = "firn_under_replicated_partitions", statistic = "Maximum", above = 0, periods = 3, text = "Replicas have not been in sync for 15 minutes: a broker is away, or behind. `firn cluster status` names the partitions. End no other machine until they are." }
    }
  }
  of_brokers      = concat(local.metrics, local.several ? local.of_several.metrics : [], var.replicated ? local.of_replicas.metrics : [])
  of_all          = local.several ? local.of_cluster.metrics : []
  shipped         = concat(local.of_brokers, local.of_all)
  declared        = { for name, metrics in { of_brokers = local.of_brokers, of_all = local.of_all } : name => metrics if length(metrics) > 0 }
  dimensions_of   = { of_brokers = concat(["cluster"], var.by_node_id ? ["node_id"] : []), of_all = ["cluster"] }
  alarms_of_each  = merge(local.alarms, local.several ? local.of_several.alarms : {}, var.replicated ? local.of_replicas.alarms : {})
  alarms_of_all   = local.several ? local.of_cluster.alarms : {}
  without_a_value = { below = null, above = null, missing = false }

  # Alarms that alert somebody. Each has the name of a page of docs/runbooks, and infra/monitoring/README.md says which alerts of
  # Prometheus have no alarm. `Sum` adds up the increases in a period; the other statistics compare the level.
  alarms = {
    "broker-down"           = { metric = "firn_broker_up", statistic = "Minimum", below = 1, periods = 3, missing = true, text = "The HTTP process gets no response from its broker, or the machine sends no metrics. Look at the machine's journal." }
    "log-directory-offline" = { metric = "firn_log_offline", statistic = "Maximum", above = 0, periods = 1, text = "The data directory is offline: the broker refuses writes. Look at the journal, then at the volume." }
    "partitions-offline"    = { metric = "firn_offline_partitions", statistic = "Maximum", above = 0, periods = 1, text = "Partitions that the broker leads cannot be opened. `firn verify` and the journal say why." }
    "disk-nearly-full"      = { metric = "firn_log_dir_free_bytes", statistic = "Minimum", below = var.disk_free_bytes_min, periods = 3, text = "The data volume is nearly full. Enlarge it (data_disk.size_gib, fleet.disk_gib), or lower local.retention.bytes or local.retention.ms." }
    "store-unreachable"     = { metric = "firn_store_responds", statistic = "Minimum", below = 1, periods = 1, text = "The object store does not respond. Producers of topics with durability `object` are refused, and history cannot be read." }
    "tiering-fails"         = { metric = "firn_tier_failures_total", statistic = "Sum", above = 0, periods = 3, text = "Uploads have failed for 15 minutes. Records that are not in the bucket are on one disk only. The journal says why uploads fail." }
    "uploads-stall"         = { metric = "firn_tier_stalled_uploads_total", statistic = "Sum", above = 0, periods = 3, text = "Uploads make no progress. Check the network route to S3." }
    "local-corruption"      = { metric = "firn_tier_corrupt_segments_total", statistic = "Sum", above = 0, periods = 1, text = "A local segment is damaged. The journal names it." }
    "remote-corruption"     = { metric = "firn_remote_corruptions_total", statistic = "Sum", above = 0, periods = 1, text = "Bytes in the bucket differ from the bytes that were written. Run `firn verify`." }
    "remote-missing"        = { metric = "firn_remote_missing_objects_total", statistic = "Sum", above = 0, periods = 1, text = "An object that a manifest names is missing in the bucket. Run `firn verify`." }
    "coverage-fault"        = { metric = "firn_tier_coverage_faults_total", statistic = "Sum", above = 0, periods = 1, text = "A check found a gap or an overlap between the tiers. Run `firn verify`." }
  }
  metric_alarms = merge(
    {
      for pair in setproduct(keys(var.brokers), keys(local.alarms_of_each)) : "${pair[0]}-${pair[1]}" => merge(
        local.without_a_value, local.alarms_of_each[pair[1]],
        { name = pair[1], dimensions = local.dimensions[pair[0]], running = var.brokers[pair[0]] },
      )
    },
    {
      for name, alarm in local.alarms_of_all : name => merge(
        local.without_a_value, alarm, { name = name, dimensions = { cluster = var.name }, running = true },
      )
    },
  )

  prometheus = yamlencode({
    global = { scrape_interval = "60s", scrape_timeout = "30s" }
    scrape_configs = [merge({
      job_name       = "firn"
      static_configs = [{ targets = ["localhost:${var.http_port}"], labels = { cluster = var.name } }]
      metric_relabel_configs = [
        { source_labels = ["__name__"], regex = join("|", local.shipped), action = "keep" },
        { source_labels = ["partition"], regex = ".+", action = "drop" },
        { source_labels = ["topic"], regex = ".+", action = "drop" },
      ]
    }, local.login)]
  })
  # The first boot writes these files (infra/bootstrap). The agent reads them as root.
  login = merge([for host in var.certificate_host[*] : {
    scheme     = "https"
    tls_config = { ca_file = "/etc/firn/tls/ca.pem", server_name = host }
    basic_auth = { username = "metrics", password_file = "/etc/firn/tls/metrics.password" }
  }]...)

  agent = {
    agent = { metrics_collection_interval = 60, run_as_user = "root" }
    logs = {
      logs_collected = {
        files = {
          collect_list = [{
            file_path       = "/var/log/firn/journal.log"
            log_group_name  = aws_cloudwatch_log_group.journal.name
            log_stream_name = "{instance_id}"
          }]
        }
      }
      metrics_collected = {
        prometheus = {
          log_group_name         = aws_cloudwatch_log_group.metrics.name
          prometheus_config_path = "/etc/firn-watch/prometheus.yaml"
          emf_processor = {
            metric_namespace         = local.namespace
            metric_declaration_dedup = true
            metric_declaration = [for name, metrics in local.declared : {
              source_labels    = ["cluster"]
              label_matcher    = "^${var.name}$"
              dimensions       = [local.dimensions_of[name]]
              metric_selectors = [for metric in metrics : "^${metric}$"]
            }]
          }
        }
      }
    }
  }
}

resource "aws_cloudwatch_log_group" "journal" {
  name              = "/firn/${var.name}/journal"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_cloudwatch_log_group" "metrics" {
  # checkov:skip=CKV_AWS_338: CloudWatch has read the metrics; nobody needs these events afterwards
  name              = "/firn/${var.name}/metrics"
  retention_in_days = 1 # nobody needs these events after CloudWatch has read the metrics
  kms_key_id        = var.kms_key_arn
}

resource "aws_ssm_parameter" "agent" {
  # checkov:skip=CKV2_AWS_34: the configuration of an agent is no secret, and the agent reads plain parameters
  name        = "AmazonCloudWatch-firn-${var.name}"
  description = "Configuration of the CloudWatch agent"
  type        = "String" # no secret in it
  tier        = "Intelligent-Tiering"
  value       = jsonencode(local.agent)
}

resource "aws_ssm_document" "watch" {
  name            = "${var.name}-watch"
  document_type   = "Command"
  document_format = "JSON"
  content = jsonencode({
    schemaVersion = "2.2"
    description   = "Ship journal and metrics of a machine of Firn"
    mainSteps = [{
      action = "aws:runShellScript"
      name   = "watch"
      inputs = {
        timeoutSeconds = "300"
        runCommand = split("\n", templatefile("${path.module}/watch.sh.tftpl", {
          prometheus = local.prometheus
          parameter  = aws_ssm_parameter.agent.name
        }))
      }
    }]
  })
}

resource "aws_ssm_association" "watch" {
  association_name    = "${var.name}-watch"
  name                = aws_ssm_document.watch.name
  compliance_severity = "MEDIUM"

  targets {
    key    = "tag:firn:cluster"
    values = [var.name]
  }
}

# --- alarms ---------------------------------------------------------------------------------------------------------------------------

resource "aws_cloudwatch_metric_alarm" "broker" {
  for_each = local.metric_alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "${each.value.text} Runbook: docs/runbooks/${each.value.name}.md"
  namespace           = local.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = 300
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.below != null ? "LessThanThreshold" : "GreaterThanThreshold"
  threshold           = each.value.below != null ? each.value.below : each.value.above
  treat_missing_data  = each.value.missing && each.value.running && !var.scheduled ? "breaching" : "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "unreachable" {
  for_each = var.scheduled ? {} : { for node_id, running in var.brokers : node_id => running if running }

  alarm_name          = "${var.name}-${each.key}-unreachable"
  alarm_description   = "The load balancer cannot connect to ${var.by_node_id ? "broker ${each.key}" : "any broker"}, so clients cannot either."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = var.load_balancer_arn_suffix, TargetGroup = var.target_group_arn_suffixes[each.key] }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 3
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "machine" {
  for_each = var.brokers

  alarm_name          = "${var.name}-${each.key}-machine"
  alarm_description   = var.by_node_id ? "EC2 finds the machine of broker ${each.key} impaired. Its auto-scaling group replaces it; the volume stays." : "EC2 finds a machine impaired. Its auto-scaling group replaces it, and nothing is lost."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { AutoScalingGroupName = var.autoscaling_groups[each.key] }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = var.name
  dashboard_body = jsonencode({
    widgets = concat(
      [{
        type = "alarm", x = 0, y = 0, width = 24, height = 3
        properties = {
          title = "Alarms"
          alarms = concat(
            [for alarm in aws_cloudwatch_metric_alarm.broker : alarm.arn],
            [for alarm in aws_cloudwatch_metric_alarm.unreachable : alarm.arn],
            [for alarm in aws_cloudwatch_metric_alarm.machine : alarm.arn],
          )
        }
      }],
      [for index, graph in [
        { title = "Bytes in and out", stat = "Sum", metrics = ["firn_bytes_in_total", "firn_bytes_out_total"] },
        { title = "Bytes tiered", stat = "Sum", metrics = ["firn_tier_copied_bytes_total"] },
        { title = "Free bytes of the data directory", stat = "Minimum", metrics = ["firn_log_dir_free_bytes"] },
        { title = "Connections", stat = "Maximum", metrics = ["firn_connections"] },
        ] : {
        type = "metric", x = 12 * (index % 2), y = 3 + 6 * floor(index / 2), width = 12, height = 6
        properties = {
          title  = graph.title
          region = var.region
          stat   = graph.stat
          period = 60
          # A list of lists, as CloudWatch wants it: flatten would take the inner lists apart, too.
          metrics = concat([for metric in graph.metrics : [
            for key in keys(var.brokers) : concat([local.namespace, metric, "cluster", var.name], var.by_node_id ? ["node_id", key] : [])
          ]]...)
        }
      }],
    )
  })
}
