"""A chat template of a model that calls tools, as Hermes and Qwen write them."""

CALLS_TOOLS = """\
{%- if tools -%}
{{- '<|system|>' -}}
{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' -}}
{{- message['content'] -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + call.function | tojson + '</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""
