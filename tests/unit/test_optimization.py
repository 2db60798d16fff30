import pytest
import torch
from torch import nn

from asrl.errors import UserError
from asrl.optimization import (
    build_optimizer,
    build_schedule,
    copy_parameters,
    learning_rates,
    load_parameters,
    swapped_parameters,
    trainable_parameters,
)

RATES = {"encoder": 0.1, "projector": 0.2, "decoder": 0.3}
OPTIONS = {"weight_decay": 0.01, "betas": (0.9, 0.95)}


def make_model():
    """One matrix and one bias per part, and a head of no part."""
    model = nn.Module()
    for name in ("encoder", "projector", "llm", "ctc_head"):
        model.add_module(name, nn.Linear(2, 3))
    return model


def rate_of(optimizer, parameter):
    """Learning rate and weight decay that the optimizer uses for a parameter."""
    (group,) = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    return group["lr"], group["weight_decay"]


def test_each_part_has_its_rate_and_only_matrices_decay():
    model = make_model()
    optimizer = build_optimizer(model, RATES, **OPTIONS)
    assert rate_of(optimizer, model.encoder.weight) == (0.1, 0.01)
    assert rate_of(optimizer, model.encoder.bias) == (0.1, 0.0)
    assert rate_of(optimizer, model.projector.weight) == (0.2, 0.01)
    assert rate_of(optimizer, model.projector.bias) == (0.2, 0.0)
    assert rate_of(optimizer, model.llm.weight) == (0.3, 0.01)
    assert rate_of(optimizer, model.llm.bias) == (0.3, 0.0)
    assert rate_of(optimizer, model.ctc_head.weight) == (0.1, 0.01)
    assert optimizer.defaults["betas"] == (0.9, 0.95)


def test_frozen_parameters_are_left_out():
    model = make_model()
    model.encoder.requires_grad_(False)
    model.ctc_head.requires_grad_(False)
    optimizer = build_optimizer(model, RATES, **OPTIONS)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
    assert trainable_parameters(model).keys() == {
        "projector.weight",
        "projector.bias",
        "llm.weight",
        "llm.bias",
    }


def test_training_nothing_is_refused():
    model = make_model().requires_grad_(False)
    with pytest.raises(UserError, match="nothing is trained: set model"):
        build_optimizer(model, RATES, **OPTIONS)


def test_warm_up_is_linear_from_zero_in_every_part():
    model = make_model()
    optimizer = build_optimizer(model, RATES, **OPTIONS)
    schedule = build_schedule(optimizer, "constant_with_warmup", num_warmup_steps=2, num_steps=4)
    rates = []
    for _ in range(4):
        rates.append(learning_rates(optimizer)["learning_rate/decoder"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.0, 0.15, 0.3, 0.3])
    assert learning_rates(optimizer) == {f"learning_rate/{part}": rate for part, rate in RATES.items()}


def test_an_unknown_schedule_is_refused():
    optimizer = build_optimizer(make_model(), RATES, **OPTIONS)
    with pytest.raises(UserError, match=r"optim\.schedule: .*lineer"):
        build_schedule(optimizer, "lineer", num_warmup_steps=0, num_steps=4)


def test_loaded_weights_are_copied_into_the_same_parameters():
    model = make_model()
    optimizer = build_optimizer(model, RATES, **OPTIONS)
    weights = {name: torch.full_like(p, 7.0) for name, p in trainable_parameters(model).items()}
    load_parameters(model, weights, place="step-1")
    assert all((group_p == 7).all() for group in optimizer.param_groups for group_p in group["params"])


def test_weights_of_another_configuration_are_refused_and_nothing_is_loaded():
    model = make_model()
    weights = {name: torch.full_like(p, 7.0) for name, p in trainable_parameters(model).items()}
    weights["extra"] = weights.pop("llm.bias")
    with pytest.raises(UserError, match=r"step-1: holds other trained weights .*: extra and 1 more"):
        load_parameters(model, weights, place="step-1")
    assert not (model.encoder.weight == 7).any()


def test_weights_of_another_shape_are_refused():
    model = make_model()
    weights = dict(trainable_parameters(model)) | {"llm.weight": torch.zeros(4, 2)}
    with pytest.raises(UserError, match=r"llm.weight has shape \[4, 2\], this configuration needs \[3, 2\]"):
        load_parameters(model, weights, place="step-1")


def test_copied_weights_are_those_trained_and_stay_behind():
    model = make_model()
    model.llm.weight.requires_grad_(False)
    copies = copy_parameters(model, device=torch.device("cpu"))
    assert copies.keys() == trainable_parameters(model).keys()
    assert torch.equal(copies["encoder.weight"], model.encoder.weight)
    with torch.no_grad():
        model.encoder.weight += 1
    assert torch.equal(copies["encoder.weight"] + 1, model.encoder.weight)
    assert not copies["encoder.weight"].requires_grad


def test_weights_are_swapped_inside_the_block_alone():
    model = make_model()
    before = {name: p.clone() for name, p in trainable_parameters(model).items()}
    parameters = dict(trainable_parameters(model))
    others = {name: torch.full_like(p, 7.0) for name, p in before.items()}
    with swapped_parameters(trainable_parameters(model), others):
        assert model.projector(torch.ones(2)).tolist() == [21, 21, 21]  # 7 + 7, and 7 of the bias
        assert all((p == 7).all() for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in trainable_parameters(model).items())
    # The very parameters that an optimizer holds, trained as before.
    assert all(p is parameters[name] for name, p in trainable_parameters(model).items())
    assert all((weight == 7).all() for weight in others.values())


def test_weights_come_back_after_an_error():
    model = make_model()
    before = {name: p.clone() for name, p in trainable_parameters(model).items()}
    others = {name: torch.zeros_like(p) for name, p in before.items()}
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        swapped_parameters(trainable_parameters(model), others),
    ):
        raise RuntimeError("out of memory")
    assert all(torch.equal(p, before[name]) for name, p in trainable_parameters(model).items())


def test_weights_come_back_if_some_are_missing():
    model = make_model()
    before = {name: p.clone() for name, p in trainable_parameters(model).items()}
    others = {"encoder.weight": torch.zeros(3, 2)}
    with pytest.raises(KeyError), swapped_parameters(trainable_parameters(model), others):
        pass
    assert all(torch.equal(p, before[name]) for name, p in trainable_parameters(model).items())
