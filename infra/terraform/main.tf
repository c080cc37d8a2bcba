# Firn on AWS: the root module, which composes small modules. README.md shows how to use it, ../README.md how to run the cluster.

locals {
  account_id  = data.aws_caller_identity.current.account_id
  partition   = data.aws_partition.current.partition
  region      = data.aws_region.current.region # var.region, and refused if the provider works elsewhere
  bucket_name = coalesce(one(data.aws_s3_bucket.existing[*].bucket), var.bucket_name, "${var.cluster_name}-${local.account_id}-${local.region}")
  existing_vpc = one([for vpc in var.existing_vpc[*] : {
    vpc_id          = vpc.vpc_id
    subnet_ids      = { for zone, subnet in data.aws_subnet.existing : zone => subnet.id }
    route_table_ids = vpc.route_table_ids
    s3_endpoint     = vpc.s3_endpoint
  }])

  # Brokers that are one of many tell clients the addresses of their machines. The load balancer is a client's first address only.
  cluster = length(var.brokers) > 1
  direct  = var.fleet != null || local.cluster

  # A port for each node id: the load balancer has one address, and each broker needs its own port that never changes.
  # Brokers without disks share one port, which is a client's first address only.
  listener_ports = merge({ for node_id in keys(var.brokers) : node_id => var.kafka_port + tonumber(node_id) }, { for _ in var.fleet[*] : "fleet" => var.kafka_port })
  first_address  = module.broker.addresses[var.fleet != null ? "fleet" : local.first_node_id[0]]
  first_node_id  = [for node_id in sort([for id in keys(var.brokers) : format("%04d", tonumber(id))]) : tostring(tonumber(node_id))]

  # The bucket's policy names the roles that may write, so their names are fixed here.
  role_names       = merge({ for node_id in keys(var.brokers) : node_id => "${var.cluster_name}-broker-${node_id}" }, { for _ in var.fleet[*] : "fleet" => "${var.cluster_name}-fleet" })
  broker_role_arns = [for name in values(local.role_names) : "arn:${local.partition}:iam::${local.account_id}:role/${name}"]
  writer_role_arns = concat(local.broker_role_arns, var.operator_role_arns)
  interface_service = sort(concat(
    var.fleet == null ? ["ec2"] : [], # the boot asks EC2 for volumes and machines
    ["autoscaling", "ec2messages", "kms", "logs", "monitoring", "ssm", "ssmmessages"],
    var.create_secret || var.security != null ? ["secretsmanager"] : [],
  ))

  # Where a broker listens on its machine (infra/bootstrap); kafka_port is the load balancer's.
  machine_kafka_port = 9092
  brokers_port       = var.security == null ? null : 9094 # for each other

  secret_arn = try(coalesce(try(var.security.secret_arn, null), one(aws_secretsmanager_secret.broker[*].arn)), null)

  # Brokers close idle connections before the load balancer drops them (350 s) without notice to either side.
  # A record has one copy until it is tiered, and a machine that fails loses its page cache. So a record is synced to the volume before it is acknowledged.
  # Brokers without disks have no volume: their records are in the bucket first, and a quarter of an hour of them is on the root disk too.
  settings = merge(
    { "connections.max.idle.ms" = "300000" },
    var.fleet == null ? { "firn.durability" = "disk" } : { "log.local.retention.ms" = "900000" },
    local.cluster ? { "default.replication.factor" = "3", "min.insync.replicas" = "2" } : {},
    var.wal_store == null ? {} : { "firn.wal.store.url" = module.storage.wal_store_url },
    var.redis == null ? {} : { "firn.redis.url" = "rediss://${aws_elasticache_replication_group.valkey[0].primary_endpoint_address}:6379" },
    var.settings,
  )

  # With the types as AWS knows them, so that they are looked up before anything is made.
  fleet = var.fleet == null ? null : merge(var.fleet, {
    other_instance_types = [for name in var.fleet.other_instance_types : data.aws_ec2_instance_type.fleet[name].instance_type]
  })

  wal_store = one([for store in var.wal_store[*] : {
    express = store.kind == "express"
    zone_id = store.zone_id
    bucket  = "${coalesce(store.name, "${var.cluster_name}-wal-${local.account_id}")}${store.kind == "express" ? "--${coalesce(store.zone_id, "none")}--x-s3" : ""}"
  }])

  user_data_template = "${path.module}/../bootstrap/user_data.py.tftpl"
  # Of brokers without disks nothing can be lost that was acknowledged.
  risky = var.fleet != null ? [] : compact([
    var.market != "spot" ? "" : local.cluster ? "spot (120 s until a machine ends)" : "spot (120 s to drain)",
    var.data_disk.kind == "instance-store" ? "instance store (gone with the machine)" : "",
    var.scale_to_zero != null ? "scale to zero by schedule" : "",
    alltrue([for broker in values(var.brokers) : broker.running]) ? "" : "a broker that is stopped",
    local.cluster || local.settings["firn.durability"] == "disk" ? "" : "firn.durability=${local.settings["firn.durability"]} (a machine that fails loses the last seconds)",
  ])
}

