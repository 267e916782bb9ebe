# SPDX-License-Identifier: Apache-2.0
"""The registry: one spelling for a host, one entry an address, ranks that everybody computes alike."""

from __future__ import annotations

import itertools
import threading

import pytest

from sparsecast.control import ConflictError, Endpoint, UnknownEndpointError
from sparsecast.control.endpoints import Registry, normalise_host, place
from sparsecast.errors import UsageError


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("GPU-7.Cluster.Local", "gpu-7.cluster.local"),
        ("gpu-7.cluster.local.", "gpu-7.cluster.local"),
        (" gpu-7 ", "gpu-7"),
        ("localhost", "127.0.0.1"),
        ("LOCALHOST.", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("2001:db8::0001", "2001:db8::1"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("node_3", "node_3"),
    ],
)
def test_a_host_has_one_spelling(given: str, plain: str) -> None:
    assert normalise_host(given) == plain
    assert normalise_host(plain) == plain


@pytest.mark.parametrize(
    "host",
    ["", ".", "a..b", "http://a", "a/b", "user@a", "a:80", "[10.0.0.7]", "[::1", "10.0.0.256", "127.1", "2130706433",
     "0x7f.1.2.3.4", "010.0.0.1", "a b", "a\nb", "a#b", "a?b", "-a", "ä.example", "a" * 64, ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_what_is_neither_a_name_nor_an_address_is_refused_by_name(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalise_host(host)
    assert f"'{host}'" in str(caught.value)


def test_the_same_address_in_another_spelling_is_the_same_endpoint() -> None:
    registry = Registry()
    assert registry.add(Endpoint("localhost", 30000))
    assert not registry.add(Endpoint("127.0.0.1", 30000))
    assert registry.add(Endpoint("::1", 30000)) and registry.add(Endpoint("127.0.0.1", 30001))
    assert len(registry) == 3


@pytest.mark.parametrize(
    "changed",
    [{"world_size": 2}, {"kind": "vllm"}, {"scheme": "https"}, {"name": "b"}, {"options": {"proof": "trust"}}],
)
def test_another_engine_at_the_same_address_is_a_conflict_that_says_what_differs(changed: dict[str, object]) -> None:
    registry = Registry()
    registry.add(Endpoint("a", 1, name="a"))
    with pytest.raises(ConflictError, match=next(iter(changed))):
        registry.add(Endpoint("a", 1, **{"name": "a", **changed}))  # type: ignore[arg-type]


def test_a_name_stands_for_one_endpoint() -> None:
    registry = Registry()
    registry.add(Endpoint("a", 1, name="x"))
    with pytest.raises(ConflictError, match="'x' is taken by a:1"):
        registry.add(Endpoint("b", 1, name="x"))


def test_the_generation_changes_with_the_membership_and_with_nothing_else() -> None:
    registry = Registry()
    seen = [registry.generation]
    registry.add(Endpoint("a", 1))
    seen.append(registry.generation)
    registry.add(Endpoint("a", 1, token="abc"))
    assert registry.generation == seen[-1]
    registry.remove("a", 1)
    seen.append(registry.generation)
    registry.add(Endpoint("a", 1))
    seen.append(registry.generation)
    assert seen == sorted(set(seen))


def test_removing_an_unknown_endpoint_says_which_there_are() -> None:
    registry = Registry()
    registry.add(Endpoint("a", 1))
    with pytest.raises(UnknownEndpointError, match="no endpoint a:2; there are: a:1"):
        registry.remove("a", 2)
    with pytest.raises(UnknownEndpointError, match="no endpoint is named 'b'"):
        registry.find("b")


def test_ranks_do_not_depend_on_the_order_in_which_endpoints_came() -> None:
    endpoints = [Endpoint("b", 1, 4), Endpoint("a", 2, 2), Endpoint("a", 1, 8), Endpoint("::1", 9, 1)]
    wanted = None
    for order in itertools.permutations(endpoints):
        registry = Registry()
        for endpoint in order:
            registry.add(endpoint)
        placed = [(each.endpoint.address, each.rank_offset) for each in place(registry, 3)]
        wanted = wanted or placed
        assert placed == wanted
    assert wanted == [("[::1]:9", 3), ("a:1", 4), ("a:2", 12), ("b:1", 14)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"port": 0}, "port is 0"),
        ({"port": 65536}, "port is 65536"),
        ({"port": "80"}, "port is '80'"),
        ({"port": True}, "port is True"),
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 65537}, "world_size is 65537"),
        ({"kind": "tgi"}, "kind is 'tgi', not one of sglang, vllm"),
        ({"scheme": "ftp"}, "scheme is 'ftp'"),
        ({"name": "a b"}, "name 'a b'"),
        ({"token": "a\r\nX: y"}, "the token has"),
        ({"start_version": -1}, "start_version is -1"),
        ({"options": {"secret": "mine"}}, "options has 'secret'"),
    ],
)
def test_wrong_fields_of_an_endpoint_are_named(fields: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Endpoint(**{"host": "a", "port": 1, **fields})  # type: ignore[arg-type]


def test_a_token_is_not_shown() -> None:
    assert "hush" not in repr(Endpoint("a", 1, token="hush"))


def test_many_threads_may_change_the_membership_at_once() -> None:
    registry = Registry()

    def churn(number: int) -> None:
        for _ in range(50):
            registry.add(Endpoint("a", 1000 + number))
            registry.remove("a", 1000 + number)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry) == 0 and registry.generation == 8 * 50 * 2
