"""Record MCP sessions, store them without variable parts, and compare them."""

import json
import math
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from mcp.client.streamable_http import streamable_http_client

FOLDER = Path(__file__).parent / "sessions"
CLOSE = 0.01
"""Numbers depend on the last bits of sums, and so on the processor."""
LONGEST = 1000
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_DIFFERS = (
    (re.compile(r"\b[0-9a-f]{40}\b|(?<=\[)[0-9a-f]{8}(?=\])"), "<commit>"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "<server>"),
    (re.compile(r"([?&]v=)[\w.+]+"), r"\1<version>"),
    (re.compile(r"\d[\d.]* (B|bytes|kB|MB) read.*"), "<size> read"),
)
_DRAWN = {"sample_seed", "own_number"}
"""Fields that depend on the neurons that a comparison draws afresh."""
_DIFFERING = _DRAWN | {"bom", "io", "progress", "requests", "seconds", "bytes_read", "bytes_limit", "peak_memory_bytes"}


class Transcript:
    """The messages of one session in both directions, each with its sender."""

    def __init__(self):
        self.messages = []
        self.n_progress = 0

    def add(self, sender, message):
        """Record a message in stored form."""
        plain = message.message.model_dump(mode="json", by_alias=True, exclude_none=True)
        plain.pop("jsonrpc")
        result = plain.get("result", {})
        if "structuredContent" in result:  # the text repeats it
            (content,) = result["content"]
            assert json.loads(content["text"]) == result["structuredContent"]
            content["text"] = "<structuredContent as JSON>"
        if plain.get("method") == "notifications/progress":  # any stage may end before it is reported
            self.n_progress += 1
            return
        self.messages.append({"from": sender, "message": storable(plain)})

    @asynccontextmanager
    async def connected(self, address):
        """Connect a client to a server, and record their messages."""

        async def carry(source, target, sender):
            async with source, target:
                async for message in source:
                    self.add(sender, message)
                    await target.send(message)

        async with streamable_http_client(address) as (heard, said, _), anyio.create_task_group() as tasks:
            to_agent, reading = anyio.create_memory_object_stream(0)
            writing, from_agent = anyio.create_memory_object_stream(0)
            tasks.start_soon(carry, heard, to_agent, "server")
            tasks.start_soon(carry, from_agent, said, "agent")
            yield reading, writing
            tasks.cancel_scope.cancel()


def storable(part, name=""):
    """Return a part of a message without commits, ports, versions, times and sizes; output schemas keep only names."""
    if name in _DIFFERING or name.startswith("seconds_") or name.lower().endswith("version"):
        return f"<{name}>"
    if name == "outputSchema":
        return {"properties": list(part["properties"])}
    if isinstance(part, dict):
        return {key: storable(value, key) for key, value in part.items()}
    if isinstance(part, list):
        return [storable(each) for each in part]
    if isinstance(part, str):
        for pattern, instead in _DIFFERS:
            part = pattern.sub(instead, part)
        return part if len(part) <= LONGEST else f"{part[:20]}… ({len(part):,} characters)"
    return part


def differences(now, stored, where="session"):
    """Yield a sentence for each difference from the stored session; numbers may differ by 1 %."""
    if isinstance(now, dict) and isinstance(stored, dict) and now.keys() == stored.keys():
        for key in now:
            yield from differences(now[key], stored[key], f"{where}.{key}")
    elif isinstance(now, list) and isinstance(stored, list) and len(now) == len(stored):
        for at, pair in enumerate(zip(now, stored, strict=True)):
            yield from differences(*pair, f"{where}[{at}]")
    elif not are_alike(now, stored):
        yield f"{where} is {shown(now)}; stored is {shown(stored)}"


def are_alike(now, stored):
    """Tell whether two values are equal, up to the tolerance for numbers."""
    if isinstance(now, float) and isinstance(stored, (float, int)):
        return math.isclose(now, stored, rel_tol=CLOSE, abs_tol=1e-6)
    if isinstance(now, str) and isinstance(stored, str) and _NUMBER.split(now) == _NUMBER.split(stored):
        pairs = zip(_NUMBER.findall(now), _NUMBER.findall(stored), strict=True)
        return all(math.isclose(*(float(one.replace(",", "")) for one in pair), rel_tol=CLOSE) for pair in pairs)
    return type(now) is type(stored) and now == stored


def shown(value):
    """Return a value in at most 200 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"


def compared_with_stored(transcript, name, *, renews):
    """Return the differences from the stored session of this name; with ``renews``, store the session first."""
    path = FOLDER / f"{name}.json"
    if renews:
        path.write_text(json.dumps(transcript.messages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    stored = json.loads(path.read_text(encoding="utf-8"))
    return list(differences(json.loads(json.dumps(transcript.messages)), stored))
