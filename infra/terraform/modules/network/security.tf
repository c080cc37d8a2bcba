# One security group for each role, and one rule for each pair of roles that communicate. The load balancer does not preserve client addresses,
# so brokers see only its addresses. The brokers' group admits the load balancer's group, and the load balancer's group admits clients.

data "aws_ec2_managed_prefix_list" "s3" {
  name = "com.amazonaws.${var.region}.s3"
}

data "aws_ec2_managed_prefix_list" "express" {
  count = var.express_enabled ? 1 : 0

  name = "com.amazonaws.${var.region}.s3express"
}

resource "aws_security_group" "kafka_lb" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  name_prefix = "${var.name}-kafka-lb-"
  description = "Load balancer of Kafka's protocol: clients in, brokers out"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-kafka-lb" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "broker" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  name_prefix = "${var.name}-broker-"
  description = "Brokers: in from the load balancers, out to S3, AWS APIs and each other's addresses"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-broker" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "http_lb" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  count = var.http_enabled ? 1 : 0

  name_prefix = "${var.name}-http-lb-"
  description = "Load balancer of HTTP: clients in, HTTP processes out"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-http-lb" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "http" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  count = var.http_enabled ? 1 : 0

  name_prefix = "${var.name}-http-"
  description = "HTTP processes: in from their load balancer, out to brokers and AWS APIs"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-http" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "spark" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  count = var.spark_enabled ? 1 : 0

  name_prefix = "${var.name}-spark-"
  description = "Spark jobs: out to S3, AWS APIs and brokers"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-spark" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "redis" {
  # checkov:skip=CKV2_AWS_5: it is attached by its id in the module of its role, which checkov does not follow
  count = var.redis_enabled ? 1 : 0

  name_prefix = "${var.name}-redis-"
  description = "Valkey: in from brokers"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-redis" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "endpoints" {
  count = length(local.endpoints) > 0 ? 1 : 0

  name_prefix = "${var.name}-endpoints-"
  description = "Interface endpoints: HTTPS in from the machines"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.name}-endpoints" }

  lifecycle {
    create_before_destroy = true
  }
}

locals {
  machines = merge(
    { broker = aws_security_group.broker.id },
    var.http_enabled ? { http = aws_security_group.http[0].id } : {},
    var.spark_enabled ? { spark = aws_security_group.spark[0].id } : {},
  )
  # Who speaks Kafka's protocol to the load balancer's addresses from within: HTTP processes, Spark, and brokers themselves. A broker asks the
  # address of the one whose node id it takes over, and a take-over counts on that call getting through.
  kafka_callers = {
    for pair in setproduct(keys(local.machines), keys(var.kafka_listener_ports)) : "${pair[0]}-${pair[1]}" => {
      group = local.machines[pair[0]]
      port  = var.kafka_listener_ports[pair[1]]
    }
  }
  kafka_clients = {
    for pair in setproduct(var.client_cidrs, keys(var.kafka_listener_ports)) : "${pair[0]}-${pair[1]}" => {
      cidr = pair[0]
      port = var.kafka_listener_ports[pair[1]]
    }
  }
}

# --- clients → load balancer → brokers ------------------------------------------------------------------------------------------

resource "aws_vpc_security_group_ingress_rule" "kafka_clients" {
  for_each = local.kafka_clients

  security_group_id = aws_security_group.kafka_lb.id
  description       = "Kafka's protocol from clients"
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
}

