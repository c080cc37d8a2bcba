"""Mistakes planted in a copy of infra/, each found by the check that is meant for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.infra import checks
from tools.infra.findings import MODULES, Finding
from tools.infra.toolbox import ToolMissing

PLAN, REFUSED = "tests/plan.tftest.hcl", "tests/refused.tftest.hcl"
EVERYTHING = {
    PLAN: (
        "spark_reads_named_topics_and_writes_elsewhere",
        "brokers_without_disks_lose_nothing_and_are_told_no_address_of_their_own",
    )
}
"""The runs that plan every module, and both kinds of brokers."""
RUNS_KEPT = {"test": {REFUSED: ("spot_without_accepted_loss_is_refused",)}, "refusals": {}}
"""Of the copy's tests, by check; all of them would take minutes for each mistake. ``EVERYTHING`` for the checks not named."""
BY_FOLDER = ("validate", "tflint")
"""Checks that look at each folder by itself: they are asked about the folder of the mistake alone."""


class Mistake(NamedTuple):
    """``pattern`` stands in ``file`` (a path below infra/), and is replaced; ``told`` is in a finding of ``check``."""

    name: str
    check: str
    file: str
    pattern: str
    planted: str
    told: str


BROKER, STORAGE, SPARK = ("terraform/modules/broker", "terraform/modules/storage", "terraform/modules/spark")

