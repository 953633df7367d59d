"""What we render is what transformers renders, which is what the models were trained on."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from session.sampling.chat import ChatRefused, ChatTokenizer, NoChatTemplate, ToolsUnknown
from support.tiny import tiny_model

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "Ünd wärum? 🗼"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <now> & here",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
CALL: list[dict[str, Any]] = [
    *TALK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"town": "Köln"}}}
        ],
    },
    {"role": "tool", "content": "rain", "name": "weather"},
]

TEMPLATES = {
    "a default system turn": """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou help.' + eos_token + '\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- bos_token + message.role + '\\n' + message.content | trim + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "tools, json and a namespace": """\
{%- set ns = namespace(system='', turns=0) -%}
{%- for message in messages if message.role == 'system' %}
  {%- set ns.system = message.content %}
{%- endfor %}
{{ ns.system }}
{%- if tools is not none %}
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{% endfor %}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'system' %}{% continue %}{% endif %}
  {%- set ns.turns = ns.turns + 1 %}
[{{ ns.turns }} {{ message.role }}] {{ message.content or '' }}
  {%- for call in message.tool_calls or [] %}
 -> {{ call.function.name }}({{ call.function.arguments | tojson }})
  {%- endfor %}
{%- endfor %}
{{ '[assistant]' if add_generation_prompt }}
""",
    "marked generations": """\
{% for message in messages %}
    {% if message['role'] == 'assistant' %}
assistant: {% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}

    {% else %}
{{ message['role'] }}: {{ message['content'] }}
    {% endif %}
{% endfor %}
{% if messages | length > 3 %}{{ messages[-1]['content'][:3] | upper }}{% endif %}
""",
    "today's year": "{{ strftime_now('%Y') }} {{ messages | map(attribute='role') | join(',') }}",
}


def _with_template(directory: Path, template: str) -> Path:
    (directory / "chat_template.jinja").write_text(template)
    return directory


def _theirs(directory: Path, messages: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "tiny")


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_template_renders_as_in_transformers(model: Path, template: str, prompt: bool) -> None:
    _with_template(model, template)
    ours = ChatTokenizer(model).render(TALK, add_generation_prompt=prompt)
    assert ours == _theirs(model, TALK, add_generation_prompt=prompt)


def test_tools_and_calls_render_as_in_transformers(model: Path) -> None:
    _with_template(model, TEMPLATES["tools, json and a namespace"])
    ours = ChatTokenizer(model).render(CALL, tools=[WEATHER], add_generation_prompt=True)
    assert ours == _theirs(model, CALL, tools=[WEATHER], add_generation_prompt=True)
    assert "It's <now> & here" in ours
    assert 'weather({"town": "Köln"})' in ours


def test_the_tokens_of_a_chat_are_those_of_transformers(model: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(str(model))
    expected = theirs.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer(model).encode_chat(TALK) == expected


def test_a_template_in_the_tokenizer_configuration_is_used(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATES["a default system turn"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTokenizer(model).render(TALK[1:]) == _theirs(model, TALK[1:])


def test_a_special_token_of_the_older_side_file_is_used(model: Path) -> None:
    _with_template(model, "{{ unk_token }}{{ bos_token }}{{ mask_token }}")
    side = {"unk_token": {"content": "<|endoftext|>", "lstrip": False}, "bos_token": "<|im_end|>"}
    (model / "special_tokens_map.json").write_text(json.dumps(side))
    assert ChatTokenizer(model).render(TALK) == _theirs(model, TALK)
    assert ChatTokenizer(model).render(TALK) == "<|endoftext|><|im_end|>"


def test_the_tool_template_of_a_named_pair_serves_tools(model: Path) -> None:
    _with_template(model, "plain")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates/tool_use.jinja").write_text("{{ tools | length }} tools")
    chat = ChatTokenizer(model)
    assert chat.render(TALK) == _theirs(model, TALK) == "plain"
    assert chat.render(TALK, tools=[WEATHER]) == _theirs(model, TALK, tools=[WEATHER]) == "1 tools"


def test_a_template_that_refuses_says_why(model: Path) -> None:
    _with_template(model, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatRefused, match="roles must alternate"):
        ChatTokenizer(model).render(TALK)


def test_a_template_without_tools_does_not_swallow_them(model: Path) -> None:
    with pytest.raises(ToolsUnknown):
        ChatTokenizer(model).render(TALK, tools=[WEATHER])


def test_a_model_without_template_cannot_chat(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(NoChatTemplate):
        ChatTokenizer(model).render(TALK)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__class__=1) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.__dict__ = 1 %}{{ ns.__dict__ }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(model: Path, attack: str) -> None:
    _with_template(model, attack)
    with pytest.raises(ChatRefused):
        ChatTokenizer(model).render(TALK)
