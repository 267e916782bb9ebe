# SPDX-License-Identifier: Apache-2.0
"""A store that takes connections and says nothing is given up within the timeout of the log."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator

import pytest
import torch

import sparsecast.torch as st
from sparsecast.errors import Error

TIMEOUT = 1.0


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield


@pytest.mark.usefixtures("silent_store")
@pytest.mark.parametrize("end", ["publisher", "subscriber"])
def test_a_silent_store_is_given_up_within_the_timeout(end: str, tmp_path: pathlib.Path) -> None:
    weight = torch.zeros(4)
    log = st.Log("s3://bucket/run", mirror=tmp_path / "m.safetensors", state=tmp_path / "state", timeout=TIMEOUT)
    with pytest.raises(Error, match=r"s3://bucket/run/.*timed out after \d{3,4} milliseconds"):
        if end == "publisher":
            st.Publisher([("w", weight)], transport=log)
        else:
            st.Subscriber([("w", weight)], transport=log).update()
