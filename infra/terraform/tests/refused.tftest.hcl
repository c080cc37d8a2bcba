# Everything that is refused, each by the variable or look-up that says how to mend it. The run that begins is the one that is accepted: the
# others differ from it in what their names say.

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

run "what_the_others_change_is_accepted" {
  command = plan
}

# --- the cluster ---

run "a_cluster_name_with_capitals_is_refused" {
  command = plan

  variables {
    cluster_name = "Prod"
  }

  expect_failures = [var.cluster_name]
}

run "a_cluster_name_too_long_for_load_balancers_is_refused" {
  command = plan

  variables {
    cluster_name = "production-of-the-whole-company"
  }

  expect_failures = [var.cluster_name]
}

run "a_region_that_is_none_is_refused" {
  command = plan

  variables {
    region  = "eu-central"
    zones   = ["eu-centrala"]
    brokers = { "0" = { zone = "eu-centrala" } }
  }

  expect_failures = [var.region]
}

run "a_region_with_apis_elsewhere_is_refused" {
  command = plan

  variables {
    region  = "cn-north-1"
    zones   = ["cn-north-1a"]
    brokers = { "0" = { zone = "cn-north-1a" } }
  }

  expect_failures = [var.region]
}

run "no_broker_is_refused" {
  command = plan

  variables {
    brokers = {}
  }

  expect_failures = [var.brokers]
}

run "a_zone_of_another_region_is_refused" {
  command = plan

  variables {
    zones   = ["us-east-1a"]
    brokers = { "0" = { zone = "us-east-1a" } }
  }

  expect_failures = [var.zones]
}

run "a_zone_named_twice_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1a"]
  }

  expect_failures = [var.zones]
}

run "a_node_id_that_is_no_number_is_refused" {
  command = plan

  variables {
    brokers = { "01" = { zone = "eu-central-1a" } }
  }

  expect_failures = [var.brokers]
}

run "a_broker_in_a_zone_without_subnet_is_refused" {
  command = plan

  variables {
    brokers = { "0" = { zone = "eu-central-1b" } }
  }

  expect_failures = [var.brokers]
}

run "two_brokers_are_refused" {
  command = plan

  variables {
    zones   = ["eu-central-1a", "eu-central-1b"]
    brokers = { "0" = { zone = "eu-central-1a" }, "1" = { zone = "eu-central-1b" } }
  }

  expect_failures = [var.brokers]
}

run "several_brokers_whose_topics_have_two_replicas_are_refused" {
  command = plan

  variables {
    zones    = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    brokers  = { "0" = { zone = "eu-central-1a" }, "1" = { zone = "eu-central-1b" }, "2" = { zone = "eu-central-1c" } }
    settings = { "default.replication.factor" = "2" }
  }

  expect_failures = [var.settings]
}

run "several_brokers_whose_committed_offsets_have_one_replica_are_refused" {
  command = plan

  variables {
    zones    = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    brokers  = { "0" = { zone = "eu-central-1a" }, "1" = { zone = "eu-central-1b" }, "2" = { zone = "eu-central-1c" } }
    settings = { "offsets.topic.replication.factor" = "1" }
  }

  expect_failures = [var.settings]
}

run "three_brokers_in_two_zones_are_refused" {
  command = plan

  variables {
    zones   = ["eu-central-1a", "eu-central-1b"]
    brokers = { "0" = { zone = "eu-central-1a" }, "1" = { zone = "eu-central-1b" }, "2" = { zone = "eu-central-1b" } }
  }

  expect_failures = [var.brokers]
}

run "a_setting_that_the_modules_derive_is_refused" {
  command = plan

  variables {
    settings = { "firn.store.url" = "file:///tmp" }
  }

  expect_failures = [var.settings]
}

run "a_setting_that_security_decides_is_refused_with_it" {
  command = plan

  variables {
    create_secret = true
    security      = { ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }
    settings      = { "authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer" }
  }

  expect_failures = [var.settings]
}

