# A broker for working hours, on spot: for tests and for batches. It accepts a loss, and the output what_can_be_lost says which.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = ["${var.region}a"]
  brokers      = { "0" = { zone = "${var.region}a" } }

  market                  = "spot"
  scale_to_zero           = { down = "0 20 * * 1-5", up = "0 6 * * 1-5", time_zone = "Europe/Berlin" }
  accept_loss_of_untiered = true

  # Small segments and a short lag keep what a drain has to upload within the two minutes that spot leaves.
  settings = {
    "log.segment.bytes"    = "67108864"
    "firn.tier.max.lag.ms" = "60000"
  }

  ami_id       = var.ami_id
  client_cidrs = var.client_cidrs
  wheelhouse   = var.wheelhouse
}
