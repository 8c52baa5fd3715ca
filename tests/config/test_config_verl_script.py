"""Shell scripts read without being run: the words are those that bash makes, and what is not known is said."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config.errors import UserError
from verl_core.config.verl_script import read_script
from verl_core.config.verl_script.hydra import read_value, read_words

LAUNCH = "python3 -m verl.trainer.main_ppo"


def launched(script: str, **variables: str) -> list[str]:
    (launch,) = read_script(script, variables).launches
    assert not any(word.unknown or word.outside for word in launch.arguments)
    return [word.text for word in launch.arguments]


def by_bash(script: str) -> list[str]:
    """The words that bash itself hands to the program; only for scripts written in this file."""
    shim = "python3() { shift 2; printf '%s\\0' \"$@\"; }\n"
    done = subprocess.run(["bash", "-c", shim + script], capture_output=True, text=True, check=True, env={})
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("A=1; B='x y'", "a=$A b=$B c=\"$B\" d=${A}z e='$A' f=\\$A g=a\"b\"'c'$A\\ d"),
        ('A=("a=1 2" b=3); A+=(c=4 "d=$A")', '"${A[@]}" ${A[@]} "${A[*]}" x${A[0]} ${#A[@]} "p${A[@]:1:2}s" $A'),
        ("unset X; Y=", '"${X:-1}" ${Y:-2} ${Y-3}. ${X:=4} $X ${X:+5} ${Z+6}. "${X:-a b}" ${W:-c d}'),
        ("P=a/b.tar.gz", "${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P/a/z} ${P//./_} ${#P} ${P:2} ${P:2:3} ${P^^}"),
        (
            "A=7; B=A+1",
            "$((A / 2 * -3)) $((-A / 2)) $((-A % 4)) $((B * 2)) $(( (A > 3) && (A < 9) )) $((2**10)) $((1<<4))",
        ),
        ("", '\'["console","wandb"]\' "[\'/path/a\']" {a:1} \'${oc.env:X}\' "\\${a.b}" a=$\'x\\ty\' "" a\\\n=b'),
        ('A="x  y "', 'p${A}q "p${A}q" $A$A'),
        ('[ 3 -gt 2 ] && A=1 || A=2; [[ "x$A" == x* && -n $A ]] && B=$A', "$A $B"),
        ('A=3; if [ "$A" = 2 ]; then B=1; elif [[ $A -ge 3 ]]; then B=2; else B=3; fi', "$B"),
        ("if (( 2 > 3 )); then B=1; else B=2; fi; case vllm in sg*) C=1;; v*|x) C=2;; *) C=3;; esac", "$B $C"),
        ("A=1 # comment\n# A=2\nexport B=$A C=2; readonly D=3; declare -a E=(4 5)", "$A $B $C $D ${E[1]}"),
        ('A="a=1 \\\n b=2"', "$A 'c=3 \\\n d'"),
        ("S=(1 2); shift 0; set -- x y", '"${S[@]}" end'),
        ("A=1; ( A=2 ); { B=3; }; eval 'C=4'", "$A $B $C"),
    ],
)
def test_words_are_those_of_bash(before, words):
    script = f"{before}\n{LAUNCH} {words}\n"
    assert launched(script) == by_bash(script)


QUOTABLE = st.text(st.sampled_from("ab1 =[]{}:,.'\"$\\~*#;&|<>()/é\t"), min_size=1, max_size=10)


@st.composite
def written(draw, text: str) -> str:
    """The text as one word of a script, in one of the ways people write it."""
    parts = []
    for piece in draw(st.just([text]) | st.integers(0, len(text)).map(lambda cut: [text[:cut], text[cut:]])):
        how = draw(st.sampled_from(["single", "double", "escaped"]))
        if how == "single":
            parts.append("'" + piece.replace("'", "'\\''") + "'")
        elif how == "double":
            parts.append('"' + "".join(f"\\{char}" if char in '\\"$`' else char for char in piece) + '"')
        else:
            parts.append("".join(char if char.isalnum() else f"\\{char}" for char in piece) or "''")
    return "".join(parts)


@st.composite
def launches(draw) -> tuple[list[str], str]:
    """The words of a launch, and a script that gives them: inline, through variables, through arrays."""
    words = [f"k{i}.x={value}" for i, value in enumerate(draw(st.lists(QUOTABLE, min_size=1, max_size=4)))]
    lines, used = [], []
    for i, word in enumerate(words):
        how = draw(st.sampled_from(["inline", "variable", "array", "default"]))
        text = draw(written(word))
        if how == "inline":
            used.append(text)
        elif how == "variable":
            lines.append(f"V{i}={text}")
            used.append(f'"$V{i}"' if draw(st.booleans()) else f'"${{V{i}}}"')
        elif how == "default":
            lines.append(f"V{i}={text}")
            used.append(f'"${{UNSET{i}:-$V{i}}}"')
        else:
            lines.append(f"A{i}=({text}{draw(st.sampled_from(['', ' ', chr(10)]))})")
            used.append(f'"${{A{i}[@]}}"')
    gap = draw(st.sampled_from([" ", " \\\n    ", "  "]))
    tail = draw(st.sampled_from(["", ' "$@"', " $@", " 2>&1 | tee log", " > log 2>&1 &"]))
    starter = draw(
        st.sampled_from([LAUNCH, f"nohup env A=b {LAUNCH}", f"exec {LAUNCH}", f"ray job submit -- {LAUNCH}"])
    )
    return words, "\n".join([*lines, starter + gap + gap.join(used) + tail, ""])


@settings(max_examples=300)
@given(launches())
def test_every_way_to_write_the_same_words_gives_the_same_words(case):
    words, script = case
    assert launched(script) == words


@settings(max_examples=40)
@given(launches())
def test_generated_words_are_those_of_bash(case):
    words, script = case
    plain = script.replace("nohup env A=b ", "").replace("exec ", "").replace("ray job submit -- ", "")
    plain = plain.replace(" 2>&1 | tee log", "").replace(" > log 2>&1 &", "")
    assert by_bash(plain) == words


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [LAUNCH, *"'\"$`(){}[];|&<>\\\n #=", "${A", "$((", "$(", "A=", "A=(", "if [ ", "then", "fi", "case x in"]
        )
        | st.sampled_from(
            ["for i in 1; do", "done", "esac", "a.b=c", "${A[@]}", "${A:-", "[[ ", " ]]", "bash -c", "eval ", "<<E\n"]
        )
        | st.text(max_size=5),
        max_size=14,
    ).map("".join)
)
def test_no_script_ends_in_a_traceback(script):
    try:
        read_script(script)
    except UserError as error:
        assert error.hint


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    script = f"""
        A=$(touch {mark}); B=`touch {mark}`; C=${{X:-$(touch {mark})}}; D=$((1 + $(touch {mark}; echo 1)))
        [ "$(touch {mark})" = x ] && touch {mark}
        if touch {mark}; then touch {mark}; fi
        eval "touch {mark}"; bash -c 'touch {mark}'; source {mark}; : > {mark}; exec 3> {mark}
        A[$(touch {mark})]=1; f() {{ touch {mark}; }}; f; while touch {mark}; do touch {mark}; done
        trap 'touch {mark}' EXIT; cat <<E
        $(touch {mark})
