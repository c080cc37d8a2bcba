#!/usr/bin/env bash
# Build S3 servers that others wrote into a folder, once: s3s-fs with cargo, MinIO with go, each where its compiler is.
# Measurements of a replay from S3 look for them there and on the PATH.
set -euo pipefail
bin=$1/bin
S3S_FS=0.14.1
MINIO=v0.0.0-20260212201848-7aac2a2c5b7c
mkdir -p "$bin"

if [ -x "$bin/s3s-fs" ]; then
  :
elif command -v cargo >/dev/null; then
  echo "==> building s3s-fs $S3S_FS (some minutes)"
  cargo install --quiet --locked --root "$1" --features binary --version "$S3S_FS" s3s-fs ||
    echo "==> could not build s3s-fs: measurements will say that it is left out"
else
  echo "==> no cargo here: s3s-fs is left out"
fi

if [ -x "$bin/minio" ]; then
  :
elif command -v go >/dev/null; then
  echo "==> building MinIO (some minutes)"
  GOBIN=$bin go install "github.com/minio/minio@$MINIO" ||
    echo "==> could not build MinIO: measurements will say that it is left out"
else
  echo "==> no Go here: MinIO is left out"
fi
