# What is planned for one broker, and what the options change. Names of runs are claims.

mock_provider "aws" {
  source          = "./tests/mocks"
  override_during = plan
}

variables {
  cluster_name = "prod"
  region       = "eu-central-1"
  zones        = ["eu-central-1a"]
  brokers      = { "0" = { zone = "eu-central-1a" } }
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
}

run "the_first_boot_reads_the_shape_that_it_checks" {
  command = plan

  assert {
    condition = jsondecode(output.bootstrap_json["0"]) == jsondecode(<<-JSON
      {
        "version": 1, "role": "broker", "cluster": "prod", "node_id": 0, "region": "eu-central-1", "zone": "eu-central-1a",
        "store": "s3://prod-123456789012-eu-central-1?region=eu-central-1",
        "wheelhouse": null,
        "data": {"kind": "ebs", "volume_id": "vol-0123456789abcdef0", "filesystem": "xfs"},
        "accept_loss_of_untiered": false,
        "advertised": {"host": "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com", "port": 9092},
        "http": {"enabled": true, "port": 8080},
        "settings": {"connections.max.idle.ms": "300000", "firn.durability": "disk"},
        "lifecycle": {"autoscaling_group": "prod-broker-0", "launch_hook": "firn-launch", "terminate_hook": "firn-terminate", "heartbeat_s": 60},
        "endpoints": {}
      }
    JSON
    )
    error_message = "The bootstrap document is ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = output.what_can_be_lost == ""
    error_message = "One broker on demand with a volume loses nothing, but the output says: ${output.what_can_be_lost}"
  }

  assert {
    condition     = output.bootstrap_servers == "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com:9092"
    error_message = "Clients are told ${output.bootstrap_servers}"
  }
}

run "brokers_write_their_prefixes_and_nothing_else" {
  command = plan

  assert {
    condition = toset(one([for statement in jsondecode(output.broker_store_policy).Statement : statement.Resource if contains(flatten([statement.Action]), "s3:PutObject")])) == toset([
      for prefix in ["cluster", "topics", "data", "wal", "check"] : "arn:aws:s3:::prod-123456789012-eu-central-1/${prefix}/*"
    ])
    error_message = "Brokers may write ${output.broker_store_policy}"
  }

  assert {
    condition     = !strcontains(output.broker_store_policy, "\"s3:*\"") && !strcontains(output.broker_store_policy, "DeleteBucket")
    error_message = "Brokers may do more than the program does."
  }
}

run "the_prefix_of_the_bucket_is_in_policies_and_store_url" {
  command = plan

  variables {
    bucket_prefix = "firn/prod"
  }

  assert {
    condition     = output.store_url == "s3://prod-123456789012-eu-central-1/firn/prod?region=eu-central-1"
    error_message = "The store is ${output.store_url}"
  }

  assert {
    condition     = strcontains(output.broker_store_policy, "prod-123456789012-eu-central-1/firn/prod/topics/*") && !strcontains(output.broker_store_policy, "eu-central-1/topics/*")
    error_message = "The broker's policy leaves the prefix out: ${output.broker_store_policy}"
  }

  assert {
    condition     = strcontains(output.bucket_policy, "prod-123456789012-eu-central-1/firn/prod/cluster/log/*")
    error_message = "The bucket's policy leaves the prefix out: ${output.bucket_policy}"
  }
}

run "the_bucket_takes_tls_conditional_writes_and_brokers_only" {
  command = plan

  variables {
    operator_role_arns = ["arn:aws:iam::123456789012:role/operator"]
  }

  assert {
    condition     = [for statement in jsondecode(output.bucket_policy).Statement : "${statement.Effect} ${statement.Sid}"] == ["Deny TlsOnly", "Deny WriteOnce", "Deny BrokersWrite"]
    error_message = "The bucket's policy is ${output.bucket_policy}"
  }

  assert {
    condition     = jsondecode(output.bucket_policy).Statement[1].Condition == { Null = { "s3:if-none-match" = "true" }, Bool = { "s3:ObjectCreationOperation" = "true" } }
    error_message = "Writes are not conditional: ${output.bucket_policy}"
  }

  assert {
    condition     = !strcontains(jsonencode(jsondecode(output.bucket_policy).Statement[1].Resource), "heartbeat") && contains(jsondecode(output.bucket_policy).Statement[1].Resource, "arn:aws:s3:::prod-123456789012-eu-central-1/cluster/log/*")
    error_message = "Signs of life are overwritten, and the cluster log is not: ${output.bucket_policy}"
  }

  assert {
    condition     = jsondecode(output.bucket_policy).Statement[2].Condition.ArnNotEquals["aws:PrincipalArn"] == ["arn:aws:iam::123456789012:role/operator", "arn:aws:iam::123456789012:role/prod-broker-0"]
    error_message = "Others than brokers and operators may write: ${output.bucket_policy}"
  }
}