E
        {LAUNCH} a=$(touch {mark}) "b=`touch {mark}`" ${{A:=$(touch {mark})}} <(touch {mark})
    """
    found = read_script(script)
    assert not mark.exists()
    words = found.launches[0].arguments
    assert [word.text.partition("=")[0] for word in words if word.unknown][:2] == ["a", "b"]
    assert all(word.unknown for word in words if "touch" in word.text)


def test_unknown_words_say_why():
    script = read_script(
        f"""for i in 1 2; do S=$i; done
if [ -f x ]; then T=1; E=(e=1); else T=2; E=(); fi
{LAUNCH} a=$(date) b=$S c=$T d=$NOPE x=$1 f=$((NOPE + 1)) "${{E[@]}}" g=${{R:?}} h={{1,2}} $H
"""
    )
    why = {word.text.partition("=")[0]: "; ".join(word.unknown) for word in script.launches[0].arguments}
    assert "$(date) is a command" in why["a"]
    assert "loop in line 1" in why["b"]
    assert why["c"] == "T is 1 or 2: line 2 tests what the script does not decide"
    assert script.launches[0].arguments[3].outside == ("NOPE",)
    assert "--set 1=VALUE" in why["x"]
    assert "NOPE is not set" in why["f"]
    assert why["e"] == "only on one way of the test in line 2, which the script does not decide"
    assert "--set R=VALUE" in why["g"]
    assert "several words" in why["h"]
    assert [note.line for note in script.notes] == [1, 2]


def test_variables_from_outside_and_the_arguments_of_the_script():
    script = f'N=${{N:-1}}\n[ -z "$M" ] && M=none\n{LAUNCH} n=$N m=$M first=$1 "$@"\n'
    assert launched(script, **{"N": "4", "1": "a", "2": "b=c"}) == ["n=4", "m=none", "first=a", "a", "b=c"]
    assert read_script(script).assumed_unset == {"N", "M"}
    shifted = f'x=$1\nshift\n{LAUNCH} x=$x "$@"'
    assert launched(shifted, **{"1": "a", "2": "b=c"}) == ["x=a", "b=c"]


def test_text_beyond_ascii_is_kept():
    folder = "/\u6570\u636e/\u00e9"
    tests = f'D="{folder}"; [ "$D" = "{folder}" ] && E={{\U0010a2b6.'
    assert launched(f"# {folder}\n{tests}\n{LAUNCH} d=$D e=$E\n") == [f"d={folder}", "e={\U0010a2b6."]


def test_an_exit_ends_the_script_and_an_undecided_one_leaves_the_rest():
    assert not read_script(f"exit 1\n{LAUNCH} a=1").launches
    assert not read_script(f"[ 1 = 1 ] && exit 1\n{LAUNCH} a=1").launches
    guarded = read_script(f"if [ $# -lt 2 ]; then A=2; exit 1; else A=1; fi\n{LAUNCH} a=$A")
    assert [word.text for word in guarded.launches[0].arguments] == ["a=1"]


def test_launches_of_every_kind_are_found():
    script = read_script(
        f"""export B=1
