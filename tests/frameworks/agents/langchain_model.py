"""A LangChain chat model without an agent, in all of its request methods."""

import asyncio
import threading
from collections.abc import AsyncIterator

from langchain_openai import ChatOpenAI

llm = ChatOpenAI(model="fake")


def say(word: str) -> str:
    return f"Say it. [[{word} it is.]]"


print(llm.invoke(say("One")).content)
print("".join(chunk.text for chunk in llm.stream(say("Two"))))
print(*(response.content for response in llm.batch([say("Three"), say("Four")])))

first, second = llm.stream(say("Five")), llm.stream(say("Six"))
print("".join(a.text + b.text for a, b in zip(first, second, strict=True)))

for chunk in llm.stream(say("Seven")):
    if chunk.text:
        print(chunk.text, llm.invoke(say("Eight")).content)
        break

thread = threading.Thread(target=lambda: print(llm.invoke(say("Nine")).content))
thread.start()
thread.join()


async def joined(chunks: AsyncIterator[object]) -> str:
    return "".join([getattr(chunk, "text", "") async for chunk in chunks])


async def main() -> None:
    ten, eleven, twelve = await asyncio.gather(
        llm.ainvoke(say("Ten")),
        joined(llm.astream(say("Eleven"))),
        joined(llm.astream(say("Twelve"))),
    )
    print(ten.content, eleven, twelve)


asyncio.run(main())
