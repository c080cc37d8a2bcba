"""Checks of infra/ against the program: names in modules, user data and documents must exist, and mean the same.

The ``text`` checks read files and need nothing but this repository. The ``planned`` ones read the plans of test runs.
"""

from __future__ import annotations

import base64
import difflib
import importlib
import json
import re
import shlex
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from botocore.session import get_session

from app.configs import BrokerConfig
from app.core.errors import ConfigError
from app.core.units import TopicId
from app.iam.calls import DOCTOR_NEEDS, NEEDS, TARGET_NEEDS
from app.iam.policy import policy_of
from app.objectstore.location import S3Location, parse_store_url
from app.settings import ALIASES, catalogue, from_assignments, parse_address, resolve
from tools.infra.bucket_policy import WRITTEN_ONCE, bucket_policy
from tools.infra.findings import Finding, blocks, files, without_comments
from tools.infra.iam import actions_of, allowed, normal
from tools.infra.terraform_checks import Resource, Tested
from tools.infra.toolbox import REPOSITORY

BOOTSTRAP: Final = REPOSITORY / "infra" / "bootstrap"
METRICS_PAGE: Final = REPOSITORY / "docs" / "metrics.md"
USER_DATA_BYTES_MAX: Final = 16_384

_METRIC: Final = re.compile(r'"(firn_[a-z0-9_]+)"')
_TABLE_ROW: Final = re.compile(r"^\| `(firn_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
_ALLOW_LIST: Final = re.compile(r'\bmetrics\s*=\s*\[\s*((?:"firn_\w+",?\s*)+)\]')
_PER_PARTITION: Final = frozenset({"partition", "topic", "group"})
_QUOTED: Final = re.compile(r'"([^"\n$\\]+)"')
_DOTTED: Final = re.compile(r"[a-z]+(?:\.[a-z0-9]+)+")
_NOT_SETTINGS: Final = re.compile(
    r"amazonaws\.com$|\.(?:py|sh|json|yaml|yml|service|tftpl|tf|gz|conf|log|properties|env|hcl|zip|com|md)$|^(?:var|local|module|data|each)\."
)
_INSTANCE_TYPE: Final = re.compile(
    r"(?:cache\.|db\.)?[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(?:nano|micro|small|medium|large|[0-9]*xlarge|metal(?:-[0-9a-z]+)?)"
)
_EXPRESS_ACCOUNT: Final = re.compile(r"(:s3express:[a-z0-9-]*:)\d{12}(:bucket/)")
_SESSION: Final = "s3express:CreateSession"
_COMMAND: Final = re.compile(r"(?:^|[\s`\"'(]|/bin/)firn ((?:[a-z-]+)(?: [^`\"'\n|;&)]*)?)")
_PLACEHOLDER: Final = re.compile(r"\$?\{[^}]*\}|<[^>]*>|…")


# --- text -----------------------------------------------------------------------------------------------------------


@cache
def documented_metrics() -> dict[str, frozenset[str]]:
    """Every metric of docs/metrics.md (which a test holds against the program) with its labels."""
    return {
        name: frozenset(re.findall(r"`(\w+)`", labels))
        for name, _, labels in _TABLE_ROW.findall(METRICS_PAGE.read_text())
    }


def check_metrics(tree: Path) -> list[Finding]:
    """Metrics that modules name exist, have no series per partition, and those of alarms and dashboards are in the allow-list."""
    found = []
    known = documented_metrics()
    texts = {path: without_comments(path.read_text()) for path in files(tree, "*.tf", "*.tftpl")}
    shipped = {
        name for text in texts.values() for listed in _ALLOW_LIST.findall(text) for name in _METRIC.findall(listed)
    }
    for path, text in texts.items():
        where = str(path.relative_to(tree))
        for name in sorted(set(_METRIC.findall(text))):
            if name not in known:
                found.append(Finding("metrics", where, f"{name} is not a metric of Firn; docs/metrics.md lists all"))
            elif name in shipped and known[name] & _PER_PARTITION:
                labels = ", ".join(sorted(known[name] & _PER_PARTITION))
                found.append(
                    Finding("metrics", where, f"{name} has a series for each {labels}, and CloudWatch bills each")
                )
            elif shipped and name not in shipped:
                found.append(
                    Finding("metrics", where, f"{name} is not in the allow-list, so it never gets to CloudWatch")
                )
    return found


def check_settings(tree: Path) -> list[Finding]:
    """Strings that look like a setting of the broker are one."""
    known = {*catalogue(), *ALIASES}
    families = {name.partition(".")[0] for name in known}
    found = []
    for path in files(tree, "*.tf", "*.tftpl"):
        for text in sorted(set(_QUOTED.findall(without_comments(path.read_text())))):
            if _DOTTED.fullmatch(text) and not _NOT_SETTINGS.search(text) and not _INSTANCE_TYPE.fullmatch(text):
                family = text.partition(".")[0] in families
                if text not in known and (family or difflib.get_close_matches(text, known, n=1, cutoff=0.9)):
                    where = str(path.relative_to(tree))
                    found.append(
                        Finding("settings", where, f"{text!r} is no setting; `firn serve --list-settings` lists all")
                    )
    return found


def check_instance_types(tree: Path) -> list[Finding]:
    """Instance types, and values of arguments and defaults with such a name, are in botocore's list of EC2's types."""
    known = set(get_session().get_service_model("ec2").shape_for("InstanceType").enum)
    families = {name.partition(".")[0] for name in known}
    found = []
    for path in files(tree, "*.tf", "*.tfvars", "*.hcl", "*.md"):
        text = path.read_text()
        given = {one for one in re.findall(r'["`]([a-z0-9.-]+)["`]', text) if _INSTANCE_TYPE.fullmatch(one)}
        if path.suffix == ".tf":
            given |= set(re.findall(r'^\s*(?:instance|node)_type\s*=\s*"([^"$]+)"', text, re.MULTILINE))
            for labels, body in blocks(without_comments(text), "variable"):
                if labels[0].endswith(("instance_type", "node_type")):
                    given |= set(re.findall(r'^\s*default\s*=\s*"([^"$]*)"', body, re.MULTILINE))
        for name in sorted(given):
            service, _, rest = name.partition(".")
            # ElastiCache has no list in botocore; its nodes are of EC2's families.
            right = rest.partition(".")[0] in families if service in ("cache", "db") else name in known
            if not right:
                found.append(
                    Finding("instance-types", str(path.relative_to(tree)), f"{name} is no instance type of EC2")
                )
    return found


def program_ports() -> dict[str, int]:
    """The ports that the program listens on unless it is told otherwise."""
    config = BrokerConfig()
    http = parse_address(config.http_address, what="firn.http.listen")
    return {"kafka_port": config.listen_port, "http_port": http.port}


def check_ports(tree: Path) -> list[Finding]:
    """Variables and arguments called kafka_port and http_port have the program's ports, in all modules and in the bootstrap."""
    found = []
    for path in files(tree, "*.tf"):
        text = without_comments(path.read_text())
        where = str(path.relative_to(tree))
        for name, port in program_ports().items():
            declared = re.findall(rf'variable "{name}" \{{.*?\n\}}', text, re.DOTALL)
            given = [
                int(number) for body in declared for number in re.findall(r"^  default\s*=\s*(\d+)", body, re.MULTILINE)
            ]
            given += [int(number) for number in re.findall(rf"^\s*{name}\s*=\s*(\d+)", text, re.MULTILINE)]
            found += [
                Finding("ports", where, f"{name} is {number}, and the program listens on {port}")
                for number in given
                if number != port
            ]
    listened = bootstrap_reader().KAFKA_PORT
    brokers_port = importlib.import_module("firn_security").BROKERS_PORT
    for path in files(tree, "*.tf"):
        given = re.findall(r"^\s*brokers_port\s*=.*?\b(\d{2,})\b", without_comments(path.read_text()), re.MULTILINE)
        found += [
            Finding("ports", str(path.relative_to(tree)), f"brokers_port is {number}, and the bootstrap's is another")
            for number in given
            if int(number) != brokers_port
        ]
    if listened != program_ports()["kafka_port"]:
        found.append(Finding("ports", "infra/bootstrap", f"KAFKA_PORT is {listened}, and the program's is another"))
    return found


@cache
def _commands() -> dict[tuple[str, ...], frozenset[str]]:
    """Every command of ``firn`` with its flags; a family of commands has those that all of it takes."""
    from app.cli.commands import application

    found: dict[tuple[str, ...], frozenset[str]] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        flags = {
            option for one in command.params for option in (*one.opts, *one.secondary_opts) if option.startswith("-")
        }
        found[path] = frozenset(flags | {"--help", "-h"})
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*path, name))

    walk(application(), ())
    return found