run "an_authority_that_is_a_path_is_refused" {
  command = plan

  variables {
    create_secret = true
    security      = { ca_pem = "ca.pem" }
  }

  expect_failures = [var.security]
}

run "an_authority_too_long_for_user_data_is_refused" {
  command = plan

  variables {
    create_secret = true
    security      = { ca_pem = "-----BEGIN CERTIFICATE-----\n${join("\n", [for _ in range(100) : "MIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIBMIIB"])}\n-----END CERTIFICATE-----\n" }
  }

  expect_failures = [var.security]
}

run "a_secret_of_another_region_is_refused" {
  command = plan

  variables {
    security = {
      ca_pem     = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
      secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:firn-AbCdEf"
    }
  }

  expect_failures = [var.security]
}

run "security_without_a_secret_is_refused" {
  command = plan

  variables {
    security = { ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }
  }

  expect_failures = [var.security]
}

run "a_setting_that_is_no_name_is_refused" {
  command = plan

  variables {
    settings = { "Log Retention" = "1" }
  }

  expect_failures = [var.settings]
}

run "a_setting_of_two_lines_is_refused" {
  command = plan

  variables {
    settings = { "log.retention.ms" = "1\nnode.id=7" }
  }

  expect_failures = [var.settings]
}

run "the_provider_of_another_region_is_refused" {
  command = plan

  override_data {
    target          = data.aws_region.current
    override_during = plan
    values = {
      region = "us-east-1"
    }
  }

  expect_failures = [data.aws_region.current]
}

# --- losing what is not in the bucket ---

run "spot_without_accepted_loss_is_refused" {
  command = plan

  variables {
    market = "spot"
  }

  expect_failures = [var.market]
}

