"""`/openapi.json` says what the routes take."""

from __future__ import annotations

import pytest

from support.http_app import serving
from unit.entrypoints.test_native_api import run


def description():
    async def call():
        async with serving() as (client, _, _):
            return (await client.get("/openapi.json")).json()

    return run(call())


def test_every_post_route_describes_its_body_and_its_errors():
    described = description()
    schemas = described["components"]["schemas"]
    for path, operations in described["paths"].items():
        if path == "/flush_cache" or "post" not in operations:
            continue
        content = operations["post"]["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].rsplit("/", 1)[1]
        assert schemas[name]["properties"] and content["examples"]
        assert "400" in operations["post"]["responses"]


def test_bounds_are_those_that_are_checked():
    schemas = description()["components"]["schemas"]
    numbers = schemas["ChatCompletionRequest"]["properties"]["top_logprobs"]["anyOf"]
    assert {"type": "integer", "minimum": 0, "maximum": 20} in numbers


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_examples_are_accepted(path):
    async def call():
        async with serving() as (client, _, _):
            described = (await client.get("/openapi.json")).json()
            content = described["paths"][path]["post"]["requestBody"]["content"]
            for example in content["application/json"]["examples"].values():
                assert (await client.post(path, json=example["value"])).status_code == 200

    run(call())
