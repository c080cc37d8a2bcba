# HTTP is internal, by HTTPS alone, and holds no key to the bucket.

mock_provider "aws" {
  override_during = plan

  mock_resource "aws_lb" {
    defaults = {
      arn      = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/app/prod-http/0123456789abcdef"
      dns_name = "internal-prod-http.eu-central-1.elb.amazonaws.com"
    }
  }

  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/prod-http/0123456789abcdef" }
  }

  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/prod-http" }
  }
}

run "http_is_internal_and_by_https_alone" {
  command = plan

  assert {
    condition     = aws_lb.http.internal && aws_lb.http.drop_invalid_header_fields && aws_lb.http.preserve_host_header && aws_lb.http.enable_deletion_protection
    error_message = "The load balancer is public, takes malformed headers, changes the Host, or is unprotected."
  }

  assert {
    condition     = aws_lb_listener.https.protocol == "HTTPS" && aws_lb_listener.https.port == 443 && aws_lb_listener.https.ssl_policy == "ELBSecurityPolicy-TLS13-1-2-2021-06"
    error_message = "HTTP is served without TLS, or with an old one."
  }
}

run "a_machine_is_replaced_when_its_process_is_dead_and_not_when_a_broker_is_away" {
  command = plan

  assert {
    condition     = aws_lb_target_group.http.health_check[0].path == "/healthz" && aws_lb_target_group.http.port == 8080
    error_message = "The health check asks for more than whether the process runs, and its answer ends machines."
  }
}

run "a_machine_is_told_its_zone" {
  command = plan

  assert {
    condition     = alltrue([for zone, bootstrap in output.bootstrap : jsondecode(bootstrap).zone == zone && jsondecode(bootstrap).lifecycle.autoscaling_group == "prod-http-${zone}"])
    error_message = "A machine would refuse to start, because it is in another zone than it is told."
  }

  assert {
    condition     = alltrue([for zone, group in aws_autoscaling_group.http : group.vpc_zone_identifier == toset([var.subnet_ids[zone]])])
    error_message = "A group starts machines in another zone than its launch template says."
  }
}

run "http_has_no_access_to_the_bucket" {
  command = plan

  assert {
    condition     = jsondecode(aws_iam_role_policy.no_store.policy).Statement[0] == { Sid = "NotInTheBucket", Effect = "Deny", Action = "s3:*", Resource = ["arn:aws:s3:::records", "arn:aws:s3:::records/*"] } && !strcontains(aws_iam_role_policy.machine.policy, "s3:") && !strcontains(aws_iam_role_policy.machine.policy, "kms:") && !strcontains(aws_iam_role_policy.machine.policy, "ec2:")
    error_message = "HTTP machines may do more than answer hooks, read their configuration and send logs."
  }
}

run "machines_trust_the_brokers_authority_and_are_told_no_secret" {
  command = plan

  variables {
    ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
  }

  assert {
    condition = length(output.bootstrap) > 0 && alltrue([
      for text in values(output.bootstrap) : jsondecode(text).security == { secret = null, ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }
    ])
    error_message = "A machine that faces all callers is told where the brokers' key is, or does not know their authority."
  }
}