run "instance_store_without_accepted_loss_is_refused" {
  command = plan

  variables {
    data_disk     = { kind = "instance-store" }
    instance_type = "i8g.large"
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

  expect_failures = [var.data_disk]
}

run "scale_to_zero_without_accepted_loss_is_refused" {
  command = plan

  variables {
    scale_to_zero = { down = "0 20 * * *", up = "0 6 * * *" }
  }

  expect_failures = [var.scale_to_zero]
}

run "a_stopped_broker_without_accepted_loss_is_refused" {
  command = plan

  variables {
    brokers = { "0" = { zone = "eu-central-1a", running = false } }
  }

  expect_failures = [var.brokers]
}

run "a_schedule_that_is_no_cron_expression_is_refused" {
  command = plan

  variables {
    scale_to_zero           = { down = "at eight", up = "0 6 * * *" }
    accept_loss_of_untiered = true
  }

  expect_failures = [var.scale_to_zero]
}

# --- machines ---

run "an_image_by_alias_is_refused" {
  command = plan

  variables {
    ami_id = "latest"
  }

  expect_failures = [var.ami_id]
}

run "an_architecture_that_there_is_not_is_refused" {
  command = plan

  variables {
    architecture = "riscv64"
  }

  expect_failures = [var.architecture]
}

run "an_image_of_another_architecture_is_refused" {
  command = plan

  override_data {
    target          = data.aws_ami.machine
    override_during = plan
    values = {
      image_id         = "ami-0123456789abcdef0"
      architecture     = "x86_64"
      root_device_name = "/dev/xvda"
    }
  }

  expect_failures = [data.aws_ami.machine]
}

run "an_image_with_another_root_device_is_refused" {
  command = plan

  override_data {
    target          = data.aws_ami.machine
    override_during = plan
    values = {
      image_id         = "ami-0123456789abcdef0"
      architecture     = "arm64"
      root_device_name = "/dev/sda1"
    }
  }

  expect_failures = [data.aws_ami.machine]
}

run "an_instance_type_of_another_architecture_is_refused" {
  command = plan

  variables {
    instance_type = "m7i.large"
  }

  override_data {
    target          = data.aws_ec2_instance_type.broker
    override_during = plan
    values = {
      supported_architectures    = ["x86_64"]
      instance_storage_supported = false
      default_vcpus              = 2
    }
  }

  expect_failures = [data.aws_ec2_instance_type.broker]
}

run "instance_store_on_a_type_without_nvme_is_refused" {
  command = plan

  variables {
    data_disk               = { kind = "instance-store" }
    accept_loss_of_untiered = true
  }

  expect_failures = [data.aws_ec2_instance_type.broker]
}

run "an_instance_type_of_one_core_is_refused" {
  command = plan

  variables {
    instance_type = "m7g.medium"
  }

  override_data {
    target          = data.aws_ec2_instance_type.broker
    override_during = plan
    values = {
      supported_architectures    = ["arm64"]
      instance_storage_supported = false
      default_vcpus              = 1
    }
  }

  expect_failures = [data.aws_ec2_instance_type.broker]
}

run "an_instance_type_that_is_no_name_is_refused" {
  command = plan

  variables {
    instance_type = "large"
  }

  expect_failures = [var.instance_type]
}

run "a_market_that_there_is_not_is_refused" {
  command = plan

  variables {
    market = "reserved"
  }

  expect_failures = [var.market]
}

run "a_disk_of_another_kind_is_refused" {
  command = plan

  variables {
    data_disk = { kind = "efs" }
  }

  expect_failures = [var.data_disk]
}

run "a_file_system_that_the_first_boot_does_not_make_is_refused" {
  command = plan

  variables {
    data_disk = { filesystem = "zfs" }
  }

  expect_failures = [var.data_disk]
}

run "a_volume_of_an_old_type_is_refused" {
  command = plan

  variables {
    data_disk = { type = "gp2" }
  }

  expect_failures = [var.data_disk]
}

run "a_volume_too_small_is_refused" {
  command = plan

  variables {
    data_disk = { size_gib = 4 }
  }

  expect_failures = [var.data_disk]
}

run "more_iops_than_the_volume_takes_is_refused" {
  command = plan

  variables {
    data_disk = { size_gib = 10, iops = 16000 }
  }

  expect_failures = [var.data_disk]
}

run "more_throughput_than_the_iops_carry_is_refused" {
  command = plan

  variables {
    data_disk = { throughput_mibs = 1000 }
  }

  expect_failures = [var.data_disk]
}

run "a_drain_longer_than_aws_waits_is_refused" {
  command = plan

  variables {
    drain_timeout_s = 86400
  }

  expect_failures = [var.drain_timeout_s]
}

run "a_start_without_time_to_install_packages_is_refused" {
  command = plan

  variables {
    launch_timeout_s = 299
  }

  expect_failures = [var.launch_timeout_s]
}

# --- packages ---

run "packages_without_a_hash_is_refused" {
  command = plan

  variables {
    wheelhouse = { bucket = "artifacts-of-ours", key = "firn-wheelhouse-0.1.0-aarch64.tar.gz", sha256 = "latest" }
  }

  expect_failures = [var.wheelhouse]
}

run "packages_of_another_architecture_is_refused" {
  command = plan

  variables {
    wheelhouse = { bucket = "artifacts-of-ours", key = "firn-wheelhouse-0.1.0-x86_64.tar.gz", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }

  expect_failures = [var.wheelhouse]
}

run "packages_in_the_bucket_that_brokers_write_is_refused" {
  command = plan

  variables {
    bucket_name = "records-of-ours"
    wheelhouse  = { bucket = "records-of-ours", key = "firn-wheelhouse-0.1.0-aarch64.tar.gz", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }

  expect_failures = [var.wheelhouse]
}

# --- network ---

run "no_client_is_refused" {
  command = plan

  variables {
    client_cidrs = []
  }

  expect_failures = [var.client_cidrs]
}

run "the_whole_internet_as_client_is_refused" {
  command = plan

  variables {
    client_cidrs = ["0.0.0.0/0"]
  }

  expect_failures = [var.client_cidrs]
}

run "half_the_internet_as_client_is_refused" {
  command = plan

  variables {
    client_cidrs = ["0.0.0.0/1", "128.0.0.0/1"]
  }

  expect_failures = [var.client_cidrs]
}

run "a_client_that_is_no_block_is_refused" {
  command = plan

  variables {
    client_cidrs = ["10.1.0.0"]
  }

  expect_failures = [var.client_cidrs]
}

run "a_client_by_ipv6_is_refused" {
  command = plan

  variables {
    client_cidrs = ["::/0"]
  }

  expect_failures = [var.client_cidrs]
}

run "a_vpc_too_small_for_its_zones_is_refused" {
  command = plan

  variables {
    vpc_cidr = "10.0.0.0/24"
  }

  expect_failures = [var.vpc_cidr]
}

run "an_existing_vpc_without_a_subnet_for_a_zone_is_refused" {
  command = plan

  variables {
    zones        = ["eu-central-1a", "eu-central-1b"]
    egress       = "existing"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"] }
  }

  expect_failures = [var.existing_vpc]
}

run "an_existing_vpc_without_route_tables_is_refused" {
  command = plan

  variables {
    egress       = "existing"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = [] }
  }

  expect_failures = [var.existing_vpc]
}

run "a_subnet_of_another_zone_is_refused" {
  command = plan

  variables {
    egress       = "existing"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"] }
  }

  override_data {
    target          = data.aws_subnet.existing
    override_during = plan
    values = {
      availability_zone       = "eu-central-1b"
      vpc_id                  = "vpc-0123456789abcdef0"
      map_public_ip_on_launch = false
    }
  }

  expect_failures = [data.aws_subnet.existing]
}

run "a_subnet_of_another_vpc_is_refused" {
  command = plan

  variables {
    egress       = "existing"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"] }
  }

  override_data {
    target          = data.aws_subnet.existing
    override_during = plan
    values = {
      availability_zone       = "eu-central-1a"
      vpc_id                  = "vpc-0fedcba9876543210"
      map_public_ip_on_launch = false
    }
  }

  expect_failures = [data.aws_subnet.existing]
}

run "a_public_subnet_is_refused" {
  command = plan

  variables {
    egress       = "existing"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"] }
  }

  override_data {
    target          = data.aws_subnet.existing
    override_during = plan
    values = {
      availability_zone       = "eu-central-1a"
      vpc_id                  = "vpc-0123456789abcdef0"
      map_public_ip_on_launch = true
    }
  }

  expect_failures = [data.aws_subnet.existing]
}

run "a_way_out_that_there_is_not_is_refused" {
  command = plan

  variables {
    egress = "proxy"
  }

  expect_failures = [var.egress]
}

run "the_way_of_an_existing_vpc_without_one_is_refused" {
  command = plan

  variables {
    egress = "existing"
  }

  expect_failures = [var.egress]
}

run "nat_in_an_existing_vpc_is_refused" {
  command = plan

  variables {
    egress       = "nat"
    existing_vpc = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }, route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"] }
  }

  expect_failures = [var.egress]
}

run "http_on_the_port_of_kafka_is_refused" {
  command = plan

  variables {
    http_port = 9092
  }

  expect_failures = [var.http_port]
}

run "a_kafka_port_without_room_for_node_ids_is_refused" {
  command = plan

  variables {
    kafka_port = 60000
  }

  expect_failures = [var.kafka_port]
}

run "an_http_port_below_1024_is_refused" {
  command = plan

  variables {
    http_port = 80
  }

  expect_failures = [var.http_port]
}

run "a_name_that_is_no_host_is_refused" {
  command = plan

  variables {
    dns = { zone_id = "Z0123456789ABCDEFGHIJ", name = "kafka" }
  }

  expect_failures = [var.dns]
}

# --- storage ---

run "a_bucket_in_another_region_is_refused" {
  command = plan

  variables {
    existing_bucket = "records-of-ours"
  }

  override_data {
    target          = data.aws_s3_bucket.existing
    override_during = plan
    values = {
      bucket_region = "us-east-1"
    }
  }

  expect_failures = [data.aws_s3_bucket.existing[0]]
}

run "a_new_bucket_and_an_existing_one_is_refused" {
  command = plan

  variables {
    bucket_name     = "records-of-ours"
    existing_bucket = "records-of-others"
  }

  expect_failures = [var.bucket_name]
}

run "a_bucket_name_with_dots_is_refused" {
  command = plan

  variables {
    bucket_name = "records.example.com"
  }

  expect_failures = [var.bucket_name]
}

run "a_prefix_that_firn_does_not_take_is_refused" {
  command = plan

  variables {
    bucket_prefix = "/firn/"
  }

  expect_failures = [var.bucket_prefix]
}

run "versioning_of_an_existing_bucket_is_refused" {
  command = plan

  variables {
    existing_bucket        = "records-of-ours"
    bucket_versioning_days = 30
  }

  expect_failures = [var.bucket_versioning_days]
}

run "versioning_for_a_negative_time_is_refused" {
  command = plan

  variables {
    bucket_versioning_days = -1
  }

  expect_failures = [var.bucket_versioning_days]
}

run "everybody_as_operator_is_refused" {
  command = plan

  variables {
    operator_role_arns = ["arn:aws:iam::123456789012:role/*"]
  }

  expect_failures = [var.operator_role_arns]
}

run "a_key_of_another_region_is_refused" {
  command = plan

  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }

  expect_failures = [var.kms_key_arn]
}

