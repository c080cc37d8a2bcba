# One broker in a VPC, with a bucket and a key, that others manage. Nothing is made that reaches the internet.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = keys(var.vpc.subnet_ids)
  brokers      = { "0" = { zone = sort(keys(var.vpc.subnet_ids))[0] } }

  existing_vpc = var.vpc
  egress       = var.egress

  existing_bucket    = var.bucket
  bucket_prefix      = var.cluster_name
  kms_key_arn        = var.kms_key_arn
  operator_role_arns = var.operator_role_arns

  ami_id       = var.ami_id
  client_cidrs = var.client_cidrs
  security     = var.security
  wheelhouse   = var.wheelhouse
  dns          = var.dns
}
