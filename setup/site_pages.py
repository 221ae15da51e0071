"""Hooks of mkdocs: the pages of the site are the Markdown files of the repository.

Each page has the path that it has in the repository, so a link works here and there. A link to a
folder leads to its README; a link to another file becomes its text.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "docs/**/*.svg",
    "docs/**/*.png",
    "examples/README.md",
    "examples/*/README.md",
    "examples/*/results/**/*.svg",
    "otel-config/README.md",
)
"""The pages and pictures, by their paths in the repository."""
LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)"
)
"""Text, path and anchor of a link to a file."""
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of the repository."""
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to folders and to files that are no pages lead somewhere."""
    parts = FENCE.split(markdown)
    parts[::2] = [link_pages(text, page.file.src_uri, files) for text in parts[::2]]
    return "".join(parts)


def link_pages(text: str, page: str, files: Files) -> str:
    """Return the text of a page with links to other pages alone."""

    def link(match: re.Match[str]) -> str:
        label, path, anchor = match[1], match[2], match[3] or ""
        target = normpath(PurePosixPath(page).parent / path)
        if files.get_file_from_path(target) is not None:
            return match[0]
        readme = f"{target}/README.md"
        if files.get_file_from_path(readme) is not None:
            return f"[{label}]({path.rstrip('/')}/README.md{anchor})"
        return label if (ROOT / target).exists() else match[0]

    return LINK.sub(link, text)