MISTAKES = (
    # Terraform and the provider's schema
    Mistake("a misaligned argument", "fmt", f"{BROKER}/main.tf", r"max_size +=", "max_size =", "not formatted"),
    Mistake(
        "a block that the provider has not",
        "validate",
        f"{BROKER}/main.tf",
        r"metadata_options \{",
        "metadata_option {",
        "metadata_option",
    ),
    Mistake(
        "an argument that the provider has not",
        "validate",
        f"{BROKER}/main.tf",
        "http_tokens  ",
        "http_token  ",
        "http_token",
    ),
    Mistake(
        "an argument of a wrong type",
        "validate",
        f"{BROKER}/main.tf",
        r"max_size +=\s+1\b",
        'max_size = "one"',
        "number",
    ),
    Mistake(
        "a required argument left out", "validate", f"{BROKER}/main.tf", r"\n  max_size +=[^\n]*", "\n", "max_size"
    ),
    Mistake(
        "a resource type misspelled",
        "validate",
        f"{BROKER}/main.tf",
        '"aws_lb_listener" "broker"',
        '"aws_lb_listner" "broker"',
        "aws_lb_listner",
    ),
    Mistake(
        "an attribute that a resource has not",
        "validate",
        f"{BROKER}/main.tf",
        r"aws_lb\.kafka\.zone_id",
        "aws_lb.kafka.zone",
        "zone",
    ),
    Mistake(
        "one block more than the provider takes",
        "validate",
        f"{BROKER}/main.tf",
        r"  monitoring \{\n    enabled = true\n  \}\n",
        "  monitoring {\n    enabled = true\n  }\n  monitoring {\n    enabled = false\n  }\n",
        "monitoring",
    ),
    # Tests and linters
    Mistake(
        "a listener of brokers at another port than the boot's",
        "ports",
        "terraform/main.tf",
        r"(brokers_port +=[^\n]*) 9094",
        r"\1 9095",
        "brokers_port is 9095",
    ),
    Mistake(
        "a refusal that refuses nothing",
        "test",
        "terraform/variables.tf",
        r'condition += var\.market != "spot" \|\| [^\n]*',
        "condition = length(var.market) > 0",
        "var.market",
    ),
    Mistake(
        "a refusal that no run proves",
        "refusals",
        "terraform/variables.tf",
        r'(variable "deletion_protection" \{\n)',
        r'\1  validation {\n    condition     = var.deletion_protection != null\n    error_message = "Say it."\n  }\n',
        "var.deletion_protection",
    ),
    Mistake(
        "a refusal without the mend",
        "refusals",
        "terraform/variables.tf",
        r"(architecture is neither arm64 nor x86_64\.) [^\n]*\.\"",
        r'\1"',
        "does not say what to do: architecture is neither",
    ),
    Mistake(
        "a variable that nothing reads",
        "tflint",
        f"{BROKER}/variables.tf",
        r"\A",
        'variable "unread" {\n  description = "Nobody asks."\n  type        = string\n  default     = ""\n}\n\n',
        "terraform_unused_declarations",
    ),
    Mistake(
        "a variable that nothing describes",
        "tflint",
        f"{BROKER}/variables.tf",
        r"\A",
        'variable "undescribed" {\n  type    = string\n  default = ""\n}\n\n',
        "terraform_documented_variables",
    ),
    Mistake(
        "a suppression without a reason",
        "suppressions",
        f"{BROKER}/main.tf",
        r"# checkov:skip=CKV_AWS_91[^\n]*",
        "# checkov:skip=CKV_AWS_91",
        "CKV_AWS_91",
    ),
    # What the program has
    Mistake(
        "an instance type that there is not",
        "instance-types",
        "terraform/variables.tf",
        '"m7g.large"',
        '"m7g.huge"',
        "m7g.huge",
    ),
    Mistake(
        "an alarm on a metric that there is not",
        "metrics",
        "terraform/modules/observability/main.tf",
        'metric = "firn_log_offline"',
        'metric = "firn_disk_offline"',
        "firn_disk_offline",
    ),
    Mistake(
        "an alarm on a metric that is not shipped",
        "metrics",
        "terraform/modules/observability/main.tf",
        'metric = "firn_log_offline"',
        'metric = "firn_records_in_total"',
        "never gets to CloudWatch",
    ),
    Mistake(
        "a metric per partition in the allow-list",
        "metrics",
        "terraform/modules/observability/main.tf",
        r'    "firn_connections",\n',
        '    "firn_connections",\n    "firn_tier_lag_bytes",\n',
        "a series for each",
    ),
    Mistake(
        "a setting misspelled",
        "settings",
        f"{BROKER}/main.tf",
        r"\A",
        'locals { misspelled = { "connection.max.idle.ms" = "1" } }\n',
        "connection.max.idle.ms",
    ),
    Mistake(
        "a port that the program does not listen on",
        "ports",
        "terraform/variables.tf",
        r"default( +)= 9092",
        r"default\1= 9093",
        "9093",
    ),
    Mistake(
        "a flag that a command has not", "commands", "terraform/outputs.tf", "--data-dir", "--datadir", "--datadir"
    ),
    # What a machine reads
    Mistake(
        "a field of the boot's settings renamed",
        "user-data",
        f"{BROKER}/main.tf",
        r"      accept_loss_of_untiered = var",
        "      accept_loss = var",
        "accept_loss",
    ),
    Mistake(
        "a number of the boot's settings as text",
        "user-data",
        f"{BROKER}/main.tf",
        "heartbeat_s       = local.heartbeat_s",
        'heartbeat_s       = "60"',
        "heartbeat_s",
    ),
    Mistake(
        "a broker without a disk that is told a node id",
        "user-data",
        f"{BROKER}/fleet.tf",
        r'node_id( +)= "auto"',
        r"node_id\1= 0",
        "is refused by the bootstrap",
    ),
    Mistake(
        "user data that are no Python",
        "user-data",
        "bootstrap/user_data.py.tftpl",
        r"def stop\(text\):",
        "def stop(text)",
        "is no Python",
    ),
    # Who may do what
    Mistake(
        "brokers that may not delete",
        "iam",
        f"{BROKER}/iam.tf",
        r'\n *"s3:DeleteObject",',
        "",
        "it lacks s3:DeleteObject",
    ),
    Mistake("brokers that may do everything", "iam", f"{BROKER}/iam.tf", '"s3:DeleteObject"', '"s3:*"', "allows s3:*"),
    Mistake("a prefix left out", "iam", f"{BROKER}/iam.tf", '"topics/", ', "", "firn iam policy --role broker"),
    Mistake(
        "a condition under which missing objects are 403",
        "iam",
        f"{BROKER}/iam.tf",
        "StringLikeIfExists",
        "StringLike",
        "firn iam policy --role broker",
    ),
    Mistake(
        "Spark that may write",
        "iam",
        f"{SPARK}/main.tf",
        r'Action   = "s3:GetObject"',
        'Action   = ["s3:GetObject", "s3:PutObject"]',
        "it need not s3:PutObject",
    ),
    Mistake(
        "Spark that may not take an archive away",
        "iam",
        f"{SPARK}/main.tf",
        r'"s3:AbortMultipartUpload", "s3:DeleteObject", ',
        '"s3:AbortMultipartUpload", ',
        "lacks s3:DeleteObject where an archive goes",
    ),
    Mistake(
        "an action misspelled",
        "iam",
        f"{BROKER}/iam.tf",
        "autoscaling:CompleteLifecycleAction",
        "autoscaling:CompleteLifecycle",
        "no action of AWS",
    ),
    Mistake(
        "a call of the bootstrap that is not allowed",
        "iam",
        f"{BROKER}/iam.tf",
        r'"ec2:DescribeInstances", ',
        "",
        "lacks ec2:DescribeInstances",
    ),
    Mistake(
        "brokers without disks that cannot look at their bucket",
        "iam",
        f"{BROKER}/iam.tf",
        r'"s3:GetBucketVersioning", ',
        "",
        "lacks s3:GetBucketVersioning",
    ),
    # What is promised of every plan
    Mistake(
        "a load balancer open to the internet",
        "promises",
        f"{BROKER}/main.tf",
        r"internal( +)= true",
        r"internal\1= false",
        "open to the internet",
    ),
    Mistake(
        "IMDSv1",
        "promises",
        f"{BROKER}/main.tf",
        r'http_tokens( +)= "required"',
        r'http_tokens\1= "optional"',
        "IMDSv1",
    ),
    Mistake(
        "two machines with one node id",
        "promises",
        f"{BROKER}/main.tf",
        r"max_size( +)= 1\b",
        r"max_size\1= 2",
        "two machines",
    ),
    Mistake(
        "health checks that end a broker which recovers",
        "promises",
        f"{BROKER}/main.tf",
        r'health_check_type( +)= "EC2"',
        r'health_check_type\1= "ELB"',
        "health_check_type",
    ),
    Mistake(
        "machines without disks that all end when the bucket is away",
        "promises",
        f"{BROKER}/fleet.tf",
        r'health_check_type( +)= "EC2"',
        r'health_check_type\1= "ELB"',
        "ends all brokers when the bucket is away",
    ),
    Mistake(
        "a machine without a disk that ends before the next one serves",
        "promises",
        f"{BROKER}/fleet.tf",
        r"(instance_maintenance_policy \{\n +min_healthy_percentage = )100",
        r"\g<1>50",
        "is not launch-first",
    ),
    Mistake(
        "a volume that Terraform may destroy",
        "promises",
        f"{BROKER}/main.tf",
        "prevent_destroy = true",
        "prevent_destroy = false",
        "aws_ebs_volume.data can be destroyed",
    ),
    Mistake(
        "a key that Terraform may destroy",
        "promises",
        f"{STORAGE}/main.tf",
        r'(resource "aws_kms_key" "this" \{(?s:.*?)prevent_destroy = )true',
        r"\1false",
        "aws_kms_key.this can be destroyed",
    ),
    Mistake(
        "a hook whose change replaces the machine",
        "promises",
        f"{BROKER}/main.tf",
        r"ignore_changes = \[initial_lifecycle_hook\]",
        "ignore_changes = [tag]",
        "aws_autoscaling_group.broker is replaced",
    ),
    Mistake(
        "a machine that boots before there is a way to the bucket",
        "promises",
        "terraform/main.tf",
        r"\n  depends_on = \[module\.network\]\n",
        "\n",
        "module.broker may boot before",
    ),
    Mistake(
        "a graph of words in place of metrics",
        "promises",
        "terraform/modules/observability/main.tf",
        r"concat\((\[for metric in graph\.metrics : \[(?s:.*?)\]\])\.\.\.\)",
        r"flatten(\1)",
        "CloudWatch refuses the graph",
    ),
    Mistake(
        "a bucket that takes plain HTTP",
        "promises",
        f"{STORAGE}/main.tf",
        r'"aws:SecureTransport" = "false"',
        '"aws:SecureTransport" = "true"',
        "without TLS",
    ),
    Mistake(
        "segments that can be overwritten",
        "promises",
        f"{STORAGE}/main.tf",
        r'Null = \{ "s3:if-none-match" = "true" \}',
        'Null = { "s3:if-none-match" = "false" }',
        "overwritten",
    ),
    *(
        Mistake(
            f"{prefix} that can be overwritten",
            "promises",
            f"{STORAGE}/main.tf",
            rf'(immutable = \[[^\n]*?)(?:"{prefix}", |, "{prefix}")',
            r"\1",
            f"lets {prefix} be overwritten",
        )
        for prefix in ("cluster/name", "cluster/log/", "cluster/snapshot/", "wal/")
    ),
    Mistake(
        "a lifecycle that deletes segments",
        "promises",
        f"{STORAGE}/main.tf",
        r"(    abort_incomplete_multipart_upload \{)",
        r"    expiration {\n      days = 30\n    }\n\n\1",
        "deletes or moves objects",
    ),
    Mistake(
        "a heartbeat that the bucket refuses",
        "promises",
        f"{STORAGE}/main.tf",
        '"cluster/log/", ',
        '"cluster/", ',
        "refuses cluster/heartbeat/",
    ),
    Mistake(
        "a key that is never rotated",
        "promises",
        f"{STORAGE}/main.tf",
        r"enable_key_rotation( +)= true",
        r"enable_key_rotation\1= false",
        "is never rotated",
    ),
)

