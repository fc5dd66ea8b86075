import pytest
from glmserve.server.openai.generate import choice_seed

from .conftest import Live, error
from .fake_engine import FakeEngine

USAGE = {
    "prompt_tokens": len("[user]hi[assistant]"),
    "completion_tokens": 7,
    "total_tokens": len("[user]hi[assistant]") + 7,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 3,
    },
}


def test_a_reply_has_openais_shape(live):
    reply = live.chat().json()
    assert set(reply) == {"id", "object", "created", "model", "choices", "usage"}
    assert (reply["object"], reply["model"], reply["usage"]) == ("chat.completion", "org/fake", USAGE)
    assert reply["id"].startswith("chatcmpl-")
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello!",
                "refusal": None,
                "reasoning_content": None,
                "tool_calls": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


@pytest.mark.parametrize("wants_usage", [True, False])
def test_a_stream_is_role_text_reason_and_usage_if_asked_for(live, wants_usage):
    chunks = live.stream(stream_options={"include_usage": wants_usage})
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    if wants_usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], USAGE)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    texts = [choice["delta"] for choice in choices[1:-1]]
    assert all(set(delta) == {"content"} and delta["content"] for delta in texts)
    assert "".join(delta["content"] for delta in texts) == "Hello!"


@pytest.mark.parametrize("step", [1, 3, 64])
def test_characters_are_never_cut_and_stops_never_leak(start, step):
    live = start(FakeEngine("Grüße 👋🏽 an alle|ENDE und mehr", step=step))
    for stop in (None, "|ENDE", ["nie", "👋🏽"]):
        whole = live.chat(stop=stop).json()["choices"][0]
        parts = [choice for chunk in live.stream(stop=stop) for choice in chunk["choices"]]
        assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
        assert parts[-1]["finish_reason"] == whole["finish_reason"] == "stop"
        assert all(part["delta"] == {} or part["finish_reason"] is None for part in parts)
    assert live.chat(stop="|ENDE").json()["choices"][0]["message"]["content"] == "Grüße 👋🏽 an alle"


def test_messages_in_every_form_reach_the_template(live):
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "c", "name": "Ann"},
    ]
    assert live.chat(messages=messages).status_code == 200
    assert bytes(live.engine.requests[-1].prompt) == b"[system]be kind[user]a\nb[assistant][user]c[assistant]"


def test_n_choices_have_seeds_of_their_own(live):
    reply = live.chat(n=3, seed=-5).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["prompt_tokens"] == USAGE["prompt_tokens"]
    assert reply["usage"]["completion_tokens"] == 21
    seeds = [request.sampling.seed for request in live.engine.requests[-3:]]
    assert seeds == [choice_seed(2**64 - 5, i) for i in range(3)]
    assert seeds[0] == 2**64 - 5
    assert len(set(seeds)) == 3
    chunks = live.stream(n=3)
    for index in range(3):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Hello!"
        assert [choice["finish_reason"] for choice in mine].count("stop") == 1


def test_logprobs_are_finite_json_also_in_a_stream(live):
    def check(content):
        assert [entry["token"] for entry in content] == list("Hello!")
        assert content[0]["bytes"] == [72]
        assert content[0]["logprob"] == -9999.0
        assert len(content[0]["top_logprobs"]) == 2

    check(live.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"])
    chunks = live.stream(logprobs=True, top_logprobs=2)
    scores = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    check([entry for score in scores if score for entry in score["content"]])
    assert live.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_parameters_reach_the_engine(live):
    live.chat(
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        seed=7,
        logit_bias={"65": -100, "66": 1.5},
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        stop_token_ids=[33],
        ignore_eos=True,
        min_tokens=2,
        max_completion_tokens=20,
        draft=False,
    )
    request = live.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 0, 0.9, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    assert (sampling.seed, sampling.logit_bias) == (7, {65: -100, 66: 1.5})
    assert (request.stop_ids, request.ignore_eos, request.min_tokens, request.draft) == ({33}, True, 2, False)
    assert request.max_tokens == 20


def test_defaults_and_nulls_are_the_same(live):
    nulls = dict.fromkeys(("temperature", "stop", "n", "seed", "max_tokens", "logit_bias", "tools", "stream"))
    for body in ({}, nulls):
        assert live.chat(**body).status_code == 200
        request = live.engine.requests[-1]
        assert (request.sampling.temperature, request.draft, request.logprobs) == (1.0, True, None)
        assert request.max_tokens == live.engine.max_context - len(request.prompt)


def test_max_tokens_is_kept_or_refused_never_cut(live):
    window = live.engine.max_context - USAGE["prompt_tokens"]
    assert live.chat(max_tokens=window).status_code == 200
    refusal = error(live.chat(max_tokens=window + 1), 400)
    assert (refusal["code"], refusal["param"]) == ("context_length_exceeded", "messages")
    assert refusal["message"].startswith("This model's maximum context length is 512 tokens.")
    assert error(live.chat(max_tokens=10**30), 400)["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "x" * 600}]
    assert error(live.chat(messages=long), 400)["code"] == "context_length_exceeded"
    assert live.chat(max_tokens=2).json()["choices"][0]["finish_reason"] == "length"
    assert live.chat(max_tokens=2, max_completion_tokens=2).status_code == 200
    assert error(live.chat(max_tokens=2, max_completion_tokens=3), 400)["param"] == "max_completion_tokens"


def test_the_model_answers_to_its_name_and_to_default(live: Live):
    for name in ("org/fake", "default"):
        assert live.chat(model=name).json()["model"] == "org/fake"
        assert live.client.get(f"/v1/models/{name}").json()["id"] == "org/fake"
    assert error(live.chat(model="other"), 404)["code"] == "model_not_found"
    assert error(live.client.get("/v1/models/org/other"), 404)["param"] == "model"
    models = live.client.get("/v1/models").json()
    assert [card["id"] for card in models["data"]] == ["org/fake"]


def test_a_template_that_refuses_is_a_400(live):
    refusal = error(live.chat(messages=[{"role": "user", "content": "refuse"}]), 400)
    assert refusal["code"] == "chat_template_error"
    assert "no refuse" in refusal["message"]