def check_commands(tree: Path) -> list[Finding]:
    """Commands of ``firn`` that modules, units, bootstrap and documents of infra/ give exist, and take the flags given."""
    found = []
    root = tree.parent
    for path in files(root, "*.tf", "*.tftpl", "*.md", "*.service", "*.sh"):
        for said in _COMMAND.findall(path.read_text()):
            wrong = _wrong_command(said)
            if wrong:
                found.append(Finding("commands", str(path.relative_to(root)), f"`firn {said.strip()}`: {wrong}"))
    return found


def _wrong_command(said: str) -> str:
    known = _commands()
    try:
        words = shlex.split(_PLACEHOLDER.sub("X", said))
    except ValueError:
        words = _PLACEHOLDER.sub("X", said).split()
    path: tuple[str, ...] = ()
    for word in words:
        if (*path, word) not in known:
            break
        path = (*path, word)
    if not path:
        # Prose says "firn is …" too: only text with a flag, or quoted whole, is a command.
        return f"there is no command {words[0]}" if any(word.startswith("--") for word in words) else ""
    flags = {word.partition("=")[0].rstrip(".,:") for word in words if re.match(r"--?[a-z]", word)}
    unknown = sorted(flags - known[path] - known[()])
    return f"firn {' '.join(path)} has no {', '.join(unknown)}" if unknown else ""


