# One broker in one zone, with a VPC of its own. The cheapest that loses nothing when its machine does.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = ["${var.region}a"]
  brokers      = { "0" = { zone = "${var.region}a" } }

  ami_id       = var.ami_id
  client_cidrs = var.client_cidrs
  security     = var.security
  wheelhouse   = var.wheelhouse
}