BY_CHECKOV = (
    Mistake(
        "a bucket that may be public",
        "checkov",
        f"{STORAGE}/main.tf",
        r"block_public_policy( +)= true",
        r"block_public_policy\1= false",
        "CKV_AWS_54",
    ),
    Mistake(
        "logs that no key of one's own encrypts",
        "checkov",
        "terraform/modules/observability/main.tf",
        r'(resource "aws_cloudwatch_log_group" "journal" \{(?s:.*?))\n  kms_key_id[^\n]*',
        r"\1",
        "CKV_AWS_158 ",
    ),
    Mistake(
        "a volume that is not encrypted",
        "checkov",
        f"{BROKER}/main.tf",
        r"encrypted( +)= true\n( +kms_key_id)",
        r"encrypted\1= false\n\2",
        "CKV_AWS_3 ",
    ),
)
"""checkov takes half a minute, so these three are planted together; their findings are apart."""


def copied(folder: Path, check: str) -> Path:
    """A copy of infra/ with few tests and no examples, which only call the root module."""
    copy = folder / "infra"
    shutil.copytree(MODULES.parent, copy, ignore=shutil.ignore_patterns(".terraform*", "__pycache__", "examples"))
    wanted = RUNS_KEPT.get(check, EVERYTHING)
    for path in copy.rglob("*.tftest.hcl"):
        kept = wanted.get(str(path.relative_to(copy / "terraform")))
        if kept is None:
            path.unlink()
        else:
            path.write_text(only_runs(path.read_text(), kept))
    return copy


