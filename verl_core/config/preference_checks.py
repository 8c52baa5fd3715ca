"""What preference learning asks of other keys."""

from collections.abc import Iterator

from verl_core.config.catalogue import entry
from verl_core.config.key_checks import Said
from verl_core.config.preferences import compares_pairs, prefers
from verl_core.config.schema import RlxConfig

_LOSS, _BETA = "algorithm.preference.loss", "algorithm.preference.beta"


def preference_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration."""
    if not prefers(e) or e.algorithm.preference.loss is None:
        return
    yield from _loss(said, e)
    yield from _answers(said, e)
    yield from _reference(said, e)


def _loss(said: Said, e: RlxConfig) -> Iterator[str]:
    """Whether the algorithm has what the loss takes."""
    name, needs = e.algorithm.name, entry("algorithm", e.algorithm.name).needs
    loss = entry("preference_loss", str(e.algorithm.preference.loss))
    if name == "sppo" and loss.name != "sppo":
        yield f"{said(_LOSS)}: {said('algorithm.name')} compares all answers of a group; online_dpo makes pairs of them"
    elif "reference" in loss.needs and "reference" not in needs and name != "sppo":
        yield f"{said(_LOSS)}: {said('algorithm.name')} has no reference; set algorithm.name=dpo"
    if compares_pairs(e) and "labels" in needs:
        yield f"{said(_LOSS)}: {said('algorithm.name')} may read answers without a partner; set algorithm.name=dpo"
    if _BETA in loss.keys and e.algorithm.preference.beta is None:
        yield f"set {_BETA}: {said('algorithm.name')} presets none for {said(_LOSS)}"


def _answers(said: Said, e: RlxConfig) -> Iterator[str]:
    """How many answers of its own a prompt has."""
    needs, n = entry("algorithm", e.algorithm.name).needs, e.rollout.n
    if "group" in needs and n < 2:
        yield f"{said('rollout.n')}: {e.algorithm.name} compares the answers of one prompt with each other, it needs 2"
    if "demonstration" in needs and n != 1:
        yield f"{said('rollout.n')}: {e.algorithm.name} sets one answer against the demonstration: set rollout.n=1"


def _reference(said: Said, e: RlxConfig) -> Iterator[str]:
    """A reference that is renewed is a copy of the actor's weights, beside them."""
    if not e.algorithm.preference.ref_update_freq or "reference" not in entry("algorithm", e.algorithm.name).needs:
        return
    key = "algorithm.preference.ref_update_freq"
    if e.ref.pool != e.actor.pool:
        yield f"{said(key)} and {said('ref.pool')} exclude each other: a renewed reference is on the actor's pool"
    if e.model.lora_rank:
        yield f"{said(key)} and {said('model.lora_rank')} exclude each other: an adapter's reference is the base"
