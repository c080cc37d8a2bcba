# A VPC, a bucket and a key of others.

mock_provider "aws" {
  source          = "../../tests/mocks"
  override_during = plan
}

variables {
  ami_id       = "ami-0123456789abcdef0"
  client_cidrs = ["10.1.0.0/16"]
  bucket       = "records-of-ours"
  kms_key_arn  = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  dns          = { zone_id = "Z0123456789ABCDEFGHIJ", name = "kafka.example.com" }
  vpc = {
    vpc_id          = "vpc-0123456789abcdef0"
    subnet_ids      = { "eu-central-1a" = "subnet-0aaaaaaaaaaaaaaaa" }
    route_table_ids = ["rtb-0aaaaaaaaaaaaaaaa"]
  }
}

run "what_others_manage_is_used_and_told_what_it_needs" {
  command = plan

  assert {
    condition     = output.bootstrap_servers == "kafka.example.com:9092"
    error_message = "Clients are told ${output.bootstrap_servers}"
  }

  assert {
    condition     = strcontains(output.bucket_policy, "arn:aws:s3:::records-of-ours/firn/data/*")
    error_message = "The policy is for other keys: ${output.bucket_policy}"
  }
}