# --- planned --------------------------------------------------------------------------------------------------------


@cache
def bootstrap_reader() -> ModuleType:
    """The bootstrap of a machine, as it reads its settings."""
    if str(BOOTSTRAP) not in sys.path:
        sys.path.insert(0, str(BOOTSTRAP))
    return importlib.import_module("firn_bootstrap")


@cache
def settings_reader() -> ModuleType:
    """The half of the bootstrap that reads its settings, and has no other part of it."""
    bootstrap_reader()  # its folder is on the path now
    return importlib.import_module("firn_settings")


def check_user_data(tested: Tested) -> list[Finding]:
    """User data of every planned machine fits, is Python, and carries settings that the bootstrap and the program take."""
    found: set[Finding] = set()
    seen = 0
    for template in tested.of("aws_launch_template"):
        encoded = template.values.get("user_data")
        if not encoded:
            continue
        seen += 1
        where = f"{template.run}, {template.address}"
        found |= {Finding("user-data", where, what) for what in _wrong_user_data(base64.b64decode(encoded))}
    if not seen:
        found.add(Finding("user-data", "tests", "no run plans a launch template whose user data are known"))
    return sorted(found, key=str)


def _wrong_user_data(data: bytes) -> Iterator[str]:
    if len(data) > USER_DATA_BYTES_MAX:
        yield f"is {len(data)} bytes long, and EC2 takes {USER_DATA_BYTES_MAX}"
    try:
        compile(data.decode(), "user data", "exec")
    except SyntaxError as error:
        yield f"is no Python: {error}"
        return
    carried = re.search(rb'SETTINGS = base64\.b64decode\("([A-Za-z0-9+/=]+)"\)', data)
    if carried is None:
        yield "carries no settings"
        return
    reader = bootstrap_reader()
    try:
        settings = settings_reader().parse_settings(base64.b64decode(carried[1]).decode())
    except reader.Refused as error:
        yield f"is refused by the bootstrap: {error}"
        return
    try:
        parse_store_url(settings.store)
        if settings.role == "broker":
            given = reader.broker_settings(settings, "i-0123456789abcdef0", address="10.42.0.5", rack="euc1-az1")
            resolve([from_assignments(f"{name}={text}" for name, text in given.items())])
    except ConfigError as error:
        yield f"is refused by the program: {error}"


