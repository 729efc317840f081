"""`Model from PaddlePaddle.`, imported from ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from jax import Array, nn
from safetensors.flax import load_file, save_file


class Model(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.conv2d_0 = nnx.Conv(3, 8, (3, 3), padding=1, strides=2, use_bias=False, rngs=rngs)
        self.batch_norm_0 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_1 = nnx.Conv(8, 8, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_1 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_2 = nnx.Conv(
            8,
            8,
            (3, 3),
            padding=1,
            strides=(2, 1),
            feature_group_count=8,
            use_bias=False,
            rngs=rngs,
        )
        self.batch_norm_2 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_3 = nnx.Conv(8, 2, (1, 1), padding=0, rngs=rngs)
        self.conv2d_4 = nnx.Conv(2, 8, (1, 1), padding=0, rngs=rngs)
        self.conv2d_5 = nnx.Conv(8, 8, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_3 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_6 = nnx.Conv(8, 24, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_4 = nnx.BatchNorm(
            24, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_7 = nnx.Conv(
            24,
            24,
            (3, 3),
            padding=1,
            strides=(2, 1),
            feature_group_count=24,
            use_bias=False,
            rngs=rngs,
        )
        self.batch_norm_5 = nnx.BatchNorm(
            24, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_8 = nnx.Conv(24, 8, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_6 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_9 = nnx.Conv(8, 32, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_7 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_10 = nnx.Conv(
            32, 32, (3, 3), padding=1, feature_group_count=32, use_bias=False, rngs=rngs
        )
        self.batch_norm_8 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_11 = nnx.Conv(32, 8, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_9 = nnx.BatchNorm(
            8, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_12 = nnx.Conv(8, 32, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_10 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_13 = nnx.Conv(
            32,
            32,
            (5, 5),
            padding=2,
            strides=(2, 1),
            feature_group_count=32,
            use_bias=False,
            rngs=rngs,
        )
        self.batch_norm_11 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_14 = nnx.Conv(32, 8, (1, 1), padding=0, rngs=rngs)
        self.conv2d_15 = nnx.Conv(8, 32, (1, 1), padding=0, rngs=rngs)
        self.conv2d_16 = nnx.Conv(32, 16, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_12 = nnx.BatchNorm(
            16, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_17 = nnx.Conv(16, 88, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_13 = nnx.BatchNorm(
            88, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_18 = nnx.Conv(
            88, 88, (5, 5), padding=2, feature_group_count=88, use_bias=False, rngs=rngs
        )
        self.batch_norm_14 = nnx.BatchNorm(
            88, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_19 = nnx.Conv(88, 22, (1, 1), padding=0, rngs=rngs)
        self.conv2d_20 = nnx.Conv(22, 88, (1, 1), padding=0, rngs=rngs)
        self.conv2d_21 = nnx.Conv(88, 16, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_15 = nnx.BatchNorm(
            16, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_22 = nnx.Conv(16, 88, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_16 = nnx.BatchNorm(
            88, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_23 = nnx.Conv(
            88, 88, (5, 5), padding=2, feature_group_count=88, use_bias=False, rngs=rngs
        )
        self.batch_norm_17 = nnx.BatchNorm(
            88, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_24 = nnx.Conv(88, 22, (1, 1), padding=0, rngs=rngs)
        self.conv2d_25 = nnx.Conv(22, 88, (1, 1), padding=0, rngs=rngs)
        self.conv2d_26 = nnx.Conv(88, 16, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_18 = nnx.BatchNorm(
            16, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_27 = nnx.Conv(16, 40, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_19 = nnx.BatchNorm(
            40, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_28 = nnx.Conv(
            40, 40, (5, 5), padding=2, feature_group_count=40, use_bias=False, rngs=rngs
        )
        self.batch_norm_20 = nnx.BatchNorm(
            40, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_29 = nnx.Conv(40, 10, (1, 1), padding=0, rngs=rngs)
        self.conv2d_30 = nnx.Conv(10, 40, (1, 1), padding=0, rngs=rngs)
        self.conv2d_31 = nnx.Conv(40, 16, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_21 = nnx.BatchNorm(
            16, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_32 = nnx.Conv(16, 48, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_22 = nnx.BatchNorm(
            48, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_33 = nnx.Conv(
            48, 48, (5, 5), padding=2, feature_group_count=48, use_bias=False, rngs=rngs
        )
        self.batch_norm_23 = nnx.BatchNorm(
            48, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_34 = nnx.Conv(48, 12, (1, 1), padding=0, rngs=rngs)
        self.conv2d_35 = nnx.Conv(12, 48, (1, 1), padding=0, rngs=rngs)
        self.conv2d_36 = nnx.Conv(48, 16, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_24 = nnx.BatchNorm(
            16, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_37 = nnx.Conv(16, 104, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_25 = nnx.BatchNorm(
            104, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_38 = nnx.Conv(
            104,
            104,
            (5, 5),
            padding=2,
            strides=(2, 1),
            feature_group_count=104,
            use_bias=False,
            rngs=rngs,
        )
        self.batch_norm_26 = nnx.BatchNorm(
            104, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_39 = nnx.Conv(104, 26, (1, 1), padding=0, rngs=rngs)
        self.conv2d_40 = nnx.Conv(26, 104, (1, 1), padding=0, rngs=rngs)
        self.conv2d_41 = nnx.Conv(104, 32, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_27 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_42 = nnx.Conv(32, 200, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_28 = nnx.BatchNorm(
            200, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_43 = nnx.Conv(
            200, 200, (5, 5), padding=2, feature_group_count=200, use_bias=False, rngs=rngs
        )
        self.batch_norm_29 = nnx.BatchNorm(
            200, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_44 = nnx.Conv(200, 50, (1, 1), padding=0, rngs=rngs)
        self.conv2d_45 = nnx.Conv(50, 200, (1, 1), padding=0, rngs=rngs)
        self.conv2d_46 = nnx.Conv(200, 32, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_30 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_47 = nnx.Conv(32, 200, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_31 = nnx.BatchNorm(
            200, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_48 = nnx.Conv(
            200, 200, (5, 5), padding=2, feature_group_count=200, use_bias=False, rngs=rngs
        )
        self.batch_norm_32 = nnx.BatchNorm(
            200, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_49 = nnx.Conv(200, 50, (1, 1), padding=0, rngs=rngs)
        self.conv2d_50 = nnx.Conv(50, 200, (1, 1), padding=0, rngs=rngs)
        self.conv2d_51 = nnx.Conv(200, 32, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_33 = nnx.BatchNorm(
            32, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.conv2d_52 = nnx.Conv(32, 200, (1, 1), padding=0, use_bias=False, rngs=rngs)
        self.batch_norm_34 = nnx.BatchNorm(
            200, use_running_average=True, momentum=0.9, epsilon=1e-05, rngs=rngs
        )
        self.fc_0 = nnx.Linear(200, 2, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        batch_norm_0 = self.batch_norm_0(self.conv2d_0(x.transpose(0, 2, 3, 1)))
        conv2d_1 = self.conv2d_1(batch_norm_0 * jnp.clip(batch_norm_0 + 3.0, 0.0, 6.0) / 6.0)
        x = nn.relu(self.batch_norm_2(self.conv2d_2(nn.relu(self.batch_norm_1(conv2d_1)))))
        conv2d_4 = self.conv2d_4(nn.relu(self.conv2d_3(jnp.mean(x, axis=(1, 2), keepdims=True))))
        batch_norm_3 = self.batch_norm_3(
            self.conv2d_5(x * jnp.clip(0.2 * conv2d_4 + 0.5, 0.0, 1.0))
        )
        batch_norm_5 = self.batch_norm_5(
            self.conv2d_7(nn.relu(self.batch_norm_4(self.conv2d_6(batch_norm_3))))
        )
        batch_norm_6 = self.batch_norm_6(self.conv2d_8(nn.relu(batch_norm_5)))
        batch_norm_8 = self.batch_norm_8(
            self.conv2d_10(nn.relu(self.batch_norm_7(self.conv2d_9(batch_norm_6))))
        )
        conv2d_12 = self.conv2d_12(
            batch_norm_6 + self.batch_norm_9(self.conv2d_11(nn.relu(batch_norm_8)))
        )
        batch_norm_10 = self.batch_norm_10(conv2d_12)
        conv2d_13 = self.conv2d_13(batch_norm_10 * jnp.clip(batch_norm_10 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_11 = self.batch_norm_11(conv2d_13)
        x = batch_norm_11 * jnp.clip(batch_norm_11 + 3.0, 0.0, 6.0) / 6.0
        conv2d_15 = self.conv2d_15(nn.relu(self.conv2d_14(jnp.mean(x, axis=(1, 2), keepdims=True))))
        batch_norm_12 = self.batch_norm_12(
            self.conv2d_16(x * jnp.clip(0.2 * conv2d_15 + 0.5, 0.0, 1.0))
        )
        batch_norm_13 = self.batch_norm_13(self.conv2d_17(batch_norm_12))
        conv2d_18 = self.conv2d_18(batch_norm_13 * jnp.clip(batch_norm_13 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_14 = self.batch_norm_14(conv2d_18)
        x = batch_norm_14 * jnp.clip(batch_norm_14 + 3.0, 0.0, 6.0) / 6.0
        conv2d_20 = self.conv2d_20(nn.relu(self.conv2d_19(jnp.mean(x, axis=(1, 2), keepdims=True))))
        batch_norm_15 = self.batch_norm_15(
            self.conv2d_21(x * jnp.clip(0.2 * conv2d_20 + 0.5, 0.0, 1.0))
        )
        x = batch_norm_12 + batch_norm_15
        batch_norm_16 = self.batch_norm_16(self.conv2d_22(x))
        conv2d_23 = self.conv2d_23(batch_norm_16 * jnp.clip(batch_norm_16 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_17 = self.batch_norm_17(conv2d_23)
        x_2 = batch_norm_17 * jnp.clip(batch_norm_17 + 3.0, 0.0, 6.0) / 6.0
        conv2d_25 = self.conv2d_25(
            nn.relu(self.conv2d_24(jnp.mean(x_2, axis=(1, 2), keepdims=True)))
        )
        batch_norm_18 = self.batch_norm_18(
            self.conv2d_26(x_2 * jnp.clip(0.2 * conv2d_25 + 0.5, 0.0, 1.0))
        )
        x = x + batch_norm_18
        batch_norm_19 = self.batch_norm_19(self.conv2d_27(x))
        conv2d_28 = self.conv2d_28(batch_norm_19 * jnp.clip(batch_norm_19 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_20 = self.batch_norm_20(conv2d_28)
        x_2 = batch_norm_20 * jnp.clip(batch_norm_20 + 3.0, 0.0, 6.0) / 6.0
        conv2d_30 = self.conv2d_30(
            nn.relu(self.conv2d_29(jnp.mean(x_2, axis=(1, 2), keepdims=True)))
        )
        batch_norm_21 = self.batch_norm_21(
            self.conv2d_31(x_2 * jnp.clip(0.2 * conv2d_30 + 0.5, 0.0, 1.0))
        )
        x = x + batch_norm_21
        batch_norm_22 = self.batch_norm_22(self.conv2d_32(x))
        conv2d_33 = self.conv2d_33(batch_norm_22 * jnp.clip(batch_norm_22 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_23 = self.batch_norm_23(conv2d_33)
        x_2 = batch_norm_23 * jnp.clip(batch_norm_23 + 3.0, 0.0, 6.0) / 6.0
        conv2d_35 = self.conv2d_35(
            nn.relu(self.conv2d_34(jnp.mean(x_2, axis=(1, 2), keepdims=True)))
        )
        batch_norm_24 = self.batch_norm_24(
            self.conv2d_36(x_2 * jnp.clip(0.2 * conv2d_35 + 0.5, 0.0, 1.0))
        )
        batch_norm_25 = self.batch_norm_25(self.conv2d_37(x + batch_norm_24))
        conv2d_38 = self.conv2d_38(batch_norm_25 * jnp.clip(batch_norm_25 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_26 = self.batch_norm_26(conv2d_38)
        x = batch_norm_26 * jnp.clip(batch_norm_26 + 3.0, 0.0, 6.0) / 6.0
        conv2d_40 = self.conv2d_40(nn.relu(self.conv2d_39(jnp.mean(x, axis=(1, 2), keepdims=True))))
        batch_norm_27 = self.batch_norm_27(
            self.conv2d_41(x * jnp.clip(0.2 * conv2d_40 + 0.5, 0.0, 1.0))
        )
        batch_norm_28 = self.batch_norm_28(self.conv2d_42(batch_norm_27))
        conv2d_43 = self.conv2d_43(batch_norm_28 * jnp.clip(batch_norm_28 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_29 = self.batch_norm_29(conv2d_43)
        x = batch_norm_29 * jnp.clip(batch_norm_29 + 3.0, 0.0, 6.0) / 6.0
        conv2d_45 = self.conv2d_45(nn.relu(self.conv2d_44(jnp.mean(x, axis=(1, 2), keepdims=True))))
        batch_norm_30 = self.batch_norm_30(
            self.conv2d_46(x * jnp.clip(0.2 * conv2d_45 + 0.5, 0.0, 1.0))
        )
        x = batch_norm_27 + batch_norm_30
        batch_norm_31 = self.batch_norm_31(self.conv2d_47(x))
        conv2d_48 = self.conv2d_48(batch_norm_31 * jnp.clip(batch_norm_31 + 3.0, 0.0, 6.0) / 6.0)
        batch_norm_32 = self.batch_norm_32(conv2d_48)
        x_2 = batch_norm_32 * jnp.clip(batch_norm_32 + 3.0, 0.0, 6.0) / 6.0
        conv2d_50 = self.conv2d_50(
            nn.relu(self.conv2d_49(jnp.mean(x_2, axis=(1, 2), keepdims=True)))
        )
        batch_norm_33 = self.batch_norm_33(
            self.conv2d_51(x_2 * jnp.clip(0.2 * conv2d_50 + 0.5, 0.0, 1.0))
        )
        batch_norm_34 = self.batch_norm_34(self.conv2d_52(x + batch_norm_33))
        x = nnx.max_pool(
            batch_norm_34 * jnp.clip(batch_norm_34 + 3.0, 0.0, 6.0) / 6.0, (2, 2), strides=(2, 2)
        )
        return nn.softmax(self.fc_0(jnp.mean(x, axis=(1, 2))), axis=1)


def load(path: str | Path | None = None) -> Model:
    """The model with its weights: those beside this module, or those of another file of the same names."""
    return filled(
        load_file(Path(__file__).with_name("model.safetensors") if path is None else path)
    )


def save(model: Model, path: str | Path) -> None:
    """Write the weights of the model, as `load` reads them."""
    save_file({name: variable[...] for name, variable in named(model).items()}, path)


def filled(tensors: Mapping[str, Array]) -> Model:
    """The model with weights by path."""
    model = abstract()
    for name, variable in named(model).items():
        if name not in tensors or tensors[name].shape != variable.shape:
            raise ValueError(f"the file has no tensor `{name}` of shape {variable.shape}")
        variable.set_value(jnp.asarray(tensors[name]))
    return model


def named(model: Model) -> dict[str, nnx.Variable]:
    """The weights of the model by path."""
    return {
        ".".join(map(str, key)): variable for key, variable in nnx.to_flat_state(nnx.state(model))
    }


def abstract() -> Model:
    """The model with shapes in place of its weights."""
    return nnx.eval_shape(lambda: Model(rngs=nnx.Rngs(0)))
