"""Options of `rlx prepare custom`: which columns of a user's file become which fields of a row."""

from dataclasses import dataclass, field

from verl_core.config.errors import UserError


@dataclass(frozen=True)
class Form:
    """What a row can be: the fields that it needs, and those that it may have beside `extra_info.NAME`."""

    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()


FORMS = {
    "prompts to answer": Form(("prompt", "ground_truth", "data_source"), ("ability", "system", "answer")),
    "demonstrations": Form(("messages",), ("data_source", "tools")),
    "demonstrations of one answer": Form(("prompt", "answer"), ("data_source", "system", "tools")),
    "pairs": Form(("chosen", "rejected"), ("prompt", "data_source", "system", "margin", "tools")),
    "labelled answers": Form(("prompt", "completion", "label"), ("data_source", "system", "tools")),
}
"""The first form whose fields are all given is taken."""
EXTRA = "extra_info."
"""`extra_info.NAME` is a field too: what a rule of one's own is handed beside the ground truth."""
IMAGES = ("image", "images", "video", "videos", "audio", "audios")


@dataclass(frozen=True)
class CustomOptions:
    """Where the fields of a row come from."""

    map: dict[str, str] = field(default_factory=dict)
    """FIELD=COLUMN: --map prompt=question,ground_truth=label.text; a dot leads into an object."""
    constant: dict[str, str] = field(default_factory=dict)
    """FIELD=TEXT that is the same in every row: --constant data_source=my/task."""
    template: str = ""
    """Text of the prompt, in which {COLUMN} is the column's text; in place of --map prompt=COLUMN."""
    split: float = 0.0
    """Share of the rows that is held out as the test split, drawn by --seed; equal prompts stay together."""
    test_source: str = ""
    """File of the test split, in the form of --source."""
    seed: int = 0
    """Of the draw of --split."""

    def check(self) -> None:
        """Raises UserError for values that do not fit each other."""
        known = dict.fromkeys(name for form in FORMS.values() for name in (*form.needs, *form.takes))
        for name in (*self.map, *self.constant):
            if name in IMAGES:
                raise UserError(f"{name}: images, videos and sounds are not read", "leave it out of --map")
            if name not in known and not _is_extra(name):
                raise UserError(f"{name!r} is no field of a row", f"fields are {', '.join(known)} and {EXTRA}NAME")
        if twice := [name for name in self.map if name in self.constant or (self.template and name == "prompt")]:
            raise UserError(f"{twice[0]} is given twice", "by --map, by --constant or, a prompt, by --template")
        if not 0 <= self.split < 1:
            raise UserError(f"--split {self.split:g} is no share", "a number from 0 to below 1, such as 0.05")
        if self.seed and not self.split:
            raise UserError("--seed draws the rows of --split, which is not given", "--split 0.05")
        if self.split and self.test_source:
            raise UserError("--split and --test-source both say what the test split is", "give one of them")
        form = FORMS[self.form()]
        if idle := [n for n in self.given if n not in (*form.needs, *form.takes) and not _is_extra(n)]:
            raise UserError(f"{self.form()} have no {sorted(idle)[0]}", "leave it out of --map")
        if "system" in self.given and "prompt" not in self.given:
            raise UserError(
                "a system message stands before a prompt, and no column is mapped to that", "--map prompt=COLUMN"
            )

    @property
    def given(self) -> set[str]:
        """The fields that have a source."""
        return {*self.map, *self.constant, *(["prompt"] if self.template else [])}

    def form(self) -> str:
        """What the rows are: a key of FORMS. Raises UserError that names the fields that are missing."""
        for name, form in FORMS.items():
            if self.given >= set(form.needs):
                return name
        nearest = max(FORMS, key=lambda name: (self._fitting(FORMS[name]), -len(self._missing(FORMS[name]))))
        missing = self._missing(FORMS[nearest])
        forms = "; ".join(f"{name}: {', '.join(form.needs)}" for name, form in FORMS.items())
        raise UserError(
            f"no column is mapped to {' and '.join(missing)}, which {nearest} need",
            f"--map {missing[0]}=COLUMN or --constant {missing[0]}=TEXT ({forms})",
        )

    def _fitting(self, form: Form) -> int:
        return len(self.given & {*form.needs, *form.takes})

    def _missing(self, form: Form) -> list[str]:
        return [name for name in form.needs if name not in self.given]


def _is_extra(name: str) -> bool:
    return name.startswith(EXTRA) and name.removeprefix(EXTRA).isidentifier()