def check_iam(tested: Tested) -> list[Finding]:
    """Policies of roles: the bucket's are those of ``firn iam policy``; the rest allows the calls of bootstrap and agent, all of
    which AWS knows; an http process may not touch the bucket."""
    found: list[Finding] = []
    policies = [
        (each, json.loads(each.values["policy"]))
        for each in tested.of("aws_iam_role_policy")
        if each.values.get("policy")
    ]
    compared = set()
    for each, document in policies:
        where = f"{each.run}, {each.address}"
        found += [Finding("iam", where, what) for what in _unknown_actions(document)]
        role = _role_of(each)
        if each.values.get("name") == "job" and role == "spark":
            found += [Finding("iam", where, what) for what in _wrong_target(document)]
        if each.values.get("name") == "store" and role is not None:
            compared.add(role)
            found += [Finding("iam", where, what) for what in _differs_from_program(role, document)]
    found += [
        Finding("iam", "tests", f"no run plans the store's policy of {role}")
        for role in ("broker", "spark")
        if role not in compared
    ]
    by_role: dict[tuple[str, str], list[Any]] = {}
    for each, document in policies:
        by_role.setdefault((each.run, f"{_role_of(each)} {each.address.rpartition('[')[2]}"), []).append(
            (each, document)
        )
    for (run, _), documents in by_role.items():
        found += _wrong_calls(run, documents)
    return sorted(set(found), key=str)


def _role_of(resource: Resource) -> str | None:
    for role in ("broker", "spark", "http"):
        if re.search(rf"\bmodule\.{role}\b", resource.address) or f"modules/{role}," in resource.run:
            return role
    return None


def _differs_from_program(role: str, document: dict[str, Any]) -> Iterator[str]:
    """The differences between a role's policy of the bucket and ``firn iam policy``."""
    resources = [text for one in document["Statement"] for text in _texts(one["Resource"]) if ":s3:::" in text]
    objects = next((text for text in resources if text.endswith(("cluster/*", "cluster/log/*"))), None)
    if objects is None:
        yield "does not allow to read the cluster log"
        return
    partition, _, rest = objects.removeprefix("arn:").partition(":s3:::")
    bucket, _, key = rest.partition("/")
    location = S3Location(bucket, key[: key.index("cluster/")])
    keys = [text for one in document["Statement"] for text in _texts(one["Resource"]) if ":kms:" in text]
    topics = sorted(set(re.findall(r"topics/([0-9a-f-]{36})/", " ".join(resources))))
    ids = [TopicId(uuid.UUID(text)) for text in topics]
    # The program does not know the account of a directory bucket, and the modules do.
    document = json.loads(_EXPRESS_ACCOUNT.sub(r"\1*\2", json.dumps(document)))
    ours = policy_of(
        "broker" if role == "broker" else "spark",
        location,
        wal_location=_wal_location(document),
        topic_ids=ids,
        kms_key_arns=keys,
        partition=partition,
    )
    if normal(ours) != normal(document):
        missing = sorted(actions_of(ours) - actions_of(document))
        surplus = sorted(actions_of(document) - actions_of(ours))
        told = "".join(
            (f"; it lacks {', '.join(missing)}" * bool(missing), f"; it need not {', '.join(surplus)}" * bool(surplus))
        )
        yield f"is not what `firn iam policy --role {role}` prints{told}"


def _wal_location(document: dict[str, Any]) -> S3Location | None:
    """The store of their own that a broker's policy has for write-ahead logs, if it has one."""
    for one in document["Statement"]:
        for text in _texts(one["Resource"]):
            if one.get("Sid") == "WalStore":
                return S3Location(text.rpartition("/")[2], "", region=text.split(":")[3])
            if one.get("Sid") == "WalList":
                return S3Location(text.rpartition(":::")[2], "")
    return None


def _wrong_target(document: dict[str, Any]) -> Iterator[str]:
    """The differences between a job's rights on its archive and ``app/iam/calls.py``."""
    calls = [NEEDS[call] for needed in TARGET_NEEDS.values() for call in needed]
    writing = [one for one in document["Statement"] if "s3:PutObject" in _texts(one["Action"])]
    wanted = {False: set(), True: set()}
    for one in calls:
        wanted[one.on_bucket].add(one.action)
    for statement in writing:
        buckets = {text.removesuffix("/*") for text in _texts(statement["Resource"])}
        given = {False: set(), True: set()}
        for one in document["Statement"]:
            for text in _texts(one["Resource"]):
                if text.removesuffix("/*") in buckets:
                    given[not text.endswith("/*")] |= set(_texts(one["Action"]))
        for on_bucket, actions in wanted.items():
            lacking, surplus = sorted(actions - given[on_bucket]), sorted(given[on_bucket] - actions)
            if lacking:
                yield f"lacks {', '.join(lacking)} where an archive goes"
            if surplus:
                yield f"need not {', '.join(surplus)} where an archive goes"
    for one in document["Statement"]:
        used = {action for action in _texts(one["Action"]) if action.startswith("kms:")}
        if used and used != {action for call in calls for action in call.kms}:
            yield f"uses the key of an archive's bucket for {', '.join(sorted(used))} and no more"


