terraform {
  required_version = ">= 1.9.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }

  # State holds the addresses and ids of everything, and two applies at once would make two of each: keep it in a bucket, with a lock.
  # infra/terraform/state makes one. Uncomment, fill in, and run `terraform init`. (use_lockfile needs Terraform 1.10.)
  #
  # backend "s3" {
  #   bucket       = "terraform-state-of-yours"
  #   key          = "firn/prod.tfstate"
  #   region       = "eu-central-1"
  #   encrypt      = true
  #   use_lockfile = true
  # }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = {
      cluster = var.cluster_name
      made_by = "terraform"
    }
  }
}
