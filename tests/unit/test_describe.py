from asrl.cli.describe import describe


def line_of(text: str, key: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{key} = "))


def test_help_shows_the_values_of_the_command_line_and_what_they_mean():
    text = describe("train", ["--help", "experiment=firered_llm_8gpu", "beta=0.25"])
    setting, _, comment = line_of(text, "beta").partition("  # ")
    assert setting.rstrip() == "beta = 0.25"
    assert comment == "weight of the KL to the reference policy; 0: no reference"
    assert line_of(text, "data.train").startswith("data.train = (to be given)")
    assert "  model=demo | firered_llm_l" in text.splitlines()


def test_help_lists_the_allowed_values_of_a_setting_without_a_comment():
    assert line_of(describe("train", []), "loss_type").endswith(
        "# grpo | bnpo | dr_grpo | dapo | cispo | sapo"
    )


def test_help_of_supervised_training_lists_its_own_settings():
    lines = describe("sft", []).splitlines()
    assert any(line.startswith("ctc.encoder = 0.0") for line in lines)
    assert not any(line.startswith("importance_sampling_level") for line in lines)
