"""The training code of docs/coming-from-lerobot.md works, and the loader does what it needs. Ray, of 200 MB, is not in the extra `test`."""

import re
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from loaders_by_keywords import from_lerobot
from sets import write_low_dimensional

import robocache

PAGE = (Path(__file__).parents[3] / "docs/coming-from-lerobot.md").read_text()


class Policy(torch.nn.Module):
    """A policy that counts its calls and writes the rank of each to a file."""

    def __init__(self, log=None):
        super().__init__()
        self.layer = torch.nn.Linear(6, 32)
        self.calls = 0
        self.log = log

    def forward(self, state, action, is_pad):
        assert state.shape[1:] == (2, 3)
        assert action.shape[1:] == (16, 2)
        self.calls += 1
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{torch.distributed.get_rank()}")
        difference = self.layer(state.flatten(1)).reshape(-1, 16, 2) - action
        return difference[~is_pad].square().mean()


def snippet(part):
    """Returns the only snippet of the page that contains `part`."""
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if part in text]
    return text


@pytest.fixture
def names(rng, tmp_path, monkeypatch):
    """Returns the names that a snippet uses: the loader of the page's first snippet, a policy, and its optimizer."""
    monkeypatch.chdir(tmp_path)
    write_low_dimensional(tmp_path / "pusht", rng, (120, 90), fps=10)
    policy = Policy()
    names = {"torch": torch, "policy": policy, "optimizer": torch.optim.AdamW(policy.parameters())}
    exec(snippet("# ours"), names)
    assert len(names["loader"]) == 4
    return names


def test_a_map_style_dataset(names):
    exec(snippet("robocache.LeRobotDataset("), names)
    assert sum(len(batch["task"]) for batch in names["loader"]) == 210


def test_plain_torch(names):
    exec(snippet("for epoch in"), names)
    assert names["policy"].calls == 2 * 4
    assert names["loader"].epoch == 2


def test_lightning(names):
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")

    class Module(lightning.LightningModule):
        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def training_step(self, batch, index):
            return self.policy(batch["observation.state"], batch["action"], batch["action_is_pad"])

        validation_step = training_step

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    held_out = from_lerobot("pusht", delta_timestamps=names["delta_timestamps"], batch_size=50, episodes=[1])
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=2, **quiet)
    trainer.fit(Module(names["policy"]), train_dataloaders=names["loader"], val_dataloaders=held_out)
    assert names["policy"].calls == 2 + 2 * (4 + 2)  # the sanity check, then two epochs and their validations


def test_accelerate(names):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed: pip install accelerate")
    accelerator = accelerate.Accelerator()
    loader = from_lerobot("pusht", delta_timestamps=names["delta_timestamps"], batch_size=64, device=accelerator.device)
    policy, optimizer = accelerator.prepare(names["policy"], names["optimizer"])
    for batch in loader:
        loss = policy(batch["observation.state"], batch["action"], batch["action_is_pad"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    assert names["policy"].calls == 4


def train_in_a_worker(config):
    import ray.train.torch

    model = ray.train.torch.prepare_model(config["policy"])
    optimizer = torch.optim.AdamW(model.parameters())
    loader = robocache.Loader.from_lerobot(**config["options"], device=ray.train.torch.get_device())
    for batch in loader:
        loss = model(batch["observation.state"], batch["action"], batch["action_is_pad"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})


def test_ray(names, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[train]'")
    import ray.train.torch

    options = {"path": str(tmp_path / "pusht"), "delta_timestamps": names["delta_timestamps"], "batch_size": 64}
    config = {"policy": Policy(tmp_path / "log"), "options": options}
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())
        ray.train.torch.TorchTrainer(train_in_a_worker, train_loop_config=config, scaling_config=scaling).fit()
    finally:
        ray.shutdown()
    assert sorted((tmp_path / "log").read_text()) == ["0", "0", "1", "1"]  # four batches on two ranks


# ---- the behaviour that Lightning needs ----


@pytest.fixture
def seen(names):
    """Returns a module class that keeps the rows of each batch, and a function that makes a Trainer."""
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")

    class Seen(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.policy = Policy()
            self.train_rows, self.val_rows = [], []

        def training_step(self, batch, index):
            self.train_rows.append(batch["index"].tolist())
            return self.policy(batch["observation.state"], batch["action"], batch["action_is_pad"])

        def validation_step(self, batch, index):
            self.val_rows.append(batch["index"].tolist())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Seen, lambda **options: lightning.Trainer(**quiet | options)


def loader_of(names, **options):
    return from_lerobot(
        "pusht", delta_timestamps=names["delta_timestamps"], **{"batch_size": 64, "device": "cpu"} | options
    )


def test_after_lightnings_sanity_check_every_epoch_is_complete(names, seen):
    make, trainer = seen
    module = make()
    trainer(max_epochs=3, num_sanity_val_steps=2, enable_checkpointing=False).fit(
        module, loader_of(names), loader_of(names, batch_size=25, shuffle=False)
    )
    epochs = [sorted(chain(*module.train_rows[start : start + 4])) for start in range(0, 12, 4)]
    assert epochs == [list(range(210))] * 3
    assert module.train_rows[:4] != module.train_rows[4:8]
    assert [*chain(*module.val_rows[:2])] == list(range(50))  # the sanity check
    assert [*chain(*module.val_rows[2:])] == list(range(210)) * 3


def test_lightning_resumes_within_an_epoch(names, seen, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    make, trainer = seen
    uninterrupted, resumed = make(), make()
    halfway = ModelCheckpoint(tmp_path, "halfway", every_n_train_steps=6, save_top_k=-1)  # in the second epoch of four
    trainer(max_epochs=2, callbacks=[halfway]).fit(uninterrupted, loader_of(names))
    trainer(max_epochs=2, enable_checkpointing=False).fit(
        resumed, loader_of(names), ckpt_path=tmp_path / "halfway.ckpt"
    )
    assert resumed.train_rows == uninterrupted.train_rows[6:]
