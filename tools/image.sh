#!/usr/bin/env bash
# Build the image of a broker from the wheelhouse in dist/ that has this machine's architecture.
#   BASE   another base image than the Dockerfile's, with Python 3.11
#   TAG    the image's name; firn:VERSION if nothing is said
#   OCI    a folder to which the image is written as an OCI layout, besides
# It needs no daemon, and no right to make user or network namespaces: --isolation chroot.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "image: $*" >&2; exit 1; }

command -v buildah >/dev/null ||
  fail "buildah is not installed. Install it (Debian: apt-get install buildah), or use docker build as the Dockerfile says."
shopt -s nullglob
found=(dist/firn-wheelhouse-*-"$(uname -m)".tar.gz)
[ ${#found[@]} -gt 0 ] || fail "there is no wheelhouse for $(uname -m) in dist/. Run make wheelhouse."
[ ${#found[@]} -eq 1 ] || fail "dist/ has ${#found[@]} wheelhouses for $(uname -m): ${found[*]}. Remove those of other versions."
version=${found[0]#dist/firn-wheelhouse-} version=${version%-*}
tag=${TAG:-firn:$version}
digest=$(sha256sum "${found[0]}" | cut -d ' ' -f 1)

# OCI's own format has no health check, so the image is kept in Docker's.
buildah bud --isolation chroot --storage-driver vfs --format docker --layers=false \
  ${BASE:+--build-arg "BASE=$BASE"} --build-arg "WHEELHOUSE=${found[0]}" --build-arg "WHEELHOUSE_SHA256=$digest" \
  --label "org.opencontainers.image.version=$version" --tag "$tag" .
if [ -n "${OCI:-}" ]; then
  buildah --storage-driver vfs push "$tag" "oci:$OCI:${tag##*:}"
fi
echo "image: $tag"
