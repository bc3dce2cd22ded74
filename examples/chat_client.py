"""Stream a chat from a running server: `python examples/chat_client.py "your question"`."""

import sys

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="none")
question = " ".join(sys.argv[1:]) or "Tell me a story about a fox."
stream = client.chat.completions.create(
    model="tiny-hybrid",
    messages=[{"role": "user", "content": question}],
    max_tokens=150,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
