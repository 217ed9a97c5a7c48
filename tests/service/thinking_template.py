"""Chat templates of reasoning models: a block before each answer that comes last."""

THINKS = """\
{%- for message in messages -%}
{%- set content = message['content'] -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['role'] == 'assistant' -%}
{%- set reasoning = '' -%}
{%- if '</think>' in content -%}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{%- if loop.last -%}
{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
{{- content + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""
"""The block is written by the model, unless ``enable_thinking`` is false."""

MUST_THINK = THINKS.replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|><think>\\n' -}}").replace(
    "enable_thinking is defined", "false"
)
"""The prompt opens the block, and the model continues in it."""

FORGETS = MUST_THINK.replace("{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' -}}", "{{- '' -}}")
"""The prompt opens a block; only the answer of an existing message is written."""
