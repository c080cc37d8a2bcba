# Who may talk to whom, and the way to S3.

mock_provider "aws" {
  override_during = plan

  mock_data "aws_ec2_managed_prefix_list" {
    defaults = { id = "pl-6ea54007" }
  }
}

variables {
  name                 = "prod"
  region               = "eu-central-1"
  zones                = ["eu-central-1a", "eu-central-1b"]
  vpc_cidr             = "10.42.0.0/16"
  existing_vpc         = null
  egress               = "endpoints"
  interface_endpoints  = ["ec2", "autoscaling"]
  client_cidrs         = ["10.1.0.0/16", "10.2.0.0/16"]
  kafka_port           = 9092
  kafka_listener_ports = { "0" = 19092, "1" = 19093 }
  http_port            = 8080
  http_enabled         = true
  spark_enabled        = true
  redis_enabled        = true
  kms_key_arn          = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  log_retention_days   = 30
}

run "s3_is_behind_a_gateway_endpoint_in_the_route_tables" {
  command = plan

  assert {
    condition     = aws_vpc_endpoint.s3[0].vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3[0].service_name == "com.amazonaws.eu-central-1.s3" && length(aws_vpc_endpoint.s3[0].route_table_ids) == 1
    error_message = "The bucket would be reached by NAT or by an interface endpoint, which cost by the byte."
  }
}

run "no_way_to_the_internet_with_endpoints" {
  command = plan

  assert {
    condition     = length(aws_nat_gateway.this) == 0 && length(aws_internet_gateway.this) == 0 && length(aws_vpc_security_group_egress_rule.https) == 0 && length(aws_vpc_endpoint.interface) == 2
    error_message = "There is a way to the internet beside the endpoints."
  }
}

run "nat_is_one_gateway_and_no_endpoints" {
  command = plan

  variables {
    egress = "nat"
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 1 && length(aws_vpc_endpoint.interface) == 0 && length(aws_vpc_endpoint.s3) == 1
    error_message = "NAT is not one gateway, or S3 went through it."
  }
}

run "clients_reach_the_load_balancers_ports_and_nothing_else" {
  command = plan

  assert {
    condition = toset([for rule in aws_vpc_security_group_ingress_rule.kafka_clients : "${rule.cidr_ipv4} ${rule.from_port}-${rule.to_port}"]) == toset([
      "10.1.0.0/16 19092-19092", "10.1.0.0/16 19093-19093", "10.2.0.0/16 19092-19092", "10.2.0.0/16 19093-19093",
    ])
    error_message = "Clients reach other ports than those of the listeners."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.brokers_from_kafka_lb.from_port == 9092 && aws_vpc_security_group_ingress_rule.brokers_from_kafka_lb.to_port == 9092
    error_message = "The load balancer does not reach the port that brokers listen on."
  }

  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.http_clients : "${rule.cidr_ipv4} ${rule.from_port}-${rule.to_port}"]) == toset(["10.1.0.0/16 443-443", "10.2.0.0/16 443-443"])
    error_message = "HTTP clients reach other ports than HTTPS."
  }
}

run "only_brokers_reach_the_brokers_own_listener" {
  command = apply # ids of groups are not known before

  variables {
    brokers_port = 9094
  }

  assert {
    condition = alltrue([
      for rule in concat(aws_vpc_security_group_ingress_rule.brokers, aws_vpc_security_group_egress_rule.brokers) :
      rule.from_port == 9094 && rule.to_port == 9094 && rule.cidr_ipv4 == null && rule.referenced_security_group_id == rule.security_group_id
    ]) && length(aws_vpc_security_group_ingress_rule.brokers) == 1 && length(aws_vpc_security_group_egress_rule.brokers) == 1
    error_message = "Others than brokers reach the listener of brokers, or brokers do not."
  }
}

run "without_security_there_is_no_listener_of_brokers" {
  command = plan

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.brokers) == 0 && length(aws_vpc_security_group_egress_rule.brokers) == 0
    error_message = "A port is open at which nothing listens."
  }
}

run "brokers_http_and_spark_reach_every_broker_by_its_address" {
  command = plan

  assert {
    condition     = toset(keys(aws_vpc_security_group_egress_rule.kafka_callers)) == toset(["broker-0", "broker-1", "http-0", "http-1", "spark-0", "spark-1"])
    error_message = "A machine cannot call a broker: ${join(", ", keys(aws_vpc_security_group_egress_rule.kafka_callers))}"
  }

  assert {
    condition     = toset(keys(aws_vpc_security_group_egress_rule.s3)) == toset(["broker", "http", "spark"])
    error_message = "A machine cannot reach S3."
  }
}

run "an_existing_vpc_is_not_changed_but_for_endpoints" {
  command = plan

  variables {
    egress = "existing"
    existing_vpc = {
      vpc_id          = "vpc-0123456789abcdef0"
      subnet_ids      = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa", "eu-central-1b" = "subnet-0bbbbbbbbbbbbbbbb" }
      route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"]
      s3_endpoint     = false
    }
  }

  assert {
    condition     = length(aws_vpc.this) == 0 && length(aws_subnet.private) == 0 && length(aws_vpc_endpoint.s3) == 0 && length(aws_vpc_endpoint.interface) == 0 && length(aws_flow_log.this) == 0
    error_message = "Something of somebody else's VPC would be changed."
  }
}

run "clients_and_machines_reach_one_of_many_brokers_at_its_own_address" {
  command = plan

  variables {
    direct = true
  }

  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.direct_clients : "${rule.cidr_ipv4} ${rule.from_port} ${rule.to_port}"]) == toset(["10.1.0.0/16 9092 9092", "10.2.0.0/16 9092 9092"])
    error_message = "Clients do not reach the brokers that the load balancer tells them of, or others do."
  }

  assert {
    condition     = toset(keys(aws_vpc_security_group_ingress_rule.direct_machines)) == toset(["broker", "http", "spark"]) && length(aws_vpc_security_group_egress_rule.direct_machines) == 3
    error_message = "Brokers, HTTP processes or Spark jobs do not reach brokers."
  }
}

run "nobody_but_the_load_balancer_reaches_a_single_broker" {
  command = plan

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.direct_clients) == 0 && length(aws_vpc_security_group_ingress_rule.direct_machines) == 0
    error_message = "Somebody reaches brokers past the load balancer."
  }
}

run "brokers_reach_s3_express_by_a_gateway_of_its_own" {
  command = plan

  variables {
    express_enabled = true
  }

  assert {
    condition     = aws_vpc_endpoint.express[0].vpc_endpoint_type == "Gateway" && endswith(aws_vpc_endpoint.express[0].service_name, ".s3express") && aws_vpc_security_group_egress_rule.express[0].to_port == 443
    error_message = "Brokers do not reach S3 Express."
  }
}
