"""SGLang's native API over the fake scheduler, which answers with the prompt's own tokens."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from support.fake_scheduler import FakeScheduler
from support.http_app import events, serving

JSON = {"Content-Type": "application/json"}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def post(path: str, body: dict, **options):
    async def call():
        async with serving(**options) as (client, _, _):
            return await client.post(path, json=body)

    return run(call())


def test_generate_answers_in_sglangs_json():
    body = {"text": "héllo", "sampling_params": {"max_new_tokens": 6, "temperature": 0}}
    response = post("/generate", body)
    answer = response.json()
    assert response.status_code == 200
    assert answer["text"] == "héllo"
    assert len(answer["output_ids"]) == 6
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (6, 6, 0)
    assert meta["id"] and meta["e2e_latency"] > 0


@pytest.mark.parametrize("tokens_per_message", [1, 3, 50])
@pytest.mark.parametrize("interval", [1, 4])
def test_stream_ends_with_the_unstreamed_text(tokens_per_message, interval):
    body = {"text": "é🙂 stop語 END x", "sampling_params": {"max_new_tokens": 40, "stop": ["END"]}}

    def answer(extra):
        scheduler = FakeScheduler(tokens_per_message=tokens_per_message)
        return post("/generate", {**body, **extra}, scheduler=scheduler, stream_interval=interval)

    whole = answer({}).json()
    payloads = events(answer({"stream": True}))
    assert payloads[-1] == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    assert chunks[-1]["text"] == whole["text"] == "é🙂 stop語 "
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    for before, after in itertools.pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert "\ufffd" not in after["text"]


def test_stop_string_frees_the_scheduler_and_counts_up_to_its_token():
    async def call():
        scheduler = FakeScheduler(token_delay=0.002)
        async with serving(scheduler=scheduler) as (client, _, _):
            params = {"max_new_tokens": 400, "stop": "c"}
            response = await client.post(
                "/generate", json={"text": "abcd", "sampling_params": params}
            )
            await asyncio.sleep(0.1)
            assert scheduler.num_live == 0
            return response.json()

    answer = run(call())
    assert answer["text"] == "ab"
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 3


def test_stop_token_is_not_part_of_the_text():
    params = {"stop_token_ids": [66], "max_new_tokens": 9}
    answer = post("/generate", {"input_ids": [65, 66, 67], "sampling_params": params}).json()
    assert answer["output_ids"] == [65, 66]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 66}
    assert len(answer["text"]) == 1


def test_default_length_is_128_and_shrinks_to_what_fits():
    assert len(post("/generate", {"text": "ab"}).json()["output_ids"]) == 128
    scheduler = FakeScheduler(max_req_len=20)
    assert len(post("/generate", {"text": "ab"}, scheduler=scheduler).json()["output_ids"]) == 18


def test_logprobs_have_one_row_a_token():
    body = {
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": 4},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    meta = post("/generate", body).json()["meta_info"]
    assert [row[:2] for row in meta["output_token_logprobs"]] == [[-0.25, t] for t in (1, 2, 3, 1)]
    assert [len(row) for row in meta["output_top_logprobs"]] == [2] * 4
    assert meta["input_token_logprobs"][0][:2] == [None, 1]
    assert len(meta["input_token_logprobs"]) == 3


def test_batch_with_n_gives_each_output():
    body = {"text": ["ab", "cd"], "sampling_params": {"n": 2, "max_new_tokens": 2}}
    assert [answer["text"] for answer in post("/generate", body).json()] == ["ab", "ab", "cd", "cd"]


def test_batch_stream_names_the_index():
    body = {"text": ["ab", "cd"], "sampling_params": {"max_new_tokens": 2}, "stream": True}
    last = {}
    for payload in events(post("/generate", body))[:-1]:
        chunk = json.loads(payload)
        last[chunk["index"]] = chunk["text"]
    assert last == {0: "ab", 1: "cd"}


BAD = [
    ({}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"text": ""}, "empty"),
    ({"input_ids": []}, "empty"),
    ({"text": 5}, "text"),
    ({"text": "\ud800"}, "JSON"),
    ({"input_ids": [-1]}, "input_ids"),
    ({"input_ids": [10**6]}, "input_ids"),
    ({"input_ids": [10**30]}, "input_ids"),
    ({"input_ids": ["1"]}, "input_ids"),
    ({"text": "a", "nonsense": 1}, "nonsense"),
    ({"text": "a", "image_data": "x"}, "image_data"),
    ({"text": "a", "lora_path": "x"}, "lora_path"),
    ({"text": "a" * 600}, "600"),
    ({"text": "a" * 10**6}, "1000000"),
    ({"text": "a", "top_logprobs_num": 10**6, "return_logprob": True}, "top_logprobs_num"),
    ({"text": "a", "logprob_start_len": 9, "return_logprob": True}, "logprob_start_len"),
    ({"text": "a", "token_ids_logprob": [-4], "return_logprob": True}, "token_ids_logprob"),
    ({"text": ["a"] * 2000}, "batch"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": "a", "rid": ""}, "rid"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
]
BAD_PARAMS = [
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"max_new_tokens": 512}, "at most 512"),
    ({"max_new_tokens": "5"}, "max_new_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e400}, "JSON"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_new_tokens": 9, "max_new_tokens": 2}, "min_new_tokens"),
    ({"n": 5_000_000}, "n must"),
    ({"n": 0}, "n must"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 100}, "stop"),
    ({"json_schema": "{}", "regex": "a"}, "only one"),
    ({"json_schema": 5}, "json_schema"),
    ({"structural_tag": "a"}, "structural_tag"),
    ({"tempereture": 1}, "tempereture"),
    ({"sampling_seed": 2**70}, "sampling_seed"),
]


def test_bad_input_is_400_with_its_name_and_the_next_request_is_served():
    async def call():
        async with serving() as (client, _, scheduler):
            cases = BAD + [({"text": "a", "sampling_params": p}, word) for p, word in BAD_PARAMS]
            for body, word in cases:
                content = json.dumps(body).replace("Infinity", "1e400")
                response = await client.post("/generate", headers=JSON, content=content)
                assert response.status_code == 400, (body, response.text)
                assert word in response.json()["error"]["message"], (body, response.text)
            assert not scheduler.received or all(
                type(m).__name__ == "ControlReq" or m.rid for m in scheduler.received[2:]
            )
            good = await client.post(
                "/generate", json={"text": "ok", "sampling_params": {"max_new_tokens": 2}}
            )
            assert good.json()["text"] == "ok"

    run(call())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"text":' + b"[" * 5000])
def test_malformed_body_is_400(content):
    async def call():
        async with serving() as (client, _, _):
            return await client.post("/generate", headers=JSON, content=content)

    assert run(call()).status_code == 400


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "?"])
def test_body_of_another_content_type_is_415(kind):
    """A page in a browser can post these to a server on its own machine without asking first."""

    async def call():
        async with serving() as (client, _, _):
            headers = {} if kind is None else {"Content-Type": kind}
            return await client.post("/generate", headers=headers, content=b'{"text": "a"}')

    response = run(call())
    assert response.status_code == 415 and "application/json" in response.text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_400(number):
    async def call():
        async with serving() as (client, _, _):
            body = f'{{"text": "a", "sampling_params": {{"temperature": {number}}}}}'
            return await client.post("/generate", headers=JSON, content=body)

    assert run(call()).status_code == 400


def test_deep_nesting_and_long_body_are_refused():
    async def call():
        async with serving() as (client, _, _):
            deep = b'{"text":' + b"[" * 100 + b"]" * 100 + b"}"
            assert (await client.post("/generate", headers=JSON, content=deep)).status_code == 400
            long = b" " * (33 << 20)
            assert (await client.post("/generate", headers=JSON, content=long)).status_code == 413

            async def chunks():
                for _ in range(40):
                    yield b" " * (1 << 20)

            assert (
                await client.post("/generate", headers=JSON, content=chunks())
            ).status_code == 413

    run(call())


def test_abort_by_rid_and_duplicate_rid():
    async def call():
        scheduler = FakeScheduler(token_delay=0.01)
        async with serving(scheduler=scheduler) as (client, _, _):
            body = {"text": "abc", "rid": "mine", "sampling_params": {"max_new_tokens": 500}}
            first = asyncio.create_task(client.post("/generate", json=body))
            await asyncio.sleep(0.2)
            again = await client.post("/generate", json=body)
            assert again.status_code == 400 and "mine" in again.json()["error"]["message"]
            assert (await client.post("/abort_request", json={"rid": "mine"})).status_code == 200
            answer = (await first).json()
            assert answer["meta_info"]["finish_reason"]["type"] == "abort"
            assert answer["meta_info"]["id"] == "mine"
            assert scheduler.num_live == 0
            assert (await client.post("/abort_request", json={"rid": "other"})).status_code == 200

    run(call())


def test_abort_all_ends_every_request():
    async def call():
        async with serving(scheduler=FakeScheduler(token_delay=0.01)) as (client, _, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
            calls = [asyncio.create_task(client.post("/generate", json=body)) for _ in range(3)]
            await asyncio.sleep(0.2)
            await client.post("/abort_request", json={"abort_all": True})
            for response in await asyncio.gather(*calls):
                assert response.json()["meta_info"]["finish_reason"]["type"] == "abort"

    run(call())


def test_full_queue_is_503_with_retry_after_streamed_or_not():
    async def call():
        scheduler = FakeScheduler(token_delay=0.01, max_queued=0)
        async with serving(scheduler=scheduler) as (client, _, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 300}}
            first = asyncio.create_task(client.post("/generate", json=body))
            await asyncio.sleep(0.2)
            for extra in ({}, {"stream": True}):
                response = await client.post("/generate", json={**body, **extra})
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) >= 1
            await client.post("/abort_request", json={"abort_all": True})
            await first

    run(call())


def test_client_that_goes_away_is_aborted():
    async def call():
        scheduler = FakeScheduler(token_delay=0.01)
        async with serving(scheduler=scheduler) as (client, runtime, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
            task = asyncio.create_task(client.post("/generate", json=body))
            await asyncio.sleep(0.2)
            assert scheduler.num_live == 1
            task.cancel()
            await asyncio.sleep(0.3)
            assert scheduler.num_live == runtime.manager.num_live == 0

    run(call())


def test_request_time_out_is_504_and_frees_the_scheduler(monkeypatch):
    monkeypatch.setenv("SGLANG_REQ_RUNNING_TIMEOUT", "0.2")

    async def call():
        scheduler = FakeScheduler(token_delay=0.02)
        async with serving(scheduler=scheduler, skip_server_warmup=True) as (client, _, _):
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
            response = await client.post("/generate", json=body)
            await asyncio.sleep(0.1)
            assert (response.status_code, scheduler.num_live) == (504, 0)

    run(call())


def test_same_seed_is_kept_and_a_missing_one_is_drawn():
    async def call():
        async with serving() as (client, _, scheduler):
            params = {"max_new_tokens": 1, "n": 2}
            for extra in ({}, {"sampling_seed": 7}):
                body = {"text": "a", "sampling_params": {**params, **extra}}
                await client.post("/generate", json=body)
            sent = [
                m.sampling_params.sampling_seed
                for m in scheduler.received
                if hasattr(m, "input_ids")
            ]
            assert None not in sent
            assert sent[-2:] == [7, 8]
            assert sent[-3] != sent[-4]

    run(call())
