"""The module does what it says: by its own tests, and applied to a server on which the engine then works."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

import tiered
from tests.terraform.account import account
from tests.terraform.commands import Terraform, finished
from tests.terraform.simulation import BUCKET_ARN, KEY_ARN, rendered

# An AWS provider starts in seconds, and waits most of a minute to be sure of a lifecycle configuration.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]

ACCOUNT = "123456789012"
LOGS = "tiered-access-logs"
NAMES = {"minimal": "tiered-minimal", "production": "tiered-production"}


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return Terraform(tmp_path_factory.mktemp("terraform"))


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    from moto.s3.models import FakeDeleteMarker

    with account() as url, pytest.MonkeyPatch.context() as patch:
        # moto cannot remove a deletion's mark for good: it asks it to close a file that it has not.
        patch.setattr(FakeDeleteMarker, "dispose", lambda _: None, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield url


@pytest.fixture(scope="module")
def module_tests(terraform: Terraform) -> Iterator[subprocess.Popen[str]]:
    """``terraform test``, started: it runs while the provider waits."""
    terraform.run(terraform.module, "init")
    process = terraform.start(terraform.module, "test")
    yield process
    process.kill()
    process.wait()


def make_log_bucket(aws: str) -> None:
    """What the module leaves to its user: a bucket that S3's log delivery may write to."""
    s3 = boto3.client("s3", endpoint_url=aws)
    s3.create_bucket(Bucket=LOGS)
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "logging.s3.amazonaws.com"},
        "Action": "s3:PutObject",
        "Resource": f"arn:aws:s3:::{LOGS}/*",
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    s3.put_bucket_policy(Bucket=LOGS, Policy=json.dumps(policy))


@pytest.fixture(scope="module")
def applied(
    terraform: Terraform, module_tests: subprocess.Popen[str], aws: str
) -> Iterator[dict[str, dict[str, Any]]]:
    """Both examples, applied side by side; their outputs."""
    ec2 = boto3.client("ec2", endpoint_url=aws)
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    table = ec2.describe_route_tables()["RouteTables"][0]["RouteTableId"]
    make_log_bucket(aws)
    more = {
        "minimal": {},
        "production": {
            "access_log_bucket": LOGS,
            "spark_role_arns": [f"arn:aws:iam::{ACCOUNT}:role/spark"],
            "operator_arns": [f"arn:aws:iam::{ACCOUNT}:root"],
            "vpc": {"id": vpc, "route_table_ids": [table]},
        },
    }
    folders = {name: terraform.module / "examples" / name for name in NAMES}
    for name, folder in folders.items():
        terraform.use_endpoint(folder, aws)
        values = {"name": NAMES[name], "force_destroy": True, **more[name]}
        (folder / "terraform.tfvars.json").write_text(json.dumps(values), encoding="utf-8")
        terraform.run(folder, "init")
    running = [terraform.start(folder, "apply", "-auto-approve") for folder in folders.values()]
    for process in running:
        finished(process)
    yield {name: terraform.outputs(folder) for name, folder in folders.items()}
    running = [
        terraform.start(folder, "destroy", "-auto-approve", "-refresh=false") for folder in folders.values()
    ]
    for process in running:
        finished(process)
    left = {bucket["Name"] for bucket in boto3.client("s3", endpoint_url=aws).list_buckets()["Buckets"]}
    assert not left & set(NAMES.values()), "destroy removes the buckets"


@pytest.mark.parametrize("example", NAMES)
def test_the_engine_works_on_what_was_applied(
    example: str, applied: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """With the printed tiered.toml and nothing else: append, offload, read by URL, lose the disk, restore, go on."""
    config = tmp_path / "tiered.toml"
    rules = '\n[policies.default]\noffload = { after = "0s" }\n'
    config.write_text(applied[example]["tiered_toml"] + rules, encoding="utf-8")
    url = applied[example]["url"]
    with tiered.open(tmp_path / "data", settings=config) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % number for number in range(1_000)])
        topic.roll()
        assert store.tier().failed == ()
    with tiered.open(url) as bucket:
        assert bucket.topic("t").scan().to_arrow().num_rows == 1_000
    with tiered.restore(url, tmp_path / "restored", settings=config) as store:
        assert store.topic("t").append(b"next").offset == 1_000
        store.topic("t").roll()
        assert store.tier().failed == ()
        assert store.topic("t").scan().to_arrow().num_rows == 1_001


