locals {
  lost_with = var.data_disk.kind == "instance-store" ? "is lost with the machine" : "is not served until its volume is attached again, and is lost with the volume"

  kcat_login = var.security == null ? "" : "-X security.protocol=SASL_SSL -X ssl.ca.location=ca.pem -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=admin -X sasl.password=PASSWORD "

  # With security, commands on a machine show its certificate (infra/bootstrap writes machine.env).
  drain = (var.security == null
    ? "/opt/firn/current/bin/firn drain --data-dir /var/lib/firn/data"
    : "set -a && . /etc/firn/machine.env && /opt/firn/current/bin/firn drain --bootstrap $FIRN_BOOTSTRAP"
  )
}

output "bootstrap_servers" {
  description = "Value of a client's bootstrap.servers."
  value       = join(",", [for key in sort(keys(module.broker.addresses)) : module.broker.addresses[key]])
}

output "broker_addresses" {
  description = "host:port by node id; of a fleet one, which clients connect to first. They stay the same when machines are replaced."
  value       = module.broker.addresses
}

output "client_properties" {
  description = "Client settings to paste into a file. The load balancer drops connections that are idle for 350 s, so clients close or probe them earlier."
  value = <<-EOT
    # Java clients, and Kafka's command-line tools
    bootstrap.servers=${join(",", values(module.broker.addresses))}
    ${join("\n    ", var.security == null ? ["security.protocol=PLAINTEXT"] : [
  "security.protocol=SASL_SSL",
  "sasl.mechanism=SCRAM-SHA-512",
  "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"NAME\" password=\"PASSWORD\";",
  "ssl.truststore.type=PEM",
  "ssl.truststore.location=ca.pem",
])}
    connections.max.idle.ms=240000
    # librdkafka (confluent-kafka, kcat) needs this one besides
    # socket.keepalive.enable=true
  EOT
}

output "try_it" {
  description = "Commands to try the broker on a machine in client_cidrs."
  value       = <<-EOT
    echo hello | kcat -b ${local.first_address} ${local.kcat_login}-t greetings -P
    kcat -b ${local.first_address} ${local.kcat_login}-t greetings -C -e -q
  EOT
}

output "http_url" {
  description = "REST, metrics and pages; null without http."
  value       = one(module.http[*].url)
}

output "http_load_balancer" {
  description = "Name of the load balancer. If http.dns_zone_id is not set, make http.host an alias of it. null without http."
  value       = one(module.http[*].load_balancer_dns_name)
}

output "store_url" {
  description = "URL of the store, for `firn … --store`."
  value       = module.storage.store_url
}

output "wal_store_url" {
  description = "URL of the store of write-ahead logs, for `firn … --wal-store`; null without wal_store."
  value       = module.storage.wal_store_url
}

output "bucket_policy" {
  description = "The policy of the bucket. With existing_bucket: the statements that its policy should contain."
  value       = module.storage.bucket_policy
}

output "what_can_be_lost" {
  description = "The losses that you accepted, in words; empty if there are none."
  value = join(" ", concat(length(local.risky) == 0 ? [] : concat(
    ["You chose: ${join(", ", local.risky)}."],
    local.cluster ? [
      "Topics with several replicas lose nothing while a replica that is in sync is left.",
      "Of topics with one replica, data that only one disk holds ${local.lost_with}:",
      "records of tiered topics that are not in the bucket yet (firn_tier_lag_bytes; at most firn.tier.max.lag.ms old),",
      "compacted topics and topics with remote.storage.enable=false.",
      ] : [
      "If a broker ends before it is drained, data that only its disk holds ${local.lost_with}:",
      "records of tiered topics that are not in the bucket yet (firn_tier_lag_bytes; at most firn.tier.max.lag.ms old),",
      "${var.data_disk.kind == "instance-store" ? "and, drained or not," : "and, also when drained,"} compacted topics, topics with remote.storage.enable=false, committed offsets, transactional ids and the progress of share groups.",
    ],
    ), try(var.wal_store.kind, "") != "express" ? [] : [
    "If zone ${var.wal_store.zone_id} is lost, the records of topics with firn.durability=object that are not tiered yet are lost with it: they are in S3 Express One Zone only.",
  ]))
}

output "drain_commands" {
  description = "A command for each node id that drains the broker by Session Manager. End the machine afterwards; the group then starts the next machine."
  value = {
    for node_id, group in module.broker.autoscaling_groups : node_id => join(" ", [
      "aws ssm send-command --region ${var.region} --document-name AWS-RunShellScript",
      "--targets Key=tag:aws:autoscaling:groupName,Values=${group}",
      # Session Manager ends a command after an hour unless executionTimeout says otherwise; --timeout-seconds is for its delivery.
      "--parameters '${jsonencode({
        commands         = ["${local.drain} --timeout ${var.drain_timeout_s}"]
        executionTimeout = [tostring(var.drain_timeout_s + 120)]
      })}'",
      "--timeout-seconds 60",
    ])
  }
}

