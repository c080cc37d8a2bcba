# All variables. Their conditions refuse a wrong value or a wrong combination of values, and say what to change. The postconditions in
# lookups.tf check facts that only AWS knows (the architecture of an image, the region of a bucket).

# --- the cluster ---------------------------------------------------------------------------------------------------------------

variable "cluster_name" {
  description = "Name of the cluster. The name of every resource begins with it, so that one account can have two clusters."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.cluster_name))
    error_message = "cluster_name is not a name that every AWS service accepts. Write 3 to 20 characters of a-z, 0-9 and '-'. Begin with a letter, and do not end with '-'."
  }
}

variable "region" {
  description = "Region of all resources. The provider must have the same region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is not the name of a region. Write one like eu-central-1."
  }

  validation {
    condition     = !can(regex("^cn-|-iso[a-z]*-", var.region))
    error_message = "region is one whose APIs are not below amazonaws.com, where the first boot asks for packages, volumes and machines. Choose another region."
  }
}

variable "zones" {
  description = "Availability zones of this cluster. Each has a subnet. Brokers are in these zones, and the load balancers serve clients in each zone."
  type        = list(string)

  validation {
    condition     = length(var.zones) > 0 && length(distinct(var.zones)) == length(var.zones)
    error_message = "zones is empty or names a zone twice. Name each zone once, such as [\"eu-central-1a\"]."
  }

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^${var.region}[a-z]$", zone))])
    error_message = "zones names a zone outside the region ${var.region}. Correct zones or region."
  }
}

variable "brokers" {
  description = <<-EOT
    One entry for each node id. `zone`: where the broker and its volume lie; a volume cannot leave its zone, so it never changes.
    `running`: false stops the broker (desired capacity 0) and keeps its volume, address and node id. Drain it first, and end its machine before you apply:
    machines are protected from scale-in (infra/README.md, "Day by day").
    One entry is one broker, whose address is the load balancer's. Three or more, in three zones, are a cluster: new topics have three replicas
    (default.replication.factor, min.insync.replicas = 2), clients connect to the machines themselves, and the load balancer is their first
    address. Empty with fleet.
  EOT
  type = map(object({
    zone    = string
    running = optional(bool, true)
  }))
  default = {}

  validation {
    condition     = length(var.brokers) > 0 || var.fleet != null
    error_message = "brokers is empty. Name one node id with its zone, such as { \"0\" = { zone = \"eu-central-1a\" } }, or set fleet."
  }

  validation {
    condition     = length(var.brokers) == 0 || var.fleet == null
    error_message = "brokers and fleet are both set. Keep brokers for brokers with volumes, or fleet for brokers without disks."
  }

  validation {
    condition     = alltrue([for node_id in keys(var.brokers) : can(regex("^(0|[1-9][0-9]{0,3})$", node_id))])
    error_message = "A key of brokers is not a node id. Write decimal numbers from 0 to 9999 without leading zeros."
  }

  validation {
    condition     = alltrue([for broker in values(var.brokers) : contains(var.zones, broker.zone)])
    error_message = "A broker of brokers has a zone that zones does not name. Add its zone to zones, or give the broker another zone."
  }

  validation {
    condition     = length(var.brokers) != 2
    error_message = "brokers names two node ids: when one of them is away, the other has the only copy, or takes no writes. Name one node id, or three."
  }

  validation {
    condition     = length(distinct([for broker in values(var.brokers) : broker.zone])) >= min(3, length(var.brokers))
    error_message = "brokers has several node ids in fewer than three zones, so that one zone could take two of three replicas with it. Give them three zones."
  }

  validation {
    condition     = alltrue([for broker in values(var.brokers) : broker.running]) || var.accept_loss_of_untiered
    error_message = "running = false scales a broker to zero. Records that are not in the bucket are then on one volume, and no broker serves them. Drain the broker, and set accept_loss_of_untiered = true."
  }
}