run "a_cluster_changes_counts_and_not_modules" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    redis = {}
    brokers = {
      "0" = { zone = "eu-central-1a" }
      "1" = { zone = "eu-central-1b" }
      "2" = { zone = "eu-central-1c" }
    }
  }

  assert {
    condition     = length(output.autoscaling_groups) == 3 && length(output.data_volumes) == 3 && length(distinct(values(output.broker_addresses))) == 3
    error_message = "Three node ids are not three groups, volumes and addresses."
  }

  assert {
    condition     = output.broker_addresses["2"] == "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com:9094"
    error_message = "Broker 2 is at ${output.broker_addresses["2"]}"
  }

  assert {
    condition     = alltrue([for text in values(output.bootstrap_json) : jsondecode(text).advertised == null]) && jsondecode(output.bootstrap_json["2"]).zone == "eu-central-1c"
    error_message = "Brokers of a cluster do not advertise their machines, or are in another zone: ${output.bootstrap_json["2"]}"
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["0"]).settings["default.replication.factor"] == "3" && jsondecode(output.bootstrap_json["0"]).settings["min.insync.replicas"] == "2"
    error_message = "New topics of a cluster have no three replicas: ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = contains(output.metric_names, "firn_under_min_isr_partitions") && output.what_can_be_lost == "" && output.bill.load_balancer == 0
    error_message = "Nothing watches the replicas of a cluster, or it is said to lose something: ${output.what_can_be_lost}"
  }

  assert {
    condition     = strcontains(output.replace_commands["1"], "--auto-scaling-group-names prod-broker-1 ") && strcontains(output.replace_commands["1"], "--no-should-decrement-desired-capacity")
    error_message = "Machines of a cluster are replaced by ${output.replace_commands["1"]}"
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["1"]).settings["firn.redis.url"] == "rediss://master.prod-valkey.abcdef.euc1.cache.amazonaws.com:6379"
    error_message = "Brokers of a cluster are not told where Valkey is."
  }
}