run "a_key_by_alias_is_refused" {
  command = plan

  variables {
    kms_key_arn = "alias/firn"
  }

  expect_failures = [var.kms_key_arn]
}

# --- http ---

run "http_without_certificate_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http  = { certificate_arn = "", host = "firn.example.com" }
  }

  expect_failures = [var.http]
}

run "http_with_a_certificate_of_another_region_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http  = { certificate_arn = "arn:aws:acm:us-east-1:123456789012:certificate/11111111-2222-3333-4444-555555555555", host = "firn.example.com" }
  }

  expect_failures = [var.http]
}

run "http_in_one_zone_is_refused" {
  command = plan

  variables {
    http = { certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555", host = "firn.example.com" }
  }

  expect_failures = [var.http]
}

run "http_under_a_name_that_is_no_host_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http  = { certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555", host = "firn" }
  }

  expect_failures = [var.http]
}

run "http_on_no_machine_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http  = { certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555", host = "firn.example.com", machines = 0 }
  }

  expect_failures = [var.http]
}

run "http_on_an_instance_type_of_another_architecture_is_refused" {
  command = plan

  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
    http  = { certificate_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555", host = "firn.example.com", instance_type = "t3.small" }
  }

  override_data {
    target          = data.aws_ec2_instance_type.http
    override_during = plan
    values = {
      supported_architectures    = ["x86_64"]
      instance_storage_supported = false
      default_vcpus              = 2
    }
  }

  expect_failures = [data.aws_ec2_instance_type.http[0]]
}