variable "fleet" {
  description = <<-EOT
    Brokers without disks, in place of `brokers`: one group of machines in all zones, whose number follows the load. Every topic has firn.durability=object,
    so what is acknowledged is in the bucket, and AWS may end any machine. `min` and `max`: number of machines. `on_demand`: how many of them are on demand;
    the others are on spot. `other_instance_types`: what spot may be besides instance_type, of the same size. `disk`: root (of `disk_gib`) or instance-store;
    a cache in any case. `cpu_percent` and `network_mb_s`: the average of all machines that their number is chosen for; a broker uses one core for itself, so
    50 percent of two cores are all that it can use. data_disk, market and accept_loss_of_untiered have no meaning then. null: none.
  EOT
  type = object({
    min                  = optional(number, 3)
    max                  = optional(number, 9)
    on_demand            = optional(number, 1)
    other_instance_types = optional(list(string), [])
    disk                 = optional(string, "root")
    disk_gib             = optional(number, 50)
    cpu_percent          = optional(number, 35)
    network_mb_s         = optional(number, 60)
  })
  default = null

  validation {
    condition     = var.fleet == null || try(var.fleet.min >= 1 && var.fleet.max >= var.fleet.min && var.fleet.max <= 100, false)
    error_message = "fleet.min or fleet.max is out of range. Write 1 <= min <= max <= 100; scale_to_zero is what ends the last machine."
  }

  validation {
    condition     = var.fleet == null || try(var.fleet.on_demand >= 0 && var.fleet.on_demand <= var.fleet.max, false)
    error_message = "fleet.on_demand is out of range. Write 0 (all on spot) to fleet.max (none on spot)."
  }

  validation {
    condition     = var.fleet == null || contains(["root", "instance-store"], try(var.fleet.disk, ""))
    error_message = "fleet.disk is neither root nor instance-store. Write root unless the instance types have NVMe."
  }

  validation {
    condition     = var.fleet == null || try(var.fleet.disk_gib >= 20 && var.fleet.disk_gib <= 16384, false)
    error_message = "fleet.disk_gib is out of range. Write 20 to 16384. The root disk also has the last quarter of an hour of every partition."
  }

  validation {
    condition     = var.fleet == null || try(var.fleet.cpu_percent >= 10 && var.fleet.cpu_percent <= 90 && var.fleet.network_mb_s >= 1, false)
    error_message = "fleet.cpu_percent or fleet.network_mb_s is out of range. Write 10 to 90 percent, and at least 1 MB/s."
  }
}

variable "accept_loss_of_untiered" {
  description = <<-EOT
    true: you accept the loss of data that is on a broker's disk only. This is the newest records of tiered topics, committed offsets,
    transactional ids, progress of share groups and compacted topics. Instance store, spot and scale to zero need true.
  EOT
  type        = bool
  default     = false
}

variable "settings" {
  description = <<-EOT
    Settings of the brokers, with the names that `firn serve --list-settings` prints. Settings that the modules derive are refused. Two defaults
    differ from Firn's own: firn.durability = disk (a record is on the volume before it is acknowledged), and connections.max.idle.ms = 300000
    (less than the load balancer's 350 s). With fleet: log.local.retention.ms = 900000 in place of firn.durability.
  EOT
  type        = map(string)
  default     = {}

  validation {
    condition = length(setintersection(keys(var.settings), [
      "node.id", "broker.id", "listeners", "firn.listen", "advertised.listeners", "firn.advertise", "log.dirs", "log.dir",
      "firn.data.dir", "broker.rack", "firn.rack", "firn.store.url", "firn.store", "firn.http.listen", "firn.http",
      "firn.instance.id", "firn.take.over", "firn.redis.url", "firn.ephemeral", "firn.spot.notice.endpoint", "firn.wal.store.url",
      "firn.wal.store",
    ])) == 0
    error_message = "settings names a setting that comes from another variable or from the machine (node id, listeners, addresses, directories, rack, store, HTTP, instance, take-over, Redis). Remove it."
  }

  validation {
    condition = var.security == null || length(setintersection(keys(var.settings), [
      "listener.security.protocol.map", "inter.broker.listener.name", "security.inter.broker.protocol", "ssl.keystore.type",
      "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.type", "ssl.truststore.location",
      "ssl.truststore.certificates", "authorizer.class.name", "firn.http.ssl.keystore.location",
    ])) == 0
    error_message = "settings names a setting that security decides (listeners, certificates, authorizer). Remove it. Users with all rights are added by super.users."
  }

  validation {
    condition     = alltrue([for name in keys(var.settings) : can(regex("^[a-z][a-z0-9.]*$", name))])
    error_message = "settings has a name that is no setting. Write names as `firn serve --list-settings` prints them."
  }

  validation {
    condition     = alltrue([for value in values(var.settings) : !can(regex("[\r\n]", value))])
    error_message = "settings has a value of several lines. Write it in one line."
  }

  validation {
    condition     = var.fleet == null || lookup(var.settings, "firn.durability", "object") == "object"
    error_message = "settings has a firn.durability other than object, and brokers without disks (fleet) lead no other topics. Remove it."
  }

  validation {
    condition = length(var.brokers) < 2 || alltrue([for name in [
      "default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor",
      "share.coordinator.state.topic.replication.factor",
    ] : try(tonumber(lookup(var.settings, name, "3")), 0) >= 3])
    error_message = "settings has a replication factor below 3, and machines of several brokers end without a drain, because others have replicas. Remove it, and give single topics fewer replicas with `firn topic create --replication-factor`."
  }
}

# --- machines -----------------------------------------------------------------------------------------------------------------

variable "ami_id" {
  description = "Image of the machines: Debian 12 with Python 3.11. The id is pinned, so you make and review each change of the image."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8}([0-9a-f]{9})?$", var.ami_id))
    error_message = "ami_id is not the id of an image. Write one like ami-0123456789abcdef0. With an alias or 'latest', machines would change without your review."
  }
}

