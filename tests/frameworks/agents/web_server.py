"""A web server that calls the model twice for a request, in a thread or while it streams."""

from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI, OpenAI

QUESTIONS = ("Where is it?", "How is the weather?")
app = FastAPI()


@app.get("/thread")
def answer() -> list[str | None]:
    client = OpenAI()
    return [
        client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": question}]
        )
        .choices[0]
        .message.content
        for question in QUESTIONS
    ]


@app.get("/stream")
async def stream() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        client = AsyncOpenAI()
        for question in QUESTIONS:
            chunks = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": question}], stream=True
            )
            async for chunk in chunks:
                yield chunk.choices[0].delta.content or "" if chunk.choices else ""

    return StreamingResponse(parts(), media_type="text/plain")