# --- spark ---

run "a_release_with_spark_3_is_refused" {
  command = plan

  variables {
    spark = { release_label = "emr-7.13.0", script_bucket = "scripts-of-ours" }
  }

  expect_failures = [var.spark]
}

run "a_release_that_is_none_is_refused" {
  command = plan

  variables {
    spark = { release_label = "spark-4", script_bucket = "scripts-of-ours" }
  }

  expect_failures = [var.spark]
}

run "an_image_of_another_region_is_refused" {
  command = plan

  variables {
    spark = { image_uri = "123456789012.dkr.ecr.us-east-1.amazonaws.com/firn/prod/spark:1", script_bucket = "scripts-of-ours" }
  }

  expect_failures = [var.spark]
}

run "a_topic_by_name_is_refused" {
  command = plan

  variables {
    spark = { topic_ids = ["orders"], script_bucket = "scripts-of-ours" }
  }

  expect_failures = [var.spark]
}

run "archives_in_the_bucket_of_the_cluster_is_refused" {
  command = plan

  variables {
    bucket_name = "records-of-ours"
    spark       = { target_bucket = "records-of-ours" }
  }

  expect_failures = [var.spark]
}

run "scripts_in_the_bucket_of_the_cluster_is_refused" {
  command = plan

  variables {
    bucket_name = "records-of-ours"
    spark       = { script_bucket = "records-of-ours" }
  }

  expect_failures = [var.spark]
}

