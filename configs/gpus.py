"""Eight GPUs, on one machine or under SLURM: a larger batch, bf16, and a rate that follows the batch.

For:      projects of thousands of labelled frames. The batch counts frames over all devices, and has 16 shards of 8
          frames, so this config gives the same run on 1, 4, 8 or 16 GPUs of one kind (with mesh.deterministic, for the
          last bits). A GPU computes 8 frames at once.
Reached:  not measured.
Cost:     not measured; --dry_run shows the memory and the FLOP of a step.
Command:  jaxpose train PROJECT_FOLDER --config configs/gpus.py                 (one machine)
          sbatch launch/slurm.sbatch PROJECT_FOLDER --config configs/gpus.py    (SLURM)
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, input_height_px=256, input_width_px=256),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet50"),
        # The learning rate is optim.lr times sqrt(128 / 16); it rises to that over the first 100 steps.
        optim=c.OptimConfig(lr=1e-3, lr_scale="sqrt", lr_reference_batch=16, warmup_steps=100),
        train=c.TrainConfig(batch_size=128, precision="bf16"),
    )
