# Brokers for working hours, on spot: for tests and for batches. They have no disks, so nothing is lost while none of them runs.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = ["${var.region}a"]

  # One machine, and more while the load needs them. All are on spot, of whichever of these types it has.
  fleet = {
    min                  = 1
    max                  = 3
    on_demand            = 0
    other_instance_types = ["m6g.large", "r7g.large", "r6g.large"]
  }
  scale_to_zero = { down = "0 20 * * 1-5", up = "0 6 * * 1-5", time_zone = "Europe/Berlin" }

  ami_id       = var.ami_id
  client_cidrs = var.client_cidrs
  security     = var.security
  wheelhouse   = var.wheelhouse
}
