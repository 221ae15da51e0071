"""Which writing systems a text mixes, by the Unicode script of its letters.

Han, kana and bopomofo count as one, since Japanese is written in all of them; letters of scripts
that are not listed count together.
"""

import polars as pl

SCRIPTS = {
    "latin": r"\p{Latin}",
    "cjk": r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}",
    "hangul": r"\p{Hangul}",
    "cyrillic": r"\p{Cyrillic}",
    "greek": r"\p{Greek}",
    "arabic": r"\p{Arabic}",
    "hebrew": r"\p{Hebrew}",
    "devanagari": r"\p{Devanagari}",
    "bengali": r"\p{Bengali}",
    "tamil": r"\p{Tamil}",
    "thai": r"\p{Thai}",
    "georgian": r"\p{Georgian}",
    "armenian": r"\p{Armenian}",
}
LETTERS = {name: rf"[[{classes}]&&\p{{L}}]" for name, classes in SCRIPTS.items()}
OTHER = rf"[\p{{L}}--[{''.join(SCRIPTS.values())}]]"
ALL = [*LETTERS.values(), OTHER]


def mix(text: pl.Expr) -> pl.Expr:
    """Give the share of letters outside the text's commonest script; null without letters."""
    counts = [text.str.count_matches(pattern) for pattern in ALL]
    total = pl.sum_horizontal(counts)
    return pl.when(total > 0).then(1 - pl.max_horizontal(counts) / total)


def foreign(text: pl.Expr, shown: pl.Expr) -> pl.Expr:
    """Give the share of letters in scripts that do not occur in `shown`; null without letters."""
    counts = [text.str.count_matches(pattern) for pattern in ALL]
    strange = [
        pl.when(shown.str.contains(pattern)).then(0).otherwise(count)
        for pattern, count in zip(ALL, counts, strict=True)
    ]
    total = pl.sum_horizontal(counts)
    return pl.when((total > 0) & shown.is_not_null()).then(pl.sum_horizontal(strange) / total)
