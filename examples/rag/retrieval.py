"""Search in pages: BM25, or cosine similarity of any OpenAI-compatible embeddings."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import bm25s
import numpy
from musique import Page, load_pages
from numpy.typing import NDArray
from openai import OpenAI

PAGES = Path(__file__).with_name("pages.jsonl")
_BATCH = 256
"""Texts in one request for embeddings."""


class Index(Protocol):
    """A searchable set of pages."""

    def search(self, query: str, count: int) -> list[Page]: ...


class Bm25Index:
    """The pages by BM25 of title and text."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self._bm25 = bm25s.BM25()
        texts = [f"{page.title} {page.text}" for page in pages]
        self._bm25.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def search(self, query: str, count: int) -> list[Page]:
        """Return the best pages that have a word of the query."""
        words = bm25s.tokenize(query, return_ids=False, show_progress=False)
        found, scores = self._bm25.retrieve(
            words, k=min(count, len(self._pages)), show_progress=False
        )
        return [
            self._pages[place]
            for place, score in zip(found[0], scores[0], strict=True)
            if score > 0
        ]


class EmbeddingIndex:
    """The pages by the cosine of their embeddings, which a server computes."""

    def __init__(self, pages: Sequence[Page], url: str, key: str, model: str) -> None:
        self._pages, self._model = pages, model
        self._client = OpenAI(base_url=url, api_key=key)
        texts = [f"{page.title}: {page.text}" for page in pages]
        batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        self._vectors = numpy.concatenate([self._embed(batch) for batch in batches])

    def search(self, query: str, count: int) -> list[Page]:
        """Return the nearest pages."""
        cosines = self._vectors @ self._embed([query])[0]
        return [self._pages[place] for place in numpy.argsort(-cosines, kind="stable")[:count]]

    def _embed(self, texts: list[str]) -> NDArray[numpy.float32]:
        answer = self._client.embeddings.create(
            model=self._model, input=texts, encoding_format="float"
        )
        vectors: NDArray[numpy.float32] = numpy.asarray(
            [row.embedding for row in answer.data], numpy.float32
        )
        vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
        return vectors


def open_index() -> Index:
    """Return the index of the pages that the RAG_* variables name.

    Raises:
        BadData: when there is no page, or a line is none.
    """
    pages = load_pages(Path(os.environ.get("RAG_PAGES", PAGES)))
    if url := os.environ.get("RAG_EMBEDDINGS_URL"):
        key = os.environ.get("RAG_EMBEDDINGS_KEY", "none")
        return EmbeddingIndex(pages, url, key, os.environ.get("RAG_EMBEDDINGS_MODEL", "embeddings"))
    return Bm25Index(pages)
