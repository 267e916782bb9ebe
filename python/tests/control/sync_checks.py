# SPDX-License-Identifier: Apache-2.0
"""What tests of the control plane ask of its reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import QUICK

from sparsecast.control import ControlPlane, EndpointReport, SyncError, SyncReport


def entry(plane: ControlPlane, name: str) -> dict[str, object]:
    return next(each for each in plane.endpoints() if each["name"] == name)


def of(report: SyncReport | None, name: str) -> EndpointReport:
    assert report is not None
    return next(each for each in report.endpoints if each.name == name)


def failed_sync(plane: ControlPlane, **policy: object) -> SyncError:
    with pytest.raises(SyncError) as caught:
        plane.sync_now(replace(QUICK, **policy))
    assert caught.value.report is not None and caught.value.report.result == "failed"
    return caught.value