output "replace_commands" {
  description = "A command for each node id of several that ends its machine, and returns when the next one serves. Run one after the other: a machine waits until all replicas are in sync before its broker ends, unless this broker is dead. null unless brokers has several entries."
  value = !local.cluster ? null : {
    for node_id, group in module.broker.autoscaling_groups : node_id => join(" ", [
      "machine() { aws autoscaling describe-auto-scaling-groups --region ${var.region} --auto-scaling-group-names ${group}",
      "--query \"AutoScalingGroups[0].Instances[?LifecycleState=='InService'].InstanceId\" --output text; };",
      "old=$(machine) &&",
      "aws autoscaling terminate-instance-in-auto-scaling-group --region ${var.region} --instance-id \"$old\" --no-should-decrement-desired-capacity &&",
      "until new=$(machine) && test -n \"$new\" -a \"$new\" != \"$old\"; do sleep 10; done",
    ])
  }
}

output "fleet_commands" {
  description = "Commands that change the number of brokers without disks, to none too; null without fleet."
  value = var.fleet == null ? null : {
    to_zero = "aws autoscaling update-auto-scaling-group --region ${var.region} --auto-scaling-group-name ${module.broker.fleet_group} --min-size 0 --desired-capacity 0"
    back    = "aws autoscaling update-auto-scaling-group --region ${var.region} --auto-scaling-group-name ${module.broker.fleet_group} --min-size ${var.fleet.min} --desired-capacity ${var.fleet.min}"
  }
}

output "autoscaling_groups" {
  description = "Auto-scaling group by node id."
  value       = module.broker.autoscaling_groups
}

output "data_volumes" {
  description = "Data volume by node id; empty with instance store."
  value       = module.broker.volume_ids
}

output "broker_role_arns" {
  description = "ARN of the role by node id."
  value       = module.broker.role_arns
}

output "broker_store_policy" {
  description = "The brokers' permissions in the bucket; `firn iam policy --role broker` prints the same."
  value       = module.broker.store_policy
}

output "bootstrap_json" {
  description = "The document that the first boot of each node id reads from its launch template. It contains no secret."
  value       = module.broker.bootstrap
}

output "http_bootstrap_json" {
  description = "The document that the first boot of HTTP machines reads, by zone; null without http."
  value       = one(module.http[*].bootstrap)
}

output "kms_key_arn" {
  description = "Key that encrypts bucket, volumes, logs and secrets."
  value       = module.storage.kms_key_arn
}

output "secret_arn" {
  description = "The secret of the brokers; null without create_secret and security."
  value       = local.secret_arn
}

output "vpc_id" {
  description = "Id of the VPC."
  value       = module.network.vpc_id
}

output "subnet_ids" {
  description = "Ids of the private subnets by zone."
  value       = module.network.subnet_ids
}

output "interface_endpoint_count" {
  description = "Number of interface endpoints in each zone; each is billed by the hour."
  value       = module.network.interface_endpoint_count
}

output "bill" {
  description = "How many there are of what `firn cost --with NAME=COUNT` takes."
  value = {
    load_balancer      = local.direct ? 0 : 1 # of several brokers only first connections go through it: its hours besides
    endpoint           = module.network.interface_endpoint_count
    nat                = var.egress == "nat" ? 1 : 0
    key                = var.kms_key_arn == null ? 1 : 0
    metric             = module.observability.metric_count
    alarm              = module.observability.alarm_count
    http_machine       = var.http == null ? 0 : var.http.machines * length(var.zones)
    http_load_balancer = var.http == null ? 0 : 1
  }
}

output "journal_log_group" {
  description = "Log group of the machines' journals."
  value       = module.observability.log_group_name
}

output "metric_names" {
  description = "Names of the metrics that CloudWatch gets."
  value       = module.observability.metric_names
}

output "spark" {
  description = "Application, role, repository, policy, the bucket of scripts and the command that submits a job; null without spark."
  value = var.spark == null ? null : {
    application_id = module.spark[0].application_id
    role_arn       = module.spark[0].role_arn
    repository_url = module.spark[0].repository_url
    store_policy   = module.spark[0].store_policy
    script_bucket  = module.spark[0].script_bucket
    submit_command = module.spark[0].submit_command
  }
}
