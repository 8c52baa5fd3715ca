import pytest

from verl_core.algorithms.entropy import FixedEntropy, TargetEntropy, entropy_controller
from verl_core.config.schema import EntropyCtrlConfig


def test_fixed_stays_and_a_resumed_run_may_change_it():
    control = entropy_controller(EntropyCtrlConfig(), coef=0.02)
    control.update(0.0)
    assert control.coef == 0.02 and isinstance(control, FixedEntropy)
    control.load_state(FixedEntropy(0.5).state())
    assert control.coef == 0.02


def test_target_by_hand():
    control = entropy_controller(EntropyCtrlConfig(type="target", target=0.2, delta=0.005), coef=0.0)
    seen = []
    for entropy in (0.5, 0.1, 0.15, 0.2, 0.3, 0.1, 0.3, 0.3, 0.3, 0.1):
        control.update(entropy)
        seen.append(control.coef)
    # on at or below the target; the coefficient goes on counting while it is off, but not below 0
    assert seen == pytest.approx([0, 0.005, 0.01, 0.01, 0, 0.01, 0, 0, 0, 0.005])


def test_target_says_nothing_before_it_has_measured():
    assert TargetEntropy(0.01, target=0.2, delta=0.005).coef == 0.0


def test_a_resumed_controller_goes_on_where_it_was():
    control, resumed = (TargetEntropy(0.0, target=0.2, delta=0.005) for _ in range(2))
    control.update(0.1)
    resumed.load_state(control.state())
    assert resumed.coef == control.coef == 0.005
    for each in (control, resumed):
        each.update(0.15)
    assert resumed.coef == control.coef == 0.01


@pytest.mark.parametrize("state", [{}, {"coef": 0.3}, TargetEntropy(0.0, 0.2, 0.005).state()])
def test_a_run_that_had_none_before_starts_with_the_configured_coefficient(state):
    control = TargetEntropy(0.01, target=0.2, delta=0.005)
    control.load_state(state)
    control.update(0.1)
    assert control.coef in (0.015, 0.005)  # c of its own, or of the state
    assert control.coef == (0.005 if "c" in state else 0.015)