variable "ami_owners" {
  description = "Accounts that may own the image ami_id. Default: your account, Amazon and Debian. Add an account if it shares images with yours."
  type        = list(string)
  default     = ["self", "amazon", "136693071363"]
}

variable "architecture" {
  description = "Architecture of the image, the instance type and the wheelhouse: arm64 or x86_64."
  type        = string
  default     = "arm64"

  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture is neither arm64 nor x86_64. Write that of ami_id and instance_type."
  }
}

variable "instance_type" {
  description = "Instance type of the brokers. A broker uses two cores: one for itself, and one for its store process."
  type        = string
  default     = "m7g.large"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.instance_type))
    error_message = "instance_type is not the name of an instance type. Write one like m7g.large."
  }
}

variable "market" {
  description = "on-demand or spot. AWS ends a spot machine with two minutes' notice, so a longer drain does not finish."
  type        = string
  default     = "on-demand"

  validation {
    condition     = contains(["on-demand", "spot"], var.market)
    error_message = "market is neither on-demand nor spot. Write on-demand; spot also needs accept_loss_of_untiered = true."
  }

  validation {
    condition     = var.market != "spot" || var.accept_loss_of_untiered
    error_message = "market = \"spot\" gives a broker only 120 seconds to drain. Use on-demand, or set accept_loss_of_untiered = true."
  }
}

variable "data_disk" {
  description = <<-EOT
    Disk of the data directory. `kind`: ebs is one volume for each node id, which outlives the machine. instance-store is the machine's own
    NVMe disk, which is lost with the machine. The other fields describe the EBS volume; instance-store uses only `filesystem`.
  EOT
  type = object({
    kind            = optional(string, "ebs")
    size_gib        = optional(number, 100)
    type            = optional(string, "gp3")
    iops            = optional(number, 3000)
    throughput_mibs = optional(number, 125)
    filesystem      = optional(string, "xfs")
  })
  default = {}

  validation {
    condition     = contains(["ebs", "instance-store"], var.data_disk.kind)
    error_message = "data_disk.kind is neither ebs nor instance-store. Write ebs, which outlives the machine; instance-store also needs accept_loss_of_untiered = true."
  }

  validation {
    condition     = var.data_disk.kind != "instance-store" || var.accept_loss_of_untiered
    error_message = "data_disk.kind = \"instance-store\" loses all data that is not in the bucket when the machine ends. Use ebs, or set accept_loss_of_untiered = true."
  }

  validation {
    condition     = contains(["xfs", "ext4"], var.data_disk.filesystem)
    error_message = "data_disk.filesystem is neither xfs nor ext4. Write xfs; the first boot makes these two and no other."
  }

  validation {
    condition     = contains(["gp3", "io2"], var.data_disk.type)
    error_message = "data_disk.type is neither gp3 nor io2. Write one of these: no other type guarantees a throughput."
  }

  validation {
    condition     = var.data_disk.size_gib >= 10 && var.data_disk.size_gib <= 16384
    error_message = "data_disk.size_gib is out of range. Write 10 to 16384. A broker needs space for local retention, compacted topics and the chunk cache."
  }

  validation {
    condition = (
      var.data_disk.iops >= (var.data_disk.type == "gp3" ? 3000 : 100) &&
      var.data_disk.iops <= 500 * var.data_disk.size_gib &&
      var.data_disk.iops <= (var.data_disk.type == "gp3" ? 16000 : 64000)
    )
    error_message = "data_disk.iops does not fit the volume. Write 3000 to 16000 for gp3, 100 to 64000 for io2, and at most 500 for each GiB."
  }

  validation {
    condition     = var.data_disk.type != "gp3" || (var.data_disk.throughput_mibs >= 125 && var.data_disk.throughput_mibs <= min(1000, var.data_disk.iops / 4))
    error_message = "data_disk.throughput_mibs does not fit the volume. Write 125 to 1000 for gp3, and at most a quarter of data_disk.iops."
  }
}

