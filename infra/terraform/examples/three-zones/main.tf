# Three brokers with volumes, one in each zone, with HTTP and Spark beside them.

module "firn" {
  source = "../.."

  cluster_name = var.cluster_name
  region       = var.region
  zones        = ["${var.region}a", "${var.region}b", "${var.region}c"]
  brokers = {
    "0" = { zone = "${var.region}a" }
    "1" = { zone = "${var.region}b" }
    "2" = { zone = "${var.region}c" }
  }

  ami_id        = var.ami_id
  instance_type = "m7g.2xlarge"
  data_disk     = { size_gib = 500, iops = 4000, throughput_mibs = 500 }
  client_cidrs  = var.client_cidrs
  security      = var.security
  wheelhouse    = var.wheelhouse

  http          = var.http
  spark         = var.lake_bucket == null ? null : { target_bucket = var.lake_bucket }
  alarm_actions = var.alarm_actions
}
