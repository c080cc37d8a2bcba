#!/usr/bin/env bash
# Bring Apache Kafka's jars (pinned in tests/interop/java/pom.xml) into a folder, once.
set -euo pipefail
libs=$1
pom=$(dirname "$0")/../tests/interop/java/pom.xml
stamp=$libs/.complete
if [ -e "$stamp" ] && [ ! "$pom" -nt "$stamp" ]; then exit 0; fi
if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then
  echo "==> no Maven or no Java here: tests and measurements against Apache Kafka will say that they are skipped"
  exit 0
fi
echo "==> fetching Apache Kafka's jars"
if mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$libs"; then
  touch "$stamp"
else
  echo "==> could not fetch them: tests and measurements against Apache Kafka will say that they are skipped"
fi