variable "wheelhouse" {
  description = <<-EOT
    Packages to install at boot: an archive `firn-wheelhouse-<version>-<arch>.tar.gz` in a bucket that brokers can only read. The launch
    template contains its SHA-256, so write access to the bucket is not enough to run code. null: the packages are in the image.
  EOT
  type = object({
    bucket = string
    key    = string
    sha256 = string
  })
  default = null

  validation {
    condition     = var.wheelhouse == null || can(regex("^[0-9a-f]{64}$", var.wheelhouse.sha256))
    error_message = "wheelhouse.sha256 is not a SHA-256. Write 64 lower-case hexadecimal digits, as sha256sum prints them."
  }

  validation {
    condition     = var.wheelhouse == null || can(regex("-${var.architecture == "arm64" ? "aarch64" : "x86_64"}\\.tar\\.gz$", var.wheelhouse.key))
    error_message = "wheelhouse.key is not an archive for ${var.architecture}. Name the archive that ends in -${var.architecture == "arm64" ? "aarch64" : "x86_64"}.tar.gz, or correct architecture."
  }

  validation {
    condition     = var.wheelhouse == null ? true : var.wheelhouse.bucket != local.bucket_name
    error_message = "wheelhouse.bucket is the cluster's own bucket, and brokers can write to it. Keep packages in a bucket that brokers can only read."
  }
}

variable "drain_timeout_s" {
  description = <<-EOT
    Longest time of a drain by the commands in the output drain_commands. A drain takes un-tiered bytes / upload rate + 5 s, and longer with many small tails.
    The drain of a machine that AWS ends is the agent's: 12,000 s at most, which is as long as AWS waits, and 110 s on spot.
  EOT
  type        = number
  default     = 3600

  validation {
    condition     = var.drain_timeout_s >= 120 && var.drain_timeout_s <= 12000
    error_message = "drain_timeout_s is out of range. Write 120 to 12000 seconds."
  }
}

variable "launch_timeout_s" {
  description = <<-EOT
    How long a machine that starts may stay without a sign of life. After that it is replaced. While the broker starts there is one every 60 s; while packages
    are installed there is none. The launch hook takes it when its group is made. Later: `aws autoscaling put-lifecycle-hook --auto-scaling-group-name
    <cluster_name>-broker-<node id> --lifecycle-hook-name firn-launch --heartbeat-timeout <seconds>`.
  EOT
  type        = number
  default     = 900

  validation {
    condition     = var.launch_timeout_s >= 300 && var.launch_timeout_s <= 7200
    error_message = "launch_timeout_s is out of range. Write 300 to 7200 seconds: the install of packages takes minutes, without a sign of life."
  }
}

variable "scale_to_zero" {
  description = <<-EOT
    Stop the brokers and start them again by schedule. `down` and `up` are cron expressions of five fields in `time_zone`. null: never. Between the two the
    group's capacity is not managed by Terraform, and protection from scale-in is off. A machine that runs already keeps its protection, so that the schedule
    does not end it: take the protection off by hand (infra/README.md, "Day by day"). Of a fleet nothing is protected, and `up` starts fleet.min machines; an
    apply while it is down starts them too, until the next `down`.
  EOT
  type = object({
    down      = string
    up        = string
    time_zone = optional(string, "Etc/UTC")
  })
  default = null

  validation {
    condition     = var.scale_to_zero == null || var.accept_loss_of_untiered || var.fleet != null
    error_message = "scale_to_zero ends brokers by schedule. Records that a drain cannot upload in time are then on one volume, and no broker serves them. Set accept_loss_of_untiered = true, or remove scale_to_zero."
  }

  validation {
    condition = var.scale_to_zero == null || alltrue([
      for field in [try(var.scale_to_zero.down, ""), try(var.scale_to_zero.up, "")] : can(regex("^\\S+ \\S+ \\S+ \\S+ \\S+$", field))
    ])
    error_message = "scale_to_zero.down or .up is not a cron expression of five fields. Write such as \"0 20 * * 1-5\"."
  }
}