module "network" {
  source = "./modules/network"

  name                 = var.cluster_name
  region               = local.region
  zones                = var.zones
  vpc_cidr             = var.vpc_cidr
  existing_vpc         = local.existing_vpc
  egress               = var.egress
  interface_endpoints  = local.interface_service
  client_cidrs         = var.client_cidrs
  kafka_port           = local.machine_kafka_port
  brokers_port         = local.brokers_port
  kafka_listener_ports = local.listener_ports
  http_port            = var.http_port
  http_enabled         = var.http != null
  spark_enabled        = var.spark != null
  direct               = local.direct
  express_enabled      = try(var.wal_store.kind, "") == "express"
  redis_enabled        = var.redis != null
  kms_key_arn          = module.storage.kms_key_arn
  log_retention_days   = var.log_retention_days
}

module "storage" {
  source = "./modules/storage"

  name             = var.cluster_name
  bucket_name      = local.bucket_name
  create_bucket    = var.existing_bucket == null
  prefix           = var.bucket_prefix
  versioning_days  = var.bucket_versioning_days
  kms_key_arn      = var.kms_key_arn
  wal_store        = local.wal_store
  writer_role_arns = local.writer_role_arns
  account_id       = local.account_id
  partition        = local.partition
  region           = local.region
}

module "observability" {
  source = "./modules/observability"

  name                      = var.cluster_name
  region                    = local.region
  kms_key_arn               = module.storage.kms_key_arn
  log_retention_days        = var.log_retention_days
  alarm_actions             = var.alarm_actions
  http_port                 = var.http_port
  certificate_host          = var.security == null ? null : module.broker.host
  brokers                   = merge({ for node_id, broker in var.brokers : node_id => broker.running }, { for fleet in var.fleet[*] : "fleet" => true })
  by_node_id                = var.fleet == null
  replicated                = local.cluster
  scheduled                 = var.scale_to_zero != null
  disk_free_bytes_min       = floor((var.fleet == null ? var.data_disk.size_gib : var.fleet.disk_gib) * 1073741824 / 10)
  autoscaling_groups        = local.role_names # each group has the name of its role
  load_balancer_arn_suffix  = module.broker.load_balancer_arn_suffix
  target_group_arn_suffixes = module.broker.target_group_arn_suffixes
}

module "broker" {
  source = "./modules/broker"

  name                     = var.cluster_name
  region                   = local.region
  account_id               = local.account_id
  partition                = local.partition
  brokers                  = var.brokers
  fleet                    = local.fleet
  listener_ports           = local.listener_ports
  role_names               = local.role_names
  vpc_id                   = module.network.vpc_id
  subnet_ids               = module.network.subnet_ids
  lb_security_group_id     = module.network.security_group_ids.kafka_lb
  broker_security_group_id = module.network.security_group_ids.broker
  ami_id                   = data.aws_ami.machine.image_id
  instance_type            = data.aws_ec2_instance_type.broker.instance_type
  market                   = var.market
  data_disk                = var.data_disk
  accept_loss_of_untiered  = var.accept_loss_of_untiered
  scale_to_zero            = var.scale_to_zero
  launch_timeout_s         = var.launch_timeout_s
  store_url                = module.storage.store_url
  bucket_arn               = module.storage.bucket_arn
  bucket_prefix            = var.bucket_prefix
  wal_store                = module.storage.wal_store
  kms_key_arn              = module.storage.kms_key_arn
  wheelhouse               = var.wheelhouse
  user_data_template       = local.user_data_template
  settings                 = local.settings
  kafka_port               = local.machine_kafka_port
  http_port                = var.http_port
  dns                      = var.dns
  deletion_protection      = var.deletion_protection
  secret_arn               = local.secret_arn
  security                 = var.security == null ? null : { ca_pem = var.security.ca_pem, secret_arn = local.secret_arn }
  log_group_arn            = module.observability.log_group_arn
  metrics_log_group_arn    = module.observability.metrics_log_group_arn
  agent_config_parameter   = module.observability.agent_config_parameter
  metric_namespace         = module.observability.metric_namespace

