#!/bin/bash
# Turns a fresh Debian 12 into an image for infra/terraform. Packer runs it as root, after it has brought the files.
# FILES (the folder with them) and STATE (the agent's state) are other folders in tests.
set -euo pipefail

files=${FILES:-/tmp}
archive=$files/firn-wheelhouse.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "$WHEELHOUSE_SHA256  $archive" | sha256sum --check --quiet

# The first boot of the base image may still hold dpkg's lock.
cloud-init status --wait
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq --yes dist-upgrade
apt-get -qq --yes install --no-install-recommends logrotate python3-venv xfsprogs \
    "$files/amazon-ssm-agent.deb" "$files/amazon-cloudwatch-agent.deb"
systemctl enable amazon-ssm-agent.service

# The wheelhouse has its own bootstrap, which puts wheels, release and units in their places.
tar --extract --gzip --no-same-owner --file "$archive" --directory "$work" bootstrap
python3 -sE "$work/bootstrap/firn_bootstrap.py" --bake "$archive"

# Each machine of the image gets its own identity, and runs its user data as at its first boot.
rm -f "$archive" "$files/amazon-ssm-agent.deb" "$files/amazon-cloudwatch-agent.deb"
apt-get -qq clean
systemctl stop amazon-ssm-agent.service
rm -rf "${STATE:-/var/lib/amazon/ssm}"
cloud-init clean --logs --seed --machine-id
sync