# --- network ------------------------------------------------------------------------------------------------------------------

variable "vpc_cidr" {
  description = "Address block of the new VPC. Ignored with existing_vpc."
  type        = string
  default     = "10.42.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 0)) && try(tonumber(split("/", var.vpc_cidr)[1]), 99) <= 20 && try(tonumber(split("/", var.vpc_cidr)[1]), 0) >= 16
    error_message = "vpc_cidr is not an IPv4 block of /16 to /20. Write such as 10.42.0.0/16. Each zone gets one sixteenth for machines and one for NAT."
  }
}

variable "existing_vpc" {
  description = <<-EOT
    An existing VPC to use. null: a new VPC is made. `subnet_ids`: a private subnet for each zone of zones. `route_table_ids`: the route tables of
    these subnets; they get the gateway endpoint of S3. `s3_endpoint`: false if the VPC already has such an endpoint.
  EOT
  type = object({
    vpc_id          = string
    subnet_ids      = map(string)
    route_table_ids = list(string)
    s3_endpoint     = optional(bool, true)
  })
  default = null

  validation {
    condition     = var.existing_vpc == null || alltrue([for zone in var.zones : contains(keys(try(var.existing_vpc.subnet_ids, {})), zone)])
    error_message = "existing_vpc.subnet_ids has no subnet for a zone of zones. Name a private subnet for each zone, or remove the zone from zones."
  }

  validation {
    condition     = var.existing_vpc == null || try(length(var.existing_vpc.route_table_ids) > 0 || !var.existing_vpc.s3_endpoint, false)
    error_message = "existing_vpc.route_table_ids is empty, so no route would lead to the gateway endpoint of S3. Name the route tables of the subnets, or set s3_endpoint = false if the VPC has an endpoint."
  }
}

variable "egress" {
  description = <<-EOT
    How machines reach AWS's other APIs (S3 has its gateway endpoint). endpoints: through interface endpoints, without a way to the internet.
    nat: through a NAT gateway in the first zone. existing: through the existing VPC's own way; nothing is made.
  EOT
  type        = string
  default     = "endpoints"

  validation {
    condition     = contains(["endpoints", "nat", "existing"], var.egress)
    error_message = "egress is none of endpoints, nat, existing. Write endpoints for a VPC without a way to the internet."
  }

  validation {
    condition     = var.egress != "existing" || var.existing_vpc != null
    error_message = "egress = \"existing\" needs existing_vpc. A new VPC has no way to AWS's APIs: choose endpoints or nat."
  }

  validation {
    condition     = var.egress != "nat" || var.existing_vpc == null
    error_message = "egress = \"nat\" makes a gateway in a new VPC only. With existing_vpc choose existing (the VPC has its own way) or endpoints."
  }
}

variable "client_cidrs" {
  description = "Address blocks that may reach Kafka and HTTP. Without security everybody who reaches the port can read and write everything."
  type        = list(string)

  validation {
    condition     = length(var.client_cidrs) > 0
    error_message = "client_cidrs is empty, so no client could connect. Name the address blocks of your clients."
  }

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !strcontains(cidr, ":")])
    error_message = "client_cidrs has an entry that is not an IPv4 block. Write such as 10.1.0.0/16."
  }

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : try(tonumber(split("/", cidr)[1]) >= 8, false)])
    error_message = "client_cidrs has a block wider than a /8, such as 0.0.0.0/0. Brokers are not for the whole internet: name only the address blocks of your clients."
  }
}

variable "kafka_port" {
  description = "First port of the load balancer. Clients reach node id n at port kafka_port + n. Every broker listens on port 9092 of its own machine."
  type        = number
  default     = 9092

  validation {
    condition     = var.kafka_port >= 1024 && var.kafka_port <= 55000 && floor(var.kafka_port) == var.kafka_port
    error_message = "kafka_port is out of range. Write 1024 to 55000."
  }
}

variable "http_port" {
  description = "Port of the HTTP process on every machine. It serves REST, metrics and health."
  type        = number
  default     = 8080

  validation {
    condition     = var.http_port >= 1024 && var.http_port <= 65535 && floor(var.http_port) == var.http_port
    error_message = "http_port is out of range. Write 1024 to 65535."
  }

  validation {
    condition     = !contains([9092, 9094], var.http_port)
    error_message = "http_port is 9092 or 9094, but the machine's broker listens there. Choose another port."
  }
}

