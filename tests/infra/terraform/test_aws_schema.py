"""The schema that the stub provider serves is the AWS provider's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.infra import toolbox
from tools.infra.aws_schema import SchemaUnreadable, read_type

GENERATED = """
export class ThingDiskOutputReference extends cdktf.ComplexObject {
  public constructor(terraformResource: cdktf.IInterpolatingParent, terraformAttribute: string) {
    super(terraformResource, terraformAttribute, false, 0);
  }
  // size - computed: false, optional: false, required: true
  private _size?: number;
  public get size() {
    return this.getNumberAttribute('size');
  }
}
export class ThingRuleOutputReference extends cdktf.ComplexObject {
  public constructor(terraformResource: cdktf.IInterpolatingParent, terraformAttribute: string, i: number, s: boolean) {
    super(terraformResource, terraformAttribute, s, i);
  }
  // ports - computed: false, optional: true, required: false
  private _ports?: number[];
  public get ports() {
    return this.getNumberListAttribute('ports');
  }
}
export class ThingRuleList extends cdktf.ComplexList {
}
export class ThingTimeoutsOutputReference extends cdktf.ComplexObject {
  public constructor(terraformResource: cdktf.IInterpolatingParent, terraformAttribute: string) {
    super(terraformResource, terraformAttribute);
  }
  // create - computed: false, optional: true, required: false
  private _create?: string;
  public get create() {
    return this.getStringAttribute('create');
  }
}
export class Thing extends cdktf.TerraformResource {
  public static readonly tfResourceType = "aws_thing";

  // arn - computed: true, optional: false, required: false
  public get arn() {
    return this.getStringAttribute('arn');
  }

  // zones - computed: false, optional: true, required: false
  private _zones?: string[];
  public get zones() {
    return cdktf.Fn.tolist(this.getListAttribute('zones'));
  }

  // tags - computed: false, optional: true, required: false
  private _tags?: { [key: string]: string };
  public get tags() {
    return this.getStringMapAttribute('tags');
  }

  // enabled - computed: true, optional: true, required: false
  private _enabled?: boolean | cdktf.IResolvable;
  public get enabled() {
    return this.getBooleanAttribute('enabled');
  }

  // disk - computed: false, optional: false, required: true
  private _disk = new ThingDiskOutputReference(this, "disk");
  public get disk() {
    return this._disk;
  }

  // ingress - computed: true, optional: true, required: false
  private _ingress = new ThingRuleList(this, "ingress", true);
  public get ingress() {
    return this._ingress;
  }

  // rule - computed: false, optional: true, required: false
  private _rule = new ThingRuleList(this, "rule", false);
  public get rule() {
    return this._rule;
  }

  // timeouts - computed: false, optional: true, required: false
  private _timeouts = new ThingTimeoutsOutputReference(this, "timeouts");
  public get timeouts() {
    return this._timeouts;
  }
}
"""
RULE = {"attributes": {"ports": [["list", "number"], "o"]}, "blocks": {}}


def test_a_generated_type_gives_attributes_and_blocks_as_the_provider_has_them() -> None:
    kind, name, block = read_type(GENERATED)
    assert (kind, name) == ("resource", "aws_thing")
    assert block == {
        "attributes": {
            "arn": ["string", "c"],
            "zones": [["set", "string"], "o"],
            "tags": [["map", "string"], "o"],
            "enabled": ["bool", "oc"],
            "ingress": [
                ["set", ["object", {"ports": ["list", "number"]}]],
                "oc",
            ],  # an attribute that is written as a block
        },
        "blocks": {
            "disk": ["list", 1, 1, {"attributes": {"size": ["number", "r"]}, "blocks": {}}],
            "rule": ["list", 0, 0, RULE],
            "timeouts": ["single", 0, 1, {"attributes": {"create": ["string", "o"]}, "blocks": {}}],
        },
    }


def test_a_member_of_an_unknown_form_is_an_error_and_no_guess() -> None:
    text = GENERATED.replace("private _size?: number;", "private _size?: Quantity;").replace(
        "getNumberAttribute", "getQuantity"
    )
    with pytest.raises(SchemaUnreadable, match="size"):
        read_type(text)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(toolbox.schema().read_text())
    except toolbox.ToolMissing as missing:
        pytest.skip(str(missing))
    return read


@pytest.mark.slow
def test_the_package_carries_every_type_of_the_provider(schema: dict[str, Any]) -> None:
    assert schema["version"] == "6.25.0"
    assert (len(schema["resources"]), len(schema["data"])) == (1581, 630)
    template = schema["resources"]["aws_launch_template"]
    assert template["blocks"]["metadata_options"][:3] == ["list", 0, 1]
    assert template["blocks"]["metadata_options"][3]["attributes"]["http_tokens"] == ["string", "oc"]
    group = schema["resources"]["aws_autoscaling_group"]["attributes"]
    assert (group["max_size"], group["suspended_processes"]) == (["number", "r"], [["set", "string"], "o"])
    assert schema["data"]["aws_caller_identity"]["attributes"]["account_id"] == ["string", "c"]
    assert schema["provider"]["blocks"]["default_tags"][3]["attributes"] == {"tags": [["map", "string"], "o"]}