A=2 torchrun --nnodes 2 --nproc-per-node=8 -m verl.trainer.sft_trainer a=1
python verl/trainer/main_ppo.py b=1
ray job submit --address=x -- bash -c "C=3; python3 -m recipe.dapo.main_dapo c=$B d=\\$C e=\\$B"
for i in 1; do {LAUNCH} e=$i; done
echo {LAUNCH.split()[-1]}
"""
    )
    kinds = [(launch.line, launch.module, launch.kind, bool(launch.doubt)) for launch in script.launches]
    assert kinds == [
        (2, "verl.trainer.sft_trainer", "sft", False),
        (3, "verl.trainer.main_ppo", "ppo", False),
        (4, "recipe.dapo.main_dapo", "ppo", False),
        (5, "verl.trainer.main_ppo", "ppo", True),
    ]
    assert {name: text.text for name, text in script.launches[0].ranks.items()} == {
        "nnodes": "2",
        "nproc_per_node": "8",
    }
    assert [word.text for word in script.launches[2].arguments] == ["c=1", "d=3", "e=1"]
    assert {name: text.text for name, text in script.exports.items()} == {"A": "2", "B": "1"}


def test_a_comment_that_cuts_the_launch_is_told():
    script = read_script(f"{LAUNCH} a.b=1 \\\n # c.d=2 \\\n e.f=3\n")
    assert [word.text for word in script.launches[0].arguments] == ["a.b=1"]
    assert any("stands behind the end of the launch" in note.text for note in script.notes)


def test_values_that_grow_without_end_are_refused():
    doubled = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40
    with pytest.raises(UserError, match="grows beyond"):
        read_script(f"{doubled}{LAUNCH} a=$A")
    with pytest.raises(UserError, match="nested too deeply"):
        read_script("(" * 3000 + LAUNCH + ")" * 3000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1_000", 1000),
        ("-.5", -0.5),
        ("010", "010"),
        ("True", True),
        ("NULL", None),
        ("", ""),
        ('["console", wandb]', ["console", "wandb"]),
        ("['/a b', \"it's\", 3, [x]]", ["/a b", "it's", 3, ["x"]]),
        ("{a:1,b: {c: 'x y'}, d: []}", {"a": 1, "b": {"c": "x y"}, "d": []}),
        ("'1'", "1"),
        ("${oc.env:X,3}", "${oc.env:X,3}"),
        ("[${a.b}, c]", ["${a.b}", "c"]),
        ("a=b", "a=b"),
        ("~/x y", "~/x y"),
        ("null_", "null_"),
    ],
)
def test_hydras_values(text, value):
    read = read_value(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("text", ["a,b", "[a", "{a}", "{a:1", "'a", "[a,]", "'a'b"])
def test_what_hydra_refuses_is_refused(text):
    with pytest.raises(ValueError, match=r"value|missing|sweep|mapping|closed"):
        read_value(text)


def test_hydras_words():
    (launch,) = read_script(f"{LAUNCH} --config-path=x --config-name y.yaml +a.b=1 ++c=2 ~d.e f@g=h 'i j'").launches
    words = read_words(launch.arguments)
    assert (words.config_name, words.config_path.text if words.config_path else None) == ("y", "x")
    assert [(word.sign, word.key, word.value) for word in words.overrides] == [
        ("+", "a.b", 1),
        ("++", "c", 2),
        ("~", "d.e", None),
        ("", "f@g", "h"),
    ]
    assert [word.text for word in words.strange] == ["i j"]
