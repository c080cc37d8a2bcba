# Brokers without disks in three zones, as many as the load needs, most of them on spot. What is acknowledged is in the bucket: AWS may end any of them.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = ["${var.region}a", "${var.region}b", "${var.region}c"]

  # One machine on demand keeps the cluster up while spot has none to give. The other types are of the same size, so that spot has a choice.
  fleet = {
    min                  = 3
    max                  = 9
    on_demand            = 1
    disk_gib             = 100
    other_instance_types = ["m6g.large", "r7g.large", "r6g.large"]
  }

  # The segment that is written is on the local disk as a whole.
  settings = { "log.segment.bytes" = "268435456" }

  ami_id        = var.ami_id
  client_cidrs  = var.client_cidrs
  security      = var.security
  wheelhouse    = var.wheelhouse
  alarm_actions = var.alarm_actions
}
