"""Scores language consistency by script: the share of an answer's letters that are of the wanted ones, as DeepSeek-R1
(arXiv 2501.12948, section 2.3.2) rewards the share of words in the target language."""

import unicodedata
from collections import Counter
from typing import Any

SCRIPTS = {
    "arabic": ("ARABIC",),
    "armenian": ("ARMENIAN",),
    "bengali": ("BENGALI",),
    "chinese": ("CJK", "BOPOMOFO", "IDEOGRAPHIC"),
    "cyrillic": ("CYRILLIC",),
    "devanagari": ("DEVANAGARI",),
    "ethiopic": ("ETHIOPIC",),
    "georgian": ("GEORGIAN",),
    "greek": ("GREEK",),
    "gujarati": ("GUJARATI",),
    "gurmukhi": ("GURMUKHI",),
    "hebrew": ("HEBREW",),
    "japanese": ("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "CJK", "IDEOGRAPHIC"),
    "kannada": ("KANNADA",),
    "khmer": ("KHMER",),
    "korean": ("HANGUL", "HALFWIDTH HANGUL"),
    "lao": ("LAO",),
    "latin": ("LATIN", "FULLWIDTH LATIN", "MODIFIER LETTER SMALL", "MODIFIER LETTER CAPITAL"),
    "malayalam": ("MALAYALAM",),
    "myanmar": ("MYANMAR",),
    "sinhala": ("SINHALA",),
    "tamil": ("TAMIL",),
    "telugu": ("TELUGU",),
    "thai": ("THAI",),
    "tibetan": ("TIBETAN",),
}
"""Script by name: how the Unicode names of its letters begin. "chinese" and "japanese" share the ideographs."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    scripts: str | list[str] = "latin",
    threshold: float | None = None,
) -> dict[str, Any]:
    """score: the share of letters in the scripts, in [0, 1]; 1 or 0 by `threshold` where that is set; 0 for an answer
    without letters, so that digits alone earn nothing; share: the share itself.

    scripts: a name of SCRIPTS, or several. threshold: the least share, in (0, 1], that scores 1. What is no letter
    (digits, punctuation, symbols, marks) counts neither way. Raises ValueError for values outside these.
    """
    wanted = [scripts] if isinstance(scripts, str) else scripts
    if not wanted or not all(name in SCRIPTS for name in wanted):
        raise ValueError(f"scripts is {scripts!r}; known are {', '.join(SCRIPTS)}")
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold!r}, not a share in (0, 1]")
    prefixes = tuple(prefix for name in wanted for prefix in SCRIPTS[name])
    letters = {c: times for c, times in Counter(solution_str).items() if c.isalpha()}
    inside = sum(times for c, times in letters.items() if unicodedata.name(c, "").startswith(prefixes))
    share = inside / max(sum(letters.values()), 1)
    score = share if threshold is None else float(share >= threshold)
    reason = "no letters" if not letters else "in the script" if score == 1 else "other scripts"
    return {"score": score, "acc": None, "pred": None, "reason": reason, "share": share}
