"""Shares of writing systems in a text, by the Unicode script of its letters.

Han, kana and bopomofo count as one script, since Japanese uses all of them. Letters of scripts that
are not listed here count as one script together.
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
LATIN = "[A-Za-z]"
BEYOND_ASCII = r"[^\x00-\x7F]+"


def minority_script_share(text: pl.Series) -> pl.Series:
    """Return the share of letters outside the text's most frequent script; null without letters."""
    counts = _count_letters(text)
    total = pl.sum_horizontal(pl.all())
    share = pl.when(total > 0).then(1 - pl.max_horizontal(pl.all()) / total)
    return counts.select(share=share)["share"]


def foreign_script_share(text: pl.Series, shown: pl.Series) -> pl.Series:
    """Return the share of letters in scripts that `shown` does not use; null without letters."""
    counts, used = _count_letters(text), _scripts_used(shown)
    foreign = [
        count * ~present.fill_null(True) for count, present in zip(counts, used, strict=True)
    ]
    total = counts.sum_horizontal()
    shares = pl.DataFrame(foreign).sum_horizontal() / total
    known = pl.DataFrame({"share": shares, "known": (total > 0) & shown.is_not_null()})
    return known.select(share=pl.when("known").then("share"))["share"]


def _count_letters(text: pl.Series) -> pl.DataFrame:
    """Count the letters of each script; ASCII is counted apart, since Unicode classes are slow."""
    rest = _beyond_ascii(text)
    columns = {str(at): rest.str.count_matches(pattern) for at, pattern in enumerate(ALL)}
    counts = pl.DataFrame(columns).with_columns(pl.all().cast(pl.Int64))
    return counts.with_columns(counts["0"] + text.str.count_matches(LATIN))


def _scripts_used(text: pl.Series) -> list[pl.Series]:
    """Return a flag series for each script: whether the text contains it."""
    rest = _beyond_ascii(text)
    latin, *others = (rest.str.contains(pattern) for pattern in ALL)
    return [latin | text.str.contains(LATIN), *others]


def _beyond_ascii(text: pl.Series) -> pl.Series:
    return text.str.extract_all(BEYOND_ASCII).list.join("")
