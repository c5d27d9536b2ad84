"""Builds the two policies: LeRobot's ACT for the camera, and a small MLP for the joints and the cube's position."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import torch
from torch import nn

from .episode import ACTION, CAMERA, CUBE, STATE

CHUNK = 50  # the number of actions that are predicted at once, for one second


class ChunkMLP(nn.Module):
    """Predicts the next CHUNK actions from joints and the cube's position."""

    def __init__(self, inputs, actions, width=512):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CHUNK * actions),
        )

    def predict_action_chunk(self, batch):
        return self.layers(torch.cat([batch[STATE], batch[CUBE]], dim=1)).unflatten(1, (CHUNK, -1))

    def loss(self, batch):
        """Returns the mean distance from the recorded actions; padding does not count."""
        return _mean_distance(self.predict_action_chunk(batch), batch)


def _mean_distance(actions, batch):
    is_recorded = ~batch["action_is_pad"]
    return ((actions - batch[ACTION]).abs().mean(2) * is_recorded).sum() / is_recorded.sum()


def loss_of(policy, batch):
    """Returns a policy's training loss. That of ACT is computed here, because its `forward` would wait for the GPU to get the loss's
    parts as numbers."""
    if isinstance(policy, ChunkMLP):
        return policy.loss(batch)
    actions, (mean, log_variance) = policy.model({**batch, "observation.images": [batch[CAMERA]]})
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
    return _mean_distance(actions, batch) + policy.config.kl_weight * divergence


def _import_act():
    """Imports only ACT's modules. The packages around them are replaced by empty ones, because they would import every policy of
    LeRobot with its dependencies."""
    spec = importlib.util.find_spec("lerobot")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "lerobot: not installed; ACT needs: pip install --no-deps lerobot draccus einops gymnasium torchvision"
        )
    root = Path(spec.submodule_search_locations[0])
    for name in ("lerobot.policies", "lerobot.policies.act"):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
    return importlib.import_module("lerobot.policies.act.modeling_act")


def act(keys, image_size):
    """Returns LeRobot's ACT with random weights. keys: the number of features of each key of the batch, except the camera."""
    modeling = _import_act()
    from lerobot.configs.types import FeatureType, PolicyFeature

    kinds = {STATE: FeatureType.STATE, CUBE: FeatureType.ENV}
    inputs = {key: PolicyFeature(kinds[key], (size,)) for key, size in keys.items() if key in kinds}
    if image_size:
        inputs[CAMERA] = PolicyFeature(FeatureType.VISUAL, (3, image_size, image_size))
    return modeling.ACTPolicy(
        modeling.ACTConfig(
            input_features=inputs,
            output_features={ACTION: PolicyFeature(FeatureType.ACTION, (keys[ACTION],))},
            chunk_size=CHUNK,
            n_action_steps=CHUNK,
            pretrained_backbone_weights=None,
            dim_model=256,
            dim_feedforward=1024,
            device="cpu",
        )
    )


@torch.no_grad()
def calibrate(policy, batch):
    """Sets the frozen batch norms of a backbone with random weights to the statistics of one batch.

    A FrozenBatchNorm2d keeps the mean and the variance that belong to pretrained weights. With random weights these are 0 and 1, so
    nothing would be normalised.
    """
    from torchvision.ops.misc import FrozenBatchNorm2d

    def measure(norm, inputs):
        norm.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        norm.running_var.copy_(inputs[0].var((0, 2, 3)))

    norms = [module for module in policy.modules() if isinstance(module, FrozenBatchNorm2d)]
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    policy.model.backbone(batch[CAMERA])
    for hook in hooks:
        hook.remove()


def build(kind, keys, image_size):
    """Returns a policy.

    kind: "act" or "mlp".
    keys: the number of features of each key.
    image_size: the size of the camera's frames in the batch; 0 without a camera.
    """
    if kind == "act":
        return act(keys, image_size)
    return ChunkMLP(keys[STATE] + keys[CUBE], keys[ACTION])