variable "dns" {
  description = "A name in a Route 53 zone for the brokers. null: clients use the load balancer's own name."
  type = object({
    zone_id = string
    name    = string
  })
  default = null

  validation {
    condition     = var.dns == null || can(regex("^([a-z0-9]([a-z0-9-]*[a-z0-9])?\\.)+[a-z]{2,}$", var.dns.name))
    error_message = "dns.name is not a full host name in lower case. Write one like kafka.example.com."
  }
}

# --- storage ------------------------------------------------------------------------------------------------------------------

variable "bucket_name" {
  description = "Name of the new bucket. null: <cluster_name>-<account>-<region>."
  type        = string
  default     = null

  validation {
    condition     = var.bucket_name == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name is not a valid name. Write 3 to 63 characters of a-z, 0-9 and '-'. A '.' would break TLS."
  }

  validation {
    condition     = var.bucket_name == null || var.existing_bucket == null
    error_message = "bucket_name and existing_bucket are both set. Set only one: bucket_name for a new bucket, existing_bucket for an existing one."
  }
}

variable "existing_bucket" {
  description = "An existing bucket to use, in the same region. null: a new bucket is made. You manage its policy, encryption and lifecycle; the output bucket_policy has the statements that its policy should contain."
  type        = string
  default     = null
}

variable "bucket_prefix" {
  description = "Prefix of the cluster's keys in the bucket, without a slash at either end. Empty: the whole bucket."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$", var.bucket_prefix)) && length(var.bucket_prefix) < 200
    error_message = "bucket_prefix is not a prefix that Firn accepts. Write parts of A-Z, a-z, 0-9, '.', '_' and '-', joined by '/', with fewer than 200 characters in all. No part may begin with a dot."
  }
}

variable "bucket_versioning_days" {
  description = <<-EOT
    Days that deleted and overwritten objects stay as old versions. 0: no versioning. Versions protect against a wrong DeleteObject. You then pay
    for objects that retention deletes for as many days more. The module storage explains this, and Object Lock.
  EOT
  type        = number
  default     = 0

  validation {
    condition     = var.bucket_versioning_days >= 0 && var.bucket_versioning_days <= 365 && floor(var.bucket_versioning_days) == var.bucket_versioning_days
    error_message = "bucket_versioning_days is out of range. Write 0 (no versioning) to 365."
  }

  validation {
    condition     = var.bucket_versioning_days == 0 || var.existing_bucket == null
    error_message = "bucket_versioning_days applies only to a new bucket. Remove it, and set the versioning of existing_bucket where you manage that bucket."
  }

  validation {
    condition     = var.bucket_versioning_days == 0 || var.fleet == null
    error_message = "bucket_versioning_days keeps every object of the write-ahead logs of fleet, which are deleted all the time, for as many days more. Remove it; `firn doctor` would refuse the bucket."
  }
}

variable "wal_store" {
  description = <<-EOT
    A bucket of its own for the write-ahead logs of topics with firn.durability = object, and so for their newest records. `kind`: express is a directory
    bucket of S3 Express One Zone in the zone `zone_id` (`aws ec2 describe-availability-zones`); standard is another bucket of S3. `name`: of the bucket, of
    express without its ending --<zone id>--x-s3; null: <cluster_name>-wal-<account>. Decide before the first such topic is made
    (docs/cluster.md, "A faster store for the write-ahead log"). null: write-ahead logs are in the cluster's bucket.
  EOT
  type = object({
    kind    = optional(string, "express")
    zone_id = optional(string)
    name    = optional(string)
  })
  default = null

  validation {
    condition     = var.wal_store == null || contains(["express", "standard"], try(var.wal_store.kind, ""))
    error_message = "wal_store.kind is neither express nor standard. Write express for a bucket of S3 Express One Zone, or standard for one of S3."
  }

  validation {
    condition     = var.wal_store == null || (try(var.wal_store.kind, "") == "express") == can(regex("^[a-z0-9]+-az[0-9]+$", var.wal_store.zone_id))
    error_message = "wal_store.zone_id does not fit wal_store.kind. Write the id of a zone, such as euc1-az1, for express, and none for standard."
  }

  validation {
    condition     = try(var.wal_store.name, null) == null ? true : can(regex("^[a-z0-9][a-z0-9-]{1,43}[a-z0-9]$", var.wal_store.name)) && var.wal_store.name != local.bucket_name
    error_message = "wal_store.name is no name of a second bucket. Write 3 to 45 characters of a-z, 0-9 and '-', other than the name of the cluster's bucket."
  }

  validation {
    condition     = try(var.wal_store.kind, "standard") != "express" || var.accept_loss_of_untiered
    error_message = "wal_store.kind = \"express\" keeps records in one zone until they are tiered. Use standard, or set accept_loss_of_untiered = true."
  }
}

