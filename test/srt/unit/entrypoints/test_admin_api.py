"""Health, information, keys, metrics, and what happens when a stage dies."""

from __future__ import annotations

import asyncio

import pytest

from sglang.srt.entrypoints.runtime import stage_table
from sglang.srt.managers.io_struct import SchedulerStats
from support.fake_scheduler import FakeScheduler
from support.http_app import serving
from unit.entrypoints.test_native_api import run


def get(path: str, headers: dict | None = None, **options):
    async def call():
        async with serving(**options) as (client, _, _):
            return await client.get(path, headers=headers)

    return run(call())


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_of_a_ready_server(path):
    assert get(path).status_code == 200


def test_health_is_503_while_starting():
    async def call():
        async with serving() as (client, runtime, _):
            runtime.state = "starting"
            assert (await client.get("/health")).status_code == 503
            runtime.state = "ready"

    run(call())


def test_dead_stage_answers_running_requests_and_health_is_503():
    async def call():
        scheduler = FakeScheduler(token_delay=0.01)
        async with serving(scheduler=scheduler) as (client, runtime, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
            call = asyncio.create_task(client.post("/generate", json=body))
            await asyncio.sleep(0.2)
            scheduler.die()
            response = await asyncio.wait_for(call, 5)
            assert response.status_code == 500
            assert "stage 0" in response.json()["error"]["message"]
            assert "stage 0" in await runtime.wait_failed()
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/health_generate")).status_code == 503
            assert (await client.post("/generate", json=body)).status_code == 503

    run(call())


def test_silent_scheduler_fails_the_server():
    async def call():
        async with serving(watchdog_timeout=0.5) as (client, runtime, scheduler):
            scheduler._stop.set()
            reason = await asyncio.wait_for(runtime.wait_failed(), 5)
            assert "no sign of life" in reason
            assert (await client.get("/health")).status_code == 503

    run(call())


def test_server_info_shows_arguments_but_no_keys():
    headers = {"Authorization": "Bearer key-one"}
    response = get("/server_info", headers, api_key="key-one", admin_api_key="key-two")
    assert response.status_code == 200
    assert response.json()["pp_size"] == 1
    assert response.json()["stages"][0]["pp_rank"] == 0
    assert response.json()["internal_states"][0]["num_live"] == 0
    assert "key-" not in response.text and "api_key" not in response.text


def test_model_info_and_models():
    assert get("/get_model_info").json()["is_generation"] is True
    models = get("/v1/models").json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "fake"
    assert models["data"][0]["max_model_len"] == 512
    assert get("/v1/models/other").status_code == 404


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/health", None, 200),
        ("/get_load", None, 401),
        ("/get_load", "user", 200),
        ("/get_load", "admin", 200),
        ("/get_load", "nobody", 401),
        ("/v1/models", None, 401),
        ("/metrics", None, 401),
        ("/openapi.json", None, 401),
        ("/flush_cache", "user", 401),
        ("/flush_cache", "admin", 200),
        ("/cache_report", "admin", 200),
    ],
)
def test_keys(path, token, status):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = get(path, headers, api_key="user", admin_api_key="admin")
    assert response.status_code == status
    if path.startswith("/v1") and status == 401:
        assert response.json()["error"]["type"] == "authentication_error"


def test_every_route_but_health_asks_for_the_key():
    async def call():
        async with serving(api_key="secret") as (client, _, _):
            open_routes = []
            for route in client._transport.app.routes:
                for method in route.methods:
                    path = route.path.replace("{name:path}", "fake")
                    response = await client.request(method, path)
                    if response.status_code != 401:
                        open_routes.append(path)
            return len(client._transport.app.routes), set(open_routes)

    num_routes, open_routes = run(call())
    assert num_routes > 15 and open_routes == {"/health"}


def test_no_other_origin_is_let_in():
    """CORS is off: a browser keeps pages of other origins from reading answers."""

    async def call():
        async with serving() as (client, _, _):
            headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
            preflight = await client.options("/v1/chat/completions", headers=headers)
            plain = await client.get("/v1/models", headers=headers)
            return preflight, plain

    preflight, plain = run(call())
    assert preflight.status_code == 405
    for response in (preflight, plain):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_origin_that_was_named_is_let_in_and_no_other():
    async def call():
        flags = {"cors_allow_origins": "http://a.example, http://b.example", "api_key": "k"}
        async with serving(**flags) as (client, _, _):
            answers = []
            for origin in ("http://b.example", "http://evil.example"):
                headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
                answers.append(await client.options("/v1/chat/completions", headers=headers))
            return answers

    named, other = run(call())
    assert named.status_code == 200
    assert named.headers["access-control-allow-origin"] == "http://b.example"
    assert "access-control-allow-origin" not in other.headers


def test_flush_cache_while_busy_is_400_with_the_reason():
    async def call():
        async with serving(scheduler=FakeScheduler(token_delay=0.01)) as (client, _, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
            call = asyncio.create_task(client.post("/generate", json=body))
            await asyncio.sleep(0.2)
            response = await client.post("/flush_cache")
            assert response.status_code == 400 and "running" in response.text
            await client.post("/abort_request", json={"abort_all": True})
            await call
            assert (await client.post("/flush_cache")).status_code == 200

    run(call())


def test_metrics_have_sglangs_names():
    async def call():
        async with serving() as (client, _, _):
            params = {"max_new_tokens": 5}
            await client.post("/generate", json={"text": "ab", "sampling_params": params})
            await asyncio.sleep(0.3)
            return (await client.get("/metrics")).text

    text = run(call())
    for name in (
        'sglang:num_running_reqs{model_name="fake"}',
        "sglang:token_usage",
        "sglang:time_to_first_token_seconds_bucket",
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_per_output_token_seconds_count",
        "sglang:num_retractions_total",
    ):
        assert name in text
    assert 'sglang:generation_tokens_total{model_name="fake"} 13.0' in text  # 8 of the warm-up


def test_gauge_of_each_stage_is_one_metric_with_a_label():
    async def call():
        async with serving() as (client, runtime, _):
            gauges = {"bubble_fraction_stage_0": 0.25, "bubble_fraction_stage_1": 0.5}
            runtime.manager.stats = SchedulerStats(gauges, {})
            return (await client.get("/metrics")).text

    text = run(call())
    assert text.count("# TYPE sglang:bubble_fraction gauge") == 1
    assert 'sglang:bubble_fraction{model_name="fake",pp_rank="1"} 0.5' in text


def test_load_counts_requests():
    async def call():
        async with serving() as (client, runtime, _):
            gauges = {"num_running_reqs": 3, "num_queue_reqs": 2, "num_used_tokens": 70}
            runtime.manager.stats = SchedulerStats(gauges, {})
            return (await client.get("/get_load")).json()

    assert run(call()) == [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 70}]


def test_tokenize_and_detokenize_are_inverse():
    async def call():
        async with serving() as (client, _, _):
            reply = (await client.post("/tokenize", json={"prompt": "é🙂"})).json()
            assert reply["count"] == len(reply["tokens"]) == 6
            text = await client.post("/detokenize", json={"tokens": reply["tokens"]})
            assert text.json()["text"] == "é🙂"
            assert (await client.post("/detokenize", json={"tokens": [-1]})).status_code == 400
            assert (await client.post("/tokenize", json={"prompt": 1})).status_code == 400

    run(call())


def test_stage_table_has_one_row_a_stage():
    table = stage_table({1: {"pp_rank": 1, "layers": [2, 4]}, 0: {"pp_rank": 0, "layers": [0, 2]}})
    assert [line.split()[0] for line in table.splitlines()] == ["stage", "0", "1"]