def test_the_policies_in_the_account_are_those_that_were_simulated(
    applied: dict[str, dict[str, Any]], aws: str
) -> None:
    """What Terraform rendered is what tests/terraform/simulation.py renders, name of the bucket and key apart."""
    iam = boto3.client("iam", endpoint_url=aws)
    for example, name in NAMES.items():
        for role in ("writer", "reader", "restore"):
            arn = f"arn:aws:iam::{ACCOUNT}:policy/{name}-{role}"
            document = iam.get_policy_version(PolicyArn=arn, VersionId="v1")["PolicyVersion"]["Document"]
            assert document == json.loads(applied[example]["policy_documents"][role])
            key = next((s["Resource"][0] for s in document["Statement"] if s["Sid"] == "Decrypt"), KEY_ARN)
            text = json.dumps(document).replace(f"arn:aws:s3:::{name}", BUCKET_ARN).replace(key, KEY_ARN)
            simulated = rendered(
                "reader with leases" if role == "reader" and example == "production" else role
            )
            if example == "minimal":
                own = {statement["Sid"] for statement in document["Statement"]}
                simulated["Statement"] = [s for s in simulated["Statement"] if s["Sid"] in own]
                assert not own & {"Tag", "Lease", "Encrypt", "Decrypt"}
            assert json.loads(text) == simulated


def test_the_bucket_refuses_what_its_policy_denies(applied: dict[str, dict[str, Any]], aws: str) -> None:
    """A head without a condition, another encryption, another key or none; what asks for nothing gets the bucket's."""
    s3 = boto3.client("s3", endpoint_url=aws)
    name, head = NAMES["production"], "events/t/id/0/head.json"
    key = tomllib.loads(applied["production"]["tiered_toml"])["cold"]["kms_key_id"]
    kms = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    refused: list[dict[str, Any]] = [
        {"Key": head},
        {"Key": head, **kms},
        {"Key": "events/x", "ServerSideEncryption": "AES256"},
        {"Key": "events/x", **kms, "SSEKMSKeyId": f"{key}0"},
        {"Key": "events/x", "ServerSideEncryption": "aws:kms"},
        {"Key": "events/x", "SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32},
    ]
    for arguments in refused:
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket=name, Body=b"x", **arguments)
    for arguments in ({"Key": head, "IfNoneMatch": "*"}, {"Key": "events/x"}, {"Key": "events/x", **kms}):
        s3.put_object(Bucket=name, Body=b"x", **arguments)
        s3.delete_object(Bucket=name, Key=arguments["Key"])


def test_production_is_what_it_says(applied: dict[str, dict[str, Any]], aws: str) -> None:
    """Asked of the server, not of Terraform's state."""
    name = NAMES["production"]
    s3 = boto3.client("s3", endpoint_url=aws)
    (rule,) = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["BucketKeyEnabled"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    assert all(s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"].values())
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    assert s3.get_bucket_logging(Bucket=name)["LoggingEnabled"]["TargetBucket"] == LOGS
    rules = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert all(set(rule.get("Expiration", {})) <= {"ExpiredObjectDeleteMarker"} for rule in rules)
    (moving,) = [rule for rule in rules if "Transitions" in rule]
    assert moving["Filter"]["And"]["Tags"] == [{"Key": "tiered", "Value": "segment"}]
    kms = boto3.client("kms", endpoint_url=aws)
    key = rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    assert kms.get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]
    objects = s3.list_objects_v2(Bucket=name)["Contents"]
    data = [item["Key"] for item in objects if "/data/" in item["Key"]]
    assert data
    for item in objects:
        tags = s3.get_object_tagging(Bucket=name, Key=item["Key"])["TagSet"]
        assert tags == ([{"Key": "tiered", "Value": "segment"}] if item["Key"] in data else [])
        assert s3.head_object(Bucket=name, Key=item["Key"])["SSEKMSKeyId"] == key
    roles = applied["production"]["role_arns"]
    assert roles == {role: f"arn:aws:iam::{ACCOUNT}:role/{name}-{role}" for role in roles}
    assert set(roles) == {"writer", "reader", "restore"}


def test_the_tests_of_the_module_pass(module_tests: subprocess.Popen[str]) -> None:
    """On a mocked provider: what each variable changes, and what each validation refuses."""
    printed = finished(module_tests)
    assert "0 failed" in printed
    assert printed.count("... pass") >= 15