  # Routes, endpoints and rules of security groups are there before the first boot, and until the last machine is drained.
  depends_on = [module.network]
}

module "http" {
  source = "./modules/http"
  count  = var.http == null ? 0 : 1

  name                   = var.cluster_name
  region                 = local.region
  account_id             = local.account_id
  partition              = local.partition
  vpc_id                 = module.network.vpc_id
  subnet_ids             = module.network.subnet_ids
  lb_security_group_id   = module.network.security_group_ids.http_lb
  http_security_group_id = module.network.security_group_ids.http
  ami_id                 = data.aws_ami.machine.image_id
  instance_type          = data.aws_ec2_instance_type.http[0].instance_type
  machines               = var.http.machines
  certificate_arn        = var.http.certificate_arn
  host                   = var.http.host
  dns_zone_id            = var.http.dns_zone_id
  port                   = var.http_port
  bootstrap_servers      = join(",", values(module.broker.addresses))
  ca_pem                 = try(var.security.ca_pem, null)
  bucket_arn             = module.storage.bucket_arn
  store_url              = module.storage.store_url
  wheelhouse             = var.wheelhouse
  user_data_template     = local.user_data_template
  launch_timeout_s       = var.launch_timeout_s
  deletion_protection    = var.deletion_protection
  log_group_arn          = module.observability.log_group_arn
  metrics_log_group_arn  = module.observability.metrics_log_group_arn
  agent_config_parameter = module.observability.agent_config_parameter

  depends_on = [module.network]
}

module "spark" {
  source = "./modules/spark"
  count  = var.spark == null ? 0 : 1

  name               = var.cluster_name
  region             = local.region
  partition          = local.partition
  account_id         = local.account_id
  release_label      = var.spark.release_label
  image_uri          = var.spark.image_uri
  architecture       = var.architecture
  vcpus_max          = var.spark.vcpus_max
  topic_ids          = var.spark.topic_ids
  bucket_arn         = module.storage.bucket_arn
  bucket_prefix      = var.bucket_prefix
  store_url          = module.storage.store_url
  target_bucket      = var.spark.target_bucket
  script_bucket      = coalesce(var.spark.script_bucket, var.spark.target_bucket)
  kms_key_arns       = var.spark.kms_key_arns
  kms_key_arn        = module.storage.kms_key_arn
  subnet_ids         = values(module.network.subnet_ids)
  security_group_id  = module.network.security_group_ids.spark
  log_retention_days = var.log_retention_days
  bootstrap_servers  = join(",", values(module.broker.addresses))
}

# --- what several brokers share ----------------------------------------------------------------------------------------------------

# Quotas of a whole cluster, and signs of life of a broker with a volume: its loss loses no data. It uses TLS, and only brokers can reach it.
resource "aws_elasticache_subnet_group" "valkey" {
  count = var.redis == null ? 0 : 1

  name       = "${var.cluster_name}-valkey"
  subnet_ids = values(module.network.subnet_ids)
}

resource "aws_elasticache_replication_group" "valkey" {
  # checkov:skip=CKV2_AWS_50: in one zone there is nowhere to fail over to; with several zones it is on
  # checkov:skip=CKV_AWS_31: a token would have to lie in user data; the security group lets in brokers alone, and signs of life are no secret
  count = var.redis == null ? 0 : 1

  replication_group_id       = "${var.cluster_name}-valkey"
  description                = "Quotas and signs of life of the brokers of ${var.cluster_name}"
  engine                     = "valkey"
  engine_version             = "8.0"
  node_type                  = var.redis.node_type
  num_cache_clusters         = length(var.zones) > 1 ? 2 : 1
  automatic_failover_enabled = length(var.zones) > 1
  multi_az_enabled           = length(var.zones) > 1
  port                       = 6379
  subnet_group_name          = aws_elasticache_subnet_group.valkey[0].name
  security_group_ids         = [module.network.security_group_ids.redis]
  transit_encryption_enabled = true
  at_rest_encryption_enabled = true
  kms_key_id                 = module.storage.kms_key_arn
  apply_immediately          = false
}

resource "aws_secretsmanager_secret" "broker" {
  # checkov:skip=CKV2_AWS_57: what lies here (the brokers' key, passwords) is changed together with clients, by a person
  count = var.create_secret ? 1 : 0

  name                    = "firn/${var.cluster_name}/broker"
  description             = "Secrets of the brokers of ${var.cluster_name}"
  kms_key_id              = module.storage.kms_key_arn
  recovery_window_in_days = 30
}
