"""Brings what checks infra/kubernetes: Helm and kubeconform, and JSON schemas of Kubernetes' kinds.

    python -m tools.kubernetes

Go builds both programs, and its module of Kubernetes has the OpenAPI document from which the schemas are made. All of it is kept
under .cache/kubernetes, and nothing here names a host: Go's client is the machine's.

Tests: ``tests/infra/kubernetes/test_schemas.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "kubernetes"
PROGRAMS: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}
KUBERNETES: Final = "v1.37.2"
OPENAPI: Final = "api/openapi-spec/swagger.json"

INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_REFERENCE: Final = "#/definitions/"


def program(name: str) -> Path | None:
    """A program that ``main`` has built, or that PATH has; None if it is in neither place."""
    built = CACHE / "bin" / name
    if built.is_file():
        return built
    found = shutil.which(name)
    return None if found is None else Path(found)


def schemas() -> Path | None:
    """The folder of schemas that ``main`` has made; None without one."""
    folder = CACHE / f"schemas-{KUBERNETES}"
    return folder if folder.is_dir() else None


def schemas_of(openapi: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A JSON schema for each kind, by the file name under which kubeconform looks for it.

    A schema has the definitions that its kind reaches. A field that the kind does not have is refused.
    """
    definitions: Mapping[str, Any] = openapi["definitions"]
    made = {}
    for name, definition in definitions.items():
        kinds = definition.get("x-kubernetes-group-version-kind", ())
        if len(kinds) != 1 or "properties" not in definition:
            continue  # A kind of all groups, such as DeleteOptions, is in no manifest.
        (kind,) = kinds
        group = kind["group"].partition(".")[0]
        file = "-".join(part.lower() for part in (kind["kind"], group, kind["version"]) if part)
        reached = _reached(name, definitions)
        schema = _strict(name, definitions)
        for field, value in (("kind", kind["kind"]), ("apiVersion", _api_version(kind))):
            schema["properties"][field] = {"enum": [value]}
        schema["required"] = sorted({*schema.get("required", ()), "apiVersion", "kind"})
        made[f"{file}.json"] = {**schema, "definitions": {each: _strict(each, definitions) for each in reached}}
    return made


def _api_version(kind: Mapping[str, str]) -> str:
    return "/".join(part for part in (kind["group"], kind["version"]) if part)


def _reached(name: str, definitions: Mapping[str, Any]) -> list[str]:
    seen: set[str] = set()
    left = [name]
    while left:
        for other in _references(definitions[left.pop()]):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return sorted(seen)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].removeprefix(_REFERENCE)] if isinstance(value.get("$ref"), str) else []
        return [*own, *(one for each in value.values() for one in _references(each))]
    if isinstance(value, list):
        return [one for each in value for one in _references(each)]
    return []


def _strict(name: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as JSON Schema. OpenAPI calls these two a string, and the server takes numbers for them, too."""
    if name == INT_OR_STRING:
        return {"type": ["integer", "string"]}
    if name == QUANTITY:
        return {"type": ["number", "string"]}
    copy: dict[str, Any] = json.loads(json.dumps(definitions[name]))
    if "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy


def _run(*command: str, **environment: str) -> str:
    """Raises: SystemExit with the program's words."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"kubernetes: {' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


def main() -> int:
    """Bring all of it that is not there yet. Raises: SystemExit if Go is not installed or fails."""
    if shutil.which("go") is None:
        raise SystemExit("kubernetes: Go is not installed. Install Go 1.24 or newer; it builds Helm and kubeconform.")
    (CACHE / "bin").mkdir(parents=True, exist_ok=True)
    for name, module in PROGRAMS.items():
        if not (CACHE / "bin" / name).is_file():
            sys.stderr.write(f"==> building {module} (some minutes)\n")
            _run("go", "install", module, GOBIN=str(CACHE / "bin"), GOFLAGS="-trimpath")
    if schemas() is None:
        sys.stderr.write(f"==> making schemas of Kubernetes {KUBERNETES}\n")
        module = json.loads(_run("go", "mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}"))
        made = schemas_of(json.loads((Path(module["Dir"]) / OPENAPI).read_bytes()))
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            folder = Path(scratch) / "schemas"
            folder.mkdir()
            for name, schema in made.items():
                (folder / name).write_text(json.dumps(schema))
            folder.rename(CACHE / f"schemas-{KUBERNETES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
