# Of every test of this module; a test says what is different.

name                   = "prod"
region                 = "eu-central-1"
account_id             = "123456789012"
partition              = "aws"
vpc_id                 = "vpc-0123456789abcdef0"
subnet_ids             = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa", "eu-central-1b" = "subnet-0bbbbbbbbbbbbbbbb" }
lb_security_group_id   = "sg-0aaaaaaaaaaaaaaaa"
http_security_group_id = "sg-0bbbbbbbbbbbbbbbb"
ami_id                 = "ami-0123456789abcdef0"
instance_type          = "t4g.small"
machines               = 1
certificate_arn        = "arn:aws:acm:eu-central-1:123456789012:certificate/11111111-2222-3333-4444-555555555555"
host                   = "firn.example.com"
dns_zone_id            = "Z0123456789ABCDEFGHIJ"
port                   = 8080
bucket_arn             = "arn:aws:s3:::records"
store_url              = "s3://records?region=eu-central-1"
bootstrap_servers      = "kafka.example.com:9092"
wheelhouse             = null
user_data_template     = "../../../bootstrap/user_data.py.tftpl"
launch_timeout_s       = 900
deletion_protection    = true
log_group_arn          = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/journal"
metrics_log_group_arn  = "arn:aws:logs:eu-central-1:123456789012:log-group:/firn/prod/metrics"
agent_config_parameter = "AmazonCloudWatch-firn-prod"
