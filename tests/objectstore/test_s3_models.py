"""Descriptions of services, found and read as botocore itself does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from botocore.exceptions import DataNotFoundError, UnknownServiceError
from botocore.loaders import Loader

from app.objectstore.s3_models import ServiceModels


@pytest.mark.parametrize("service", ["s3", "sts", "sso"])
@pytest.mark.parametrize("kind", ["service-2", "endpoint-rule-set-1", "paginators-1"])
def test_models_are_those_that_botocore_reads(service, kind):
    found, expected = ServiceModels(None), Loader()
    assert found.load_service_model(service, kind) == expected.load_service_model(service, kind)
    assert found.load_data("endpoints") == expected.load_data("endpoints")


def test_a_folder_of_ones_own_comes_first(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OWN_MODELS", str(tmp_path / "own"))
    model = tmp_path / "own" / "s3" / "2006-03-01" / "service-2.json"
    model.parent.mkdir(parents=True)
    model.write_text(json.dumps({"metadata": {"mine": True}}))
    models = ServiceModels(f"/nowhere{os.pathsep}$OWN_MODELS")
    assert models.load_service_model("s3", "service-2")["metadata"] == {"mine": True}


def test_what_there_is_not_is_refused():
    models = ServiceModels(None)
    with pytest.raises(UnknownServiceError):
        models.load_service_model("no-service", "service-2")
    with pytest.raises(DataNotFoundError):
        models.load_data("s3/nothing")