def only_runs(text: str, names: tuple[str, ...]) -> str:
    parts = re.split(r'^(?=run ")', text, flags=re.MULTILINE)
    kept = [part for part in parts[1:] if part.startswith(tuple(f'run "{name}"' for name in names))]
    assert len(kept) == len(names), names
    return parts[0] + "".join(kept)


def plant(mistake: Mistake, copy: Path) -> None:
    path = copy / mistake.file
    changed, count = re.subn(mistake.pattern, mistake.planted, path.read_text())
    assert count, f"{mistake.pattern} is not in {mistake.file} any more: plant the mistake elsewhere"
    path.write_text(changed)


def findings(mistake: Mistake, copy: Path, scratch: Path) -> set[Finding]:
    scratch.mkdir(exist_ok=True)
    tree = (copy / mistake.file).parent if mistake.check in BY_FOLDER else copy / "terraform"
    try:
        return set(checks.run(mistake.check, checks.Bench(tree, scratch)))
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mistake], frozenset[str]]:
    """What the check of a mistake says of a copy without it: of refusals, that their runs were left out; else nothing."""
    said: dict[tuple[str, str], frozenset[str]] = {}

    def say(mistake: Mistake) -> frozenset[str]:
        place = str(Path(mistake.file).parent) if mistake.check in BY_FOLDER else ""
        if (mistake.check, place) not in said:
            folder = tmp_path_factory.mktemp("untouched")
            found = findings(mistake, copied(folder, mistake.check), folder / "scratch")
            said[mistake.check, place] = frozenset(each.what for each in found)
        return said[mistake.check, place]

    return say


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_planted_mistake_is_found_by_the_check_meant_for_it(
    mistake: Mistake, tmp_path: Path, untouched: Callable[[Mistake], frozenset[str]]
) -> None:
    before = untouched(mistake)
    if mistake.check not in RUNS_KEPT:
        assert before == set(), "the copy is found unsound without a mistake"
    copy = copied(tmp_path, mistake.check)
    plant(mistake, copy)
    new = [str(each) for each in findings(mistake, copy, tmp_path / "scratch") if each.what not in before]
    assert [text for text in new if mistake.told in text], new


@pytest.mark.slow
def test_known_bad_practice_is_found_by_checkov(tmp_path: Path) -> None:
    copy = copied(tmp_path, "checkov")
    for mistake in BY_CHECKOV:
        plant(mistake, copy)
    told = "\n".join(str(each) for each in findings(BY_CHECKOV[0], copy, tmp_path / "scratch"))
    assert {mistake.name for mistake in BY_CHECKOV if mistake.told not in told} == set(), told


def test_every_mistake_can_still_be_planted(tmp_path: Path) -> None:
    for mistake in (*MISTAKES, *BY_CHECKOV):
        text = (MODULES.parent / mistake.file).read_text()
        assert re.search(mistake.pattern, text), (
            f"{mistake.pattern} is not in {mistake.file} any more: plant it elsewhere"
        )
