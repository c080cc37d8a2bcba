#!/usr/bin/env bash
# Installs the commit-msg hook of this repository, for all of its worktrees. It never fails: without git, outside of a clone, beside a
# hook of the user's own, or where the folder of hooks cannot be written, it changes nothing.
set -u
cd "$(dirname "$0")/.." || exit 0
command -v git >/dev/null || exit 0
[ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] || exit 0 # an archive, perhaps unpacked inside another repository
common=$(cd "$(git rev-parse --git-common-dir)" && pwd -P) || exit 0
hooks=$(git rev-parse --git-path hooks)
mkdir -p "$hooks" 2>/dev/null
hooks=$(cd "$hooks" 2>/dev/null && pwd -P) || exit 0
case "$hooks/" in
  "$common"/*) ;;
  *)
    echo "==> commit messages are not checked: core.hooksPath names $hooks; call tools/commit-msg from your commit-msg hook" >&2
    exit 0
    ;;
esac
hook=$hooks/commit-msg
cmp -s tools/commit-msg "$hook" && [ -x "$hook" ] && exit 0
if [ -e "$hook" ] && ! grep -qs "Firn's commit-msg hook" "$hook"; then
  echo "==> commit messages are not checked: $hook is your own; call tools/commit-msg from it" >&2
  exit 0
fi
new=$hook.$$
if install -m 755 tools/commit-msg "$new" 2>/dev/null && mv -f "$new" "$hook" 2>/dev/null; then
  echo "==> installed the commit-msg hook"
else
  rm -f "$new" 2>/dev/null
  echo "==> commit messages are not checked: $hooks cannot be written" >&2
fi
exit 0
