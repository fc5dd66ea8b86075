import pytest
from glmserve.api import RequestError
from glmserve.server.chat_template import ChatTemplate
from transformers.utils.chat_template_utils import render_jinja_template

from . import glm

MESSAGES = [
    {"role": "system", "content": 'Be <kind> & "short".'},
    {"role": "user", "content": " Grüße 👋 \n"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "more"},
]
TEMPLATES = [
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{{ bos_token }}\n{%- for m in messages %}\n    {% if loop.first %}{% continue %}{% endif %}\n"
    "    {{ m | tojson }}{{ m.content | trim }}\n  {# note #}\n{% endfor %}{{ eos_token }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% generation %}{{ ns.n }}"
    "{% endgeneration %}{% if ns.n == 3 %}{% break %}{% endif %}{% endfor %}{{ messages | tojson(indent=2) }}",
    "{% if tools is defined and tools %}T{% endif %}{{ strftime_now('%Y') }}{{ messages[1:] | length }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
def test_prompts_equal_those_of_transformers(source):
    expected, _ = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert ChatTemplate(source, "<s>", "</s>").render(MESSAGES) == expected[0]


@pytest.mark.parametrize("source", [*TEMPLATES, glm.TEMPLATE])
def test_prompts_with_tools_and_options_equal_those_of_transformers(source):
    tools = [{"type": "function", "function": {"strict": True, "name": "f", "description": "<ü>", "parameters": {}}}]
    options = {"reasoning_effort": "low", "clear_thinking": True}
    expected, _ = render_jinja_template(
        [MESSAGES],
        chat_template=source,
        tools=tools,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        **options,
    )
    assert ChatTemplate(source, "<s>", "</s>").render(MESSAGES, tools, options) == expected[0]


def test_a_template_tells_what_it_reads_and_which_words_it_knows():
    template = ChatTemplate(glm.TEMPLATE, "<s>", "</s>")
    assert template.variables == {"messages", "tools", "add_generation_prompt", "clear_thinking", "reasoning_effort"}
    assert {"low", "high", "Max"} <= template.words
    assert "low" not in ChatTemplate(glm.SWITCHED, None, None).words
    own = (
        "{% set x = 1 %}{{ x }}{{ raise_exception }}{{ y | default('z') }}{% for x in y %}{{ loop.index }}{% endfor %}"
    )
    assert ChatTemplate(own, None, None).variables == {"y"}
    assert ChatTemplate("{% if %}", None, None).variables == set()


def test_options_cannot_take_the_place_of_messages():
    with pytest.raises(RequestError):
        ChatTemplate("{{ messages }}", None, None).render(MESSAGES, (), {"messages": []})


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ messages[9].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% if %}",
    ],
)
def test_a_template_that_fails_refuses_the_request(source):
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source, None, None).render(MESSAGES)
    assert caught.value.http_status == 400


def test_a_model_without_a_template_points_to_completions():
    with pytest.raises(RequestError, match="/v1/completions"):
        ChatTemplate(None, None, None).render(MESSAGES)