resource "aws_vpc_security_group_ingress_rule" "kafka_callers" {
  for_each = local.kafka_callers

  security_group_id            = aws_security_group.kafka_lb.id
  description                  = "Kafka's protocol from machines of the cluster"
  referenced_security_group_id = each.value.group
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "kafka_callers" {
  for_each = local.kafka_callers

  security_group_id            = each.value.group
  description                  = "Kafka's protocol to the load balancer"
  referenced_security_group_id = aws_security_group.kafka_lb.id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "kafka_lb_to_brokers" {
  security_group_id            = aws_security_group.kafka_lb.id
  description                  = "Kafka's protocol and its health checks to brokers"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = var.kafka_port
  to_port                      = var.kafka_port
}

resource "aws_vpc_security_group_ingress_rule" "brokers_from_kafka_lb" {
  security_group_id            = aws_security_group.broker.id
  description                  = "Kafka's protocol and its health checks from the load balancer"
  referenced_security_group_id = aws_security_group.kafka_lb.id
  ip_protocol                  = "tcp"
  from_port                    = var.kafka_port
  to_port                      = var.kafka_port
}

# --- brokers → brokers, each by its certificate ---------------------------------------------------------------------------------

resource "aws_vpc_security_group_ingress_rule" "brokers" {
  count = var.brokers_port == null ? 0 : 1

  security_group_id            = aws_security_group.broker.id
  description                  = "The brokers' own listener"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = var.brokers_port
  to_port                      = var.brokers_port
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  count = var.brokers_port == null ? 0 : 1

  security_group_id            = aws_security_group.broker.id
  description                  = "The brokers' own listener"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = var.brokers_port
  to_port                      = var.brokers_port
}

# --- clients and machines → brokers of a cluster -------------------------------------------------------------------------------------

# Brokers that are one of many tell clients their machines' addresses, and from then on clients connect to the machines themselves.
moved {
  from = aws_vpc_security_group_ingress_rule.fleet_clients
  to   = aws_vpc_security_group_ingress_rule.direct_clients
}

moved {
  from = aws_vpc_security_group_ingress_rule.fleet_machines
  to   = aws_vpc_security_group_ingress_rule.direct_machines
}

moved {
  from = aws_vpc_security_group_egress_rule.fleet_machines
  to   = aws_vpc_security_group_egress_rule.direct_machines
}

resource "aws_vpc_security_group_ingress_rule" "direct_clients" {
  for_each = var.direct ? toset(var.client_cidrs) : toset([])

  security_group_id = aws_security_group.broker.id
  description       = "Kafka's protocol from clients"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = var.kafka_port
  to_port           = var.kafka_port
}

resource "aws_vpc_security_group_ingress_rule" "direct_machines" {
  for_each = var.direct ? local.machines : {}

  security_group_id            = aws_security_group.broker.id
  description                  = "Kafka's protocol from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = var.kafka_port
  to_port                      = var.kafka_port
}

resource "aws_vpc_security_group_egress_rule" "direct_machines" {
  for_each = var.direct ? local.machines : {}

  security_group_id            = each.value
  description                  = "Kafka's protocol to brokers"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = var.kafka_port
  to_port                      = var.kafka_port
}

# --- clients → load balancer → HTTP processes -----------------------------------------------------------------------------------

resource "aws_vpc_security_group_ingress_rule" "http_clients" {
  for_each = var.http_enabled ? toset(var.client_cidrs) : toset([])

  security_group_id = aws_security_group.http_lb[0].id
  description       = "HTTPS from clients"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "http_lb_to_http" {
  count = var.http_enabled ? 1 : 0

  security_group_id            = aws_security_group.http_lb[0].id
  description                  = "HTTP and its health checks"
  referenced_security_group_id = aws_security_group.http[0].id
  ip_protocol                  = "tcp"
  from_port                    = var.http_port
  to_port                      = var.http_port
}

resource "aws_vpc_security_group_ingress_rule" "http_from_http_lb" {
  count = var.http_enabled ? 1 : 0

  security_group_id            = aws_security_group.http[0].id
  description                  = "HTTP and its health checks from the load balancer"
  referenced_security_group_id = aws_security_group.http_lb[0].id
  ip_protocol                  = "tcp"
  from_port                    = var.http_port
  to_port                      = var.http_port
}

# --- machines → S3, AWS's APIs, Valkey ------------------------------------------------------------------------------------------

resource "aws_vpc_security_group_egress_rule" "s3" {
  for_each = local.machines

  security_group_id = each.value
  description       = "S3 by the gateway endpoint"
  prefix_list_id    = data.aws_ec2_managed_prefix_list.s3.id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "express" {
  count = var.express_enabled ? 1 : 0

  security_group_id = aws_security_group.broker.id
  description       = "S3 Express One Zone by its gateway endpoint"
  prefix_list_id    = data.aws_ec2_managed_prefix_list.express[0].id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  for_each = length(local.endpoints) > 0 ? local.machines : {}

  security_group_id            = each.value
  description                  = "AWS's APIs by interface endpoints"
  referenced_security_group_id = aws_security_group.endpoints[0].id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  for_each = length(local.endpoints) > 0 ? local.machines : {}

  security_group_id            = aws_security_group.endpoints[0].id
  description                  = "HTTPS from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

# Without interface endpoints AWS's APIs have public addresses, and there is no list of them that a rule could name.
resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = length(local.endpoints) > 0 ? {} : local.machines

  security_group_id = each.value
  description       = "AWS's APIs by NAT"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "redis" {
  count = var.redis_enabled ? 1 : 0

  security_group_id            = aws_security_group.broker.id
  description                  = "Valkey"
  referenced_security_group_id = aws_security_group.redis[0].id
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
}

resource "aws_vpc_security_group_ingress_rule" "redis" {
  count = var.redis_enabled ? 1 : 0

  security_group_id            = aws_security_group.redis[0].id
  description                  = "Valkey from brokers"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
}
