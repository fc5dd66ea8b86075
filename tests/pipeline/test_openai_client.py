"""The official openai client against the real server."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

MODEL = "SmolLM2-135M-Instruct"
FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
STORY: Any = [{"role": "user", "content": "Tell me a story about a fox and a river."}]
COUNT: Any = [{"role": "user", "content": "Count: one, two, three, one, two, three, one, two, three."}]


def say(client: OpenAI, messages: Any = STORY, **extra: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 24} | extra)


def text_of(reply: Any) -> str:
    return str(reply.choices[0].message.content)


def stream_of(client: OpenAI, messages: Any = STORY, **extra: Any) -> list[Any]:
    return list(say(client, messages, stream=True, **extra))


def joined(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join(choice.delta.content or "" for choice in choices if choice.index == index)


def test_the_capital_of_france_is_paris(client: OpenAI) -> None:
    reply = say(client, FRANCE, temperature=0)
    assert "Paris" in text_of(reply)
    assert reply.model == MODEL
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("extra", [{"temperature": 0}, {"temperature": 1.2, "seed": 11}, {"seed": 5, "top_p": 0.9}])
def test_streamed_text_is_the_whole_text(client: OpenAI, extra: dict[str, Any]) -> None:
    whole = say(client, **extra)
    chunks = stream_of(client, stream_options={"include_usage": True}, **extra)
    assert joined(chunks) == text_of(whole)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_without_include_usage_has_none(client: OpenAI) -> None:
    assert all(chunk.usage is None and chunk.choices for chunk in stream_of(client, FRANCE, max_tokens=3))


def test_completions_whole_and_streamed(client: OpenAI) -> None:
    ask: Any = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**ask)
    assert "Paris" in whole.choices[0].text
    assert whole.object == "text_completion"
    chunks = list(client.completions.create(**ask, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    echoed = client.completions.create(**ask, echo=True)
    assert echoed.choices[0].text == ask["prompt"] + whole.choices[0].text


def test_completions_of_several_prompts_and_of_token_ids(client: OpenAI) -> None:
    prompts = ["The capital of France is", "Two and two make"]
    ask: Any = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    together = client.completions.create(prompt=prompts, **ask)
    alone = [client.completions.create(prompt=prompt, **ask).choices[0].text for prompt in prompts]
    assert [choice.text for choice in together.choices] == alone
    ids = client.post("/../tokenize", body={"prompt": prompts[0]}, cast_to=object)
    assert client.completions.create(prompt=ids["tokens"], **ask).choices[0].text == alone[0]  # type: ignore[index]


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("another")


def test_the_model_answers_to_default(client: OpenAI) -> None:
    assert say(client, model="default", max_tokens=1).model == MODEL


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        say(client, model="gpt-4o")
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"max_tokens": 100_000}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_a_bad_request_names_the_field(client: OpenAI, extra: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        say(client, **extra)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_n_choices_differ_and_the_first_is_that_of_one(client: OpenAI) -> None:
    many = say(client, n=3, seed=7, temperature=1.0)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in many.choices}) == 3
    assert text_of(many) == text_of(say(client, seed=7, temperature=1.0))
    chunks = stream_of(client, n=3, seed=7, temperature=1.0)
    assert [joined(chunks, i) for i in range(3)] == [choice.message.content for choice in many.choices]


def test_logprobs_of_every_token_with_alternatives(client: OpenAI) -> None:
    reply = say(client, FRANCE, temperature=0, logprobs=True, top_logprobs=4)
    entries = reply.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text_of(reply)
    for entry in entries:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
    bare = say(client, FRANCE, temperature=0, logprobs=True)
    assert [entry.logprob for entry in bare.choices[0].logprobs.content] == [entry.logprob for entry in entries]
    assert say(client, max_tokens=1).choices[0].logprobs is None


@pytest.mark.parametrize("draft", [True, False])
def test_a_stop_string_ends_the_text_and_is_not_in_it(client: OpenAI, draft: bool) -> None:
    full = text_of(say(client, temperature=0))
    for stop in (full[10:14], full[7:9], "never in here"):
        reply = say(client, temperature=0, stop=[stop, "\x00"], extra_body={"draft": draft})
        assert text_of(reply) == full.partition(stop)[0]
        assert reply.choices[0].finish_reason == ("stop" if stop in full else "length")
        chunks = stream_of(client, temperature=0, stop=stop, extra_body={"draft": draft})
        assert joined(chunks) == full.partition(stop)[0]


def test_a_seed_gives_the_same_text_alone_and_in_company(client: OpenAI) -> None:
    def mate(i: int) -> str:
        return text_of(say(client, COUNT if i % 2 else STORY, seed=1 if i == 3 else 100 + i, temperature=1.3))

    alone = text_of(say(client, COUNT, seed=1, temperature=1.3))
    assert text_of(say(client, COUNT, seed=1, temperature=1.3)) == alone
    assert text_of(say(client, COUNT, seed=2, temperature=1.3)) != alone
    with ThreadPoolExecutor(6) as threads:
        texts = list(threads.map(mate, range(6)))
    assert texts[3] == alone


def test_no_seed_gives_another_text_each_time(client: OpenAI) -> None:
    assert len({text_of(say(client, temperature=1.5)) for _ in range(3)}) > 1


def test_logit_bias_forces_and_forbids(client: OpenAI) -> None:
    token = client.post("/../tokenize", body={"prompt": " fox"}, cast_to=object)["tokens"][0]  # type: ignore[index]
    forced = say(client, temperature=0, max_tokens=5, logit_bias={str(token): 100})
    assert text_of(forced) == " fox" * 5
    assert "fox" in text_of(say(client, temperature=0))
    assert " fox" not in text_of(say(client, temperature=0, logit_bias={str(token): -100}))


def test_max_completion_tokens_is_exact(client: OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=STORY, max_completion_tokens=7)
    assert reply.usage is not None
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (7, "length")


@pytest.mark.parametrize("extra", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}])
def test_drafting_changes_speed_and_nothing_else(client: OpenAI, extra: dict[str, Any]) -> None:
    drafted = say(client, COUNT, max_tokens=48, **extra)
    serial = say(client, COUNT, max_tokens=48, extra_body={"draft": False}, **extra)
    assert text_of(drafted) == text_of(serial)
    assert serial.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert drafted.usage.completion_tokens == serial.usage.completion_tokens


def test_content_parts_read_as_text(client: OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": FRANCE[0]["content"]}]}]
    assert text_of(say(client, parts, temperature=0)) == text_of(say(client, FRANCE, temperature=0))