run "spark_without_a_bucket_of_scripts_is_refused" {
  command = plan

  variables {
    spark = {}
  }

  expect_failures = [var.spark]
}

run "a_key_of_spark_by_alias_is_refused" {
  command = plan

  variables {
    spark = { script_bucket = "scripts-of-ours", kms_key_arns = ["alias/lake"] }
  }

  expect_failures = [var.spark]
}

# --- watching ---

run "a_topic_of_another_region_for_alarms_is_refused" {
  command = plan

  variables {
    alarm_actions = ["arn:aws:sns:us-east-1:123456789012:pages"]
  }

  expect_failures = [var.alarm_actions]
}

run "a_log_retention_that_cloudwatch_has_not_is_refused" {
  command = plan

  variables {
    log_retention_days = 10
  }

  expect_failures = [var.log_retention_days]
}

# --- brokers without disks ---

run "a_fleet_is_accepted_in_place_of_brokers" {
  command = plan

  variables {
    brokers = {}
    fleet   = {}
  }
}

run "a_fleet_beside_brokers_is_refused" {
  command = plan

  variables {
    fleet = {}
  }

  expect_failures = [var.brokers]
}

run "a_fleet_of_none_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { min = 0 }
  }

  expect_failures = [var.fleet]
}

run "more_machines_on_demand_than_there_are_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { on_demand = 10 }
  }

  expect_failures = [var.fleet]
}

run "a_fleet_with_volumes_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { disk = "ebs" }
  }

  expect_failures = [var.fleet]
}

run "a_root_disk_without_space_for_a_cache_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { disk_gib = 8 }
  }

  expect_failures = [var.fleet]
}

run "a_target_that_no_load_reaches_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { cpu_percent = 100 }
  }

  expect_failures = [var.fleet]
}

run "another_durability_of_a_fleet_is_refused" {
  command = plan

  variables {
    brokers  = {}
    fleet    = {}
    settings = { "firn.durability" = "disk" }
  }

  expect_failures = [var.settings]
}

run "versions_of_write_ahead_logs_are_refused" {
  command = plan

  variables {
    brokers                = {}
    fleet                  = {}
    bucket_versioning_days = 7
  }

  expect_failures = [var.bucket_versioning_days]
}

run "a_type_of_another_architecture_in_a_fleet_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = {}
  }

  override_data {
    target          = data.aws_ec2_instance_type.fleet
    override_during = plan
    values = {
      supported_architectures    = ["x86_64"]
      instance_storage_supported = false
    }
  }

  expect_failures = [data.aws_ec2_instance_type.fleet]
}

run "a_fleet_on_instance_store_of_types_without_nvme_is_refused" {
  command = plan

  variables {
    brokers = {}
    fleet   = { disk = "instance-store" }
  }

  expect_failures = [data.aws_ec2_instance_type.fleet]
}

run "a_wal_store_of_an_unknown_kind_is_refused" {
  command = plan

  variables {
    wal_store = { kind = "fast" }
  }

  expect_failures = [var.wal_store]
}

run "a_wal_store_of_s3_express_without_a_zone_is_refused" {
  command = plan

  variables {
    wal_store               = {}
    accept_loss_of_untiered = true
  }

  expect_failures = [var.wal_store]
}

run "a_wal_store_of_s3_in_one_zone_is_refused" {
  command = plan

  variables {
    wal_store = { kind = "standard", zone_id = "euc1-az1" }
  }

  expect_failures = [var.wal_store]
}

run "a_wal_store_in_the_clusters_bucket_is_refused" {
  command = plan

  variables {
    bucket_name = "records"
    wal_store   = { kind = "standard", name = "records" }
  }

  expect_failures = [var.wal_store]
}

run "a_wal_store_in_one_zone_without_accepted_loss_is_refused" {
  command = plan

  variables {
    wal_store = { zone_id = "euc1-az1" }
  }

  expect_failures = [var.wal_store]
}