def _texts(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


_NO_API: Final = frozenset({"ssmmessages", "ec2messages"})
"""Prefixes of actions whose calls no SDK has."""
_NOT_A_CALL: Final = frozenset(
    {
        "kms:ReEncryptFrom",
        "kms:ReEncryptTo",
        "ssm:ListInstanceAssociations",
        "ssm:UpdateInstanceAssociationStatus",
        "ssm:UpdateInstanceInformation",
    }
)
"""Actions that IAM has and no SDK: the halves of a re-encryption, and the calls of Session Manager's agent (AWS's policy
AmazonSSMManagedInstanceCore names them)."""


@cache
def _operations(service: str) -> frozenset[str]:
    return frozenset(get_session().get_service_model(service).operation_names)


def _unknown_actions(document: dict[str, Any]) -> Iterator[str]:
    """Actions that AWS does not have. Those of most services are called as their calls are."""
    of_s3 = {needs.action for needs in (*NEEDS.values(), *DOCTOR_NEEDS.values())}
    for action in sorted(actions_of(document)):
        service, _, name = action.partition(":")
        if "*" in action:
            yield f"allows {action}: write the actions that are needed"
        elif service == "s3":
            if action not in of_s3:
                yield f"allows {action}, which no call of Firn needs"
        elif action == _SESSION:
            if "CreateSession" not in _operations("s3"):  # a call of S3 whose action has a service of its own
                yield f"allows {action}, which is no action of AWS"
        elif service not in _NO_API and action not in _NOT_A_CALL:
            try:
                known = _operations(service)
            except Exception:  # noqa: BLE001 - botocore's UnknownServiceError has no base of its own
                yield f"allows {action}, and AWS has no service {service}"
                continue
            if name not in known:
                yield f"allows {action}, which is no action of AWS"


_BY_MACHINES: Final = {"ec2": "ec2", "autoscaling": "autoscaling"}


@cache
def machine_calls() -> frozenset[str]:
    """The calls of EC2 and auto scaling that bootstrap and agent make, as IAM names them."""
    text = "\n".join(path.read_text() for path in sorted(BOOTSTRAP.glob("*.py")))
    names = set(re.findall(r'"([A-Z][A-Za-z]+)"', text))
    return frozenset(f"{service}:{name}" for service in _BY_MACHINES for name in names & _operations(service))


def _wrong_calls(run: str, documents: list[tuple[Resource, dict[str, Any]]]) -> Iterator[Finding]:
    role = _role_of(documents[0][0])
    where = f"{run}, {documents[0][0].address}"
    allows = {action for _, document in documents for action in actions_of(document)}
    if role == "broker" and len(documents) > 1:
        volume = any("ec2:AttachVolume" in actions_of(document) for _, document in documents)
        fleet = documents[0][0].address.endswith('["fleet"]')  # it has no volume, and takes no node id over
        calls = {call for call in machine_calls() if not fleet or not call.startswith("ec2:")}
        for call in sorted(calls - allows):
            if call != "ec2:AttachVolume" or volume:
                yield Finding("iam", where, f"lacks {call}, which infra/bootstrap calls")
        looks = {needs.action for needs in DOCTOR_NEEDS.values()}
        if fleet and not looks <= allows:
            yield Finding(
                "iam", where, f"lacks {', '.join(sorted(looks - allows))}: the first boot could not look at the bucket"
            )
        for action in sorted(allows - calls):
            if action.partition(":")[0] in _BY_MACHINES and action != "ec2:AttachVolume":
                yield Finding("iam", where, f"allows {action}, which infra/bootstrap never calls")
    if role == "http":
        for resource, document in documents:
            for action in sorted(actions_of(document)):
                if action.startswith("s3:") and action != "s3:GetObject":
                    yield Finding("iam", f"{run}, {resource.address}", f"lets an http process {action}")


# --- promises -------------------------------------------------------------------------------------------------------

_EVERYWHERE: Final = frozenset({"0.0.0.0/0", "::/0"})
_COUNTED: Final = re.compile(r"--with (\w+)=(\d+)")
_NETWORK_FIRST: Final = ("broker", "http")
"""Modules with machines that boot when they are applied."""


def check_promises(tree: Path, tested: Tested) -> list[Finding]:
    """The promises of infra/README.md for every plan, with any variables."""
    found = {
        Finding("promises", f"{each.run}, {each.address}", what) for each in tested.resources for what in _broken(each)
    }
    for path in files(tree, "*.tf"):
        text = without_comments(path.read_text())
        where = str(path.relative_to(tree))
        for labels, body in blocks(text, "resource"):
            kind, name = labels
            if kind in _KEPT and not re.search(r"prevent_destroy\s*=\s*true", body):
                told = f"{kind}.{name} can be destroyed: it lacks prevent_destroy = true"
                found.add(Finding("promises", where, told))
            if re.search(r"^\s*initial_lifecycle_hook \{", body, re.MULTILINE) and not re.search(
                r"ignore_changes\s*=\s*\[[^\]]*\binitial_lifecycle_hook\b", body
            ):
                told = f"{kind}.{name} is replaced with its machines when a hook changes: it lacks ignore_changes"
                found.add(Finding("promises", where, told))
        for labels, body in blocks(text, "module"):
            if labels[0] in _NETWORK_FIRST and not re.search(r"depends_on\s*=\s*\[[^\]]*\bmodule\.network\b", body):
                told = (
                    f"module.{labels[0]} may boot before the way to S3 is there: it lacks depends_on = [module.network]"
                )
                if 'module "network"' in text:
                    found.add(Finding("promises", where, told))
    return sorted(found, key=str)


_KEPT: Final = frozenset({"aws_ebs_volume", "aws_s3_bucket", "aws_s3_directory_bucket", "aws_kms_key"})
"""Without these records are gone."""


def check_bills(tree: Path, tested: Tested) -> list[Finding]:
    """The bill in each example's README counts the planned resources: the output ``bill``, and the size of the volume."""
    found = set()
    for folder in sorted((tree / "examples").glob("*/")):
        name = str(folder.relative_to(tree))
        shown = re.search(r"^\$ firn (cost [^\n]*)$", (folder / "README.md").read_text(), re.MULTILINE)
        planned = [
            outputs["bill"] for run, outputs in tested.outputs if run.startswith(f"{name},") and "bill" in outputs
        ]
        if shown is None or not planned:
            found.add(Finding("bills", name, "has no bill in its README, or no run that plans the output `bill`"))
            continue
        billed = {what: int(count) for what, count in _COUNTED.findall(shown[1])}
        for bill in planned:
            for what, count in sorted(bill.items()):
                if billed.get(what, 0) != count:
                    told = f"the bill counts {billed.get(what, 0)} of {what}, and {count} are planned"
                    found.add(Finding("bills", f"{name}/README.md", told))
        volume = re.search(r"--volume (\d+)", shown[1])
        for resource in tested.of("aws_ebs_volume"):
            if resource.run.startswith(f"{name},") and (volume is None or int(volume[1]) != resource.values["size"]):
                told = f"the bill is for another volume than that of {resource.values['size']} GiB which is planned"
                found.add(Finding("bills", f"{name}/README.md", told))
    return sorted(found, key=str)


def _broken(resource: Resource) -> Iterator[str]:
    values = resource.values
    match resource.kind:
        case "aws_lb" if values.get("internal") is not True:
            yield "is open to the internet, and Firn has no authentication yet"
        case "aws_vpc_security_group_ingress_rule" if {values.get("cidr_ipv4"), values.get("cidr_ipv6")} & _EVERYWHERE:
            yield "lets everybody in"
        case "aws_security_group" | "aws_security_group_rule":
            ingress = values.get("ingress") or ([values] if values.get("type") == "ingress" else [])
            for rule in ingress:
                if _EVERYWHERE & {*(rule.get("cidr_blocks") or ()), *(rule.get("ipv6_cidr_blocks") or ())}:
                    yield "lets everybody in"
        case "aws_launch_template":
            for options in values.get("metadata_options") or [{}]:
                if options.get("http_tokens") != "required":
                    yield "lets IMDSv1 in: http_tokens is not required"
                if options.get("http_put_response_hop_limit") != 1:
                    yield "lets containers reach instance metadata: http_put_response_hop_limit is not 1"
                if options.get("instance_metadata_tags") == "enabled":
                    yield "shows tags to the machine, which reads settings from the launch template alone"
        case "aws_autoscaling_group" if "aws_autoscaling_group.broker" in resource.address:
            yield from _broken_group(values)
        case "aws_autoscaling_group" if "aws_autoscaling_group.fleet" in resource.address:
            yield from _broken_fleet(values)
        case "aws_lb_target_group" if values.get("protocol") == "TCP":
            if str(values.get("preserve_client_ip")).lower() != "false":
                yield "preserves client addresses, so that a broker cannot reach its own"
        case "aws_lb_target_group" if values.get("protocol") == "HTTP":
            for check in values.get("health_check") or ():
                if check.get("path") != "/healthz":
                    yield f"asks for {check.get('path')}, so that machines end when a broker is away: ask for /healthz"
        case "aws_cloudwatch_dashboard" if values.get("dashboard_body"):
            for widget in json.loads(values["dashboard_body"])["widgets"]:
                if not all(isinstance(line, list) for line in widget["properties"].get("metrics", ())):
                    yield f"CloudWatch refuses the graph {widget['properties'].get('title')!r}: a metric is not a list"
        case "aws_lb_listener" if values.get("protocol") in ("TCP", "TLS"):
            if values["protocol"] != "TCP":
                yield "ends TLS at the load balancer: mTLS could not pass through"
            if values.get("tcp_idle_timeout_seconds") not in (None, 350):
                yield "has an idle time-out that the broker's keep-alives do not answer"
        case "aws_ebs_volume" if values.get("encrypted") is not True:
            yield "is not encrypted"
        case "aws_kms_key" if values.get("enable_key_rotation") is not True:
            yield "is never rotated"
        case "aws_s3_bucket_public_access_block":
            for name in ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets"):
                if values.get(name) is not True:
                    yield f"{name} is not true"
        case "aws_s3_bucket_lifecycle_configuration":
            for rule in values.get("rule") or ():
                expires = any(one.get("days") or one.get("date") for one in rule.get("expiration") or ())
                if expires or rule.get("transition"):
                    yield f"rule {rule.get('id')} deletes or moves objects: retention is Firn's"
        case "aws_s3_bucket_policy" if _SESSION in str(values.get("policy")):
            yield from _broken_session_policy(json.loads(values["policy"]))
        case "aws_s3_bucket_policy" if values.get("policy"):
            # state/ has a bucket of its own, which Terraform overwrites.
            yield from _broken_bucket_policy(
                json.loads(values["policy"]), clusters=not resource.run.startswith("state,")
            )
        case "aws_vpc_endpoint" if (
            str(values.get("service_name", "")).endswith((".s3", ".s3express"))
            and values.get("vpc_endpoint_type") != "Gateway"
        ):
            yield "S3 goes through an interface endpoint, which costs by the byte"


def _broken_group(values: dict[str, Any]) -> Iterator[str]:
    if values.get("max_size") != 1:
        yield "may run two machines with one node id: max_size is not 1"
    if values.get("health_check_type") != "EC2":
        yield "ends a broker that recovers: health_check_type is not EC2"
    if "AZRebalance" not in (values.get("suspended_processes") or ()):
        yield "may be moved to another zone: AZRebalance is not suspended"
    if values.get("instance_refresh"):
        yield "replaces machines without a drain: instance_refresh is set"
    for policy in values.get("instance_maintenance_policy") or [{}]:
        if policy.get("min_healthy_percentage") != 0 or policy.get("max_healthy_percentage") != 100:
            yield "starts a machine before the old one ended: the maintenance policy is not terminate-first"
    yield from _without_hooks(values)


def _broken_fleet(values: dict[str, Any]) -> Iterator[str]:
    """Of brokers without disks: the next machine serves before the old one goes, and nothing keeps one that is to go."""
    if values.get("health_check_type") != "EC2":
        yield "ends all brokers when the bucket is away: health_check_type is not EC2"
    if values.get("protect_from_scale_in"):
        yield "keeps machines that are not needed: protect_from_scale_in is set"
    for policy in values.get("instance_maintenance_policy") or [{}]:
        if policy.get("min_healthy_percentage") != 100:
            yield "ends a machine before the next one serves: the maintenance policy is not launch-first"
    yield from _without_hooks(values)


def _without_hooks(values: dict[str, Any]) -> Iterator[str]:
    moments = {hook.get("lifecycle_transition") for hook in values.get("initial_lifecycle_hook") or ()}
    for moment in ("LAUNCHING", "TERMINATING"):
        if f"autoscaling:EC2_INSTANCE_{moment}" not in moments:
            yield f"has no lifecycle hook for {moment}"


def _broken_session_policy(document: dict[str, Any]) -> Iterator[str]:
    """Of a directory bucket, whose sessions may do everything in it: brokers and operators alone get one, and by TLS."""
    anything = {"Statement": [{"Effect": "Allow", "Action": _SESSION, "Resource": "*"}, *document["Statement"]]}
    [bucket] = {text for one in document["Statement"] for text in _texts(one["Resource"])}
    writers = [
        text
        for one in document["Statement"]
        for text in _texts(one["Condition"].get("ArnNotEquals", {}).get("aws:PrincipalArn", []))
    ]
    writer = {"aws:SecureTransport": "true", "aws:PrincipalArn": (writers or [""])[0]}
    if not allowed([anything], _SESSION, bucket, writer):
        yield "refuses a broker's session"
    if allowed([anything], _SESSION, bucket, writer | {"aws:SecureTransport": "false"}):
        yield "gives sessions without TLS"
    if allowed([anything], _SESSION, bucket, writer | {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/somebody"}):
        yield "gives others than brokers a session, and so every right in the bucket"


def _broken_bucket_policy(document: dict[str, Any], *, clusters: bool) -> Iterator[str]:
    """The bucket's own denials, tried with requests that every role would be allowed otherwise; of a bucket that is no cluster's,
    only those of requests without TLS."""
    statements = [one for one in document["Statement"] if one["Effect"] == "Deny"]
    resources = [text for one in statements for text in _texts(one["Resource"])]
    arns = [text for text in resources if "/" not in text.partition(":::")[2]]
    if not arns:
        yield "denies nothing on the bucket itself"
        return
    roots = {text.rpartition("cluster/")[0] for text in resources if text.endswith(("cluster/*", "cluster/log/*"))}
    anything = {"Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}, *statements]}
    writers = [
        text
        for one in statements
        for text in _texts(one.get("Condition", {}).get("ArnNotEquals", {}).get("aws:PrincipalArn", []))
    ]
    safe = {"aws:SecureTransport": "true", "aws:PrincipalArn": writers[0] if writers else "arn:aws:iam::1:role/x"}
    object_arn = f"{arns[0]}/x"
    if allowed([anything], "s3:GetObject", object_arn, {**safe, "aws:SecureTransport": "false"}):
        yield "takes requests without TLS"
    if not allowed([anything], "s3:GetObject", object_arn, safe):
        yield "refuses to read with TLS"
    if not clusters:
        return
    ours = bucket_policy(arns[0], min(roots, default="").removeprefix(f"{arns[0]}/"), writers)
    if normal(ours) != normal(document):
        yield "is not the policy that tools/infra/bucket_policy.py has, under which the tests let a broker work"
    for root in roots or {f"{arns[0]}/"}:
        for prefix in WRITTEN_ONCE:
            put = {**safe, "s3:ObjectCreationOperation": "true"}
            if allowed([anything], "s3:PutObject", f"{root}{prefix}x", put):
                yield f"lets {prefix} be overwritten: it does not demand s3:if-none-match"
            if not allowed([anything], "s3:PutObject", f"{root}{prefix}x", {**put, "s3:if-none-match": "*"}):
                yield f"refuses a broker's conditional write to {prefix}"
            stranger = {**put, "s3:if-none-match": "*", "aws:PrincipalArn": "arn:aws:iam::123456789012:role/somebody"}
            if allowed([anything], "s3:PutObject", f"{root}{prefix}x", stranger):
                yield f"lets others than brokers write {prefix}"
        for prefix in ("cluster/heartbeat/", "check/"):
            if not allowed(
                [anything], "s3:PutObject", f"{root}{prefix}x", {**safe, "s3:ObjectCreationOperation": "true"}
            ):
                yield f"refuses {prefix}, which brokers overwrite"
