# What AWS would say: an account, an image and an instance type that fit together. Runs override what they are about.

mock_data "aws_caller_identity" {
  defaults = {
    account_id = "123456789012"
  }
}

mock_data "aws_partition" {
  defaults = {
    partition = "aws"
  }
}

mock_data "aws_region" {
  defaults = {
    region = "eu-central-1"
  }
}

mock_data "aws_ami" {
  defaults = {
    image_id         = "ami-0123456789abcdef0"
    architecture     = "arm64"
    root_device_name = "/dev/xvda"
  }
}

mock_data "aws_ec2_instance_type" {
  defaults = {
    supported_architectures    = ["arm64"]
    instance_storage_supported = false
    default_vcpus              = 2
  }
}

mock_data "aws_s3_bucket" {
  defaults = {
    bucket_region = "eu-central-1"
  }
}

mock_data "aws_subnet" {
  defaults = {
    availability_zone       = "eu-central-1a"
    vpc_id                  = "vpc-0123456789abcdef0"
    map_public_ip_on_launch = false
  }
}

mock_data "aws_ec2_managed_prefix_list" {
  defaults = {
    id = "pl-6ea54007"
  }
}

mock_resource "aws_ebs_volume" {
  defaults = {
    id = "vol-0123456789abcdef0"
  }
}

mock_resource "aws_kms_key" {
  defaults = {
    arn = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }
}

mock_resource "aws_lb" {
  defaults = {
    arn      = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/prod-kafka/0123456789abcdef"
    dns_name = "prod-kafka-0123456789abcdef.elb.eu-central-1.amazonaws.com"
    zone_id  = "Z3F0SRJ5LGBH90"
  }
}

mock_resource "aws_lb_target_group" {
  defaults = {
    arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/prod-broker-0/0123456789abcdef"
  }
}

mock_resource "aws_iam_role" {
  defaults = {
    arn = "arn:aws:iam::123456789012:role/prod-broker-0"
    id  = "prod-broker-0"
  }
}

mock_resource "aws_iam_instance_profile" {
  defaults = {
    arn = "arn:aws:iam::123456789012:instance-profile/prod-broker-0"
  }
}

mock_resource "aws_cloudwatch_log_group" {
  defaults = {
    arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/journal"
  }
}

mock_resource "aws_cloudwatch_metric_alarm" {
  defaults = {
    arn = "arn:aws:cloudwatch:eu-central-1:123456789012:alarm:prod-0-broker-down"
  }
}

mock_resource "aws_secretsmanager_secret" {
  defaults = {
    arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/prod/broker-AbCdEf"
  }
}

mock_resource "aws_emrserverless_application" {
  defaults = {
    id = "00f0123456789abc"
  }
}

mock_resource "aws_elasticache_replication_group" {
  defaults = {
    primary_endpoint_address = "master.prod-valkey.abcdef.euc1.cache.amazonaws.com"
  }
}
