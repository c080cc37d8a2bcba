# An image (AMI) for infra/terraform: Debian 12 with the packages of infra/README.md, "Image", and a baked release of Firn.
# The units are written and not enabled: the first boot belongs to the user data (infra/bootstrap).

packer {
  required_version = ">= 1.11.0"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1.3"
    }
  }
}

variable "region" {
  description = "Where the image is made and stays."
  type        = string
}

variable "architecture" {
  description = "That of the wheelhouse: arm64 or x86_64, as in infra/terraform."
  type        = string

  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "The architecture is neither arm64 nor x86_64. Write that of the wheelhouse."
  }
}

variable "wheelhouse" {
  description = "Path of the archive that make wheelhouse has made."
  type        = string
}

variable "wheelhouse_sha256" {
  description = "SHA-256 of the archive."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.wheelhouse_sha256))
    error_message = "The value wheelhouse_sha256 is no SHA-256. Write the 64 digits that sha256sum prints."
  }
}

variable "agents" {
  description = "Folder with the packages amazon-ssm-agent.deb and amazon-cloudwatch-agent.deb, whose signatures you have checked."
  type        = string
}

variable "subnet_id" {
  description = "Public subnet of the machine that makes the image."
  type        = string
}

variable "ssh_cidrs" {
  description = "Networks from which Packer reaches that machine."
  type        = list(string)

  validation {
    condition     = length(var.ssh_cidrs) > 0 && !contains(var.ssh_cidrs, "0.0.0.0/0")
    error_message = "The list ssh_cidrs is empty or names the whole internet. Write the network that Packer runs in."
  }
}

variable "kms_key_id" {
  description = "Key of the image's snapshot. Default: the account's key for EBS. Only images with a key of your own can be shared."
  type        = string
  default     = null
}

locals {
  instance_type = var.architecture == "arm64" ? "m7g.large" : "m6i.large"
  debian        = var.architecture == "arm64" ? "arm64" : "amd64"
  made          = formatdate("YYYYMMDD'-'hhmmss", timestamp())
}

source "amazon-ebs" "debian" {
  region                                = var.region
  ami_name                              = "firn-${local.debian}-${substr(var.wheelhouse_sha256, 0, 12)}-${local.made}"
  ami_description                       = "Debian 12 with Firn, wheelhouse ${var.wheelhouse_sha256}"
  instance_type                         = local.instance_type
  subnet_id                             = var.subnet_id
  associate_public_ip_address           = true
  temporary_security_group_source_cidrs = var.ssh_cidrs
  ssh_username                          = "admin"
  ssh_clear_authorized_keys             = true
  encrypt_boot                          = true
  kms_key_id                            = var.kms_key_id
  imds_support                          = "v2.0"

  # Debian's account. Terraform looks for the root device /dev/xvda, as these images have it.
  source_ami_filter {
    owners      = ["136693071363"]
    most_recent = true

    filters = {
      name                = "debian-12-${local.debian}-*"
      architecture        = var.architecture
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  launch_block_device_mappings {
    device_name           = "/dev/xvda"
    volume_type           = "gp3"
    volume_size           = 8
    delete_on_termination = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  tags = {
    Name       = "firn"
    wheelhouse = var.wheelhouse_sha256
    base       = "{{ .SourceAMI }}"
  }
}

build {
  sources = ["source.amazon-ebs.debian"]

  provisioner "file" {
    source      = var.wheelhouse
    destination = "/tmp/firn-wheelhouse.tar.gz"
  }

  provisioner "file" {
    source      = "${var.agents}/amazon-ssm-agent.deb"
    destination = "/tmp/amazon-ssm-agent.deb"
  }

  provisioner "file" {
    source      = "${var.agents}/amazon-cloudwatch-agent.deb"
    destination = "/tmp/amazon-cloudwatch-agent.deb"
  }

  provisioner "shell" {
    script           = "${path.root}/install.sh"
    environment_vars = ["WHEELHOUSE_SHA256=${var.wheelhouse_sha256}"]
    execute_command  = "sudo env {{ .Vars }} bash '{{ .Path }}'"
  }
}