run "write_ahead_logs_have_a_bucket_in_one_zone" {
  command = plan

  variables {
    accept_loss_of_untiered = true
    wal_store               = { zone_id = "euc1-az1" }
  }

  assert {
    condition     = output.wal_store_url == "s3://prod-wal-123456789012--euc1-az1--x-s3?region=eu-central-1" && jsondecode(output.bootstrap_json["0"]).settings["firn.wal.store.url"] == output.wal_store_url
    error_message = "Brokers are told of ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = strcontains(output.broker_store_policy, "arn:aws:s3express:eu-central-1:123456789012:bucket/prod-wal-123456789012--euc1-az1--x-s3") && strcontains(output.broker_store_policy, "arn:aws:s3:::prod-123456789012-eu-central-1/wal/*")
    error_message = "Brokers may do ${output.broker_store_policy}"
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "zone euc1-az1")
    error_message = "The output does not say what is lost with the zone: ${output.what_can_be_lost}"
  }
}

run "write_ahead_logs_have_another_bucket" {
  command = plan

  variables {
    bucket_prefix = "firn/prod"
    wal_store     = { kind = "standard" }
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["0"]).settings["firn.wal.store.url"] == "s3://prod-wal-123456789012?region=eu-central-1"
    error_message = "Brokers are told of ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = strcontains(output.broker_store_policy, "arn:aws:s3:::prod-wal-123456789012/wal/*") && strcontains(output.broker_store_policy, "arn:aws:s3:::prod-123456789012-eu-central-1/firn/prod/wal/*")
    error_message = "Brokers may do ${output.broker_store_policy}"
  }
}

run "a_stopped_broker_keeps_its_volume_and_address" {
  command = plan

  variables {
    accept_loss_of_untiered = true
    brokers                 = { "0" = { zone = "eu-central-1a", running = false } }
  }

  assert {
    condition     = output.data_volumes["0"] == "vol-0123456789abcdef0" && length(output.broker_addresses) == 1
    error_message = "A stopped broker lost its volume or its address."
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "a broker that is stopped")
    error_message = "The output does not say what can be lost: ${output.what_can_be_lost}"
  }
}

run "records_in_memory_alone_are_said_to_be_lost_with_the_machine" {
  command = plan

  variables {
    settings = { "firn.durability" = "memory" }
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "firn.durability=memory") && jsondecode(output.bootstrap_json["0"]).settings["firn.durability"] == "memory"
    error_message = "The output says ${output.what_can_be_lost}"
  }
}

run "spot_says_what_it_loses" {
  command = plan

  variables {
    market                  = "spot"
    accept_loss_of_untiered = true
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "120 s to drain") && strcontains(output.what_can_be_lost, "committed offsets")
    error_message = "The output says ${output.what_can_be_lost}"
  }
}

run "several_brokers_on_spot_lose_topics_with_one_replica_alone" {
  command = plan

  variables {
    market                  = "spot"
    accept_loss_of_untiered = true
    zones                   = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    brokers = {
      "0" = { zone = "eu-central-1a" }
      "1" = { zone = "eu-central-1b" }
      "2" = { zone = "eu-central-1c" }
    }
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "Of topics with one replica") && strcontains(output.what_can_be_lost, "lost with the volume") && !strcontains(output.what_can_be_lost, "committed offsets") && !strcontains(output.what_can_be_lost, "drain")
    error_message = "The output says ${output.what_can_be_lost}"
  }
}

run "instance_store_has_no_volume_and_says_what_it_loses" {
  command = plan

  variables {
    instance_type           = "i8g.large"
    data_disk               = { kind = "instance-store" }
    accept_loss_of_untiered = true
  }

  override_data {
    target          = data.aws_ec2_instance_type.broker
    override_during = plan
    values = {
      supported_architectures    = ["arm64"]
      instance_storage_supported = true
      default_vcpus              = 2
    }
  }

  assert {
    condition     = length(output.data_volumes) == 0 && jsondecode(output.bootstrap_json["0"]).data.volume_id == null
    error_message = "There is a volume beside the instance store."
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "gone with the machine") && strcontains(output.what_can_be_lost, "drained or not")
    error_message = "The output says ${output.what_can_be_lost}"
  }
}

run "scale_to_zero_says_what_it_loses" {
  command = plan

  variables {
    scale_to_zero           = { down = "0 20 * * *", up = "0 6 * * 1-5", time_zone = "Europe/Berlin" }
    accept_loss_of_untiered = true
  }

  assert {
    condition     = strcontains(output.what_can_be_lost, "scale to zero by schedule")
    error_message = "The output says ${output.what_can_be_lost}"
  }
}

run "an_existing_vpc_and_bucket_are_used" {
  command = plan

  variables {
    existing_bucket = "records-of-ours"
    egress          = "existing"
    existing_vpc = {
      vpc_id          = "vpc-0123456789abcdef0"
      subnet_ids      = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }
      route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"]
    }
  }

  assert {
    condition     = output.vpc_id == "vpc-0123456789abcdef0" && output.subnet_ids["eu-central-1a"] == "subnet-0aaaaaaaaaaaaaaaa"
    error_message = "The existing VPC is not used."
  }

  assert {
    condition     = output.store_url == "s3://records-of-ours?region=eu-central-1" && output.interface_endpoint_count == 0
    error_message = "The existing bucket is not used, or endpoints are made where the VPC has a way."
  }
}

run "http_asks_brokers_and_knows_its_name" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http = {
      certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555"
      host            = "firn.example.com"
    }
  }

  assert {
    condition     = output.bill.http_machine == 2 && output.bill.http_load_balancer == 1
    error_message = "The bill counts ${jsonencode(output.bill)}"
  }

  assert {
    condition     = output.http_url == "https://firn.example.com"
    error_message = "HTTP is at ${output.http_url}"
  }

  assert {
    condition     = jsondecode(output.http_bootstrap_json["eu-central-1b"]).role == "http" && jsondecode(output.http_bootstrap_json["eu-central-1b"]).zone == "eu-central-1b" && jsondecode(output.http_bootstrap_json["eu-central-1b"]).settings["bootstrap.servers"] == output.bootstrap_servers && jsondecode(output.http_bootstrap_json["eu-central-1b"]).settings["firn.http.allowed.hosts"] == "firn.example.com"
    error_message = "HTTP machines are told ${output.http_bootstrap_json["eu-central-1b"]}"
  }
}

run "spark_reads_named_topics_and_writes_elsewhere" {
  command = plan

  variables {
    spark = {
      topic_ids     = ["0b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d"]
      target_bucket = "lake-of-ours"
    }
  }

  assert {
    condition = toset(jsondecode(output.spark.store_policy).Statement[0].Resource) == toset([
      "arn:aws:s3:::prod-123456789012-eu-central-1/cluster/log/*",
      "arn:aws:s3:::prod-123456789012-eu-central-1/cluster/snapshot/*",
      "arn:aws:s3:::prod-123456789012-eu-central-1/topics/0b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d/*",
      "arn:aws:s3:::prod-123456789012-eu-central-1/data/*/0b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d/*",
    ])
    error_message = "Spark may read ${output.spark.store_policy}"
  }

  assert {
    condition     = !strcontains(output.spark.store_policy, "Put") && !strcontains(output.spark.store_policy, "Delete")
    error_message = "Spark may write to the cluster's bucket: ${output.spark.store_policy}"
  }

  assert {
    condition     = strcontains(output.spark.submit_command, "00f0123456789abc") && strcontains(output.spark.submit_command, "s3://lake-of-ours/job.py")
    error_message = "The command submits to no application: ${output.spark.submit_command}"
  }
}

run "a_job_without_a_target_reads_its_script" {
  command = plan

  variables {
    spark = { script_bucket = "scripts-of-ours" }
  }

  assert {
    condition     = strcontains(output.spark.submit_command, "\"entryPoint\":\"s3://scripts-of-ours/job.py\"") && output.spark.script_bucket == "scripts-of-ours"
    error_message = "The command submits ${output.spark.submit_command}"
  }
}

run "a_drain_by_session_manager_may_last_as_long_as_it_says" {
  command = plan

  variables {
    drain_timeout_s = 12000
  }

  assert {
    condition = jsondecode(regex("--parameters '([^']*)'", output.drain_commands["0"])[0]) == {
      commands         = ["/opt/firn/current/bin/firn drain --data-dir /var/lib/firn/data --timeout 12000"]
      executionTimeout = ["12120"]
    }
    error_message = "Session Manager would end the drain before its time: ${output.drain_commands["0"]}"
  }
}

run "the_bill_counts_what_is_there" {
  command = plan

  variables {
    egress      = "nat"
    kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }

  assert {
    condition     = output.bill == { load_balancer = 1, endpoint = 0, nat = 1, key = 0, metric = 16, alarm = 13, http_machine = 0, http_load_balancer = 0 }
    error_message = "The bill counts ${jsonencode(output.bill)}"
  }
}

run "a_name_in_route_53_is_what_clients_are_told" {
  command = plan

  variables {
    dns = { zone_id = "Z0123456789ABCDEFGHIJ", name = "kafka.example.com" }
  }

  assert {
    condition     = output.bootstrap_servers == "kafka.example.com:9092" && jsondecode(output.bootstrap_json["0"]).advertised.host == "kafka.example.com"
    error_message = "Clients are told ${output.bootstrap_servers}"
  }
}

run "packages_of_a_bucket_are_named_by_their_hash" {
  command = plan

  variables {
    wheelhouse = {
      bucket = "artifacts-of-ours"
      key    = "firn-wheelhouse-0.1.0-aarch64.tar.gz"
      sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    }
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["0"]).wheelhouse.sha256 == "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    error_message = "The hash of the packages is not in the launch template."
  }
}

run "no_metric_is_of_a_partition" {
  command = plan

  assert {
    condition     = alltrue([for metric in output.metric_names : !contains(["firn_tier_lag_bytes", "firn_log_end_offset", "firn_log_high_watermark", "firn_group_lag_records", "firn_log_local_bytes", "firn_tier_remote_bytes"], metric)]) && length(output.metric_names) <= 22
    error_message = "CloudWatch would get a metric for each partition: ${join(", ", output.metric_names)}"
  }
}

run "brokers_without_disks_lose_nothing_and_are_told_no_address_of_their_own" {
  command = plan

  variables {
    brokers       = {}
    zones         = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    fleet         = { on_demand = 0 }
    scale_to_zero = { down = "0 20 * * *", up = "0 6 * * *" }
  }

  assert {
    condition     = output.what_can_be_lost == "" && length(output.data_volumes) == 0 && length(output.drain_commands) == 0
    error_message = "Brokers without disks have something to lose: ${output.what_can_be_lost}"
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["fleet"]).node_id == "auto" && jsondecode(output.bootstrap_json["fleet"]).advertised == null && jsondecode(output.bootstrap_json["fleet"]).settings == { "connections.max.idle.ms" = "300000", "log.local.retention.ms" = "900000" }
    error_message = "The bootstrap document is ${output.bootstrap_json["fleet"]}"
  }

  assert {
    condition     = output.bootstrap_servers == "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com:9092"
    error_message = "Clients are told ${output.bootstrap_servers}"
  }

  assert {
    condition     = contains(jsondecode(output.bucket_policy).Statement[2].Condition.ArnNotEquals["aws:PrincipalArn"], "arn:aws:iam::123456789012:role/prod-fleet")
    error_message = "The bucket does not let the brokers write: ${output.bucket_policy}"
  }

  assert {
    condition     = output.bill.metric == length(output.metric_names) && output.bill.load_balancer == 0 && output.interface_endpoint_count == 7
    error_message = "The bill is ${jsonencode(output.bill)}"
  }

  assert {
    condition     = strcontains(output.fleet_commands.to_zero, "prod-fleet --min-size 0 --desired-capacity 0") && strcontains(output.fleet_commands.back, "--min-size 3 --desired-capacity 3")
    error_message = "The commands are ${jsonencode(output.fleet_commands)}"
  }
}

# --- security -----------------------------------------------------------------------------------------------------------------

run "without_security_nothing_of_it_is_planned" {
  command = plan

  assert {
    condition     = !can(jsondecode(output.bootstrap_json["0"]).security) && output.secret_arn == null
    error_message = "The boot of an older release would refuse ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = strcontains(output.client_properties, "security.protocol=PLAINTEXT") && strcontains(output.drain_commands["0"], "--data-dir")
    error_message = "Clients are told ${output.client_properties}"
  }
}

run "with_security_machines_know_the_authority_and_brokers_the_secret" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    security = {
      ca_pem     = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
      secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"
    }
    http = {
      certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555"
      host            = "firn.example.com"
    }
  }

  assert {
    condition = jsondecode(output.bootstrap_json["0"]).security == {
      secret = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"
      ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    }
    error_message = "The boot of a broker reads ${output.bootstrap_json["0"]}"
  }

  assert {
    condition     = alltrue([for text in values(output.http_bootstrap_json) : jsondecode(text).security == { secret = null, ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }])
    error_message = "Machines for HTTP get the secret, or do not know the authority."
  }

  assert {
    condition     = strcontains(output.client_properties, "security.protocol=SASL_SSL") && strcontains(output.client_properties, "ssl.truststore.location=ca.pem")
    error_message = "Clients are told ${output.client_properties}"
  }

  assert {
    condition     = strcontains(output.drain_commands["0"], "machine.env") && !strcontains(output.drain_commands["0"], "--data-dir")
    error_message = "The broker is drained by ${output.drain_commands["0"]}"
  }
}

run "a_fleet_is_secured_in_the_same_way" {
  command = plan

  variables {
    brokers       = {}
    fleet         = { min = 1, max = 3 }
    create_secret = true
    security      = { ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }
  }

  assert {
    condition     = jsondecode(output.bootstrap_json["fleet"]).security.secret == output.secret_arn
    error_message = "The boot of a machine reads ${output.bootstrap_json["fleet"]}"
  }
}