variable "operator_role_arns" {
  description = "Roles that may write to the bucket in addition to the brokers' roles, for `firn tier adopt`, `firn tier accept-loss` and `firn job compact --offline`. Everybody else is denied."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.operator_role_arns : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:role/\\S+$", arn)) && !strcontains(arn, "*")])
    error_message = "operator_role_arns has an entry that is not the ARN of one role. Write such as arn:aws:iam::123456789012:role/operator."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts bucket, volumes, logs and secrets. null: a new key is made. The policy of your own key must let CloudWatch Logs and the cluster's roles use it."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:${var.region}:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn is not the ARN of a key in ${var.region}. Write the ARN of a key (not of an alias) in the region of the cluster."
  }
}

variable "create_secret" {
  description = "Make a secret in Secrets Manager, without a value, that only brokers may read: for security."
  type        = bool
  default     = false
}

variable "security" {
  description = <<-EOT
    TLS, logins and rules. `ca_pem`: the certificate (PEM) of the authority that signed the brokers'; machines for HTTP trust it, and clients must. `secret_arn`:
    the secret with the brokers' key and first users; null: the one of create_secret. infra/README.md, "Who may do what", says how to make both.
    null: everybody who reaches the brokers can read and write everything.
  EOT
  type = object({
    ca_pem     = string
    secret_arn = optional(string)
  })
  default = null

  validation {
    condition     = var.security == null || can(regex("^-----BEGIN CERTIFICATE-----\n[ -~\n]+-----END CERTIFICATE-----\n?$", var.security.ca_pem))
    error_message = "security.ca_pem is not a certificate in PEM. Write file(\"ca.pem\"), and no private key."
  }

  validation {
    condition     = var.security == null || try(length(var.security.ca_pem) <= 6000, false)
    error_message = "security.ca_pem is longer than the user data of a machine can hold. Write the certificates of one or two authorities only, of keys of elliptic curves."
  }

  validation {
    condition     = try(var.security.secret_arn, null) == null ? true : can(regex("^arn:[a-z-]+:secretsmanager:${var.region}:[0-9]{12}:secret:\\S+$", var.security.secret_arn))
    error_message = "security.secret_arn is not the ARN of a secret in ${var.region}. Write the ARN that Secrets Manager shows, in the region of the cluster."
  }

  validation {
    condition     = var.security == null || try(var.security.secret_arn, null) != null || var.create_secret
    error_message = "security names no secret with the brokers' key and users. Set security.secret_arn, or create_secret = true."
  }
}

variable "redis" {
  description = "Make a small Valkey. It has the quotas of a whole cluster (firn.quota.scope = cluster), and signs of life of a broker with a volume. null: none."
  type = object({
    node_type = optional(string, "cache.t4g.small")
  })
  default = null
}

# --- http and spark -----------------------------------------------------------------------------------------------------------

variable "http" {
  description = <<-EOT
    HTTP processes on their own machines, behind an internal load balancer with HTTPS. `certificate_arn`: a certificate in ACM. `host`: the name
    that clients use and the certificate covers; requests for other names are refused. `machines`: number of machines in each zone. null: no such
    machines; every broker still has an HTTP process for health and metrics.
  EOT
  type = object({
    certificate_arn = string
    host            = string
    machines        = optional(number, 1)
    instance_type   = optional(string, "t4g.small")
    dns_zone_id     = optional(string)
  })
  default = null

  validation {
    condition     = var.http == null || can(regex("^arn:[a-z-]+:acm:${var.region}:[0-9]{12}:certificate/", var.http.certificate_arn))
    error_message = "http.certificate_arn is not the ARN of a certificate in ${var.region}. HTTP is served by HTTPS only: make a certificate in ACM, in the region of the cluster."
  }

  validation {
    condition     = var.http == null || can(regex("^([a-z0-9]([a-z0-9-]*[a-z0-9])?\\.)+[a-z]{2,}$", var.http.host))
    error_message = "http.host is not a full host name in lower case. Write one like firn.example.com."
  }

  validation {
    condition     = var.http == null || length(var.zones) >= 2
    error_message = "http needs two zones, because an application load balancer needs two. Add a zone to zones."
  }

  validation {
    condition     = var.http == null || try(var.http.machines >= 1 && var.http.machines <= 20, false)
    error_message = "http.machines is out of range. Write 1 to 20."
  }
}

