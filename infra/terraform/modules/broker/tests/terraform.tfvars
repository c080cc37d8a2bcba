# Of every test of this module; a test says what is different.

name                     = "prod"
region                   = "eu-central-1"
account_id               = "123456789012"
partition                = "aws"
brokers                  = { "0" = { zone = "eu-central-1a", running = true }, "1" = { zone = "eu-central-1b", running = false } }
listener_ports           = { "0" = 9092, "1" = 9093 }
role_names               = { "0" = "prod-broker-0", "1" = "prod-broker-1" }
vpc_id                   = "vpc-0123456789abcdef0"
subnet_ids               = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa", "eu-central-1b" = "subnet-0bbbbbbbbbbbbbbbb" }
lb_security_group_id     = "sg-0aaaaaaaaaaaaaaaa"
broker_security_group_id = "sg-0bbbbbbbbbbbbbbbb"
ami_id                   = "ami-0123456789abcdef0"
instance_type            = "m7g.large"
market                   = "on-demand"
data_disk                = { kind = "ebs", size_gib = 100, type = "gp3", iops = 3000, throughput_mibs = 125, filesystem = "xfs" }
accept_loss_of_untiered  = true
scale_to_zero            = null
launch_timeout_s         = 900
store_url                = "s3://records?region=eu-central-1"
bucket_arn               = "arn:aws:s3:::records"
bucket_prefix            = ""
kms_key_arn              = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
wheelhouse               = { bucket = "artifacts", key = "firn-wheelhouse-0.1.0-aarch64.tar.gz", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
user_data_template       = "../../../bootstrap/user_data.py.tftpl"
settings                 = {}
kafka_port               = 9092
http_port                = 8080
dns                      = null
deletion_protection      = true
secret_arn               = null
log_group_arn            = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/journal"
metrics_log_group_arn    = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/metrics"
agent_config_parameter   = "AmazonCloudWatch-firn-prod"
metric_namespace         = "Firn"
