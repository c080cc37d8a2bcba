# A new VPC with a private subnet in each zone, or an existing VPC. S3 has a gateway endpoint, which costs nothing and keeps the traffic of
# tiering off NAT. The other APIs have interface endpoints or a NAT gateway.

locals {
  new             = var.existing_vpc == null
  vpc_id          = local.new ? aws_vpc.this[0].id : var.existing_vpc.vpc_id
  subnet_ids      = local.new ? { for zone, subnet in aws_subnet.private : zone => subnet.id } : { for zone in var.zones : zone => var.existing_vpc.subnet_ids[zone] }
  route_table_ids = local.new ? [aws_route_table.private[0].id] : var.existing_vpc.route_table_ids
  nat             = local.new && var.egress == "nat"
  endpoints       = var.egress == "endpoints" ? toset(var.interface_endpoints) : toset([])
}

resource "aws_vpc" "this" {
  count = local.new ? 1 : 0

  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # the private names of interface endpoints need it

  tags = { Name = var.name }
}

# The default group of a VPC lets its members talk to each other. Firn does not use it, and this removes its rules.
resource "aws_default_security_group" "this" {
  count = local.new ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = { Name = "${var.name}-default-unused" }
}

resource "aws_subnet" "private" {
  for_each = local.new ? { for index, zone in var.zones : zone => index } : {}

  vpc_id            = aws_vpc.this[0].id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, each.value)

  tags = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_route_table" "private" {
  count = local.new ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = { Name = "${var.name}-private" }
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private[0].id
}

resource "aws_flow_log" "this" {
  count = local.new ? 1 : 0

  vpc_id               = aws_vpc.this[0].id
  traffic_type         = "REJECT" # what was refused is worth reading; what was accepted is every record twice
  log_destination_type = "cloud-watch-logs"
  log_destination      = aws_cloudwatch_log_group.flow[0].arn
  iam_role_arn         = aws_iam_role.flow[0].arn

  tags = { Name = var.name }
}

resource "aws_cloudwatch_log_group" "flow" {
  # checkov:skip=CKV_AWS_338: log_retention_days decides, because a year of logs is a bill of its own
  count = local.new ? 1 : 0

  name              = "/firn/${var.name}/flow"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_iam_role" "flow" {
  count = local.new ? 1 : 0

  name = "${var.name}-flow-logs"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "flow" {
  count = local.new ? 1 : 0

  name = "write-flow-logs"
  role = aws_iam_role.flow[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
      Resource = "${aws_cloudwatch_log_group.flow[0].arn}:*"
    }]
  })
}

# --- the way to S3 and to AWS's other APIs -------------------------------------------------------------------------------------

resource "aws_vpc_endpoint" "s3" {
  count = local.new || try(var.existing_vpc.s3_endpoint, false) ? 1 : 0

  vpc_id            = local.vpc_id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = local.route_table_ids

  tags = { Name = "${var.name}-s3" }
}

resource "aws_vpc_endpoint" "express" {
  count = var.express_enabled && (local.new || try(var.existing_vpc.s3_endpoint, false)) ? 1 : 0

  vpc_id            = local.vpc_id
  service_name      = "com.amazonaws.${var.region}.s3express"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = local.route_table_ids

  tags = { Name = "${var.name}-s3express" }
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.endpoints

  vpc_id              = local.vpc_id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = values(local.subnet_ids)
  security_group_ids  = [aws_security_group.endpoints[0].id]

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_internet_gateway" "this" {
  count = local.nat ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = { Name = var.name }
}

# One gateway in one zone: only API calls and packages go through it, no records. If its zone fails, machines in other zones cannot start until
# it is back. Running brokers need it only to send logs and metrics.
resource "aws_subnet" "public" {
  count = local.nat ? 1 : 0

  vpc_id            = aws_vpc.this[0].id
  availability_zone = var.zones[0]
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, 15)

  tags = { Name = "${var.name}-public-${var.zones[0]}" }
}

resource "aws_route_table" "public" {
  count = local.nat ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = { Name = "${var.name}-public" }
}

resource "aws_route_table_association" "public" {
  count = local.nat ? 1 : 0

  subnet_id      = aws_subnet.public[0].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_route" "internet" {
  count = local.nat ? 1 : 0

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_eip" "nat" {
  count = local.nat ? 1 : 0

  domain = "vpc"
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "this" {
  count = local.nat ? 1 : 0

  allocation_id = aws_eip.nat[0].id
  subnet_id     = aws_subnet.public[0].id
  tags          = { Name = var.name }

  depends_on = [aws_internet_gateway.this]
}

resource "aws_route" "nat" {
  count = local.nat ? 1 : 0

  route_table_id         = aws_route_table.private[0].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[0].id
}