variable "spark" {
  description = <<-EOT
    EMR Serverless for Spark jobs over the history. `release_label` and `image_uri`: see the module spark on Spark 4.2. `topic_ids`: the topics that jobs may
    read, by id (`firn topic describe`); empty: all. `target_bucket`: where archives go; null: reading only. `script_bucket`: where the scripts of jobs lie,
    which jobs only read; null: target_bucket. `kms_key_arns`: keys of your own that encrypt these two buckets; empty: S3's keys do.
  EOT
  type = object({
    release_label = optional(string, "emr-spark-8.0.0")
    image_uri     = optional(string)
    topic_ids     = optional(list(string), [])
    target_bucket = optional(string)
    script_bucket = optional(string)
    kms_key_arns  = optional(list(string), [])
    vcpus_max     = optional(number, 16)
  })
  default = null

  validation {
    condition     = var.spark == null || can(regex("^emr-(spark-)?[0-9]+\\.[0-9]+\\.[0-9]+$", var.spark.release_label))
    error_message = "spark.release_label is not a release of EMR. Write one like emr-spark-8.0.0."
  }

  validation {
    condition     = var.spark == null || !can(regex("^emr-[0-7]\\.", var.spark.release_label))
    error_message = "spark.release_label is a release with Spark 3. Firn's data source needs Spark 4: use emr-spark-8.0.0 or later, with an image of your own."
  }

  validation {
    condition     = var.spark == null || try(var.spark.image_uri, null) == null || can(regex("^[0-9]{12}\\.dkr\\.ecr\\.${var.region}\\.amazonaws\\.com/[a-z0-9._/-]+(:[A-Za-z0-9._-]+|@sha256:[0-9a-f]{64})$", var.spark.image_uri))
    error_message = "spark.image_uri is not an image in ECR of ${var.region} with a tag or digest. EMR Serverless takes images of its own region only."
  }

  validation {
    condition     = var.spark == null || alltrue([for id in try(var.spark.topic_ids, []) : can(regex("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", id))])
    error_message = "spark.topic_ids has an entry that is not a topic id. Write the UUID that `firn topic describe` prints, in lower case with hyphens."
  }

  validation {
    condition     = try(var.spark.target_bucket, null) == null ? true : var.spark.target_bucket != local.bucket_name
    error_message = "spark.target_bucket is the cluster's own bucket, where Spark may only read. Name another bucket for archives."
  }

  validation {
    condition     = try(var.spark.script_bucket, null) == null ? true : var.spark.script_bucket != local.bucket_name
    error_message = "spark.script_bucket is the cluster's own bucket, of which jobs may read their topics alone. Name another bucket for scripts."
  }

  validation {
    condition     = var.spark == null || try(var.spark.script_bucket, null) != null || try(var.spark.target_bucket, null) != null
    error_message = "spark names no bucket that jobs could read their script from. Set spark.script_bucket, or spark.target_bucket if scripts lie there too."
  }

  validation {
    condition     = var.spark == null || alltrue([for arn in try(var.spark.kms_key_arns, []) : can(regex("^arn:[a-z-]+:kms:${var.region}:[0-9]{12}:key/", arn))])
    error_message = "spark.kms_key_arns has an entry that is not the ARN of a key in ${var.region}. Write the ARNs of keys (no aliases), in the region of the cluster."
  }
}

# --- watching -----------------------------------------------------------------------------------------------------------------

variable "alarm_actions" {
  description = "ARNs of SNS topics that alarms notify. Empty: alarms change their state but notify nobody."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alarm_actions : can(regex("^arn:[a-z-]+:sns:${var.region}:[0-9]{12}:", arn))])
    error_message = "alarm_actions has an entry that is not the ARN of an SNS topic in ${var.region}. Write ARNs of topics in the region of the cluster."
  }
}

variable "log_retention_days" {
  description = "Days that CloudWatch keeps logs."
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days is none that CloudWatch takes. Write 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, or the days of 3 to 10 years."
  }
}

variable "deletion_protection" {
  description = "Protect load balancers from being deleted. Bucket, volumes and key have prevent_destroy, which holds as long as this module is configured."
  type        = bool
  default     = true
}
