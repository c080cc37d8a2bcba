"""Substitutes for AWS: moto is S3, EC2 and Secrets Manager, and ``tests.infra.imds`` is instance metadata and lifecycle actions.

All servers listen in the rehearsal's own network namespace, so they use no port of this machine. Metadata is at 169.254.169.254,
and the rest at ``HOST``, where machines with a network of their own reach it, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from tests.infra.imds import Instance, LifecycleServer, MetadataServer

REGION: Final = "eu-central-1"
ZONE: Final = "eu-central-1a"
HOST: Final = "10.42.0.1"
"""Address of the bridge that machines with a network of their own are connected to."""
MOTO: Final = Path(__file__).parents[2] / "tests" / "objectstore" / "moto_server.py"
IMAGE: Final = "ami-12c6146b"
BUCKET: Final = "firn-rehearsal"
ARTIFACTS: Final = "firn-rehearsal-artifacts"
GROUP: Final = "firn-node-0"
LAUNCH_HOOK: Final = "firn-launch"
TERMINATE_HOOK: Final = "firn-drain"


def name_of(address: str) -> str:
    """The private name that EC2 gives a machine with this address."""
    return f"ip-{address.replace('.', '-')}.{REGION}.compute.internal"


class Cloud:
    """One account for one rehearsal. ``close`` ends every server of it."""

    def __init__(self) -> None:
        self._moto = subprocess.Popen(
            [sys.executable, str(MOTO), HOST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"},
        )
        assert self._moto.stdout is not None
        port = self._moto.stdout.readline().strip()
        if not port:
            raise RuntimeError("moto did not start")
        self.endpoint = f"http://{HOST}:{port}"
        self.metadata = MetadataServer(Instance(), host="169.254.169.254", port=80)
        self.hooks = LifecycleServer(HOST)
        keys = {"aws_access_key_id": "rehearsal", "aws_secret_access_key": "rehearsal", "region_name": REGION}
        config = Config(retries={"max_attempts": 5})
        self.s3: Any = boto3.client("s3", endpoint_url=self.endpoint, config=config, **keys)
        self.ec2: Any = boto3.client("ec2", endpoint_url=self.endpoint, config=config, **keys)
        self._secrets: Any = boto3.client("secretsmanager", endpoint_url=self.endpoint, config=config, **keys)
        for bucket in (BUCKET, ARTIFACTS):
            self.s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})

    def close(self) -> None:
        self.metadata.close()
        self.hooks.close()
        assert self._moto.stdin is not None
        self._moto.stdin.close()  # it ends then
        try:
            self._moto.wait(10)
        except subprocess.TimeoutExpired:
            self._moto.kill()
            self._moto.wait()

    # --- what Terraform and EC2 would do

    def upload(self, archive: Path) -> str:
        key = f"firn/{archive.parent.name}/{archive.name}"
        self.s3.upload_file(str(archive), ARTIFACTS, key)
        return key

    def new_secret(self, name: str, text: str) -> str:
        """Returns: its ARN."""
        return str(self._secrets.create_secret(Name=name, SecretString=text)["ARN"])

    def change_secret(self, arn: str, text: str) -> None:
        self._secrets.put_secret_value(SecretId=arn, SecretString=text)

    def new_volume(self) -> str:
        return str(self.ec2.create_volume(AvailabilityZone=ZONE, Size=20, VolumeType="gp3")["VolumeId"])

    def launch(self) -> str:
        """Make an instance that EC2 calls running. Returns its id."""
        answer = self.ec2.run_instances(
            ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="m7i.large", Placement={"AvailabilityZone": ZONE}
        )
        return str(answer["Instances"][0]["InstanceId"])

    def attached_to(self, volume_id: str) -> str | None:
        attachments = self.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"][0]["Attachments"]
        return attachments[0]["InstanceId"] if attachments else None

    def release(self, instance_id: str, volume_id: str) -> None:
        """Detach a volume, as EC2 does when a machine ends, or an operator by force."""
        if self.attached_to(volume_id) == instance_id:
            self.ec2.detach_volume(VolumeId=volume_id, InstanceId=instance_id, Force=True)

    def terminate(self, instance_id: str, volume_id: str | None) -> None:
        """Make EC2 call an instance terminated."""
        if volume_id is not None:
            self.release(instance_id, volume_id)
        self.ec2.terminate_instances(InstanceIds=[instance_id])
