# Facts that only AWS knows. The plan asks for them, so a wrong combination is refused before anything is made.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {
  lifecycle {
    postcondition {
      condition     = self.region == var.region
      error_message = "The provider's region is ${self.region}, but region is ${var.region}. Write provider \"aws\" { region = \"${var.region}\" }."
    }
  }
}

data "aws_ami" "machine" {
  owners = var.ami_owners

  filter {
    name   = "image-id"
    values = [var.ami_id]
  }

  lifecycle {
    postcondition {
      condition     = self.architecture == var.architecture
      error_message = "Image ${var.ami_id} is for ${self.architecture}, but architecture is ${var.architecture}. Choose another image, or correct architecture and instance_type."
    }

    postcondition {
      condition     = self.root_device_name == "/dev/xvda"
      error_message = "The root device of image ${var.ami_id} is ${self.root_device_name}. The launch template sets size and encryption of /dev/xvda, the root device of Debian's images. Use an image made from one of Debian's images."
    }
  }
}

data "aws_ec2_instance_type" "broker" {
  instance_type = var.instance_type

  lifecycle {
    postcondition {
      condition     = contains(self.supported_architectures, var.architecture)
      error_message = "Instance type ${var.instance_type} is not for ${var.architecture}. Choose a type for ${var.architecture}, or correct architecture and ami_id."
    }

    postcondition {
      condition     = var.data_disk.kind != "instance-store" || self.instance_storage_supported
      error_message = "Instance type ${var.instance_type} has no NVMe disk of its own, but data_disk.kind = \"instance-store\" needs one. Choose a type with NVMe (i8g, i4i, m7gd), or data_disk.kind = \"ebs\"."
    }

    postcondition {
      condition     = self.default_vcpus >= 2
      error_message = "Instance type ${var.instance_type} has one core. Choose a type with at least two: one for the broker, and one for its store process."
    }
  }
}

data "aws_ec2_instance_type" "fleet" {
  for_each = toset(var.fleet == null ? [] : concat([var.instance_type], var.fleet.other_instance_types))

  instance_type = each.value

  lifecycle {
    postcondition {
      condition     = contains(self.supported_architectures, var.architecture)
      error_message = "Instance type ${each.value} of fleet is not for ${var.architecture}. Choose types for ${var.architecture}."
    }

    postcondition {
      condition     = var.fleet.disk != "instance-store" || self.instance_storage_supported
      error_message = "Instance type ${each.value} of fleet has no NVMe disk of its own. Choose types with NVMe (m7gd, c7gd), or fleet.disk = \"root\"."
    }
  }
}

data "aws_ec2_instance_type" "http" {
  count = var.http == null ? 0 : 1

  instance_type = var.http.instance_type

  lifecycle {
    postcondition {
      condition     = contains(self.supported_architectures, var.architecture)
      error_message = "http.instance_type is not for ${var.architecture}, the architecture of the image. Choose a type for ${var.architecture}."
    }
  }
}

data "aws_s3_bucket" "existing" {
  count = var.existing_bucket == null ? 0 : 1

  bucket = var.existing_bucket

  lifecycle {
    postcondition {
      condition     = self.bucket_region == var.region
      error_message = "Bucket ${var.existing_bucket} is in ${self.bucket_region}, but the cluster is in ${var.region}. You would pay for every record that crosses regions. Use a bucket in ${var.region}."
    }
  }
}

data "aws_subnet" "existing" {
  for_each = var.existing_vpc == null ? {} : { for zone in var.zones : zone => try(var.existing_vpc.subnet_ids[zone], "none") }

  id = each.value

  lifecycle {
    postcondition {
      condition     = self.availability_zone == each.key
      error_message = "Subnet ${each.value} is in ${self.availability_zone}, but existing_vpc.subnet_ids says ${each.key}. Correct the zone: a volume can be attached only in its own zone."
    }

    postcondition {
      condition     = self.vpc_id == var.existing_vpc.vpc_id
      error_message = "Subnet ${each.value} is not in ${var.existing_vpc.vpc_id}. Name subnets of this VPC."
    }

    postcondition {
      condition     = !self.map_public_ip_on_launch
      error_message = "Subnet ${each.value} assigns public addresses to machines. Brokers are not for the internet: name a private subnet."
    }
  }
}
