"""JSON schemas of Kubernetes' kinds out of its OpenAPI document: strict, and whole without other files."""

from __future__ import annotations

from typing import Any

import jsonschema

from tools.kubernetes import INT_OR_STRING, QUANTITY, schemas_of


def kind(group: str, name: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, **properties},
        "x-kubernetes-group-version-kind": [{"group": group, "kind": name, "version": "v1"}],
    }


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


OPENAPI = {
    "definitions": {
        "Budget": kind("policy.example", "Budget", spec=reference("Spec")),
        "Pod": kind("", "Pod"),
        "Options": {**kind("", "Options"), "x-kubernetes-group-version-kind": [{}, {}]},
        "Spec": {
            "type": "object",
            "required": ["most"],
            "properties": {"most": reference(INT_OR_STRING), "memory": reference(QUANTITY), "spec": reference("Spec")},
        },
        INT_OR_STRING: {"type": "string", "format": "int-or-string"},
        QUANTITY: {"type": "string"},
        "Unused": {"type": "object"},
    }
}


def is_valid(schema: dict[str, Any], **spec: Any) -> bool:
    document = {"apiVersion": "policy.example/v1", "kind": "Budget", "spec": spec}
    return jsonschema.Draft7Validator(schema).is_valid(document)


def test_each_kind_has_a_file_under_the_name_that_kubeconform_looks_for() -> None:
    assert set(schemas_of(OPENAPI)) == {"budget-policy-v1.json", "pod-v1.json"}


def test_a_schema_has_the_definitions_that_its_kind_reaches_and_no_others() -> None:
    made = schemas_of(OPENAPI)
    assert set(made["budget-policy-v1.json"]["definitions"]) == {"Spec", INT_OR_STRING, QUANTITY}
    assert made["pod-v1.json"]["definitions"] == {}


def test_numbers_and_strings_are_taken_where_the_server_takes_both() -> None:
    schema = schemas_of(OPENAPI)["budget-policy-v1.json"]
    assert is_valid(schema, most=1, memory="1Gi")
    assert is_valid(schema, most="50%", memory=2, spec={"most": 1})
    assert not is_valid(schema, most=True)


def test_an_unknown_field_a_missing_one_and_another_kind_are_refused() -> None:
    schema = schemas_of(OPENAPI)["budget-policy-v1.json"]
    assert not is_valid(schema, most=1, mots=1)
    assert not is_valid(schema, most=1, spec={"most": 1, "mots": 1})
    assert not is_valid(schema)
    assert not jsonschema.Draft7Validator(schema).is_valid({"apiVersion": "v1", "kind": "Budget"})
